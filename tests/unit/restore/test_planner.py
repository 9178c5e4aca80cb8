"""The planner, rule by rule (domain.md sections 11, 14 and 15)."""

from __future__ import annotations

from typing import Any

import pytest

from sandbox_restore.model.names import FENCE, OUT_OF_SERVICE_TAINT
from sandbox_restore.model.node import Taint
from sandbox_restore.model.sandbox import Outcome, SandboxState, SnapshotState, Source
from sandbox_restore.restore import world as w
from sandbox_restore.restore.planner import plan
from tests.support.builders import (
    NOW,
    absent,
    ago,
    bound,
    ended,
    execution,
    finished,
    node,
    pod,
    restore,
    sees,
    snapshot,
    view,
    world,
)

INCOMPATIBLE = "Failed to set all KVM MSRs for this vCPU. Only a partial write was done."


def step_of(*args: Any, **fields: Any) -> Any:
    return plan(world(*args, **fields)).step


def said_of(uid: str, *args: Any, **fields: Any) -> w.Said:
    return plan(world(*args, **fields)).said[uid]


# --- section 14: from wake to plan


def test_a_restore_of_an_unknown_sandbox_fails_with_a_reason() -> None:
    said = said_of("r1", restore(), view=None)
    assert (said.succeeded, said.reason) == (False, "SandboxNotFound")


def test_a_row_of_another_namespace_gets_the_same_words_as_a_missing_row() -> None:
    there = said_of("r1", restore(), view=view(row={"namespace": "team-b"}))
    missing = said_of("r1", restore(), view=None)
    assert there == missing


def test_a_recreated_namespace_owns_nothing() -> None:
    row = {"namespace_uid": "old"}
    assert said_of("r1", restore(), view=view(row=row), namespace_uid="new").reason == (
        "SandboxNotFound"
    )
    assert isinstance(step_of(restore(), view=view(row=row), namespace_uid="old"), w.BeginAttempt)


def test_an_unpinned_sandbox_with_a_ready_snapshot_gets_a_storage_attempt() -> None:
    step = step_of(restore(), view=view())
    assert isinstance(step, w.BeginAttempt)
    assert (step.source, step.attempt, step.target_node) == (Source.STORAGE, 1, None)
    assert step.snapshot is not None
    assert step.snapshot.id == "s1"


def test_a_pinned_sandbox_gets_a_local_only_attempt_on_its_node() -> None:
    step = step_of(restore(), view=view(row={"pinned_node": "n1"}))
    assert isinstance(step, w.BeginAttempt)
    assert (step.source, step.target_node) == (Source.LOCAL, "n1")


def test_an_active_execution_gets_no_second_pod() -> None:
    held = view(active=execution())
    assert step_of(restore(), view=held, pods=[pod(**bound())], sightings=sees(node())) is None


def test_neither_pin_nor_storage_ends_with_snapshot_unavailable() -> None:
    for snapshots in ([], [snapshot(storage_uri=None)], [snapshot(state=SnapshotState.FAILED)]):
        said = said_of("r1", restore(), view=view(snapshots=snapshots))
        assert (said.succeeded, said.reason) == (False, "SnapshotUnavailable")


def test_the_newest_ready_full_snapshot_is_taken() -> None:
    older = snapshot("old", captured_at=ago(7200))
    step = step_of(restore(), view=view(snapshots=[older, snapshot("new")]))
    assert step.snapshot.id == "new"


def test_a_named_snapshot_of_another_sandbox_is_answered_like_a_missing_one() -> None:
    said = said_of("r1", restore(snapshot_id="other"), view=view())
    assert (said.succeeded, said.reason) == (False, "SnapshotUnavailable")


@pytest.mark.parametrize("captured", [ago(10), None])
def test_a_storage_plan_waits_while_a_newer_full_snapshot_uploads(captured: Any) -> None:
    newer = snapshot("s2", state=SnapshotState.UPLOADING, captured_at=captured)
    got = plan(world(restore(), view=view(snapshots=[snapshot(), newer])))
    assert got.step is None
    assert got.said["r1"].reason == "WaitingForSnapshot"
    assert got.said["r1"].succeeded is None


