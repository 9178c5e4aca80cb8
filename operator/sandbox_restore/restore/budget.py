"""The fleet's rate limit of redirects (section 10): a sliding window. PURE: time is an argument."""

from __future__ import annotations

from collections import OrderedDict, deque
from datetime import UTC, datetime, timedelta
from typing import Final

from sandbox_restore.fleet.ring import stable_hash

WINDOW: Final = timedelta(minutes=1)
NEVER: Final = datetime.max.replace(tzinfo=UTC)
LONGEST: Final = timedelta(minutes=5)
"""The longest that one is told to wait; it may have to ask more than once."""


class RedirectBudget:
    """At most so many redirects in any minute; in memory, so that a restart begins a new window."""

    def __init__(self, per_minute: int) -> None:
        self._per_minute: Final = per_minute
        self._taken: Final[deque[datetime]] = deque()
        self._waiting: Final[OrderedDict[str, datetime]] = OrderedDict()

    def wait(self, sandbox_id: str, now: datetime) -> datetime | None:
        """When this sandbox had better ask again; None: its redirect may begin now.

        Those that wait are spread over the time that all of them will take: thousands that ask
        together again for one free place would only be told to wait once more. A limit of 0 lets
        none through, ever.
        """
        while self._taken and self._taken[0] + WINDOW <= now:
            self._taken.popleft()
        if len(self._taken) < self._per_minute:
            return None
        if not self._taken:
            return NEVER
        self._waiting[sandbox_id] = now
        self._waiting.move_to_end(sandbox_id)
        while next(iter(self._waiting.values())) + 2 * LONGEST <= now:
            self._waiting.popitem(last=False)
        takes = min(LONGEST, WINDOW * (len(self._waiting) / self._per_minute))
        share = stable_hash(sandbox_id) % 1024 / 1024
        return self._taken[0] + WINDOW + takes * share

    def take(self, sandbox_id: str, now: datetime) -> None:
        """One redirect begins."""
        self._waiting.pop(sandbox_id, None)
        self._taken.append(now)
