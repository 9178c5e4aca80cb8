"""The operator's statements (domain.md section 15): views, the locked view, and one write each.

They run with their caller's rights. Each write takes the sandbox's row FOR UPDATE first and answers
with the new view, so that a pass costs no further statement. The row is written before the
execution: the version then rises once.
"""

from __future__ import annotations

from sandbox_restore.store.migrations.run import run

revision = "0003"
down_revision = "0002"

VIEW = """
-- plpgsql, for its plans are kept for the session.
CREATE FUNCTION sandbox_restore.operator_view(sandbox_id text, restore_uids text[]) RETURNS json
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT json_build_object(
        'sandbox', to_json(s),
        'snapshots', coalesce((
            SELECT json_agg(to_json(x) ORDER BY x.captured_at DESC NULLS FIRST, x.id)
            FROM sandbox_restore.snapshot x WHERE x.sandbox_id = s.id), '[]'),
        'active', (
            SELECT to_json(e) FROM sandbox_restore.execution e
            WHERE e.sandbox_id = s.id AND e.state = 'active'),
        'newest', (
            SELECT to_json(e) FROM sandbox_restore.execution e
            WHERE e.sandbox_id = s.id ORDER BY e.seq DESC LIMIT 1),
        'newest_loaded', (
            SELECT to_json(e) FROM sandbox_restore.execution e
            WHERE e.sandbox_id = s.id AND e.loaded_at IS NOT NULL ORDER BY e.seq DESC LIMIT 1),
        'attempts', coalesce((
            SELECT json_agg(to_json(e) ORDER BY e.seq) FROM sandbox_restore.execution e
            WHERE e.sandbox_id = s.id AND e.restore_uid = ANY (operator_view.restore_uids)), '[]'),
        'refusals', coalesce((
            SELECT json_agg(to_json(o)) FROM (
                SELECT * FROM sandbox_restore.load_observation o
                WHERE o.sandbox_id = s.id AND o.result = 'cpu-incompatible'
                ORDER BY o.observed_at DESC LIMIT 64) o), '[]')
    ) FROM sandbox_restore.sandbox s WHERE s.id = operator_view.sandbox_id);
END $$
"""

LOCK = """
-- VOLATILE on purpose: under READ COMMITTED the second statement then sees what the former holder
-- of the lock committed; one statement with FOR UPDATE would read the other tables as they were
-- before it waited.
CREATE FUNCTION sandbox_restore.operator_lock(sandbox_id text, restore_uids text[]) RETURNS json
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    seen json;
BEGIN
    PERFORM 1 FROM sandbox_restore.sandbox s WHERE s.id = operator_lock.sandbox_id FOR UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    SELECT sandbox_restore.operator_view(operator_lock.sandbox_id, operator_lock.restore_uids)
        INTO seen;
    RETURN seen;
END $$
"""

EXECUTION_OF = """
-- The execution, its sandbox's row locked. Raises no_data_found when there is none.
CREATE FUNCTION sandbox_restore.operator_execution(sandbox_id text, execution_id text)
RETURNS sandbox_restore.execution
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found_one sandbox_restore.execution;
BEGIN
    PERFORM 1 FROM sandbox_restore.sandbox s WHERE s.id = operator_execution.sandbox_id FOR UPDATE;
    SELECT e.* INTO found_one FROM sandbox_restore.execution e
        WHERE e.id = operator_execution.execution_id
            AND e.sandbox_id = operator_execution.sandbox_id;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'sandbox "%" has no execution "%"', sandbox_id, execution_id
            USING ERRCODE = 'no_data_found';
    END IF;
    RETURN found_one;
END $$
"""

