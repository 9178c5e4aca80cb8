"""How the machine is run: a database of its own, and settings."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import asyncpg
from hypothesis import HealthCheck, Phase, settings

from sandbox_restore.store.schema import migrate
from sandbox_restore.store.store import Store
from tests.machine.story import Rig
from tests.store.helpers import Database
from tests.support.postgres import TestPostgres


@contextmanager
def rigged(postgres: TestPostgres) -> Iterator[Rig]:
    """An event loop of its own, and what `opened` gives."""
    with asyncio.Runner() as runner:
        rigging = opened(postgres, runner.get_loop())
        rig = runner.run(rigging.__aenter__())
        try:
            yield rig
        finally:
            runner.run(rigging.__aexit__(None, None, None))


@asynccontextmanager
async def opened(postgres: TestPostgres, loop: asyncio.AbstractEventLoop) -> AsyncIterator[Rig]:
    """Two stores on a database that is gone afterwards."""
    name = f"sr_machine_{os.getpid()}"
    dsn = await postgres.create_database(name)
    await migrate(dsn)
    connections = [
        await asyncpg.connect(dsn, server_settings={"timezone": "UTC"}) for _ in range(2)
    ]
    stores = [await Store.open(dsn, pool_size=2) for _ in range(2)]
    try:
        yield Rig(
            loop=loop, stores=stores, db=Database(connections[0]), eye=Database(connections[1])
        )
    finally:
        for store in stores:
            await store.close()
        for connection in connections:
            await connection.close()
        await postgres.drop_database(name)


def settings_for(
    *, examples: int, steps: int, phases: tuple[Phase, ...], derandomize: bool = True
) -> settings:
    """The same examples every time, or those of a seed; nothing is written to disk."""
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        phases=phases,
        deadline=None,
        derandomize=derandomize,
        database=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
