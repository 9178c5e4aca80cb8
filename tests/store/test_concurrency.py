"""Sections 15 and 16: two at once are safe; every lock is followed by a fresh read."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from sandbox_restore.errors import ConflictError, UnavailableError
from sandbox_restore.model.sandbox import Outcome, SandboxState, SandboxView
from sandbox_restore.store.store import Store
from tests.store.helpers import SANDBOX, Database, at, begin, blocked, load

ROW_LOCK = "SELECT FROM sandbox_restore.sandbox WHERE id = 'box' FOR UPDATE"


@pytest.fixture
async def box(db: Database) -> Database:
    await db.created()
    await db.stored()
    return db


async def locked_view(store: Store) -> SandboxView | None:
    async with store.locked(SANDBOX, restore_uids=["restore-uid"]) as locked:
        return locked.view


async def test_the_view_after_a_contended_lock_shows_what_the_other_committed(
    box: Database, other: Database, store: Store
) -> None:
    holder = other.raw.transaction()
    await holder.start()
    await other.raw.execute(ROW_LOCK)
    waiting = asyncio.create_task(locked_view(store))
    await blocked(box)
    await other.started()
    await other.call("snapshot_started", sandbox_id=SANDBOX, snapshot_id="newer")
    await holder.commit()
    view = await waiting
    assert view is not None
    assert view.sandbox.state is SandboxState.RUNNING
    assert view.active is not None
    assert view.active.pod_uid == "pod-1"
    assert [s.id for s in view.snapshots] == ["newer", "snap"]
    assert view == await box.view()


async def test_one_plain_statement_would_not_have_seen_it(
    box: Database, other: Database, dsn: str
) -> None:
    """Why `operator_lock` is VOLATILE: a plain FOR UPDATE reads the rest as it was before."""
    naive = f"SELECT (SELECT count(*) FROM sandbox_restore.snapshot) FROM ({ROW_LOCK}) s"
    third = await asyncpg.connect(dsn)
    holder = other.raw.transaction()
    await holder.start()
    await other.raw.execute(ROW_LOCK)
    waiting = asyncio.create_task(third.fetchval(naive))
    await blocked(box)
    await other.call("snapshot_started", sandbox_id=SANDBOX, snapshot_id="newer")
    await holder.commit()
    assert await waiting == 1
    assert await third.fetchval(naive) == 2
    await third.close()


async def test_of_two_operators_one_begins_and_the_other_sees_it(
    box: Database, store: Store, dsn: str
) -> None:
    async with await Store.open(dsn) as second:
        async with store.locked(SANDBOX) as locked:
            waiting = asyncio.create_task(locked_view(second))
            await blocked(box)
            begun = await begin(locked)
        seen = await waiting
    assert seen is not None
    assert seen.active == begun.active
    assert [e.id for e in seen.attempts] == ["execution-1"]


async def test_an_operator_that_did_not_look_is_refused(
    box: Database, store: Store, dsn: str
) -> None:
    async def blind(second: Store) -> None:
        async with second.locked(SANDBOX) as locked:
            await begin(locked, 2)

    async with await Store.open(dsn) as second:
        async with store.locked(SANDBOX) as locked:
            waiting = asyncio.create_task(blind(second))
            await blocked(box)
            await begin(locked, 1)
        with pytest.raises(ConflictError, match="execution_one_active_per_sandbox"):
            await waiting


async def test_the_platform_is_refused_when_a_restore_came_first(
    box: Database, other: Database, store: Store
) -> None:
    async with store.locked(SANDBOX) as locked:
        waiting = asyncio.create_task(other.started())
        await blocked(box)
        await begin(locked)
    with pytest.raises(asyncpg.ObjectInUseError):
        await waiting


async def test_a_restore_sees_that_the_platform_came_first(
    box: Database, other: Database, store: Store
) -> None:
    async with other.raw.transaction():
        await other.started()
        waiting = asyncio.create_task(locked_view(store))
        await blocked(box)
    view = await waiting
    assert view is not None
    assert view.sandbox.state is SandboxState.RUNNING


@pytest.mark.parametrize("suspend_first", [True, False])
async def test_a_suspend_and_a_retirement_at_once_end_as_suspended(
    box: Database, other: Database, store: Store, suspend_first: bool
) -> None:
    async with store.locked(SANDBOX) as locked:
        await begin(locked)
        await load(locked)

    async def lost() -> None:
        async with store.locked(SANDBOX) as locked:
            await locked.retire(
                execution_id="execution-1",
                outcome=Outcome.LOST,
                row_state=SandboxState.SUSPENDED,
                pinned_node="node-b",
                marker=True,
                now=at(120),
            )

    suspend = other.suspended("pod-of-1", node="node-b", second=115)
    first, second = (suspend, lost()) if suspend_first else (lost(), suspend)
    async with box.raw.transaction():
        await box.raw.execute(ROW_LOCK)
        one: asyncio.Task[Any] = asyncio.ensure_future(first)
        await blocked(box, 1)
        two: asyncio.Task[Any] = asyncio.ensure_future(second)
        await blocked(box, 2)
    await asyncio.gather(one, two)
    view = await box.view()
    assert view.newest is not None
    assert view.newest.outcome is Outcome.SUSPENDED
    assert (view.sandbox.state, view.sandbox.pinned_node) == ("suspended", "node-b")


@pytest.mark.parametrize("snapshot_first", [True, False])
async def test_the_marker_goes_whichever_of_suspend_and_ready_comes_first(
    box: Database, other: Database, store: Store, dsn: str, snapshot_first: bool
) -> None:
    await box.started()
    await box.call("snapshot_started", sandbox_id=SANDBOX, snapshot_id="last", captured_at=at(20))
    third = Database(await asyncpg.connect(dsn))
    ready = other.call(
        "snapshot_ready", sandbox_id=SANDBOX, snapshot_id="last", storage_uri="s3://b/k"
    )
    suspend = third.suspended(second=20)
    async with box.raw.transaction():
        await box.raw.execute(ROW_LOCK)
        one = asyncio.ensure_future(ready if snapshot_first else suspend)
        await blocked(box, 1)
        two = asyncio.ensure_future(suspend if snapshot_first else ready)
        await blocked(box, 2)
    assert list(await asyncio.gather(one, two)) == [True, True]
    assert not (await box.view()).sandbox.local_artifact_marker
    await third.raw.close()


async def test_a_load_that_is_told_too_late_changes_nothing(
    box: Database, other: Database, store: Store
) -> None:
    """`Store.mark_loaded` waits for the lock and looks at the execution only then."""
    async with store.locked(SANDBOX) as locked:
        await begin(locked)
    async with other.raw.transaction():
        await other.raw.execute(ROW_LOCK)
        waiting = asyncio.create_task(
            store.mark_loaded(
                SANDBOX,
                "execution-1",
                pod_uid="pod-of-1",
                node_name="node-b",
                node_uid="uid-b",
                node_cpu=None,
                now=at(110),
            )
        )
        await blocked(box)
        await other.raw.execute(
            "UPDATE sandbox_restore.execution SET state = 'retired', outcome = 'cancelled',"
            " retired_at = created_at WHERE id = 'execution-1'"
        )
    view = await waiting
    assert view is not None
    assert (view.active, view.sandbox.pinned_node) == (None, None)
    assert view.sandbox.state is SandboxState.RESTORING


async def test_a_release_waits_for_the_lock_and_reads_afresh(
    box: Database, other: Database, store: Store
) -> None:
    async with store.locked(SANDBOX) as locked:
        await begin(locked)
        await load(locked)
    async with other.raw.transaction():
        await other.raw.execute(ROW_LOCK)
        waiting = asyncio.create_task(
            store.mark_released(SANDBOX, "execution-1", pod_uid="pod-of-1", now=at(111))
        )
        await blocked(box)
        await other.suspended("pod-of-1", node="node-b", second=115)
    view = await waiting
    assert view is not None
    assert view.newest is not None
    assert (view.active, view.newest.released_at) == (None, at(111))


async def test_a_holder_that_dies_leaves_nothing_behind(
    box: Database, other: Database, store: Store
) -> None:
    pid = other.raw.get_server_pid()
    await other.raw.execute("BEGIN")
    await other.started()
    waiting = asyncio.create_task(locked_view(store))
    await blocked(box)
    await box.raw.fetchval("SELECT pg_terminate_backend($1)", pid)
    view = await waiting
    assert view is not None
    assert view.active is None


async def test_a_lock_that_is_not_given_in_time_is_unavailable_and_leaves_no_lock(
    box: Database, other: Database, dsn: str
) -> None:
    async with await Store.open(dsn, command_timeout=0.2) as hasty:
        async with other.raw.transaction():
            await other.raw.execute(ROW_LOCK)
            with pytest.raises(UnavailableError, match="no answer in time"):
                await locked_view(hasty)
        assert await locked_view(hasty) == await box.view()


async def test_a_cancelled_waiter_gives_its_connection_back(
    box: Database, other: Database, dsn: str
) -> None:
    async with await Store.open(dsn, pool_size=1) as small:
        async with other.raw.transaction():
            await other.raw.execute(ROW_LOCK)
            waiting = asyncio.create_task(locked_view(small))
            await blocked(box)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        assert await locked_view(small) == await box.view()


async def test_a_cancelled_block_is_rolled_back(box: Database, store: Store) -> None:
    before = await box.view()
    begun = asyncio.Event()

    async def hang() -> None:
        async with store.locked(SANDBOX) as locked:
            await begin(locked)
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(hang())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await locked_view(store) == before


async def test_other_sandboxes_are_not_held_up(box: Database, store: Store) -> None:
    await box.created("neighbour")
    async with store.locked(SANDBOX), store.locked("neighbour") as locked:
        assert locked.view is not None


async def test_a_view_waits_for_no_lock(box: Database, store: Store) -> None:
    async with store.locked(SANDBOX) as locked:
        assert await store.view(SANDBOX) == locked.view


async def test_a_strict_database_default_does_not_change_what_a_lock_means(
    postgres: Any, own_dsn: str
) -> None:
    """Under REPEATABLE READ the waiter would fail instead of reading afresh."""
    admin = Database(await asyncpg.connect(own_dsn))
    name = await admin.raw.fetchval("SELECT current_database()")
    await admin.raw.execute(
        f"ALTER DATABASE \"{name}\" SET default_transaction_isolation = 'serializable'"
    )
    await admin.created()
    await admin.stored()
    holder = Database(await asyncpg.connect(own_dsn))
    async with await Store.open(own_dsn) as strict:
        async with holder.raw.transaction(isolation="read_committed"):
            await holder.started()
            waiting = asyncio.create_task(locked_view(strict))
            await blocked(admin)
        view = await waiting
        assert view is not None
        assert view.active is not None
        execution = view.active.id
        async with holder.raw.transaction(isolation="read_committed"):
            await holder.suspended()
            release = asyncio.create_task(
                strict.mark_released(SANDBOX, execution, pod_uid="pod-1", now=at(30))
            )
            await blocked(admin)
        released = await release
    assert released is not None
    assert released.active is None
    await holder.raw.close()
    await admin.raw.close()


async def test_a_crowd_of_operators_never_has_two_active_executions(
    box: Database, dsn: str
) -> None:
    """Twelve blind begins over three stores: one wins, and again after each retirement."""
    stores = [await Store.open(dsn, pool_size=4) for _ in range(3)]

    async def attempt(number: int) -> int:
        try:
            async with stores[number % 3].locked(SANDBOX) as locked:
                await begin(locked, number)
        except ConflictError:
            return 0
        return number

    for round_number in range(3):
        numbers = range(round_number * 12 + 1, round_number * 12 + 13)
        won = [n for n in await asyncio.gather(*map(attempt, numbers)) if n]
        assert len(won) == 1
        async with stores[0].locked(SANDBOX) as locked:
            await locked.retire(
                execution_id=f"execution-{won[0]}",
                outcome=Outcome.FAILED,
                row_state=SandboxState.RESTORING,
                pinned_node=None,
                marker=False,
                now=at(200),
            )
    for opened in stores:
        await opened.close()
