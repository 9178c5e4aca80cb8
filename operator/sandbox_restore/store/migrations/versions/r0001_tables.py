"""The five tables, what they refuse, and the row version (domain.md section 15)."""

from __future__ import annotations

from sandbox_restore.store.migrations.run import run

revision = "0001"
down_revision = None

LABEL_VALUE = "^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
LABEL_KEY = (
    "^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
)
DNS_LABEL = "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
HOST_CPU = "^[a-z0-9]+([-.][a-z0-9]+)*$"

INSTANT = """
-- Times that every client can represent: no infinity, no year 0 or 10000.
CREATE DOMAIN sandbox_restore.instant AS timestamptz
    CONSTRAINT instant_is_a_calendar_time CHECK (
        VALUE >= '1970-01-01 00:00:00+00' AND VALUE < '10000-01-01 00:00:00+00'
    )
"""

SANDBOX = f"""
CREATE TABLE sandbox_restore.sandbox (
    id text NOT NULL,
    namespace text NOT NULL,
    namespace_uid text,
    state text NOT NULL DEFAULT 'suspended',
    node_group text,
    node_selector jsonb NOT NULL DEFAULT '{{}}',
    pinned_node text,
    local_artifact_marker boolean NOT NULL DEFAULT false,
    last_command_at sandbox_restore.instant,
    last_access_at sandbox_restore.instant,
    restore_started_at sandbox_restore.instant,
    version bigint NOT NULL DEFAULT 1,
    CONSTRAINT sandbox_pkey PRIMARY KEY (id),
    CONSTRAINT sandbox_id_is_label_value CHECK (id COLLATE "C" ~ '{LABEL_VALUE}'),
    CONSTRAINT sandbox_namespace_is_dns_label CHECK (namespace COLLATE "C" ~ '{DNS_LABEL}'),
    CONSTRAINT sandbox_namespace_uid_length CHECK (length(namespace_uid) BETWEEN 1 AND 253),
    CONSTRAINT sandbox_state_known
        CHECK (state IN ('suspended', 'restoring', 'running', 'failed')),
    CONSTRAINT sandbox_node_group_is_label_value CHECK (node_group COLLATE "C" ~ '{LABEL_VALUE}'),
    CONSTRAINT sandbox_node_selector_is_labels CHECK (
        jsonb_typeof(node_selector) = 'object'
        AND NOT jsonb_path_exists(node_selector, 'strict $.* ? (@.type() != "string")')
        AND NOT jsonb_path_exists(
            node_selector, 'strict $.* ? (@ != "" && !(@ like_regex "{LABEL_VALUE}"))')
        AND NOT jsonb_path_exists(
            node_selector, 'strict $.keyvalue() ? (!(@.key like_regex "{LABEL_KEY}"))')
    ),
    CONSTRAINT sandbox_pinned_node_length CHECK (length(pinned_node) BETWEEN 1 AND 253),
    CONSTRAINT sandbox_marker_needs_pin
        CHECK (NOT local_artifact_marker OR pinned_node IS NOT NULL),
    CONSTRAINT sandbox_restoring_has_start
        CHECK ((state = 'restoring') = (restore_started_at IS NOT NULL)),
    CONSTRAINT sandbox_version_positive CHECK (version > 0)
)
"""

