"""Sections 8 and 16: the numbers behind a decision, and the words for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from sandbox_restore.fleet.evidence import Evidence
from sandbox_restore.model.names import COHORT_LABEL
from sandbox_restore.model.restore import HostCpuPolicy, PlacementStatus
from sandbox_restore.placement.decision import Outcome, PlacementDecision
from sandbox_restore.placement.explain import (
    Explanation,
    blocked_loaders,
    event_reason,
    explanation,
    log_fields,
    message,
    named,
    placement_status,
)
from sandbox_restore.placement.gate import Gate
from sandbox_restore.placement.reachable import Filter
from tests.unit.fleet.nodes import AMD, ARM, INTEL_A, INTEL_B, fleet, history, node, span
from tests.unit.placement.asks import decided, request, snapshot

CORDONED = {"unschedulable": True}


def explained(*nodes: Any, pairs: str = "", **asked: Any) -> tuple[PlacementDecision, Explanation]:
    index = fleet(*nodes)
    asking = request(**asked)
    decision = decided(asking, index, pairs)
    return decision, explanation(decision, asking, index)


def said(*nodes: Any, pairs: str = "", **asked: Any) -> str:
    return message(*explained(*nodes, pairs=pairs, **asked))


EXAMPLE = [
    *(node(f"a{i}", INTEL_A, group="g") for i in range(12)),
    *(node(f"b{i}", AMD, group="g") for i in range(20)),
    *(node(f"c{i}", INTEL_B, group="g") for i in range(8)),
    *(node(f"d{i}", ARM, group="h") for i in range(23)),
    *(node(f"e{i}", INTEL_A, group="g", unschedulable=True) for i in range(3)),
    *(node(f"f{i}", AMD, group="g", taints=[("k", "v", "NoSchedule")]) for i in range(2)),
]


def test_the_numbers_read_as_in_the_api() -> None:
    assert said(*EXAMPLE, group="g") == (
        "1 of 4 published CPUs can load intel-6-106-6; 12 of 40 reachable nodes have it;"
        " removed: 3 cordoned, 2 tainted, 23 other node group."
    )


def test_the_numbers_add_up() -> None:
    decision, found = explained(*EXAMPLE, group="g")
    assert (found.nodes, found.reachable, found.reachable_loaders) == (68, 40, 12)
    assert found.nodes - sum(gap.nodes for gap in found.removed) == found.reachable
    assert found.reachable == decision.reachable
    assert found.loader_nodes == 15
    assert blocked_loaders(found) == ("3 nodes with a loader are cordoned: e0, e1 and e2",)


@pytest.mark.parametrize(
    ("facts", "asked", "says"),
    [
        (CORDONED, {}, "Nearest: n1 is cordoned (kubectl uncordon)."),
        ({"blocked": True}, {}, "n1 is under a placement block (label space.pplx.net/placement"),
        (
            {"taints": [("gpu", "big", "NoSchedule"), ("soft", "", "PreferNoSchedule")]},
            {},
            "n1 is tainted with what the pod does not tolerate (gpu=big:NoSchedule).",
        ),
        ({"taints": [("gpu", "", "NoExecute")]}, {}, "(gpu:NoExecute)"),
        ({"group": "h"}, {"group": "g"}, "n1 is in another node group than the sandbox."),
        ({"cohort": "green"}, {"cohort": "blue"}, "n1 is not in the target cohort."),
        (
            {},
            {"pod": {"spec": {"nodeSelector": {"zone": "a"}}}},
            "n1 does not match the pod's node selector.",
        ),
        ({"deleting": True}, {}, "All that there are are being deleted: add one."),
    ],
)
def test_the_nearest_thing_a_person_could_change_is_named(
    facts: dict[str, Any], asked: dict[str, Any], says: str
) -> None:
    text = said(node("n1", INTEL_A, **facts), node("n2", AMD), **asked)
    assert says in text
    assert "Needed: a node with intel-6-106-6." in text


def test_the_nearest_change_is_the_one_with_the_fewest_and_easiest_rules() -> None:
    both = {"cohort": "green", "taints": [("k", "", "NoSchedule")]}
    nodes = [
        node("both", INTEL_A, group="g", **both),
        node("group", INTEL_A, group="h"),
        node("late", INTEL_A, group="g", deleting=True),
        node("cordoned-2", INTEL_A, group="g", **CORDONED),
        node("cordoned-1", INTEL_A, group="g", **CORDONED),
    ]
    nodes = [replace(n, labels={COHORT_LABEL: "blue", **n.labels}) for n in nodes]
    _, found = explained(*nodes, node("x", AMD), group="g", cohort="blue")
    assert found.nearest is not None
    assert (found.nearest.filters, found.nearest.names) == (
        (Filter.CORDONED,),
        ("cordoned-1", "cordoned-2"),
    )
    three = node(
        "three", INTEL_A, group="g", blocked=True, taints=[("k", "", "NoSchedule")], **CORDONED
    )
    three = replace(three, labels={COHORT_LABEL: "blue", **three.labels})
    _, two = explained(three, nodes[0], nodes[2], node("x", AMD), group="g", cohort="blue")
    assert two.nearest is not None
    assert two.nearest.filters == (Filter.TAINTED, Filter.COHORT)
    assert two.nearest.taints == ("k:NoSchedule",)


def test_a_cpu_that_no_node_has_is_named_with_what_to_do() -> None:
    text = said(node("x", AMD), pairs=f"{INTEL_A}=>{INTEL_B}")
    assert "Needed: a node with intel-6-106-6 or intel-6-143-8. There is none in the fleet" in text
    assert "SPACE_SANDBOX_RESTORE_HOST_CPU_COMPATIBILITY" in text


def test_a_lineage_that_nothing_can_load_is_told() -> None:
    text = said(node("x", AMD), snap=snapshot(INTEL_A, ancestor_cpus=(INTEL_B,)))
    assert "No CPU is known to load it" in text
    assert "restored before on intel-6-143-8" in text


def test_nodes_that_refused_are_told_apart() -> None:
    text = said(node("n1", INTEL_A), node("x", AMD), refused=["n1"])
    assert "0 of 2 reachable nodes have it; removed: 1 refused this capture before" in text
    assert "Every one that could be had has refused this capture: compare their firmware" in text
    cordoned = said(node("n1", INTEL_A, **CORDONED), node("x", AMD), refused=["n1"])
    assert "Every one that could be had has refused this capture" in cordoned
    assert "uncordon" not in cordoned


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"gate": Gate.OFF}, "Placement by host CPU is off for this restore. 1 of 1 nodes"),
        (
            {"gate": Gate.OFF, "policy": HostCpuPolicy.REQUIRED},
            "hostCpuPolicy Required has no effect.",
        ),
        ({"policy": HostCpuPolicy.IGNORE}, "hostCpuPolicy Ignore: not constrained"),
        ({"cpu": None}, "is not known; the pod is placed without regard to the host CPU."),
        ({"cpu": None}, "Uploading node source is not in the fleet."),
        (
            {"cpu": None, "policy": HostCpuPolicy.REQUIRED},
            "is not known; hostCpuPolicy Required waits until it is.",
        ),
        ({"cpu": "Intel-6"}, "'Intel-6' counts as not recorded: it is not canonical"),
        ({"cpu": AMD}, "1 of 1 published CPUs can load amd-25-17-1; 1 of 1 reachable nodes"),
        ({"cpu": AMD}, "Nothing is excluded."),
        ({"policy": HostCpuPolicy.REQUIRED}, "hostCpuPolicy Required waits for one. Needed: "),
    ],
)
def test_every_outcome_has_words(asked: dict[str, Any], says: str) -> None:
    assert says in said(node("n1", AMD), **asked)


def test_a_full_or_unlabelled_fleet_is_told() -> None:
    full = said(node("n1", INTEL_A, network_slots=0), node("x", AMD))
    assert "None of them offers a network slot now" in full
    nodes = [node("n1", INTEL_A, network_slots=0), node("n2", INTEL_A), node("x", AMD)]
    assert "None of them offers" not in said(*nodes)
    assert "None of them offers" not in said(*nodes, refused=["n1"])
    assert "None of them offers" in said(*nodes, refused=["n2"])
    mixed = said(node("n1", INTEL_A), node("x", AMD), node("p"), node("q", "BAD"))
    assert "2 reachable nodes without a usable host-CPU label may take it too." in mixed
    required = said(node("n1", INTEL_A), node("p"), node("x", AMD), policy=HostCpuPolicy.REQUIRED)
    assert "may take it too" not in required


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"may_wait_for_cache": True}, "not complete yet; waiting for it before the pod is made."),
        ({}, "not complete yet; the pod is placed without regard to the host CPU."),
    ],
)
def test_a_cold_cache_has_words_and_no_numbers(parts: dict[str, Any], says: str) -> None:
    index = fleet(node("n1", AMD), warm=False)
    asked = request(**parts)
    decision = decided(asked, index)
    found = explanation(decision, asked, index)
    assert says in message(decision, found)
    assert (found.nodes, found.reachable, found.removed) == (0, 0, ())


def test_evidence_other_than_the_record_is_told() -> None:
    nodes = [node("source", INTEL_A), node("x", AMD)]
    assert "The capture CPU is the label of uploading node source." in said(*nodes, cpu=None)
    index, asked = fleet(nodes[1], history=history(span("source", INTEL_A))), request(None)
    decision = decided(asked, index)
    assert "source carried at capture time" in message(
        decision, explanation(decision, asked, index)
    )


def test_what_the_gate_would_do_is_told_as_such() -> None:
    index, asked = fleet(node("n1", INTEL_A), node("x", AMD)), request(gate=Gate.OBSERVE)
    decision = decided(asked, index)
    assert decision.would is not None
    text = message(decision.would, explanation(decision.would, asked, index))
    assert text.startswith("With the gate on: 1 of 2 published CPUs")


def test_names_are_cut_to_a_few() -> None:
    assert named((), 0) == ""
    assert named(("a",), 1) == "a"
    assert named(("a", "b"), 2) == "a and b"
    assert named(("a", "b", "c"), 3) == "a, b and c"
    assert named(("a", "b", "c", "d"), 4) == "a, b, c and 1 more"


def test_a_large_fleet_names_ten_nodes_and_counts_all() -> None:
    nodes = [node(f"n{i:03}", INTEL_A, **CORDONED) for i in range(300)]
    _, found = explained(*nodes, node("x", AMD))
    (gap,) = [gap for gap in found.removed if gap.nodes]
    assert (gap.nodes, gap.loaders, len(gap.loader_names)) == (300, 300, 10)


# --- other forms


def test_the_status_carries_every_number() -> None:
    decision, found = explained(*EXAMPLE, group="g")
    status = placement_status(decision, found)
    assert msgspec.to_builtins(status) == {
        "captureCpu": INTEL_A,
        "evidence": str(Evidence.RECORDED),
        "decision": "Constrained",
        "reason": "LoaderReachable",
        "gate": True,
        "policy": "Auto",
        "published": [AMD, ARM, INTEL_A, INTEL_B],
        "excluded": [AMD, ARM, INTEL_B],
        "loaders": [INTEL_A],
        "nodes": 68,
        "reachable": 40,
        "reachableLoaders": 12,
        "removed": [
            {"filter": "cordoned", "removed": 3},
            {"filter": "tainted", "removed": 2},
            {"filter": "nodeGroup", "removed": 23},
        ],
        "message": message(decision, found),
    }
    assert isinstance(status, PlacementStatus)


def test_log_fields_are_plain_values() -> None:
    decision, found = explained(*EXAMPLE, group="g")
    fields = log_fields(decision, found)
    assert fields["removed"] == {"cordoned": 3, "tainted": 2, "nodeGroup": 23}
    assert fields["operator"] == "NotIn"
    assert msgspec.json.decode(msgspec.json.encode(fields)) == fields


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (Outcome.CONSTRAINED, "PlacementConstrained"),
        (Outcome.UNCONSTRAINED, "PlacementUnconstrained"),
        (Outcome.HELD, "PlacementHeld"),
    ],
)
def test_the_event_is_named_by_the_outcome(outcome: Outcome, reason: str) -> None:
    decision, _ = explained(node("n1", INTEL_A))
    assert event_reason(msgspec.structs.replace(decision, outcome=outcome)) == reason
