"""What `fleet` asks of the database, on a real Postgres."""

from __future__ import annotations

from typing import Any

import pytest

from sandbox_restore.model.sandbox import PinnedThere, SandboxState, StoredKind, StoredLineage
from sandbox_restore.store.store import Store
from tests.store.helpers import NAMESPACE, Database, at, begin, load

ICE, BROADWELL = "intel-6-106-6", "intel-6-79-1"


@pytest.fixture
def rows(dsn: str, owner: Database) -> Rows:
    return Rows(owner)


class Rows:
    """Writes rows past every function."""

    def __init__(self, owner: Database) -> None:
        self._owner = owner

    async def sandbox(self, name: str, **columns: Any) -> None:
        given = {"id": name, "namespace": NAMESPACE, "state": "suspended", **columns}
        await self._owner.insert("sandbox", **given)

    async def snapshot(self, sandbox: str, second: float, **columns: Any) -> None:
        name = f"{sandbox}-{second:g}"
        given = {
            "id": name,
            "sandbox_id": sandbox,
            "kind": "full",
            "state": "ready",
            "captured_at": at(second),
            "host_cpu": ICE,
            "storage_uri": f"s3://bucket/{name}",
            **columns,
        }
        await self._owner.insert("snapshot", **given)


async def test_snapshots_are_counted_by_capture_cpu_and_ancestry(dsn: str, rows: Rows) -> None:
    for name in ("a", "b"):
        await rows.sandbox(name)
        await rows.snapshot(name, 1)
    await rows.snapshot("a", 2)
    await rows.snapshot("a", 3, host_cpu=BROADWELL, ancestor_cpus=[ICE])
    await rows.snapshot("b", 4, host_cpu=None)
    await rows.snapshot("b", 5, state="failed")
    await rows.snapshot("b", 6, kind="diff")
    async with await Store.open(dsn, pool_size=1) as store:
        found = await store.stored_lineages()
    assert sorted(found, key=str) == sorted(
        [
            StoredLineage(capture_cpu=ICE, snapshots=3, sandboxes=2),
            StoredLineage(capture_cpu=BROADWELL, ancestor_cpus=(ICE,), snapshots=1, sandboxes=1),
            StoredLineage(capture_cpu=None, snapshots=1, sandboxes=1),
        ],
        key=str,
    )


async def test_rows_pinned_to_a_node_say_whether_storage_has_a_copy(dsn: str, rows: Rows) -> None:
    await rows.sandbox("a", pinned_node="n1", local_artifact_marker=True)
    await rows.sandbox("b", pinned_node="n1", node_group="g1", node_selector='{"disk": "fast"}')
    await rows.sandbox("c", pinned_node="n2")
    await rows.sandbox("d")
    await rows.snapshot("b", 1)
    await rows.sandbox("e-behind", pinned_node="n1", last_command_at=at(2))
    await rows.snapshot("e-behind", 1)
    await rows.sandbox("f-newer-failed", pinned_node="n1")
    await rows.snapshot("f-newer-failed", 1)
    await rows.snapshot("f-newer-failed", 2, state="failed", storage_uri=None)
    await rows.sandbox("g-uploading", pinned_node="n1")
    await rows.snapshot("g-uploading", 1)
    await rows.snapshot("g-uploading", 2, state="uploading", captured_at=None, storage_uri=None)
    await rows.snapshot("a", 1, storage_uri=None)
    async with await Store.open(dsn, pool_size=1) as store:
        found = await store.pinned_to(["n1", "n3"])
        assert await store.pinned_to([]) == []

    def row(name: str, *, marker: bool, in_storage: bool, **more: Any) -> PinnedThere:
        return PinnedThere(
            **more,
            sandbox_id=name,
            namespace=NAMESPACE,
            state=SandboxState.SUSPENDED,
            pinned_node="n1",
            marker=marker,
            in_storage=in_storage,
        )

    assert found == [
        row("a", marker=True, in_storage=False),
        row("b", marker=False, in_storage=True, node_group="g1", node_selector={"disk": "fast"}),
        row("e-behind", marker=False, in_storage=False),
        row("f-newer-failed", marker=False, in_storage=False),
        row("g-uploading", marker=False, in_storage=False),
    ]


async def test_a_sandbox_that_runs_tells_what_it_descends_from(
    dsn: str, rows: Rows, owner: Database
) -> None:
    await rows.sandbox("a")
    await rows.snapshot("a", 1, host_cpu=ICE, ancestor_cpus=[BROADWELL])
    async with await Store.open(dsn, pool_size=1) as store:
        async with store.locked("a") as locked:
            await begin(locked, snapshot_id="a-1")
        async with store.locked("a") as locked:
            await load(locked)
        [found] = await store.pinned_to(["node-b"])
    assert (found.state, found.lineage) == (SandboxState.RUNNING, (BROADWELL, ICE))


async def test_the_newest_stored_snapshot_decides_and_what_a_staying_node_holds_is_left_out(
    dsn: str, rows: Rows
) -> None:
    await rows.sandbox("a")
    await rows.snapshot("a", 1, host_cpu=BROADWELL)
    await rows.snapshot("a", 2)
    await rows.sandbox("b", pinned_node="n1")
    await rows.snapshot("b", 1)
    await rows.sandbox("stays", pinned_node="n2")
    await rows.snapshot("stays", 1)
    await rows.sandbox("grouped", node_group="g1", node_selector='{"disk": "fast"}')
    await rows.snapshot("grouped", 1)
    await rows.sandbox("unstored")
    await rows.snapshot("unstored", 1, storage_uri=None)
    async with await Store.open(dsn, pool_size=1) as store:
        found = await store.stored_kinds(drained=["n1"])
        plain = StoredKind(capture_cpu=ICE, sandboxes=2)
        grouped = StoredKind(
            capture_cpu=ICE, node_group="g1", node_selector={"disk": "fast"}, sandboxes=1
        )
        assert sorted(found, key=str) == sorted([plain, grouped], key=str)
        named = [
            await store.sandboxes_of(one, drained=["n1"], limit=10) for one in (plain, grouped)
        ]
        assert named == [[(NAMESPACE, "a"), (NAMESPACE, "b")], [(NAMESPACE, "grouped")]]
        assert await store.sandboxes_of(plain, drained=["n1"], limit=1) == [(NAMESPACE, "a")]