def test_a_storage_plan_is_refused_when_a_newer_full_snapshot_failed() -> None:
    newer = snapshot("s2", state=SnapshotState.FAILED, captured_at=ago(10))
    said = said_of("r1", restore(), view=view(snapshots=[snapshot(), newer]))
    assert (said.succeeded, said.reason) == (False, "NewerSnapshotFailed")


@pytest.mark.parametrize("field", ["last_command_at", "last_access_at"])
def test_a_storage_plan_is_refused_when_activity_came_after_the_capture(field: str) -> None:
    said = said_of("r1", restore(), view=view(row={field: ago(10)}))
    assert (said.succeeded, said.reason) == (False, "SnapshotBehindActivity")
    covered = {field: ago(3600)}
    assert isinstance(step_of(restore(), view=view(row=covered)), w.BeginAttempt)


def test_a_snapshot_that_the_user_named_may_be_older_than_recorded_state() -> None:
    newer = snapshot("s2", state=SnapshotState.FAILED, captured_at=ago(10))
    held = view(row={"last_command_at": ago(5)}, snapshots=[snapshot(), newer])
    assert isinstance(step_of(restore(snapshot_id="s1"), view=held), w.BeginAttempt)


def test_a_row_that_says_running_without_an_execution_never_gets_a_pod() -> None:
    got = plan(world(restore(), view=view(row={"state": SandboxState.RUNNING})))
    assert (got.step, got.said["r1"].reason) == (None, "SandboxRunning")


def test_of_two_restores_the_older_acts_and_the_other_is_busy() -> None:
    old, new = restore("r2", created=ago(20)), restore("r1", created=ago(10))
    got = plan(world(new, old, view=view()))
    assert got.step.restore.uid == "r2"
    assert got.said["r1"].reason == "SandboxBusy"


def test_the_restore_whose_attempt_is_active_acts_before_an_older_one() -> None:
    old, new = restore("r2", created=ago(20)), restore("r1", created=ago(10))
    got = plan(world(new, old, view=view(active=execution()), pods=[pod(gates=(FENCE,))]))
    assert isinstance(got.step, w.Ungate)
    assert got.said["r2"].reason == "SandboxBusy"


def test_a_follower_succeeds_when_the_sandbox_comes_up() -> None:
    up = execution(loaded_at=ago(2), released_at=ago(1), node_name="n1", pod_uid="uid-wake-r1-1")
    running = pod(**bound(ready=True), owner_uids=(), finalizers=())
    got = plan(
        world(
            restore("r2"),
            finished("r1"),
            view=view(active=up),
            pods=[running],
            sightings=sees(node()),
        )
    )
    assert (got.said["r2"].succeeded, got.said["r2"].reason) == (True, "FollowedPod")


def test_suspend_begins_no_attempt_and_stops_the_clock() -> None:
    late = restore(suspend=True, created=ago(5000), active_deadline_seconds=60)
    got = plan(world(late, view=view()))
    assert (got.step, got.said["r1"].reason) == (None, "Suspended")


def test_suspend_leaves_a_bound_pod_alone_and_takes_back_an_unbound_one() -> None:
    held = view(active=execution())
    sightings = sees(node())
    assert (
        step_of(restore(suspend=True), view=held, pods=[pod(**bound())], sightings=sightings)
        is None
    )
    assert isinstance(step_of(restore(suspend=True), view=held, pods=[pod()]), w.DeletePod)


def test_a_suspended_restore_does_not_keep_another_from_acting() -> None:
    got = plan(world(restore("r1", suspend=True, created=ago(20)), restore("r2"), view=view()))
    assert got.step.restore.uid == "r2"


# --- section 15: the order of one attempt