SNAPSHOT = """
CREATE TABLE sandbox_restore.snapshot (
    id text NOT NULL,
    sandbox_id text NOT NULL,
    kind text NOT NULL DEFAULT 'full',
    state text NOT NULL DEFAULT 'uploading',
    captured_at sandbox_restore.instant,
    uploaded_by text,
    host_cpu text,
    ancestor_cpus text[] NOT NULL DEFAULT '{}',
    storage_uri text,
    CONSTRAINT snapshot_pkey PRIMARY KEY (id),
    CONSTRAINT snapshot_of_sandbox UNIQUE (sandbox_id, id),
    CONSTRAINT snapshot_sandbox_exists
        FOREIGN KEY (sandbox_id) REFERENCES sandbox_restore.sandbox (id),
    CONSTRAINT snapshot_id_length CHECK (length(id) BETWEEN 1 AND 253),
    CONSTRAINT snapshot_kind_known CHECK (kind IN ('full', 'diff')),
    CONSTRAINT snapshot_state_known CHECK (state IN ('uploading', 'ready', 'failed')),
    CONSTRAINT snapshot_ready_has_capture_time CHECK (state <> 'ready' OR captured_at IS NOT NULL),
    CONSTRAINT snapshot_uploaded_by_length CHECK (length(uploaded_by) BETWEEN 1 AND 253),
    CONSTRAINT snapshot_host_cpu_length CHECK (length(host_cpu) BETWEEN 1 AND 253),
    CONSTRAINT snapshot_ancestors_are_others CHECK (
        array_position(ancestor_cpus, NULL) IS NULL
        AND (host_cpu IS NULL OR host_cpu <> ALL (ancestor_cpus))
    ),
    CONSTRAINT snapshot_storage_uri_length CHECK (length(storage_uri) BETWEEN 1 AND 4096)
)
"""

EXECUTION = """
CREATE TABLE sandbox_restore.execution (
    id text NOT NULL,
    seq bigint GENERATED ALWAYS AS IDENTITY,
    sandbox_id text NOT NULL,
    snapshot_id text,
    source text NOT NULL,
    restore_uid text,
    restore_name text,
    attempt integer NOT NULL DEFAULT 0,
    pod_name text NOT NULL,
    pod_uid text,
    node_name text,
    node_uid text,
    node_cpu text,
    target_node text,
    prior_pin text,
    gate boolean NOT NULL DEFAULT false,
    capture_cpu text,
    state text NOT NULL DEFAULT 'active',
    outcome text,
    failure_class text,
    failure_message text,
    created_at sandbox_restore.instant NOT NULL,
    loaded_at sandbox_restore.instant,
    suspended_at sandbox_restore.instant,
    released_at sandbox_restore.instant,
    retired_at sandbox_restore.instant,
    CONSTRAINT execution_pkey PRIMARY KEY (id),
    CONSTRAINT execution_seq_once UNIQUE (seq),
    CONSTRAINT execution_sandbox_exists
        FOREIGN KEY (sandbox_id) REFERENCES sandbox_restore.sandbox (id),
    CONSTRAINT execution_snapshot_of_same_sandbox FOREIGN KEY (sandbox_id, snapshot_id)
        REFERENCES sandbox_restore.snapshot (sandbox_id, id),
    CONSTRAINT execution_id_length CHECK (length(id) BETWEEN 1 AND 253),
    CONSTRAINT execution_source_known CHECK (source IN ('storage', 'local', 'platform')),
    CONSTRAINT execution_storage_has_snapshot
        CHECK (source <> 'storage' OR snapshot_id IS NOT NULL),
    CONSTRAINT execution_local_has_target CHECK (source <> 'local' OR target_node IS NOT NULL),
    CONSTRAINT execution_restore_unless_platform CHECK (
        CASE source WHEN 'platform'
            THEN restore_uid IS NULL AND restore_name IS NULL AND attempt = 0
            ELSE restore_uid IS NOT NULL AND restore_name IS NOT NULL AND attempt >= 1
        END
    ),
    CONSTRAINT execution_platform_has_pod_and_node CHECK (
        source <> 'platform'
        OR (pod_uid IS NOT NULL AND node_name IS NOT NULL AND loaded_at IS NOT NULL)
    ),
    CONSTRAINT execution_names_length CHECK (
        length(restore_uid) BETWEEN 1 AND 253 AND length(restore_name) BETWEEN 1 AND 253
        AND length(pod_name) BETWEEN 1 AND 253 AND length(pod_uid) BETWEEN 1 AND 253
        AND length(node_name) BETWEEN 1 AND 253 AND length(node_uid) BETWEEN 1 AND 253
        AND length(node_cpu) BETWEEN 1 AND 253 AND length(target_node) BETWEEN 1 AND 253
        AND length(prior_pin) BETWEEN 1 AND 253 AND length(capture_cpu) BETWEEN 1 AND 253
    ),
    CONSTRAINT execution_state_known CHECK (state IN ('active', 'retired')),
    CONSTRAINT execution_outcome_known
        CHECK (outcome IN ('suspended', 'failed', 'lost', 'superseded', 'cancelled')),
    CONSTRAINT execution_retired_has_outcome_and_time CHECK (
        (state = 'retired') = (outcome IS NOT NULL)
        AND (state = 'retired') = (retired_at IS NOT NULL)
    ),
    CONSTRAINT execution_failure_is_retired CHECK (
        state = 'retired' OR (failure_class IS NULL AND failure_message IS NULL)
    ),
    CONSTRAINT execution_loaded_has_pod_and_node
        CHECK (loaded_at IS NULL OR (pod_uid IS NOT NULL AND node_name IS NOT NULL)),
    CONSTRAINT execution_released_is_loaded CHECK (released_at IS NULL OR loaded_at IS NOT NULL),
    CONSTRAINT execution_suspended_has_time CHECK (
        (outcome IS NOT DISTINCT FROM 'suspended') = (suspended_at IS NOT NULL)
    ),
    CONSTRAINT execution_suspended_is_loaded CHECK (suspended_at IS NULL OR loaded_at IS NOT NULL)
)
"""

