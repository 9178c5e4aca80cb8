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
        'node_group', s.node_group, 'node_selector', s.node_selector,
        'lineage', coalesce(
            array_remove(o.ancestor_cpus || coalesce(o.host_cpu, e.capture_cpu), NULL), '{}'),
        'in_storage', coalesce(
            x.state = 'ready' AND x.storage_uri IS NOT NULL
            AND x.captured_at >= greatest(s.last_command_at, s.last_access_at, x.captured_at),
            false)) ORDER BY s.id)::text
    FROM sandbox_restore.sandbox s
    LEFT JOIN LATERAL (
        SELECT x.state, x.storage_uri, x.captured_at FROM sandbox_restore.snapshot x
        WHERE x.sandbox_id = s.id AND x.kind = 'full'
        ORDER BY x.captured_at DESC NULLS FIRST LIMIT 1) x ON true
    LEFT JOIN sandbox_restore.execution e ON e.sandbox_id = s.id AND e.state = 'active'
    LEFT JOIN sandbox_restore.snapshot o ON o.id = e.snapshot_id
    WHERE s.pinned_node = ANY($1::text[])
    """,
)
_STORED = """
WITH stored AS (
    SELECT s.id, s.namespace, s.node_group, s.node_selector, x.host_cpu, x.ancestor_cpus
    FROM sandbox_restore.sandbox s
    JOIN LATERAL (
        SELECT x.host_cpu, x.ancestor_cpus, x.storage_uri FROM sandbox_restore.snapshot x
        WHERE x.sandbox_id = s.id AND x.kind = 'full' AND x.state = 'ready'
            AND x.captured_at IS NOT NULL
        ORDER BY x.captured_at DESC LIMIT 1) x ON x.storage_uri IS NOT NULL
    WHERE NOT s.local_artifact_marker
        AND (s.pinned_node IS NULL OR s.pinned_node = ANY($1::text[]))
)
"""
"""Sandboxes that no node but those of $1 holds, with the lineage of what storage has of them."""
_KINDS = """
SELECT json_agg(json_build_object(
    'capture_cpu', k.host_cpu, 'ancestor_cpus', k.ancestor_cpus, 'node_group', k.node_group,
    'node_selector', k.node_selector, 'sandboxes', k.sandboxes))::text
FROM (
    SELECT t.host_cpu, t.ancestor_cpus, t.node_group, t.node_selector, count(*) sandboxes
    FROM stored t
    GROUP BY t.host_cpu, t.ancestor_cpus, t.node_group, t.node_selector) k
"""
_NAMES = """
SELECT json_agg(json_build_array(k.namespace, k.id))::text
FROM (
    SELECT t.namespace, t.id FROM stored t
    WHERE t.host_cpu = $2::text AND t.ancestor_cpus = $3::text[]
        AND t.node_group IS NOT DISTINCT FROM $4::text AND t.node_selector = $5::jsonb
    ORDER BY t.namespace, t.id LIMIT $6::int) k
"""
STORED_KINDS: Final = Query("stored_kinds", _STORED + _KINDS)
SANDBOXES_OF: Final = Query("sandboxes_of", _STORED + _NAMES)
