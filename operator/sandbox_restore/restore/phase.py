"""Where a restore stands, in one word, for metrics and overviews. PURE."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum

from sandbox_restore.model.restore import Restore


class Phase(StrEnum):
    """Every restore is in one of these."""

    NEW = "new"
    """Nothing was said of it yet."""
    SUSPENDED = "suspended"
    """`spec.suspend`, and no attempt is under way."""
    WAITING = "waiting"
    """No attempt is under way; the reason says what for."""
    PLACING = "placing"
    """Its pod has no node yet."""
    LOADING = "loading"
    """Its pod has a node."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"


_UNDER_WAY = ("active", "loaded")
"""What `status.attempts` says of one that is not over."""


def phase_of(restore: Restore) -> Phase:
    """The phase, read from the status as it was written last."""
    done = restore.condition("Succeeded")
    if done is None:
        return Phase.NEW
    if done.status != "Unknown":
        return Phase.SUCCEEDED if done.status == "True" else Phase.FAILED
    attempts = restore.status.attempts
    if attempts and attempts[-1].outcome in _UNDER_WAY:
        return Phase.LOADING if restore.status.node_name else Phase.PLACING
    return Phase.SUSPENDED if restore.spec.suspend else Phase.WAITING


def by_phase(restores: Iterable[Restore]) -> Mapping[tuple[str, str], int]:
    """How many there are, by phase and by the reason of condition `Succeeded`."""
    counted: Counter[tuple[str, str]] = Counter()
    for restore in restores:
        done = restore.condition("Succeeded")
        counted[phase_of(restore).value, done.reason if done is not None else ""] += 1
    return counted