def test_the_order_of_an_attempt_is_row_pod_ungate_loaded_release_released() -> None:
    order = [
        step_of(restore(), view=view()),
        step_of(restore(), view=view(active=execution())),
        step_of(restore(), view=view(active=execution()), pods=[pod(gates=(FENCE,))]),
        step_of(
            restore(),
            view=view(active=execution()),
            pods=[pod(**bound(ready=True))],
            sightings=sees(node()),
        ),
        step_of(
            restore(),
            view=view(active=execution(loaded_at=ago(1))),
            pods=[pod(**bound(ready=True))],
            sightings=sees(node()),
        ),
        step_of(
            restore(),
            view=view(active=execution(loaded_at=ago(1))),
            pods=[pod(**bound(ready=True), owner_uids=(), finalizers=())],
            sightings=sees(node()),
        ),
    ]
    assert [type(s) for s in order] == [
        w.BeginAttempt,
        w.CreatePod,
        w.Ungate,
        w.MarkLoaded,
        w.Release,
        w.MarkReleased,
    ]


def test_a_released_restore_succeeds_only_then() -> None:
    ready = pod(**bound(ready=True), owner_uids=(), finalizers=())
    before = said_of(
        "r1",
        restore(),
        view=view(active=execution(loaded_at=ago(1))),
        pods=[ready],
        sightings=sees(node()),
    )
    after = said_of(
        "r1",
        restore(),
        pods=[ready],
        sightings=sees(node()),
        view=view(active=execution(loaded_at=ago(1), released_at=ago(1), node_name="n1")),
    )
    assert (before.succeeded, after.succeeded) == (None, True)


def test_a_restore_whose_execution_was_suspended_has_succeeded() -> None:
    over = execution(outcome=Outcome.SUSPENDED, loaded_at=ago(9))
    assert said_of("r1", restore(), view=view(attempts=[over])).succeeded is True


def test_an_attempt_that_was_ready_is_never_followed_by_another_of_the_same_restore() -> None:
    for released, succeeded in ((ago(8), True), (None, False)):
        over = execution(outcome=Outcome.LOST, loaded_at=ago(9), released_at=released)
        row = {"state": SandboxState.SUSPENDED, "pinned_node": "n1", "local_artifact_marker": True}
        got = plan(world(restore(), view=view(attempts=[over], row=row)))
        assert got.step is None
        assert got.said["r1"].succeeded is succeeded


def test_an_execution_whose_pod_was_never_made_gets_its_pod_again() -> None:
    assert isinstance(step_of(restore(), view=view(active=execution())), w.CreatePod)


def test_an_unbound_pod_that_is_being_deleted_ends_the_attempt_as_superseded() -> None:
    step = step_of(restore(), view=view(active=execution()), pods=[pod(deleted_at=ago(1))])
    assert isinstance(step, w.Retire)
    assert (step.outcome, step.row_state) == (Outcome.SUPERSEDED, SandboxState.RESTORING)


def test_the_fence_goes_after_the_execution_is_retired_not_before() -> None:
    dying = pod(deleted_at=ago(1))
    retired = execution(outcome=Outcome.SUPERSEDED)
    active = step_of(restore(), view=view(active=execution()), pods=[dying])
    after = step_of(restore(), view=view(attempts=[retired]), pods=[dying])
    assert (type(active), type(after)) == (w.Retire, w.DropFinalizer)


def test_a_gated_pod_whose_execution_is_not_active_is_deleted() -> None:
    retired = execution(outcome=Outcome.CANCELLED)
    step = step_of(view=view(attempts=[retired]), pods=[pod(gates=(FENCE,))])
    assert isinstance(step, w.DeletePod)


def test_a_deleted_restore_takes_back_its_unbound_pod_and_its_bound_one() -> None:
    held = view(active=execution())
    assert isinstance(step_of(view=held, pods=[pod(gates=(FENCE,))]), w.DeletePod)
    assert isinstance(
        step_of(view=held, pods=[pod(**bound())], sightings=sees(node())), w.DeletePod
    )


def test_a_cancelled_execution_without_a_pod_is_retired_and_the_row_fails() -> None:
    step = step_of(view=view(active=execution(prior_pin=None)))
    assert isinstance(step, w.Retire)
    assert (step.outcome, step.row_state) == (Outcome.CANCELLED, SandboxState.FAILED)


