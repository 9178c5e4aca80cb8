"""Rules of the protocol, each broken on purpose, and the story in which that does harm.

A mutant changes one function while it is applied. That its story then ends badly is the proof that
the rule is needed, and that the simulation looks where it matters.
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
    active,
    giveup,
    liveness,
    look,
    outcome,
    planner,
    reconciler,
    redirect,
    rescue,
    state,
    world,
)
from tests.machine import stories

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

    return [(look, "could_host", could_host)]


def _gone_at_once() -> list[Patch]:
    """An absent node is dead at once, without the grace period."""
    decide = liveness.node_decides

    def node_decides(*args: Any, gone_grace: timedelta, **more: Any) -> liveness.Verdict:
        return decide(*args, gone_grace=timedelta(0), **more)

    return [(active, "node_decides", node_decides), (liveness, "node_decides", node_decides)]


def _not_ready_is_dead() -> list[Patch]:
    decide = liveness.node_decides

    def node_decides(pod: Any, sighting: Any, **more: Any) -> liveness.Verdict:
        if sighting is not None and sighting.node is not None and not sighting.node.ready:
            return liveness.Verdict(may_be_alive=False, why="not Ready")
        return decide(pod, sighting, **more)

    return [(active, "node_decides", node_decides), (liveness, "node_decides", node_decides)]


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

    return [(active, "node_decides", node_decides), (liveness, "node_decides", node_decides)]


def _lock_without_reread() -> list[Patch]:
    """What was decided before the lock is written under it."""

    async def under_lock(self: Any, step: Any, seen: world.World) -> Any:
        uids = self._reader.uids(seen.sandbox_id)
        async with self._store.locked(seen.sandbox_id, restore_uids=uids) as locked:
            uid = await self._kube.namespace_uid("team-a")
            await self._rows.write(locked, step, replace(seen, namespace_uid=uid))
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


def _redirect_with_an_active_execution() -> list[Patch]:
    """A plan from a pod is redirected like any other, if that pod has not said Ready yet."""
    step, could = planner._step, liveness.could_host

    def bold(seen: look.Look) -> Any:
        under_way = seen.view.active
        seen.sort_out()
        for restore in seen.open:
            found = rescue.redirect_of(seen.world, seen.view, restore)
            if under_way is None or under_way.loaded_at is not None or found is None:
                continue
            if found.pinned.cannot_load:
                return outcome.retire_unstarted(
                    under_way,
                    seen.row,
                    outcome=Outcome.SUPERSEDED,
                    row_state=seen.row.state,
                    why="redirected",
                )
        seen.open.clear()
        return step(seen)

    def could_host(pod: Any, *args: Any, **more: Any) -> liveness.Verdict:
        if pod.bound and not pod.ready:
            return liveness.Verdict(may_be_alive=False, why="not Ready yet")
        return could(pod, *args, **more)

    return [(planner, "_step", bold), (look, "could_host", could_host)]


def _prior_pin_forgotten() -> list[Patch]:
    """An attempt that failed does not put the former pin back."""
    make = outcome.retire_unstarted

    def forgetful(*args: Any, **more: Any) -> Any:
        return replace(make(*args, **more), pinned_node=None, marker=False)

    return [(active, "retire_unstarted", forgetful), (reconciler, "retire_unstarted", forgetful)]


def _lost_marker() -> list[Patch]:
    """A loaded sandbox whose pod ends without a suspend loses its marker."""
    make = outcome.retire_lost

    def forgetful(*args: Any, **more: Any) -> Any:
        return replace(make(*args, **more), marker=False)

    return [(active, "retire_lost", forgetful), (outcome, "retire_lost", forgetful)]


def _no_pin_without_a_word() -> list[Patch]:
    """A pod that started and ended without the runner's word pins nothing."""
    make = outcome.retire_ended

    def forgetful(*args: Any, **more: Any) -> Any:
        made = make(*args, **more)
        if made.outcome is Outcome.LOST and args[0].loaded_at is None:
            return replace(made, outcome=Outcome.FAILED, pinned_node=None, marker=False)
        return made

    return [(active, "retire_ended", forgetful)]


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

    return [
        (planner, "is_pod_of", nobody),
        (look, "is_pod_of", nobody),
        (look, "could_host", harmless),
    ]


