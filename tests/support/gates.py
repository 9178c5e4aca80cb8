"""Operators that go on one request at a time, when they are told to.

A pass of an operator is a task. Before each request to the API server, each statement that takes
the row's lock, and each commit, it parks and waits for a permit; between permits anything may
happen. So a test holds every moment between two side effects in its hand: no sleeps, no luck.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any

from kubernetes_asyncio.client import Configuration

from sandbox_restore.errors import SandboxRestoreError, UnavailableError
from sandbox_restore.kube.client import KubeClient
from sandbox_restore.store.locked import LockedSandbox
from sandbox_restore.store.store import Store
from tests.support.simapi.requests import Deliver

STUCK_SECONDS = 20.0
"""How long a task may take from one gate to the next before the test says that it hangs."""


class Fate(StrEnum):
    """What becomes of a write that is sent."""

    ANSWERED = "answered"
    UNANSWERED = "unanswered"
    """It takes effect, and the connection breaks before the answer."""
    LOST = "lost"
    LATE = "late"
    """The connection breaks, and it takes effect later, if ever."""


@dataclass(kw_only=True)
class Line:
    """The one task that may run for an operator, or for the platform, and where it stands."""

    name: str
    conductor: Conductor
    task: asyncio.Task[Any] | None = None
    permits: int = 0
    fine: bool = True
    """Reads of the API server need a permit too; else they are free."""
    parked: str | None = None
    """What it is about to do; None: it runs, or there is no task."""
    fate: Fate = Fate.ANSWERED
    """Of its next write."""
    in_database: bool = False
    """It has asked for the row's lock, or holds it."""
    _pending: Deliver | None = None
    _turn: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def idle(self) -> bool:
        return self.task is None

    @property
    def waits_for_lock(self) -> bool:
        """It waits inside Postgres."""
        return self.in_database and self.conductor.holder not in (None, self)

    @property
    def busy(self) -> bool:
        """It will reach its next gate by itself."""
        if self.task is None or self.task.done():
            return False
        return self._may_go() if self.parked is not None else not self.waits_for_lock

    def _may_go(self) -> bool:
        if self._is_free():
            return True
        return self.permits > 0 and not (
            self.parked == "lock" and self.conductor.somebody_waits(besides=self)
        )

    def _is_free(self) -> bool:
        return not self.fine and (self.parked or "").startswith(("GET", "view"))

    async def gate(self, what: str, *, pending: Deliver | None = None) -> Fate:
        """Parks until there is a permit; the fate of this write."""
        self.parked, self._pending = what, pending
        self.conductor.moved()
        while not self._may_go():
            self._turn.clear()
            await self._turn.wait()
        self.permits -= not self._is_free()
        self.parked = self._pending = None
        fate = Fate.ANSWERED
        if what == "commit" or pending is not None:
            fate, self.fate = self.fate, fate
        self.conductor.tell(f"  {self.name}: {what}{'' if fate is Fate.ANSWERED else f' {fate}'}")
        return fate

    def allow(self, permits: int, *, fine: bool) -> None:
        self.permits, self.fine = permits, fine
        self._turn.set()

    def nudge(self) -> None:
        """Looks again whether it may go."""
        self._turn.set()

    def take_pending(self) -> Deliver | None:
        """The write it is parked before."""
        return self._pending

    # --- what the client and the store call

    async def carry(self, method: str, path: str, deliver: Deliver) -> bytes:
        """A request to the API server."""
        if method == "GET":
            await self.gate(f"GET {path}")
            return await delivered(deliver)
        fate = await self.gate(f"{method} {path}", pending=deliver)
        if fate is Fate.LATE:
            self.conductor.late.append((f"{method} {path}", deliver))
        if fate in (Fate.ANSWERED, Fate.UNANSWERED):
            answer = await delivered(deliver)
            if fate is Fate.ANSWERED:
                return answer
        raise UnavailableError("the connection broke")

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[None]:
        """Something that takes the row's lock inside Postgres."""
        self.in_database = self.conductor.asked = True
        self.conductor.moved()
        try:
            yield
        finally:
            self.in_database = False
            self.conductor.asked = True
            self.conductor.moved()


