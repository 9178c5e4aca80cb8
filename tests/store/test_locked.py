"""Section 15: what the operator writes under the row's lock, one statement each."""

from __future__ import annotations

from typing import Any

import pytest

from sandbox_restore.errors import ConflictError, RejectedError
from sandbox_restore.model.sandbox import LoadResult, Outcome, SandboxState, SandboxView, Source
from sandbox_restore.store.locked import LockedSandbox
from sandbox_restore.store.store import Store
from tests.store.helpers import NAMESPACE_UID, SANDBOX, Database, at, begin, load

RESTORING, FAILED = SandboxState.RESTORING, SandboxState.FAILED


@pytest.fixture
async def box(db: Database) -> Database:
    """A sandbox that nothing is pinned to, with a snapshot in storage."""
    await db.created()
    await db.stored()
    return db


@pytest.fixture
async def pinned(box: Database) -> Database:
    """The same after a run on node-a; its marker is gone since storage holds everything."""
    await box.started()
    await box.suspended()
    return box


async def retire(locked: LockedSandbox, attempt: int = 1, **more: Any) -> SandboxView:
    arguments: dict[str, Any] = {
        "execution_id": f"execution-{attempt}",
        "outcome": Outcome.FAILED,
        "row_state": RESTORING,
        "pinned_node": None,
        "marker": False,
        "now": at(120),
    }
    return await locked.retire(**{**arguments, **more})


# --- begin_attempt


async def test_an_attempt_begins_with_an_active_execution_and_a_restoring_row(
    box: Database, store: Store
) -> None:
    async with store.locked(SANDBOX, restore_uids=["restore-uid"]) as locked:
        view = await begin(locked)
        assert locked.view == view
    row, run = view.sandbox, view.active
    assert (row.state, row.restore_started_at) == (RESTORING, at(100))
    assert row.namespace_uid == NAMESPACE_UID
    assert run is not None
    assert (run.attempt, run.source, run.snapshot_id, run.gate) == (1, Source.STORAGE, "snap", True)
    assert (run.restore_uid, run.restore_name, run.pod_name) == ("restore-uid", "wake", "wake-1")
    assert (run.prior_pin, run.pod_uid, run.loaded_at) == (None, None, None)
    assert view.attempts == (run,)
    assert await store.view(SANDBOX, restore_uids=["restore-uid"]) == view


async def test_a_local_attempt_keeps_the_pin_and_its_target(pinned: Database, store: Store) -> None:
    async with store.locked(SANDBOX) as locked:
        view = await begin(locked, source=Source.LOCAL, target_node="node-a", snapshot_id=None)
    assert view.sandbox.pinned_node == "node-a"
    assert view.active is not None
    assert (view.active.target_node, view.active.prior_pin) == ("node-a", "node-a")


async def test_a_redirect_takes_the_pin_and_keeps_it_in_the_execution(
    pinned: Database, store: Store
) -> None:
    async with store.locked(SANDBOX) as locked:
        view = await begin(locked, clear_pin=True)
    assert view.sandbox.pinned_node is None
    assert view.active is not None
    assert view.active.prior_pin == "node-a"


async def test_a_redirect_never_drops_a_marker(box: Database, store: Store) -> None:
    await box.started()
    await box.suspended(second=30)
    with pytest.raises(RejectedError, match="sandbox_marker_needs_pin"):
        async with store.locked(SANDBOX) as locked:
            await begin(locked, clear_pin=True)
    assert (await box.view()).sandbox.local_artifact_marker


async def test_the_restoring_began_with_the_first_attempt(box: Database, store: Store) -> None:
    async with store.locked(SANDBOX) as locked:
        await begin(locked, 1, now=at(100))
        await retire(locked, 1)
        view = await begin(locked, 2, now=at(200))
    assert view.sandbox.restore_started_at == at(100)