def _replaced_is_gone() -> list[Patch]:
    """A Node under another UID proves that the machine of the old one is gone."""
    decide = liveness.node_decides

    def node_decides(pod: Any, sighting: Any, **more: Any) -> liveness.Verdict:
        node = sighting.node if sighting is not None else None
        if node is not None and liveness._replaced(pod, node):
            return liveness._absent(pod, node.created, **more)
        return decide(pod, sighting, **more)

    return [(active, "node_decides", node_decides), (liveness, "node_decides", node_decides)]


def _gone_by_name() -> list[Patch]:
    """What is gone is known by name: another pod under that name takes the time back."""
    apply = state.ClusterState.apply_pod

    def apply_pod(self: Any, pod: Any) -> set[str]:
        self._gone_since.clear()
        return apply(self, pod)

    def by_name(pod: Any, run: Any) -> bool:
        return bool(pod.name == run.pod_name)

    return [
        (state.ClusterState, "apply_pod", apply_pod),
        (planner, "is_pod_of", by_name),
        (look, "is_pod_of", by_name),
    ]


def _status_without_version() -> list[Patch]:
    apply = KubeObjects.apply_status

    async def late(self: KubeObjects, restore: Any, status: dict[str, Any]) -> Any:
        return await apply(self, structs.replace(restore, resource_version=None), status)

    return [(KubeObjects, "apply_status", late)]


Mutant = tuple[Callable[[], list[Patch]], stories.Tell]
"""How the rule is broken, and the story in which that does harm."""

MUTANTS: dict[str, Mutant] = {
    "redirect without condition 4": (
        lambda: _without_condition(4),
        stories.unrecorded_state_on_a_node_that_is_labelled_anew,
    ),
    "redirect without condition 5": (
        lambda: _without_condition(5),
        stories.a_command_was_recorded_in_an_attempt_that_never_said_ready,
    ),
    "redirect without condition 6": (
        lambda: _without_condition(6),
        stories.a_newer_snapshot_is_on_its_way,
    ),
    "redirect with an active execution": (
        _redirect_with_an_active_execution,
        stories.a_node_is_labelled_anew_while_a_local_attempt_runs,
    ),
    "no scheduling gate": (_no_gate, stories.a_post_arrives_after_its_attempt_was_cancelled),
    "no finalizer": (_no_fence, stories.a_pod_is_deleted_by_force_while_it_loads),
    "the fence goes early": (
        _drop_the_fence_early,
        stories.a_pod_is_deleted_by_force_while_it_loads,
    ),
    "delete without resourceVersion": (
        _delete_without_version,
        stories.a_pod_is_bound_between_the_look_and_the_deletion,
    ),
    "a terminal phase is proof": (
        _terminal_is_proof,
        stories.a_kubelet_rejects_a_pod_whose_vm_runs,
    ),
    "an absent node is dead at once": (
        _gone_at_once,
        stories.a_node_object_is_deleted_and_its_machine_runs_on,
    ),
    "a node that is not Ready is dead": (
        _not_ready_is_dead,
        stories.a_node_loses_contact_and_comes_back,
    ),
    "a node's name is its identity": (
        _name_is_identity,
        stories.another_machine_takes_the_name_of_one_that_runs_on,
    ),
    "another UID is another machine": (
        _replaced_is_gone,
        stories.a_machine_registers_again_and_loses_contact,
    ),
    "a Ready node needs no time": (
        _no_time_for_the_kubelet,
        stories.a_released_pod_is_deleted_by_force,
    ),
    "gone is known by name": (
        _gone_by_name,
        stories.a_pod_comes_late_under_the_name_of_one_that_is_gone,
    ),
    "no second look under the lock": (
        _lock_without_reread,
        stories.the_sandbox_ran_elsewhere_between_the_look_and_the_lock,
    ),
    "deletions decided on the cache": (
        _unconfirmed_deletes,
        stories.an_operator_with_an_old_row_sees_a_pod_of_today,
    ),
    "give-ups of any row": (_marker_cleared_early, stories.its_node_is_drained),
    "the former pin is not put back": (
        _prior_pin_forgotten,
        stories.its_pod_is_deleted_before_it_is_bound,
    ),
    "the marker goes with a lost pod": (
        _lost_marker,
        stories.unrecorded_state_on_a_node_that_is_labelled_anew,
    ),
    "no pin without the runner's word": (
        _no_pin_without_a_word,
        stories.a_vm_changed_something_before_its_pod_said_ready,
    ),
    "the pod is never released": (
        _released_before_the_row,
        stories.a_restore_that_has_succeeded_is_deleted,
    ),
    "a status without its version": (_status_without_version, stories.a_status_comes_late),
}
