"""Statements of the node history (section 12), and what ages out (sections 11 and 12)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from sandbox_restore.model.sandbox import NodeCpuSpan
from sandbox_restore.store.connection import Query

NODE_HISTORY = Query(
    "node_history",
    """
    SELECT json_agg(to_json(h))::text FROM (
        SELECT * FROM sandbox_restore.node_cpu_history n
        WHERE n.last_seen_at >= $1::timestamptz AND n.last_seen_at <= $3::timestamptz
            AND (n.last_seen_at, n.node_name, n.node_uid, n.first_seen_at)
                < ($3::timestamptz, $4::text, $5::text, $6::timestamptz)
        ORDER BY n.last_seen_at DESC, n.node_name DESC, n.node_uid DESC, n.first_seen_at DESC
        LIMIT $2::int) h
    """,
)
LAST_OF_ALL: Final = NodeCpuSpan(
    node_name="",
    node_uid="",
    host_cpu="",
    first_seen_at=datetime.max.replace(tzinfo=UTC),
    last_seen_at=datetime.max.replace(tzinfo=UTC),
)
"""No row comes before it."""
CPUS_LAST_SEEN = Query(
    "cpus_last_seen",
    """
    SELECT json_object_agg(c.host_cpu, c.last_seen_at)::text FROM (
        SELECT n.host_cpu, max(n.last_seen_at) AS last_seen_at
        FROM sandbox_restore.node_cpu_history n WHERE n.last_seen_at >= $1::timestamptz
        GROUP BY n.host_cpu) c
    """,
)
RECORD_NODES = Query(
    "record_nodes",
    """
    WITH given AS (
        SELECT * FROM json_to_recordset($1::text::json) AS g(
            node_name text, node_uid text, host_cpu text, first_seen_at timestamptz,
            last_seen_at timestamptz)
    ), written AS (
        INSERT INTO sandbox_restore.node_cpu_history AS h
            (node_name, node_uid, host_cpu, first_seen_at, last_seen_at)
        SELECT * FROM given
        ON CONFLICT (node_name, node_uid, first_seen_at) DO UPDATE
            SET last_seen_at = excluded.last_seen_at
            WHERE h.host_cpu = excluded.host_cpu AND h.last_seen_at < excluded.last_seen_at
        RETURNING 1
    ) SELECT count(*)::int FROM written
    """,
)
PRUNE = Query(
    "prune",
    """
    WITH observations AS (
        DELETE FROM sandbox_restore.load_observation WHERE ctid = ANY (ARRAY(
            SELECT o.ctid FROM sandbox_restore.load_observation o
            WHERE o.observed_at < $1::timestamptz LIMIT $3::int))
        RETURNING 1
    ), spans AS (
        DELETE FROM sandbox_restore.node_cpu_history WHERE ctid = ANY (ARRAY(
            SELECT n.ctid FROM sandbox_restore.node_cpu_history n
            WHERE n.last_seen_at < $2::timestamptz LIMIT $3::int))
        RETURNING 1
    ) SELECT ((SELECT count(*) FROM observations) + (SELECT count(*) FROM spans))::int
    """,
)
