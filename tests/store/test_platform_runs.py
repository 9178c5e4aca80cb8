"""Section 15: what the platform reports of sandboxes and their runs."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from sandbox_restore.model.sandbox import Outcome, SandboxState, Source
from sandbox_restore.store.store import Store
from tests.store.helpers import NAMESPACE, SANDBOX, Database, at, begin, load


@pytest.fixture
async def box(db: Database) -> Database:
    await db.created()
    return db


# --- sandbox_created, sandbox_command, sandbox_access


async def test_a_created_sandbox_is_suspended_without_pin_and_marker(db: Database) -> None:
    first = await db.call(
        "sandbox_created",
        sandbox_id=SANDBOX,
        namespace=NAMESPACE,
        node_group="gpu",
        node_selector='{"disk": "nvme"}',
        namespace_uid="uid",
    )
    row = (await db.view()).sandbox
    assert first is True
    assert (row.state, row.pinned_node, row.local_artifact_marker) == ("suspended", None, False)
    assert (row.namespace, row.namespace_uid, row.node_group) == (NAMESPACE, "uid", "gpu")
    assert row.node_selector == {"disk": "nvme"}


async def test_creating_again_changes_nothing(box: Database) -> None:
    again = await box.call("sandbox_created", sandbox_id=SANDBOX, namespace=NAMESPACE)
    assert again is False
    assert (await box.view()).sandbox.version == 1


@pytest.mark.parametrize(
    "change", [{"namespace": "other"}, {"node_group": "g"}, {"node_selector": '{"a": "b"}'}]
)
async def test_an_id_is_never_reused_for_another_sandbox(
    box: Database, change: dict[str, Any]
) -> None:
    with pytest.raises(asyncpg.DuplicateObjectError, match="exists with another namespace"):
        await box.call(
            "sandbox_created", **{"sandbox_id": SANDBOX, "namespace": NAMESPACE} | change
        )


@pytest.mark.parametrize(
    ("function", "argument", "column"),
    [
        ("sandbox_command", "command_at", "last_command_at"),
        ("sandbox_access", "access_at", "last_access_at"),
    ],
)
async def test_recorded_activity_never_goes_back(
    box: Database, function: str, argument: str, column: str
) -> None:
    answers = [
        await box.call(function, sandbox_id=SANDBOX, **{argument: at(second)})
        for second in (5, 3, 5, 7)
    ]
    assert answers == [True, False, False, True]
    assert getattr((await box.view()).sandbox, column) == at(7)


@pytest.mark.parametrize("function", ["sandbox_command", "sandbox_access"])
async def test_activity_without_a_time_is_now(box: Database, function: str) -> None:
    assert await box.call(function, sandbox_id=SANDBOX) is True
    row = (await box.view()).sandbox
    assert (row.last_command_at or row.last_access_at) is not None


UNKNOWN: dict[str, dict[str, Any]] = {
    "sandbox_command": {},
    "sandbox_access": {},
    "execution_started": {"node_name": "n", "pod_name": "p", "pod_uid": "u"},
    "sandbox_suspended": {"node_name": "n", "pod_uid": "u"},
    "node_state_lost": {},
    "snapshot_started": {"snapshot_id": "s"},
    "snapshot_ready": {"snapshot_id": "s"},
    "snapshot_failed": {"snapshot_id": "s"},
}


@pytest.mark.parametrize("function", UNKNOWN)
@pytest.mark.parametrize("sandbox_id", ["nobody", None])
async def test_a_report_of_an_unknown_sandbox_is_an_error_that_says_so(
    box: Database, function: str, sandbox_id: str | None
) -> None:
    with pytest.raises(asyncpg.NoDataFoundError, match="does not exist") as caught:
        await box.call(function, sandbox_id=sandbox_id, **UNKNOWN[function])
    error: Any = caught.value
    assert error.hint == "report it with sandbox_created() first"


# --- execution_started


async def test_a_start_makes_the_row_running_pinned_and_marked(box: Database) -> None:
    execution = await box.started(node_uid="node-uid", node_cpu="amd-25-17-1")
    view = await box.view()
    assert (view.sandbox.state, view.sandbox.pinned_node) == (SandboxState.RUNNING, "node-a")
    assert view.sandbox.local_artifact_marker
    run = view.active
    assert run is not None
    assert view.newest == view.newest_loaded == run
    assert (run.id, run.source, run.attempt) == (execution, Source.PLATFORM, 0)
    assert (run.pod_name, run.pod_uid, run.node_name) == ("name-of-pod-1", "pod-1", "node-a")
    assert (run.node_uid, run.node_cpu) == ("node-uid", "amd-25-17-1")
    assert (run.created_at, run.loaded_at, run.released_at) == (at(10), at(10), None)


async def test_a_start_keeps_the_former_pin_in_the_execution(box: Database) -> None:
    await box.started()
    await box.suspended()
    await box.started("pod-2", node="node-b")
    view = await box.view()
    assert view.active is not None
    assert view.active.prior_pin == "node-a"
    assert view.sandbox.pinned_node == "node-b"


async def test_a_start_is_refused_while_an_execution_is_active(box: Database) -> None:
    await box.started()
    before = await box.view()
    with pytest.raises(asyncpg.ObjectInUseError, match='run by pod "name-of-pod-1"') as caught:
        await box.started("pod-2")
    error: Any = caught.value
    assert error.hint == "start nothing"
    assert await box.view() == before


async def test_a_start_is_refused_while_a_restore_is_under_way(box: Database, store: Store) -> None:
    await box.stored()
    async with store.locked(SANDBOX) as locked:
        await begin(locked)
    with pytest.raises(asyncpg.ObjectInUseError, match='run by pod "wake-1"'):
        await box.started()


async def test_a_start_that_is_reported_twice_is_one_execution(box: Database) -> None:
    first = await box.started()
    assert await box.started() == first
    assert (await box.view()).sandbox.version == 2


async def test_a_pod_that_has_run_the_sandbox_before_starts_nothing(box: Database) -> None:
    await box.started()
    await box.suspended()
    with pytest.raises(asyncpg.ObjectInUseError, match=r"has run sandbox .* before"):
        await box.started()


async def test_a_restore_pod_may_not_be_reported_as_the_platforms(
    box: Database, store: Store
) -> None:
    await box.stored()
    async with store.locked(SANDBOX) as locked:
        await begin(locked)
        await load(locked)
    with pytest.raises(asyncpg.ObjectInUseError, match='run by pod "wake-1"'):
        await box.started("pod-of-1")


async def test_a_start_between_two_attempts_ends_the_restoring(box: Database, store: Store) -> None:
    await box.stored()
    async with store.locked(SANDBOX) as locked:
        await begin(locked)
        await locked.retire(
            execution_id="execution-1",
            outcome=Outcome.FAILED,
            row_state=SandboxState.RESTORING,
            pinned_node=None,
            marker=False,
            now=at(120),
        )
    await box.started()
    row = (await box.view()).sandbox
    assert (row.state, row.restore_started_at) == (SandboxState.RUNNING, None)


@pytest.mark.parametrize("missing", ["node_name", "pod_name", "pod_uid"])
async def test_a_start_without_pod_or_node_is_an_error(box: Database, missing: str) -> None:
    arguments = {"node_name": "n", "pod_name": "p", "pod_uid": "u", missing: None}
    with pytest.raises(asyncpg.NullValueNotAllowedError, match="are required"):
        await box.call("execution_started", sandbox_id=SANDBOX, **arguments)


async def test_a_start_from_a_snapshot_of_another_sandbox_is_refused(box: Database) -> None:
    await box.created("neighbour")
    await box.call("snapshot_started", sandbox_id="neighbour", snapshot_id="theirs")
    with pytest.raises(asyncpg.ForeignKeyViolationError):
        await box.started(snapshot_id="theirs")


# --- sandbox_suspended


async def test_a_suspend_retires_the_execution_and_pins_the_row(box: Database) -> None:
    await box.started()
    assert await box.suspended() is True
    view = await box.view()
    row = view.sandbox
    assert (row.state, row.pinned_node) == (SandboxState.SUSPENDED, "node-a")
    assert row.local_artifact_marker
    assert view.active is None
    run = view.newest
    assert run is not None
    assert (run.outcome, run.suspended_at) == (Outcome.SUSPENDED, at(20))
    assert run.retired_at is not None


@pytest.mark.parametrize("pod_uid", ["pod-0", "pod-2"])
async def test_a_suspend_of_another_pod_changes_nothing(box: Database, pod_uid: str) -> None:
    await box.started()
    before = await box.view()
    assert await box.suspended(pod_uid) is False
    assert await box.view() == before


async def test_a_suspend_of_a_sandbox_that_never_ran_changes_nothing(box: Database) -> None:
    assert await box.suspended() is False
    assert (await box.view()).sandbox.version == 1


async def test_a_late_suspend_of_the_former_pod_changes_nothing(box: Database) -> None:
    await box.started("pod-1")
    await box.suspended("pod-1")
    await box.started("pod-2", node="node-b")
    before = await box.view()
    assert await box.suspended("pod-1") is False
    assert await box.view() == before


async def test_a_suspend_reported_twice_is_answered_alike_and_changes_nothing(
    box: Database,
) -> None:
    await box.started()
    await box.suspended()
    await box.stored()
    before = await box.view()
    assert await box.suspended(second=99) is True
    assert await box.view() == before


async def test_a_suspend_corrects_an_execution_that_was_given_up_as_lost(
    box: Database, store: Store
) -> None:
    await box.started()
    async with store.locked(SANDBOX) as locked:
        assert locked.view is not None
        assert locked.view.active is not None
        await locked.retire(
            execution_id=locked.view.active.id,
            outcome=Outcome.LOST,
            failure_class="unknown",
            failure_message="the pod ended",
            row_state=SandboxState.SUSPENDED,
            pinned_node="node-z",
            marker=False,
            now=at(30),
        )
    assert await box.suspended() is True
    view = await box.view()
    assert (view.sandbox.pinned_node, view.sandbox.local_artifact_marker) == ("node-a", True)
    run = view.newest
    assert run is not None
    assert (run.outcome, run.retired_at, run.suspended_at) == (Outcome.SUSPENDED, at(30), at(20))
    assert (run.failure_class, run.failure_message) == (None, None)


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.SUPERSEDED, Outcome.CANCELLED])
async def test_a_suspend_corrects_no_other_outcome(
    box: Database, store: Store, outcome: Outcome
) -> None:
    await box.stored()
    async with store.locked(SANDBOX) as locked:
        await begin(locked)
        await locked.retire(
            execution_id="execution-1",
            outcome=outcome,
            pod_uid="pod-1",
            node_name="node-a",
            row_state=SandboxState.FAILED,
            pinned_node=None,
            marker=False,
            now=at(120),
        )
    before = await box.view()
    assert await box.suspended(second=130) is False
    assert await box.view() == before


async def test_a_suspend_of_a_restored_pod_ends_the_restoring_row(
    box: Database, store: Store
) -> None:
    """The pod was never seen Ready, was given up as lost, and then its suspend is reported."""
    await box.stored()
    async with store.locked(SANDBOX) as locked:
        await begin(locked)
        await locked.retire(
            execution_id="execution-1",
            outcome=Outcome.LOST,
            pod_uid="pod-1",
            node_name="node-a",
            row_state=SandboxState.RESTORING,
            pinned_node="node-a",
            marker=False,
            now=at(120),
        )
    assert await box.suspended(second=115) is True
    view = await box.view()
    assert (view.sandbox.state, view.sandbox.restore_started_at) == ("suspended", None)
    assert view.newest_loaded is not None
    assert view.newest_loaded.loaded_at == at(115)


async def test_a_suspend_before_the_operator_has_recorded_the_pod_is_to_be_reported_again(
    box: Database, store: Store
) -> None:
    await box.stored()
    async with store.locked(SANDBOX) as locked:
        await begin(locked)
    before = await box.view()
    with pytest.raises(asyncpg.ObjectNotInPrerequisiteStateError) as caught:
        await box.suspended("pod-of-1", second=115)
    error: Any = caught.value
    assert error.hint == "report it again later"
    assert await box.view() == before
    async with store.locked(SANDBOX) as locked:
        await load(locked)
    assert await box.suspended("pod-of-1", node="node-b", second=115) is True


async def test_a_late_suspend_of_a_known_pod_is_no_guess_about_the_new_one(
    box: Database, store: Store
) -> None:
    await box.started("pod-1")
    await box.suspended("pod-1")
    await box.stored()
    async with store.locked(SANDBOX) as locked:
        await begin(locked)
    before = await box.view()
    assert await box.suspended("pod-1") is False
    assert await box.view() == before


async def test_a_suspend_is_never_taken_to_lie_before_its_execution_began(box: Database) -> None:
    """A node's slow clock must not make an older snapshot count as captured after it."""
    await box.started()
    await box.suspended(second=3)
    run = (await box.view()).newest
    assert run is not None
    assert run.suspended_at == at(10)