LOAD_OBSERVATION = """
CREATE TABLE sandbox_restore.load_observation (
    execution_id text NOT NULL,
    sandbox_id text NOT NULL,
    snapshot_id text,
    result text NOT NULL,
    capture_cpu text,
    node_name text NOT NULL,
    node_uid text,
    node_cpu text,
    observed_at sandbox_restore.instant NOT NULL,
    CONSTRAINT load_observation_pkey PRIMARY KEY (execution_id),
    CONSTRAINT load_observation_execution_exists FOREIGN KEY (execution_id)
        REFERENCES sandbox_restore.execution (id) ON DELETE CASCADE,
    CONSTRAINT load_observation_result_known CHECK (result IN ('loaded', 'cpu-incompatible')),
    CONSTRAINT load_observation_node_name_length CHECK (length(node_name) BETWEEN 1 AND 253)
)
"""

NODE_CPU_HISTORY = f"""
CREATE TABLE sandbox_restore.node_cpu_history (
    node_name text NOT NULL,
    node_uid text NOT NULL,
    host_cpu text NOT NULL,
    first_seen_at sandbox_restore.instant NOT NULL,
    last_seen_at sandbox_restore.instant NOT NULL,
    CONSTRAINT node_cpu_history_pkey PRIMARY KEY (node_name, node_uid, first_seen_at),
    CONSTRAINT node_cpu_history_names_length CHECK (
        length(node_name) BETWEEN 1 AND 253 AND length(node_uid) BETWEEN 1 AND 253
    ),
    CONSTRAINT node_cpu_history_cpu_is_canonical
        CHECK (length(host_cpu) <= 63 AND host_cpu COLLATE "C" ~ '{HOST_CPU}'),
    CONSTRAINT node_cpu_history_ends_after_it_begins CHECK (last_seen_at >= first_seen_at)
)
"""

