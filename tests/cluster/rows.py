"""What the database says, for tests that assert on the state of the world."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import asyncpg


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


async def call(dsn: str, sql: str, *args: object) -> None:
    """Run one statement, as the platform would."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(sql, *args)
    finally:
        await connection.close()
