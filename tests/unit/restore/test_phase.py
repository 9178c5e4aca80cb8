"""Where a restore stands, read from its status."""

from __future__ import annotations

from typing import Any

import pytest

from sandbox_restore.model.restore import AttemptStatus, Condition
from sandbox_restore.restore.phase import Phase, by_phase, phase_of
from tests.support.builders import ago, finished, restore


def status(reason: str = "Scheduling", *outcomes: str, node: str = "") -> dict[str, Any]:
    """A status of one that is not finished, with attempts of these outcomes."""
    done = Condition(type="Succeeded", status="Unknown", last_transition_time=ago(5), reason=reason)
    attempts = [AttemptStatus(attempt=n, outcome=o) for n, o in enumerate(outcomes, 1)]
    return {"conditions": [done], "attempts": attempts, "node_name": node}


@pytest.mark.parametrize(
    ("one", "phase"),
    [
        (restore(), Phase.NEW),
        (restore(suspend=True), Phase.NEW),
        (restore(status=status("PlacementHeld")), Phase.WAITING),
        (restore(status=status("BackingOff", "failed", node="n1")), Phase.WAITING),
        (restore(status=status("Suspended"), suspend=True), Phase.SUSPENDED),
        (restore(status=status("Scheduling", "failed", "active")), Phase.PLACING),
        (restore(status=status("LoadingSnapshot", "active", node="n1")), Phase.LOADING),
        (restore(status=status("Releasing", "loaded", node="n1")), Phase.LOADING),
        # `suspend` leaves an attempt that is under way alone.
        (restore(status=status("LoadingSnapshot", "active", node="n1"), suspend=True), "loading"),
        (finished(), Phase.SUCCEEDED),
        (finished(succeeded=False), Phase.FAILED),
    ],
)
def test_every_restore_is_in_one_phase(one: Any, phase: str) -> None:
    assert phase_of(one) == phase


def test_they_are_counted_by_phase_and_reason() -> None:
    some = [restore(), finished("r2"), finished("r3"), restore("r4", status=status("ColdCache"))]
    assert by_phase(some) == {
        ("new", ""): 1,
        ("succeeded", "SnapshotLoaded"): 2,
        ("waiting", "ColdCache"): 1,
    }
