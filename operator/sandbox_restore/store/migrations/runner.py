"""Runs the revisions with Alembic over one asyncpg connection, in one transaction."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util.exc import CommandError
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from sandbox_restore.errors import SchemaError
from sandbox_restore.store.migrations.roles import ensure_roles

SCHEMA: Final = "sandbox_restore"
OLDEST_SERVER: Final = 150000
_LOCK: Final = 0x5A4D_B0C5_2E57_0E01
"""Key of the advisory lock that one migration at a time holds."""


async def upgrade(raw: Any, *, target: str, notify: Callable[[str], None]) -> list[str]:
    """Applies the revisions up to `target` and closes the connection; returns those applied."""

    async def given() -> Any:
        return raw

    applied: list[str] = []
    engine = create_async_engine("postgresql+asyncpg://", async_creator=given, poolclass=NullPool)
    try:
        async with engine.begin() as connection:
            await connection.run_sync(_upgrade, target=target, applied=applied, notify=notify)
    except DBAPIError as error:
        # Below two layers of wrapping lies the driver's error, which the store's edge knows.
        raise ((error.orig and error.orig.__cause__) or error) from None
    finally:
        await engine.dispose()
        raw.terminate()
    return applied


def revisions() -> tuple[str, ...]:
    """Every revision in this package, oldest first."""
    return tuple(s.revision for s in reversed(list(_scripts().walk_revisions())))


def _scripts() -> ScriptDirectory:
    return ScriptDirectory(str(Path(__file__).parent))


def _upgrade(
    connection: Connection, *, target: str, applied: list[str], notify: Callable[[str], None]
) -> None:
    version = connection.exec_driver_sql("SHOW server_version_num").scalar_one()
    if int(version) < OLDEST_SERVER:
        raise SchemaError(f"database: PostgreSQL 15 or later is needed, this is {version}")
    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
    if not connection.exec_driver_sql(f"SELECT to_regnamespace('{SCHEMA}')::text").scalar():
        connection.exec_driver_sql(f"CREATE SCHEMA {SCHEMA}")
    scripts = _scripts()

    def steps(current: tuple[str, ...], _: MigrationContext) -> list[Any]:
        found = scripts._upgrade_revs(target, current)  # type: ignore[arg-type]
        applied.extend(step.revision.revision for step in found)
        return found

    with EnvironmentContext(Config(), scripts, fn=steps, destination_rev=target) as environment:
        environment.configure(connection=connection, version_table_schema=SCHEMA)
        try:
            environment.run_migrations()
        except CommandError as error:
            raise SchemaError(f"database: {error}; upgrade sandbox-restore") from None
    ensure_roles(connection, notify=notify)
