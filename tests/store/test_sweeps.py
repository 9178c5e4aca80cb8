"""Sections 12, 14 and 15: what the sweeps and the metrics ask, each from an index."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from sandbox_restore.model.sandbox import LeftPinned, NodeCpuSpan, Outcome, SandboxState
from sandbox_restore.store import store as queries
from sandbox_restore.store.connection import Query
from sandbox_restore.store.records import Counts, OpenExecution, ReleasedExecution, RestoringRow
from sandbox_restore.store.store import Store
from tests.store.helpers import NAMESPACE, SANDBOX, Database, at, begin, load


@pytest.fixture
async def box(db: Database) -> Database:
    await db.created()
    await db.stored()
    return db


async def retire(store: Store, outcome: Outcome, row_state: SandboxState) -> None:
    async with store.locked(SANDBOX) as locked:
        await locked.retire(
            execution_id="execution-1",
            outcome=outcome,
            row_state=row_state,
            pinned_node=None,
            marker=False,
            now=at(120),
        )


async def test_an_open_execution_is_found_until_it_is_released(box: Database, store: Store) -> None:
    assert await store.unreleased_active() == []
    async with store.locked(SANDBOX) as locked:
        await begin(locked)
    expected = {
        "sandbox_id": SANDBOX,
        "namespace": NAMESPACE,
        "execution_id": "execution-1",
        "restore_uid": "restore-uid",
        "restore_name": "wake",
        "pod_name": "wake-1",
    }
    assert await store.unreleased_active() == [OpenExecution(**expected, loaded=False)]
    async with store.locked(SANDBOX) as locked:
        await load(locked)
    assert await store.unreleased_active() == [OpenExecution(**expected, loaded=True)]
    await store.mark_released(SANDBOX, "execution-1", pod_uid="pod-of-1", now=at(111))
    assert await store.unreleased_active() == []


async def test_an_execution_of_the_platform_is_not_open(box: Database, store: Store) -> None:
    await box.started()
    assert await store.unreleased_active() == []


async def test_a_retired_execution_is_not_open(box: Database, store: Store) -> None:
    async with store.locked(SANDBOX) as locked:
        await begin(locked)
    await retire(store, Outcome.CANCELLED, SandboxState.FAILED)
    assert await store.unreleased_active() == []


async def test_a_restoring_row_is_found_while_nothing_is_active(
    box: Database, store: Store
) -> None:
    async with store.locked(SANDBOX) as locked:
        await begin(locked)
    assert await store.restoring_without_active() == []
    await retire(store, Outcome.FAILED, SandboxState.RESTORING)
    assert await store.restoring_without_active() == [
        RestoringRow(
            sandbox_id=SANDBOX,
            namespace=NAMESPACE,
            restore_uid="restore-uid",
            restore_name="wake",
            restore_started_at=at(100),
        )
    ]
    async with store.locked(SANDBOX) as locked:
        await locked.fail_row(at(130))
    assert await store.restoring_without_active() == []


async def test_a_restoring_row_without_any_execution_is_found_too(
    db: Database, store: Store
) -> None:
    await db.insert(
        "sandbox", id=SANDBOX, namespace=NAMESPACE, state="restoring", restore_started_at=at(1)
    )
    (row,) = await store.restoring_without_active()
    assert (row.sandbox_id, row.restore_uid, row.restore_name) == (SANDBOX, None, None)


async def test_a_released_pod_of_a_retired_execution_is_found(box: Database, store: Store) -> None:
    async with store.locked(SANDBOX) as locked:
        await begin(locked)
        await load(locked)
    await store.mark_released(SANDBOX, "execution-1", pod_uid="pod-of-1", now=at(111))
    assert await store.released_retired(at(0)) == []
    await retire(store, Outcome.LOST, SandboxState.SUSPENDED)
    assert await store.released_retired(at(120)) == [
        ReleasedExecution(
            sandbox_id=SANDBOX,
            namespace=NAMESPACE,
            execution_id="execution-1",
            restore_uid="restore-uid",
            restore_name="wake",
            pod_name="wake-1",
            pod_uid="pod-of-1",
            retired_at=at(120),
        )
    ]
    assert await store.released_retired(at(121)) == []


async def test_rows_are_counted_by_state(box: Database, store: Store) -> None:
    assert await store.counts() == Counts(sandboxes={"suspended": 1})
    await box.created("second")
    await box.started()
    assert await store.counts() == Counts(sandboxes={"running": 1, "suspended": 1})


async def test_an_empty_database_counts_nothing(db: Database, store: Store) -> None:
    assert await store.counts() == Counts()


# --- section 12: node history


def span(name: str = "node-a", uid: str = "uid", cpu: str = "amd-25-17-1", **t: int) -> NodeCpuSpan:
    return NodeCpuSpan(
        node_name=name,
        node_uid=uid,
        host_cpu=cpu,
        first_seen_at=at(t.get("first", 0)),
        last_seen_at=at(t.get("last", 10)),
    )


async def test_spans_are_kept_and_only_their_end_moves_forward(db: Database, store: Store) -> None:
    assert await store.record_nodes([span(), span("node-b", last=20)]) == 2
    assert await store.record_nodes([span(last=30), span("node-b", last=5)]) == 1
    assert await store.node_history(at(0)) == [span(last=30), span("node-b", last=20)]
    assert await store.node_history(at(25)) == [span(last=30)]


async def test_spans_are_read_in_pages_those_seen_last_first(db: Database, store: Store) -> None:
    spans = [span(f"node-{i:02}", uid, last=i // 4) for i in range(20) for uid in ("a", "b")]
    await store.record_nodes(spans)
    read: list[NodeCpuSpan] = []
    while page := await store.node_history(at(1), limit=3, after=read[-1] if read else None):
        assert len(page) <= 3
        read += page
    wanted = [one for one in spans if one.last_seen_at >= at(1)]
    assert read == sorted(
        wanted, key=lambda s: (s.last_seen_at, s.node_name, s.node_uid), reverse=True
    )


async def test_when_each_cpu_was_last_seen(db: Database, store: Store) -> None:
    assert await store.cpus_last_seen(at(0)) == {}
    await store.record_nodes(
        [span(last=10), span("node-b", last=20), span("node-c", cpu="intel-6-106-6", last=5)]
    )
    assert await store.cpus_last_seen(at(0)) == {"amd-25-17-1": at(20), "intel-6-106-6": at(5)}
    assert await store.cpus_last_seen(at(6)) == {"amd-25-17-1": at(20)}


async def test_a_span_never_changes_its_cpu(db: Database, store: Store) -> None:
    await store.record_nodes([span()])
    assert await store.record_nodes([span(cpu="intel-6-106-6", last=99)]) == 0
    assert await store.node_history(at(0)) == [span()]


async def test_a_node_may_carry_one_cpu_after_another(db: Database, store: Store) -> None:
    spans = [
        span(),
        span(cpu="intel-6-106-6", first=20, last=30),
        span(uid="new", first=40, last=50),
    ]
    assert await store.record_nodes(spans) == 3
    assert await store.node_history(at(0)) == spans[::-1]


async def test_what_has_aged_out_is_pruned(box: Database, store: Store) -> None:
    async with store.locked(SANDBOX) as locked:
        await begin(locked)
        await load(locked)
    await store.record_nodes([span(last=10), span("node-b", last=20)])
    assert await store.prune(observations_before=at(110), spans_before=at(20)) == 1
    assert await store.prune(observations_before=at(111), spans_before=at(20)) == 1
    assert await store.observations(at(0)) == []
    assert await store.node_history(at(0)) == [span("node-b", last=20)]


async def test_one_pruning_deletes_no_more_than_its_limit(db: Database, store: Store) -> None:
    await store.record_nodes([span(f"node-{i}") for i in range(5)])
    deleted = [
        await store.prune(observations_before=at(0), spans_before=at(20), limit=2) for _ in range(4)
    ]
    assert deleted == [2, 2, 1, 0]


# --- one indexed statement each

CROWD = """
SET session_replication_role = replica;
INSERT INTO sandbox_restore.sandbox
    (id, namespace, state, pinned_node, restore_started_at, version)
