"""A keyed, level-triggered work queue (architecture.md, "How data flows", 2).

Each key is in the queue once; one worker at a time handles a key; a key that is added while it is
being handled is handled again afterwards. Fresh events go before the slow resync. Failures come
back with exponential backoff and jitter.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Delay before the n-th retry, in seconds: doubled each time, capped, with full jitter."""

    base: float = 0.2
    cap: float = 30.0

    def delay(self, failures: int) -> float:
        ceiling = min(self.cap, self.base * 2.0 ** min(failures, 16))
        return float(random.uniform(ceiling / 2, ceiling))


class KeyedQueue:
    """Keys to handle. Not thread-safe: belongs to one event loop."""

    def __init__(self, *, backoff: Backoff | None = None) -> None:
        self._fresh: deque[str] = deque()
        self._slow: deque[str] = deque()
        self._waiting: dict[str, bool] = {}
        """Keys queued and not yet taken; True when in the fresh lane."""
        self._active: set[str] = set()
        self._again: dict[str, bool] = {}
        self._timers: dict[str, tuple[float, asyncio.TimerHandle]] = {}
        self._failures: dict[str, int] = {}
        self._backoff = backoff or Backoff()
        self._wakeup = asyncio.Event()
        self._closed = False

    def close(self) -> None:
        """Workers end after the key that they handle now; what is queued stays where it is."""
        self._closed = True
        self._wakeup.set()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def delayed(self) -> int:
        """Keys that wait for their time."""
        return len(self._timers)

    def add(self, key: str, *, slow: bool = False) -> None:
        """Handle the key soon; a key already queued slowly is moved to the fresh lane."""
        if key in self._active:
            self._again[key] = self._again.get(key, False) or not slow
            return
        queued_fresh = self._waiting.get(key)
        if queued_fresh or (queued_fresh is not None and slow):
            return
        self._waiting[key] = not slow
        (self._slow if slow else self._fresh).append(key)
        self._wakeup.set()

    def add_after(self, key: str, delay: float) -> None:
        """Handle the key after `delay` seconds; of several the earliest counts."""
        loop = asyncio.get_running_loop()
        due = loop.time() + max(0.0, delay)
        known = self._timers.get(key)
        if known is not None:
            if known[0] <= due:
                return
            known[1].cancel()
        self._timers[key] = (due, loop.call_at(due, self._due, key))

    def _due(self, key: str) -> None:
        self._timers.pop(key, None)
        self.add(key)

    async def _take(self) -> str | None:
        while not self._closed:
            for lane, fresh in ((self._fresh, True), (self._slow, False)):
                while lane:
                    key = lane.popleft()
                    if self._waiting.get(key) is fresh:
                        del self._waiting[key]
                        self._active.add(key)
                        return key
            self._wakeup.clear()
            await self._wakeup.wait()
        return None

    def _done(self, key: str) -> None:
        self._active.discard(key)
        if key in self._again:
            self.add(key, slow=not self._again.pop(key))

    async def work(
        self,
        handle: Callable[[str], Awaitable[None]],
        *,
        on_error: Callable[[str, Exception, float], None],
    ) -> None:
        """One worker, until the queue is closed. `handle` raising means: again, later."""
        while (key := await self._take()) is not None:
            try:
                await handle(key)
            except Exception as error:
                failures = self._failures.get(key, 0)
                self._failures[key] = failures + 1
                delay = self._backoff.delay(failures)
                on_error(key, error, delay)
                self.add_after(key, delay)
            else:
                self._failures.pop(key, None)
            finally:
                self._done(key)