async def delivered(deliver: Deliver) -> bytes:
    """A request takes effect, now."""
    answer = deliver()
    return answer if isinstance(answer, bytes) else await answer


class Conductor:
    """Who may go on, who holds the row's lock, and which requests are still under way."""

    def __init__(self, *, tell: Callable[[str], None]) -> None:
        """`tell` gets a line for each thing that somebody does."""
        self.tell = tell
        self.lines: list[Line] = []
        self.holder: Line | None = None
        self.asked = False
        """Somebody has been in the database since this was last set back."""
        self.late: list[tuple[str, Deliver]] = []
        self._changed = asyncio.Event()

    def line(self, name: str) -> Line:
        made = Line(name=name, conductor=self)
        self.lines.append(made)
        return made

    def moved(self) -> None:
        self._changed.set()

    def somebody_waits(self, *, besides: Line) -> bool:
        """One waiter at a time: which of two Postgres lets in first is not ours to replay."""
        return any(line.waits_for_lock for line in self.lines if line is not besides)

    def start(self, line: Line, work: Awaitable[Any], *, permits: int, fine: bool = True) -> None:
        assert line.task is None
        line.permits, line.fine, line.fate = permits, fine, Fate.ANSWERED
        line.task = asyncio.ensure_future(work)
        line.task.add_done_callback(lambda _task: self.moved())

    async def settle(self) -> None:
        """Returns when every task is at a gate, waits for the lock, or has ended.

        An error that is not of this project is raised here.
        """
        while True:
            for line in self.lines:
                self._collect(line)
                line.nudge()
            if not any(line.busy for line in self.lines):
                return
            self._changed.clear()
            async with asyncio.timeout(STUCK_SECONDS):
                await self._changed.wait()

    def _collect(self, line: Line) -> None:
        task = line.task
        if task is None or not task.done():
            return
        line.task, line.permits, line.parked = None, 0, None
        if not task.cancelled() and task.exception() is not None:
            error = task.exception()
            assert error is not None
            if not isinstance(error, SandboxRestoreError):
                raise error
            self.tell(f"  {line.name}: {type(error).__name__}: {error}")

    async def crash(self, line: Line, *, late: bool) -> None:
        """The process is gone; the write it was about to send arrives later, or never."""
        assert line.task is not None
        pending, what = line.take_pending(), line.parked
        if late and pending is not None:
            self.late.append((str(what), pending))
        line.task.cancel()
        await asyncio.wait({line.task}, timeout=STUCK_SECONDS)
        self._collect(line)
        await self.settle()


class GatedClient(KubeClient):
    """A client of a real API server behind gates."""

    def __init__(self, configuration: Configuration, line: Line) -> None:
        super().__init__(configuration)
        self._line = line

    async def request(self, method: str, path: str, **more: Any) -> bytes:
        return await self._line.carry(method, path, partial(super().request, method, path, **more))


class GatedStore:
    """The real store behind gates."""

    def __init__(self, store: Store, line: Line) -> None:
        self._store = store
        self._line = line

    async def view(self, sandbox_id: str, **more: Any) -> Any:
        await self._line.gate("view")
        return await self._store.view(sandbox_id, **more)

    async def mark_loaded(self, *args: Any, **more: Any) -> Any:
        await self._line.gate("lock")
        async with self._line.asking():
            return await self._store.mark_loaded(*args, **more)

    async def mark_released(self, *args: Any, **more: Any) -> Any:
        await self._line.gate("lock")
        async with self._line.asking():
            return await self._store.mark_released(*args, **more)

    @asynccontextmanager
    async def locked(self, sandbox_id: str, **more: Any) -> AsyncIterator[LockedSandbox]:
        line, conductor = self._line, self._line.conductor
        await line.gate("lock")
        fate = Fate.ANSWERED
        async with line.asking():
            try:
                async with self._store.locked(sandbox_id, **more) as locked:
                    conductor.holder = line
                    yield locked
                    fate = await line.gate("commit")
                    if fate in (Fate.LOST, Fate.LATE):
                        raise UnavailableError("the connection broke before the commit")
            finally:
                if conductor.holder is line:
                    conductor.holder = None
        if fate is Fate.UNANSWERED:
            raise UnavailableError("the connection broke after the commit")
