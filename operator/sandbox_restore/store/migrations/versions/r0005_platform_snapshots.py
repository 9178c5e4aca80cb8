"""What the platform reports of snapshots (domain.md sections 4 and 15)."""

from __future__ import annotations

from sandbox_restore.store.migrations.run import run

revision = "0005"
down_revision = "0004"

LINEAGE = """
-- Section 4, lineage: the capture CPUs in the past of a VM that was captured at that time. The
-- execution that ran it is the one of that pod, else the newest that had begun by then and has
-- loaded or may have. One that names no snapshot went on from the newest full one before it.
CREATE FUNCTION sandbox_restore.platform_lineage(sandbox_id text, at timestamptz, pod_uid text)
RETURNS text[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    run sandbox_restore.execution;
    past sandbox_restore.snapshot;
BEGIN
    SELECT e.* INTO run FROM sandbox_restore.execution e
        WHERE e.sandbox_id = platform_lineage.sandbox_id
            AND (e.state = 'active' OR e.loaded_at IS NOT NULL)
            AND (at IS NULL OR e.created_at <= at OR e.pod_uid = platform_lineage.pod_uid)
        ORDER BY coalesce(e.pod_uid = platform_lineage.pod_uid, false) DESC, e.seq DESC LIMIT 1;
    IF NOT FOUND THEN
        RETURN '{}';
    END IF;
    SELECT x.* INTO past FROM sandbox_restore.snapshot x
        WHERE x.sandbox_id = run.sandbox_id AND x.kind = 'full'
            AND (x.id = run.snapshot_id
                OR (run.snapshot_id IS NULL AND x.captured_at <= run.created_at))
        ORDER BY x.captured_at DESC NULLS LAST LIMIT 1;
    RETURN past.ancestor_cpus || coalesce(past.host_cpu, run.capture_cpu);
END $$
"""

OTHERS = """
-- Those CPUs sorted, each once, without `own` and without nulls.
CREATE FUNCTION sandbox_restore.platform_others(cpus text[], own text) RETURNS text[]
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(array_agg(DISTINCT c ORDER BY c), '{}') FROM unnest(cpus) c
    WHERE c IS NOT NULL AND c IS DISTINCT FROM own
$$
"""

SNAPSHOT_OF = """
-- The snapshot of that sandbox. Raises no_data_found; a snapshot of another sandbox is none.
CREATE FUNCTION sandbox_restore.platform_snapshot(sandbox_id text, snapshot_id text)
RETURNS sandbox_restore.snapshot
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    known sandbox_restore.snapshot;
BEGIN
    SELECT x.* INTO known FROM sandbox_restore.snapshot x
        WHERE x.id = platform_snapshot.snapshot_id
            AND x.sandbox_id = platform_snapshot.sandbox_id;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'sandbox "%" has no snapshot "%"', sandbox_id, snapshot_id
            USING ERRCODE = 'no_data_found', HINT = 'report it with snapshot_started() first';
    END IF;
    RETURN known;
END $$
"""

AGREE = """
-- What was recorded, else what is reported. Raises invalid_parameter_value when they differ: what a
-- snapshot was captured on, and when, never changes.
CREATE FUNCTION sandbox_restore.platform_agreed(
    snapshot_id text, what text, recorded text, reported text
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF recorded <> reported THEN
        RAISE EXCEPTION 'snapshot "%": % is "%", reported as "%"', snapshot_id, what, recorded,
            reported
            USING ERRCODE = 'invalid_parameter_value', HINT = 'snapshot ids are never reused';
    END IF;
    RETURN coalesce(recorded, reported);
END $$
"""

