"""Tells of changes as the database notifies them, and of every gap in which it could not."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable
from typing import Any, Final, Self

from sandbox_restore.errors import SandboxRestoreError
from sandbox_restore.store.connection import Dsn, connect
from sandbox_restore.store.edge import translated

CHANNEL: Final = "sandbox_restore"

OnChange = Callable[[str, int], None]
"""Called with a sandbox's id and its row's version; must not block and must not raise."""
OnGap = Callable[[], None]
"""Called after every connect: changes may have been missed, so look at everything again."""
OnError = Callable[[SandboxRestoreError], None]


class ChangeListener:
    """A connection of its own that LISTENs, for as long as the `async with` block lasts.

    A lost connection is made again with exponential backoff and full jitter, for ever: a listener
    without a database is unhealthy, not an error. All times are in seconds.
    """

    def __init__(
        self,
        dsn: Dsn,
        on_change: OnChange,
        on_gap: OnGap,
        *,
        on_error: OnError | None = None,
        keepalive: float = 15.0,
        timeout: float = 5.0,
        backoff: float = 0.5,
        backoff_max: float = 15.0,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._dsn = dsn
        self._on_change = on_change
        self._on_gap = on_gap
        self._on_error = on_error
        self._keepalive = keepalive
        self._timeout = timeout
        self._backoff = backoff
        self._backoff_max = backoff_max
        self._clock = clock
        self._jitter = jitter
        self._task: asyncio.Task[None] | None = None
        self._listening = False
        self._failures = 0
        self._last_contact: float | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name="change-listener")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    @property
    def last_contact(self) -> float | None:
        """When the server was last heard, by `clock`; None: never."""
        return self._last_contact

    @property
    def healthy(self) -> bool:
        """It listens, and the server was heard within the last two keepalives and a time-out."""
        if not self._listening or self._last_contact is None:
            return False
        limit = 2 * self._keepalive + self._timeout
        return self._clock() - self._last_contact <= limit

    async def _run(self) -> None:
        while True:
            try:
                await self._listen()
            except SandboxRestoreError as error:
                if self._on_error is not None:
                    self._on_error(error)
            ceiling = min(self._backoff_max, self._backoff * 2 ** min(self._failures, 16))
            self._failures += 1
            await asyncio.sleep(ceiling * self._jitter())

    async def _listen(self) -> None:
        """Listens until the connection is lost; always ends with an exception."""
        connection = await connect(
            self._dsn, purpose="listener", timeout=self._timeout, command_timeout=self._timeout
        )
        ended = asyncio.Event()
        try:
            await self._subscribe(connection, ended)
            self._heard()
            self._listening = True
            # Only now: what is looked at after this call cannot change unnoticed.
            self._on_gap()
            while True:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(ended.wait(), self._keepalive)
                await self._ping(connection)
                # Not before: a connection that is cut at once, again and again, would be a storm of
                # gaps, and each of them is a look at everything.
                self._failures = 0
        finally:
            self._listening = False
            connection.terminate()

    @translated
    async def _subscribe(self, connection: Any, ended: asyncio.Event) -> None:
        connection.add_termination_listener(lambda _connection: ended.set())
        await connection.add_listener(CHANNEL, self._received)

    @translated
    async def _ping(self, connection: Any) -> None:
        await connection.fetchval("SELECT 1")
        self._heard()

    def _heard(self) -> None:
        self._last_contact = self._clock()

    def _received(self, _connection: Any, _pid: int, _channel: str, payload: str) -> None:
        self._heard()
        sandbox_id, _, version = payload.partition(" ")
        if sandbox_id and version.isdecimal():
            self._on_change(sandbox_id, int(version))
        else:
            # Anybody may notify on a channel; what it means is not known, so look at everything.
            self._on_gap()
