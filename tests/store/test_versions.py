"""Section 15: the row's version moves with every change, and every change is notified."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.store.helpers import SANDBOX, Database, at


class Heard:
    """What one connection was notified of."""

    def __init__(self) -> None:
        self.payloads: list[str] = []

    def __call__(self, _connection: Any, _pid: int, _channel: str, payload: str) -> None:
        self.payloads.append(payload)


@pytest.fixture
async def heard(other: Database) -> Heard:
    listener = Heard()
    await other.raw.add_listener("sandbox_restore", listener)
    return listener


async def told(other: Database, heard: Heard) -> list[str]:
    """The payloads so far: what was committed before is delivered with the next answer."""
    await other.raw.execute("SELECT 1")
    await asyncio.sleep(0)
    payloads, heard.payloads = heard.payloads, []
    return payloads


CHANGES = {
    "a command": "SELECT sandbox_restore.sandbox_command('box', '2026-01-02 UTC')",
    "an access": "SELECT sandbox_restore.sandbox_access('box', '2026-01-02 UTC')",
    "a run": "SELECT sandbox_restore.execution_started('box', 'n', 'p', 'u')",
    "a snapshot": "SELECT sandbox_restore.snapshot_started('box', 'snap')",
    "a row written by hand": "UPDATE sandbox_restore.sandbox SET node_group = 'g'",
    "a version written by hand": "UPDATE sandbox_restore.sandbox SET version = 1",
    "a snapshot written by hand": "INSERT INTO sandbox_restore.snapshot (id, sandbox_id)"
    " VALUES ('x', 'box')",
    "an execution written by hand": "INSERT INTO sandbox_restore.execution (id, sandbox_id, source,"
    " restore_uid, restore_name, attempt, target_node, pod_name, created_at)"
    " VALUES ('e', 'box', 'local', 'u', 'r', 1, 'n', 'p', now())",
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
async def test_every_change_raises_the_version_and_is_told_once(
    db: Database, other: Database, heard: Heard, change: str
) -> None:
    await db.created()
    assert await told(other, heard) == [f"{SANDBOX} 1"]
    await db.raw.execute(change)
    assert (await db.view()).sandbox.version == 2
    assert await told(other, heard) == [f"{SANDBOX} 2"]


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE sandbox_restore.snapshot SET state = 'failed'",
        "DELETE FROM sandbox_restore.snapshot",
    ],
)
async def test_a_changed_and_a_deleted_snapshot_raise_the_version(
    db: Database, other: Database, heard: Heard, change: str
) -> None:
    await db.created()
    await db.call("snapshot_started", sandbox_id=SANDBOX, snapshot_id="snap")
    await told(other, heard)
    await db.raw.execute(change)
    assert (await db.view()).sandbox.version == 3
    assert await told(other, heard) == [f"{SANDBOX} 3"]


async def test_two_changes_in_two_transactions_are_two_versions(db: Database) -> None:
    await db.created()
    for second in (1, 2, 3):
        await db.call("sandbox_command", sandbox_id=SANDBOX, command_at=at(second))
    assert (await db.view()).sandbox.version == 4


async def test_a_change_after_a_savepoint_still_raises_the_version(db: Database) -> None:
    await db.created()
    async with db.raw.transaction():
        async with db.raw.transaction():
            await db.call("sandbox_command", sandbox_id=SANDBOX, command_at=at(1))
        before = (await db.view()).sandbox.version
        await db.call("snapshot_started", sandbox_id=SANDBOX, snapshot_id="snap")
    assert (await db.view()).sandbox.version > before


async def test_a_change_rolled_back_to_a_savepoint_does_not_hide_the_next(db: Database) -> None:
    await db.created()
    async with db.raw.transaction():
        undone = db.raw.transaction()
        await undone.start()
        await db.call("sandbox_command", sandbox_id=SANDBOX, command_at=at(1))
        await undone.rollback()
        await db.call("snapshot_started", sandbox_id=SANDBOX, snapshot_id="snap")
    assert (await db.view()).sandbox.version == 2


async def test_what_is_rolled_back_is_not_told(db: Database, other: Database, heard: Heard) -> None:
    await db.created()
    await told(other, heard)
    transaction = db.raw.transaction()
    await transaction.start()
    await db.started()
    await transaction.rollback()
    assert await told(other, heard) == []
    assert (await db.view()).sandbox.version == 1


async def test_a_report_that_changes_nothing_moves_nothing(
    db: Database, other: Database, heard: Heard
) -> None:
    await db.created()
    await db.started()
    await db.suspended()
    await db.stored()
    before = (await db.view()).sandbox.version
    await told(other, heard)
    await db.created()
    await db.suspended()
    await db.suspended("pod-of-somebody")
    await db.stored()
    await db.call("sandbox_command", sandbox_id=SANDBOX, command_at=at(1))
    after_first = (await db.view()).sandbox.version
    await db.call("sandbox_command", sandbox_id=SANDBOX, command_at=at(0))
    assert after_first == before + 1
    assert (await db.view()).sandbox.version == after_first
    assert await told(other, heard) == [f"{SANDBOX} {after_first}"]
