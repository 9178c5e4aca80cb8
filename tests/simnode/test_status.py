"""The status that a simulated kubelet reports, without a cluster."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.simnode.pods import PodSpec, manifest
from tests.support.simnode import status
from tests.support.simnode.status import MACHINE_RESTARTED, NEVER_STARTED, ContainerEnd

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
LATER = NOW + timedelta(seconds=9)


def pod(**with_status: Any) -> dict[str, Any]:
    made = manifest(PodSpec(name="a"))
    made["metadata"] |= {"uid": "uid-a", "generation": 3}
    made["status"] = with_status
    return made


def after(patch: dict[str, Any]) -> dict[str, Any]:
    """Return the pod as it is once the patch is applied."""
    return pod(**patch["status"])


def times(patch: dict[str, Any]) -> dict[str, str]:
    return {one["type"]: one["lastTransitionTime"] for one in patch["status"]["conditions"]}


def test_every_patch_is_refused_for_another_pod_of_the_name() -> None:
    patches = [
        status.creating(pod(), now=NOW),
        status.running(pod(), now=NOW, ready=False),
        status.ended(pod(), NEVER_STARTED, now=NOW),
        status.rejected(pod(), reason="r", message="m", now=NOW, keep_containers=False),
    ]
    assert {patch["metadata"]["uid"] for patch in patches} == {"uid-a"}


def test_a_transition_time_moves_only_with_the_status() -> None:
    first = status.running(pod(), now=NOW, ready=False)
    second = status.running(after(first), now=LATER, ready=True)
    moved = {kind for kind, time in times(second).items() if time != times(first)[kind]}
    assert moved == {"Ready", "ContainersReady"}


def test_start_times_stay_what_they_were() -> None:
    first = status.running(pod(), now=NOW, ready=False)
    second = status.running(after(first), now=LATER, ready=True)
    third = status.ended(after(second), ContainerEnd(exit_code=1), now=LATER)
    assert second["status"]["startTime"] == third["status"]["startTime"] == "2026-01-02T03:04:05Z"
    end = third["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (end["startedAt"], end["finishedAt"]) == ("2026-01-02T03:04:05Z", "2026-01-02T03:04:14Z")


@pytest.mark.parametrize(
    ("end", "phase", "reason", "code"),
    [
        (ContainerEnd(exit_code=0), "Succeeded", "Completed", 0),
        (ContainerEnd(exit_code=1, message="m"), "Failed", "Error", 1),
        (NEVER_STARTED, "Failed", "ContainerStatusUnknown", 137),
        (MACHINE_RESTARTED, "Failed", "Unknown", 255),
    ],
)
def test_an_end_has_phase_reason_and_code(
    end: ContainerEnd, phase: str, reason: str, code: int
) -> None:
    told = status.ended(pod(phase="Running"), end, now=NOW)["status"]
    terminated = told["containerStatuses"][0]["state"]["terminated"]
    assert (told["phase"], terminated["reason"], terminated["exitCode"]) == (phase, reason, code)
    assert terminated.get("message", "") == end.message


def test_a_phase_that_somebody_made_terminal_stays() -> None:
    told = status.ended(pod(phase="Failed"), ContainerEnd(exit_code=0), now=NOW)
    assert told["status"]["phase"] == "Failed"
