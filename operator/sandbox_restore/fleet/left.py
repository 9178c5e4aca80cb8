"""CPUs whose last node left, for as long as they count as published (domain.md section 12)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from sandbox_restore.fleet import cpu as cpus

MAX_LEFT: Final = 1024
"""CPUs that are remembered, those that left last; more would be a label that is no CPU."""


class LeftCpus:
    """When each CPU's last node left."""

    __slots__ = ("_held", "_hold", "_left", "_until")

    def __init__(self, *, hold: timedelta) -> None:
        self._hold = hold
        self._left: dict[str, datetime] = {}
        self._held: Mapping[str, datetime] = {}
        """The answer of `held`, and until when it is right."""
        self._until: datetime | None = None

    def left(self, when: Mapping[str, datetime]) -> None:
        """The last nodes of these CPUs have left; the latest time told of a CPU counts."""
        if not self._hold:
            return
        for cpu, time in when.items():
            if cpus.usable(cpu) is not None:
                self._left[cpu] = max(time, self._left.get(cpu, time))
        if len(self._left) > MAX_LEFT:
            latest = sorted(self._left.items(), key=lambda item: item[1])[-MAX_LEFT:]
            self._left = dict(latest)
        self._until = None

    def back(self, cpu: str) -> None:
        """A node has it again."""
        if self._left.pop(cpu, None) is not None:
            self._until = None

    def held(self, *, now: datetime) -> Mapping[str, datetime]:
        """The CPUs that left less than the hold ago, and when; the same object while it holds."""
        if not self._left:
            return {}
        if self._until is None or now >= self._until:
            self._held = {cpu: t for cpu, t in self._left.items() if now - t < self._hold}
            self._until = min(self._held.values(), default=now) + self._hold
        return self._held
