"""What a real kubelet writes of a pod that it turns away at its restart, and what that proves."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sandbox_restore.kube.decode import node_from_body, pod_from_body
from sandbox_restore.model.names import NETWORK_SLOTS
from sandbox_restore.restore.liveness import NodeSighting, could_host
from tests.nodes.bed import CASCADE, ICE, PODS, SLOTS, SLOW, Bed
from tests.support.agentbed import Watched
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(600)

_RUNNER = "trap '{}' TERM; while :; do /bin/busybox sleep 3600 & wait $!; done"
ENDS = {"with 0": "exit 0", "with 143": "exit 143", "later": "/bin/busybox sleep 8; exit 0"}
"""What a runner does that is told to end; the last has a VM to end first, and would be done within
the grace period that its pod asks for."""
GRACE = 20

REASONS = {"slots": f"OutOf{NETWORK_SLOTS}", "label": "NodeAffinity"}


class Statuses(Watched):
    """Every state of the sandbox's pod, and whether its process lived when it was seen."""

    def __init__(self, bed: Bed) -> None:
        super().__init__(bed.view.plane, PODS, bed.sandbox)
        self._bed = bed
        self.seen: list[tuple[dict[str, Any], bool]] = []

    def take(self, found: dict[str, Any]) -> None:
        self.seen.append((found, self._bed.process() != 0))

    def words(self) -> list[str]:
        """Phase, reason and state of the container, once for each change."""
        told = [_words(pod["status"], alive=alive) for pod, alive in self.seen]
        return [now for now, before in zip(told, ["", *told], strict=False) if now != before]


def _words(status: dict[str, Any], *, alive: bool) -> str:
    containers = status.get("containerStatuses", ())
    state = ", ".join(
        f"{name} {about.get('reason', '')} {about.get('exitCode', '')}".strip()
        for one in containers
        for name, about in one["state"].items()
    )
    words = f"{status['phase']} {status.get('reason', '')}".strip()
    return f"{words}; container {state or 'untold'}; process {'alive' if alive else 'gone'}"


async def turned_away(bed: Bed, cause: str, end: str) -> Statuses:
    """A sandbox whose kubelet finds at its restart that it would not admit it any more."""
    await bed.start()
    status, admin = f"{bed.view.path}/status", bed.view.admin
    bed.view.set_label(ICE)
    admin.merge(status, {"status": {"capacity": {NETWORK_SLOTS: "4"}}})
    await until(lambda: bed.view.slots == SLOTS, deadline_s=SLOW, what="the slots")
    pod = bed.sandbox_pod(excluding=CASCADE)
    pod["spec"]["terminationGracePeriodSeconds"] = GRACE
    pod["spec"]["containers"][0]["command"] = [
        "/bin/busybox",
        "sh",
        "-c",
        _RUNNER.format(ENDS[end]),
    ]
    assert await bed.run_sandbox(pod)
    if cause == "slots":
        admin.merge(status, {"status": {"capacity": {NETWORK_SLOTS: "0"}}})
        await until(lambda: bed.view.slots == 0, deadline_s=SLOW, what="no slots")
    else:
        bed.view.set_label(CASCADE)
    async with Statuses(bed) as statuses:
        await bed.restart_kubelet()
        await until(
            lambda: bed.process() == 0 and bed.phase() in ("Succeeded", "Failed"),
            deadline_s=SLOW,
            what="the sandbox is ended",
            detail=statuses.words,
        )
    return statuses


@pytest.mark.parametrize(
    ("cause", "end"),
    [("slots", "with 0"), ("slots", "with 143"), ("slots", "later"), ("label", "with 143")],
)
async def test_no_status_of_a_pod_that_is_turned_away_proves_its_end_before_it(
    bed: Bed, cause: str, end: str
) -> None:
    statuses = await turned_away(bed, cause, end)
    node = node_from_body(bed.real.get())
    for pod, alive in statuses.seen:
        facts = pod_from_body(pod)
        now = datetime.now(UTC)
        verdict = could_host(
            facts,
            NodeSighting(name=node.name, node=node),
            now=now,
            gone_grace=timedelta(seconds=120),
            seen_terminal=now,
        )
        assert verdict.may_be_alive or not alive, _words(pod["status"], alive=alive)
    last = statuses.seen[-1][0]["status"]
    (container,) = last["containerStatuses"]
    code = container["state"]["terminated"]["exitCode"]
    # An end with 0 within the kubelet's two seconds, whatever grace period the pod asks for, is not
    # told from one that the runner chose.
    assert (last["phase"], last.get("reason", "")) == (
        ("Succeeded", "") if code == 0 else ("Failed", REASONS[cause])
    ), statuses.words()
    assert code != 0 or end == "with 0"
