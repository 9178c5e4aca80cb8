"""Sections 5 to 8 and 11: constrained, unconstrained or held, and what is rendered."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox_restore.fleet.compatibility import Compatibility
from sandbox_restore.fleet.evidence import Evidence
from sandbox_restore.fleet.index import FleetIndex
from sandbox_restore.model.names import HOST_CPU_LABEL, NODE_GROUP_LABEL
from sandbox_restore.model.node import NodeFacts
from sandbox_restore.model.restore import HostCpuPolicy
from sandbox_restore.placement.decision import (
    NodeRef,
    Outcome,
    Reason,
    decide,
    loader_nodes,
    verdict,
)
from sandbox_restore.placement.gate import Gate
from sandbox_restore.placement.match import PodRequirements, matches
from sandbox_restore.placement.pod import apply_decision
from sandbox_restore.placement.reachable import Demand, is_reachable, reachable
from sandbox_restore.placement.term import CpuTerm
from tests.unit.fleet.nodes import AMD, ARM, INTEL_A, INTEL_B, NOW, fleet, history, node, span
from tests.unit.placement.asks import REQUIRED as REQUIRED_TERMS
from tests.unit.placement.asks import decided, rendered, request, snapshot, terms_of

AUTO, REQUIRED, IGNORE = HostCpuPolicy.AUTO, HostCpuPolicy.REQUIRED, HostCpuPolicy.IGNORE


def not_in(*values: str) -> CpuTerm:
    return CpuTerm(key=HOST_CPU_LABEL, operator="NotIn", values=values)


def only_in(*values: str) -> CpuTerm:
    return CpuTerm(key=HOST_CPU_LABEL, operator="In", values=values)


# --- the rule itself


def test_restore_requires_the_capture_cpu_only_when_a_schedulable_host_has_it() -> None:
    other = node("other", AMD)
    with_host = fleet(node("same", INTEL_A), other)
    assert decided(request(), with_host).term == not_in(AMD)
    cordoned = fleet(node("same", INTEL_A, unschedulable=True), other)
    found = decided(request(), cordoned)
    assert (found.outcome, found.reason) == (Outcome.UNCONSTRAINED, Reason.NO_REACHABLE_LOADER)
    assert found.term is None
    assert found.excluded == (AMD,)


@pytest.mark.parametrize("unschedulable", [False, True])
def test_restore_requires_the_capture_cpu_only_when_a_schedulable_host_has_it_gate_off(
    unschedulable: bool,
) -> None:
    index = fleet(node("same", INTEL_A, unschedulable=unschedulable), node("other", AMD))
    found = decided(request(gate=Gate.OFF), index)
    assert (found.outcome, found.reason) == (Outcome.UNCONSTRAINED, Reason.GATE_OFF)
    assert (found.term, found.evidence, found.published) == (None, None, ())
    assert apply_decision(rendered(), found) == rendered()


def test_a_listed_compatible_cpu_takes_the_restore() -> None:
    index = fleet(node("n1", INTEL_B), node("n2", AMD))
    found = decided(request(), index, f"{INTEL_A}=>{INTEL_B}")
    assert (found.outcome, found.loaders, found.term) == (
        Outcome.CONSTRAINED,
        (INTEL_B,),
        not_in(AMD),
    )
    assert decided(request(), index, f"{INTEL_B}=>{INTEL_A}").term is None


def test_restore_requirement_counts_only_hosts_inside_the_node_group() -> None:
    elsewhere = fleet(node("n1", INTEL_A, group="h"), node("n2", AMD, group="g"))
    assert decided(request(group="g"), elsewhere).reason is Reason.NO_REACHABLE_LOADER
    inside = fleet(node("n1", INTEL_A, group="g"), node("n2", AMD, group="g"))
    assert decided(request(group="g"), inside).term == not_in(AMD)
    assert decided(request(), elsewhere).term == not_in(AMD)


def test_restore_requirement_counts_only_hosts_whose_taints_the_pod_tolerates() -> None:
    index = fleet(node("n1", INTEL_A, taints=[("gpu", "", "NoSchedule")]), node("n2", AMD))
    assert decided(request(), index).reason is Reason.NO_REACHABLE_LOADER
    pod = {"spec": {"tolerations": [{"key": "gpu", "operator": "Exists"}]}}
    assert decided(request(pod=pod), index).term == not_in(AMD)
    soft = fleet(node("n1", INTEL_A, taints=[("gpu", "", "PreferNoSchedule")]), node("n2", AMD))
    assert decided(request(), soft).term == not_in(AMD)


def test_evacuation_requirement_counts_only_hosts_in_the_target_cohort() -> None:
    index = fleet(node("n1", INTEL_A, cohort="green"), node("n2", AMD, cohort="blue"))
    assert decided(request(cohort="blue"), index).reason is Reason.NO_REACHABLE_LOADER
    assert decided(request(cohort="green"), index).term == not_in(AMD)
    assert decided(request(), index).term == not_in(AMD)


@pytest.mark.parametrize(
    "facts",
    [
        {"unschedulable": True},
        {"deleting": True},
        {"blocked": True},
        {"taints": [("k", "", "NoExecute")]},
    ],
)
def test_an_unreachable_loader_does_not_count(facts: dict[str, Any]) -> None:
    index = fleet(node("n1", INTEL_A, **facts), node("n2", AMD))
    assert decided(request(), index).reason is Reason.NO_REACHABLE_LOADER


@pytest.mark.parametrize("facts", [{"ready": False}, {"services": False}, {"network_slots": 0}])
def test_what_passes_by_itself_is_not_judged(facts: dict[str, Any]) -> None:
    """A full node empties again, and kube-scheduler taints a node that is not ready."""
    index = fleet(node("n1", INTEL_A, **facts), node("n2", AMD))
    assert decided(request(), index).term == not_in(AMD)


def test_a_cpu_counts_as_published_in_whatever_state_its_nodes_are() -> None:
    index = fleet(
        node("n1", INTEL_A),
        node("n2", AMD, unschedulable=True),
        node("n3", INTEL_B, deleting=True, group="h"),
        node("n4", ARM, ready=False),
    )
    found = decided(request(group=None), index)
    assert found.term == not_in(AMD, ARM, INTEL_B)
    assert found.published == (AMD, ARM, INTEL_A, INTEL_B)


def test_restore_requirement_falls_back_to_the_capturing_nodes_label() -> None:
    index = fleet(node("source", INTEL_A), node("n2", AMD))
    found = decided(request(None), index)
    assert found.evidence is not None
    assert found.evidence.kind is Evidence.UPLOADER_LABEL
    assert found.term == not_in(AMD)


def test_an_unlabelled_node_is_no_loader_and_is_not_excluded() -> None:
    alone = fleet(node("n1"), node("n2", AMD))
    assert decided(request(), alone).reason is Reason.NO_REACHABLE_LOADER
    index = fleet(node("n1"), node("n2", AMD), node("n3", INTEL_A))
    found = decided(request(), index)
    requirements = PodRequirements.of(apply_decision(rendered(), found))
    taken = {n.name for n in index if matches(requirements.with_selector({}), n)}
    assert taken == {"n1", "n3"}


@pytest.mark.parametrize("label", ["Intel-6-106-6", "unknown", "intel-6-106-6-"])
def test_a_non_canonical_host_cpu_label_reads_as_unlabeled(label: str) -> None:
    index = fleet(node("n1", label), node("n2", AMD))
    found = decided(request(), index)
    assert found.reason is Reason.NO_REACHABLE_LOADER
    assert found.published == (AMD,)
    joined = fleet(node("n1", label), node("n2", AMD), node("n3", INTEL_A))
    assert decided(request(), joined).term == not_in(AMD)


def test_nothing_excluded_means_no_term() -> None:
    found = decided(request(), fleet(node("n1", INTEL_A), node("n2")))
    assert (found.outcome, found.reason) == (Outcome.UNCONSTRAINED, Reason.NOTHING_EXCLUDED)
    assert found.term is None
    empty = decided(request(), fleet(node("n1")))
    assert empty.reason is Reason.NOTHING_EXCLUDED


def test_the_capture_cpu_need_not_be_published() -> None:
    found = decided(request(), fleet(node("n1", AMD)))
    assert (found.reason, found.excluded) == (Reason.NO_REACHABLE_LOADER, (AMD,))


def test_an_unknown_capture_cpu_leaves_the_restore_unconstrained_and_says_so() -> None:
    found = decided(request("unknown"), fleet(node("n1", INTEL_A), node("n2", AMD)))
    assert (found.outcome, found.reason) == (Outcome.UNCONSTRAINED, Reason.CAPTURE_CPU_UNKNOWN)
    assert found.evidence is not None
    assert found.evidence.kind is Evidence.UNKNOWN
    assert found.term is None


def test_history_is_asked_for_a_snapshot_whose_node_is_gone() -> None:
    known = history(span("source", INTEL_A))
    index = fleet(node("n1", INTEL_A), node("n2", AMD), history=known)
    found = decided(request(None), index)
    assert found.evidence is not None
    assert found.evidence.kind is Evidence.UPLOADER_HISTORY
    assert found.term == not_in(AMD)


def test_a_loader_must_load_every_ancestor() -> None:
    index = fleet(node("n1", INTEL_A), node("n2", INTEL_B), node("n3", AMD))
    snap = snapshot(INTEL_A, ancestor_cpus=(INTEL_B,))
    pairs = f"{INTEL_A}=>{INTEL_B}"
    found = decided(request(snap=snap), index, pairs)
    assert (found.loaders, found.term) == ((INTEL_B,), not_in(AMD, INTEL_A))
    assert decided(request(snap=snap), index).reason is Reason.NO_REACHABLE_LOADER


def test_a_cpu_whose_last_node_left_is_excluded_for_the_hold() -> None:
    index = fleet(
        node("n1", INTEL_A), node("n2", AMD), node("n3", INTEL_B), published_hold=timedelta(hours=1)
    )
    index.remove("n2", now=NOW - timedelta(minutes=1))
    assert decided(request(), index).term == not_in(AMD, INTEL_B)
    later = decide(request(), index, Compatibility(), now=NOW + timedelta(hours=1))
    assert later.term == not_in(INTEL_B)


def test_the_label_key_is_a_setting() -> None:
    key = "example.com/cpu"
    index = fleet(node("n1", labels={key: INTEL_A}), node("n2", labels={key: AMD}), cpu_label=key)
    found = decided(request(), index)
    assert found.term == CpuTerm(key=key, operator="NotIn", values=(AMD,))


# --- the cold cache


@pytest.mark.parametrize(
    ("policy", "may_wait", "outcome"),
    [
        (AUTO, True, Outcome.HELD),
        (AUTO, False, Outcome.UNCONSTRAINED),
        (REQUIRED, True, Outcome.HELD),
        (REQUIRED, False, Outcome.HELD),
        (IGNORE, False, Outcome.UNCONSTRAINED),
    ],
)
def test_a_cold_cache_is_never_read_as_no_nodes(
    policy: HostCpuPolicy, may_wait: bool, outcome: Outcome
) -> None:
    index = fleet(node("n1", INTEL_A), node("n2", AMD), warm=False)
    asked = request(policy=policy, may_wait_for_cache=may_wait, hard_pin=True, refused=["n1"])
    found = decided(asked, index)
    assert (found.outcome, found.reason) == (outcome, Reason.COLD_CACHE)
    assert found.rendered.term is None
    assert found.rendered.shortlist == ()
    assert found.rendered.node_exclusions == ()
    assert (found.nodes, found.published) == (0, ())


def test_with_the_gate_off_only_the_shortlist_waits_for_the_index() -> None:
    cold = fleet(warm=False)
    off = request(gate=Gate.OFF, may_wait_for_cache=True)
    assert decided(off, cold).outcome is Outcome.UNCONSTRAINED
    pinned = request(gate=Gate.OFF, hard_pin=True, may_wait_for_cache=True)
    assert decided(pinned, cold).outcome is Outcome.HELD
    over = request(gate=Gate.OFF, hard_pin=True)
    assert decided(over, cold).outcome is Outcome.UNCONSTRAINED


# --- hostCpuPolicy


@pytest.mark.parametrize(
    ("policy", "known", "excluded", "reachable", "outcome", "reason"),
    [
        (AUTO, True, True, True, Outcome.CONSTRAINED, Reason.LOADER_REACHABLE),
        (AUTO, True, True, False, Outcome.UNCONSTRAINED, Reason.NO_REACHABLE_LOADER),
        (AUTO, True, False, True, Outcome.UNCONSTRAINED, Reason.NOTHING_EXCLUDED),
        (AUTO, True, False, False, Outcome.UNCONSTRAINED, Reason.NOTHING_EXCLUDED),
        (AUTO, False, True, True, Outcome.UNCONSTRAINED, Reason.CAPTURE_CPU_UNKNOWN),
        (AUTO, False, False, False, Outcome.UNCONSTRAINED, Reason.CAPTURE_CPU_UNKNOWN),
        (REQUIRED, True, True, True, Outcome.CONSTRAINED, Reason.LOADER_REACHABLE),
        (REQUIRED, True, False, True, Outcome.CONSTRAINED, Reason.LOADER_REACHABLE),
        (REQUIRED, True, True, False, Outcome.HELD, Reason.PLACEMENT_HELD),
        (REQUIRED, True, False, False, Outcome.HELD, Reason.PLACEMENT_HELD),
        (REQUIRED, False, True, True, Outcome.HELD, Reason.CAPTURE_CPU_UNKNOWN),
        (IGNORE, True, True, True, Outcome.UNCONSTRAINED, Reason.POLICY_IGNORE),
        (IGNORE, False, False, False, Outcome.UNCONSTRAINED, Reason.POLICY_IGNORE),
    ],
)
def test_the_verdict_by_policy(
    policy: HostCpuPolicy,
    known: bool,
    excluded: bool,
    reachable: bool,
    outcome: Outcome,
    reason: Reason,
) -> None:
    assert verdict(
        policy, capture_known=known, any_excluded=excluded, loader_reachable=reachable
    ) == (outcome, reason)


def test_required_renders_in_so_that_neither_unlabelled_nor_unknown_cpus_take_it() -> None:
    index = fleet(node("n1", INTEL_A), node("n2"), node("n3", AMD))
    found = decided(request(policy=REQUIRED), index, f"{INTEL_A}=>{INTEL_B}")
    assert found.term == only_in(INTEL_A, INTEL_B)
    pod = apply_decision(rendered(), found)
    requirements = PodRequirements.of(pod).with_selector({})
    assert [n.name for n in (*index, node("new", ARM)) if matches(requirements, n)] == ["n1"]


def test_required_waits_while_no_loader_is_reachable() -> None:
    index = fleet(node("n1", INTEL_A, unschedulable=True), node("n2", AMD), node("n3"))
    found = decided(request(policy=REQUIRED), index)
    assert (found.outcome, found.reason) == (Outcome.HELD, Reason.PLACEMENT_HELD)
    with pytest.raises(ValueError, match="PlacementHeld"):
        apply_decision(rendered(), found)


def test_ignore_never_constrains() -> None:
    index = fleet(node("n1", INTEL_A), node("n2", AMD))
    found = decided(request(policy=IGNORE, refused=["n2"], avoid=["n1"]), index)
    assert (found.outcome, found.reason) == (Outcome.UNCONSTRAINED, Reason.POLICY_IGNORE)
    assert apply_decision(rendered(), found) == rendered()
    assert found.excluded == (AMD,)


@pytest.mark.parametrize("policy", list(HostCpuPolicy))
def test_with_the_gate_off_the_policy_has_no_effect(policy: HostCpuPolicy) -> None:
    index = fleet(node("n1", AMD))
    found = decided(request(gate=Gate.OFF, policy=policy, refused=["n1"]), index)
    assert found.reason is Reason.GATE_OFF
    assert apply_decision(rendered(), found) == rendered()


# --- observe


def test_observe_changes_no_pod_and_tells_what_it_would_do() -> None:
    index = fleet(node("n1", INTEL_A), node("n2", AMD))
    found = decided(request(gate=Gate.OBSERVE), index)
    assert found.reason is Reason.GATE_OFF
    assert apply_decision(rendered(), found) == rendered()
    assert found.would is not None
    assert (found.would.outcome, found.would.term) == (Outcome.CONSTRAINED, not_in(AMD))
    assert found.would_change
    same = decided(request(gate=Gate.OBSERVE), fleet(node("n1", INTEL_A)))
    assert not same.would_change
    assert not decided(request(), index).would_change


def test_observe_holds_nothing() -> None:
    found = decided(request(gate=Gate.OBSERVE, policy=REQUIRED), fleet(node("n2", AMD)))
    assert found.outcome is Outcome.UNCONSTRAINED
    assert found.would is not None
    assert found.would.outcome is Outcome.HELD
    assert found.would_change


# --- nodes that refused, nodes to avoid (section 11)


def test_a_node_that_refused_is_excluded_by_name() -> None:
    index = fleet(node("n1", INTEL_A), node("n2", INTEL_A), node("n3", AMD))
    found = decided(request(refused=["n1"]), index)
    assert found.term == not_in(AMD)
    assert found.rendered.node_exclusions == ("n1",)
    (term,) = terms_of(apply_decision(rendered(), found))
    assert term["matchFields"] == [{"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}]


def test_another_node_of_the_name_has_refused_nothing() -> None:
    index = fleet(node("n1", INTEL_A, uid="new"), node("n2", AMD))
    found = decided(request(refused=["n1", "gone"]), index)
    assert found.rendered.node_exclusions == ()
    assert found.outcome is Outcome.CONSTRAINED


def test_the_exclusion_is_left_out_if_no_reachable_node_would_remain() -> None:
    index = fleet(node("n1", INTEL_A), node("n2", AMD, unschedulable=True))
    found = decided(request(refused=["n1"]), index)
    assert found.rendered.node_exclusions == ()
    assert found.term == not_in(AMD)


def test_a_node_that_refused_does_not_count_as_one_that_can() -> None:
    index = fleet(node("n1", INTEL_A), node("n2", AMD))
    found = decided(request(refused=["n1"]), index)
    assert (found.reason, found.term) == (Reason.NO_REACHABLE_LOADER, None)
    assert found.rendered.node_exclusions == ("n1",)
    held = decided(request(refused=["n1"], policy=REQUIRED), index)
    assert held.reason is Reason.PLACEMENT_HELD


def test_the_newest_sixteen_are_excluded() -> None:
    names = [f"n{i:02}" for i in range(20)]
    index = fleet(*(node(name, INTEL_A) for name in names), node("free", INTEL_A), node("x", AMD))
    found = decided(request(refused=names), index)
    assert found.rendered.node_exclusions == tuple(names[:16])
    (term,) = terms_of(apply_decision(rendered(), found))
    assert all(len(field["values"]) == 1 for field in term["matchFields"])


def test_a_node_to_avoid_is_given_back_when_no_other_can_take_the_pod() -> None:
    two = fleet(node("n1", INTEL_A), node("n2", INTEL_A), node("n3", AMD))
    assert decided(request(avoid=["n1"]), two).rendered.node_exclusions == ("n1",)
    one = fleet(node("n1", INTEL_A), node("n3", AMD))
    found = decided(request(avoid=["n1"]), one)
    assert found.term == not_in(AMD)
    assert found.rendered.node_exclusions == ()


def test_avoided_and_refused_are_excluded_together_and_sorted() -> None:
    index = fleet(*(node(n, INTEL_A) for n in ("n1", "n2", "n3")), node("x", AMD))
    found = decided(request(avoid=["n2", "n3"], refused=["n2", "n1"]), index)
    assert found.rendered.node_exclusions == ("n1", "n2")
    found = decided(request(avoid=["n2"], refused=["n1"]), index)
    assert found.rendered.node_exclusions == ("n1", "n2")


def test_exclusions_apply_where_the_capture_cpu_is_unknown() -> None:
    index = fleet(node("n1"), node("n2"))
    found = decided(request("unknown", refused=["n1"]), index)
    assert found.reason is Reason.CAPTURE_CPU_UNKNOWN
    assert found.rendered.node_exclusions == ("n1",)


def test_loader_nodes_leave_out_those_that_refused() -> None:
    index = fleet(node("n1", INTEL_A), node("n2", INTEL_A), node("n3", AMD))
    refused = [NodeRef("n1", "uid-of-n1"), NodeRef("n2", "another")]
    found = loader_nodes(index.all, index, loaders=[INTEL_A], refused=refused)
    assert index.names(found) == ("n2",)
    assert index.names(loader_nodes(index.all, index, loaders=[INTEL_A])) == ("n1", "n2")


def test_a_decision_carries_its_numbers() -> None:
    index = fleet(
        node("n1", INTEL_A), node("n2", AMD), node("n3"), node("n4", AMD, unschedulable=True)
    )
    found = decided(request(), index)
    assert (found.nodes, found.reachable) == (4, 3)
    assert (found.published, found.loaders, found.excluded) == (
        (AMD, INTEL_A),
        (INTEL_A,),
        (AMD,),
    )
    assert found.capture_cpu == INTEL_A


# --- what must hold whatever the fleet looks like


def affine(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"spec": {"affinity": {"nodeAffinity": {REQUIRED_TERMS: {"nodeSelectorTerms": terms}}}}}


NODES = st.lists(
    st.builds(
        node,
        st.sampled_from([f"n{i}" for i in range(6)]),
        st.sampled_from([None, INTEL_A, INTEL_B, AMD, "unknown", "Bad"]),
        group=st.sampled_from(["g", "h"]),
        blocked=st.sampled_from([False, False, True]),
        taints=st.sampled_from([(), (("k", "", "NoSchedule"),)]),
        unschedulable=st.sampled_from([False, False, True]),
        services=st.booleans(),
    ),
    max_size=6,
    unique_by=lambda n: n.name,
)


@settings(max_examples=600, deadline=None)
@given(
    nodes=NODES,
    policy=st.sampled_from([AUTO, REQUIRED]),
    hard_pin=st.booleans(),
    group=st.sampled_from([None, "g"]),
    refused=st.lists(st.sampled_from([f"n{i}" for i in range(6)]), max_size=3, unique=True),
    avoid=st.lists(st.sampled_from([f"n{i}" for i in range(6)]), max_size=2, unique=True),
    pairs=st.sampled_from(["", f"{INTEL_A}=>{INTEL_B}"]),
    source=st.sampled_from(["n0", "n1", "gone"]),
)
def test_no_decision_strands_a_pod_that_a_node_could_take(
    nodes: list[NodeFacts],
    policy: HostCpuPolicy,
    hard_pin: bool,
    group: str | None,
    refused: list[str],
    avoid: list[str],
    pairs: str,
    source: str,
) -> None:
    """Whatever is rendered, some node takes the pod if any node took the base pod; and where a
    term is rendered, no node takes it whose label is a CPU that cannot load the snapshot."""
    index = fleet(*nodes)
    asked = request(
        policy=policy,
        hard_pin=hard_pin,
        group=group,
        refused=refused,
        avoid=avoid,
        snap=snapshot(INTEL_A, uploaded_by=source),
    )
    found = decided(asked, index, pairs)
    base = Demand(node_group=group)
    could = {n.name for n in nodes if is_reachable(base, n)}
    if found.held:
        assert policy is REQUIRED
        return
    takers = taking(found, base, nodes)
    assert takers <= could
    assert bool(takers) == bool(could)
    cpu_of = {record.name: record.cpu for record in index}
    loaders = {INTEL_A, INTEL_B} if pairs else {INTEL_A}
    if found.outcome is Outcome.CONSTRAINED:
        allowed = loaders if policy is REQUIRED else {*loaders, None}
        assert {cpu_of[name] for name in takers} <= allowed
    if found.rendered.node_exclusions:
        assert not takers & set(found.rendered.node_exclusions)


def taking(found: Any, base: Demand, nodes: list[NodeFacts]) -> set[str]:
    pod = apply_decision({"spec": {"affinity": {}}}, found)
    requirements = PodRequirements.of(pod)
    return {n.name for n in nodes if is_reachable(base, n) and matches(requirements, n)}


@settings(max_examples=100, deadline=None)
@given(
    events=st.lists(
        st.tuples(NODES, st.sampled_from(["apply", "remove", "replace", "ask"])),
        min_size=1,
        max_size=30,
    ),
    pod=st.sampled_from(
        [
            {},
            {"spec": {"tolerations": [{"key": "k", "operator": "Exists"}]}},
            {"spec": {"nodeSelector": {"space.pplx.net/node-group": "g"}}},
            affine(
                {"matchExpressions": [{"key": HOST_CPU_LABEL, "operator": "Exists"}]},
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]},
            ),
            affine(
                {
                    "matchExpressions": [
                        {"key": HOST_CPU_LABEL, "operator": "NotIn", "values": [AMD, INTEL_B]},
                        {"key": NODE_GROUP_LABEL, "operator": "In", "values": ["g", "x"]},
                    ],
                    "matchFields": [
                        {"key": "metadata.name", "operator": "NotIn", "values": ["n2"]}
                    ],
                }
            ),
        ]
    ),
)
def test_the_reachable_nodes_follow_every_change(
    events: list[tuple[list[NodeFacts], str]], pod: dict[str, Any]
) -> None:
    """The sets that are kept for templates are the ones that would be made anew."""
    index = fleet()
    requirements = PodRequirements.of(pod)
    for count, (nodes, what) in enumerate(events):
        now = NOW + timedelta(seconds=count)
        told = [replace(n, uid=f"{n.name}-{count}", created=now) for n in nodes]
        if what == "replace":
            index.replace(told, now=now)
        for facts in told if what == "apply" else ():
            index.apply(facts, now=now)
        for facts in told if what == "remove" else ():
            index.remove(facts.name, now=now)
        for group in (None, "g"):
            demand = Demand(requirements=requirements, node_group=group)
            expected = {n.name for n in index if is_reachable(demand, n)}
            if what == "ask" or count % 3 == 0:
                assert set(index.names(reachable(demand, index))) == expected


def test_the_index_is_asked_and_never_walked(monkeypatch: pytest.MonkeyPatch) -> None:
    index = fleet(*(node(f"n{i}", INTEL_A if i % 2 else AMD) for i in range(50)))

    def walk(_self: FleetIndex) -> None:
        raise AssertionError("a decision looked at each node")

    monkeypatch.setattr(FleetIndex, "__iter__", walk)
    assert decided(request(), index).outcome is Outcome.CONSTRAINED
