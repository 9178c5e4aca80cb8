"""Section 9: the source-node shortlist."""

from __future__ import annotations

from typing import Any

import pytest

from sandbox_restore.model.restore import HostCpuPolicy
from sandbox_restore.placement.decision import Outcome, Reason
from sandbox_restore.placement.gate import Gate
from sandbox_restore.placement.pod import apply_decision
from tests.unit.fleet.nodes import AMD, INTEL_A, INTEL_B, fleet, node
from tests.unit.placement.asks import (
    decided,
    rendered,
    request,
    snapshot,
    template,
    terms_of,
)

SAME = [node(f"same-{i}", INTEL_A) for i in range(6)]
OTHER = [node(f"other-{i}", AMD) for i in range(6)]


def picks(*nodes: Any, gate: Gate = Gate.ON, pairs: str = "", **parts: Any) -> tuple[str, ...]:
    asked = request(gate=gate, hard_pin=True, **parts)
    return decided(asked, fleet(*nodes), pairs).rendered.shortlist


def test_restore_shortlist_drops_fallbacks_on_another_cpu() -> None:
    nodes = [node("source", INTEL_A), *OTHER, *SAME[:2]]
    assert set(picks(*nodes)) == {"source", "same-0", "same-1"}
    off = picks(*nodes, gate=Gate.OFF)
    assert off[0] == "source"
    assert len(off) == 4


def test_the_source_comes_first_then_three_fallbacks() -> None:
    found = picks(node("source", INTEL_A), *SAME)
    assert found[0] == "source"
    assert len(found) == 4
    assert len(set(found)) == 4


@pytest.mark.parametrize("count", [0, 1, 5, 50])
def test_how_many_fallbacks_is_a_setting(count: int) -> None:
    found = picks(node("source", INTEL_A), *SAME, fallbacks=count)
    assert len(found) == 1 + min(count, len(SAME))


def test_without_the_hard_pin_or_a_source_there_is_no_shortlist() -> None:
    index = fleet(node("source", INTEL_A), *SAME)
    assert decided(request(), index).rendered.shortlist == ()
    unknown = request(snap=snapshot(uploaded_by=None), hard_pin=True)
    assert decided(unknown, index).rendered.shortlist == ()


def test_a_retry_picks_the_same_fallbacks() -> None:
    first = picks(node("source", INTEL_A), *SAME)
    assert picks(*reversed(SAME), node("source", INTEL_A)) == first
    dropped = [n for n in SAME if n.name not in first]
    assert picks(node("source", INTEL_A), *(n for n in SAME if n not in dropped)) == first


def test_sandboxes_pick_different_fallbacks() -> None:
    index = fleet(node("source", INTEL_A), *(node(f"n{i}", INTEL_A) for i in range(100)))
    found = {
        tuple(node.name for node in index.first(index.all, 3, sandbox_id=f"sb-{i}"))
        for i in range(50)
    }
    assert len(found) > 45


@pytest.mark.parametrize(
    "facts",
    [{"unschedulable": True}, {"deleting": True}, {"blocked": True}, {"group": "h"}],
)
def test_a_source_that_is_not_reachable_gets_no_term(facts: dict[str, Any]) -> None:
    facts = {"group": "g", **facts}
    nodes = [node(f"n{i}", INTEL_A, group="g") for i in range(5)]
    asked = request(hard_pin=True, group="g")
    found = decided(asked, fleet(node("source", INTEL_A, **facts), *nodes))
    assert len(found.rendered.shortlist) == 3
    assert "source" not in found.rendered.shortlist
    assert found.source_node == "source"


def test_a_source_that_is_gone_still_counts_as_known() -> None:
    assert len(picks(*SAME, OTHER[0])) == 3


def test_a_source_whose_services_are_not_ready_stays() -> None:
    found = picks(node("source", INTEL_A, services=False), *SAME)
    assert found[0] == "source"


def test_fallbacks_are_nodes_whose_services_are_ready() -> None:
    not_ready = [node(f"not-ready-{i}", INTEL_A, services=False) for i in range(6)]
    assert set(picks(node("source", INTEL_A), *not_ready, SAME[0])) == {"source", "same-0"}
    off = picks(node("source", INTEL_A), *not_ready, SAME[0], gate=Gate.OFF)
    assert set(off) == {"source", "same-0"}


def test_unlabelled_fallbacks_stay() -> None:
    found = picks(node("source", INTEL_A), node("plain"), node("odd", "Not-Canonical"), OTHER[0])
    assert set(found) == {"source", "plain", "odd"}


def test_drop_first_then_pick() -> None:
    """With three fallbacks to pick, no other CPU takes the place of one that can load it."""
    found = picks(node("source", INTEL_A), *OTHER, *SAME[:3])
    assert set(found) == {"source", "same-0", "same-1", "same-2"}


