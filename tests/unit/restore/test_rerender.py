"""Section 8, known limits: a pod that is still unscheduled is rendered again."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from sandbox_restore.fleet.compatibility import Compatibility
from sandbox_restore.kube import decode
from sandbox_restore.model.names import FENCE
from sandbox_restore.model.node import NodeFacts
from sandbox_restore.model.pod import PodFacts
from sandbox_restore.model.restore import HostCpuPolicy, Restore
from sandbox_restore.model.sandbox import Execution, LoadObservation, Outcome, Snapshot, Source
from sandbox_restore.placement.gate import GateSettings
from sandbox_restore.placement.template import PodTemplate
from sandbox_restore.restore import world as w
from sandbox_restore.restore.breaker import Breaker
from sandbox_restore.restore.news import news
from sandbox_restore.restore.outcome import final_failure
from sandbox_restore.restore.placing import Placer, PlacingConfig
from sandbox_restore.restore.planner import plan
from sandbox_restore.restore.rerender import SteadyTimes
from sandbox_restore.restore.status import new_status
from tests.support.builders import (
    NOW,
    ago,
    bound,
    execution,
    refusal,
    restore,
    sees,
    snapshot,
    view,
    world,
)
from tests.unit.fleet.nodes import AMD, ARM, INTEL_A, INTEL_B, fleet, node
from tests.unit.placement.asks import template

OPEN = {"labels": {"kubernetes.io/arch": "amd64"}}
MINUTE = timedelta(minutes=1)


def later(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


class Bed:
    """A fleet, and one restore of a snapshot captured on INTEL_A whose pod waits."""

    def __init__(
        self,
        *nodes: NodeFacts,
        pairs: str = "",
        warm: bool = True,
        hold: timedelta = timedelta(0),
        made_from: PodTemplate | None = None,
        captured: Snapshot | None = None,
        **config: Any,
    ) -> None:
        self.fleet = fleet(*nodes, warm=warm, published_hold=hold)
        self.template = made_from or template()
        self.config = config
        self.execution = execution(gate=True)
        self.attempts: tuple[Execution, ...] = ()
        self.refusals: tuple[LoadObservation, ...] = ()
        self.restore: Restore = restore(host_cpu_policy=HostCpuPolicy.AUTO)
        self.snapshot = captured or snapshot(host_cpu=INTEL_A)
        self.restart(pairs)

    def restart(self, pairs: str = "") -> None:
        """A new operator, with this compatibility list."""
        compatibility, _ = Compatibility.parse(pairs)
        self.placer = Placer(
            fleet=self.fleet,
            template=self.template,
            compatibility=compatibility,
            config=PlacingConfig(gate=GateSettings(enabled=True), **self.config),
            breaker=Breaker(timedelta(0)),
        )

    @property
    def view(self) -> Any:
        return view(
            snapshots=[self.snapshot],
            active=self.execution,
            attempts=self.attempts,
            refusals=self.refusals,
        )

    def pod(self, **fields: Any) -> PodFacts:
        """The pod of the active attempt as it is rendered now, unbound and ungated."""
        placing = self.placer.place(self.restore, self.execution, self.view, now=NOW)
        facts = decode.pod_from_body(placing.pod)
        given = {"uid": f"uid-{facts.name}", "resource_version": "7", "gates": (), **fields}
        return replace(facts, **given)

    def joins(self, *nodes: NodeFacts) -> None:
        for facts in nodes:
            self.fleet.apply(facts, now=NOW)

    def leaves(self, *names: str) -> None:
        for name in names:
            self.fleet.remove(name, now=NOW)

    def plan(self, pod: PodFacts, *, at: datetime = NOW) -> w.Plan:
        held = self.view
        seen = world(
            self.restore,
            view=held,
            pods=[pod],
            sightings=sees(node("n1", INTEL_A)),
            gate_for=self.placer.gate_for,
            hold_for=lambda r, c: self.placer.hold_for(r, c, held, at),
            rerender_for=lambda r, e, p: self.placer.rerender_for(r, e, p, held, at),
        )
        return plan(replace(seen, now=at))


def mixed(**parts: Any) -> Bed:
    return Bed(node("n1", INTEL_A, **OPEN), node("n2", AMD, **OPEN), **parts)


def taken_back(found: w.Plan) -> str:
    """Why the pod is taken back."""
    assert isinstance(found.step, w.DeletePod), found.step
    return found.step.why


def left_alone(found: w.Plan) -> None:
    """No step, and no time at which there would be one but the restore's own deadline."""
    assert found.step is None, found.step
    assert found.recheck_at is not None
    assert found.recheck_at > later(500)