async def test_the_restoring_begins_anew_after_a_failure(box: Database, store: Store) -> None:
    async with store.locked(SANDBOX) as locked:
        await begin(locked, 1, now=at(100))
        await retire(locked, 1, row_state=FAILED)
        view = await begin(locked, 2, now=at(200))
    assert view.sandbox.restore_started_at == at(200)


@pytest.mark.parametrize(
    "second",
    [{}, {"restore_uid": "another"}, {"source": Source.LOCAL, "target_node": "n"}],
)
async def test_no_attempt_begins_while_one_is_active(
    box: Database, store: Store, second: dict[str, Any]
) -> None:
    async with store.locked(SANDBOX) as locked:
        await begin(locked, 1)
    before = await box.view()
    with pytest.raises(ConflictError, match="execution_one_active_per_sandbox"):
        async with store.locked(SANDBOX) as locked:
            await begin(locked, 2, **second)
    assert await box.view() == before


async def test_no_attempt_begins_while_the_row_says_running(box: Database, store: Store) -> None:
    await box.started()
    with pytest.raises(ConflictError, match="is running"):
        async with store.locked(SANDBOX) as locked:
            await begin(locked)


async def test_the_same_attempt_begins_once(box: Database, store: Store) -> None:
    async with store.locked(SANDBOX) as locked:
        await begin(locked, 1)
        await retire(locked, 1)
    for change in ({}, {"execution_id": "another"}):
        with pytest.raises(ConflictError, match=r"execution_pkey|execution_attempt_once"):
            async with store.locked(SANDBOX) as locked:
                await begin(locked, 1, **change)


async def test_a_namespace_of_the_same_name_owns_nothing(box: Database, store: Store) -> None:
    async with store.locked(SANDBOX) as locked:
        await begin(locked, 1)
        await retire(locked, 1)
    with pytest.raises(ConflictError, match="earlier namespace"):
        async with store.locked(SANDBOX) as locked:
            await begin(locked, 2, namespace_uid="re-created")


async def test_no_attempt_begins_from_a_snapshot_of_another_sandbox(
    box: Database, store: Store
) -> None:
    await box.created("neighbour")
    await box.call("snapshot_started", sandbox_id="neighbour", snapshot_id="theirs")
    with pytest.raises(RejectedError, match="execution_snapshot_of_same_sandbox"):
        async with store.locked(SANDBOX) as locked:
            await begin(locked, snapshot_id="theirs")


async def test_no_attempt_begins_without_a_row(db: Database, store: Store) -> None:
    with pytest.raises(ConflictError, match="the row is gone"):
        async with store.locked("nobody") as locked:
            await begin(locked)


# --- mark_loaded


async def test_a_loaded_execution_makes_the_row_running_pinned_and_marked(
    box: Database, store: Store
) -> None:
    async with store.locked(SANDBOX) as locked:
        await begin(locked)
        view = await load(locked)
    row, run = view.sandbox, view.active
    assert (row.state, row.pinned_node, row.local_artifact_marker) == ("running", "node-b", True)
    assert row.restore_started_at is None
    assert run is not None
    assert (run.pod_uid, run.node_name, run.node_uid) == ("pod-of-1", "node-b", "node-b-uid")
    assert (run.node_cpu, run.loaded_at) == ("amd-25-17-1", at(110))
    assert view.newest_loaded == run


async def test_a_node_without_a_label_is_a_node_without_a_cpu(box: Database, store: Store) -> None:
    async with store.locked(SANDBOX) as locked:
        await begin(locked)
        view = await load(locked, node_cpu=None, node_uid=None)
    assert view.active is not None
    assert (view.active.node_cpu, view.active.node_uid) == (None, None)


async def test_loading_twice_changes_nothing(box: Database, store: Store) -> None:
    async with store.locked(SANDBOX) as locked:
        await begin(locked)
        first = await load(locked)
        assert await load(locked, pod_uid="other", node_name="other", now=at(999)) == first