def test_a_running_sandbox_survives_the_deletion_of_its_finished_restore() -> None:
    up = execution(loaded_at=ago(50), released_at=ago(49), node_name="n1")
    running = pod(**bound(ready=True), owner_uids=(), finalizers=())
    assert step_of(view=view(active=up), pods=[running], sightings=sees(node())) is None


def test_a_loaded_sandbox_whose_pod_ends_unreported_is_lost_with_pin_and_marker() -> None:
    up = execution(loaded_at=ago(50), released_at=ago(49), node_name="n1")
    row = {"pinned_node": "n1", "local_artifact_marker": True}
    over = pod(**ended(), owner_uids=(), finalizers=())
    step = step_of(view=view(active=up, row=row), pods=[over])
    assert isinstance(step, w.Retire)
    assert (step.outcome, step.row_state) == (Outcome.LOST, SandboxState.SUSPENDED)
    assert (step.pinned_node, step.marker) == ("n1", True)


def test_a_released_pod_of_a_retired_execution_goes_once_it_is_terminal() -> None:
    over = execution(outcome=Outcome.SUSPENDED, loaded_at=ago(50), released_at=ago(49))
    still = pod(**bound(), owner_uids=(), finalizers=())
    ended_pod = pod(**ended(), owner_uids=(), finalizers=())
    held = view(attempts=[over])
    assert step_of(view=held, pods=[still], sightings=sees(node())) is None
    assert isinstance(step_of(view=held, pods=[ended_pod]), w.DeletePod)


# --- section 15: pins after a failed attempt


def retire_of(source: Source = Source.STORAGE, **fields: Any) -> w.Retire:
    pinned = "p0" if source is Source.LOCAL else None
    run = execution(source=source, target_node=pinned, prior_pin="p0")
    step = step_of(
        restore(),
        view=view(active=run, row={"pinned_node": pinned}),
        pods=[pod(**fields)],
        sightings=sees(node(), node("p0")),
        seen_terminal=seen(3600),
    )
    assert isinstance(step, w.Retire)
    return step


def test_cpu_incompatible_pins_the_row_to_the_node_that_refused() -> None:
    step = retire_of(**ended(INCOMPATIBLE))
    assert (step.failure_class, step.pinned_node) == ("cpu-incompatible", "n1")
    assert step.outcome is Outcome.FAILED


def test_another_failure_that_the_runner_reported_leaves_the_pin_as_it_was() -> None:
    step = retire_of(
        **ended("Failed to open snapshot file: No such file or directory (os error 2)")
    )
    assert (step.failure_class, step.pinned_node, step.outcome) == (
        "missing",
        "p0",
        Outcome.FAILED,
    )


def test_a_container_that_never_started_leaves_the_pin_as_it_was() -> None:
    never = bound(phase="Failed", reason="NodeAffinity", runner_started=False)
    step = retire_of(**never)
    assert (step.failure_class, step.pinned_node) == ("disrupted", "p0")


def test_ended_without_the_runners_word_pins_to_that_node_without_a_marker() -> None:
    step = retire_of(**ended("", exit_code=137))
    assert (step.outcome, step.pinned_node, step.marker) == (Outcome.LOST, "n1", False)


def test_a_failed_local_only_attempt_stays_pinned() -> None:
    step = retire_of(Source.LOCAL, **ended(INCOMPATIBLE))
    assert step.pinned_node == "p0"


# --- attempts, limits, clocks


def failed(attempt: int, failure: str = "unknown", **fields: Any) -> Any:
    return execution(
        f"e{attempt}",
        attempt=attempt,
        outcome=Outcome.FAILED,
        failure_class=failure,
        failure_message="words",
        node_name="n1",
        retired_at=ago(600),
        **fields,
    )


