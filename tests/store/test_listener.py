"""Section 15: the operator LISTENs; it is told of every change, or of the gap."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from sandbox_restore.errors import ConfigurationError, SandboxRestoreError, UnavailableError
from sandbox_restore.store.listener import ChangeListener
from tests.store.helpers import SANDBOX, Database, at


class Ear:
    """What a listener said, as things that can be waited for."""

    def __init__(self) -> None:
        self.said: asyncio.Queue[tuple[str, int] | str] = asyncio.Queue()
        self.errors: asyncio.Queue[SandboxRestoreError] = asyncio.Queue()

    def changed(self, sandbox_id: str, version: int) -> None:
        self.said.put_nowait((sandbox_id, version))

    def gap(self) -> None:
        self.said.put_nowait("gap")

    def failed(self, error: SandboxRestoreError) -> None:
        self.errors.put_nowait(error)

    async def next(self) -> tuple[str, int] | str:
        async with asyncio.timeout(20):
            return await self.said.get()


Listen = Callable[..., ChangeListener]


@pytest.fixture
def ear() -> Ear:
    return Ear()


@pytest.fixture
def listen(dsn: str, ear: Ear) -> Listen:
    def make(url: str = dsn, **more: Any) -> ChangeListener:
        arguments = {"backoff": 0.01, "on_error": ear.failed, **more}
        return ChangeListener(url, ear.changed, ear.gap, **arguments)

    return make


async def cut(db: Database) -> None:
    """Ends the listener's connection on the server's side."""
    await db.raw.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
        " AND datname = current_database() AND application_name = 'sandbox-restore listener'"
    )


async def test_the_first_word_is_a_gap_and_every_change_follows(
    db: Database, listen: Listen, ear: Ear
) -> None:
    async with listen():
        assert await ear.next() == "gap"
        await db.created()
        assert await ear.next() == (SANDBOX, 1)
        await db.call("sandbox_command", sandbox_id=SANDBOX, command_at=at(1))
        assert await ear.next() == (SANDBOX, 2)


async def test_a_lost_connection_is_made_again_and_the_gap_is_told(
    db: Database, listen: Listen, ear: Ear
) -> None:
    await db.created()
    async with listen():
        assert await ear.next() == "gap"
        await cut(db)
        # Committed while nobody may have been listening: the gap covers it.
        await db.call("sandbox_command", sandbox_id=SANDBOX, command_at=at(1))
        assert isinstance(await ear.errors.get(), UnavailableError)
        said = [await ear.next()]
        while said[-1] != "gap":
            said.append(await ear.next())
        await db.call("sandbox_command", sandbox_id=SANDBOX, command_at=at(2))
        assert await ear.next() == (SANDBOX, 3)


async def test_what_is_read_after_the_gap_was_told_cannot_change_unnoticed(
    db: Database, listen: Listen, ear: Ear
) -> None:
    """LISTEN is in force before the gap is told: a read at that moment misses nothing."""
    await db.created()
    for second in range(1, 6):
        async with listen():
            assert await ear.next() == "gap"
            await db.call("sandbox_command", sandbox_id=SANDBOX, command_at=at(second))
            assert await ear.next() == (SANDBOX, second + 1)


@pytest.mark.parametrize("payload", ["", "box", "box x", " 1", "box -1", "box 1 2"])
async def test_a_notification_of_a_stranger_is_a_gap(
    db: Database, listen: Listen, ear: Ear, payload: str
) -> None:
    async with listen():
        assert await ear.next() == "gap"
        await db.raw.execute("SELECT pg_notify('sandbox_restore', $1)", payload)
        assert await ear.next() == "gap"


async def test_it_keeps_trying_while_the_database_is_away(
    db: Database, listen: Listen, ear: Ear, dsn: str
) -> None:
    nowhere = "postgresql://user:secret@127.0.0.1:1/none"
    listener = listen(nowhere, jitter=lambda: 0.0)
    async with listener:
        for _ in range(5):
            error = await ear.errors.get()
            assert isinstance(error, UnavailableError)
            assert "secret" not in str(error)
        assert not listener.healthy
        assert listener.last_contact is None
        assert ear.said.empty()


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long the listener would have slept each time."""
    seconds: list[float] = []
    sleep = asyncio.sleep

    async def note(duration: float) -> None:
        seconds.append(duration)
        await sleep(0)

    monkeypatch.setattr("sandbox_restore.store.listener.asyncio.sleep", note)
    return seconds