async def test_a_retired_execution_is_not_loaded_any_more(box: Database, store: Store) -> None:
    async with store.locked(SANDBOX) as locked:
        await begin(locked)
        retired = await retire(locked)
        assert await load(locked) == retired


async def test_a_load_is_observed(box: Database, store: Store) -> None:
    async with store.locked(SANDBOX) as locked:
        await begin(locked, capture_cpu="intel-6-106-6")
        await load(locked)
    (seen,) = await store.observations(at(0))
    assert (seen.result, seen.capture_cpu) == (LoadResult.LOADED, "intel-6-106-6")
    assert (seen.node_name, seen.node_cpu, seen.snapshot_id) == ("node-b", "amd-25-17-1", "snap")


async def test_an_unknown_execution_is_a_conflict(box: Database, store: Store) -> None:
    await box.created("neighbour")
    async with store.locked(SANDBOX) as locked:
        await begin(locked)
    for sandbox_id, execution in (("neighbour", 1), (SANDBOX, 2)):
        with pytest.raises(ConflictError, match="has no execution"):
            async with store.locked(sandbox_id) as locked:
                await load(locked, execution)


# --- retire


async def test_a_retired_execution_keeps_what_was_known_of_it(box: Database, store: Store) -> None:
    async with store.locked(SANDBOX) as locked:
        await begin(locked)
        view = await retire(
            locked,
            failure_class="host",
            failure_message="no KVM",
            pod_uid="pod-of-1",
            node_name="node-b",
            node_uid="node-b-uid",
            node_cpu="amd-25-17-1",
            row_state=FAILED,
            pinned_node="node-b",
        )
    row, run = view.sandbox, view.newest
    assert (row.state, row.pinned_node, row.restore_started_at) == (FAILED, "node-b", None)
    assert view.active is None
    assert run is not None
    assert (run.outcome, run.failure_class, run.failure_message) == ("failed", "host", "no KVM")
    assert (run.pod_uid, run.node_name, run.retired_at) == ("pod-of-1", "node-b", at(120))


async def test_what_the_load_recorded_outlives_the_retirement(box: Database, store: Store) -> None:
    async with store.locked(SANDBOX) as locked:
        await begin(locked)
        await load(locked)
        view = await retire(
            locked,
            outcome=Outcome.LOST,
            row_state=SandboxState.SUSPENDED,
            node_name="node-x",
            pod_uid="pod-x",
            pinned_node="node-b",
            marker=True,
        )
    assert view.newest is not None
    assert (view.newest.node_name, view.newest.pod_uid) == ("node-b", "pod-of-1")
    assert view.sandbox.local_artifact_marker


@pytest.mark.parametrize("row_state", [RESTORING, FAILED, SandboxState.SUSPENDED])
async def test_only_a_restoring_row_keeps_when_it_began(
    box: Database, store: Store, row_state: SandboxState
) -> None:
    async with store.locked(SANDBOX) as locked:
        await begin(locked)
        row = (await retire(locked, row_state=row_state)).sandbox
    assert row.restore_started_at == (at(100) if row_state is RESTORING else None)


async def test_an_execution_is_retired_exactly_once(box: Database, store: Store) -> None:
    async with store.locked(SANDBOX) as locked:
        await begin(locked)
        first = await retire(locked)
        again = await retire(
            locked, outcome=Outcome.LOST, row_state=FAILED, pinned_node="n", marker=True
        )
    assert again == first


async def test_a_retirement_never_undoes_the_platforms_suspend(box: Database, store: Store) -> None:
    async with store.locked(SANDBOX) as locked:
        await begin(locked)
        await load(locked)
    await box.suspended("pod-of-1", node="node-b", second=115)
    before = await box.view()
    async with store.locked(SANDBOX) as locked:
        assert await retire(locked, outcome=Outcome.LOST) == before