# --- at once when it gets stricter


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"unschedulable": True},
        {"taints": (("node.kubernetes.io/not-ready", "", "NoSchedule"),)},
        {"group": "another"},
        {"blocked": True},
        {"ready": False},
    ],
    ids=lambda parts: next(iter(parts), "open"),
)
def test_a_cpu_that_the_fleet_had_never_published_joins_in_whatever_state(
    parts: dict[str, Any],
) -> None:
    bed = mixed()
    pod = bed.pod()
    left_alone(bed.plan(pod))
    bed.joins(node("n3", ARM, **parts))
    assert taken_back(bed.plan(pod)) == f"rendered again: newly excluded: {ARM}"


def test_another_node_of_a_known_cpu_and_a_new_loader_change_nothing() -> None:
    bed = mixed(pairs=f"{INTEL_A}=>{INTEL_B}")
    pod = bed.pod()
    bed.joins(node("n3", AMD, **OPEN), node("n4", INTEL_B, **OPEN), node("n5", **OPEN))
    left_alone(bed.plan(pod))


def test_a_pod_that_no_loader_could_take_is_confined_when_one_can() -> None:
    bed = Bed(node("n1", INTEL_A, unschedulable=True, **OPEN), node("n2", AMD, **OPEN))
    pod = bed.pod()
    left_alone(bed.plan(pod))
    bed.joins(node("n1", INTEL_A, **OPEN))
    assert AMD in taken_back(bed.plan(pod))


def test_a_node_that_refused_the_snapshot_is_excluded_once_another_can_take_the_pod() -> None:
    bed = Bed(node("n1", INTEL_A, **OPEN))
    bed.refusals = (refusal("n1", node_uid="uid-of-n1"),)
    pod = bed.pod()
    left_alone(bed.plan(pod))
    bed.joins(node("n3", INTEL_A, **OPEN))
    assert taken_back(bed.plan(pod)) == "rendered again: newly excluded: node n1"


def test_a_pod_made_on_a_cold_cache_is_rendered_again_when_it_is_warm() -> None:
    nodes = (node("n1", INTEL_A, **OPEN), node("n2", AMD, **OPEN))
    bed = Bed(*nodes, warm=False)
    pod = bed.pod()
    left_alone(bed.plan(pod))
    bed.fleet.replace(nodes, now=NOW)
    assert AMD in taken_back(bed.plan(pod))


def test_a_snapshot_whose_cpu_becomes_known_confines_the_pod_that_waits() -> None:
    bed = mixed(captured=snapshot(host_cpu=None, uploaded_by="n3"))
    pod = bed.pod()
    bed.joins(node("n3", INTEL_A, created=ago(86400), **OPEN))
    assert AMD in taken_back(bed.plan(pod))


def test_a_gated_pod_is_taken_back_instead_of_being_let_go() -> None:
    bed = mixed()
    pod = bed.pod(gates=(FENCE,))
    assert isinstance(bed.plan(pod).step, w.Ungate)
    bed.joins(node("n3", ARM))
    assert ARM in taken_back(bed.plan(pod))


def test_the_pod_tells_what_was_rendered_so_that_a_restart_changes_nothing() -> None:
    bed = mixed()
    pod = bed.pod()
    bed.restart()
    left_alone(bed.plan(pod))
    bed.joins(node("n3", ARM))
    bed.restart()
    assert ARM in taken_back(bed.plan(pod))


# --- after a steady time when it gets looser