async def test_the_backoff_doubles_up_to_its_limit(
    db: Database, listen: Listen, ear: Ear, slept: list[float]
) -> None:
    nowhere = "postgresql://127.0.0.1:1/none"
    async with listen(nowhere, jitter=lambda: 1.0, backoff=1.0, backoff_max=5.0):
        for _ in range(6):
            await ear.errors.get()
    assert slept[:5] == [1.0, 2.0, 4.0, 5.0, 5.0]


async def test_a_connection_that_is_cut_at_once_does_not_start_the_backoff_anew(
    db: Database, listen: Listen, ear: Ear, slept: list[float]
) -> None:
    async with listen(jitter=lambda: 1.0, backoff=1.0):
        for _ in range(3):
            assert await ear.next() == "gap"
            await cut(db)
            await ear.errors.get()
        await ear.next()
    assert slept == [1.0, 2.0, 4.0]


async def test_a_connection_that_has_lasted_does(
    db: Database, listen: Listen, ear: Ear, slept: list[float]
) -> None:
    times: list[float] = []

    def clock() -> float:
        times.append(0.0)
        return 0.0

    async with listen(jitter=lambda: 1.0, backoff=1.0, keepalive=0.01, clock=clock):
        for _ in range(2):
            assert await ear.next() == "gap"
            heard = len(times)
            async with asyncio.timeout(20):
                while len(times) < heard + 2:
                    await db.raw.fetchval("SELECT 1")
            await cut(db)
            await ear.errors.get()
        await ear.next()
    assert slept == [1.0, 1.0]


async def test_health_is_a_fresh_contact(db: Database, listen: Listen, ear: Ear) -> None:
    now = 1000.0
    listener = listen(clock=lambda: now, keepalive=10.0, timeout=5.0)
    health = [(listener.healthy, listener.last_contact)]
    async with listener:
        await ear.next()
        health.append((listener.healthy, listener.last_contact))
        now = 1025.0
        health.append((listener.healthy, listener.last_contact))
        now = 1026.0
        health.append((listener.healthy, listener.last_contact))
        await db.created()
        await ear.next()
        health.append((listener.healthy, listener.last_contact))
    health.append((listener.healthy, listener.last_contact))
    assert health == [
        (False, None),
        (True, 1000.0),
        (True, 1000.0),
        (False, 1000.0),
        (True, 1026.0),
        (False, 1026.0),
    ]


async def test_a_quiet_connection_is_asked_for_a_sign_of_life(
    db: Database, listen: Listen, ear: Ear
) -> None:
    contacts: list[float] = []
    three = asyncio.Event()

    def clock() -> float:
        contacts.append(len(contacts))
        if len(contacts) > 3:
            three.set()
        return contacts[-1]

    async with listen(keepalive=0.01, clock=clock):
        async with asyncio.timeout(20):
            await three.wait()
    assert ear.errors.empty()


async def test_a_server_that_does_not_answer_is_left(
    db: Database, listen: Listen, ear: Ear
) -> None:
    """The connection stands, the server's process is stopped: only the keepalive can tell."""
    silent = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await silent.wait()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with listen(f"postgresql://u@127.0.0.1:{port}/d?sslmode=disable", timeout=0.05):
        assert isinstance(await ear.errors.get(), UnavailableError)
    silent.set()
    server.close()


async def test_a_url_that_is_none_ends_nothing_but_is_told(
    db: Database, listen: Listen, ear: Ear
) -> None:
    async with listen("mysql://u:secret@h/d", jitter=lambda: 0.0):
        assert isinstance(await ear.errors.get(), ConfigurationError)


async def test_leaving_the_block_leaves_no_connection(
    db: Database, listen: Listen, ear: Ear
) -> None:
    async with listen():
        await ear.next()
    async with asyncio.timeout(20):
        while await db.raw.fetchval(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'sandbox-restore listener'"
        ):
            pass
