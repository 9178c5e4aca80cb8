"""What the platform reports of sandboxes and their runs (domain.md section 15).

Every function runs with its owner's rights, on a fixed search path, and takes the sandbox's row
FOR UPDATE first. Parameter names are a part of the contract: callers may name them.
"""

from __future__ import annotations

from sandbox_restore.store.migrations.run import run

revision = "0004"
down_revision = "0003"

HELD = """
-- The sandbox's row, locked until the transaction ends. Raises no_data_found.
CREATE FUNCTION sandbox_restore.platform_held(sandbox_id text) RETURNS sandbox_restore.sandbox
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    held sandbox_restore.sandbox;
BEGIN
    SELECT s.* INTO held FROM sandbox_restore.sandbox s
        WHERE s.id = platform_held.sandbox_id FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'sandbox "%" does not exist', sandbox_id
            USING ERRCODE = 'no_data_found', HINT = 'report it with sandbox_created() first';
    END IF;
    RETURN held;
END $$
"""

STORED_SINCE = """
-- Storage holds a full snapshot captured at that time or later.
CREATE FUNCTION sandbox_restore.platform_stored_since(sandbox_id text, at timestamptz)
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM sandbox_restore.snapshot x
        WHERE x.sandbox_id = platform_stored_since.sandbox_id AND x.kind = 'full'
            AND x.state = 'ready' AND x.storage_uri IS NOT NULL AND x.captured_at >= at);
END $$
"""

CREATED = """
CREATE FUNCTION sandbox_restore.sandbox_created(
    sandbox_id text, namespace text, node_group text DEFAULT NULL, node_selector jsonb DEFAULT '{}',
    namespace_uid text DEFAULT NULL
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    held sandbox_restore.sandbox;
BEGIN
    INSERT INTO sandbox_restore.sandbox AS s (
        id, namespace, node_group, node_selector, namespace_uid
    ) VALUES (
        sandbox_id, sandbox_created.namespace, sandbox_created.node_group,
        coalesce(sandbox_created.node_selector, '{}'), sandbox_created.namespace_uid
    ) ON CONFLICT ON CONSTRAINT sandbox_pkey DO NOTHING;
    IF FOUND THEN
        RETURN true;
    END IF;
    held := sandbox_restore.platform_held(sandbox_id);
    IF held.namespace <> sandbox_created.namespace
        OR held.namespace_uid <> sandbox_created.namespace_uid
        OR held.node_group IS DISTINCT FROM sandbox_created.node_group
        OR held.node_selector <> coalesce(sandbox_created.node_selector, '{}')
    THEN
        RAISE EXCEPTION 'sandbox "%" exists with another namespace, node group or node selector',
            sandbox_id USING ERRCODE = 'duplicate_object', HINT = 'sandbox ids are never reused';
    END IF;
    RETURN false;
END $$
"""

COMMAND = """
CREATE FUNCTION sandbox_restore.sandbox_command(
    sandbox_id text, command_at timestamptz DEFAULT now()
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    held sandbox_restore.sandbox := sandbox_restore.platform_held(sandbox_id);
BEGIN
    UPDATE sandbox_restore.sandbox s SET last_command_at = coalesce(command_at, now())
    WHERE s.id = held.id
        AND (s.last_command_at IS NULL OR s.last_command_at < coalesce(command_at, now()));
    RETURN FOUND;
END $$
"""

ACCESS = """
CREATE FUNCTION sandbox_restore.sandbox_access(
    sandbox_id text, access_at timestamptz DEFAULT now()
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    held sandbox_restore.sandbox := sandbox_restore.platform_held(sandbox_id);
BEGIN
    UPDATE sandbox_restore.sandbox s SET last_access_at = coalesce(access_at, now())
    WHERE s.id = held.id
        AND (s.last_access_at IS NULL OR s.last_access_at < coalesce(access_at, now()));
    RETURN FOUND;
END $$
"""

