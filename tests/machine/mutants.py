"""Rules of the protocol, each broken on purpose: the machine must find every one of them.

A mutant changes one function while it is applied. What a run against it finds is the proof that
the machine looks where the rule matters.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

from msgspec import structs

from sandbox_restore.kube.objects import KubeObjects
from sandbox_restore.model import names
from sandbox_restore.model.sandbox import Outcome
from sandbox_restore.restore import (
    giveup,
    liveness,
    outcome,
    planner,
    reconciler,
    redirect,
    rescue,
    state,
    world,
)

Patch = tuple[Any, str, Any]
"""Owner, attribute, what it becomes."""


@contextlib.contextmanager
def applied(patches: list[Patch]) -> Iterator[None]:
    """The mutant lives as long as the block."""
    with contextlib.ExitStack() as stack:
        for owner, name, value in patches:
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        yield


def _met(name: redirect.Name) -> Callable[[redirect.Facts], redirect.Condition]:
    return lambda _facts: redirect.Condition(name=name, met=True, reason="Broken", message="")


def _without_condition(number: int) -> list[Patch]:
    judges = list(redirect.CONDITIONS)
    judges[number - 1] = _met(list(redirect.Name)[number - 1])
    return [(redirect, "CONDITIONS", tuple(judges))]


def _no_gate() -> list[Patch]:
    """Pods are made without the scheduling gate: a POST that comes late makes one that runs."""
    make = KubeObjects.create_pod

    async def create(self: KubeObjects, pod: dict[str, Any]) -> Any:
        spec = {k: v for k, v in pod["spec"].items() if k != "schedulingGates"}
        return await make(self, {**pod, "spec": spec})

    return [(KubeObjects, "create_pod", create)]


def _no_fence() -> list[Patch]:
    make = KubeObjects.create_pod

    async def create(self: KubeObjects, pod: dict[str, Any]) -> Any:
        meta = {k: v for k, v in pod["metadata"].items() if k != "finalizers"}
        return await make(self, {**pod, "metadata": meta})

    return [(KubeObjects, "create_pod", create)]


def _delete_without_version() -> list[Patch]:
    async def delete(self: KubeObjects, pod: Any) -> None:
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"
        await self._delete(path, pod.uid, None)

    return [(KubeObjects, "delete_pod", delete)]


def _terminal_is_proof() -> list[Patch]:
    """A terminal phase is taken for the end, whoever wrote it."""
    judge = liveness.could_host

    def could_host(pod: Any, *args: Any, **more: Any) -> liveness.Verdict:
        if pod.bound and pod.terminal:
            return liveness.Verdict(may_be_alive=False, why="terminal")
        return judge(pod, *args, **more)

    return [(planner, "could_host", could_host)]


def _unbound_is_proof() -> list[Patch]:
    """An unbound pod is taken for none, although the scheduler may bind it a moment later."""
    judge = liveness.could_host

    def could_host(pod: Any, *args: Any, **more: Any) -> liveness.Verdict:
        if not pod.bound:
            return liveness.Verdict(may_be_alive=False, why="unbound")
        return judge(pod, *args, **more)

    return [(planner, "could_host", could_host)]


def _gone_at_once() -> list[Patch]:
    """An absent node is dead at once, without the grace period."""
    decide = liveness.node_decides

    def node_decides(*args: Any, gone_grace: timedelta, **more: Any) -> liveness.Verdict:
        return decide(*args, gone_grace=timedelta(0), **more)

    return [(planner, "node_decides", node_decides), (liveness, "node_decides", node_decides)]


def _not_ready_is_dead() -> list[Patch]:
    decide = liveness.node_decides

    def node_decides(pod: Any, sighting: Any, **more: Any) -> liveness.Verdict:
        if sighting is not None and sighting.node is not None and not sighting.node.ready:
            return liveness.Verdict(may_be_alive=False, why="not Ready")
        return decide(pod, sighting, **more)

    return [(planner, "node_decides", node_decides), (liveness, "node_decides", node_decides)]


def _name_is_identity() -> list[Patch]:
    """A Node under the same name is the same node, whatever its UID."""
    return [(liveness, "_replaced", lambda _pod, _node: False)]


def _no_time_for_the_kubelet() -> list[Patch]:
    """A Ready node has ended what it should, at once."""
    decide = liveness.node_decides

    def node_decides(pod: Any, sighting: Any, **more: Any) -> liveness.Verdict:
        node = sighting.node if sighting is not None else None
        if node is not None and node.ready and pod.ended_at is not None:
            return liveness.Verdict(may_be_alive=False, why="Ready")
        return decide(pod, sighting, **more)

    return [(planner, "node_decides", node_decides), (liveness, "node_decides", node_decides)]


def _lock_without_reread() -> list[Patch]:
    """What was decided before the lock is written under it."""

    async def under_lock(self: Any, step: Any, seen: world.World) -> Any:
        uids = self._reader.uids(seen.sandbox_id)
        async with self._store.locked(seen.sandbox_id, restore_uids=uids) as locked:
            uid = await self._kube.namespace_uid("team-a")
            await self._write_row(locked, step, replace(seen, namespace_uid=uid))
        self._keep(locked, uids)

    return [(reconciler.Reconciler, "_under_lock", under_lock), _never_first_look()]


def _never_first_look() -> Patch:
    return (reconciler.Reconciler, "_is_new", lambda _self, _sandbox: False)


def _unconfirmed_deletes() -> list[Patch]:
    """Deletions, gates and fences are decided on the cache alone."""
    return [(reconciler, "CONFIRMED_STEPS", ())]


def _marker_cleared_early() -> list[Patch]:
    """The give-up is not bounded to rows that a stuck restore left pinned."""
    return [(giveup, "left_pinned", lambda _view, _newest: True)]


def _marker_given_up_at_once() -> list[Patch]:
    return [(giveup, "_gone", lambda sighting, **_more: f"node {sighting.name}")]


def _redirect_with_an_active_execution() -> list[Patch]:
    """A plan from a pod that has not been Ready yet is redirected like any other."""
    run = planner._Planner.run

    def bold(self: Any) -> Any:
        active = self.view.active
        if active is not None and active.loaded_at is None and self.row.pinned_node is not None:
            for restore in self.open:
                found = rescue.redirect_of(self.world, self.view, restore)
                if found is not None and found.snapshot is not None:
                    return outcome.retire_unstarted(
                        active,
                        self.row,
                        outcome=Outcome.SUPERSEDED,
                        row_state=self.row.state,
                        why="redirected",
                    )
        return run(self)

    def run_after_sorting(self: Any) -> Any:
        self._sort_out()
        return bold(self)

    return [(planner._Planner, "run", run_after_sorting)]


def _prior_pin_forgotten() -> list[Patch]:
    """An attempt that failed does not put the former pin back."""
    make = outcome.retire_unstarted

    def forgetful(*args: Any, **more: Any) -> Any:
        return replace(make(*args, **more), pinned_node=None, marker=False)

    return [(planner, "retire_unstarted", forgetful), (reconciler, "retire_unstarted", forgetful)]


def _lost_marker() -> list[Patch]:
    """A loaded sandbox whose pod ends without a suspend loses its marker."""
    make = outcome.retire_lost

    def forgetful(*args: Any, **more: Any) -> Any:
        return replace(make(*args, **more), marker=False)

    return [(planner, "retire_lost", forgetful), (outcome, "retire_lost", forgetful)]


def _no_pin_without_a_word() -> list[Patch]:
    """A pod that started and ended without the runner's word pins nothing."""
    make = outcome.retire_ended

    def forgetful(*args: Any, **more: Any) -> Any:
        made = make(*args, **more)
        if made.outcome is Outcome.LOST and args[0].loaded_at is None:
            return replace(made, outcome=Outcome.FAILED, pinned_node=None, marker=False)
        return made

    return [(planner, "retire_ended", forgetful)]