def test_backoff_limit_counts_failed_attempts_and_ends_the_restore() -> None:
    attempts = [failed(1), failed(2)]
    row = {"state": SandboxState.RESTORING}
    ends = said_of("r1", restore(backoff_limit=2), view=view(attempts=attempts, row=row))
    assert (ends.succeeded, ends.reason) == (False, "BackoffLimitExceeded")
    goes_on = step_of(restore(backoff_limit=3), view=view(attempts=attempts, row=row))
    assert isinstance(goes_on, w.BeginAttempt)
    assert goes_on.attempt == 3


def test_superseded_and_disrupted_attempts_do_not_count() -> None:
    attempts = [
        execution("e1", attempt=1, outcome=Outcome.SUPERSEDED),
        failed(2, "disrupted"),
        failed(3),
    ]
    row = {"state": SandboxState.RESTORING}
    step = step_of(restore(backoff_limit=2), view=view(attempts=attempts, row=row))
    assert isinstance(step, w.BeginAttempt)


def test_a_usage_error_ends_at_once_and_unreadable_after_a_second_try() -> None:
    row = {"state": SandboxState.RESTORING}
    usage = said_of("r1", restore(), view=view(attempts=[failed(1, "usage")], row=row))
    once = step_of(restore(), view=view(attempts=[failed(1, "unreadable")], row=row))
    attempts = [failed(1, "unreadable"), failed(2, "unreadable")]
    twice = said_of("r1", restore(), view=view(attempts=attempts, row=row))
    assert usage.reason == "RunnerUsageError"
    assert isinstance(once, w.BeginAttempt)
    assert twice.reason == "SnapshotUnreadable"


def test_a_local_only_plan_that_its_node_refused_ends_stranded() -> None:
    row = {"state": SandboxState.RESTORING, "pinned_node": "n1"}
    attempts = [failed(1, "cpu-incompatible", source=Source.LOCAL, target_node="n1")]
    said = said_of("r1", restore(), view=view(attempts=attempts, row=row))
    assert (said.succeeded, said.reason) == (False, "Stranded")


def test_the_next_attempt_waits_for_its_backoff() -> None:
    just = execution("e1", outcome=Outcome.FAILED, failure_class="unknown", retired_at=NOW)
    row = {"state": SandboxState.RESTORING}
    got = plan(world(restore(), view=view(attempts=[just], row=row)))
    assert (got.step, got.said["r1"].reason) == (None, "Retrying")
    assert got.recheck_at is not None
    assert got.recheck_at > NOW


def test_the_row_fails_with_its_last_attempt() -> None:
    run = execution(attempt=1)
    step = step_of(
        restore(backoff_limit=1), view=view(active=run), pods=[pod(**ended("exit status 1"))]
    )
    assert isinstance(step, w.Retire)
    assert step.row_state is SandboxState.FAILED


def test_at_the_deadline_the_restore_fails_and_its_pod_is_deleted() -> None:
    late = restore(created=ago(700))
    got = plan(
        world(late, view=view(active=execution()), pods=[pod(**bound())], sightings=sees(node()))
    )
    assert (got.said["r1"].succeeded, got.said["r1"].reason) == (False, "DeadlineExceeded")
    assert isinstance(got.step, w.DeletePod)


def test_a_loaded_attempt_is_past_its_deadline_for_nobody() -> None:
    late = restore(created=ago(700))
    loaded = execution(loaded_at=ago(1))
    step = step_of(
        late, view=view(active=loaded), pods=[pod(**bound(ready=True))], sightings=sees(node())
    )
    assert isinstance(step, w.Release)


def test_a_finished_restore_is_deleted_when_its_time_to_live_is_over() -> None:
    old = finished(completed=ago(4000))
    assert isinstance(step_of(old, view=view()), w.DeleteRestore)
    young = finished(completed=ago(100))
    got = plan(world(young, view=view()))
    assert got.step is None
    assert got.recheck_at is not None


def test_a_restoring_row_whose_restore_is_finished_or_gone_fails() -> None:
    stale = view(
        row={"state": SandboxState.RESTORING}, attempts=[execution(outcome=Outcome.CANCELLED)]
    )
    assert isinstance(step_of(view=stale), w.FailRow)
    assert isinstance(step_of(finished(succeeded=False), view=stale), w.FailRow)