@pytest.mark.parametrize("missing", ["node_name", "pod_uid"])
async def test_a_suspend_without_node_or_pod_is_an_error(box: Database, missing: str) -> None:
    arguments = {"node_name": "n", "pod_uid": "u", missing: None}
    with pytest.raises(asyncpg.NullValueNotAllowedError, match="are required"):
        await box.call("sandbox_suspended", sandbox_id=SANDBOX, **arguments)


# --- node_state_lost


async def test_lost_state_takes_pin_and_marker(box: Database) -> None:
    await box.started()
    await box.suspended()
    assert await box.call("node_state_lost", sandbox_id=SANDBOX) is True
    row = (await box.view()).sandbox
    assert (row.pinned_node, row.local_artifact_marker) == (None, False)
    assert row.state is SandboxState.SUSPENDED


async def test_lost_state_may_be_reported_while_the_sandbox_is_said_to_run(box: Database) -> None:
    await box.started()
    await box.call("node_state_lost", sandbox_id=SANDBOX, node_name="node-a")
    view = await box.view()
    assert (view.sandbox.state, view.sandbox.pinned_node) == (SandboxState.RUNNING, None)
    assert view.active is not None


async def test_lost_state_of_another_node_changes_nothing(box: Database) -> None:
    await box.started()
    before = await box.view()
    assert await box.call("node_state_lost", sandbox_id=SANDBOX, node_name="node-z") is False
    assert await box.view() == before


async def test_lost_state_is_reported_once_and_again(box: Database) -> None:
    await box.started()
    assert await box.call("node_state_lost", sandbox_id=SANDBOX) is True
    assert await box.call("node_state_lost", sandbox_id=SANDBOX) is False


async def test_a_lost_pin_is_not_put_back_by_the_attempt_that_took_it(
    box: Database, store: Store
) -> None:
    await box.started()
    await box.suspended()
    await box.stored()
    async with store.locked(SANDBOX) as locked:
        await begin(locked, clear_pin=True)
    assert await box.call("node_state_lost", sandbox_id=SANDBOX, node_name="node-a") is True
    active = (await box.view()).active
    assert active is not None
    assert active.prior_pin is None
