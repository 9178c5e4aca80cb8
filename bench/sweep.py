"""The stranded sweep: one query over 1,000,000 rows of which 10,000 are stranded, on real Postgres.

Measured: the query with its answer decoded, and the verdict on each row. The rows are written with
triggers off, as a database that has grown for years would hold them, and analysed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from datetime import UTC, datetime, timedelta

import asyncpg

from sandbox_restore.fleet.compatibility import Compatibility
from sandbox_restore.fleet.index import FleetIndex
from sandbox_restore.model.names import HOST_CPU_LABEL
from sandbox_restore.model.node import NodeFacts
from sandbox_restore.restore.stranded import stranded_rows
from sandbox_restore.store.schema import migrate
from sandbox_restore.store.store import LEFT_PINNED, Store
from tests.support.postgres import open_postgres

NODES = 1_000
CPUS = ("intel-6-106-6", "intel-6-85-7", "amd-25-17-1", "amd-25-1-1")

FILL = """
SET session_replication_role = replica;
INSERT INTO sandbox_restore.sandbox (id, namespace, state, pinned_node, local_artifact_marker,
    restore_started_at)
SELECT 'box-' || n, 'team-' || n % 50,
    CASE WHEN n <= {stranded} THEN 'failed' ELSE 'suspended' END,
    CASE WHEN n <= {stranded} OR n % 2 = 0 THEN 'node-' || n % {nodes} END,
    n > {stranded} AND n % 2 = 0, NULL
FROM generate_series(1, {rows}) n;
INSERT INTO sandbox_restore.snapshot (id, sandbox_id, state, captured_at, host_cpu, storage_uri)
SELECT 'snap-' || n, 'box-' || n, 'ready', now() - n * interval '1 second',
    (ARRAY[{cpus}])[(n + 1) % {cpu_count} + 1], 's3://b/' || n
FROM generate_series(1, {rows}) n;
INSERT INTO sandbox_restore.execution (id, sandbox_id, snapshot_id, source, restore_uid,
    restore_name, attempt, pod_name, pod_uid, node_name, node_uid, state, outcome, failure_class,
    created_at, loaded_at, released_at, retired_at)
SELECT 'run-' || n, 'box-' || n, 'snap-' || n, 'storage', 'uid-' || n, 'wake', 1, 'pod', 'p-' || n,
    'node-' || n % {nodes}, 'uid', 'retired',
    CASE WHEN n <= {stranded} THEN 'failed' ELSE 'lost' END,
    CASE WHEN n <= {stranded} THEN 'transport' END,
    now(), CASE WHEN n > {stranded} THEN now() END, CASE WHEN n > {stranded} THEN now() END, now()
FROM generate_series(1, {rows}) n;
RESET session_replication_role;
ANALYZE;
CHECKPOINT
"""


def fleet() -> FleetIndex:
    """A warm index of nodes whose CPUs follow their numbers."""
    now = datetime.now(UTC)
    index = FleetIndex(cpu_label=HOST_CPU_LABEL, published_hold=timedelta())
    index.replace(
        [
            NodeFacts(
                name=f"node-{number}",
                uid=f"uid-{number}",
                created=now - timedelta(days=900),
                labels={HOST_CPU_LABEL: CPUS[number % len(CPUS)]},
                ready=True,
            )
            for number in range(NODES)
        ],
        now=now,
    )
    return index


async def measure(
    *, rows: int, stranded: int, repeat: int, explain: bool = False
) -> dict[str, float]:
    """Fills a database of its own and sweeps it; `seconds` is the median of `repeat` passes."""
    with open_postgres() as postgres:
        dsn = await postgres.create_database("bench_sweep")
        await migrate(dsn)
        connection = await asyncpg.connect(dsn)
        filled = FILL.format(
            rows=rows,
            stranded=stranded,
            nodes=NODES,
            cpus=", ".join(f"'{cpu}'" for cpu in CPUS),
            cpu_count=len(CPUS),
        )
        for statement in filled.split(";"):
            await connection.execute(statement, timeout=3600)
        if explain:
            sql = f"EXPLAIN (ANALYZE, BUFFERS) {LEFT_PINNED.sql}"
            for line in await connection.fetch(sql, 200_000):
                print(line[0], file=sys.stderr)
        await connection.close()
        index, compatibility = fleet(), Compatibility.parse("")[0]
        passes, found = [], 0
        async with await Store.open(dsn, pool_size=2) as store:
            for _ in range(repeat):
                began = time.perf_counter()
                left = await store.left_pinned()
                found = len(
                    stranded_rows(
                        left,
                        index,
                        compatibility,
                        now=datetime.now(UTC),
                        gone_grace=timedelta(minutes=5),
                        observation_ttl=timedelta(hours=24),
                    )
                )
                passes.append(time.perf_counter() - began)
    passes.sort()
    return {
        "rows": rows,
        "stranded": found,
        "seconds": round(passes[len(passes) // 2], 3),
        "slowest_seconds": round(passes[-1], 3),
    }


def main(arguments: list[str]) -> int:
    """Prints one line, or one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m bench sweep", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--stranded", type=int, default=10_000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--explain", action="store_true", help="print the plan on standard error")
    given = parser.parse_args(arguments)
    print(f"writing {given.rows:,} sandboxes (some minutes)", file=sys.stderr)
    found = asyncio.run(
        measure(
            rows=given.rows, stranded=given.stranded, repeat=given.repeat, explain=given.explain
        )
    )
    if given.json:
        print(json.dumps(found))
    else:
        print(
            f"{found['stranded']:,} stranded of {found['rows']:,} rows in {found['seconds']} s "
            f"(slowest of {given.repeat}: {found['slowest_seconds']} s)"
        )
    return 0