def gone(bed: Bed) -> None:
    bed.leaves("n1")


def cordoned(bed: Bed) -> None:
    bed.joins(node("n1", INTEL_A, unschedulable=True, **OPEN))


def relabelled(bed: Bed) -> None:
    bed.joins(node("n1", AMD, **OPEN))


@pytest.mark.parametrize("leave", [gone, cordoned, relabelled])
def test_the_last_loader_leaves_for_sixty_seconds(leave: Any) -> None:
    bed = mixed()
    pod = bed.pod()
    leave(bed)
    found = bed.plan(pod)
    assert (found.step, found.recheck_at) == (None, later(60))
    assert bed.plan(pod, at=later(59)).step is None
    why = taken_back(bed.plan(pod, at=later(60)))
    assert why == "rendered again: no node with a loader can be reached"
    # The next one goes unconstrained, and stays.
    left_alone(bed.plan(bed.pod(), at=later(60)))


def test_a_loader_that_comes_back_meanwhile_begins_the_time_anew() -> None:
    bed = mixed()
    pod = bed.pod()
    bed.leaves("n1")
    assert bed.plan(pod).recheck_at == later(60)
    bed.joins(node("n1", INTEL_A, **OPEN))
    left_alone(bed.plan(pod, at=later(30)))
    bed.leaves("n1")
    found = bed.plan(pod, at=later(59))
    assert (found.step, found.recheck_at) == (None, later(119))


def test_how_long_is_a_setting() -> None:
    bed = mixed(loosen_after=timedelta(0))
    pod = bed.pod()
    bed.leaves("n1")
    assert taken_back(bed.plan(pod))


def test_an_excluded_cpu_that_leaves_the_fleet_changes_nothing() -> None:
    for hold in (timedelta(0), timedelta(hours=1)):
        bed = Bed(
            node("n1", INTEL_A, **OPEN),
            node("n2", AMD, **OPEN),
            node("n3", ARM, **OPEN),
            hold=hold,
        )
        pod = bed.pod()
        bed.leaves("n3")
        left_alone(bed.plan(pod))
        bed.leaves("n2")
        left_alone(bed.plan(pod))


def test_a_pair_that_was_added_lets_the_pod_onto_its_loader_after_the_time() -> None:
    bed = Bed(node("n1", INTEL_A, **OPEN), node("n2", INTEL_B, **OPEN), node("n3", AMD))
    pod = bed.pod()
    bed.restart(pairs=f"{INTEL_A}=>{INTEL_B}")
    assert bed.plan(pod).recheck_at == later(60)
    why = taken_back(bed.plan(pod, at=later(60)))
    assert why == f"rendered again: no longer excluded: {INTEL_B}"
    # A loader that is not in the fleet is no reason.
    bed.leaves("n2")
    left_alone(bed.plan(pod, at=later(61)))


def test_a_node_that_is_no_longer_excluded_is_given_back_after_the_time() -> None:
    bed = Bed(node("n1", INTEL_A, **OPEN), node("n3", INTEL_A, **OPEN), node("n2", AMD, **OPEN))
    bed.refusals = (refusal("n1", node_uid="uid-of-n1"),)
    pod = bed.pod()
    bed.leaves("n1")
    left_alone(bed.plan(pod))
    bed.joins(node("n1", INTEL_A, uid="another machine", **OPEN))
    assert bed.plan(pod).recheck_at == later(60)
    why = taken_back(bed.plan(pod, at=later(60)))
    assert why == "rendered again: no longer excluded: node n1"


def test_stricter_and_looser_at_once_counts_as_stricter() -> None:
    bed = Bed(node("n1", INTEL_A, **OPEN), node("n2", INTEL_B, **OPEN))
    pod = bed.pod()
    bed.restart(pairs=f"{INTEL_A}=>{INTEL_B}")
    bed.joins(node("n3", ARM))
    assert ARM in taken_back(bed.plan(pod))


# --- what is lost is no news


