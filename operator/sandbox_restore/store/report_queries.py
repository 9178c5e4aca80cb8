"""What `fleet` asks the database: reads only, for people, never on a decision's path."""

from __future__ import annotations

from typing import Final

from sandbox_restore.store.connection import Query

STORED_LINEAGES: Final = Query(
    "stored_lineages",
    """
    SELECT json_agg(json_build_object(
        'capture_cpu', c.host_cpu, 'ancestor_cpus', c.ancestor_cpus, 'snapshots', c.snapshots,
        'sandboxes', c.sandboxes))::text
    FROM (
        SELECT x.host_cpu, x.ancestor_cpus, count(*) snapshots,
            count(DISTINCT x.sandbox_id) sandboxes
        FROM sandbox_restore.snapshot x
        WHERE x.kind = 'full' AND x.state = 'ready'
        GROUP BY x.host_cpu, x.ancestor_cpus) c
    """,
)
PINNED_TO: Final = Query(
    "pinned_to",
    """
    SELECT json_agg(json_build_object(
        'sandbox_id', s.id, 'namespace', s.namespace, 'state', s.state,
        'pinned_node', s.pinned_node, 'marker', s.local_artifact_marker,
        'in_storage', EXISTS (
            SELECT FROM sandbox_restore.snapshot x
            WHERE x.sandbox_id = s.id AND x.kind = 'full' AND x.state = 'ready'
                AND x.storage_uri IS NOT NULL)) ORDER BY s.id)::text
    FROM (
        SELECT * FROM sandbox_restore.sandbox s
        WHERE s.pinned_node = ANY($1::text[]) ORDER BY s.id LIMIT $2::int) s
    """,
)
_STORED = """
WITH stored AS (
    SELECT s.id, s.namespace, s.node_group, s.node_selector, s.pinned_node, x.host_cpu,
        x.ancestor_cpus
    FROM sandbox_restore.sandbox s
    JOIN LATERAL (
        SELECT x.host_cpu, x.ancestor_cpus, x.storage_uri FROM sandbox_restore.snapshot x
        WHERE x.sandbox_id = s.id AND x.kind = 'full' AND x.state = 'ready'
            AND x.captured_at IS NOT NULL
        ORDER BY x.captured_at DESC LIMIT 1) x ON x.storage_uri IS NOT NULL
)
"""
"""Sandboxes whose newest ready full snapshot is in storage, with its lineage."""
_KINDS = """
SELECT json_agg(json_build_object(
    'capture_cpu', k.host_cpu, 'ancestor_cpus', k.ancestor_cpus, 'node_group', k.node_group,
    'node_selector', k.node_selector, 'sandboxes', k.sandboxes))::text
FROM (
    SELECT t.host_cpu, t.ancestor_cpus, t.node_group, t.node_selector, count(*) sandboxes
    FROM stored t
    WHERE t.host_cpu = ANY($1::text[])
        AND (t.pinned_node IS NULL OR t.pinned_node = ANY($2::text[]))
    GROUP BY t.host_cpu, t.ancestor_cpus, t.node_group, t.node_selector) k
"""
_NAMES = """
SELECT json_agg(json_build_array(k.namespace, k.id))::text
FROM (
    SELECT t.namespace, t.id FROM stored t
    WHERE t.host_cpu = $1::text AND t.ancestor_cpus = $2::text[]
        AND t.node_group IS NOT DISTINCT FROM $3::text AND t.node_selector = $4::jsonb
        AND (t.pinned_node IS NULL OR t.pinned_node = ANY($5::text[]))
    ORDER BY t.namespace, t.id LIMIT $6::int) k
"""
STORED_KINDS: Final = Query("stored_kinds", _STORED + _KINDS)
SANDBOXES_OF: Final = Query("sandboxes_of", _STORED + _NAMES)
