"""What of row, restore, attempts and settings reaches a placement decision and its pod."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from sandbox_restore.fleet.compatibility import Compatibility
from sandbox_restore.model.restore import HostCpuPolicy
from sandbox_restore.model.sandbox import ExecutionState, Outcome, SandboxView, Source
from sandbox_restore.placement.gate import GateSettings
from sandbox_restore.placement.template import PodTemplate
from sandbox_restore.restore.breaker import Breaker
from sandbox_restore.restore.choose import LocalPlan, StoragePlan
from sandbox_restore.restore.placing import PlacementHeldError, Placer, PlacingConfig
from tests.support.builders import NOW, ago, execution, refusal, restore, snapshot, view
from tests.unit.fleet.nodes import AMD, INTEL_A, INTEL_B, fleet, node
from tests.unit.placement.asks import GOLDEN, terms_of

ON, OFF = GateSettings(enabled=True), GateSettings()
OBSERVE = GateSettings(observe=True)
SNAPSHOT = snapshot(host_cpu=INTEL_A, uploaded_by="n1")
STORAGE = StoragePlan(snapshot=SNAPSHOT, origin="")
LOCAL = LocalPlan(node="n1", snapshot=SNAPSHOT, origin="")
ARCH = {"kubernetes.io/arch": "amd64"}
NODES = (
    node("n1", INTEL_A, uid="uid-n1", labels=ARCH),
    node("n2", INTEL_A, uid="uid-n2", labels=ARCH),
    node("n3", AMD, labels=ARCH),
)


def placer(
    *nodes: Any,
    gate: GateSettings = ON,
    warm: bool = True,
    pairs: str = "",
    may_wait: bool = False,
    **config: Any,
) -> Placer:
    compatibility, _ = Compatibility.parse(pairs)
    return Placer(
        fleet=fleet(*(nodes or NODES), warm=warm),
        template=PodTemplate.parse((GOLDEN / "template.yaml").read_text("utf-8")),
        compatibility=compatibility,
        config=PlacingConfig(gate=gate, **config),
        breaker=Breaker(timedelta(0)),
        may_wait_for_cache=lambda: may_wait,
    )


def seen(**parts: Any) -> SandboxView:
    return view(**{"snapshots": [SNAPSHOT], **parts})


def term_of(pod: dict[str, Any]) -> list[tuple[str, str, tuple[str, ...]]]:
    """Expressions on the CPU and fields of the pod's one term."""
    (term,) = terms_of(pod)
    items = [*term["matchExpressions"], *term.get("matchFields", ())]
    return [(i["key"], i["operator"], tuple(i.get("values", ()))) for i in items][1:]


NOT_AMD = ("space.pplx.net/host-cpu", "NotIn", (AMD,))


def not_on(name: str) -> tuple[str, str, tuple[str, ...]]:
    return ("metadata.name", "NotIn", (name,))


# --- the gate


def test_the_gate_is_that_with_which_the_attempt_began() -> None:
    """Section 5: switching it in between changes no attempt that is under way."""
    switched_off = placer(gate=OFF).place(restore(), execution(gate=True), seen(), now=NOW)
    assert term_of(switched_off.pod) == [NOT_AMD]
    switched_on = placer(gate=ON).place(restore(), execution(gate=False), seen(), now=NOW)
    assert term_of(switched_on.pod) == []
    assert switched_on.observed is None


def test_an_attempt_begins_with_the_gate_of_its_namespace() -> None:
    narrowed = placer(gate=GateSettings(enabled=True, namespaces=frozenset({"team-b"})))
    assert not narrowed.gate_for(restore())
    assert narrowed.gate_for(restore(namespace="team-b"))


def test_observe_makes_the_same_pod_and_tells_what_the_gate_would_do() -> None:
    found = placer(gate=OBSERVE).place(restore(), execution(gate=False), seen(), now=NOW)
    plain = placer(gate=OFF).place(restore(), execution(gate=False), seen(), now=NOW)
    assert found.pod == plain.pod
    assert found.observed is not None
    assert found.observed.excluded == [AMD]
    assert found.would_change
    assert (plain.observed, plain.would_change) == (None, False)


# --- what holds an attempt back


def test_required_without_a_loader_holds_the_attempt_and_is_shown() -> None:
    asked = restore(host_cpu_policy=HostCpuPolicy.REQUIRED)
    used = placer(*NODES[2:])
    hold = used.hold_for(asked, STORAGE, seen(), NOW)
    assert hold is not None
    assert (hold.reason, hold.final) == ("PlacementHeld", False)
    shown = used.held(asked)
    assert shown is not None
    assert shown.reason == "PlacementHeld"
    assert used.hold_for(restore(), STORAGE, seen(), NOW) is None
    assert used.held(restore()) is None