@pytest.mark.parametrize(
    "change", [{"outcome": Outcome.SUSPENDED}, {"row_state": SandboxState.RUNNING}]
)
async def test_the_operator_neither_suspends_nor_leaves_a_row_running(
    box: Database, store: Store, change: dict[str, Any]
) -> None:
    async with store.locked(SANDBOX) as locked:
        await begin(locked)
    with pytest.raises(RejectedError, match="not the operator's to write"):
        async with store.locked(SANDBOX) as locked:
            await retire(locked, **change)


@pytest.mark.parametrize(
    ("change", "stored"),
    [
        ({"failure_class": "cpu-incompatible", "node_name": "node-b"}, True),
        ({"failure_class": "cpu-incompatible"}, False),
        ({"failure_class": "host", "node_name": "node-b"}, False),
        ({"failure_class": None, "node_name": "node-b"}, False),
    ],
)
async def test_only_a_refusal_for_the_cpu_on_a_known_node_is_evidence(
    box: Database, store: Store, change: dict[str, Any], stored: bool
) -> None:
    async with store.locked(SANDBOX) as locked:
        await begin(locked)
        view = await retire(locked, **change)
    assert len(view.refusals) == len(await store.observations(at(0))) == int(stored)


@pytest.mark.parametrize("message", ["a\0b", "\ud800", "\x1b[31mred\x1b[0m", "x" * 100_000])
async def test_whatever_a_runner_says_can_be_stored(
    box: Database, store: Store, message: str
) -> None:
    async with store.locked(SANDBOX) as locked:
        await begin(locked)
        view = await retire(locked, failure_class="unknown", failure_message=message)
    assert view.newest is not None
    assert view.newest.failure_message


async def test_a_retirement_may_not_mark_a_row_without_a_pin(box: Database, store: Store) -> None:
    async with store.locked(SANDBOX) as locked:
        await begin(locked)
    with pytest.raises(RejectedError, match="sandbox_marker_needs_pin"):
        async with store.locked(SANDBOX) as locked:
            await retire(locked, marker=True)


# --- fail_row, set_marker, clear_marker


async def test_a_restoring_row_without_an_execution_fails(box: Database, store: Store) -> None:
    async with store.locked(SANDBOX) as locked:
        await begin(locked)
        await retire(locked)
        row = (await locked.fail_row(at(130))).sandbox
    assert (row.state, row.restore_started_at) == (FAILED, None)


async def test_a_row_with_an_active_execution_does_not_fail(box: Database, store: Store) -> None:
    async with store.locked(SANDBOX) as locked:
        begun = await begin(locked)
        assert await locked.fail_row(at(130)) == begun


async def test_a_restoring_that_the_caller_has_not_seen_does_not_fail(
    box: Database, store: Store
) -> None:
    async with store.locked(SANDBOX) as locked:
        await begin(locked, now=at(100))
        retired = await retire(locked)
        assert await locked.fail_row(at(99)) == retired


async def test_no_other_row_fails(pinned: Database, store: Store) -> None:
    before = await pinned.view()
    async with store.locked(SANDBOX) as locked:
        assert await locked.fail_row(at(130)) == before


async def test_the_marker_is_set_and_cleared_and_nothing_else(
    pinned: Database, store: Store
) -> None:
    before = (await pinned.view()).sandbox
    async with store.locked(SANDBOX) as locked:
        marked = (await locked.set_marker()).sandbox
        cleared = (await locked.clear_marker()).sandbox
        again = (await locked.clear_marker()).sandbox
    assert (before.local_artifact_marker, marked.local_artifact_marker) == (False, True)
    assert cleared == again
    assert (cleared.state, cleared.pinned_node) == (before.state, before.pinned_node)
    assert not cleared.local_artifact_marker


async def test_a_row_without_a_pin_cannot_be_marked(box: Database, store: Store) -> None:
    with pytest.raises(RejectedError, match="sandbox_marker_needs_pin"):
        async with store.locked(SANDBOX) as locked:
            await locked.set_marker()
