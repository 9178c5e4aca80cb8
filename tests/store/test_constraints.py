"""Section 15: the tables refuse impossible rows, and only those."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest

from tests.store.helpers import NAMESPACE, SANDBOX, Database, at

Row = dict[str, Any]

SNAPSHOT: Row = {"id": "snap", "sandbox_id": SANDBOX, "state": "ready", "captured_at": at(1)}
STORAGE: Row = {
    "id": "e1",
    "sandbox_id": SANDBOX,
    "snapshot_id": "snap",
    "source": "storage",
    "restore_uid": "uid",
    "restore_name": "wake",
    "attempt": 1,
    "pod_name": "wake-1",
    "created_at": at(2),
}
PLATFORM: Row = {
    "id": "e1",
    "sandbox_id": SANDBOX,
    "source": "platform",
    "pod_name": "pod",
    "pod_uid": "pod-uid",
    "node_name": "node-a",
    "created_at": at(2),
    "loaded_at": at(2),
}
LOADED: Row = {"pod_uid": "pod-uid", "node_name": "node-a", "loaded_at": at(3)}
RETIRED: Row = {"state": "retired", "outcome": "failed", "retired_at": at(4)}
OBSERVATION: Row = {
    "execution_id": "e1",
    "sandbox_id": SANDBOX,
    "result": "loaded",
    "node_name": "node-a",
    "observed_at": at(5),
}
SPAN: Row = {
    "node_name": "node-a",
    "node_uid": "uid",
    "host_cpu": "amd-25-17-1",
    "first_seen_at": at(1),
    "last_seen_at": at(2),
}


@pytest.fixture
async def rows(db: Database) -> Database:
    """A sandbox, and another one with a snapshot of its own."""
    await db.insert("sandbox", id=SANDBOX, namespace=NAMESPACE)
    await db.insert("sandbox", id="neighbour", namespace=NAMESPACE)
    await db.insert("snapshot", **SNAPSHOT)
    await db.insert("snapshot", **SNAPSHOT | {"id": "theirs", "sandbox_id": "neighbour"})
    return db


async def refused(db: Database, table: str, row: Row) -> str | None:
    """The name of the constraint, or of the column, that refuses the row."""
    with pytest.raises(asyncpg.IntegrityConstraintViolationError) as caught:
        await db.insert(table, **row)
    error: Any = caught.value
    return error.constraint_name or error.column_name  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("change", "by"),
    [
        ({"id": ""}, "sandbox_id_is_label_value"),
        ({"id": "-a"}, "sandbox_id_is_label_value"),
        ({"id": "a-"}, "sandbox_id_is_label_value"),
        ({"id": "a b"}, "sandbox_id_is_label_value"),
        ({"id": "a\n"}, "sandbox_id_is_label_value"),
        ({"id": "ä"}, "sandbox_id_is_label_value"),
        ({"id": "a" * 64}, "sandbox_id_is_label_value"),
        ({"namespace": "Team"}, "sandbox_namespace_is_dns_label"),
        ({"namespace": "a.b"}, "sandbox_namespace_is_dns_label"),
        ({"namespace": "a" * 64}, "sandbox_namespace_is_dns_label"),
        ({"namespace": None}, "namespace"),
        ({"namespace_uid": ""}, "sandbox_namespace_uid_length"),
        ({"state": "asleep"}, "sandbox_state_known"),
        ({"state": None}, "state"),
        ({"node_group": "a b"}, "sandbox_node_group_is_label_value"),
        ({"node_group": ""}, "sandbox_node_group_is_label_value"),
        ({"node_selector": "[]"}, "sandbox_node_selector_is_labels"),
        ({"node_selector": '"a"'}, "sandbox_node_selector_is_labels"),
        ({"node_selector": '{"a": 1}'}, "sandbox_node_selector_is_labels"),
        ({"node_selector": '{"a": ["b"]}'}, "sandbox_node_selector_is_labels"),
        ({"node_selector": '{"a": null}'}, "sandbox_node_selector_is_labels"),
        ({"node_selector": '{"a": "b c"}'}, "sandbox_node_selector_is_labels"),
        ({"node_selector": '{"a b": "c"}'}, "sandbox_node_selector_is_labels"),
        ({"node_selector": '{"": "c"}'}, "sandbox_node_selector_is_labels"),
        ({"node_selector": '{"A.b/c": "d"}'}, "sandbox_node_selector_is_labels"),
        ({"node_selector": None}, "node_selector"),
        ({"pinned_node": ""}, "sandbox_pinned_node_length"),
        ({"local_artifact_marker": True}, "sandbox_marker_needs_pin"),
        ({"local_artifact_marker": None}, "local_artifact_marker"),
        ({"state": "restoring"}, "sandbox_restoring_has_start"),
        ({"restore_started_at": at(1)}, "sandbox_restoring_has_start"),
        ({"state": "running", "restore_started_at": at(1)}, "sandbox_restoring_has_start"),
        ({"version": 0}, "sandbox_version_positive"),
    ],
)
async def test_an_impossible_sandbox_is_refused(db: Database, change: Row, by: str) -> None:
    row = {"id": SANDBOX, "namespace": NAMESPACE, **change}
    assert await refused(db, "sandbox", row) == by


@pytest.mark.parametrize(
    "change",
    [
        {"id": "A"},
        {"id": "7f3a_x.y-Z"},
        {"id": "a" * 63},
        {"namespace": "a" * 63},
        {"namespace": "0-9"},
        {"node_group": "Group_1.x"},
        {"node_selector": '{"kubernetes.io/arch": "amd64", "a": "", "x-y.z/B_c": "1"}'},
        {"pinned_node": "ip-10-0-0-1.eu.internal"},
        {"pinned_node": "n", "local_artifact_marker": True},
        {"state": "restoring", "restore_started_at": at(1)},
        {"state": "failed", "pinned_node": "n"},
        {"state": "running", "pinned_node": "n", "local_artifact_marker": True},
        # Its node was lost with its state while it ran.
        {"state": "running"},
        {"last_command_at": datetime(9999, 12, 31, tzinfo=UTC)},
    ],
)
async def test_a_possible_sandbox_is_kept(db: Database, change: Row) -> None:
    await db.insert("sandbox", **{"id": SANDBOX, "namespace": NAMESPACE, **change})
    assert (await db.view(change.get("id", SANDBOX))).sandbox.namespace


@pytest.mark.parametrize("time", ["infinity", "-infinity", "1969-12-31 UTC", "10000-01-01 UTC"])
async def test_a_time_that_no_client_can_hold_is_refused(rows: Database, time: str) -> None:
    with pytest.raises(asyncpg.CheckViolationError, match="instant_is_a_calendar_time"):
        await rows.raw.execute(f"UPDATE sandbox_restore.sandbox SET last_access_at = '{time}'")


@pytest.mark.parametrize(
    ("change", "by"),
    [
        ({"id": "snap"}, "snapshot_pkey"),
        ({"id": ""}, "snapshot_id_length"),
        ({"id": "s" * 254}, "snapshot_id_length"),
        ({"sandbox_id": "nobody"}, "snapshot_sandbox_exists"),
        ({"kind": "half"}, "snapshot_kind_known"),
        ({"state": "lost"}, "snapshot_state_known"),
        ({"captured_at": None}, "snapshot_ready_has_capture_time"),
        ({"uploaded_by": ""}, "snapshot_uploaded_by_length"),
        ({"host_cpu": ""}, "snapshot_host_cpu_length"),
        ({"ancestor_cpus": None}, "ancestor_cpus"),
        ({"ancestor_cpus": ["a", None]}, "snapshot_ancestors_are_others"),
        ({"ancestor_cpus": ["a", "b"], "host_cpu": "b"}, "snapshot_ancestors_are_others"),
        ({"storage_uri": ""}, "snapshot_storage_uri_length"),
    ],
)
async def test_an_impossible_snapshot_is_refused(rows: Database, change: Row, by: str) -> None:
    assert await refused(rows, "snapshot", SNAPSHOT | {"id": "new"} | change) == by


@pytest.mark.parametrize(
    "change",
    [
        {"state": "uploading", "captured_at": None},
        {"state": "failed", "captured_at": None},
        {"state": "uploading", "storage_uri": "s3://b/k"},
        {"kind": "diff"},
        {"host_cpu": "Not Canonical"},
        {"ancestor_cpus": ["a", "b"], "host_cpu": "c"},
        {"uploaded_by": "node-a", "storage_uri": "s3://b/k"},
    ],
)
async def test_a_possible_snapshot_is_kept(rows: Database, change: Row) -> None:
    await rows.insert("snapshot", **SNAPSHOT | {"id": "new"} | change)
    assert len((await rows.view()).snapshots) == 2


@pytest.mark.parametrize(
    ("change", "by"),
    [
        ({"id": ""}, "execution_id_length"),
        ({"sandbox_id": "nobody", "snapshot_id": None, "source": "local", "target_node": "n"},
         "execution_sandbox_exists"),
        ({"snapshot_id": "theirs"}, "execution_snapshot_of_same_sandbox"),
        ({"snapshot_id": "nothing"}, "execution_snapshot_of_same_sandbox"),
        ({"source": "tape"}, "execution_source_known"),
        ({"snapshot_id": None}, "execution_storage_has_snapshot"),
        ({"source": "local"}, "execution_local_has_target"),
        ({"restore_uid": None}, "execution_restore_unless_platform"),
        ({"restore_name": None}, "execution_restore_unless_platform"),
        ({"attempt": 0}, "execution_restore_unless_platform"),
        (PLATFORM | {"restore_uid": "uid"}, "execution_restore_unless_platform"),
        (PLATFORM | {"restore_uid": None, "restore_name": None, "attempt": 0, "pod_uid": None,
                     "loaded_at": None}, "execution_platform_has_pod_and_node"),
        (PLATFORM | {"restore_uid": None, "restore_name": None, "attempt": 0, "loaded_at": None},
         "execution_platform_has_pod_and_node"),
        ({"pod_name": None}, "pod_name"),
        ({"pod_name": ""}, "execution_names_length"),
        ({"node_cpu": ""}, "execution_names_length"),
        ({"prior_pin": ""}, "execution_names_length"),
        ({"created_at": None}, "created_at"),
        ({"gate": None}, "gate"),
        ({"state": "paused"}, "execution_state_known"),
        (RETIRED | {"outcome": "bored"}, "execution_outcome_known"),
        (RETIRED | {"outcome": None}, "execution_retired_has_outcome_and_time"),
        (RETIRED | {"retired_at": None}, "execution_retired_has_outcome_and_time"),
        ({"outcome": "failed"}, "execution_retired_has_outcome_and_time"),
        ({"retired_at": at(3)}, "execution_retired_has_outcome_and_time"),
        ({"failure_class": "host"}, "execution_failure_is_retired"),
        ({"failure_message": "broken"}, "execution_failure_is_retired"),
        (LOADED | {"pod_uid": None}, "execution_loaded_has_pod_and_node"),
        (LOADED | {"node_name": None}, "execution_loaded_has_pod_and_node"),
        ({"released_at": at(3)}, "execution_released_is_loaded"),
        (LOADED | RETIRED | {"outcome": "suspended"}, "execution_suspended_has_time"),
        (LOADED | RETIRED | {"suspended_at": at(4)}, "execution_suspended_has_time"),
        (LOADED | {"suspended_at": at(4)}, "execution_suspended_has_time"),
        (RETIRED | {"outcome": "suspended", "suspended_at": at(4)},
         "execution_suspended_is_loaded"),
    ],
)  # fmt: skip
async def test_an_impossible_execution_is_refused(rows: Database, change: Row, by: str) -> None:
    assert await refused(rows, "execution", STORAGE | change) == by


@pytest.mark.parametrize(
    "row",
    [
        STORAGE,
        STORAGE | LOADED,
        STORAGE | LOADED | {"released_at": at(3)},
        STORAGE | RETIRED,
        STORAGE | RETIRED | {"failure_class": "host", "failure_message": ""},
        STORAGE | RETIRED | {"outcome": "superseded"},
        STORAGE | RETIRED | {"outcome": "cancelled", "pod_uid": "u"},
        STORAGE | LOADED | RETIRED | {"outcome": "lost", "released_at": at(3)},
        STORAGE | LOADED | RETIRED | {"outcome": "suspended", "suspended_at": at(4)},
        # Two operators' clocks need not agree: the order of times is no constraint.
        STORAGE | LOADED | {"loaded_at": at(1)},
        STORAGE | {"source": "local", "target_node": "n", "snapshot_id": None},
        STORAGE | {"source": "local", "target_node": "n"},
        PLATFORM,
        PLATFORM | {"snapshot_id": "snap"},
        PLATFORM | RETIRED | {"outcome": "lost"},
    ],
)
async def test_a_possible_execution_is_kept(rows: Database, row: Row) -> None:
    await rows.insert("execution", **row)
    newest = (await rows.view()).newest
    assert newest is not None
    assert newest.active == (row.get("state", "active") == "active")


@pytest.mark.parametrize(
    ("second", "by"),
    [
        ({}, "execution_one_active_per_sandbox"),
        ({"restore_uid": "other"}, "execution_one_active_per_sandbox"),
        ({**RETIRED, "attempt": 1}, "execution_attempt_once"),
        ({**RETIRED, **LOADED}, "execution_pod_once"),
        ({"id": "e1", **RETIRED}, "execution_pkey"),
    ],
)
async def test_a_second_execution_is_refused_where_one_is_the_rule(
    rows: Database, second: Row, by: str
) -> None:
    await rows.insert("execution", **STORAGE | LOADED)
    row = STORAGE | {"id": "e2", "attempt": 2} | second
    assert await refused(rows, "execution", row) == by


async def test_retired_executions_and_other_sandboxes_do_not_stand_in_the_way(
    rows: Database,
) -> None:
    await rows.insert("execution", **STORAGE | RETIRED)
    await rows.insert("execution", **STORAGE | RETIRED | {"id": "e2", "attempt": 2})
    await rows.insert("execution", **STORAGE | {"id": "e3", "attempt": 3})
    theirs = {"id": "e4", "sandbox_id": "neighbour", "snapshot_id": "theirs", "attempt": 4}
    await rows.insert("execution", **STORAGE | theirs)


@pytest.mark.parametrize(
    "change",
    [
        "state = 'active', outcome = NULL, retired_at = NULL",
        "sandbox_id = 'neighbour', snapshot_id = NULL",
        "id = 'another'",
    ],
)
async def test_a_retired_execution_stays_what_it_is(rows: Database, change: str) -> None:
    row = STORAGE | RETIRED | {"source": "local", "target_node": "n"}
    await rows.insert("execution", **row)
    with pytest.raises(asyncpg.CheckViolationError):
        await rows.raw.execute(f"UPDATE sandbox_restore.execution SET {change}")


@pytest.mark.parametrize(
    ("change", "by"),
    [
        ({"execution_id": "nothing"}, "load_observation_execution_exists"),
        ({"result": "maybe"}, "load_observation_result_known"),
        ({"node_name": None}, "node_name"),
        ({"node_name": ""}, "load_observation_node_name_length"),
        ({"observed_at": None}, "observed_at"),
    ],
)
async def test_an_impossible_observation_is_refused(rows: Database, change: Row, by: str) -> None:
    await rows.insert("execution", **STORAGE)
    assert await refused(rows, "load_observation", OBSERVATION | change) == by


async def test_an_execution_is_observed_once(rows: Database) -> None:
    await rows.insert("execution", **STORAGE)
    await rows.insert("load_observation", **OBSERVATION)
    assert await refused(rows, "load_observation", OBSERVATION) == "load_observation_pkey"


@pytest.mark.parametrize(
    ("change", "by"),
    [
        ({"host_cpu": "AMD-25"}, "node_cpu_history_cpu_is_canonical"),
        ({"host_cpu": "amd--25"}, "node_cpu_history_cpu_is_canonical"),
        ({"host_cpu": "a" * 64}, "node_cpu_history_cpu_is_canonical"),
        ({"node_uid": ""}, "node_cpu_history_names_length"),
        ({"node_uid": None}, "node_uid"),
        ({"last_seen_at": at(0)}, "node_cpu_history_ends_after_it_begins"),
    ],
)
async def test_an_impossible_span_is_refused(db: Database, change: Row, by: str) -> None:
    assert await refused(db, "node_cpu_history", SPAN | change) == by


async def test_a_span_of_one_moment_is_kept(db: Database) -> None:
    await db.insert("node_cpu_history", **SPAN | {"last_seen_at": SPAN["first_seen_at"]})