def test_a_pod_is_not_made_once_its_last_loader_has_left() -> None:
    asked = restore(host_cpu_policy=HostCpuPolicy.REQUIRED)
    with pytest.raises(PlacementHeldError, match="Required waits"):
        placer(*NODES[2:]).place(asked, execution(gate=True), seen(), now=NOW)


def test_only_a_storage_plan_waits_for_the_list_of_nodes() -> None:
    """Section 14: a local-only pod has no choice, so it needs no fleet."""
    cold = placer(warm=False, may_wait=True)
    hold = cold.hold_for(restore(), STORAGE, seen(), NOW)
    assert hold is not None
    assert hold.reason == "ColdCache"
    assert cold.hold_for(restore(), LOCAL, seen(), NOW) is None
    waited = placer(warm=False, may_wait=False)
    assert waited.hold_for(restore(), STORAGE, seen(), NOW) is None


@pytest.mark.parametrize("plan", [STORAGE, LOCAL])
def test_selectors_that_no_node_has_together_end_the_restore(
    plan: StoragePlan | LocalPlan,
) -> None:
    asked = restore(node_selector={"kubernetes.io/arch": "arm64"})
    hold = placer().hold_for(asked, plan, seen(), NOW)
    assert hold is not None
    assert (hold.reason, hold.final) == ("NodeSelectorConflict", True)


def test_the_policy_of_the_restore_counts() -> None:
    asked = restore(host_cpu_policy=HostCpuPolicy.IGNORE)
    found = placer().place(asked, execution(gate=True), seen(), now=NOW)
    assert (found.placement.reason, term_of(found.pod)) == ("PolicyIgnore", [])


def test_the_compatibility_list_counts() -> None:
    used = placer(node("n1", INTEL_B, labels=ARCH), NODES[2], pairs=f"{INTEL_A}=>{INTEL_B}")
    found = used.place(restore(), execution(gate=True), seen(), now=NOW)
    assert (found.placement.loaders, term_of(found.pod)) == ([INTEL_B], [NOT_AMD])


# --- nodes that the attempt stays away from


def test_a_node_that_refused_is_left_out_until_that_ages_out() -> None:
    used = placer(observation_ttl=timedelta(hours=1))
    fresh = seen(refusals=[refusal("n1")])
    found = used.place(restore(), execution(gate=True), fresh, now=NOW)
    assert term_of(found.pod) == [NOT_AMD, not_on("n1")]
    old = seen(refusals=[refusal("n1", observed_at=ago(3601))])
    found = used.place(restore(), execution(gate=True), old, now=NOW)
    assert term_of(found.pod) == [NOT_AMD]


def test_only_refusals_of_this_capture_count() -> None:
    others = [refusal("n1", snapshot_id="s0", capture_cpu=AMD), refusal("n2", snapshot_id="s0")]
    found = placer().place(restore(), execution(gate=True), seen(refusals=others), now=NOW)
    assert term_of(found.pod) == [NOT_AMD, not_on("n2")]


@pytest.mark.parametrize(("failure", "avoided"), [("host", True), ("transport", False)])
def test_a_host_that_failed_is_avoided_by_the_next_attempt(failure: str, avoided: bool) -> None:
    failed = execution(
        "e0",
        state=ExecutionState.RETIRED,
        outcome=Outcome.FAILED,
        failure_class=failure,
        node_name="n1",
        node_uid="uid-n1",
    )
    found = placer().place(restore(), execution(gate=True), seen(attempts=[failed]), now=NOW)
    assert term_of(found.pod) == [NOT_AMD, *([not_on("n1")] if avoided else [])]
    other = execution("e1", gate=True, snapshot_id="s2")
    snapshots = [SNAPSHOT, snapshot("s2", host_cpu=INTEL_A)]
    found = placer().place(restore(), other, seen(attempts=[failed], snapshots=snapshots), now=NOW)
    assert term_of(found.pod) == [NOT_AMD]


# --- the shortlist, and a local-only pod


def test_the_hard_pin_and_its_fallbacks_are_settings() -> None:
    used = placer(hard_pin=True, fallbacks=0)
    (term,) = terms_of(used.place(restore(), execution(gate=True), seen(), now=NOW).pod)
    assert term["matchFields"] == [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]
    used = placer(hard_pin=True, fallbacks=1)
    assert len(terms_of(used.place(restore(), execution(gate=True), seen(), now=NOW).pod)) == 2


def test_a_local_only_pod_wants_its_node_and_no_cpu() -> None:
    local = execution(gate=True, source=Source.LOCAL, target_node="n3")
    found = placer(hard_pin=True).place(restore(), local, seen(), now=NOW)
    assert term_of(found.pod) == [("metadata.name", "In", ("n3",))]
    assert (found.placement.reason, found.placement.capture_cpu) == ("LocalOnly", INTEL_A)
