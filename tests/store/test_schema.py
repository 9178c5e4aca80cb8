"""Section 15: `migrate` brings the schema up to date; start-up says what is wrong with it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import asyncpg
import pytest

from sandbox_restore.errors import (
    ConfigurationError,
    RejectedError,
    SchemaError,
    UnavailableError,
)
from sandbox_restore.store.connection import connect
from sandbox_restore.store.migrations import roles, runner
from sandbox_restore.store.schema import (
    SchemaState,
    SchemaStatus,
    judge,
    known_revisions,
    migrate,
    schema_state,
)
from sandbox_restore.store.store import Store
from tests.store.helpers import with_option

ALL = list(known_revisions())
HEAD = ALL[-1]


async def upgrade_to(dsn: str, revision: str) -> list[str]:
    connection = await connect(dsn, purpose="test", timeout=5)
    return await runner.upgrade(connection, target=revision, notify=lambda _line: None)


def test_the_files_are_the_revisions_in_their_order() -> None:
    assert list(runner.revisions()) == ALL


def test_the_operator_starts_without_what_only_migrations_need() -> None:
    """Alembic and SQLAlchemy are a quarter of a start."""
    program = (
        "import sys, sandbox_restore.app;"
        "sys.exit(','.join({'alembic', 'sqlalchemy'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert ran.stderr.strip() == b""


async def test_an_empty_database_is_absent_and_becomes_current(empty_dsn: str) -> None:
    state = await schema_state(empty_dsn)
    assert state == SchemaState(current=None, head=HEAD, status=SchemaStatus.ABSENT)
    with pytest.raises(SchemaError, match="does not exist; run `sandbox-restore migrate`"):
        state.require_current()
    assert await migrate(empty_dsn) == ALL
    state = await schema_state(empty_dsn)
    assert state == SchemaState(current=HEAD, head=HEAD, status=SchemaStatus.CURRENT)
    state.require_current()
    assert await migrate(empty_dsn) == []


async def test_a_database_that_is_behind_says_so_and_catches_up(empty_dsn: str) -> None:
    assert await upgrade_to(empty_dsn, ALL[2]) == ALL[:3]
    state = await schema_state(empty_dsn)
    assert (state.current, state.status) == (ALL[2], SchemaStatus.BEHIND)
    with pytest.raises(SchemaError, match=f"revision {ALL[2]}, this program needs {HEAD}; run"):
        state.require_current()
    assert await migrate(empty_dsn) == ALL[3:]
    assert (await schema_state(empty_dsn)).status is SchemaStatus.CURRENT


async def test_a_database_of_a_newer_program_is_left_alone(own_dsn: str) -> None:
    connection = await asyncpg.connect(own_dsn)
    await connection.execute("UPDATE sandbox_restore.alembic_version SET version_num = '9999'")
    await connection.close()
    state = await schema_state(own_dsn)
    assert (state.current, state.status) == ("9999", SchemaStatus.AHEAD)
    with pytest.raises(SchemaError, match=r"newer than this program's .* upgrade sandbox-restore"):
        state.require_current()
    with pytest.raises(SchemaError, match="upgrade sandbox-restore"):
        await migrate(own_dsn)
    assert (await schema_state(own_dsn)).current == "9999"


def test_two_recorded_revisions_are_nothing_this_program_knows() -> None:
    assert judge([HEAD, ALL[0]]).status is SchemaStatus.AHEAD


async def test_two_runs_at_once_apply_each_revision_once(empty_dsn: str) -> None:
    results = await asyncio.gather(*(migrate(empty_dsn) for _ in range(4)))
    assert sorted(results) == [[], [], [], ALL]
    assert (await schema_state(empty_dsn)).status is SchemaStatus.CURRENT


async def test_a_run_that_fails_leaves_nothing_behind(empty_dsn: str) -> None:
    connection = await asyncpg.connect(empty_dsn)
    await connection.execute("CREATE SCHEMA sandbox_restore CREATE TABLE execution (id int)")
    with pytest.raises(RejectedError, match="already exists"):
        await migrate(empty_dsn)
    tables = await connection.fetch(
        "SELECT tablename FROM pg_tables WHERE schemaname = 'sandbox_restore'"
    )
    assert [row[0] for row in tables] == ["execution"]
    assert (await schema_state(empty_dsn)).status is SchemaStatus.ABSENT
    await connection.execute("DROP SCHEMA sandbox_restore CASCADE")
    assert await migrate(empty_dsn) == ALL
    await connection.close()


async def test_nothing_is_made_outside_the_schema(own_dsn: str) -> None:
    connection = await asyncpg.connect(own_dsn)
    elsewhere = await connection.fetchval(
        """
        SELECT (SELECT count(*) FROM pg_class c WHERE c.oid >= 16384
            AND c.relnamespace <> 'sandbox_restore'::regnamespace
            AND c.relnamespace <> 'pg_toast'::regnamespace)
        + (SELECT count(*) FROM pg_proc p WHERE p.oid >= 16384
            AND p.pronamespace <> 'sandbox_restore'::regnamespace)
        """
    )
    assert elsewhere == 0
    await connection.close()


async def test_every_table_and_column_has_a_comment(own_dsn: str) -> None:
    connection = await asyncpg.connect(own_dsn)
    silent = await connection.fetch(
        """
        SELECT c.relname, a.attname FROM pg_class c
        JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum >= 0 AND NOT a.attisdropped
        WHERE c.relnamespace = 'sandbox_restore'::regnamespace AND c.relkind = 'r'
            AND c.relname <> 'alembic_version'
            AND col_description(c.oid, a.attnum) IS NULL
        """
    )
    assert silent == []
    await connection.close()


async def test_a_program_that_finds_no_schema_says_what_to_run(empty_dsn: str) -> None:
    async with await Store.open(empty_dsn) as store:
        with pytest.raises(SchemaError, match="run `sandbox-restore migrate`"):
            await store.view("box")
        with pytest.raises(SchemaError, match="run `sandbox-restore migrate`"):
            await store.counts()
        assert (await store.schema_state()).status is SchemaStatus.ABSENT


async def test_a_database_that_does_not_exist_says_so(dsn: str) -> None:
    away = dsn.replace("sr_shared", "sr_nowhere")
    with pytest.raises(SchemaError, match=r'database "sr_nowhere\w*" does not exist'):
        await Store.open(away)
    with pytest.raises(SchemaError, match="does not exist"):
        await migrate(away)
    with pytest.raises(SchemaError, match="does not exist"):
        await schema_state(away)


@pytest.mark.parametrize(
    "url",
    ["", "host/db", "mysql://u:secret@h/d", "postgresql://u:se/cret@h/d", "postgresql://h:x/d"],
)
async def test_a_url_that_is_none_is_refused_without_being_shown(url: str) -> None:
    for attempt in (migrate, schema_state, Store.open):
        with pytest.raises(ConfigurationError, match="database URL") as caught:
            await attempt(url)
        assert "cret" not in str(caught.value)
        assert caught.value.__suppress_context__ or caught.value.__context__ is None


async def test_a_server_that_is_away_is_unavailable() -> None:
    for attempt in (migrate, schema_state, Store.open):
        with pytest.raises(UnavailableError, match="cannot be reached"):
            await attempt("postgresql://u:secret@127.0.0.1:1/d")


class Answer:
    """A connection whose server says it is of that version."""

    def __init__(self, version: str) -> None:
        self.version = version

    def exec_driver_sql(self, _sql: str) -> Answer:
        return self

    def scalar_one(self) -> str:
        return self.version


def test_an_older_server_is_refused() -> None:
    old: Any = Answer("140012")
    with pytest.raises(SchemaError, match="PostgreSQL 15 or later is needed, this is 140012"):
        runner._upgrade(old, target="head", applied=[], notify=lambda _line: None)


# --- the roles


async def test_missing_roles_are_made_as_groups_nobody_can_log_in_to(own_dsn: str) -> None:
    connection = await asyncpg.connect(own_dsn)
    rows = await connection.fetch(
        "SELECT rolname, rolcanlogin, rolsuper, rolinherit FROM pg_roles WHERE rolname = ANY ($1)",
        list(roles.RIGHTS),
    )
    assert {row["rolname"] for row in rows} == {
        "sandbox_restore_operator",
        "sandbox_restore_platform",
    }
    assert not any(row["rolcanlogin"] or row["rolsuper"] for row in rows)
    await connection.close()


async def test_a_user_who_may_not_create_roles_is_told_and_gets_the_schema(
    empty_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the next run, once somebody has made the role, grants its rights."""
    role = "sr_test_absent_role"
    owner = await asyncpg.connect(empty_dsn)
    database = await owner.fetchval("SELECT current_database()")
    for name in (role, "sr_test_migrator"):
        await owner.execute(f"DROP ROLE IF EXISTS {name}")
    await owner.execute("CREATE ROLE sr_test_migrator NOLOGIN")
    await owner.execute(f'GRANT CREATE ON DATABASE "{database}" TO sr_test_migrator')
    monkeypatch.setattr(roles, "RIGHTS", {role: roles.READ})
    lines: list[str] = []
    dsn = with_option(empty_dsn, "role=sr_test_migrator")
    assert await migrate(dsn, notify=lines.append) == ALL
    (line,) = lines
    assert f"CREATE ROLE {role} NOLOGIN" in line
    assert "run `sandbox-restore migrate` again" in line
    await owner.execute(f"CREATE ROLE {role} NOLOGIN")
    lines.clear()
    assert await migrate(dsn, notify=lines.append) == []
    assert lines == []
    assert await owner.fetchval(
        "SELECT has_table_privilege($1, 'sandbox_restore.sandbox', 'SELECT')", role
    )
    await owner.execute(f"DROP OWNED BY {role}, sr_test_migrator CASCADE")
    await owner.execute(f"DROP ROLE {role}; DROP ROLE sr_test_migrator")
    await owner.close()


async def test_rights_granted_by_hand_are_taken_back(own_dsn: str) -> None:
    connection = await asyncpg.connect(own_dsn)
    await connection.execute(
        "GRANT DELETE ON sandbox_restore.sandbox TO sandbox_restore_platform;"
        "GRANT UPDATE (version) ON sandbox_restore.sandbox TO sandbox_restore_platform;"
        "GRANT SELECT ON sandbox_restore.snapshot TO PUBLIC;"
        "GRANT EXECUTE ON FUNCTION sandbox_restore.operator_view TO PUBLIC"
    )
    await migrate(own_dsn)
    for question in (
        "has_table_privilege('sandbox_restore_platform', 'sandbox_restore.sandbox', 'DELETE')",
        "has_column_privilege('sandbox_restore_platform', 'sandbox_restore.sandbox', 'version',"
        " 'UPDATE')",
        "has_table_privilege('pg_monitor', 'sandbox_restore.snapshot', 'SELECT')",
        "has_function_privilege('sandbox_restore_platform',"
        " 'sandbox_restore.operator_view(text, text[])', 'EXECUTE')",
    ):
        assert await connection.fetchval(f"SELECT {question}") is False
    await connection.close()
