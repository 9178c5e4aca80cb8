"""The fleet's rate limit of redirects (section 10): a sliding window. PURE: time is an argument."""

from __future__ import annotations

from collections import deque
from datetime import UTC, datetime, timedelta
from typing import Final

WINDOW: Final = timedelta(minutes=1)
NEVER: Final = datetime.max.replace(tzinfo=UTC)


class RedirectBudget:
    """At most so many redirects in any minute; in memory, so that a restart begins a new window."""

    def __init__(self, per_minute: int) -> None:
        self._per_minute: Final = per_minute
        self._taken: Final[deque[datetime]] = deque()

    def wait(self, now: datetime) -> datetime | None:
        """When the next redirect may begin; None: now. A limit of 0 lets none through, ever."""
        while self._taken and self._taken[0] + WINDOW <= now:
            self._taken.popleft()
        if len(self._taken) < self._per_minute:
            return None
        return self._taken[0] + WINDOW if self._taken else NEVER

    def take(self, now: datetime) -> None:
        """One redirect begins."""
        self._taken.append(now)
