"""Which waiting restores come back to the queue when a node changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sandbox_restore.fleet.index import FleetIndex
from sandbox_restore.model.node import NodeFacts
from sandbox_restore.model.sandbox import Source
from sandbox_restore.placement.reachable import Demand
from sandbox_restore.restore.interest import Interest
from sandbox_restore.restore.state import ClusterState
from tests.support.builders import NOW, execution, refusal, restore, snapshot, view
from tests.unit.fleet.nodes import AMD, ARM, INTEL_A, node
from tests.unit.restore.test_rerender import OPEN, mixed

GOLD = Interest(demand=Demand(node_group="gold"), named=frozenset({"uploader"}))
BLUE = Interest(demand=Demand(node_group="blue"))


def waiting(*nodes: NodeFacts, **interests: Interest) -> ClusterState:
    """A warm state in which these sandboxes wait."""
    state = ClusterState(FleetIndex())
    state.replace_nodes(nodes, NOW)
    for sandbox_id, interest in interests.items():
        state.interests.put(sandbox_id, interest)
    return state


KNOWN = (
    node("g1", AMD, group="gold"),
    node("b1", AMD, group="blue"),
    node("uploader", AMD, group="other"),
    node("o1", INTEL_A, group="other"),
)


@pytest.mark.parametrize(
    ("name", "change", "concerned"),
    [
        ("g1", {}, set()),
        ("g1", {"resource_version": 99}, set()),
        ("g1", {"ready": False, "ready_since": None}, set()),
        ("g1", {"network_slots": 0}, set()),
        ("g1", {"services_ready": False}, set()),
        ("g1", {"unschedulable": True}, {"gold"}),
        ("b1", {"deleting": True}, {"blue"}),
        ("o1", {"unschedulable": True}, set()),
        ("uploader", {"unschedulable": True}, {"gold"}),
        ("uploader", {"ready": False}, set()),
        ("o1", {"labels": node("o1", ARM, group="other").labels}, {"gold", "blue"}),
    ],
)
def test_a_change_brings_back_those_whose_decision_it_can_alter(
    name: str, change: dict[str, Any], concerned: set[str]
) -> None:
    state = waiting(*KNOWN, gold=GOLD, blue=BLUE)
    [before] = [facts for facts in KNOWN if facts.name == name]
    assert state.apply_node(replace(before, **change), NOW) == concerned


def test_the_readiness_of_node_services_counts_for_a_shortlist_alone() -> None:
    state = waiting(*KNOWN, gold=replace(GOLD, services=True), plain=GOLD)
    unready = replace(KNOWN[0], services_ready=False)
    assert state.apply_node(unready, NOW) == {"gold"}
    assert state.apply_node(replace(unready, unschedulable=True), NOW) == {"gold", "plain"}


def test_a_node_that_comes_or_goes_brings_back_those_who_can_reach_it() -> None:
    state = waiting(*KNOWN, gold=GOLD, blue=BLUE)
    assert state.apply_node(node("g2", AMD, group="gold"), NOW) == {"gold"}
    assert state.remove_node("g2", "uid-of-g2", NOW) == {"gold"}
    assert state.remove_node("g2", "uid-of-g2", NOW) == set()
    # The last node of its CPU.
    assert state.remove_node("o1", "uid-of-o1", NOW) == {"gold", "blue"}


def test_a_list_brings_back_whom_its_changes_concern_and_the_first_one_everybody() -> None:
    state = waiting(*KNOWN, gold=GOLD, blue=BLUE)
    assert state.replace_nodes(KNOWN, NOW) == set()
    assert state.replace_nodes([replace(KNOWN[1], unschedulable=True), *KNOWN[2:]], NOW) == {
        "gold",
        "blue",
    }
    cold = ClusterState(FleetIndex())
    cold.interests.put("gold", GOLD)
    assert cold.replace_nodes([], NOW) == {"gold"}


def test_what_a_sandbox_does_not_wait_for_any_more_leaves_no_trace() -> None:
    state = waiting(*KNOWN, gold=GOLD, other=GOLD)
    cordoned = replace(KNOWN[0], unschedulable=True)
    state.interests.put("gold", BLUE)
    assert state.apply_node(cordoned, NOW) == {"other"}
    state.interests.put("gold", None)
    state.interests.put("gold", None)
    state.interests.put("other", None)
    assert len(state.interests) == 0
    assert state.apply_node(KNOWN[0], NOW) == set()
    assert (state.interests._asking, state.interests._naming) == ({}, {})


def test_a_restore_asks_for_the_nodes_it_can_reach_and_those_that_its_evidence_names() -> None:
    bed = mixed(hard_pin=True)
    held = view(
        row={"node_group": "gold", "pinned_node": "n5"},
        snapshots=[snapshot(uploaded_by="n7"), snapshot("s2")],
        attempts=[execution("e0", outcome="failed", node_name="n8")],
        refusals=[refusal("n9")],
    )
    found = bed.placer.interest_of(restore(), held)
    assert found is not None
    assert found.demand.node_group == "gold"
    assert (found.named, found.services) == ({"n5", "n7", "n8", "n9"}, True)


@pytest.mark.parametrize(
    ("fields", "asks"),
    [
        ({"gate": True}, True),
        ({"gate": False}, False),
        ({"gate": True, "source": Source.LOCAL}, False),
    ],
    ids=str,
)
def test_a_pod_that_is_never_rendered_again_asks_for_no_node(
    fields: dict[str, Any], asks: bool
) -> None:
    found = mixed().placer.interest_of(restore(), view(active=execution(**fields)))
    assert (found is not None) is asks


def test_node_selectors_that_contradict_each_other_ask_for_no_node() -> None:
    bed = mixed()
    conflicting = restore(node_selector=dict.fromkeys(OPEN["labels"], "x"))
    assert bed.placer.interest_of(conflicting, view()) is None
