"""The database URL changes while the operator runs: new connections use it, nothing restarts."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandbox_restore.errors import SandboxRestoreError, UnavailableError
from sandbox_restore.settings import load_settings
from sandbox_restore.store.listener import ChangeListener
from sandbox_restore.store.store import Store
from tests.store.helpers import Database
from tests.support.postgres import TestPostgres

BEFORE, AFTER = "rotated_before", "rotated_after"
USERS = """
    SELECT DISTINCT usename FROM pg_stat_activity
    WHERE datname = current_database() AND usename IN ($1, $2)
"""


@pytest.fixture
async def urls(postgres: TestPostgres, dsn: str, owner: Database) -> AsyncIterator[tuple[str, str]]:
    """The same database for two users, as a rotation with two users has it."""
    name = await owner.raw.fetchval("SELECT current_database()")
    for user in (BEFORE, AFTER):
        await postgres.execute(f"DROP ROLE IF EXISTS {user}")
        await postgres.execute(f"CREATE ROLE {user} LOGIN IN ROLE sandbox_restore_operator")
    yield postgres.dsn_for(name, user=BEFORE), postgres.dsn_for(name, user=AFTER)
    for user in (BEFORE, AFTER):
        await postgres.execute(f"DROP ROLE IF EXISTS {user}")


async def test_a_rotated_url_is_used_by_every_new_connection(
    urls: tuple[str, str], owner: Database, tmp_path: Path
) -> None:
    file = tmp_path / "url"
    file.write_text(urls[0])
    settings = load_settings({"SPACE_SANDBOX_RESTORE_DATABASE_URL_FILE": str(file)})
    gaps: asyncio.Queue[None] = asyncio.Queue()
    listener = ChangeListener(
        settings.current_dsn,
        lambda _id, _version: None,
        lambda: gaps.put_nowait(None),
        backoff=0.01,
        backoff_max=0.05,
    )
    async with asyncio.timeout(60), await Store.open(settings.current_dsn) as store, listener:
        await gaps.get()
        await store.ping()
        assert await users(owner) == {BEFORE}
        file.write_text(urls[1])
        await store.ping()  # what is open goes on
        await owner.raw.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1", BEFORE
        )
        await gaps.get()
        await answered(store)
        assert await users(owner) == {AFTER}


@pytest.mark.parametrize("content", [None, "", "no url", b"\xff"])
def test_a_file_that_holds_no_url_for_a_moment_changes_nothing(
    tmp_path: Path, content: str | bytes | None
) -> None:
    file = tmp_path / "url"
    file.write_text("postgresql://a@h/d")
    settings = load_settings({"SPACE_SANDBOX_RESTORE_DATABASE_URL_FILE": str(file)})
    if content is None:
        file.unlink()
    elif isinstance(content, bytes):
        file.write_bytes(content)
    else:
        file.write_text(content)
    assert settings.current_dsn() == "postgresql://a@h/d"


async def users(owner: Database) -> set[str]:
    return {row["usename"] for row in await owner.raw.fetch(USERS, BEFORE, AFTER)}


async def answered(store: Store) -> None:
    """Connections that the server has cut are found out one by one."""
    while True:
        try:
            await store.ping()
        except UnavailableError:
            continue
        return


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:Hunter2Zz@127.0.0.1:1/space",
        "postgresql://u:Hunter2Zz/b@127.0.0.1:1/space",
        "postgresql://127.0.0.1:1/space?sslmode=Hunter2Zz",
    ],
)
async def test_a_rotated_url_that_leads_nowhere_is_told_without_its_password(
    urls: tuple[str, str], owner: Database, url: str
) -> None:
    given = [urls[0]]
    async with asyncio.timeout(60), await Store.open(lambda: given[0]) as store:
        await store.ping()
        given[0] = url
        await owner.raw.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1", BEFORE
        )
        told: list[SandboxRestoreError] = []
        for _ in range(3):  # the first may still hold the connection that was ended
            with pytest.raises(SandboxRestoreError) as caught:
                await store.ping()
            told.append(caught.value)
        lines = [line for error in told for line in traceback.format_exception(error)]
        assert not [line for line in lines if "Hunter2Zz" in line]