BEGIN_ATTEMPT = """
CREATE FUNCTION sandbox_restore.operator_begin_attempt(
    sandbox_id text, restore_uids text[], execution_id text, restore_uid text, restore_name text,
    attempt integer, source text, snapshot_id text, pod_name text, target_node text, gate boolean,
    clear_pin boolean, namespace_uid text, capture_cpu text, at timestamptz
) RETURNS json
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    held sandbox_restore.sandbox;
BEGIN
    SELECT s.* INTO held FROM sandbox_restore.sandbox s
        WHERE s.id = operator_begin_attempt.sandbox_id FOR UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    IF held.state = 'running' THEN
        RAISE EXCEPTION 'sandbox "%" is running: no attempt may begin', sandbox_id
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    IF held.namespace_uid <> operator_begin_attempt.namespace_uid THEN
        RAISE EXCEPTION 'sandbox "%" belongs to an earlier namespace "%"', sandbox_id,
            held.namespace USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    UPDATE sandbox_restore.sandbox s SET
        state = 'restoring',
        restore_started_at = coalesce(held.restore_started_at, at),
        pinned_node = CASE WHEN clear_pin THEN NULL ELSE held.pinned_node END,
        namespace_uid = coalesce(held.namespace_uid, operator_begin_attempt.namespace_uid)
    WHERE s.id = held.id;
    INSERT INTO sandbox_restore.execution (
        id, sandbox_id, snapshot_id, source, restore_uid, restore_name, attempt, pod_name,
        target_node, prior_pin, gate, capture_cpu, state, created_at
    ) VALUES (
        execution_id, held.id, operator_begin_attempt.snapshot_id, operator_begin_attempt.source,
        operator_begin_attempt.restore_uid, operator_begin_attempt.restore_name,
        operator_begin_attempt.attempt, operator_begin_attempt.pod_name,
        operator_begin_attempt.target_node, held.pinned_node, operator_begin_attempt.gate,
        operator_begin_attempt.capture_cpu, 'active', at
    );
    RETURN sandbox_restore.operator_view(held.id, restore_uids);
END $$
"""

OBSERVE = """
-- Section 11: what a host did with a snapshot. Does nothing when the node is not known.
CREATE FUNCTION sandbox_restore.operator_observe(execution_id text, result text, at timestamptz)
RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO sandbox_restore.load_observation (
        execution_id, sandbox_id, snapshot_id, result, capture_cpu, node_name, node_uid, node_cpu,
        observed_at
    )
    SELECT e.id, e.sandbox_id, e.snapshot_id, operator_observe.result,
        coalesce(e.capture_cpu, x.host_cpu), e.node_name, e.node_uid, e.node_cpu, at
    FROM sandbox_restore.execution e
    LEFT JOIN sandbox_restore.snapshot x ON x.id = e.snapshot_id
    WHERE e.id = operator_observe.execution_id AND e.node_name IS NOT NULL;
END $$
"""

MARK_LOADED = """
CREATE FUNCTION sandbox_restore.operator_mark_loaded(
    sandbox_id text, restore_uids text[], execution_id text, pod_uid text, node_name text,
    node_uid text, node_cpu text, at timestamptz
) RETURNS json
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    run sandbox_restore.execution := sandbox_restore.operator_execution(sandbox_id, execution_id);
BEGIN
    IF run.state = 'active' AND run.loaded_at IS NULL THEN
        UPDATE sandbox_restore.sandbox s SET
            state = 'running',
            pinned_node = operator_mark_loaded.node_name,
            local_artifact_marker = true,
            restore_started_at = NULL
        WHERE s.id = run.sandbox_id;
        UPDATE sandbox_restore.execution e SET
            pod_uid = operator_mark_loaded.pod_uid,
            node_name = operator_mark_loaded.node_name,
            node_uid = operator_mark_loaded.node_uid,
            node_cpu = operator_mark_loaded.node_cpu,
            loaded_at = at
        WHERE e.id = run.id;
        PERFORM sandbox_restore.operator_observe(run.id, 'loaded', at);
    END IF;
    RETURN sandbox_restore.operator_view(run.sandbox_id, restore_uids);
END $$
"""

