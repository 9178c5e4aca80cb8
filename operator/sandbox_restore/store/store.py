"""The operator's access to the shared schema: views, locked writes, sweeps (section 15)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Self

import asyncpg
import msgspec

from sandbox_restore.model.sandbox import (
    LeftPinned,
    LoadObservation,
    NodeCpuSpan,
    PinnedThere,
    SandboxView,
    StoredKind,
    StoredLineage,
)
from sandbox_restore.store.connection import (
    SESSION,
    Connection,
    Dsn,
    Observer,
    Query,
    current,
    readable,
)
from sandbox_restore.store.edge import DRIVER_ERRORS, redact, translated
from sandbox_restore.store.locked import MARK_LOADED, LockedSandbox
from sandbox_restore.store.node_queries import (
    CPUS_LAST_SEEN,
    LAST_OF_ALL,
    NODE_HISTORY,
    PRUNE,
    RECORD_NODES,
)
from sandbox_restore.store.records import (
    Counts,
    OpenExecution,
    ReleasedExecution,
    RestoringRow,
    decode,
    decode_rows,
    decode_view,
    encode,
)
from sandbox_restore.store.report_queries import (
    PINNED_TO,
    SANDBOXES_OF,
    STORED_KINDS,
    STORED_LINEAGES,
)
from sandbox_restore.store.schema import SchemaState, schema_state


class Store:
    """A pool of connections to the shared schema.

    Every method raises UnavailableError, PermissionDeniedError, SchemaError, ConflictError or
    RejectedError, never an exception of the driver. After an UnavailableError from the end of a
    `locked` block it is not known whether the writes were kept: read the row again.
    """

    def __init__(
        self,
        pool: Any,
        *,
        dsn: Dsn,
        command_timeout: float,
        observe: Observer | None,
        clock: Callable[[], float],
    ) -> None:
        self._pool = pool
        self._dsn = dsn
        self._command_timeout = command_timeout
        self._observe = observe
        self._clock = clock

    @classmethod
    async def open(
        cls,
        dsn: Dsn,
        *,
        pool_size: int = 10,
        command_timeout: float = 10.0,
        connect_timeout: float = 5.0,
        observe: Observer | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> Self:
        """Connects once, so that a wrong URL, password or address shows here. Times in seconds.

        A `dsn` that is a function is asked at every new connection; those that are open stay.

        `observe` is called with the name and the seconds of every statement. The schema's revision
        is not looked at: see `schema_state`. Raises ConfigurationError when the URL is no URL.
        """
        pool = await _open_pool(
            dsn,
            pool_size=pool_size,
            command_timeout=command_timeout,
            connect_timeout=connect_timeout,
        )
        return cls(pool, dsn=dsn, command_timeout=command_timeout, observe=observe, clock=clock)

    def __repr__(self) -> str:
        return f"Store({redact(current(self._dsn))})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes every connection; those in use for longer than five seconds are cut."""
        try:
            await asyncio.wait_for(self._pool.close(), 5.0)
        except DRIVER_ERRORS:
            self._pool.terminate()

    async def ping(self) -> None:
        """Returns when the database has answered."""
        await self._ask(PING)

    async def schema_state(self) -> SchemaState:
        """Which revision the database is at; `.require_current()` raises when it does not fit."""
        async with self._connection() as connection:
            return await schema_state(connection.raw)

    async def view(
        self, sandbox_id: str, *, restore_uids: Sequence[str] = ()
    ) -> SandboxView | None:
        """One consistent view without a lock, or None when there is no such row."""
        return decode_view(await self._ask(VIEW, sandbox_id, list(restore_uids)))

    @asynccontextmanager
    async def locked(
        self, sandbox_id: str, *, restore_uids: Sequence[str] = ()
    ) -> AsyncIterator[LockedSandbox]:
        """One transaction under the row's lock; `.view` is None when there is no such row.

        The view is read after the lock was got, so it shows what the former holder committed. The
        transaction is committed when the block ends, rolled back when an exception leaves it, and
        the database itself ends it when the block is idle for 60 seconds.
        """
        async with self._connection() as connection, connection.transaction():
            raw = await connection.one(LOCK, sandbox_id, list(restore_uids))
            yield LockedSandbox(
                connection,
                sandbox_id=sandbox_id,
                restore_uids=restore_uids,
                view=decode_view(raw),
            )

    async def mark_loaded(
        self,
        sandbox_id: str,
        execution_id: str,
        *,
        pod_uid: str,
        node_name: str,
        node_uid: str | None,
        node_cpu: str | None,
        now: datetime,
        restore_uids: Sequence[str] = (),
    ) -> SandboxView | None:
        """`LockedSandbox.mark_loaded` in one statement, which takes the row's lock itself.

        Enough for a fact that nothing has to be asked about first: a pod that was Ready.
        """
        raw = await self._ask(
            MARK_LOADED,
            sandbox_id,
            list(restore_uids),
            execution_id,
            pod_uid,
            node_name,
            node_uid,
            node_cpu,
            now,
        )
        return decode_view(raw)

    async def mark_released(
        self,
        sandbox_id: str,
        execution_id: str,
        *,
        pod_uid: str,
        now: datetime,
        restore_uids: Sequence[str] = (),
    ) -> SandboxView | None:
        """The pod has lost its owner and finalizer: stores when, once; returns the new view.

        Does nothing when the execution is not loaded, is released already, or has another pod.
        """
        raw = await self._ask(
            MARK_RELEASED, sandbox_id, list(restore_uids), execution_id, pod_uid, now
        )
        return decode_view(raw)

    async def unreleased_active(self) -> list[OpenExecution]:
        """Active executions of restores whose pods are still owned by their restore."""
        return decode_rows(await self._ask(UNRELEASED_ACTIVE), OpenExecution)

    async def active_executions(self) -> list[OpenExecution]:
        """All active executions of restores, released or not; asked once, at start."""
        return decode_rows(await self._ask(ACTIVE_EXECUTIONS), OpenExecution)

    async def restoring_without_active(self) -> list[RestoringRow]:
        """Rows that say `restoring` while nothing is active (section 14, the sweep)."""
        return decode_rows(await self._ask(RESTORING_WITHOUT_ACTIVE), RestoringRow)

    async def left_pinned(self, *, limit: int = 200_000) -> list[LeftPinned]:
        """Rows that a restore left pinned (section 10), whether a restore is open for them or not.

        Which of them are stranded is the fleet's to say: see `restore.stranded`.
        """
        return decode_rows(await self._ask(LEFT_PINNED, limit), LeftPinned)

    async def released_retired(self, since: datetime) -> list[ReleasedExecution]:
        """Executions retired at or after `since` whose released pod may still be there."""
        return decode_rows(await self._ask(RELEASED_RETIRED, since), ReleasedExecution)

    async def counts(self) -> Counts:
        """Rows by state, for metrics."""
        return decode(await self._ask(COUNTS), Counts)

    async def stored_lineages(self) -> list[StoredLineage]:
        """Ready full snapshots by capture CPU and ancestry."""
        return decode_rows(await self._ask(STORED_LINEAGES), StoredLineage)

    async def pinned_to(self, nodes: Sequence[str]) -> list[PinnedThere]:
        """Rows pinned to one of these nodes, by sandbox id."""
        return decode_rows(await self._ask(PINNED_TO, list(nodes)), PinnedThere)

    async def stored_kinds(self, *, drained: Sequence[str]) -> list[StoredKind]:
        """Sandboxes whose newest ready full snapshot is in storage, and that no node but the
        drained ones holds, by what they need of a node."""
        return decode_rows(await self._ask(STORED_KINDS, list(drained)), StoredKind)

    async def sandboxes_of(
        self, kind: StoredKind, *, drained: Sequence[str], limit: int
    ) -> list[tuple[str, str]]:
        """Namespace and id of sandboxes of that kind, at most `limit`."""
        rows = await self._ask(
            SANDBOXES_OF,
            list(drained),
            kind.capture_cpu,
            list(kind.ancestor_cpus),
            kind.node_group,
            msgspec.json.encode(kind.node_selector).decode(),
            limit,
        )
        return decode_rows(rows, tuple[str, str])

    async def refusals(self, since: datetime) -> dict[tuple[str, str], int]:
        """How many pairs of sandbox and Node are kept apart by refusals made at or after `since`,
        by capture CPU and CPU of the node (empty: unknown), for metrics (section 11)."""
        rows = decode_rows(await self._ask(REFUSALS, since), tuple[str, str, int])
        return {(capture_cpu, node_cpu): number for capture_cpu, node_cpu, number in rows}

    async def observations(self, since: datetime, *, limit: int = 10_000) -> list[LoadObservation]:
        """Observations made at or after `since`, newest first, at most `limit` (section 11)."""
        return decode_rows(await self._ask(OBSERVATIONS, since, limit), LoadObservation)

    async def node_history(
        self, since: datetime, *, limit: int = 10_000, after: NodeCpuSpan | None = None
    ) -> list[NodeCpuSpan]:
        """Spans of the node history that were last seen at or after `since` (section 12), those
        seen last first, at most `limit`; with `after`, those that come after that one."""
        at = LAST_OF_ALL if after is None else after
        return decode_rows(
            await self._ask(
                NODE_HISTORY,
                since,
                limit,
                at.last_seen_at,
                at.node_name,
                at.node_uid,
                at.first_seen_at,
            ),
            NodeCpuSpan,
        )

    async def cpus_last_seen(self, since: datetime) -> dict[str, datetime]:
        """When a node was last seen with each CPU, of those seen at or after `since`."""
        raw = await self._ask(CPUS_LAST_SEEN, since)
        return decode("{}" if raw is None else raw, dict[str, datetime])

    async def record_nodes(self, spans: Sequence[NodeCpuSpan]) -> int:
        """Adds spans to the node history, or moves the end of those it has; returns how many.

        A span is known by its Node and its beginning; its end only moves forward, its CPU never.
        """
        if not spans:
            return 0
        written: int = await self._ask(RECORD_NODES, encode(spans))
        return written

    async def prune(
        self, *, observations_before: datetime, spans_before: datetime, limit: int = 10_000
    ) -> int:
        """Deletes what has aged out of sections 11 and 12, at most `limit` rows of each table;
        returns how many rows."""
        deleted: int = await self._ask(PRUNE, observations_before, spans_before, limit)
        return deleted

    async def _ask(self, query: Query, *args: object) -> Any:
        async with self._connection() as connection:
            return await connection.one(query, *args)

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        raw = await self._acquire()
        try:
            yield Connection(raw, observe=self._observe, clock=self._clock)
        finally:
            await self._release(raw)

    @translated
    async def _acquire(self) -> Any:
        return await self._pool.acquire(timeout=self._command_timeout)

    @translated
    async def _release(self, raw: Any) -> None:
        await self._pool.release(raw, timeout=self._command_timeout)