SELECT 'box-' || n, 'ns',
    CASE WHEN n % 500 = 1 THEN 'restoring' WHEN n % 100 = 2 THEN 'failed' ELSE 'suspended' END,
    'node-' || n % 50, CASE WHEN n % 500 = 1 THEN now() END, 1
FROM generate_series(1, 5000) n;
INSERT INTO sandbox_restore.snapshot (id, sandbox_id, state, captured_at, host_cpu, storage_uri)
SELECT 'snap-' || n, 'box-' || n, 'ready', now(), 'cpu-' || n % 5, 's3://b/' || n
FROM generate_series(1, 5000) n;
INSERT INTO sandbox_restore.execution (id, sandbox_id, snapshot_id, source, restore_uid,
    restore_name, attempt, pod_name, pod_uid, node_name, state, outcome, created_at, loaded_at,
    released_at, retired_at)
SELECT 'run-' || n, 'box-' || n, 'snap-' || n, 'storage', 'uid-' || n, 'wake', 1, 'pod', 'p-' || n,
    'node', CASE WHEN n % 500 = 3 THEN 'active' ELSE 'retired' END,
    CASE WHEN n % 500 <> 3 THEN 'lost' END, now(), now(), CASE WHEN n % 500 <> 3 THEN now() END,
    CASE WHEN n % 500 <> 3 THEN now() - n * interval '1 minute' END
FROM generate_series(1, 5000) n;
INSERT INTO sandbox_restore.load_observation
    (execution_id, sandbox_id, result, node_name, observed_at)
SELECT 'run-' || n, 'box-' || n, 'loaded', 'node', now() - n * interval '1 minute'
FROM generate_series(1, 5000) n;
INSERT INTO sandbox_restore.node_cpu_history
SELECT 'node-' || n, 'uid', 'cpu', now() - n * interval '1 minute', now() - n * interval '1 minute'
FROM generate_series(1, 5000) n;
RESET session_replication_role;
VACUUM ANALYZE sandbox_restore.sandbox, sandbox_restore.snapshot, sandbox_restore.execution,
    sandbox_restore.load_observation, sandbox_restore.node_cpu_history