# --- section 15: could a pod be hosting a live VM


def blocked_by(held: Any, sightings: Any) -> w.Plan:
    retired = execution(outcome=Outcome.FAILED, failure_class="unknown", retired_at=ago(600))
    row = {"state": SandboxState.RESTORING}
    return plan(
        world(restore(), view=view(attempts=[retired], row=row), pods=[held], sightings=sightings)
    )


def test_no_attempt_begins_while_a_pod_could_be_hosting_a_live_vm() -> None:
    got = blocked_by(pod(**bound(), deleted_at=ago(5)), sees(node()))
    assert (got.step, got.said["r1"].reason) == (None, "PreviousPodMayBeAlive")


def failed_without_report(**fields: Any) -> Any:
    return pod(**bound(phase="Failed", reason="NodeAffinity", **fields))


def seen(seconds: float) -> dict[str, Any]:
    """When this process first saw the pod terminal."""
    return {"uid-wake-r1-1": ago(seconds)}


def test_failed_written_on_a_pod_is_no_proof_that_its_vm_is_gone() -> None:
    held = view(active=execution())
    lost = sees(node(ready=False, ready_since=None))
    got = plan(world(restore(), view=held, pods=[failed_without_report()], sightings=lost))
    assert (got.step, got.said["r1"].reason) == (None, "PreviousPodMayBeAlive")
    assert OUT_OF_SERVICE_TAINT in got.said["r1"].message


def test_an_unknown_container_status_is_no_report() -> None:
    held = view(active=execution())
    fields = ended("", reason="ContainerStatusUnknown", exit_code=137)
    lost = sees(node(ready=False, ready_since=None))
    assert step_of(restore(), view=held, pods=[pod(**fields)], sightings=lost) is None


def test_a_node_that_was_ready_long_enough_since_the_end_was_seen_is_proof() -> None:
    held = view(active=execution())
    over = failed_without_report(created=ago(7200))
    for seconds, proven in ((40, False), (61, True)):
        step = step_of(
            restore(), view=held, pods=[over], sightings=sees(node()), seen_terminal=seen(seconds)
        )
        assert isinstance(step, w.Retire) is proven


def test_no_time_in_a_pods_status_tells_how_long_its_vm_is_gone() -> None:
    # A kubelet that rejects a running pod drops its conditions: only the creation is left.
    rejected = failed_without_report(created=ago(7200), scheduled_at=None, runner_started=False)
    assert (
        step_of(restore(), view=view(active=execution()), pods=[rejected], sightings=sees(node()))
        is None
    )


def test_a_node_that_became_ready_only_now_is_no_proof_yet() -> None:
    fresh = sees(node(ready_since=ago(5)))
    got = plan(
        world(
            restore(),
            view=view(active=execution()),
            pods=[failed_without_report()],
            sightings=fresh,
            seen_terminal=seen(600),
        )
    )
    assert got.step is None
    assert got.recheck_at is not None


def test_out_of_service_is_proof_whatever_the_pod_says() -> None:
    held = view(active=execution())
    dead = node(
        ready=False, ready_since=None, taints=(Taint(OUT_OF_SERVICE_TAINT, "", "NoExecute"),)
    )
    step = step_of(restore(), view=held, pods=[pod(**bound())], sightings=sees(dead))
    assert isinstance(step, w.Retire)


def test_a_node_is_gone_only_after_the_grace_period() -> None:
    held = view(active=execution())
    for since, proven in ((ago(10), False), (ago(301), True)):
        step = step_of(
            restore(), view=held, pods=[pod(**bound())], sightings=absent("n1", since=since)
        )
        assert isinstance(step, w.Retire) is proven


def test_a_node_recreated_under_the_same_name_is_another_node() -> None:
    young = node(uid="other", created=ago(3), ready_since=ago(3))
    older = node(uid="other", created=ago(500), ready_since=ago(499))
    recorded = view(active=execution(node_uid="uid-n1", loaded_at=ago(900), node_name="n1"))
    for other, proven in ((young, False), (older, True)):
        step = step_of(
            restore(),
            view=recorded,
            pods=[failed_without_report(ready=False)],
            sightings=sees(other),
            seen_terminal=seen(300),
        )
        assert isinstance(step, w.Retire) is proven