INDEXES = """
CREATE UNIQUE INDEX execution_one_active_per_sandbox
    ON sandbox_restore.execution (sandbox_id) WHERE state = 'active';
CREATE UNIQUE INDEX execution_attempt_once ON sandbox_restore.execution (restore_uid, attempt);
CREATE UNIQUE INDEX execution_pod_once
    ON sandbox_restore.execution (sandbox_id, pod_uid) WHERE pod_uid IS NOT NULL;
CREATE INDEX execution_newest ON sandbox_restore.execution (sandbox_id, seq DESC);
CREATE INDEX execution_newest_loaded
    ON sandbox_restore.execution (sandbox_id, seq DESC) WHERE loaded_at IS NOT NULL;
CREATE INDEX execution_unreleased ON sandbox_restore.execution (sandbox_id)
    WHERE state = 'active' AND source <> 'platform' AND released_at IS NULL;
CREATE INDEX execution_released_retired ON sandbox_restore.execution (retired_at)
    WHERE state = 'retired' AND released_at IS NOT NULL;
CREATE INDEX sandbox_by_state ON sandbox_restore.sandbox (state);
CREATE INDEX sandbox_by_pin
    ON sandbox_restore.sandbox (pinned_node) WHERE pinned_node IS NOT NULL;
-- Stranded rows are among those that a failed restore left pinned (section 10).
CREATE INDEX sandbox_left_pinned ON sandbox_restore.sandbox (pinned_node, id)
    WHERE pinned_node IS NOT NULL AND state IN ('restoring', 'failed');
CREATE INDEX snapshot_newest_full
    ON sandbox_restore.snapshot (sandbox_id, captured_at DESC NULLS FIRST) WHERE kind = 'full';
CREATE INDEX snapshot_by_capture_cpu
    ON sandbox_restore.snapshot (host_cpu) WHERE kind = 'full' AND state = 'ready';
CREATE INDEX load_observation_recent ON sandbox_restore.load_observation (observed_at DESC);
CREATE INDEX load_observation_refusals ON sandbox_restore.load_observation
    (sandbox_id, observed_at DESC) WHERE result = 'cpu-incompatible';
CREATE INDEX node_cpu_history_recent ON sandbox_restore.node_cpu_history (last_seen_at)
"""

TRIGGERS = (
    """
CREATE FUNCTION sandbox_restore.raise_version() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    NEW.version := OLD.version + 1;
    RETURN NEW;
END $$
""",
    """
CREATE TRIGGER raise_version BEFORE UPDATE ON sandbox_restore.sandbox
    FOR EACH ROW EXECUTE FUNCTION sandbox_restore.raise_version()
""",
    """
CREATE FUNCTION sandbox_restore.notify_change() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM pg_notify('sandbox_restore', NEW.id || ' ' || NEW.version);
    RETURN NULL;
END $$
""",
    """
CREATE TRIGGER notify_change AFTER INSERT OR UPDATE ON sandbox_restore.sandbox
    FOR EACH ROW EXECUTE FUNCTION sandbox_restore.notify_change()
""",
    """
-- Runs with its owner's rights: the operator may not write every column of a sandbox.
CREATE FUNCTION sandbox_restore.touch_sandbox() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- Once in a transaction is enough: others see only the version that was committed.
    UPDATE sandbox_restore.sandbox s SET version = s.version
    WHERE s.id = CASE TG_OP WHEN 'DELETE' THEN OLD.sandbox_id ELSE NEW.sandbox_id END
        AND s.xmin <> pg_current_xact_id()::xid;
    RETURN NULL;
END $$
""",
    """
CREATE TRIGGER touch_sandbox AFTER INSERT OR UPDATE OR DELETE ON sandbox_restore.snapshot
    FOR EACH ROW EXECUTE FUNCTION sandbox_restore.touch_sandbox()
""",
    """
CREATE TRIGGER touch_sandbox AFTER INSERT OR UPDATE OR DELETE ON sandbox_restore.execution
    FOR EACH ROW EXECUTE FUNCTION sandbox_restore.touch_sandbox()
""",
    """
CREATE FUNCTION sandbox_restore.guard_execution() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF OLD.state = 'retired' AND NEW.state = 'active' THEN
        RAISE EXCEPTION 'execution "%" is retired and stays so', OLD.id
            USING ERRCODE = 'check_violation';
    END IF;
    IF (NEW.id, NEW.seq, NEW.sandbox_id) IS DISTINCT FROM (OLD.id, OLD.seq, OLD.sandbox_id) THEN
        RAISE EXCEPTION 'execution "%": id, seq and sandbox_id never change', OLD.id
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$
""",
    """
CREATE TRIGGER guard_execution BEFORE UPDATE ON sandbox_restore.execution
    FOR EACH ROW EXECUTE FUNCTION sandbox_restore.guard_execution()
""",
)


def upgrade() -> None:
    run(INSTANT, SANDBOX, SNAPSHOT, EXECUTION, LOAD_OBSERVATION, NODE_CPU_HISTORY)
    run(*INDEXES.split(";"), *TRIGGERS)
