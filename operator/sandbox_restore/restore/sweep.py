"""The sweep: finds, with one query each, what no event announces (sections 14 and 15)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from sandbox_restore.errors import UnavailableError
from sandbox_restore.model.sandbox import LeftPinned
from sandbox_restore.restore.intake import Intake
from sandbox_restore.restore.state import ClusterState
from sandbox_restore.restore.stranded import StrandedRow
from sandbox_restore.store.store import Store

log = structlog.get_logger()


class Sweeper:
    """Puts sandboxes on the queue whose rows wait for something that nobody tells."""

    def __init__(
        self,
        *,
        store: Store,
        state: ClusterState,
        intake: Intake,
        served: Callable[[str], bool],
        stranded: Callable[[list[LeftPinned]], list[StrandedRow]],
        on_stranded: Callable[[list[StrandedRow]], None],
    ) -> None:
        """`served` tells of a namespace whether its restores are ours: rows of others are left to
        others. `stranded` judges the rows that restores left pinned; `on_stranded` is told of each
        pass's finding, for metrics."""
        self._store = store
        self._state = state
        self._intake = intake
        self._served = served
        self._stranded = stranded
        self._on_stranded = on_stranded

    async def first_sweep(self) -> None:
        """At start: also active executions whose pod is gone, which no event tells of any more."""
        while True:
            try:
                active = await self._store.active_executions()
                break
            except UnavailableError as error:
                log.warning("sweep_failed", problem=str(error))
                await asyncio.sleep(2.0)
        missing = {
            e.sandbox_id
            for e in active
            if self._served(e.namespace)
            and not any(p.name == e.pod_name for p in self._state.pods_of(e.sandbox_id))
        }
        log.info("first_sweep_found", active=len(active), without_pod=len(missing))
        self._intake.concerned(missing, slow=True)
        await self.sweep()

    async def sweep(self) -> None:
        """Unreleased active executions whose restore is gone from the cache (the reconciler reads
        it live, by UID), `restoring` rows without an active execution, and stranded rows: all are
        counted, those with a restore are looked at."""
        known = {r.uid for r in self._state.restores()}
        orphans = {
            e.sandbox_id
            for e in await self._store.unreleased_active()
            if self._served(e.namespace) and e.restore_uid not in known
        }
        stale = {
            row.sandbox_id
            for row in await self._store.restoring_without_active()
            if self._served(row.namespace)
        }
        left = await self._store.left_pinned()
        stranded = self._stranded([row for row in left if self._served(row.namespace)])
        self._on_stranded(stranded)
        waiting = {
            row.sandbox_id
            for row in stranded
            if any(not r.finished for r in self._state.restores_of(row.sandbox_id))
        }
        found = orphans | stale | waiting
        if found or stranded:
            log.info(
                "sweep_found",
                orphans=len(orphans),
                restoring=len(stale),
                stranded=len(stranded),
                stranded_waiting=len(waiting),
            )
        self._intake.concerned(found, slow=True)