def test_a_pod_that_runs_on_is_alive_although_its_node_registered_anew() -> None:
    recorded = view(active=execution(node_uid="uid-n1", loaded_at=ago(900), node_name="n1"))
    again = sees(node(uid="other", created=ago(500), ready_since=ago(499)))
    step = step_of(restore(), view=recorded, pods=[pod(**bound(ready=True))], sightings=again)
    assert not isinstance(step, w.Retire)


@pytest.mark.parametrize("over", [False, True])
def test_a_node_registered_anew_that_does_not_speak_is_no_proof(over: bool) -> None:
    """The same machine may have registered again and lost contact since, its VM still running."""
    recorded = view(active=execution(node_uid="uid-n1", loaded_at=ago(900), node_name="n1"))
    silent = node(uid="other", created=ago(5000), ready=False, ready_since=None)
    held = failed_without_report() if over else pod(**bound(ready=True))
    got = plan(
        world(
            restore("r2"),
            view=recorded,
            pods=[held],
            sightings=sees(silent),
            seen_terminal=seen(4000),
        )
    )
    assert not isinstance(got.step, w.Retire)
    dead = node(
        uid="other",
        created=ago(5000),
        ready=False,
        ready_since=None,
        taints=(Taint(OUT_OF_SERVICE_TAINT, "", "NoExecute"),),
    )
    step = step_of(
        restore("r2"),
        view=recorded,
        pods=[held],
        sightings=sees(dead),
        seen_terminal=seen(4000),
    )
    assert isinstance(step, w.Retire)


def test_a_released_pod_that_is_gone_is_judged_by_its_node() -> None:
    up = execution(loaded_at=ago(900), released_at=ago(899), node_name="n1", node_uid="uid-n1")
    row = {"pinned_node": "n1", "local_artifact_marker": True}
    for gone, proven in ((ago(10), False), (ago(61), True)):
        got = plan(
            world(
                view=view(active=up, row=row),
                sightings=sees(node()),
                gone_since={"wake-r1-1": gone},
            )
        )
        assert isinstance(got.step, w.Retire) is proven


@pytest.mark.parametrize(("gone", "proven"), [(61, False), (630, False), (631, True)])
def test_a_pod_that_is_gone_gets_the_time_that_its_template_gives(gone: int, proven: bool) -> None:
    up = execution(loaded_at=ago(900), released_at=ago(899), node_name="n1", node_uid="uid-n1")
    step = step_of(
        view=view(active=up),
        sightings=sees(node()),
        gone_since={"wake-r1-1": ago(gone)},
        config=w.PlannerConfig(pod_grace_seconds=601),
    )
    assert isinstance(step, w.Retire) is proven


def test_a_reported_end_outlives_the_released_pod_that_is_gone() -> None:
    up = execution(
        loaded_at=ago(900), released_at=ago(899), node_name="n1", pod_uid="uid-wake-r1-1"
    )
    seen = {"wake-r1-1": pod(**ended())}
    step = step_of(view=view(active=up), sightings=sees(node()), ended_pods=seen)
    assert isinstance(step, w.Retire)
    other = {"wake-r1-1": pod(**ended(), uid="another")}
    assert step_of(view=view(active=up), sightings=sees(node()), ended_pods=other) is None


def test_a_look_that_time_calls_for_is_taken_also_when_no_restore_waits() -> None:
    up = execution(loaded_at=ago(900), released_at=ago(899), node_name="n1", node_uid="uid-n1")
    got = plan(world(view=view(active=up), sightings=sees(node()), gone_since={"wake-r1-1": NOW}))
    assert got.step is None
    assert got.recheck_at is not None


