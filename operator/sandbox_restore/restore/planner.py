"""The planner: one view in, the next step and what to say of each restore out (section 14). PURE.

It never asks what woke it, and orders at most one step: the caller carries it out, looks again,
and asks again.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from msgspec import UNSET

from sandbox_restore.model.names import FENCE
from sandbox_restore.model.pod import PodFacts
from sandbox_restore.restore.active import Active
from sandbox_restore.restore.idle import Idle
from sandbox_restore.restore.look import Look, not_found
from sandbox_restore.restore.world import (
    DeletePod,
    DeleteRestore,
    DropFinalizer,
    Plan,
    Said,
    Step,
    World,
    execution_of,
    is_pod_of,
)


def plan(world: World) -> Plan:
    """The next step for one sandbox, and what to say of each of its restores."""
    if world.view is None:
        said = {r.uid: not_found(world, r) for r in world.restores if not r.finished}
        return _with_ttl(world, None, said)
    look = Look(world, world.view)
    step = _step(look)
    return _with_ttl(world, step, look.said, look.rechecks)


def _step(look: Look) -> Step | None:
    look.sort_out()
    active = look.view.active
    # Asked for first or not, it also says what there is to say of each restore.
    ordered = Active(look).step(active) if active is not None else Idle(look).step()
    return _left_over_pods(look) or ordered


def _left_over_pods(look: Look) -> Step | None:
    active = look.view.active
    for pod in look.world.pods:
        if active is not None and is_pod_of(pod, active):
            continue
        step = _left_over(look, pod)
        if step is not None:
            return step
    return None


def _left_over(look: Look, pod: PodFacts) -> Step | None:
    """Section 15: a gated pod whose execution is not active goes, finalizer and all; a fence
    outlives its execution only until this look; a released pod goes once it is terminal."""
    fenced = FENCE in pod.finalizers
    if execution_of(pod) is None and not fenced:
        return None
    verdict = look.verdict(pod)
    if not pod.bound and not pod.deleting:
        return DeletePod(pod=pod, why="its execution is not active")
    if fenced and not verdict.may_be_alive:
        return DropFinalizer(pod=pod, why="its execution is not active")
    if fenced and not pod.deleting:
        return DeletePod(pod=pod, why="its execution is not active")
    if not fenced and not pod.owner_uids and pod.terminal and not pod.deleting:
        return DeletePod(pod=pod, why="released, its execution is retired and it has ended")
    return None


def _with_ttl(
    world: World, step: Step | None, said: dict[str, Said], rechecks: Iterable[datetime] = ()
) -> Plan:
    """A finished restore is deleted when its time to live is over (api.md)."""
    due_times = [*rechecks, *(s.recheck_at for s in said.values() if s.recheck_at is not None)]
    # A time that has passed without a step waits for news, not for itself.
    rechecks = [t for t in due_times if t > world.now]
    for restore in world.restores:
        done = restore.status.completion_time
        if not restore.finished or restore.deleting or done is UNSET:
            continue
        due = done + timedelta(seconds=restore.spec.ttl_seconds_after_finished)
        if due > world.now:
            rechecks.append(due)
        elif step is None:
            step = DeleteRestore(restore=restore)
    return Plan(step=step, said=said, recheck_at=min(rechecks, default=None))