def test_a_cold_cache_takes_no_pod_back() -> None:
    bed = mixed(hard_pin=True, captured=snapshot(host_cpu=INTEL_A, uploaded_by="n1"))
    bed.refusals = (refusal("n2", node_uid="uid-of-n2"),)
    pod = bed.pod()
    bed.fleet = fleet(node("n2", AMD, **OPEN), node("n3", ARM), warm=False)
    bed.restart()
    left_alone(bed.plan(pod))
    left_alone(bed.plan(pod, at=later(60)))


def test_a_capture_cpu_that_is_not_known_any_more_takes_no_pod_back() -> None:
    bed = Bed(
        node("n1", INTEL_A, created=ago(86400), **OPEN),
        node("n2", AMD, **OPEN),
        captured=snapshot(host_cpu=None, uploaded_by="n1"),
    )
    pod = bed.pod()
    bed.leaves("n1")
    left_alone(bed.plan(pod))
    bed.joins(node("n3", ARM))
    left_alone(bed.plan(pod))


# --- Required


def required(*nodes: NodeFacts, **parts: Any) -> Bed:
    bed = Bed(*nodes, **parts)
    bed.restore = restore(host_cpu_policy=HostCpuPolicy.REQUIRED)
    return bed


def test_a_required_pod_waits_for_the_loaders_that_it_names() -> None:
    bed = required(node("n1", INTEL_A, **OPEN), node("n2", AMD, **OPEN))
    pod = bed.pod()
    bed.joins(node("n3", ARM))
    left_alone(bed.plan(pod))
    bed.leaves("n1")
    left_alone(bed.plan(pod))
    left_alone(bed.plan(pod, at=later(60)))


def test_a_required_pod_that_names_a_cpu_which_is_no_loader_any_more_is_held() -> None:
    bed = required(node("n2", INTEL_B, **OPEN), pairs=f"{INTEL_A}=>{INTEL_B}")
    pod = bed.pod()
    bed.restart()
    assert taken_back(bed.plan(pod)) == f"rendered again: newly excluded: {INTEL_B}"
    held = view(snapshots=[bed.snapshot], attempts=[execution(outcome=Outcome.SUPERSEDED)])
    found = plan(
        world(bed.restore, view=held, hold_for=lambda r, c: bed.placer.hold_for(r, c, held, NOW))
    )
    assert (found.step, found.said["r1"].reason) == (None, "PlacementHeld")


def test_a_required_pod_gets_a_new_loader_once_it_is_in_the_fleet() -> None:
    bed = required(node("n1", INTEL_A, **OPEN))
    pod = bed.pod()
    bed.restart(pairs=f"{INTEL_A}=>{INTEL_B}")
    left_alone(bed.plan(pod))
    bed.joins(node("n2", INTEL_B, **OPEN))
    assert bed.plan(pod).recheck_at == later(60)
    # With no loader to reach it would be held, and gain nothing.
    bed.joins(node("n1", INTEL_A, unschedulable=True), node("n2", INTEL_B, unschedulable=True))
    left_alone(bed.plan(pod, at=later(60)))


# --- the shortlist


def test_a_shortlist_is_replaced_only_when_none_of_its_nodes_can_be_reached() -> None:
    bed = Bed(
        *(node(name, INTEL_A, **OPEN) for name in ("n1", "n2")),
        hard_pin=True,
        fallbacks=1,
        captured=snapshot(host_cpu=INTEL_A, uploaded_by="n1"),
    )
    pod = bed.pod()
    bed.joins(*(node(f"m{i}", INTEL_A, **OPEN) for i in range(20)))
    bed.joins(node("n1", INTEL_A, unschedulable=True, **OPEN))
    left_alone(bed.plan(pod))
    bed.leaves("n2")
    assert bed.plan(pod).recheck_at == later(60)
    why = taken_back(bed.plan(pod, at=later(60)))
    assert why == "rendered again: no node of its shortlist can be reached"
    left_alone(bed.plan(bed.pod(), at=later(60)))


