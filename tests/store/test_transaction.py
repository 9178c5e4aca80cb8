"""Section 15: what happens at the end of a block, and the release that needs none."""

from __future__ import annotations

import pytest

from sandbox_restore.errors import ConflictError
from sandbox_restore.model.sandbox import Outcome
from sandbox_restore.store.store import Store
from tests.store.helpers import SANDBOX, Database, at, begin, load


@pytest.fixture
async def box(db: Database) -> Database:
    """A sandbox that nothing is pinned to, with a snapshot in storage."""
    await db.created()
    await db.stored()
    return db


# --- the transaction


async def test_an_exception_in_the_block_undoes_it(box: Database, store: Store) -> None:
    async def block() -> None:
        async with store.locked(SANDBOX) as locked:
            await begin(locked)
            raise ZeroDivisionError

    before = await box.view()
    with pytest.raises(ZeroDivisionError):
        await block()
    assert await box.view() == before


async def test_errors_of_the_block_itself_are_not_touched(box: Database, store: Store) -> None:
    with pytest.raises(ConnectionResetError, match="the API server"):
        async with store.locked(SANDBOX):
            raise ConnectionResetError("the API server")


async def test_a_block_that_goes_on_after_a_failed_statement_keeps_nothing_and_says_so(
    box: Database, store: Store
) -> None:
    async def block() -> None:
        async with store.locked(SANDBOX) as locked:
            await begin(locked, 1)
            with pytest.raises(ConflictError, match="one_active"):
                await begin(locked, 2)

    before = await box.view()
    with pytest.raises(ConflictError, match="nothing of the block was kept"):
        await block()
    assert await box.view() == before


async def test_nothing_is_visible_before_the_block_ends(box: Database, store: Store) -> None:
    before = await box.view()
    async with store.locked(SANDBOX) as locked:
        await begin(locked)
        assert await box.view() == before
    assert (await box.view()).active is not None


# --- mark_released


async def test_a_release_is_stored_once(box: Database, store: Store) -> None:
    async with store.locked(SANDBOX) as locked:
        await begin(locked)
        await load(locked)
    first = await store.mark_released(
        SANDBOX, "execution-1", pod_uid="pod-of-1", now=at(111), restore_uids=["restore-uid"]
    )
    assert first is not None
    assert first.active is not None
    assert first.active.released_at == at(111)
    assert first.attempts == (first.active,)
    again = await store.mark_released(SANDBOX, "execution-1", pod_uid="pod-of-1", now=at(112))
    assert again is not None
    assert again.active == first.active
    assert again.sandbox.version == first.sandbox.version


async def test_a_release_of_another_pod_or_an_unloaded_execution_changes_nothing(
    box: Database, store: Store
) -> None:
    async with store.locked(SANDBOX) as locked:
        await begin(locked)
    unloaded = await store.mark_released(SANDBOX, "execution-1", pod_uid="pod-of-1", now=at(105))
    assert unloaded == await box.view()
    async with store.locked(SANDBOX) as locked:
        loaded = await load(locked)
    for execution, pod in (("execution-1", "other"), ("execution-2", "pod-of-1")):
        assert await store.mark_released(SANDBOX, execution, pod_uid=pod, now=at(111)) == loaded


async def test_a_release_may_be_stored_after_the_suspend(box: Database, store: Store) -> None:
    async with store.locked(SANDBOX) as locked:
        await begin(locked)
        await load(locked)
    await box.suspended("pod-of-1", node="node-b", second=115)
    view = await store.mark_released(SANDBOX, "execution-1", pod_uid="pod-of-1", now=at(116))
    assert view is not None
    assert view.newest is not None
    assert (view.newest.outcome, view.newest.released_at) == (Outcome.SUSPENDED, at(116))


async def test_a_platforms_execution_is_never_released(box: Database, store: Store) -> None:
    execution = await box.started()
    view = await store.mark_released(SANDBOX, execution, pod_uid="pod-1", now=at(20))
    assert view is not None
    assert view.active is not None
    assert view.active.released_at is None


async def test_a_release_without_a_row_answers_nothing(db: Database, store: Store) -> None:
    assert await store.mark_released("nobody", "e", pod_uid="u", now=at(1)) is None
