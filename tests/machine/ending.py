"""The end of every example: faults stop, and then every restore must come to its end.

Liveness cannot be seen in a step. So the world is put in order as an administrator would, time
passes, one operator is left, and what is still open must say a reason that only a person or the
user's own policy can change.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sandbox_restore.model import names
from sandbox_restore.model.sandbox import SandboxState
from tests.machine.cluster import GONE_GRACE, ViolationError, bound, fits
from tests.machine.moves import moves
from tests.machine.story import Operator, Story

ROUNDS, MOVES = 120, 50
LONG = GONE_GRACE + timedelta(seconds=5)
"""Nothing is at rest before every grace period that may run is over."""
WAITS_FOR_A_PERSON = ("Stranded", "PlacementHeld", "CaptureCpuUnknown")
"""`hostCpuPolicy: Required` waits for a loader until the deadline."""


async def come_to_rest(story: Story) -> None:
    """Raises ViolationError when something stays stuck."""
    survivor = story.operators[0]
    for operator in story.operators:
        await story.restart(operator, late=False)
    _mend(story)
    await _rounds(story, survivor)
    for restore in story.api.restores.values():
        _check_open(story, restore)
    for name, restore in story.api.restores.items():
        if _verdict(restore) is None:
            story.api.edit_restore(name, activeDeadlineSeconds=1)
    await _rounds(story, survivor)
    _check_over(story)


def _mend(story: Story) -> None:
    cluster, api = story.cluster, story.api
    for machine in cluster.machines.values():
        if machine.alive and (not machine.contact or cluster.node(machine.name) is None):
            cluster.find_contact(machine)
        elif not machine.alive and cluster.node(machine.name) is not None:
            cluster.taint(machine.name, names.OUT_OF_SERVICE_TAINT)
    for name in api.restores:
        api.edit_restore(name, suspend=False)


async def _rounds(story: Story, operator: Operator) -> None:
    """The world does what it can, one operator looks, until nothing changes any more."""
    quiet = timedelta(0)
    for _ in range(ROUNDS):
        before = (story.api.version, story.view.sandbox.version, len(story.platform.mail))
        while story.conductor.late:
            await story.step("late request", lambda: story.arrive(0))
        for report in story.platform.deliverable():
            await story.step(
                report.label,
                lambda report=report: story.report(story.platform.deliver(report)),  # type: ignore[misc]
            )
        for _ in range(MOVES):
            found = [m for m in moves(story.cluster) if "fails in" not in m[0]]
            found = [m for m in found if "dies in" not in m[0]]
            if not found:
                break
            story.tell_story(found[0][0])
            found[0][1]()
        story.tell(operator)
        await story.step("a pass", lambda: story.advance(operator, 100_000))
        after = (story.api.version, story.view.sandbox.version, len(story.platform.mail))
        asked = operator.driven.due.pop(story.id, LONG.total_seconds())
        wait = timedelta(seconds=min(max(asked, 1.0), LONG.total_seconds()))
        story.cluster.pass_time(wait)
        quiet = quiet + wait if before == after else timedelta(0)
        if quiet > 2 * LONG:
            return


def _verdict(restore: dict[str, Any]) -> tuple[str, str, str] | None:
    conditions = restore.get("status", {}).get("conditions", ())
    said = next((c for c in conditions if c["type"] == "Succeeded"), None)
    if said is None or said["status"] == "Unknown":
        return None
    return said["status"], said["reason"], said["message"]


def _reason(restore: dict[str, Any]) -> tuple[str, str]:
    conditions = restore.get("status", {}).get("conditions", ())
    said = next((c for c in conditions if c["type"] == "Succeeded"), None)
    return (said["reason"], said["message"]) if said is not None else ("", "nothing was said")


def _check_open(story: Story, restore: dict[str, Any]) -> None:
    """A restore that is still open waits for something that only a person can change."""
    if _verdict(restore) is not None:
        return
    reason, message = _reason(restore)
    if reason in WAITS_FOR_A_PERSON:
        return
    if reason == "SandboxBusy":
        # Its forerunner is looked at by itself.
        return
    if reason in ("Unschedulable", "Scheduling") and not _could_be_bound(story):
        return
    raise ViolationError(
        f"restore {restore['metadata']['name']} is stuck: {reason}: {message}; "
        f"row {story.view.sandbox}; active {story.view.active}"
    )


def _could_be_bound(story: Story) -> bool:
    cluster = story.cluster
    return any(
        not bound(pod) and cluster.ready(node["metadata"]["name"]) and fits(pod, node)
        for pod in story.api.pods.values()
        for node in story.api.nodes.values()
    )


def _check_over(story: Story) -> None:
    view, cluster = story.view, story.cluster
    for restore in story.api.restores.values():
        if _verdict(restore) is None:
            raise ViolationError(
                f"past its deadline restore {restore['metadata']['name']} is still open: "
                f"{_reason(restore)}; row {view.sandbox}; active {view.active}"
            )
    if view.sandbox.state is SandboxState.RESTORING:
        raise ViolationError(f"the row stays restoring: {view.sandbox}; active {view.active}")
    for name, pod in story.api.pods.items():
        fenced = names.FENCE in pod["metadata"].get("finalizers", ())
        if fenced or not bound(pod):
            raise ViolationError(f"pod {name} is left over: {pod['metadata']} {pod['status']}")
    if view.active is not None:
        live = [vm for vm in cluster.live() if vm.uid == view.active.pod_uid]
        if not live:
            raise ViolationError(f"execution {view.active} is active and nothing runs")
    elif cluster.live():
        raise ViolationError(f"{cluster.live()} run in no execution")