def test_a_template_that_names_nodes_and_cpus_itself_is_not_taken_for_what_was_rendered() -> None:
    own = """
      spec:
        affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {
          nodeSelectorTerms: [
            {matchExpressions: [{key: space.pplx.net/host-cpu, operator: NotIn, values: [arm-1]}],
             matchFields: [{key: metadata.name, operator: In, values: [n1]}]},
            {}]}}}
        containers: [{name: runner, image: r, readinessProbe: {exec: {command: [x]}}}]
    """
    bed = mixed(made_from=PodTemplate.parse(own))
    pod = bed.pod()
    left_alone(bed.plan(pod))
    bed.joins(node("n1", INTEL_A, unschedulable=True, **OPEN))
    assert bed.plan(pod).recheck_at == later(60)
    taken_back(bed.plan(pod, at=later(60)))
    left_alone(bed.plan(bed.pod(), at=later(60)))


# --- whose pods


def test_a_pod_for_which_kube_scheduler_makes_room_is_left_alone() -> None:
    bed = mixed()
    pod = bed.pod(nominated_node="n1")
    bed.joins(node("n3", ARM))
    left_alone(bed.plan(pod))
    assert taken_back(bed.plan(replace(pod, nominated_node=None)))


def test_a_bound_pod_is_left_alone() -> None:
    bed = mixed()
    pod = bed.pod(**bound())
    bed.joins(node("n3", ARM))
    assert bed.plan(pod).step is None


@pytest.mark.parametrize(
    "fields", [{"gate": False}, {"source": Source.LOCAL, "target_node": "n1"}], ids=str
)
def test_without_the_gate_of_its_attempt_or_from_its_own_node_a_pod_is_left_alone(
    fields: dict[str, Any],
) -> None:
    pinned = {"hard_pin": True, "captured": snapshot(host_cpu=INTEL_A, uploaded_by="n1")}
    for parts in ({}, pinned):
        bed = mixed(**parts)
        bed.execution = execution(**{"gate": True, **fields})
        pod = bed.pod()
        bed.joins(node("n3", ARM))
        left_alone(bed.plan(pod))
        bed.leaves("n1", "n2")
        left_alone(bed.plan(pod))


def test_node_selectors_that_contradict_each_other_by_now_take_no_pod_back() -> None:
    bed = mixed()
    pod = bed.pod()
    bed.joins(node("n3", ARM))
    bed.restore = restore(node_selector={"kubernetes.io/arch": "arm64"})
    left_alone(bed.plan(pod))


# --- what becomes of the attempt


def superseded(bed: Bed, pod: PodFacts) -> Execution:
    """The attempt after its pod was taken back."""
    step = bed.plan(replace(pod, deleted_at=NOW)).step
    assert isinstance(step, w.Retire)
    assert (step.outcome, step.failure_class) == (Outcome.SUPERSEDED, None)
    return replace(
        execution(outcome=step.outcome, gate=True, retired_at=NOW),
        failure_message=step.failure_message,
    )


def test_the_attempt_is_superseded_not_counted_and_followed_by_the_next() -> None:
    bed = mixed()
    pod = bed.pod()
    bed.joins(node("n3", ARM))
    over = superseded(bed, pod)
    assert over.failure_message == f"rendered again: newly excluded: {ARM}"
    limited = restore(backoff_limit=1)
    assert final_failure(limited, [over]) is None
    held = view(snapshots=[bed.snapshot], attempts=[over])
    step = plan(world(limited, view=held)).step
    assert isinstance(step, w.BeginAttempt)
    assert step.attempt == 2
    assert bed.placer.pod_name(limited, 2) != bed.placer.pod_name(limited, 1)


def test_a_pod_that_somebody_else_deleted_is_not_said_to_be_rendered_again() -> None:
    bed = mixed()
    pod = bed.pod()
    over = superseded(bed, pod)
    assert over.failure_message == f"pod {pod.name} was deleted unbound"


