"""Section 14: one consistent view of a sandbox, in one row."""

from __future__ import annotations

from datetime import UTC

from sandbox_restore.model.sandbox import (
    Execution,
    LoadObservation,
    LoadResult,
    Outcome,
    SandboxState,
    SandboxView,
    Source,
)
from sandbox_restore.store.store import Store
from tests.store.helpers import NAMESPACE, NAMESPACE_UID, SANDBOX, Database, at, begin, load


async def retire(store: Store, attempt: int, **more: object) -> SandboxView:
    arguments = {
        "execution_id": f"execution-{attempt}",
        "outcome": Outcome.FAILED,
        "row_state": SandboxState.RESTORING,
        "pinned_node": None,
        "marker": False,
        "now": at(120),
    }
    async with store.locked(SANDBOX) as locked:
        return await locked.retire(**{**arguments, **more})  # type: ignore[arg-type]


async def test_there_is_no_view_of_an_unknown_sandbox(store: Store, db: Database) -> None:
    assert await store.view("nobody") is None
    async with store.locked("nobody") as locked:
        assert locked.view is None


async def test_a_new_sandbox_has_only_its_row(store: Store, db: Database) -> None:
    await db.created(node_group="gpu", node_selector='{"a": "b"}')
    view = await store.view(SANDBOX)
    assert view is not None
    assert (view.sandbox.id, view.sandbox.namespace) == (SANDBOX, NAMESPACE)
    assert view.sandbox.node_selector == {"a": "b"}
    assert view == SandboxView(sandbox=view.sandbox)


async def test_snapshots_come_newest_first_and_those_without_a_time_before_them(
    store: Store, db: Database
) -> None:
    await db.created()
    await db.stored("old", second=1)
    await db.stored("new", second=2)
    await db.call("snapshot_started", sandbox_id=SANDBOX, snapshot_id="now")
    view = await store.view(SANDBOX)
    assert view is not None
    assert [s.id for s in view.snapshots] == ["now", "new", "old"]


async def test_active_newest_loaded_and_attempts_are_told_apart(store: Store, db: Database) -> None:
    await db.created()
    await db.stored()
    await db.started()
    await db.suspended()
    async with store.locked(SANDBOX) as locked:
        await begin(locked, 1, restore_uid="one")
    await retire(store, 1)
    async with store.locked(SANDBOX) as locked:
        await begin(locked, 2, restore_uid="two")
    await retire(store, 2)
    async with store.locked(SANDBOX) as locked:
        await begin(locked, 3, restore_uid="two")
    view = await store.view(SANDBOX, restore_uids=["two", "none"])
    assert view is not None
    assert view.active is not None
    assert view.active.id == "execution-3"
    assert view.newest == view.active
    assert view.newest_loaded is not None
    assert view.newest_loaded.source is Source.PLATFORM
    assert [e.id for e in view.attempts] == ["execution-2", "execution-3"]
    both = await store.view(SANDBOX, restore_uids=["two", "one"])
    assert both is not None
    assert [e.id for e in both.attempts] == ["execution-1", "execution-2", "execution-3"]


async def test_newest_is_by_creation_whatever_the_clocks_say(store: Store, db: Database) -> None:
    await db.created()
    await db.stored()
    async with store.locked(SANDBOX) as locked:
        await begin(locked, 1, now=at(900))
    await retire(store, 1)
    async with store.locked(SANDBOX) as locked:
        await begin(locked, 2, now=at(100))
    view = await retire(store, 2)
    assert view.newest is not None
    assert view.newest.id == "execution-2"


async def test_every_column_of_an_execution_arrives(store: Store, db: Database) -> None:
    await db.created()
    await db.stored()
    async with store.locked(SANDBOX) as locked:
        await begin(locked, capture_cpu="intel-6-106-6")
        await load(locked)
    await store.mark_released(SANDBOX, "execution-1", pod_uid="pod-of-1", now=at(111))
    view = await retire(store, 1, outcome=Outcome.LOST, failure_message="line\n\\ 'end' \u2713")
    assert view.newest == Execution(
        id="execution-1",
        sandbox_id=SANDBOX,
        source=Source.STORAGE,
        state="retired",  # type: ignore[arg-type]
        snapshot_id="snap",
        restore_uid="restore-uid",
        restore_name="wake",
        attempt=1,
        pod_name="wake-1",
        pod_uid="pod-of-1",
        node_name="node-b",
        node_uid="node-b-uid",
        node_cpu="amd-25-17-1",
        gate=True,
        capture_cpu="intel-6-106-6",
        outcome=Outcome.LOST,
        failure_message="line\n\\ 'end' \u2713",
        created_at=at(100),
        loaded_at=at(110),
        released_at=at(111),
        retired_at=at(120),
    )
    assert view.sandbox.namespace_uid == NAMESPACE_UID


async def test_times_come_back_to_the_microsecond_and_in_utc(store: Store, db: Database) -> None:
    await db.created()
    exact = at(0.123456)
    await db.call("sandbox_command", sandbox_id=SANDBOX, command_at=exact)
    view = await store.view(SANDBOX)
    assert view is not None
    assert view.sandbox.last_command_at == exact
    assert view.sandbox.last_command_at.tzinfo == UTC


async def test_refusals_are_the_hosts_that_refused_newest_first(store: Store, db: Database) -> None:
    await db.created()
    await db.stored(host_cpu="intel-6-106-6")
    for attempt, node in ((1, "node-a"), (2, "node-b")):
        async with store.locked(SANDBOX) as locked:
            await begin(locked, attempt)
        await retire(
            store,
            attempt,
            failure_class="cpu-incompatible",
            node_name=node,
            node_uid=f"{node}-uid",
            node_cpu="amd-25-17-1",
            now=at(120 + attempt),
        )
    async with store.locked(SANDBOX) as locked:
        await begin(locked, 3)
        view = await load(locked, 3)
    assert [o.node_name for o in view.refusals] == ["node-b", "node-a"]
    assert view.refusals[0] == LoadObservation(
        execution_id="execution-2",
        sandbox_id=SANDBOX,
        snapshot_id="snap",
        result=LoadResult.CPU_INCOMPATIBLE,
        capture_cpu="intel-6-106-6",
        node_name="node-b",
        node_uid="node-b-uid",
        node_cpu="amd-25-17-1",
        observed_at=at(122),
    )
