"""docs/schema.md against a real database: tables, rules, functions, and the SQL it shows."""

from __future__ import annotations

import re
from pathlib import Path

import asyncpg
import pytest

from sandbox_restore.store.migrations.roles import OPERATOR, PLATFORM, PLATFORM_FUNCTIONS
from tests.store.helpers import Database

PAGE = Path(__file__).parents[2] / "docs" / "schema.md"
TABLES = ("sandbox", "snapshot", "execution", "load_observation", "node_cpu_history")

COLUMNS = """
SELECT a.attname, format_type(coalesce(nullif(t.typbasetype, 0), t.oid), NULL),
    CASE WHEN a.attnotnull THEN 'no' ELSE 'yes' END,
    col_description(a.attrelid, a.attnum)
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = ('sandbox_restore.' || $1)::regclass AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
"""

RULES = """
SELECT conname FROM pg_constraint
WHERE connamespace = 'sandbox_restore'::regnamespace AND contype IN ('c', 'f', 'u')
    AND conname NOT LIKE 'alembic%'
UNION SELECT relname FROM pg_class c JOIN pg_index i ON i.indexrelid = c.oid
WHERE relnamespace = 'sandbox_restore'::regnamespace AND i.indisunique AND NOT i.indisprimary
    AND NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conindid = c.oid)
"""

FUNCTIONS = """
SELECT p.proname || '(' || pg_get_function_arguments(p.oid) || ')',
    pg_get_function_result(p.oid)
FROM pg_proc p
WHERE p.pronamespace = 'sandbox_restore'::regnamespace AND p.proname = ANY ($1)
"""

COLUMN_RIGHTS = """
SELECT a.attname FROM pg_attribute a
WHERE a.attrelid = ('sandbox_restore.' || $1)::regclass AND a.attnum > 0
    AND has_column_privilege($2, a.attrelid, a.attnum, 'UPDATE')
"""


def rows(heading: str) -> list[list[str]]:
    """The cells of the first table under a heading, without its head."""
    _, _, rest = PAGE.read_text().partition(f"\n{heading}\n")
    assert rest, f"docs/schema.md has no heading {heading!r}"
    lines = [line for line in rest.split("\n#")[0].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def plain(text: str) -> str:
    return text.strip().strip("`")


@pytest.mark.parametrize("table", TABLES)
async def test_the_page_shows_every_column_as_it_is(db: Database, table: str) -> None:
    shown = [tuple(map(plain, row)) for row in rows(f"### `{table}`")]
    real = [tuple(row) for row in await db.raw.fetch(COLUMNS, table)]
    assert shown == real


async def test_the_page_shows_every_table(db: Database) -> None:
    real = await db.raw.fetch(
        "SELECT tablename FROM pg_tables WHERE schemaname = 'sandbox_restore'"
        " AND tablename <> 'alembic_version'"
    )
    assert {row[0] for row in real} == set(TABLES)


async def test_the_page_explains_every_rule(db: Database) -> None:
    shown = [plain(name) for name, _ in rows("## Rows that are refused")]
    real = {row[0] for row in await db.raw.fetch(RULES)}
    domain = {"instant_is_a_calendar_time"}
    assert set(shown) == real | domain
    assert len(shown) == len(set(shown))


async def test_the_page_shows_every_function_as_it_is(db: Database) -> None:
    shown = {(plain(call), plain(result)) for call, result in rows("## What the platform reports")}
    real = {tuple(row) for row in await db.raw.fetch(FUNCTIONS, list(PLATFORM_FUNCTIONS))}
    assert shown == real
    text = PAGE.read_text()
    assert [name for name in PLATFORM_FUNCTIONS if text.count(f"`{name}") < 2] == []


async def test_the_page_names_the_columns_that_the_operator_may_update(db: Database) -> None:
    shown = {plain(table): cells for table, cells in rows("## What the operator writes")}
    assert set(shown) == {"sandbox", "execution", "load_observation", "node_cpu_history"}
    for table, cells in shown.items():
        real = {row[0] for row in await db.raw.fetch(COLUMN_RIGHTS, table, OPERATOR)}
        assert set(re.findall(r"`(\w+)`", cells)) == real


async def test_the_sql_of_the_page_runs_and_does_what_it_says(
    db: Database, other: Database
) -> None:
    blocks = re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 4
    states = []
    await other.raw.execute(f"SET ROLE {PLATFORM}")
    try:
        for block in blocks:
            await other.raw.execute(block)
            row = (await db.view("box-7f3a")).sandbox
            states.append((str(row.state), row.pinned_node, row.local_artifact_marker))
    finally:
        await other.raw.execute("RESET ROLE")
    assert states == [
        ("running", "node-a", True),
        ("suspended", "node-a", False),
        ("suspended", None, False),
        ("suspended", None, False),
    ]
    (snapshot,) = (await db.view("box-7f3a")).snapshots
    assert (snapshot.host_cpu, snapshot.storage_uri) == (
        "intel-6-106-6",
        "s3://sandboxes/box-7f3a/snap-1",
    )


async def test_every_error_code_that_a_function_raises_is_on_the_page(db: Database) -> None:
    sources = await db.raw.fetch(
        "SELECT prosrc FROM pg_proc WHERE pronamespace = 'sandbox_restore'::regnamespace"
        " AND proname NOT LIKE 'operator%' AND proname <> 'guard_execution'"
    )
    raised = set(re.findall(r"ERRCODE = '(\w+)'", " ".join(row[0] for row in sources)))
    shown = {cells[1] for cells in rows("### Errors")}
    assert raised == {name for name in shown if "," not in name}
    for code, name, _ in rows("### Errors"):
        if "," not in name:
            with pytest.raises(asyncpg.PostgresError) as caught:
                await db.raw.execute(f"DO $$ BEGIN RAISE SQLSTATE '{code}'; END $$")
            assert caught.value.sqlstate == code
            with pytest.raises(type(caught.value)):
                await db.raw.execute(f"DO $$ BEGIN RAISE {name}; END $$")