STARTED = """
CREATE FUNCTION sandbox_restore.snapshot_started(
    sandbox_id text, snapshot_id text, kind text DEFAULT 'full',
    captured_at timestamptz DEFAULT NULL, uploaded_by text DEFAULT NULL,
    host_cpu text DEFAULT NULL, pod_uid text DEFAULT NULL
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    held sandbox_restore.sandbox := sandbox_restore.platform_held(sandbox_id);
    known sandbox_restore.snapshot;
BEGIN
    INSERT INTO sandbox_restore.snapshot (
        id, sandbox_id, kind, state, captured_at, uploaded_by, host_cpu, ancestor_cpus
    ) VALUES (
        snapshot_id, held.id, coalesce(snapshot_started.kind, 'full'), 'uploading',
        snapshot_started.captured_at, snapshot_started.uploaded_by, snapshot_started.host_cpu,
        sandbox_restore.platform_others(
            sandbox_restore.platform_lineage(
                held.id, snapshot_started.captured_at, snapshot_started.pod_uid),
            snapshot_started.host_cpu)
    ) ON CONFLICT ON CONSTRAINT snapshot_pkey DO NOTHING;
    IF FOUND THEN
        RETURN true;
    END IF;
    known := sandbox_restore.platform_snapshot(held.id, snapshot_id);
    PERFORM sandbox_restore.platform_agreed(
        known.id, 'kind', known.kind, coalesce(snapshot_started.kind, 'full'));
    PERFORM sandbox_restore.platform_agreed(
        known.id, 'capture time', known.captured_at::text, snapshot_started.captured_at::text);
    -- An upload that failed is tried again; a report that comes twice changes nothing.
    UPDATE sandbox_restore.snapshot x SET state = 'uploading'
        WHERE x.id = known.id AND x.state = 'failed';
    RETURN FOUND;
END $$
"""

READY = """
CREATE FUNCTION sandbox_restore.snapshot_ready(
    sandbox_id text, snapshot_id text, storage_uri text DEFAULT NULL,
    captured_at timestamptz DEFAULT NULL, host_cpu text DEFAULT NULL,
    uploaded_by text DEFAULT NULL
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    held sandbox_restore.sandbox := sandbox_restore.platform_held(sandbox_id);
    known sandbox_restore.snapshot := sandbox_restore.platform_snapshot(held.id, snapshot_id);
    changed boolean;
    ended timestamptz;
BEGIN
    PERFORM sandbox_restore.platform_agreed(
        known.id, 'capture time', known.captured_at::text, snapshot_ready.captured_at::text);
    known.captured_at := coalesce(known.captured_at, snapshot_ready.captured_at);
    IF known.captured_at IS NULL THEN
        RAISE EXCEPTION 'snapshot "%" cannot be ready without a capture time', known.id
            USING ERRCODE = 'null_value_not_allowed', HINT = 'report captured_at';
    END IF;
    known.host_cpu := sandbox_restore.platform_agreed(
        known.id, 'host CPU', known.host_cpu, snapshot_ready.host_cpu);
    known.storage_uri := sandbox_restore.platform_agreed(
        known.id, 'storage URI', known.storage_uri, snapshot_ready.storage_uri);
    known.uploaded_by := coalesce(known.uploaded_by, snapshot_ready.uploaded_by);
    UPDATE sandbox_restore.snapshot x SET
        state = 'ready', captured_at = known.captured_at, host_cpu = known.host_cpu,
        storage_uri = known.storage_uri, uploaded_by = known.uploaded_by,
        ancestor_cpus = sandbox_restore.platform_others(x.ancestor_cpus, known.host_cpu)
    WHERE x.id = known.id
        AND (x.state, x.captured_at, x.host_cpu, x.storage_uri, x.uploaded_by) IS DISTINCT FROM
            ('ready', known.captured_at, known.host_cpu, known.storage_uri, known.uploaded_by);
    changed := FOUND;
    -- The newest execution, if it ended as suspended; an active one is always the newest.
    SELECT e.suspended_at INTO ended FROM sandbox_restore.execution e
        WHERE e.sandbox_id = held.id ORDER BY e.seq DESC LIMIT 1;
    IF held.local_artifact_marker AND sandbox_restore.platform_stored_since(held.id, ended) THEN
        UPDATE sandbox_restore.sandbox s SET local_artifact_marker = false WHERE s.id = held.id;
    END IF;
    RETURN changed;
END $$
"""

FAILED = """
CREATE FUNCTION sandbox_restore.snapshot_failed(sandbox_id text, snapshot_id text)
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    held sandbox_restore.sandbox := sandbox_restore.platform_held(sandbox_id);
    known sandbox_restore.snapshot := sandbox_restore.platform_snapshot(held.id, snapshot_id);
BEGIN
    IF known.state = 'ready' THEN
        RAISE EXCEPTION 'snapshot "%" is ready: it cannot fail any more', known.id
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    UPDATE sandbox_restore.snapshot x SET state = 'failed'
        WHERE x.id = known.id AND x.state <> 'failed';
    RETURN FOUND;
END $$
"""


def upgrade() -> None:
    run(LINEAGE, OTHERS, SNAPSHOT_OF, AGREE, STARTED, READY, FAILED)