def _released_before_the_row() -> list[Patch]:
    """A pod keeps its owner for ever: a finished restore that is deleted takes it along."""
    return [(KubeObjects, "release", lambda self, pod: self.pod(pod.namespace, pod.name))]


def _drop_the_fence_early() -> list[Patch]:
    """The finalizer goes as soon as the pod is being deleted, its execution active or not."""
    mine = world.is_pod_of

    def nobody(pod: Any, execution: Any) -> bool:
        return not (pod.deleting and names.FENCE in pod.finalizers) and mine(pod, execution)

    could = liveness.could_host

    def harmless(pod: Any, *args: Any, **more: Any) -> liveness.Verdict:
        if pod.deleting and names.FENCE in pod.finalizers:
            return liveness.Verdict(may_be_alive=False, why="being deleted")
        return could(pod, *args, **more)

    return [(planner, "is_pod_of", nobody), (planner, "could_host", harmless)]


def _replaced_is_gone() -> list[Patch]:
    """A Node under another UID proves that the machine of the old one is gone."""
    decide = liveness.node_decides

    def node_decides(pod: Any, sighting: Any, **more: Any) -> liveness.Verdict:
        node = sighting.node if sighting is not None else None
        if node is not None and liveness._replaced(pod, node):
            return liveness._absent(pod, node.created, **more)
        return decide(pod, sighting, **more)

    return [(planner, "node_decides", node_decides), (liveness, "node_decides", node_decides)]


def _gone_by_name() -> list[Patch]:
    """What is gone is known by name: another pod under that name takes the time back."""
    apply = state.ClusterState.apply_pod

    def apply_pod(self: Any, pod: Any) -> set[str]:
        self._gone_since.clear()
        return apply(self, pod)

    return [(state.ClusterState, "apply_pod", apply_pod)]


def _status_without_version() -> list[Patch]:
    apply = KubeObjects.apply_status

    async def late(self: KubeObjects, restore: Any, status: dict[str, Any]) -> Any:
        return await apply(self, structs.replace(restore, resource_version=None), status)

    return [(KubeObjects, "apply_status", late)]


MUTANTS: dict[str, Callable[[], list[Patch]]] = {
    **{
        f"redirect without condition {number}": (lambda number=number: _without_condition(number))
        for number in (4, 5, 6)
    },
    "redirect with an active execution": _redirect_with_an_active_execution,
    "no scheduling gate": _no_gate,
    "no finalizer": _no_fence,
    "delete without resourceVersion": _delete_without_version,
    "a terminal phase is proof": _terminal_is_proof,
    "an unbound pod is none": _unbound_is_proof,
    "an absent node is dead at once": _gone_at_once,
    "a node that is not Ready is dead": _not_ready_is_dead,
    "a node's name is its identity": _name_is_identity,
    "a Ready node needs no time": _no_time_for_the_kubelet,
    "no second look under the lock": _lock_without_reread,
    "deletions decided on the cache": _unconfirmed_deletes,
    "give-ups of any row": _marker_cleared_early,
    "give-ups of nodes that are there": _marker_given_up_at_once,
    "the former pin is not put back": _prior_pin_forgotten,
    "the marker goes with a lost pod": _lost_marker,
    "no pin without the runner's word": _no_pin_without_a_word,
    "the pod is never released": _released_before_the_row,
    "the fence goes early": _drop_the_fence_early,
    "another UID is another machine": _replaced_is_gone,
    "gone is known by name": _gone_by_name,
    "a status without its version": _status_without_version,
}