# --- the source's own CPU is excluded


def test_an_excluded_source_is_dropped() -> None:
    found = picks(node("source", AMD), *SAME)
    assert len(found) == 3
    assert "source" not in found


def test_readiness_does_not_take_the_last_compatible_fallback() -> None:
    nodes = [node("source", AMD), node("same", INTEL_A, services=False), node("plain")]
    assert set(picks(*nodes)) == {"same", "plain"}


def test_a_ready_compatible_fallback_keeps_the_readiness_filter() -> None:
    nodes = [node("source", AMD), node("same", INTEL_A), node("late", INTEL_A, services=False)]
    assert picks(*nodes) == ("same",)


def test_one_of_the_picks_is_compatible_if_any_node_is() -> None:
    plain = [node(f"plain-{i}") for i in range(30)]
    found = picks(node("source", AMD), node("same", INTEL_A, services=False), *plain)
    assert len(found) == 3
    assert "same" in found
    ready = picks(node("source", AMD), node("same", INTEL_A), *plain)
    assert "same" in ready


def test_the_exception_is_for_an_excluded_source_only() -> None:
    nodes = [node("source", INTEL_A), node("same", INTEL_A, services=False), node("x", AMD)]
    assert picks(*nodes) == ("source",)
    unlabelled = [node("source"), node("same", INTEL_A, services=False), node("x", AMD)]
    assert picks(*unlabelled) == ("source",)
    gone = [node("same", INTEL_A, services=False), node("x", AMD)]
    assert picks(*gone) == ()


def test_a_listed_loader_counts_as_compatible() -> None:
    nodes = [node("source", AMD), node("other", INTEL_B, services=False), node("plain")]
    assert set(picks(*nodes, pairs=f"{INTEL_A}=>{INTEL_B}")) == {"other", "plain"}


# --- nothing remains


def test_when_nothing_remains_there_is_no_shortlist_but_the_term() -> None:
    index = fleet(node("same", INTEL_A, services=False), node("x", AMD))
    found = decided(request(hard_pin=True), index)
    assert found.rendered.shortlist == ()
    assert found.term is not None
    (term,) = terms_of(apply_decision(rendered(), found))
    assert "matchFields" not in term


def test_without_a_term_the_shortlist_is_that_of_the_gate_off() -> None:
    """No loader reachable: today's placement, which is the shortlist without CPU rules."""
    nodes = [node("source", AMD), *OTHER]
    found = decided(request(hard_pin=True), fleet(*nodes))
    assert found.reason is Reason.NO_REACHABLE_LOADER
    off = decided(request(hard_pin=True, gate=Gate.OFF), fleet(*nodes))
    assert found.rendered.shortlist == off.rendered.shortlist
    assert found.rendered.shortlist[0] == "source"


def test_required_drops_unlabelled_nodes_too() -> None:
    nodes = [node("source"), node("plain"), *SAME[:2], OTHER[0]]
    found = decided(request(hard_pin=True, policy=HostCpuPolicy.REQUIRED), fleet(*nodes))
    assert found.outcome is Outcome.CONSTRAINED
    assert set(found.rendered.shortlist) == {"same-0", "same-1"}


def test_nodes_that_refused_are_not_picked() -> None:
    found = picks(node("source", INTEL_A), *SAME[:3], refused=["source", "same-1"])
    assert set(found) == {"same-0", "same-2"}


def test_many_excluded_cpus_are_dropped_as_few_are() -> None:
    others = [node(f"o{i}", f"intel-6-{i}-1") for i in range(1, 30)]
    nodes = [node("source", INTEL_A), *others, node("plain"), node("odd", "BAD"), *SAME[:2]]
    found = picks(*nodes, fallbacks=20)
    assert set(found) == {"source", "plain", "odd", "same-0", "same-1"}


# --- rendering


def test_each_node_is_a_term_with_all_that_the_base_pod_requires() -> None:
    found = decided(request(hard_pin=True), fleet(node("source", INTEL_A), SAME[0], OTHER[0]))
    pod = apply_decision(rendered(template("template_affinity.yaml")), found)
    terms = terms_of(pod)
    names = [
        [f["values"][0] for f in term["matchFields"] if f["operator"] == "In"] for term in terms
    ]
    assert names == [["source"], ["source"], ["same-0"], ["same-0"]]
    for term in terms:
        keys = [e["key"] for e in term["matchExpressions"]]
        assert keys[0] == "disk"
        assert "space.pplx.net/placement-block" in keys
        assert keys[-1] == "space.pplx.net/host-cpu"
    broken = [f for term in terms for f in term["matchFields"] if f["operator"] == "NotIn"]
    assert [f["values"] for f in broken] == [["broken-node"], ["broken-node"]]
