"""The node history between memory and database: read at start, written in batches (section 12).

`NodeHistory` decides what a span is; this module moves spans. A database that is away costs
nothing but memory: what could not be written waits, within bounds, and is written later.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import structlog

from sandbox_restore.errors import RejectedError, SandboxRestoreError, UnavailableError
from sandbox_restore.fleet.history import NodeHistory
from sandbox_restore.fleet.index import FleetIndex
from sandbox_restore.model.sandbox import NodeCpuSpan
from sandbox_restore.store.store import Store

log = structlog.get_logger()

WRITE_EVERY: Final = 5.0
"""Seconds between two looks at what is new; nothing new is no statement."""
EXTEND_EVERY: Final = 900.0
"""Seconds between two rounds in which the ends of all open spans are moved. What a crash costs:
a node that leaves before the next operator looks was last seen so long ago at most."""
BATCH: Final = 1000
"""Spans a statement."""
PAGE: Final = 20_000
"""Spans read with one statement."""
READ_AGAIN: Final = 1.0
"""Seconds between two tries to read the history at start."""
LAST_WRITE: Final = 3.0
"""Seconds that a shutdown waits for the last spans to be written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ages:
    """How long things are kept (settings)."""

    published_hold: timedelta
    node_history: timedelta
    observations: timedelta


class NodeRecorder:
    """Reads, writes and prunes the node history for the process that holds the Lease."""

    def __init__(
        self,
        *,
        store: Store,
        fleet: FleetIndex,
        history: NodeHistory,
        ages: Ages,
        clock: Callable[[], datetime],
        may_write: Callable[[], bool] = lambda: True,
        on_late_read: Callable[[], None] = lambda: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`may_write`: the Lease is held. `on_late_read`: the history was read after decisions
        had begun, which may come out differently now."""
        self._store = store
        self._fleet = fleet
        self._history = history
        self._ages = ages
        self._clock = clock
        self._may_write = may_write
        self._on_late_read = on_late_read
        self._monotonic = monotonic
        self._extended_at = monotonic()
        self._told: tuple[str, bool] | None = None
        """The problem that was told, and whether spans were given up over it; None: none now."""
        self._given_up = 0

    # --- at start

    async def first_read(self, *, wait: float) -> None:
        """Reads the history before the first decision; returns without it rather than never.

        While the database is away this waits for it, for no restore can begin without it either.
        Once it answers and the history alone cannot be read (no right to, too slow), decisions
        wait `wait` seconds more and then begin without, as if section 12 were not there.
        """
        deadline: float | None = None
        while not await self._read():
            if await self._answers():
                if deadline is None:
                    # It may have come back only now: what it answers is seen by the next try.
                    deadline = self._monotonic() + wait
                    continue
                if self._monotonic() >= deadline:
                    log.error("node_history_missing", problem=self._told and self._told[0])
                    return
            await asyncio.sleep(READ_AGAIN)

    async def _answers(self) -> bool:
        try:
            await self._store.ping()
        except UnavailableError:
            return False
        except SandboxRestoreError:
            return True
        return True

    async def _read(self) -> bool:
        """Takes in what the database holds: all spans that are young enough, or those last seen
        as far as memory allows; False, and told, when it cannot be had."""
        began, now = self._monotonic(), self._clock()
        since = now - self._ages.node_history
        try:
            left = await self._store.cpus_last_seen(now - self._ages.published_hold)
            spans, complete = await self._spans(since)
        except SandboxRestoreError as error:
            if self._is_news(error):
                log.warning("node_history_not_read", problem=str(error))
            return False
        self._history.load(spans, known_after=since if complete else spans[-1].last_seen_at)
        self._fleet.remember_left(left)
        self._told = None
        log.info(
            "node_history_read",
            spans=len(spans),
            complete=complete,
            seconds=round(self._monotonic() - began, 3),
        )
        return True

    async def _spans(self, since: datetime) -> tuple[list[NodeCpuSpan], bool]:
        spans: list[NodeCpuSpan] = []
        while len(spans) < self._history.max_past:
            after = spans[-1] if spans else None
            page = await self._store.node_history(since, limit=PAGE, after=after)
            spans += page
            if len(page) < PAGE:
                return spans, True
        return spans, False

    # --- while it leads

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Writes what is new for as long as the block lasts, and once more at its end."""
        task = asyncio.create_task(self._run(), name="node-recorder")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_WRITE):
                    await self.write()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(WRITE_EVERY)
            try:
                await self.look()
            except Exception:
                # A history that stands still must not end the operator.
                log.exception("node_recorder_crashed")

    async def look(self) -> None:
        """One look: a history that could not be read at start, what is new, what is to extend."""
        if not self._history.loaded:
            if not await self._read():
                return
            self._on_late_read()
        if self._monotonic() - self._extended_at >= EXTEND_EVERY:
            self._extended_at = self._monotonic()
            self._history.extend_all()
        if await self.write():
            await self._write(self._history.extended(BATCH))

    async def write(self) -> bool:
        """Writes the spans that began or ended; False when some could not be."""
        self._history.settle(now=self._clock())
        while self._may_write() and (batch := self._history.unwritten(BATCH)):
            if not await self._write(batch):
                return False
        return self._may_write()

    async def _write(self, batch: list[NodeCpuSpan]) -> bool:
        if not batch:
            return True
        with self._kept(batch):
            try:
                await self._store.record_nodes(batch)
            except RejectedError as error:
                return await self._write_halves(batch, error)
            except SandboxRestoreError as error:
                self._history.give_back(batch)
                if self._is_news(error):
                    log.warning(
                        "node_history_not_written",
                        problem=str(error),
                        waiting=self._history.waiting,
                        given_up=self._history.given_up,
                    )
                return False
        if self._told is not None:
            log.info("node_history_written_again", waiting=self._history.waiting)
        self._told, self._given_up = None, self._history.given_up
        return True

    @contextlib.contextmanager
    def _kept(self, batch: list[NodeCpuSpan]) -> Iterator[None]:
        """A batch whose writing is interrupted is written again: twice does no harm."""
        try:
            yield
        except BaseException:
            self._history.give_back(batch)
            raise

    async def _write_halves(self, batch: list[NodeCpuSpan], error: RejectedError) -> bool:
        """One row that the database refuses must not keep the others out."""
        if len(batch) == 1:
            self._history.give_up()
            log.error("node_history_row_refused", node=batch[0].node_name, problem=str(error))
            return True
        middle = len(batch) // 2
        written = [await self._write(half) for half in (batch[:middle], batch[middle:])]
        return all(written)

    def _is_news(self, error: SandboxRestoreError) -> bool:
        """What is wrong is told once for as long as it stays the same."""
        told, before = (str(error), self._history.given_up > self._given_up), self._told
        self._told = told
        return told != before

    async def prune(self) -> None:
        """Deletes what has aged out: spans of section 12, observations of section 11."""
        if not self._may_write():
            return
        now = self._clock()
        deleted = await self._store.prune(
            observations_before=now - self._ages.observations,
            spans_before=now - self._ages.node_history,
        )
        if deleted:
            log.info("history_pruned", rows=deleted)