@translated
async def _open_pool(
    dsn: Dsn, *, pool_size: int, command_timeout: float, connect_timeout: float
) -> Any:
    async def connect(_url: str, **options: Any) -> Any:
        with readable(url := current(dsn)):
            return await asyncpg.connect(url, **options)

    with readable(url := current(dsn)):
        return await asyncpg.create_pool(
            url,
            connect=connect,
            min_size=1,
            max_size=pool_size,
            command_timeout=command_timeout,
            timeout=connect_timeout,
            server_settings=SESSION,
            # The driver's own reset is four statements on every release. Nothing here changes a
            # session, and an open transaction is rolled back without it.
            reset=_keep,
        )


async def _keep(_: Any) -> None:
    """Leaves the session as it is."""


PING = Query("ping", "SELECT 1")
VIEW = Query("view", "SELECT sandbox_restore.operator_view($1::text, $2::text[])::text")
LOCK = Query("lock", "SELECT sandbox_restore.operator_lock($1::text, $2::text[])::text")
MARK_RELEASED = Query(
    "mark_released",
    "SELECT sandbox_restore.operator_mark_released($1::text, $2::text[], $3::text, $4::text,"
    " $5::timestamptz)::text",
)
_OPEN = """
    SELECT json_agg(json_build_object(
        'sandbox_id', e.sandbox_id, 'namespace', s.namespace, 'execution_id', e.id,
        'restore_uid', e.restore_uid, 'restore_name', e.restore_name, 'pod_name', e.pod_name,
        'loaded', e.loaded_at IS NOT NULL) ORDER BY e.seq)::text
    FROM sandbox_restore.execution e JOIN sandbox_restore.sandbox s ON s.id = e.sandbox_id
    WHERE e.state = 'active' AND e.source <> 'platform'
"""
UNRELEASED_ACTIVE = Query("unreleased_active", _OPEN + " AND e.released_at IS NULL")
ACTIVE_EXECUTIONS = Query("active_executions", _OPEN)
RESTORING_WITHOUT_ACTIVE = Query(
    "restoring_without_active",
    """
    SELECT json_agg(json_build_object(
        'sandbox_id', s.id, 'namespace', s.namespace, 'restore_uid', n.restore_uid,
        'restore_name', n.restore_name, 'restore_started_at', s.restore_started_at)
        ORDER BY s.restore_started_at)::text
    FROM sandbox_restore.sandbox s
    LEFT JOIN LATERAL (
        SELECT e.restore_uid, e.restore_name, e.state FROM sandbox_restore.execution e
        WHERE e.sandbox_id = s.id ORDER BY e.seq DESC LIMIT 1) n ON true
    WHERE s.state = 'restoring' AND n.state IS DISTINCT FROM 'active'
    """,
)
LEFT_PINNED = Query(
    "left_pinned",
    """
    SELECT json_agg(json_build_array(
        s.id, s.namespace, s.pinned_node, s.local_artifact_marker, e.failure_class, e.node_name,
        e.node_uid, e.retired_at, x.id, x.captured_at, x.uploaded_by, x.host_cpu, x.ancestor_cpus,
        x.storage_uri IS NOT NULL))::text
    FROM (
        SELECT s.id, s.namespace, s.pinned_node, s.local_artifact_marker
        FROM sandbox_restore.sandbox s
        WHERE s.pinned_node IS NOT NULL AND s.state IN ('restoring', 'failed')
        ORDER BY s.pinned_node, s.id LIMIT $1::int) s
    LEFT JOIN LATERAL (
        SELECT e.state, e.failure_class, e.node_name, e.node_uid, e.retired_at
        FROM sandbox_restore.execution e
        WHERE e.sandbox_id = s.id ORDER BY e.seq DESC LIMIT 1) e ON true
    LEFT JOIN LATERAL (
        SELECT x.id, x.captured_at, x.uploaded_by, x.host_cpu, x.ancestor_cpus, x.storage_uri
        FROM sandbox_restore.snapshot x
        WHERE x.sandbox_id = s.id AND x.kind = 'full' AND x.state = 'ready'
            AND x.captured_at IS NOT NULL
        ORDER BY x.captured_at DESC LIMIT 1) x ON true
    WHERE e.state IS DISTINCT FROM 'active'
    """,
)
"""Section 10: one pass over the rows that restores left pinned, by their own partial index."""
RELEASED_RETIRED = Query(
    "released_retired",
    """
    SELECT json_agg(json_build_object(
        'sandbox_id', e.sandbox_id, 'namespace', s.namespace, 'execution_id', e.id,
        'restore_uid', e.restore_uid, 'restore_name', e.restore_name, 'pod_name', e.pod_name,
        'pod_uid', e.pod_uid, 'retired_at', e.retired_at) ORDER BY e.seq)::text
    FROM sandbox_restore.execution e JOIN sandbox_restore.sandbox s ON s.id = e.sandbox_id
    WHERE e.state = 'retired' AND e.released_at IS NOT NULL AND e.retired_at >= $1::timestamptz
    """,
)
COUNTS = Query(
    "counts",
    """
    SELECT json_build_object(
        'sandboxes', (SELECT coalesce(json_object_agg(c.state, c.n), '{}') FROM (
            SELECT s.state, count(*) n FROM sandbox_restore.sandbox s GROUP BY s.state) c))::text
    """,
)
REFUSALS = Query(
    "refusals",
    """
    SELECT json_agg(json_build_array(c.capture_cpu, c.node_cpu, c.n))::text FROM (
        SELECT coalesce(o.capture_cpu, '') capture_cpu, coalesce(o.node_cpu, '') node_cpu,
            count(DISTINCT (o.sandbox_id, o.node_uid)) n
        FROM sandbox_restore.load_observation o
        WHERE o.result = 'cpu-incompatible' AND o.node_uid IS NOT NULL
            AND o.observed_at >= $1::timestamptz
        GROUP BY 1, 2) c
    """,
)
OBSERVATIONS = Query(
    "observations",
    """
    SELECT json_agg(to_json(o))::text FROM (
        SELECT * FROM sandbox_restore.load_observation o WHERE o.observed_at >= $1::timestamptz
        ORDER BY o.observed_at DESC LIMIT $2::int) o
    """,
)
