"""The circuit breaker of section 11: one capture CPU fails on all its loaders. PURE: time is an
argument.

When every CPU that is said to load a capture CPU's snapshots has refused one lately, no node is at
fault: a compatibility pair, a firmware update or a template is. More attempts would only wear the
limits of more restores down.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sandbox_restore.model.sandbox import LoadObservation, LoadResult

MIN_SANDBOXES: Final = 2
"""Of one sandbox alone, the snapshot may be what is wrong."""
KEPT: Final = 20_000
"""Observations that are remembered; a fleet has far fewer in one window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCircuit:
    """Attempts from this capture CPU are held back."""

    capture_cpu: str
    loaders: tuple[str, ...]
    refusals: int
    sandboxes: int
    until: datetime
    """When the first of the refusals that hold it open ages out, and an attempt may try again."""

    @property
    def words(self) -> str:
        return (
            f"snapshots captured on {self.capture_cpu} were refused by every CPU that is said to "
            f"load them ({', '.join(self.loaders)}): {self.refusals} refusals of "
            f"{self.sandboxes} sandboxes; attempts are held back until {self.until:%H:%M:%S} UTC. "
            f"Look at what these hosts share: firmware, kernel, Firecracker, the compatibility list"
        )


class Breaker:
    """What hosts did lately with snapshots of each capture CPU."""

    def __init__(self, window: timedelta) -> None:
        """`window`: how long a refusal counts; zero switches the breaker off."""
        self._window: Final = window
        self._seen: Final[OrderedDict[str, LoadObservation]] = OrderedDict()
        """By execution: what this process wrote and what the sweep reads are the same."""

    def record(self, observations: Iterable[LoadObservation]) -> None:
        """Takes observations in; ones that are known already change nothing."""
        for one in observations:
            if one.capture_cpu is not None and one.node_cpu is not None:
                self._seen.setdefault(one.execution_id, one)
        while len(self._seen) > KEPT:
            self._seen.popitem(last=False)

    def captures(self, now: datetime) -> frozenset[str]:
        """Capture CPUs that were refused within the window; what is older is dropped."""
        for key in [k for k, o in self._seen.items() if o.observed_at <= now - self._window]:
            del self._seen[key]
        return frozenset(
            o.capture_cpu
            for o in self._seen.values()
            if o.result is LoadResult.CPU_INCOMPATIBLE and o.capture_cpu is not None
        )

    def verdict(
        self, capture_cpu: str | None, loaders: Iterable[str], *, now: datetime
    ) -> OpenCircuit | None:
        """Whether the circuit is open for this capture CPU and the CPUs that are to load it.

        A loader counts as refusing while its newest refusal is within the window and nothing of
        this capture CPU was loaded on that CPU since.
        """
        named = tuple(sorted(set(loaders)))
        if capture_cpu is None or not named or not self._window:
            return None
        about = [
            o
            for o in self._seen.values()
            if o.capture_cpu == capture_cpu and o.observed_at > now - self._window
        ]
        held: list[LoadObservation] = []
        until: list[datetime] = []
        for cpu in named:
            refused = _refusals_since_load(about, cpu)
            if not refused:
                return None
            held += refused
            until.append(max(o.observed_at for o in refused) + self._window)
        sandboxes = {o.sandbox_id for o in held}
        if len(sandboxes) < MIN_SANDBOXES:
            return None
        return OpenCircuit(
            capture_cpu=capture_cpu,
            loaders=named,
            refusals=len(held),
            sandboxes=len(sandboxes),
            until=min(until),
        )


def _refusals_since_load(about: Iterable[LoadObservation], cpu: str) -> list[LoadObservation]:
    """Refusals by nodes of one CPU, later than the last load on one of them."""
    there = [o for o in about if o.node_cpu == cpu]
    loaded = max((o.observed_at for o in there if o.result is LoadResult.LOADED), default=None)
    return [
        o
        for o in there
        if o.result is LoadResult.CPU_INCOMPATIBLE and (loaded is None or o.observed_at > loaded)
    ]
