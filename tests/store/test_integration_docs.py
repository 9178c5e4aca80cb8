"""The SQL of docs/integration.md, run in order as the platform that it is written for."""

from __future__ import annotations

import re
from pathlib import Path

from sandbox_restore.store.migrations.roles import PLATFORM
from tests.store.helpers import Database

PAGE = (Path(__file__).parents[2] / "docs" / "integration.md").read_text()
BOX = "box-42"


async def test_the_sql_of_the_page_runs_in_order_and_does_what_it_says(
    db: Database, other: Database
) -> None:
    role, boot, activity, suspend, ready, look, lost = re.findall(
        r"```sql\n(.*?)```", PAGE, re.DOTALL
    )
    assert f"IN ROLE {PLATFORM}" in role
    await other.raw.execute(f"SET ROLE {PLATFORM}")
    try:
        await other.raw.execute(boot)
        view = await db.view(BOX)
        assert (view.sandbox.state, view.sandbox.pinned_node) == ("running", "node-a")
        await other.raw.execute(activity)
        assert (await db.view(BOX)).sandbox.last_access_at is not None
        await other.raw.execute(suspend)
        row = (await db.view(BOX)).sandbox
        assert (row.state, row.pinned_node, row.local_artifact_marker) == (
            "suspended",
            "node-a",
            True,
        )
        await other.raw.execute(ready)
        row = (await db.view(BOX)).sandbox
        assert (row.pinned_node, row.local_artifact_marker) == ("node-a", False)
        (shown,) = await other.raw.fetch(look)
        assert (shown["state"], shown["pinned_node"]) == ("suspended", "node-a")
        await other.raw.execute(lost)
        assert (await db.view(BOX)).sandbox.pinned_node is None
    finally:
        await other.raw.execute("RESET ROLE")


async def test_every_function_of_the_platform_is_on_the_page(db: Database) -> None:
    functions = await db.raw.fetch(
        "SELECT proname FROM pg_proc WHERE pronamespace = 'sandbox_restore'::regnamespace"
        f" AND has_function_privilege('{PLATFORM}', oid, 'EXECUTE')"
    )
    names = {row["proname"] for row in functions}
    assert {name for name in names if f"| `{name}`" not in PAGE} == set()
    assert len(names) >= 9
