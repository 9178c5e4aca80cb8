"""Which revision the database is at, and bringing it up to date (domain.md section 15)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from sandbox_restore.errors import SchemaError
from sandbox_restore.store.connection import connect
from sandbox_restore.store.edge import translated

Notify = Callable[[str], None]


class SchemaStatus(StrEnum):
    CURRENT = "current"
    ABSENT = "absent"
    """Nothing of ours is in the database."""
    BEHIND = "behind"
    AHEAD = "ahead"
    """The database knows a revision that this program does not: the program is too old."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaState:
    """Where the database stands."""

    current: str | None
    head: str
    status: SchemaStatus

    def require_current(self) -> None:
        """Raises SchemaError, saying what to do, unless the database is at this program's head."""
        match self.status:
            case SchemaStatus.CURRENT:
                return
            case SchemaStatus.ABSENT:
                raise SchemaError(
                    "database: schema sandbox_restore does not exist; run `sandbox-restore migrate`"
                )
            case SchemaStatus.BEHIND:
                raise SchemaError(
                    f"database: schema is at revision {self.current}, this program needs "
                    f"{self.head}; run `sandbox-restore migrate`"
                )
            case SchemaStatus.AHEAD:
                raise SchemaError(
                    f"database: schema is at revision {self.current}, newer than this program's "
                    f"{self.head}; upgrade sandbox-restore"
                )


async def schema_state(database: Any, *, timeout: float = 5.0) -> SchemaState:
    """Where the database stands: `database` is its URL or an open asyncpg connection.

    Reads only, and with the rights of either role. Raises UnavailableError,
    PermissionDeniedError, and ConfigurationError for a URL that is none.
    """
    if not isinstance(database, str):
        return await _read(database)
    connection = await connect(database, purpose="schema", timeout=timeout, command_timeout=timeout)
    try:
        return await _read(connection)
    finally:
        connection.terminate()


async def migrate(dsn: str, *, timeout: float = 5.0, notify: Notify | None = None) -> list[str]:
    """Brings the database to this program's head; returns the revisions it applied, oldest first.

    One transaction under an advisory lock: two runs at once are safe, and a failed one leaves
    nothing behind. The roles and their rights are made true on every run, also when nothing is to
    be applied. `notify` gets one line for each thing that a person should know, such as roles that
    this user may not create. `timeout` is for connecting, in seconds. Raises SchemaError when the
    database is ahead of this program or older than PostgreSQL 15, and what `schema_state` raises.
    """
    connection = await connect(dsn, purpose="migrate", timeout=timeout)
    return await _migrate(connection, notify)


@translated
async def _migrate(connection: Any, notify: Notify | None) -> list[str]:
    # Alembic and SQLAlchemy are a quarter of the operator's start, and only migrations need them.
    from sandbox_restore.store.migrations import runner

    return await runner.upgrade(connection, target="head", notify=notify or (lambda _line: None))


@translated
async def _read(connection: Any) -> SchemaState:
    # Two statements, since a query that names a table cannot be planned where there is none.
    revisions = []
    if await connection.fetchval("SELECT to_regclass('sandbox_restore.alembic_version')::text"):
        rows = await connection.fetch("SELECT version_num FROM sandbox_restore.alembic_version")
        revisions = [row[0] for row in rows]
    return judge(revisions)


def judge(revisions: list[str]) -> SchemaState:
    """What the recorded revisions mean to this program."""
    known = known_revisions()
    head = known[-1]
    current = ",".join(sorted(revisions)) or None
    if current is None:
        status = SchemaStatus.ABSENT
    elif current == head:
        status = SchemaStatus.CURRENT
    elif current in known:
        status = SchemaStatus.BEHIND
    else:
        status = SchemaStatus.AHEAD
    return SchemaState(current=current, head=head, status=status)


@cache
def known_revisions() -> tuple[str, ...]:
    """This program's revisions, oldest first: each is a file, named after it."""
    files = (Path(__file__).parent / "migrations" / "versions").glob("r[0-9]*.py")
    return tuple(sorted(file.stem[1:].partition("_")[0] for file in files))
