"""Short ways to write rows and to ask the database in tests."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg

from sandbox_restore.model.sandbox import SandboxView, Source
from sandbox_restore.store.locked import LockedSandbox
from sandbox_restore.store.records import decode

SANDBOX = "box"
NAMESPACE = "team-a"
NAMESPACE_UID = "ns-uid"
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    """A time so many seconds after the beginning of every test's story."""
    return EPOCH + timedelta(seconds=seconds)


def with_option(dsn: str, option: str) -> str:
    """The URL with one more setting of the session."""
    return f"{dsn}{'&' if '?' in dsn else '?'}{option}"


class Database:
    """A connection, with the calls of the contract."""

    def __init__(self, raw: Any) -> None:
        self.raw: asyncpg.Connection = raw

    async def call(self, function: str, /, **arguments: Any) -> Any:
        """Calls a function of the schema with named arguments."""
        names = ", ".join(f"{name} => ${n}" for n, name in enumerate(arguments, 1))
        sql = f"SELECT sandbox_restore.{function}({names})"
        return await self.raw.fetchval(sql, *arguments.values())

    async def insert(self, table: str, /, **columns: Any) -> None:
        """Writes a row past every function, as its owner."""
        names = ", ".join(columns)
        places = ", ".join(f"${n}" for n in range(1, len(columns) + 1))
        await self.raw.execute(
            f"INSERT INTO sandbox_restore.{table} ({names}) VALUES ({places})", *columns.values()
        )

    async def view(self, sandbox_id: str = SANDBOX, *uids: str) -> SandboxView:
        raw = await self.raw.fetchval(
            "SELECT sandbox_restore.operator_view($1, $2)::text", sandbox_id, list(uids)
        )
        return decode(raw, SandboxView)

    async def created(self, sandbox_id: str = SANDBOX, **more: Any) -> None:
        await self.call("sandbox_created", sandbox_id=sandbox_id, namespace=NAMESPACE, **more)

    async def started(self, pod_uid: str = "pod-1", *, node: str = "node-a", **more: Any) -> str:
        """The platform starts the sandbox by its own means, at second 10."""
        arguments = {"started_at": at(10), "pod_name": f"name-of-{pod_uid}", **more}
        execution: str = await self.call(
            "execution_started", sandbox_id=SANDBOX, node_name=node, pod_uid=pod_uid, **arguments
        )
        return execution

    async def suspended(
        self, pod_uid: str = "pod-1", *, node: str = "node-a", second: float = 20
    ) -> bool:
        recorded: bool = await self.call(
            "sandbox_suspended",
            sandbox_id=SANDBOX,
            node_name=node,
            pod_uid=pod_uid,
            suspended_at=at(second),
        )
        return recorded

    async def stored(self, snapshot_id: str = "snap", *, second: float = 20, **more: Any) -> None:
        """A full snapshot captured at that second is ready in storage."""
        await self.call(
            "snapshot_started",
            sandbox_id=SANDBOX,
            snapshot_id=snapshot_id,
            captured_at=at(second),
            **more,
        )
        await self.call(
            "snapshot_ready",
            sandbox_id=SANDBOX,
            snapshot_id=snapshot_id,
            storage_uri=f"s3://bucket/{snapshot_id}",
        )


async def begin(locked: LockedSandbox, attempt: int = 1, **more: Any) -> SandboxView:
    """Begins a storage attempt of the restore `restore-uid` from the snapshot `snap`."""
    arguments: dict[str, Any] = {
        "execution_id": f"execution-{attempt}",
        "restore_uid": "restore-uid",
        "restore_name": "wake",
        "attempt": attempt,
        "source": Source.STORAGE,
        "snapshot_id": "snap",
        "pod_name": f"wake-{attempt}",
        "target_node": None,
        "gate": True,
        "clear_pin": False,
        "namespace_uid": NAMESPACE_UID,
        "now": at(100),
    }
    return await locked.begin_attempt(**{**arguments, **more})


async def load(locked: LockedSandbox, attempt: int = 1, **more: Any) -> SandboxView:
    """The pod of that attempt is Ready on node-b."""
    arguments: dict[str, Any] = {
        "execution_id": f"execution-{attempt}",
        "pod_uid": f"pod-of-{attempt}",
        "node_name": "node-b",
        "node_uid": "node-b-uid",
        "node_cpu": "amd-25-17-1",
        "now": at(110),
    }
    return await locked.mark_loaded(**{**arguments, **more})


async def blocked(db: Database, waiters: int = 1) -> None:
    """Returns when so many connections to this database wait for a lock."""
    async with asyncio.timeout(20):
        while waiters > await db.raw.fetchval(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event_type = 'Lock'"
        ):
            # Inside a transaction the view is a snapshot of its own.
            await db.raw.execute("SELECT pg_stat_clear_snapshot()")
