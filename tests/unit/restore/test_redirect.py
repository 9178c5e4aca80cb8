"""The redirect, its seven conditions and what else becomes of a pinned wake (section 10)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from sandbox_restore.model.names import HOST_CPU_LABEL
from sandbox_restore.model.node import NodeFacts
from sandbox_restore.model.restore import Evacuation, HostCpuPolicy
from sandbox_restore.model.sandbox import (
    Outcome,
    Sandbox,
    SandboxState,
    SnapshotKind,
    SnapshotState,
    Source,
)
from sandbox_restore.restore import pinned as p
from sandbox_restore.restore import redirect as r
from sandbox_restore.restore import world as w
from sandbox_restore.restore.liveness import NodeSighting, Verdict
from sandbox_restore.restore.planner import plan
from tests.support.builders import (
    NOW,
    SANDBOX,
    absent,
    ago,
    bound,
    execution,
    node,
    pod,
    refusal,
    restore,
    sees,
    snapshot,
    view,
    world,
)

INTEL, AMD = "intel-6-106-6", "amd-25-17-1"
ABLE = p.Loaders(warm=True, capture_cpu=INTEL, known=frozenset({INTEL}), able=3, reachable=9)
ON: dict[str, Any] = {"gate_for": lambda _restore: True, "loaders_for": lambda _r, _s: ABLE}


def cpu_node(cpu: str | None, name: str = "n1", **fields: Any) -> NodeFacts:
    return node(name, labels={HOST_CPU_LABEL: cpu} if cpu else {}, **fields)


def stuck(**row: Any) -> dict[str, Any]:
    """A row that a failed restore left pinned."""
    return {"state": SandboxState.FAILED, "pinned_node": "n1", **row}


def planned(view_: Any, *restores: Any, sightings: Any = None, **fields: Any) -> w.Plan:
    given = {**ON, **fields}
    seen = sees(cpu_node(AMD)) if sightings is None else sightings
    return plan(world(*(restores or (restore(),)), view=view_, sightings=seen, **given))


# --- the seven conditions: every combination, its verdict and its first reason

FALSIFIED: Mapping[r.Name, tuple[str, Any]] = {
    r.Name.PINNED_NODE_CANNOT_LOAD: (
        "PinnedNodeCanLoad",
        {"pinned": p.PinnedNode(cannot_load=False, reason="PinnedNodeCanLoad", message="can")},
    ),
    r.Name.PLAN_NOT_FROM_POD: ("PlanFromPod", {"active": execution()}),
    r.Name.NO_POD_MAY_BE_ALIVE: (
        "PreviousPodMayBeAlive",
        {"alive": Verdict(may_be_alive=True, why="pod p may be alive")},
    ),
    r.Name.NO_LOCAL_ARTIFACT: ("LocalArtifactMarker", {"row": {"local_artifact_marker": True}}),
    r.Name.COVERS_ACTIVITY: ("SnapshotBehindActivity", {"row": {"last_command_at": ago(3599)}}),
    r.Name.NO_NEWER_SNAPSHOT: (
        "NewerSnapshotUploading",
        {"fulls": [snapshot("s2", state=SnapshotState.UPLOADING, captured_at=ago(900))]},
    ),
    r.Name.NO_CAPTURE_SINCE: (
        "CapturedSinceRestoreBegan",
        {"row": {"state": SandboxState.RESTORING, "restore_started_at": ago(3601)}},
    ),
}


def facts(*broken: r.Name) -> r.Facts:
    """A stranded row that may be redirected, but for the conditions named."""
    row: dict[str, Any] = {
        "namespace": "team-a",
        "state": SandboxState.RESTORING,
        "pinned_node": "n1",
        "restore_started_at": ago(300),
        "last_command_at": ago(3600),
        "last_access_at": ago(3600),
    }
    fulls = [snapshot()]
    fields: dict[str, Any] = {
        "pinned": p.PinnedNode(cannot_load=True, reason="PinnedNodeRefused", message="refused"),
        "loaders": ABLE,
    }
    for name in broken:
        change = dict(FALSIFIED[name][1])
        row |= change.pop("row", {})
        fulls += change.pop("fulls", [])
        fields |= change
    return r.Facts(row=Sandbox(id=SANDBOX, **row), fulls=tuple(fulls), snapshot=fulls[0], **fields)


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(c, id="+".join(str(list(r.Name).index(n) + 1) for n in c) or "none")
        for size in range(8)
        for c in itertools.combinations(r.Name, size)
    ],
)
def test_every_combination_of_the_conditions(broken: tuple[r.Name, ...]) -> None:
    found = r.evaluate(facts(*broken))
    assert [c.name for c in found.conditions] == list(r.Name)
    assert {c.name for c in found.conditions if not c.met} == set(broken)
    assert found.allowed == (not broken)
    if broken:
        assert found.blocker is not None
        assert (found.blocker.name, found.blocker.reason) == (broken[0], FALSIFIED[broken[0]][0])
        told = found.blocker.reason if found.stranded else found.blocker.message
        assert told in found.words
        assert found.blocker.message in found.blocker.with_advice
    assert found.stranded == (bool(broken) and r.Name.PINNED_NODE_CANNOT_LOAD not in broken)
    assert all(c.reason and c.message for c in found.conditions)


@pytest.mark.parametrize("field", ["last_command_at", "last_access_at"])
@pytest.mark.parametrize(("seconds", "met"), [(3601, True), (3600, True), (3599, False)])
def test_5_a_snapshot_covers_what_was_recorded_at_or_before_its_capture(
    field: str, seconds: int, met: bool
) -> None:
    nothing = {"last_command_at": None, "last_access_at": None}
    row = replace(facts().row, **{**nothing, field: ago(seconds)})
    assert r.covers_activity(replace(facts(), row=row)).met is met


def test_5_nothing_recorded_is_covered() -> None:
    row = replace(facts().row, last_command_at=None, last_access_at=None)
    assert r.covers_activity(replace(facts(), row=row)).met


@pytest.mark.parametrize(
    ("state", "captured", "reason"),
    [
        (SnapshotState.UPLOADING, ago(900), "NewerSnapshotUploading"),
        (SnapshotState.UPLOADING, None, "NewerSnapshotUploading"),
        (SnapshotState.FAILED, ago(900), "NewerSnapshotFailed"),
        (SnapshotState.FAILED, None, "NewerSnapshotFailed"),
        (SnapshotState.FAILED, ago(7200), "NoneNewer"),
        (SnapshotState.UPLOADING, ago(7200), "NoneNewer"),
        (SnapshotState.READY, ago(900), "NoneNewer"),
    ],
)
def test_6_a_newer_full_snapshot_that_is_not_ready_blocks(
    state: SnapshotState, captured: Any, reason: str
) -> None:
    other = snapshot("s2", state=state, captured_at=captured)
    got = r.no_newer_snapshot(replace(facts(), fulls=(snapshot(), other)))
    assert (got.reason, got.met) == (reason, reason == "NoneNewer")


@pytest.mark.parametrize(
    ("state", "captured", "met"),
    [
        (SandboxState.RESTORING, ago(299), False),
        (SandboxState.RESTORING, ago(300), True),
        (SandboxState.FAILED, ago(299), True),
    ],
)
def test_7_only_a_capture_after_a_restore_that_is_under_way_blocks(
    state: SandboxState, captured: Any, met: bool
) -> None:
    row = replace(facts().row, state=state)
    got = r.no_capture_since(
        replace(facts(), row=row, fulls=(snapshot(), snapshot("s2", captured_at=captured)))
    )
    assert got.met is met


# --- condition 1


def judged(
    sightings: Mapping[str, NodeSighting], *, loaders: p.Loaders = ABLE, **fields: Any
) -> p.PinnedNode:
    return p.pinned_node(
        sightings.get("n1"),
        name="n1",
        snapshot=snapshot(),
        loaders=loaders,
        view=view(row=stuck(), **fields),
        own=tuple(fields.get("attempts", ())),
        now=NOW,
        gone_grace=timedelta(minutes=5),
        observation_ttl=timedelta(hours=1),
        cpu_label=HOST_CPU_LABEL,
    )


@pytest.mark.parametrize(
    ("cpu", "cannot", "reason"),
    [
        (AMD, True, "PinnedNodeCpuIncompatible"),
        (INTEL, False, "PinnedNodeCanLoad"),
        (None, False, "PinnedNodeCpuUnknown"),
        ("AMD-25", False, "PinnedNodeCpuUnknown"),
        ("unknown", False, "PinnedNodeCpuUnknown"),
    ],
)
def test_1_the_label_of_the_pinned_node(cpu: str | None, cannot: bool, reason: str) -> None:
    got = judged(sees(cpu_node(cpu)))
    assert (got.cannot_load, got.reason) == (cannot, reason)


@pytest.mark.parametrize("cpu", [INTEL, None, AMD])
def test_1_a_node_that_refused_the_snapshot_cannot_load_it_whatever_its_label(
    cpu: str | None,
) -> None:
    got = judged(sees(cpu_node(cpu)), refusals=[refusal("n1")])
    assert (got.cannot_load, got.reason) == (True, "PinnedNodeRefused")


@pytest.mark.parametrize(
    "other",
    [
        refusal("n1", node_uid="an earlier Node of that name"),
        refusal("n1", snapshot_id="another snapshot"),
        refusal("n1", observed_at=ago(3601)),
        refusal("n2"),
    ],
    ids=["another UID", "another snapshot", "aged out", "another node"],
)
def test_1_a_refusal_counts_for_that_node_that_snapshot_and_its_time(other: Any) -> None:
    assert judged(sees(cpu_node(INTEL)), refusals=[other]).reason == "PinnedNodeCanLoad"


def test_1_an_absent_node_cannot_load_after_the_grace_period_only() -> None:
    soon = judged(absent("n1", since=ago(299)))
    assert (soon.cannot_load, soon.reason) == (False, "PinnedNodeAbsent")
    assert soon.recheck_at == NOW + timedelta(seconds=1)
    late = judged(absent("n1", since=ago(300)))
    assert (late.cannot_load, late.reason) == (True, "PinnedNodeGone")


def test_1_a_node_that_is_not_ready_is_not_gone() -> None:
    got = judged(sees(cpu_node(INTEL, ready=False, ready_since=None)))
    assert not got.cannot_load


def test_1_nothing_is_concluded_from_a_cold_cache() -> None:
    for seen in (sees(cpu_node(AMD)), absent("n1", since=ago(9999))):
        got = judged(seen, loaders=p.Loaders(warm=False))
        assert (got.cannot_load, got.reason) == (False, "ColdCache")
    assert judged({}).reason == "ColdCache"


@pytest.mark.parametrize("failure", ["missing", "unreadable"])
def test_1_local_state_that_is_missing_or_unreadable_cannot_be_loaded(failure: str) -> None:
    tried = execution(
        source=Source.LOCAL,
        outcome=Outcome.FAILED,
        failure_class=failure,
        node_name="n1",
        target_node="n1",
    )
    assert judged(sees(cpu_node(INTEL)), attempts=[tried]).reason == "LocalStateUnusable"
    for change in (
        {"failure_class": "transport"},
        {"source": Source.STORAGE},
        {"target_node": "n2"},
        {"snapshot_id": "another"},
    ):
        got = judged(sees(cpu_node(INTEL)), attempts=[replace(tried, **change)])
        assert got.reason == "PinnedNodeCanLoad", change


def test_1_an_unknown_capture_cpu_makes_no_node_one_that_can() -> None:
    unknown = p.Loaders(warm=True, reachable=9)
    assert judged(sees(cpu_node(AMD)), loaders=unknown).reason == "CaptureCpuUnknown"
    got = r.pinned_node_cannot_load(replace(facts(), loaders=unknown))
    assert (got.met, got.reason) == (False, "CaptureCpuUnknown")


def test_1_needs_a_reachable_node_that_can() -> None:
    got = r.evaluate(replace(facts(), loaders=replace(ABLE, able=0)))
    assert got.blocker is not None
    assert got.blocker.reason == "NoReachableLoader"
    assert got.stranded


# --- the storage copy


def test_the_copy_is_the_newest_ready_full_one_or_the_one_named() -> None:
    old, new = snapshot("old", captured_at=ago(7200)), snapshot("new")
    failed = snapshot("bad", state=SnapshotState.FAILED, captured_at=ago(10))
    assert r.storage_copy((old, new, failed), None, prefixes=()) == new
    assert r.storage_copy((old, new, failed), "old", prefixes=()) == old
    assert r.storage_copy((old, new, failed), "bad", prefixes=()) is None
    assert r.storage_copy((snapshot(storage_uri=None),), None, prefixes=()) is None
    assert r.storage_copy((new,), None, prefixes=("s3://elsewhere/",)) is None
    diff = snapshot("d", kind=SnapshotKind.DIFF)
    assert r.full_snapshots(view(snapshots=[diff, new])) == (new,)


# --- what the planner makes of it


def test_a_stranded_row_is_redirected_with_its_pin_cleared() -> None:
    step = planned(view(row=stuck())).step
    assert isinstance(step, w.BeginAttempt)
    assert (step.source, step.clear_pin, step.gate) == (Source.STORAGE, True, True)
    assert step.target_node is None
    assert step.redirect is not None
    assert step.redirect.allowed


def test_no_redirect_with_the_gate_off() -> None:
    step = planned(view(row=stuck()), gate_for=lambda _r: False).step
    assert isinstance(step, w.BeginAttempt)
    assert (step.source, step.target_node, step.clear_pin) == (Source.LOCAL, "n1", False)
    assert step.redirect is None


def test_a_blocked_redirect_keeps_the_local_plan_and_says_stranded() -> None:
    got = planned(view(row=stuck(local_artifact_marker=True)))
    assert isinstance(got.step, w.BeginAttempt)
    assert got.step.source is Source.LOCAL
    said = got.said["r1"]
    assert said.redirect is not None
    assert said.redirect.stranded
    assert said.redirect.blocker is not None
    assert said.redirect.blocker.reason == "LocalArtifactMarker"


def refused_locally(**fields: Any) -> Any:
    return execution(
        source=Source.LOCAL,
        outcome=Outcome.FAILED,
        failure_class="cpu-incompatible",
        failure_message="Failed to set all KVM MSRs",
        node_name="n1",
        node_uid="uid-n1",
        target_node="n1",
        **fields,
    )


def test_a_refused_local_attempt_is_redirected_when_it_may() -> None:
    held = view(
        row=stuck(state=SandboxState.RESTORING), attempts=[refused_locally()],
        refusals=[refusal("n1")],
    )  # fmt: skip
    step = planned(held, sightings=sees(cpu_node(None))).step
    assert isinstance(step, w.BeginAttempt)
    assert (step.source, step.clear_pin, step.attempt) == (Source.STORAGE, True, 2)


def test_a_refused_local_attempt_is_not_tried_again_when_the_redirect_is_blocked() -> None:
    held = view(
        row=stuck(state=SandboxState.RESTORING, local_artifact_marker=True),
        attempts=[refused_locally()],
        refusals=[refusal("n1")],
    )
    got = planned(held)
    said = got.said["r1"]
    assert (got.step, said.succeeded, said.reason) == (None, False, "Stranded")
    assert "(PinnedNodeRefused), and may not leave it (LocalArtifactMarker)" in said.message
    assert said.message.endswith("attempt 1 there was refused")


def test_the_next_restore_tries_a_refusing_node_once_again() -> None:
    held = view(
        row=stuck(local_artifact_marker=True),
        attempts=[refused_locally(restore_uid="r0")],
        refusals=[refusal("n1")],
    )
    step = planned(held).step
    assert isinstance(step, w.BeginAttempt)
    assert step.source is Source.LOCAL


def test_under_required_no_pod_is_burned_on_a_node_that_cannot_load() -> None:
    required = restore(host_cpu_policy=HostCpuPolicy.REQUIRED)
    got = planned(view(row=stuck(local_artifact_marker=True)), required)
    assert (got.step, got.said["r1"].succeeded, got.said["r1"].reason) == (None, None, "Stranded")
    fine = planned(
        view(row=stuck(local_artifact_marker=True)), required, sightings=sees(cpu_node(INTEL))
    )
    assert isinstance(fine.step, w.BeginAttempt)


def test_a_plan_from_a_living_pod_is_never_redirected() -> None:
    active = execution(restore_uid="r0", restore_name="gone")
    held = view(row=stuck(state=SandboxState.RESTORING), active=active)
    got = planned(held, restore("r1"), pods=[pod(**bound())])
    assert not isinstance(got.step, w.BeginAttempt)
    said = got.said["r1"]
    assert said.redirect is not None
    assert said.redirect.blocker is not None
    assert said.redirect.blocker.reason == "PlanFromPod"
    unmet = [c.name for c in said.redirect.conditions if not c.met]
    assert unmet == [r.Name.PLAN_NOT_FROM_POD, r.Name.NO_POD_MAY_BE_ALIVE]


def test_no_redirect_while_a_pod_of_the_sandbox_may_be_alive() -> None:
    stray = pod("platform-pod", **bound(), annotations={}, finalizers=(), owner_uids=())
    got = planned(view(row=stuck()), pods=[stray])
    assert got.step is None
    said = got.said["r1"]
    assert said.reason == "PreviousPodMayBeAlive"
    assert said.redirect is not None
    assert [c.name for c in said.redirect.conditions if not c.met] == [r.Name.NO_POD_MAY_BE_ALIVE]


def test_an_absent_pinned_node_is_waited_for_and_then_given_up() -> None:
    soon = planned(view(row=stuck()), sightings=absent("n1", since=ago(10)))
    assert (soon.step, soon.said["r1"].reason) == (None, "PinnedNodeAbsent")
    assert soon.recheck_at == NOW + timedelta(seconds=290)
    late = planned(view(row=stuck()), sightings=absent("n1", since=ago(301)))
    assert isinstance(late.step, w.BeginAttempt)
    assert late.step.clear_pin


def test_redirects_wait_for_the_rate_limit_of_the_fleet() -> None:
    at = NOW + timedelta(seconds=7)
    got = planned(view(row=stuck()), redirect_wait=lambda: at)
    assert (got.step, got.said["r1"].reason) == (None, "RedirectRateLimited")
    assert got.recheck_at == at


def test_the_next_try_of_a_refused_storage_attempt_takes_no_place_in_the_rate_limit() -> None:
    never = NOW + timedelta(days=1)
    refused = execution(
        outcome=Outcome.FAILED,
        failure_class="cpu-incompatible",
        node_name="n1",
        node_uid="uid-n1",
    )
    row = stuck(state=SandboxState.RESTORING)
    held = view(row=row, attempts=[refused], refusals=[refusal("n1")])
    step = planned(held, redirect_wait=lambda: never).step
    assert isinstance(step, w.BeginAttempt)
    assert (step.clear_pin, step.rate_limited) == (True, False)
    other = planned(view(row=stuck(), newest=refused), redirect_wait=lambda: None).step
    assert isinstance(other, w.BeginAttempt)
    assert other.rate_limited


def test_a_redirect_goes_through_the_hold_of_the_storage_plan() -> None:
    seen: list[Any] = []

    def hold(_restore: Any, choice: Any) -> w.Hold:
        seen.append(choice)
        return w.Hold(reason="CircuitOpen", message="all loaders refuse")

    got = planned(view(row=stuck()), hold_for=hold)
    assert (got.step, got.said["r1"].reason) == (None, "CircuitOpen")
    assert type(seen[0]).__name__ == "StoragePlan"


# --- evacuation of a pinned row (section 14)


@pytest.mark.parametrize("gate", [True, False])
def test_an_evacuation_needs_conditions_2_to_7_and_not_the_first(gate: bool) -> None:
    moved = restore(evacuation=Evacuation(cohort="blue"))
    seen = sees(cpu_node(INTEL))
    fine = planned(view(row=stuck()), moved, sightings=seen, gate_for=lambda _r: gate)
    assert isinstance(fine.step, w.BeginAttempt)
    assert (fine.step.source, fine.step.clear_pin) == (Source.STORAGE, True)
    assert fine.step.redirect is None
    held = planned(view(row=stuck(local_artifact_marker=True)), moved, sightings=seen)
    said = held.said["r1"]
    assert (held.step, said.succeeded, said.reason) == (None, False, "EvacuationBlocked")
    assert "may hold state that exists nowhere else" in said.message
    none = planned(view(row=stuck(), snapshots=[snapshot(storage_uri=None)]), moved)
    assert none.said["r1"].reason == "EvacuationBlocked"


# --- give-ups (section 10)


def stuck_attempt(**fields: Any) -> Any:
    return execution(
        **{
            "outcome": Outcome.FAILED,
            "failure_class": "cpu-incompatible",
            "node_name": "n1",
            "node_uid": "uid-n1",
            "restore_uid": "r0",
            **fields,
        }
    )


MARKED = stuck(local_artifact_marker=True)
DRAINING = sees(cpu_node(AMD, taints=()))
DRAINED = {"n1": NodeSighting(name="n1", node=node(labels={"drain/me": ""}))}
GONE = absent("n1", since=ago(301))


def gives_up(sightings: Any, *, row: Any = MARKED, newest: Any = None, **fields: Any) -> bool:
    held = view(row=row, newest=newest or stuck_attempt(), **fields)
    config = w.PlannerConfig(drain_marks=("drain/me",))
    step = planned(held, sightings=sightings, config=config).step
    return isinstance(step, w.GiveUpMarker)


def test_a_stuck_row_loses_its_marker_when_its_node_is_drained_away_or_gone() -> None:
    assert gives_up(DRAINED)
    assert gives_up(GONE)


@pytest.mark.parametrize(
    "sightings",
    [
        sees(cpu_node(AMD)),
        sees(cpu_node(AMD, unschedulable=True)),
        sees(cpu_node(None, ready=False, ready_since=None)),
        absent("n1", since=ago(299)),
    ],
    ids=["healthy", "cordoned", "NotReady and unlabelled", "absent for less than the grace"],
)
def test_a_node_that_is_only_away_for_a_moment_keeps_its_markers(sightings: Any) -> None:
    assert not gives_up(sightings)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"row": {**MARKED, "state": SandboxState.SUSPENDED}}, "neither restoring nor failed"),
        ({"newest": stuck_attempt(source=Source.LOCAL)}, "a local-only attempt"),
        ({"newest": stuck_attempt(loaded_at=ago(90))}, "it was Ready"),
        ({"newest": stuck_attempt(failure_class="transport")}, "it did not set the pin"),
        ({"newest": stuck_attempt(node_name="n2")}, "pinned by something else"),
        ({"newest": stuck_attempt(prior_pin="n1")}, "the pin was there before"),
        (
            {"newest_loaded": execution("e0", node_name="n1", loaded_at=ago(999))},
            "the newest that loaded ran there",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_only_a_row_that_a_stuck_restore_left_pinned_loses_its_marker(
    change: Any, words: str
) -> None:
    assert not gives_up(GONE, **change), words


def test_after_a_lost_attempt_only_a_gone_node_counts() -> None:
    lost = stuck_attempt(outcome=Outcome.LOST, failure_class="unknown")
    assert gives_up(GONE, newest=lost)
    assert not gives_up(DRAINED, newest=lost)


def test_no_marker_is_given_up_with_the_gate_off() -> None:
    held = view(row=MARKED, newest=stuck_attempt())
    step = planned(held, sightings=GONE, gate_for=lambda _r: False).step
    assert not isinstance(step, w.GiveUpMarker)


def test_a_row_whose_marker_was_given_up_is_then_redirected() -> None:
    held = view(row=stuck(), newest=stuck_attempt())
    step = planned(held, sightings=GONE).step
    assert isinstance(step, w.BeginAttempt)
    assert step.clear_pin
