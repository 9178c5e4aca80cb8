"""Sections 15 and 16 over random histories: whatever is reported, in whatever order, holds."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any, TypeAlias

import asyncpg
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandbox_restore.errors import ConflictError, RejectedError
from sandbox_restore.model.sandbox import (
    Execution,
    Outcome,
    SandboxState,
    SandboxView,
    Snapshot,
    SnapshotKind,
    SnapshotState,
    Source,
)
from sandbox_restore.store.store import Store
from tests.store.helpers import NAMESPACE, NAMESPACE_UID, Database, at

Step: TypeAlias = tuple[str, int, int]
"""What happens, to which of a few pods, snapshots or nodes, and at which second."""

REFUSALS = (
    asyncpg.NoDataFoundError,
    asyncpg.ObjectInUseError,
    asyncpg.ObjectNotInPrerequisiteStateError,
    asyncpg.InvalidParameterValueError,
    asyncpg.NullValueNotAllowedError,
    ConflictError,
    RejectedError,
)
CPUS = ("intel-6-106-6", "amd-25-17-1", None)
NUMBER = itertools.count()


class History:
    """One sandbox, and the ways to change it."""

    def __init__(self, db: Database, store: Store) -> None:
        self.db = db
        self.store = store
        self.id = f"history-{next(NUMBER)}"
        self.attempts = 0
        self.pods = 0
        self.uploads = 0

    def name(self, kind: str, n: int) -> str:
        return f"{self.id}-{kind}-{n}"

    async def report(self, function: str, **arguments: Any) -> None:
        await self.db.call(function, sandbox_id=self.id, **arguments)

    async def step(self, what: str, n: int, second: int) -> None:
        if what == "release":
            await self.release(second)
        elif what in PLATFORM:
            await self.platform(what, n, second)
        else:
            await self.operator(what, n, second)

    async def platform(self, what: str, n: int, second: int) -> None:
        """`n` 0 is a report that comes again; any other is news where there can be some."""
        node, snapshot = f"node-{n}", await self.snapshot(n)
        pod: str
        match what:
            case "command":
                await self.report("sandbox_command", command_at=at(second))
            case "access":
                await self.report("sandbox_access", access_at=at(second))
            case "start":
                self.pods += n > 0
                pod = self.name("pod", self.pods)
                await self.report(
                    "execution_started",
                    node_name=node,
                    pod_name=pod,
                    pod_uid=pod,
                    started_at=at(second),
                )
            case "suspend":
                newest = (await self.view()).newest
                former = self.name("pod", max(0, self.pods - 1))
                pod = (newest.pod_uid if n and newest is not None else None) or former
                await self.report(
                    "sandbox_suspended", node_name=node, pod_uid=pod, suspended_at=at(second)
                )
            case "upload":
                self.uploads += n > 0
                await self.report(
                    "snapshot_started",
                    snapshot_id=self.name("snapshot", self.uploads),
                    kind="diff" if self.uploads % 3 == 2 else "full",
                    captured_at=at(2 * second),
                    host_cpu=CPUS[second % 3],
                )
            case "stored":
                await self.report("snapshot_ready", snapshot_id=snapshot, storage_uri="s3://b/k")
            case "upload-failed":
                await self.report("snapshot_failed", snapshot_id=snapshot)
            case "node-lost":
                await self.report("node_state_lost", node_name=node)

    async def operator(self, what: str, n: int, second: int) -> None:
        async with self.store.locked(self.id) as locked:
            view = locked.view
            assert view is not None
            active, row = view.active, view.sandbox
            match what:
                case "begin" | "redirect":
                    self.attempts += 1
                    local = row.pinned_node is not None and what == "begin"
                    await locked.begin_attempt(
                        execution_id=self.name("execution", self.attempts),
                        restore_uid=self.name("restore", 0),
                        restore_name="wake",
                        attempt=self.attempts,
                        source=Source.LOCAL if local else Source.STORAGE,
                        snapshot_id=await self.snapshot(n),
                        pod_name=f"wake-{self.attempts}",
                        target_node=row.pinned_node if local else None,
                        gate=True,
                        clear_pin=what == "redirect",
                        namespace_uid=NAMESPACE_UID,
                        now=at(second),
                    )
                case "load" if active is not None:
                    await locked.mark_loaded(
                        execution_id=active.id,
                        pod_uid=active.pod_uid or f"uid-of-{active.id}",
                        node_name=f"node-{n}",
                        node_uid=None,
                        node_cpu=CPUS[n],
                        now=at(second),
                    )
                case "lose" | "fail" if active is not None:
                    await locked.retire(
                        execution_id=active.id,
                        outcome=Outcome.LOST if what == "lose" else Outcome.FAILED,
                        pod_uid=f"uid-of-{active.id}",
                        node_name=f"node-{n}",
                        row_state=SandboxState.SUSPENDED
                        if active.loaded_at
                        else SandboxState.RESTORING,
                        pinned_node=row.pinned_node,
                        marker=row.local_artifact_marker,
                        now=at(second),
                    )
                case "fail-row":
                    await locked.fail_row(at(second))
                case "give-up":
                    await locked.clear_marker()

    async def snapshot(self, n: int) -> str:
        """One that there is, those that are not ready first, or one that there is not."""
        known = sorted((await self.view()).snapshots, key=lambda s: s.state is SnapshotState.READY)
        return known[n % len(known)].id if known else self.name("snapshot", 0)

    async def release(self, second: int) -> None:
        newest = (await self.view()).newest
        if newest is not None and newest.pod_uid is not None:
            await self.store.mark_released(
                self.id, newest.id, pod_uid=newest.pod_uid, now=at(second)
            )

    async def view(self) -> SandboxView:
        view = await self.store.view(self.id, restore_uids=[self.name("restore", 0)])
        assert view is not None
        return view


PLATFORM = (
    "command",
    "access",
    "start",
    "suspend",
    "upload",
    "stored",
    "upload-failed",
    "node-lost",
)
OPERATOR = ("begin", "redirect", "load", "lose", "fail", "fail-row", "give-up")
STEPS = st.tuples(
    st.sampled_from(
        (
            *PLATFORM,
            *OPERATOR,
            *3 * ("start", "begin", "load", "suspend", "upload", "stored"),
            "release",
        )
    ),
    st.integers(0, 2),
    st.integers(0, 50),
)


@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=st.lists(STEPS, min_size=8, max_size=24))
async def test_no_history_breaks_a_rule(db: Database, store: Store, steps: list[Step]) -> None:
    history = History(db, store)
    await history.report("sandbox_created", namespace=NAMESPACE)
    await history.step("upload", 1, 0)
    await history.step("stored", 0, 0)
    before = await history.view()
    for step in steps:
        try:
            await history.step(*step)
        except REFUSALS:
            assert await history.view() == before, f"{step} was refused and changed something"
            continue
        after = await history.view()
        check_version(before, after)
        check_executions(before, after)
        check_snapshots(before, after)
        check_row(before, after)
        check_marker(step, before, after)
        before = after


def check_version(before: SandboxView, after: SandboxView) -> None:
    same = replace(after, sandbox=replace(after.sandbox, version=before.sandbox.version))
    if same == before:
        assert after.sandbox.version == before.sandbox.version
    else:
        assert after.sandbox.version > before.sandbox.version


def check_executions(before: SandboxView, after: SandboxView) -> None:
    if after.active is not None:
        assert after.active == after.newest
    if before.active is not None and after.active is not None:
        assert before.active.id == after.active.id
    older = {e.id: e for e in before.attempts}
    for run in after.attempts:
        check_execution(older.get(run.id), run)
    assert [e.attempt for e in after.attempts] == sorted(e.attempt for e in after.attempts)


def check_execution(before: Execution | None, after: Execution) -> None:
    if before is None or before.outcome is None:
        return
    assert (before.outcome, after.outcome) in (
        (before.outcome, before.outcome),
        (Outcome.LOST, Outcome.SUSPENDED),
    )
    assert after.retired_at == before.retired_at


def check_snapshots(before: SandboxView, after: SandboxView) -> None:
    older = {s.id: s for s in before.snapshots}
    assert older.keys() <= {s.id for s in after.snapshots}
    for snapshot in after.snapshots:
        assert snapshot.host_cpu not in snapshot.ancestor_cpus
        known = older.get(snapshot.id)
        if known is None:
            continue
        assert (known.captured_at, known.kind) == (snapshot.captured_at, snapshot.kind)
        assert known.host_cpu in (None, snapshot.host_cpu)
        if known.state is SnapshotState.READY:
            assert snapshot.state is SnapshotState.READY


def check_row(before: SandboxView, after: SandboxView) -> None:
    row = after.sandbox
    assert (row.state is SandboxState.RESTORING) == (row.restore_started_at is not None)
    assert row.pinned_node is not None or not row.local_artifact_marker
    for old, new in (
        (before.sandbox.last_command_at, row.last_command_at),
        (before.sandbox.last_access_at, row.last_access_at),
    ):
        assert old is None or (new is not None and new >= old)
    if row.state is SandboxState.RUNNING:
        assert after.active is not None
    if after.active is not None:
        loaded = after.active.loaded_at is not None
        assert row.state is (SandboxState.RUNNING if loaded else SandboxState.RESTORING)


def stored(snapshot: Snapshot, since: Any) -> bool:
    return (
        snapshot.kind is SnapshotKind.FULL
        and snapshot.state is SnapshotState.READY
        and snapshot.storage_uri is not None
        and snapshot.captured_at is not None
        and snapshot.captured_at >= since
    )


def check_marker(step: Step, before: SandboxView, after: SandboxView) -> None:
    """Section 15: the one rule by which a report clears it, and nothing else ever does."""
    what = step[0]
    newest = after.newest
    safe = (
        newest is not None
        and newest.suspended_at is not None
        and any(stored(s, newest.suspended_at) for s in after.snapshots)
    )
    had, has = before.sandbox.local_artifact_marker, after.sandbox.local_artifact_marker
    if what in ("stored", "suspend") and safe:
        assert not has
    if had and not has:
        assert safe or what in ("node-lost", "give-up")
    if has and not had:
        assert what in ("start", "load", "suspend")