STARTED = """
-- Asked before anything is started: an error means that nothing may be.
CREATE FUNCTION sandbox_restore.execution_started(
    sandbox_id text, node_name text, pod_name text, pod_uid text, node_uid text DEFAULT NULL,
    node_cpu text DEFAULT NULL, snapshot_id text DEFAULT NULL,
    started_at timestamptz DEFAULT now()
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    held sandbox_restore.sandbox := sandbox_restore.platform_held(sandbox_id);
    run sandbox_restore.execution;
    new_id text := gen_random_uuid();
BEGIN
    IF node_name IS NULL OR pod_name IS NULL OR pod_uid IS NULL THEN
        RAISE EXCEPTION 'execution_started: node_name, pod_name and pod_uid are required'
            USING ERRCODE = 'null_value_not_allowed';
    END IF;
    SELECT e.* INTO run FROM sandbox_restore.execution e
        WHERE e.sandbox_id = held.id AND e.pod_uid = execution_started.pod_uid;
    IF run.state = 'active' AND run.source = 'platform' THEN
        RETURN run.id;  -- the same report again
    END IF;
    IF run.state = 'retired' THEN
        RAISE EXCEPTION 'pod "%" has run sandbox "%" before (execution "%")', pod_name, held.id,
            run.id USING ERRCODE = 'object_in_use', HINT = 'start nothing; a pod is used once';
    END IF;
    SELECT e.* INTO run FROM sandbox_restore.execution e
        WHERE e.sandbox_id = held.id AND e.state = 'active';
    IF FOUND THEN
        RAISE EXCEPTION 'sandbox "%" is being run by pod "%" (execution "%")', held.id,
            run.pod_name, run.id USING ERRCODE = 'object_in_use', HINT = 'start nothing';
    END IF;
    UPDATE sandbox_restore.sandbox s SET
        state = 'running', pinned_node = execution_started.node_name,
        local_artifact_marker = true, restore_started_at = NULL
    WHERE s.id = held.id;
    INSERT INTO sandbox_restore.execution (
        id, sandbox_id, snapshot_id, source, pod_name, pod_uid, node_name, node_uid, node_cpu,
        prior_pin, created_at, loaded_at
    ) VALUES (
        new_id, held.id, execution_started.snapshot_id, 'platform', execution_started.pod_name,
        execution_started.pod_uid, execution_started.node_name, execution_started.node_uid,
        execution_started.node_cpu, held.pinned_node, coalesce(started_at, now()),
        coalesce(started_at, now())
    );
    RETURN new_id;
END $$
"""

SUSPENDED = """
-- suspended_at is when the VM stopped; it is never taken to lie before its execution began.
CREATE FUNCTION sandbox_restore.sandbox_suspended(
    sandbox_id text, node_name text, pod_uid text, suspended_at timestamptz DEFAULT now()
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    held sandbox_restore.sandbox := sandbox_restore.platform_held(sandbox_id);
    run sandbox_restore.execution;
    stopped timestamptz;
BEGIN
    IF node_name IS NULL OR pod_uid IS NULL THEN
        RAISE EXCEPTION 'sandbox_suspended: node_name and pod_uid are required'
            USING ERRCODE = 'null_value_not_allowed';
    END IF;
    SELECT e.* INTO run FROM sandbox_restore.execution e
        WHERE e.sandbox_id = held.id ORDER BY e.seq DESC LIMIT 1;
    IF run.state = 'active' AND run.pod_uid IS NULL AND NOT EXISTS (
        SELECT FROM sandbox_restore.execution e
        WHERE e.sandbox_id = held.id AND e.pod_uid = sandbox_suspended.pod_uid)
    THEN
        -- It may be this execution's pod. A guess would end another pod's execution, silence
        -- would lose the suspend.
        RAISE EXCEPTION 'sandbox "%": the pod of execution "%" is not recorded yet', held.id, run.id
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'report it again later';
    END IF;
    IF run.id IS NULL OR run.pod_uid IS DISTINCT FROM sandbox_suspended.pod_uid THEN
        RETURN false;
    END IF;
    IF run.outcome IS NOT NULL AND run.outcome <> 'lost' THEN
        RETURN run.outcome = 'suspended';
    END IF;
    stopped := greatest(coalesce(sandbox_suspended.suspended_at, now()), run.created_at);
    UPDATE sandbox_restore.sandbox s SET
        state = 'suspended', pinned_node = sandbox_suspended.node_name, restore_started_at = NULL,
        local_artifact_marker = NOT sandbox_restore.platform_stored_since(held.id, stopped)
    WHERE s.id = held.id;
    UPDATE sandbox_restore.execution e SET
        state = 'retired', outcome = 'suspended', suspended_at = stopped,
        failure_class = NULL, failure_message = NULL,
        node_name = coalesce(run.node_name, sandbox_suspended.node_name),
        loaded_at = coalesce(run.loaded_at, stopped),
        retired_at = coalesce(run.retired_at, now())
    WHERE e.id = run.id;
    RETURN true;
END $$
"""

STATE_LOST = """
-- prior_pin too: a running attempt that fails would put the lost pin back.
CREATE FUNCTION sandbox_restore.node_state_lost(sandbox_id text, node_name text DEFAULT NULL)
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    held sandbox_restore.sandbox := sandbox_restore.platform_held(sandbox_id);
    cleared boolean;
BEGIN
    UPDATE sandbox_restore.sandbox s SET pinned_node = NULL, local_artifact_marker = false
    WHERE s.id = held.id AND s.pinned_node IS NOT NULL
        AND s.pinned_node = coalesce(node_state_lost.node_name, s.pinned_node);
    cleared := FOUND;
    UPDATE sandbox_restore.execution e SET prior_pin = NULL
    WHERE e.sandbox_id = held.id AND e.state = 'active' AND e.prior_pin IS NOT NULL
        AND e.prior_pin = coalesce(node_state_lost.node_name, e.prior_pin);
    RETURN cleared OR FOUND;
END $$
"""


def upgrade() -> None:
    run(HELD, STORED_SINCE, CREATED, COMMAND, ACCESS, STARTED, SUSPENDED, STATE_LOST)