RETIRE = """
CREATE FUNCTION sandbox_restore.operator_retire(
    sandbox_id text, restore_uids text[], execution_id text, outcome text, failure_class text,
    failure_message text, pod_uid text, node_name text, node_uid text, node_cpu text,
    row_state text, pinned_node text, marker boolean, at timestamptz
) RETURNS json
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    run sandbox_restore.execution := sandbox_restore.operator_execution(sandbox_id, execution_id);
BEGIN
    IF outcome = 'suspended' OR row_state = 'running' THEN
        RAISE EXCEPTION 'outcome "%" with row state "%" is not the operator''s to write', outcome,
            row_state USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF run.state <> 'active' THEN
        RETURN sandbox_restore.operator_view(run.sandbox_id, restore_uids);
    END IF;
    UPDATE sandbox_restore.sandbox s SET
        state = row_state,
        pinned_node = operator_retire.pinned_node,
        local_artifact_marker = marker,
        restore_started_at =
            CASE WHEN row_state = 'restoring' THEN coalesce(s.restore_started_at, at) END
    WHERE s.id = run.sandbox_id;
    UPDATE sandbox_restore.execution e SET
        state = 'retired',
        outcome = operator_retire.outcome,
        failure_class = operator_retire.failure_class,
        failure_message = operator_retire.failure_message,
        pod_uid = coalesce(run.pod_uid, operator_retire.pod_uid),
        node_name = coalesce(run.node_name, operator_retire.node_name),
        node_uid = coalesce(run.node_uid, operator_retire.node_uid),
        node_cpu = coalesce(run.node_cpu, operator_retire.node_cpu),
        retired_at = at
    WHERE e.id = run.id;
    IF failure_class = 'cpu-incompatible' AND run.loaded_at IS NULL THEN
        PERFORM sandbox_restore.operator_observe(run.id, failure_class, at);
    END IF;
    RETURN sandbox_restore.operator_view(run.sandbox_id, restore_uids);
END $$
"""

FAIL_ROW = """
CREATE FUNCTION sandbox_restore.operator_fail_row(
    sandbox_id text, restore_uids text[], at timestamptz
) RETURNS json
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM 1 FROM sandbox_restore.sandbox s WHERE s.id = operator_fail_row.sandbox_id FOR UPDATE;
    UPDATE sandbox_restore.sandbox s SET state = 'failed', restore_started_at = NULL
    WHERE s.id = operator_fail_row.sandbox_id AND s.state = 'restoring'
        AND s.restore_started_at <= at
        AND NOT EXISTS (
            SELECT FROM sandbox_restore.execution e
            WHERE e.sandbox_id = s.id AND e.state = 'active');
    RETURN sandbox_restore.operator_view(operator_fail_row.sandbox_id, restore_uids);
END $$
"""

SET_MARKER = """
CREATE FUNCTION sandbox_restore.operator_set_marker(
    sandbox_id text, restore_uids text[], marker boolean
) RETURNS json
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE sandbox_restore.sandbox s SET local_artifact_marker = marker
    WHERE s.id = operator_set_marker.sandbox_id AND s.local_artifact_marker <> marker;
    RETURN sandbox_restore.operator_view(operator_set_marker.sandbox_id, restore_uids);
END $$
"""

MARK_RELEASED = """
-- A pod may be suspended, and its execution retired, between its release and this statement.
CREATE FUNCTION sandbox_restore.operator_mark_released(
    sandbox_id text, restore_uids text[], execution_id text, pod_uid text, at timestamptz
) RETURNS json
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM 1 FROM sandbox_restore.sandbox s
        WHERE s.id = operator_mark_released.sandbox_id FOR UPDATE;
    UPDATE sandbox_restore.execution e SET released_at = at
    WHERE e.id = operator_mark_released.execution_id
        AND e.sandbox_id = operator_mark_released.sandbox_id
        AND e.pod_uid = operator_mark_released.pod_uid
        AND e.source <> 'platform' AND e.loaded_at IS NOT NULL AND e.released_at IS NULL;
    RETURN sandbox_restore.operator_view(operator_mark_released.sandbox_id, restore_uids);
END $$
"""


def upgrade() -> None:
    run(VIEW, LOCK, EXECUTION_OF, BEGIN_ATTEMPT, OBSERVE, MARK_LOADED, RETIRE, FAIL_ROW)
    run(SET_MARKER, MARK_RELEASED)
