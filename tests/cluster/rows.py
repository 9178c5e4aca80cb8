"""What the database says, for tests that assert on the state of the world."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg

from sandbox_restore.model.names import HOST_CPU_LABEL
from sandbox_restore.model.sandbox import Outcome, SandboxState, Source
from sandbox_restore.store.store import Store
from tests.support.demo.scene import Scene
from tests.support.fleet import SandboxSeed


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A sandbox's row and its executions, oldest first."""

    state: str
    pinned_node: str | None
    marker: bool
    executions: list[dict[str, Any]]

    @property
    def active(self) -> list[dict[str, Any]]:
        return [e for e in self.executions if e["state"] == "active"]


async def row_of(dsn: str, sandbox_id: str) -> Row:
    """Read one sandbox."""
    connection = await asyncpg.connect(dsn)
    try:
        sandbox = await connection.fetchrow(
            "SELECT * FROM sandbox_restore.sandbox WHERE id = $1", sandbox_id
        )
        executions = await connection.fetch(
            "SELECT * FROM sandbox_restore.execution WHERE sandbox_id = $1 ORDER BY created_at",
            sandbox_id,
        )
    finally:
        await connection.close()
    assert sandbox is not None
    return Row(
        state=sandbox["state"],
        pinned_node=sandbox["pinned_node"],
        marker=sandbox["local_artifact_marker"],
        executions=[dict(e) for e in executions],
    )


async def all_pins(dsn: str) -> list[str | None]:
    """The pinned node of every sandbox."""
    connection = await asyncpg.connect(dsn)
    try:
        rows = await connection.fetch("SELECT pinned_node FROM sandbox_restore.sandbox")
    finally:
        await connection.close()
    return [row["pinned_node"] for row in rows]


async def call(dsn: str, sql: str, *args: object) -> None:
    """Run one statement, as the platform would."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(sql, *args)
    finally:
        await connection.close()


async def left_stranded(
    scene: Scene, seed: SandboxSeed, *, node: str, marker: bool = False
) -> None:
    """The row as a storage attempt leaves it that the node refused: pinned there, `failed`.

    With `marker`, as an older platform may have marked it: what a give-up is for.
    """
    body = scene.plane.api().get(f"/api/v1/nodes/{node}")
    owner = scene.plane.api().get(f"/api/v1/namespaces/{seed.namespace}")
    at = datetime.now(UTC) - timedelta(minutes=5)
    async with await Store.open(scene.dsn, pool_size=1) as store, store.locked(seed.id) as locked:
        await locked.begin_attempt(
            execution_id=f"{seed.id}-first",
            restore_uid=f"{seed.id}-first",
            restore_name="first",
            attempt=1,
            source=Source.STORAGE,
            snapshot_id=seed.snapshot_id,
            pod_name=f"{seed.id}-first-1",
            target_node=None,
            gate=False,
            clear_pin=False,
            namespace_uid=owner["metadata"]["uid"],
            now=at,
        )
        await locked.retire(
            execution_id=f"{seed.id}-first",
            outcome=Outcome.FAILED,
            row_state=SandboxState.FAILED,
            pinned_node=node,
            marker=False,
            now=at,
            failure_class="cpu-incompatible",
            node_name=node,
            node_uid=body["metadata"]["uid"],
            node_cpu=body["metadata"]["labels"].get(HOST_CPU_LABEL),
        )
        if marker:
            await locked.set_marker()
