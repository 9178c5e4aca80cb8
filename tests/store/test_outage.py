"""A database that goes away and comes back: errors of one class, then work goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest

from sandbox_restore.errors import SandboxRestoreError, UnavailableError
from sandbox_restore.store.listener import ChangeListener
from sandbox_restore.store.store import Store
from tests.store.helpers import SANDBOX, Database, at
from tests.support.postgres import TestPostgres


@pytest.fixture
async def server(postgres: TestPostgres, db: Database) -> AsyncIterator[TestPostgres]:
    """The session's server: it may be stopped, and runs again for the next test."""
    if not postgres.can_restart:
        pytest.skip("a given server is not ours to stop")
    await db.created()
    yield postgres
    await asyncio.to_thread(postgres.start)


async def stopped_in_a_block(store: Store, server: TestPostgres, *, then: Exception | None) -> None:
    async with store.locked(SANDBOX):
        await asyncio.to_thread(server.stop)
        if then is not None:
            raise then


async def test_store_and_listener_live_through_an_outage(
    server: TestPostgres, store: Store, dsn: str
) -> None:
    gaps: asyncio.Queue[None] = asyncio.Queue()
    errors: asyncio.Queue[SandboxRestoreError] = asyncio.Queue()
    listener = ChangeListener(
        dsn,
        lambda _id, _version: None,
        lambda: gaps.put_nowait(None),
        on_error=errors.put_nowait,
        backoff=0.01,
        backoff_max=0.05,
    )
    async with asyncio.timeout(120), listener:
        await gaps.get()
        health = [listener.healthy]

        with pytest.raises(KeyError, match="what the block met"):
            await stopped_in_a_block(store, server, then=KeyError("what the block met"))
        error = await errors.get()
        assert type(error) is UnavailableError
        health.append(listener.healthy)
        with told_unavailable():
            await store.ping()
        with told_unavailable():
            await store.view(SANDBOX)
        with told_unavailable():
            await store.mark_released(SANDBOX, "e", pod_uid="u", now=at(0))
        with told_unavailable():
            await stopped_in_a_block(store, server, then=None)

        await asyncio.to_thread(server.start)
        await gaps.get()
        health.append(listener.healthy)
        assert health == [True, False, True]
        assert await store.view(SANDBOX) is not None


async def test_a_commit_that_is_not_answered_is_unavailable(
    server: TestPostgres, store: Store
) -> None:
    with told_unavailable():
        await stopped_in_a_block(store, server, then=None)


@contextmanager
def told_unavailable() -> Iterator[None]:
    with pytest.raises(UnavailableError, match=r"^database: "):
        yield
