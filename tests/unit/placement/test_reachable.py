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


def terms(*found: dict[str, Any]) -> dict[str, Any]:
    return {"spec": {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(found)}}}}}


IN_DISK = {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["nvme"]}]}
HAS_DISK = {"matchExpressions": [{"key": "disk", "operator": "Exists"}]}
TWO_DISKS = {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["nvme", "ssd"]}]}
NOT_X = {"matchExpressions": [{"key": "x", "operator": "NotIn", "values": ["y"]}]}


@pytest.mark.parametrize(
    "demand",
    [
        Demand(),
        Demand(node_group="g"),
        Demand(cohort="c"),
        Demand(node_group="g", cohort="c"),
        Demand(requirements=PodRequirements.of({"spec": {"nodeSelector": {"disk": "nvme"}}})),
        *(
            Demand(requirements=PodRequirements.of(terms(*found)), node_group=group)
            for group in (None, "g")
            for found in ((IN_DISK,), (HAS_DISK,), (TWO_DISKS,), (NOT_X,), (IN_DISK, NOT_X))
        ),
    ],
)
def test_asking_changes_nothing_in_the_index(demand: Demand) -> None:
    """Sets are narrowed in place for speed: never the index's own ones."""
    parts: dict[str, Any] = {"labels": {"disk": "nvme"}, "group": "g", "cohort": "c"}
    shut = [node(f"n{i}", AMD, unschedulable=True, **parts) for i in range(3)]
    index = fleet(*shut)
    assert not reachable(demand, index)
    assert sum(len(nodes) for _, nodes in removed(demand, index)) == 3
    for facts in shut:
        index.apply(replace(facts, unschedulable=False), now=NOW)
    assert index.names(reachable(demand, index)) == ("n0", "n1", "n2")
    assert not any(nodes for _, nodes in removed(demand, index))


def test_each_templates_answer_is_its_own() -> None:
    """Answers are kept by the identity of the terms, which must not be used again meanwhile."""
    index = fleet(*(node(f"n{i}", labels={"disk": str(i)}) for i in range(100)))
    for i in range(100):
        pod = terms({"matchExpressions": [{"key": "disk", "operator": "In", "values": [str(i)]}]})
        demand = Demand(requirements=PodRequirements.of(pod))
        assert index.names(reachable(demand, index)) == (f"n{i}",)


@pytest.mark.parametrize(
    "shut",
    [
        {"unschedulable": True},
        {"deleting": True},
        {"taints": (Taint("k", "", "NoSchedule"),)},
        {"labels": {"disk": "nvme", names.PLACEMENT_BLOCK_LABEL: ""}},
        {"labels": {"disk": "hdd"}},
        {"labels": {}},
    ],
)
def test_a_kept_answer_follows_a_node_that_is_shut_and_opened(shut: dict[str, Any]) -> None:
    opened = node("n1", labels={"disk": "nvme"})
    index = fleet(opened, node("n2"))
    demand = Demand(requirements=PodRequirements.of(terms(IN_DISK)))
    for _ in range(2):
        assert index.names(reachable(demand, index)) == ("n1",)
        assert sum(len(nodes) for _, nodes in removed(demand, index)) == 1
        index.apply(replace(opened, **shut), now=NOW)
        assert index.names(reachable(demand, index)) == ()
        assert sum(len(nodes) for _, nodes in removed(demand, index)) == 2
        index.apply(opened, now=NOW)
    index.remove("n1", now=NOW)
    assert index.names(reachable(demand, index)) == ()


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