"""


def nodes(plan: Any) -> list[dict[str, Any]]:
    """Every node of a plan."""
    if isinstance(plan, dict):
        own = [plan] if "Node Type" in plan else []
        return own + [node for value in plan.values() for node in nodes(value)]
    return [node for value in plan for node in nodes(value)] if isinstance(plan, list) else []


async def test_a_row_that_a_failed_restore_left_pinned_is_found_once_it_is_retired(
    box: Database, store: Store
) -> None:
    async with store.locked(SANDBOX) as locked:
        await begin(locked)
        await locked.retire(
            execution_id="execution-1",
            outcome=Outcome.FAILED,
            row_state=SandboxState.FAILED,
            pinned_node="node-b",
            marker=False,
            now=at(120),
            failure_class="cpu-incompatible",
            node_name="node-b",
            node_uid="node-b-uid",
        )
    found = await store.left_pinned()
    assert found == [
        LeftPinned(
            sandbox_id=SANDBOX,
            namespace=NAMESPACE,
            pinned_node="node-b",
            marker=False,
            failure_class="cpu-incompatible",
            node_name="node-b",
            node_uid="node-b-uid",
            retired_at=at(120),
            snapshot_id="snap",
            captured_at=at(20),
            uploaded_by=None,
            host_cpu=None,
            ancestor_cpus=(),
            in_storage=True,
        )
    ]
    # The next attempt is active: nothing is stranded while it runs.
    async with store.locked(SANDBOX) as locked:
        await begin(locked, 2)
    assert await store.left_pinned() == []


async def test_refusals_are_counted_by_pairs_of_sandbox_and_node(
    box: Database, store: Store
) -> None:
    async with store.locked(SANDBOX) as locked:
        for attempt, node, when in ((1, "b", 110), (2, "b", 120), (3, "c", 130)):
            await begin(locked, attempt, capture_cpu="intel-6-106-6")
            await locked.retire(
                execution_id=f"execution-{attempt}",
                outcome=Outcome.FAILED,
                row_state=SandboxState.RESTORING,
                pinned_node=f"node-{node}",
                marker=False,
                now=at(when),
                failure_class="cpu-incompatible",
                node_name=f"node-{node}",
                node_uid=f"node-{node}-uid",
                node_cpu="amd-25-17-1" if node == "b" else None,
            )
    assert await store.refusals(at(0)) == {
        ("intel-6-106-6", "amd-25-17-1"): 1,
        ("intel-6-106-6", ""): 1,
    }
    assert await store.refusals(at(121)) == {("intel-6-106-6", ""): 1}
    assert await store.refusals(at(131)) == {}


async def test_a_suspended_sandbox_on_its_own_node_is_not_left_pinned(
    box: Database, store: Store
) -> None:
    await box.started()
    await box.suspended()
    assert await store.left_pinned() == []


async def test_every_sweep_reads_its_index_and_no_table_from_end_to_end(own_dsn: str) -> None:
    now = datetime.now(UTC)
    sweeps: list[tuple[Query, list[Any], str]] = [
        (queries.UNRELEASED_ACTIVE, [], "execution_unreleased"),
        (queries.RESTORING_WITHOUT_ACTIVE, [], "sandbox_by_state"),
        (queries.RELEASED_RETIRED, [now - timedelta(minutes=5)], "execution_released_retired"),
        (queries.OBSERVATIONS, [now - timedelta(minutes=5), 10], "load_observation_recent"),
        (
            queries.REFUSALS,
            [now - timedelta(minutes=5)],
            "load_observation_recent load_observation_refusals",
        ),
        (
            queries.NODE_HISTORY,
            [now - timedelta(minutes=5), 10, now, "node", "uid", now],
            "node_cpu_history_recent",
        ),
        (queries.CPUS_LAST_SEEN, [now - timedelta(minutes=5)], "node_cpu_history_recent"),
        (queries.PRUNE, [now - timedelta(days=3)] * 2 + [10], "node_cpu_history_recent"),
        (queries.PRUNE, [now - timedelta(days=3)] * 2 + [10], "load_observation_recent"),
        # Of few rows the wider index by state is as good as its own.
        (queries.LEFT_PINNED, [1000], "sandbox_left_pinned sandbox_by_state"),
    ]
    connection = await asyncpg.connect(own_dsn)
    for statement in CROWD.split(";"):
        await connection.execute(statement)
    for query, arguments, wanted in sweeps:
        raw = await connection.fetchval(f"EXPLAIN (FORMAT JSON) {query.sql}", *arguments)
        found = nodes(json.loads(raw))
        assert set(wanted.split()) & {node.get("Index Name") for node in found}, query.name
        assert "Seq Scan" not in {node["Node Type"] for node in found}, query.name
    await connection.close()
