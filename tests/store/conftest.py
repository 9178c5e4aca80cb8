"""One server for the session; one migrated database that every test finds empty."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest

from sandbox_restore.store.schema import migrate
from sandbox_restore.store.store import Store
from tests.store.helpers import Database
from tests.support.postgres import TestPostgres, open_postgres

TEMPLATE = f"sr_template_{os.getpid()}"
SHARED = f"sr_shared_{os.getpid()}"


@pytest.fixture(scope="session")
def postgres() -> Iterator[TestPostgres]:
    with open_postgres() as server:
        yield server


@pytest.fixture(scope="session")
async def template(postgres: TestPostgres) -> AsyncIterator[str]:
    """Name of a migrated database that nobody is connected to."""
    await migrate(await postgres.create_database(TEMPLATE))
    yield TEMPLATE
    await postgres.drop_database(TEMPLATE)


@pytest.fixture(scope="session")
async def shared(postgres: TestPostgres, template: str) -> AsyncIterator[str]:
    """URL of the migrated database that tests share, one after the other."""
    yield await postgres.create_database(SHARED, template=template)
    await postgres.drop_database(SHARED)


@pytest.fixture(scope="session")
async def owner(shared: str) -> AsyncIterator[Database]:
    connection = await asyncpg.connect(shared, server_settings={"timezone": "UTC"})
    yield Database(connection)
    await connection.close()


@pytest.fixture
async def dsn(shared: str, owner: Database) -> str:
    """URL of a migrated database without a row."""
    if owner.raw.is_closed():  # an outage test has stopped the server
        owner.raw = await asyncpg.connect(shared, server_settings={"timezone": "UTC"})
    await owner.raw.reset()
    await owner.raw.execute(
        """
        DELETE FROM sandbox_restore.load_observation;
        DELETE FROM sandbox_restore.node_cpu_history;
        DELETE FROM sandbox_restore.execution;
        DELETE FROM sandbox_restore.snapshot;
        DELETE FROM sandbox_restore.sandbox;
        """
    )
    return shared


@pytest.fixture
async def db(dsn: str, owner: Database) -> Database:
    """That database as its owner, who may do everything."""
    return owner


@pytest.fixture
async def other(dsn: str) -> AsyncIterator[Database]:
    """A second connection to the same database."""
    connection = await asyncpg.connect(dsn, server_settings={"timezone": "UTC"})
    yield Database(connection)
    await connection.close()


@pytest.fixture
async def store(dsn: str) -> AsyncIterator[Store]:
    async with await Store.open(dsn, pool_size=4) as opened:
        yield opened


@pytest.fixture
async def own_dsn(postgres: TestPostgres, template: str) -> AsyncIterator[str]:
    """URL of a migrated database of this test alone, for those that change the schema."""
    name = f"sr_own_{os.getpid()}"
    yield await postgres.create_database(name, template=template)
    await postgres.drop_database(name)


@pytest.fixture
async def empty_dsn(postgres: TestPostgres) -> AsyncIterator[str]:
    """URL of a database of this test alone with nothing in it."""
    name = f"sr_empty_{os.getpid()}"
    yield await postgres.create_database(name)
    await postgres.drop_database(name)
