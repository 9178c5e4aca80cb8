"""The SQL of docs/stranded-restores.md, run as the platform that it is written for."""

from __future__ import annotations

import re
from pathlib import Path

from sandbox_restore.store.migrations.roles import PLATFORM
from tests.store.helpers import Database

PAGE = Path(__file__).parents[2] / "docs" / "stranded-restores.md"


async def test_the_sql_of_the_page_runs_and_does_what_it_says(
    db: Database, other: Database
) -> None:
    blocks = [
        re.sub(r"^ +", "", block, flags=re.MULTILINE)
        for block in re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)
    ]
    looks, host_cpu, state_lost = blocks
    box = {"sandbox_id": "box-7f3a"}
    await db.call("sandbox_created", **box, namespace="team-a")
    pod = {"node_name": "node-a", "pod_uid": "p1"}
    await db.call("execution_started", **box, pod_name="box-7f3a-0", **pod)
    await db.raw.execute(
        "SELECT sandbox_restore.snapshot_started(sandbox_id => 'box-7f3a', snapshot_id => 'snap-1',"
        " captured_at => now());"
        "SELECT sandbox_restore.snapshot_ready(sandbox_id => 'box-7f3a', snapshot_id => 'snap-1',"
        " storage_uri => 's3://sandboxes/box-7f3a/snap-1')"
    )
    await db.call("sandbox_suspended", **box, **pod)
    await other.raw.execute(f"SET ROLE {PLATFORM}")
    try:
        for query in looks.split(";"):
            await other.raw.fetch(query)
        await other.raw.execute(host_cpu)
        (snapshot,) = (await db.view("box-7f3a")).snapshots
        assert snapshot.host_cpu == "intel-6-106-6"
        assert (await db.view("box-7f3a")).sandbox.pinned_node == "node-a"
        await other.raw.execute(state_lost)
    finally:
        await other.raw.execute("RESET ROLE")
    row = (await db.view("box-7f3a")).sandbox
    assert (row.pinned_node, row.local_artifact_marker) == (None, False)
