"""Sections 4 and 15: what the platform reports of snapshots, lineage, and when the marker goes."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from sandbox_restore.model.sandbox import Snapshot, SnapshotKind, SnapshotState
from sandbox_restore.store.store import Store
from tests.store.helpers import SANDBOX, Database, at, begin, load

INTEL, AMD, ARM = "intel-6-106-6", "amd-25-17-1", "arm-41-d40-r1p1"


@pytest.fixture
async def box(db: Database) -> Database:
    await db.created()
    return db


async def snapshot(db: Database, snapshot_id: str = "snap") -> Snapshot:
    return next(s for s in (await db.view()).snapshots if s.id == snapshot_id)


async def report(db: Database, what: str, snapshot_id: str = "snap", **more: Any) -> bool:
    answer: bool = await db.call(
        f"snapshot_{what}", sandbox_id=SANDBOX, snapshot_id=snapshot_id, **more
    )
    return answer


# --- started, ready, failed


async def test_a_started_snapshot_is_uploading_and_may_have_no_capture_time(box: Database) -> None:
    assert await report(box, "started") is True
    assert await snapshot(box) == Snapshot(
        id="snap", sandbox_id=SANDBOX, state=SnapshotState.UPLOADING
    )


async def test_a_snapshot_gets_ready_with_all_that_was_reported(box: Database) -> None:
    await report(box, "started", kind="diff", captured_at=at(5), uploaded_by="node-a")
    assert await report(box, "ready", storage_uri="s3://b/k", host_cpu=INTEL) is True
    assert await snapshot(box) == Snapshot(
        id="snap",
        sandbox_id=SANDBOX,
        kind=SnapshotKind.DIFF,
        captured_at=at(5),
        uploaded_by="node-a",
        host_cpu=INTEL,
        storage_uri="s3://b/k",
    )


@pytest.mark.parametrize("first", ["started", "failed"])
async def test_each_report_may_come_twice(box: Database, first: str) -> None:
    await report(box, "started")
    if first == "failed":
        await report(box, "failed")
    version = (await box.view()).sandbox.version
    assert await report(box, first) is False
    assert (await box.view()).sandbox.version == version


async def test_ready_may_come_twice_and_add_what_was_not_known(box: Database) -> None:
    await report(box, "started", captured_at=at(5))
    assert await report(box, "ready") is True
    assert await report(box, "ready") is False
    assert await report(box, "ready", storage_uri="s3://b/k") is True
    assert await report(box, "ready", host_cpu=AMD, uploaded_by="node-a") is True
    assert await report(box, "ready", host_cpu=AMD, storage_uri="s3://b/k") is False
    kept = await snapshot(box)
    assert (kept.storage_uri, kept.host_cpu, kept.uploaded_by) == ("s3://b/k", AMD, "node-a")


async def test_started_after_ready_changes_nothing(box: Database) -> None:
    await box.stored()
    before = await box.view()
    assert await report(box, "started") is False
    assert await box.view() == before


async def test_a_failed_upload_may_be_tried_again(box: Database) -> None:
    await report(box, "started", captured_at=at(5))
    assert await report(box, "failed") is True
    assert await report(box, "started", captured_at=at(5)) is True
    assert (await snapshot(box)).state is SnapshotState.UPLOADING
    await report(box, "failed")
    assert await report(box, "ready") is True
    assert (await snapshot(box)).state is SnapshotState.READY


async def test_a_ready_snapshot_cannot_fail_any_more(box: Database) -> None:
    await box.stored()
    with pytest.raises(asyncpg.ObjectNotInPrerequisiteStateError, match="is ready"):
        await report(box, "failed")


async def test_a_snapshot_is_not_ready_without_a_capture_time(box: Database) -> None:
    await report(box, "started")
    with pytest.raises(asyncpg.NullValueNotAllowedError, match="without a capture time"):
        await report(box, "ready")
    assert await report(box, "ready", captured_at=at(5)) is True


@pytest.mark.parametrize("what", ["ready", "failed"])
async def test_a_report_of_an_unknown_snapshot_is_an_error_that_says_so(
    box: Database, what: str
) -> None:
    with pytest.raises(asyncpg.NoDataFoundError, match='has no snapshot "snap"'):
        await report(box, what)


@pytest.mark.parametrize("what", ["started", "ready", "failed"])
async def test_a_snapshot_of_another_sandbox_is_answered_like_none(
    box: Database, what: str
) -> None:
    await box.created("neighbour")
    await box.call("snapshot_started", sandbox_id="neighbour", snapshot_id="theirs")
    with pytest.raises(asyncpg.NoDataFoundError, match='has no snapshot "theirs"'):
        await report(box, what, "theirs")


@pytest.mark.parametrize(
    ("what", "argument"),
    [
        ("started", {"captured_at": at(6)}),
        ("started", {"kind": "diff", "captured_at": at(5)}),
        ("ready", {"captured_at": at(6)}),
        ("ready", {"host_cpu": AMD}),
        ("ready", {"storage_uri": "s3://b/other"}),
    ],
)
async def test_what_a_snapshot_is_never_changes(
    box: Database, what: str, argument: dict[str, Any]
) -> None:
    await report(box, "started", captured_at=at(5), host_cpu=INTEL)
    await report(box, "ready", storage_uri="s3://b/k")
    with pytest.raises(asyncpg.InvalidParameterValueError, match="reported as") as caught:
        await report(box, what, **argument)
    error: Any = caught.value
    assert error.hint == "snapshot ids are never reused"


# --- section 4: lineage


async def restored(db: Database, store: Store, snapshot_id: str, *, cpu: str, **more: Any) -> None:
    """A restore of that snapshot runs on a host of that CPU."""
    async with store.locked(SANDBOX) as locked:
        await begin(locked, snapshot_id=snapshot_id, **more)
        await load(locked, node_cpu=cpu)


async def test_a_snapshot_of_a_restored_sandbox_remembers_what_it_was_restored_from(
    box: Database, store: Store
) -> None:
    await box.stored("first", host_cpu=INTEL)
    await restored(box, store, "first", cpu=AMD)
    await report(box, "started", "second", host_cpu=AMD)
    assert (await snapshot(box, "second")).ancestor_cpus == (INTEL,)


async def test_ancestors_add_up_over_generations(box: Database, store: Store) -> None:
    await box.insert(
        "snapshot",
        id="first",
        sandbox_id=SANDBOX,
        state="ready",
        captured_at=at(1),
        host_cpu=INTEL,
        ancestor_cpus=[ARM],
        storage_uri="s3://b/k",
    )
    await restored(box, store, "first", cpu=AMD)
    await report(box, "started", "second", host_cpu=AMD)
    assert (await snapshot(box, "second")).ancestor_cpus == (ARM, INTEL)


async def test_the_capture_cpu_is_no_ancestor_of_its_own(box: Database, store: Store) -> None:
    await box.stored("first", host_cpu=INTEL)
    await restored(box, store, "first", cpu=INTEL)
    await report(box, "started", "second", host_cpu=INTEL)
    assert (await snapshot(box, "second")).ancestor_cpus == ()


async def test_a_capture_cpu_that_is_reported_late_leaves_the_ancestors(
    box: Database, store: Store
) -> None:
    await box.stored("first", host_cpu=INTEL)
    await restored(box, store, "first", cpu=INTEL)
    await report(box, "started", "second", captured_at=at(120))
    assert (await snapshot(box, "second")).ancestor_cpus == (INTEL,)
    await report(box, "ready", "second", host_cpu=INTEL)
    assert (await snapshot(box, "second")).ancestor_cpus == ()


async def test_an_unrecorded_capture_cpu_is_inherited_as_it_was_evaluated(
    box: Database, store: Store
) -> None:
    await box.stored("first")
    await restored(box, store, "first", cpu=AMD, capture_cpu=INTEL)
    await report(box, "started", "second", host_cpu=AMD)
    assert (await snapshot(box, "second")).ancestor_cpus == (INTEL,)


async def test_a_first_run_has_no_ancestors(box: Database) -> None:
    await box.started()
    await report(box, "started", host_cpu=INTEL)
    assert (await snapshot(box)).ancestor_cpus == ()


async def test_a_run_by_the_platform_goes_on_from_the_newest_snapshot_before_it(
    box: Database,
) -> None:
    await box.stored("first", second=5, host_cpu=INTEL)
    await box.started()
    await report(box, "started", "second", captured_at=at(15), host_cpu=AMD)
    await report(box, "started", "third", captured_at=at(16), host_cpu=AMD)
    assert (await snapshot(box, "second")).ancestor_cpus == (INTEL,)
    assert (await snapshot(box, "third")).ancestor_cpus == (INTEL,)


async def test_a_snapshot_reported_late_belongs_to_the_execution_that_had_begun(
    box: Database, store: Store
) -> None:
    """The next restore has begun already when the suspend snapshot of the last run is reported."""
    await box.stored("first", second=1, host_cpu=INTEL)
    await box.started(started_at=at(10))
    await box.suspended(second=20)
    await box.insert(
        "snapshot",
        id="odd",
        sandbox_id=SANDBOX,
        state="ready",
        captured_at=at(19),
        host_cpu=ARM,
        storage_uri="s3://b/k",
    )
    async with store.locked(SANDBOX) as locked:
        await begin(locked, snapshot_id="odd", clear_pin=False)
    await report(box, "started", "late", captured_at=at(20), host_cpu=AMD)
    assert (await snapshot(box, "late")).ancestor_cpus == (INTEL,)


async def test_the_pod_that_was_captured_may_be_named(box: Database) -> None:
    await box.stored("first", second=1, host_cpu=INTEL)
    await box.started(started_at=at(10), snapshot_id="first")
    await box.suspended(second=20)
    await box.started("pod-2", started_at=at(30))
    await report(box, "started", "late", pod_uid="pod-1", host_cpu=AMD)
    assert (await snapshot(box, "late")).ancestor_cpus == (INTEL,)


# --- the local artifact marker


async def marked(db: Database) -> bool:
    return (await db.view()).sandbox.local_artifact_marker


async def test_the_marker_goes_when_the_suspends_snapshot_is_ready_in_storage(
    box: Database,
) -> None:
    await box.started()
    await box.suspended(second=20)
    await report(box, "started", captured_at=at(20))
    assert await marked(box)
    await report(box, "ready", storage_uri="s3://b/k")
    assert not await marked(box)
    assert (await box.view()).sandbox.pinned_node == "node-a"


async def test_the_marker_is_never_set_when_the_snapshot_was_ready_first(box: Database) -> None:
    await box.started()
    await box.stored(second=20)
    assert await marked(box)
    await box.suspended(second=20)
    assert not await marked(box)


async def test_a_snapshot_captured_before_the_suspend_does_not_count(box: Database) -> None:
    await box.started()
    await box.stored("early", second=19)
    await box.suspended(second=20)
    assert await marked(box)
    await box.stored("early-too", second=19.5)
    assert await marked(box)


@pytest.mark.parametrize(
    ("started", "ready"),
    [
        ({"kind": "diff", "captured_at": at(20)}, {"storage_uri": "s3://b/k"}),
        ({"captured_at": at(20)}, {}),
    ],
)
async def test_only_a_full_snapshot_in_storage_counts(
    box: Database, started: dict[str, Any], ready: dict[str, Any]
) -> None:
    await box.started()
    await box.suspended(second=20)
    await report(box, "started", **started)
    await report(box, "ready", **ready)
    assert await marked(box)


async def test_the_storage_uri_may_come_with_a_second_report(box: Database) -> None:
    await box.started()
    await box.suspended(second=20)
    await report(box, "started", captured_at=at(20))
    await report(box, "ready")
    assert await marked(box)
    await report(box, "ready", storage_uri="s3://b/k")
    assert not await marked(box)


async def test_the_marker_stays_while_an_execution_is_active(box: Database) -> None:
    await box.started()
    await box.suspended(second=20)
    await box.started("pod-2", started_at=at(30))
    await box.stored(second=40)
    assert await marked(box)


async def test_the_marker_stays_when_the_newest_run_ended_otherwise(box: Database) -> None:
    await box.started()
    await box.raw.execute(
        "UPDATE sandbox_restore.execution SET state = 'retired', outcome = 'lost',"
        " retired_at = now()"
    )
    await box.stored(second=40)
    assert await marked(box)