@pytest.mark.parametrize("edited", ["annotations", "labels"])
def test_what_a_user_edits_on_a_running_pod_ends_nothing(edited: str) -> None:
    up = execution(
        loaded_at=ago(900), released_at=ago(899), node_name="n1", pod_uid="uid-wake-r1-1"
    )
    running = pod(**bound(ready=True), owner_uids=(), finalizers=(), **{edited: {}})
    assert step_of(view=view(active=up), pods=[running], sightings=sees(node())) is None


def test_a_pod_recreated_under_the_name_of_a_recorded_one_is_another_pod() -> None:
    up = execution(loaded_at=ago(900), released_at=ago(899), node_name="n1", pod_uid="first")
    other = pod(**ended(), owner_uids=(), finalizers=())
    lost = sees(node(ready=False, ready_since=None))
    assert not isinstance(step_of(view=view(active=up), pods=[other], sightings=lost), w.Retire)


def test_a_pause_that_has_just_ended_is_no_time_of_the_deadline() -> None:
    status = {"suspended_at": ago(7200), "start_time": ago(7300)}
    resumed = restore(created=ago(7300), status=status, active_deadline_seconds=600)
    assert isinstance(step_of(resumed, view=view()), w.BeginAttempt)


def test_a_ready_pod_is_recorded_as_loaded_before_its_cancelled_restore_takes_it_back() -> None:
    step = step_of(
        view=view(active=execution()), pods=[pod(**bound(ready=True))], sightings=sees(node())
    )
    assert isinstance(step, w.MarkLoaded)


def test_a_restore_whose_release_is_recorded_has_succeeded_even_if_its_pod_is_gone() -> None:
    up = execution(loaded_at=ago(9), released_at=ago(8), node_name="n1")
    assert said_of("r1", restore(), view=view(active=up), sightings=sees(node())).succeeded is True


def test_a_follower_does_not_succeed_before_the_pod_is_released() -> None:
    up = execution(loaded_at=ago(2), node_name="n1")
    said = said_of(
        "r2",
        restore("r1"),
        restore("r2"),
        view=view(active=up),
        pods=[pod(**bound(ready=True))],
        sightings=sees(node()),
    )
    assert said.succeeded is None


def test_no_execution_is_retired_while_another_pod_of_the_sandbox_could_be_alive() -> None:
    other = pod("wake-r0-1", execution_id="e0", **bound(), owner_uids=(), finalizers=())
    over = pod(**ended(INCOMPATIBLE))
    step = step_of(
        restore(), view=view(active=execution()), pods=[over, other], sightings=sees(node())
    )
    assert not isinstance(step, w.Retire)


def test_a_local_only_plan_names_the_newest_snapshot_also_while_it_uploads_or_has_failed() -> None:
    for state, captured in ((SnapshotState.UPLOADING, None), (SnapshotState.FAILED, ago(5))):
        newest = snapshot("s2", state=state, captured_at=captured)
        held = view(row={"pinned_node": "n1"}, snapshots=[snapshot(), newest])
        assert step_of(restore(), view=held).snapshot.id == "s2"


def test_a_time_that_has_passed_calls_for_no_look_by_itself() -> None:
    late = restore(created=ago(5000), active_deadline_seconds=60)
    loaded = execution(loaded_at=ago(4990))
    lost = sees(node(ready=False, ready_since=None))
    got = plan(
        world(late, view=view(active=loaded), pods=[failed_without_report()], sightings=lost)
    )
    assert got.recheck_at is None


def test_a_placement_that_must_wait_makes_no_attempt() -> None:
    hold = w.Hold(reason="PlacementHeld", message="no loader is reachable")
    got = plan(world(restore(), view=view(), hold_for=lambda _r, _c: hold))
    assert (got.step, got.said["r1"].reason) == (None, "PlacementHeld")
    assert got.said["r1"].succeeded is None


def test_a_pod_that_can_never_be_rendered_ends_the_restore() -> None:
    hold = w.Hold(reason="NodeSelectorConflict", message="a=b against a=c", final=True)
    said = said_of("r1", restore(), view=view(), hold_for=lambda _r, _c: hold)
    assert (said.succeeded, said.reason) == (False, "NodeSelectorConflict")