def test_a_pod_that_is_rendered_again_is_one_event() -> None:
    bed = mixed()
    pod = bed.pod()
    bed.joins(node("n3", ARM))
    over = superseded(bed, pod)
    said = w.Said(succeeded=None, reason="Scheduling", message="m")

    def told(to: Restore, attempt: Execution) -> list[Any]:
        status = new_status(to, said, attempts=[attempt], placement=None, observed=None, now=NOW)
        return [item for item in news(to, status) if item.reason == "PlacementRerendered"]

    [event] = told(restore(), over)
    assert event.note == (
        f"pod {over.pod_name} was not scheduled yet and is rendered again: newly excluded: {ARM}"
    )
    known = new_status(restore(), said, attempts=[over], placement=None, observed=None, now=NOW)
    assert not told(restore(status={"attempts": known.attempts}), over)
    assert not told(restore(), execution(outcome=Outcome.SUPERSEDED, failure_message="deleted"))


# --- storms


def rerendered_in(bed: Bed, seconds: int, flap: Any) -> list[int]:
    """When the pod was taken back, in seconds, while the fleet changes every second."""
    bed.restore = restore(active_deadline_seconds=10 * seconds)
    pod, times = bed.pod(), []
    for second in range(seconds):
        flap(bed, second)
        now = later(second)
        if isinstance(bed.plan(pod, at=now).step, w.DeletePod):
            times.append(second)
            over = replace(
                bed.execution, outcome=Outcome.SUPERSEDED, state=execution(outcome="x").state
            )
            bed.attempts = (*bed.attempts, over)
            number = bed.execution.attempt + 1
            bed.execution = execution(
                f"e{number}", gate=True, attempt=number, pod_name=f"p-{number}", created_at=now
            )
            pod = bed.pod()
    return times


def test_a_cpu_that_flaps_costs_one_pod_not_one_a_flap() -> None:
    def flap(bed: Bed, second: int) -> None:
        bed.joins(node("n3", ARM if second % 2 else None))

    assert rerendered_in(mixed(), 600, flap) == [1]


def test_the_last_loader_that_flaps_costs_no_pod() -> None:
    def flap(bed: Bed, second: int) -> None:
        bed.joins(node("n1", INTEL_A, unschedulable=bool(second % 2), **OPEN))

    assert rerendered_in(mixed(), 600, flap) == []


def test_a_label_that_never_comes_to_rest_takes_pods_back_ever_more_seldom() -> None:
    """Each second another CPU, and none of them is remembered: every change is stricter."""

    def flap(bed: Bed, second: int) -> None:
        bed.joins(node("n3", f"cpu-{second}"))

    times = rerendered_in(mixed(), 3600, flap)
    gaps = [after - before for before, after in pairwise(times)]
    assert times[0] == 0
    # 1 s, doubled up to a minute, each times a half to one.
    assert all(gap >= min(60, 2**i) / 2 for i, gap in enumerate(gaps))
    assert all(gap <= 61 for gap in gaps)


def test_an_attempt_that_ended_otherwise_lets_the_next_pod_be_taken_back_at_once() -> None:
    bed = mixed()
    bed.attempts = (
        execution("e1", outcome=Outcome.SUPERSEDED, attempt=1),
        execution("e2", outcome=Outcome.SUPERSEDED, attempt=2),
        execution("e3", outcome=Outcome.FAILED, failure_class="host", attempt=3),
    )
    bed.execution = execution("e4", gate=True, attempt=4, created_at=NOW)
    pod = bed.pod()
    bed.joins(node("n3", ARM))
    assert taken_back(bed.plan(pod))
    last = replace(bed.attempts[2], outcome=Outcome.SUPERSEDED, failure_class=None)
    bed.attempts = (*bed.attempts[:2], last)
    found = bed.plan(pod)
    assert found.step is None
    assert found.recheck_at is not None
    assert found.recheck_at <= later(4)
    assert taken_back(bed.plan(pod, at=found.recheck_at))


def test_steady_times_are_kept_for_so_many_pods() -> None:
    times = SteadyTimes(kept=2)
    for second, uid in enumerate(("a", "b", "c")):
        times.since(uid, later(second))
    assert times.since("c", later(9)) == later(2)
    assert times.since("a", later(9)) == later(9)
