"""What may be written while a sandbox's row is locked: one statement each (section 15)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sandbox_restore.errors import ConflictError
from sandbox_restore.model.sandbox import Outcome, SandboxState, SandboxView, Source
from sandbox_restore.store.connection import Connection, Query
from sandbox_restore.store.records import decode_view, storable


class LockedSandbox:
    """A sandbox whose row this transaction holds; `view` is what was read after the lock was got.

    Each method is one statement, returns the new view and keeps it as `view`. Nothing is visible to
    others before the `async with` block ends without an exception. Every method raises
    UnavailableError, PermissionDeniedError, SchemaError, ConflictError (what was read no longer
    holds) or RejectedError (the database's constraints refuse the row).
    """

    __slots__ = ("_connection", "_restore_uids", "sandbox_id", "view")

    def __init__(
        self,
        connection: Connection,
        *,
        sandbox_id: str,
        restore_uids: Sequence[str],
        view: SandboxView | None,
    ) -> None:
        self._connection = connection
        self._restore_uids = list(restore_uids)
        self.sandbox_id = sandbox_id
        self.view = view

    async def begin_attempt(
        self,
        *,
        execution_id: str,
        restore_uid: str,
        restore_name: str,
        attempt: int,
        source: Source,
        snapshot_id: str | None,
        pod_name: str,
        target_node: str | None,
        gate: bool,
        clear_pin: bool,
        namespace_uid: str,
        now: datetime,
        capture_cpu: str | None = None,
    ) -> SandboxView:
        """Inserts the active execution and puts the row into `restoring`; the pod comes after.

        `clear_pin` is the redirect: the pin goes, and is kept in the execution as `prior_pin`.
        ConflictError: an execution is active, the row says `running`, this attempt exists already,
        or the row belongs to another namespace UID. RejectedError: `clear_pin` on a marked row.
        """
        return await self._write(
            BEGIN_ATTEMPT,
            execution_id,
            restore_uid,
            restore_name,
            attempt,
            source.value,
            snapshot_id,
            pod_name,
            target_node,
            gate,
            clear_pin,
            namespace_uid,
            capture_cpu,
            now,
        )

    async def mark_loaded(
        self,
        *,
        execution_id: str,
        pod_uid: str,
        node_name: str,
        node_uid: str | None,
        node_cpu: str | None,
        now: datetime,
    ) -> SandboxView:
        """Its pod is Ready: row `running`, pinned to that node, marker set; the load is recorded.

        Does nothing when that execution is no longer active or is loaded already.
        """
        return await self._write(
            MARK_LOADED, execution_id, pod_uid, node_name, node_uid, node_cpu, now
        )

    async def retire(
        self,
        *,
        execution_id: str,
        outcome: Outcome,
        row_state: SandboxState,
        pinned_node: str | None,
        marker: bool,
        now: datetime,
        failure_class: str | None = None,
        failure_message: str | None = None,
        pod_uid: str | None = None,
        node_name: str | None = None,
        node_uid: str | None = None,
        node_cpu: str | None = None,
    ) -> SandboxView:
        """Retires the execution and writes the row as the caller's rules say.

        Does nothing when that execution is no longer active: it is retired exactly once. A
        `cpu-incompatible` failure on a known node is recorded as an observation (section 11).
        `Outcome.SUSPENDED` is the platform's to report and is refused here (RejectedError).
        """
        return await self._write(
            RETIRE,
            execution_id,
            outcome.value,
            failure_class,
            storable(failure_message),
            pod_uid,
            node_name,
            node_uid,
            node_cpu,
            row_state.value,
            pinned_node,
            marker,
            now,
        )

    async def fail_row(self, now: datetime) -> SandboxView:
        """A `restoring` row with no active execution becomes `failed`; any other is left alone.

        So is a row that began restoring after `now`: the caller has not seen that restore.
        """
        return await self._write(FAIL_ROW, now)

    async def set_marker(self) -> SandboxView:
        """Sets the local artifact marker and nothing else. RejectedError on a row without a pin."""
        return await self._write(SET_MARKER)

    async def clear_marker(self) -> SandboxView:
        """The give-up of section 10: clears the local artifact marker and nothing else."""
        return await self._write(CLEAR_MARKER)

    async def _write(self, query: Query, *args: object) -> SandboxView:
        raw = await self._connection.one(query, self.sandbox_id, self._restore_uids, *args)
        view = decode_view(raw)
        if view is None:
            raise ConflictError(f"sandbox {self.sandbox_id}: the row is gone")
        self.view = view
        return view


BEGIN_ATTEMPT = Query(
    "begin_attempt",
    "SELECT sandbox_restore.operator_begin_attempt($1::text, $2::text[], $3::text, $4::text,"
    " $5::text, $6::int, $7::text, $8::text, $9::text, $10::text, $11::boolean, $12::boolean,"
    " $13::text, $14::text, $15::timestamptz)::text",
)
MARK_LOADED = Query(
    "mark_loaded",
    "SELECT sandbox_restore.operator_mark_loaded($1::text, $2::text[], $3::text, $4::text,"
    " $5::text, $6::text, $7::text, $8::timestamptz)::text",
)
RETIRE = Query(
    "retire",
    "SELECT sandbox_restore.operator_retire($1::text, $2::text[], $3::text, $4::text, $5::text,"
    " $6::text, $7::text, $8::text, $9::text, $10::text, $11::text, $12::text, $13::boolean,"
    " $14::timestamptz)::text",
)
FAIL_ROW = Query(
    "fail_row",
    "SELECT sandbox_restore.operator_fail_row($1::text, $2::text[], $3::timestamptz)::text",
)
SET_MARKER = Query(
    "set_marker",
    "SELECT sandbox_restore.operator_set_marker($1::text, $2::text[], true)::text",
)
CLEAR_MARKER = Query(
    "clear_marker",
    "SELECT sandbox_restore.operator_set_marker($1::text, $2::text[], false)::text",
)
