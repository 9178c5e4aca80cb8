"""Section 7: what each filter removes, in order, and whom a change concerns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sandbox_restore.model import names
from sandbox_restore.model.node import NodeFacts, Taint
from sandbox_restore.placement.match import PodRequirements
from sandbox_restore.placement.reachable import (
    Demand,
    Filter,
    blocking_filters,
    concerns,
    is_reachable,
    reachable,
    removed,
)
from tests.unit.fleet.nodes import AMD, INTEL_A, NOW, fleet, node
from tests.unit.placement.test_match import REQUIRED

POD = {
    "spec": {
        "nodeSelector": {"arch": "amd64"},
        "affinity": {
            "nodeAffinity": {
                REQUIRED: {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "disk", "operator": "Exists"}]}
                    ]
                }
            }
        },
    }
}
DEMAND = Demand(requirements=PodRequirements.of(POD), node_group="g", cohort="c")
GOOD = {"labels": {"arch": "amd64", "disk": "nvme"}, "group": "g", "cohort": "c"}

BROKEN: dict[Filter, dict[str, Any]] = {
    Filter.NODE_SELECTOR: {"labels": {"arch": "arm64", "disk": "nvme"}},
    Filter.NODE_AFFINITY: {"labels": {"arch": "amd64"}},
    Filter.CORDONED: {"unschedulable": True},
    Filter.TAINTED: {"taints": [("k", "", "NoSchedule")]},
    Filter.DELETING: {"deleting": True},
    Filter.PLACEMENT_BLOCK: {"blocked": True},
    Filter.NODE_GROUP: {"group": "other"},
    Filter.COHORT: {"cohort": None},
}


def test_every_filter_has_a_case() -> None:
    assert list(BROKEN) == list(Filter)


@pytest.mark.parametrize("rule", list(Filter))
def test_each_filter_alone_makes_a_node_unreachable(rule: Filter) -> None:
    bad, good = node("bad", AMD, **{**GOOD, **BROKEN[rule]}), node("good", AMD, **GOOD)
    index = fleet(bad, good)
    assert index.names(reachable(DEMAND, index)) == ("good",)
    assert is_reachable(DEMAND, good)
    assert not is_reachable(DEMAND, bad)
    assert blocking_filters(DEMAND, bad) == (rule,)
    assert blocking_filters(DEMAND, good) == ()
    counted = {r: index.names(nodes) for r, nodes in removed(DEMAND, index)}
    assert counted == {r: (("bad",) if r is rule else ()) for r in Filter}


def test_a_node_is_counted_by_the_first_filter_that_removes_it() -> None:
    rules = list(Filter)
    for i in range(len(rules)):
        parts: dict[str, Any] = dict(GOOD)
        for rule in rules[i:]:
            if rule is Filter.NODE_AFFINITY and i < 1:
                continue
            parts |= BROKEN[rule]
        index = fleet(node("bad", AMD, **parts))
        first = next(r for r, nodes in removed(DEMAND, index) if nodes)
        assert first is rules[i]


def test_groups_and_cohorts_are_counted_only_where_they_apply() -> None:
    index = fleet(node("n1", group="g", cohort="c"))
    rules = [rule for rule, _ in removed(Demand(), index)]
    assert rules == list(Filter)[:6]


# --- concerns


def change(before: NodeFacts, **parts: Any) -> Any:
    index = fleet(before, node("another", AMD))
    return index.apply(replace(before, **parts), now=NOW)


@pytest.mark.parametrize(
    ("before", "parts", "concerned"),
    [
        (node("n", AMD, **GOOD), {"unschedulable": True}, True),
        (node("n", AMD, unschedulable=True, **GOOD), {"unschedulable": False}, True),
        (node("n", AMD, **GOOD), {"services_ready": False}, True),
        (node("n", AMD, **{**GOOD, "group": "h"}), {"unschedulable": True}, False),
        (
            node("n", AMD, **{**GOOD, "group": "h"}),
            {"taints": (Taint("k", "", "NoExecute"),)},
            False,
        ),
        (node("n", AMD, **GOOD), {"ready": False}, False),
        (node("n", AMD, **GOOD), {"network_slots": 0}, False),
    ],
)
def test_a_change_concerns_those_who_can_reach_the_node(
    before: NodeFacts, parts: dict[str, Any], concerned: bool
) -> None:
    assert concerns(DEMAND, change(before, **parts)) is concerned


def test_a_cpu_that_comes_or_goes_concerns_everyone() -> None:
    far = node("far", **{**GOOD, "group": "h"})
    labelled = {**far.labels, names.HOST_CPU_LABEL: INTEL_A}
    assert concerns(DEMAND, change(far, labels=labelled))
    known = {**far.labels, names.HOST_CPU_LABEL: AMD}
    assert not concerns(DEMAND, change(far, labels=known))
    assert concerns(DEMAND, change(far, labels=known), named=["far"])
    assert not concerns(DEMAND, change(far, ready=False), named=["far"])
    index = fleet(node("last", AMD, group="h"))
    gone = index.remove("last", now=NOW)
    assert gone is not None
    assert concerns(DEMAND, gone)
