"""Why one restore is where it is, as a colleague would tell it (api.md, `why`). PURE.

All of it is in the object's status; the pod and the nodes as they are now are read besides, to say
what would help. What cannot be read is said to be unread, never guessed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from msgspec import UNSET

from sandbox_restore.fleet import cpu as cpus
from sandbox_restore.model.names import COHORT_LABEL, NODE_GROUP_LABEL
from sandbox_restore.model.node import NodeFacts
from sandbox_restore.model.pod import PodFacts
from sandbox_restore.model.restore import PlacementStatus, Restore
from sandbox_restore.report.advice import advice_for
from sandbox_restore.report.nodes import COMMAND, Tally
from sandbox_restore.report.words import ago, counted, listed, span


class State(StrEnum):
    """Where the restore stands, in one word."""

    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    SUSPENDED = "Suspended"
    WAITING = "Waiting"
    WORKING = "Working"
    """An attempt is under way and nothing holds it."""
    UNSEEN = "Unseen"
    """No operator has looked at it yet, or not at its newest generation."""


_WORKING = ("Planning", "CreatingPod", "Scheduling", "LoadingSnapshot", "Releasing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The nodes as they are now, and how they are read."""

    nodes: Sequence[NodeFacts]
    cpu_label: str
    drain_marks: Collection[str]

    def with_cpu(
        self, wanted: Collection[str], *, labels: Mapping[str, str] | None = None
    ) -> Tally:
        """The nodes that carry one of these CPUs, and these labels."""
        return Tally.of(
            (
                n
                for n in self.nodes
                if cpus.usable(n.labels.get(self.cpu_label)) in wanted
                and all(n.labels.get(key) == value for key, value in (labels or {}).items())
            ),
            drain_marks=self.drain_marks,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What is told; each part is a list of sentences, empty where there is nothing to tell."""

    restore: Restore
    state: State
    reason: str
    message: str
    since: datetime | None
    """Since when that reason holds, where it is known."""
    asked: tuple[str, ...]
    decided: tuple[str, ...]
    evidence: tuple[str, ...]
    now: tuple[str, ...]
    """The fleet and the pod as they are, where they could be read."""
    helps: tuple[str, ...]
    commands: tuple[str, ...]
    unread: tuple[str, ...] = field(default=())
    """What could not be read, and why."""


def why(
    restore: Restore,
    *,
    pod: PodFacts | None,
    fleet: Fleet | None,
    now: datetime,
    unread: Sequence[str] = (),
) -> Answer:
    """Everything that is known of a restore. `fleet` is None where nodes cannot be read."""
    state, reason, message, since = _standing(restore)
    return Answer(
        restore=restore,
        state=state,
        reason=reason,
        message=message,
        since=since,
        asked=tuple(_asked(restore)),
        decided=tuple(_decided(restore, now)),
        evidence=tuple(_evidence(restore)),
        now=tuple(_now(restore, state, pod, fleet, now)),
        helps=tuple(dict.fromkeys(_helps(restore, state, reason, pod, fleet))),
        commands=tuple(_commands(restore, state)),
        unread=tuple(unread),
    )


def _standing(restore: Restore) -> tuple[State, str, str, datetime | None]:
    found = restore.condition("Succeeded")
    if found is None:
        return (
            State.UNSEEN,
            "NotSeenYet",
            "no operator has looked at it yet: is one running, and does it serve this namespace?",
            None,
        )
    since = found.last_transition_time
    if found.status == "True":
        return State.SUCCEEDED, found.reason, found.message, since
    if found.status == "False":
        return State.FAILED, found.reason, found.message, since
    if restore.status.observed_generation < restore.generation:
        return (
            State.UNSEEN,
            "ChangeNotSeenYet",
            f"the last change is not looked at yet; before it: {found.reason}, {found.message}",
            None,
        )
    if found.reason == "Suspended":
        return State.SUSPENDED, found.reason, found.message, since
    return (
        State.WORKING if found.reason in _WORKING else State.WAITING,
        found.reason,
        found.message,
        None,
    )


def _asked(restore: Restore) -> Iterator[str]:
    spec = restore.spec
    what = (
        f"snapshot {spec.snapshot_id}"
        if isinstance(spec.snapshot_id, str)
        else "its newest ready full snapshot"
    )
    yield f"restore sandbox {spec.sandbox_id} from {what}; hostCpuPolicy {spec.host_cpu_policy}"
    limit = span(timedelta(seconds=spec.active_deadline_seconds))
    yield f"at most {counted(spec.backoff_limit, 'attempt')} within {limit}"
    if spec.node_selector:
        yield f"only on nodes with {_pairs(spec.node_selector)}"
    if spec.evacuation is not UNSET:
        yield f"an evacuation to cohort {spec.evacuation.cohort}"


def _decided(restore: Restore, now: datetime) -> Iterator[str]:
    status = restore.status
    plan = status.plan
    if plan is not UNSET:
        when = f", captured {ago(plan.captured_at, now)}" if plan.captured_at is not UNSET else ""
        named = f"snapshot {plan.snapshot_id}{when}" if plan.snapshot_id else "its state"
        match plan.source:
            case "local":
                yield f"{named} from what node {plan.node} holds, only there ({plan.origin})"
            case "pod":
                yield f"follows the pod that runs the sandbox ({plan.origin})"
            case _:
                yield f"{named} from storage ({plan.origin})"
    placement = status.placement
    if placement is not UNSET:
        head = restore.condition("Succeeded")
        told = head is not None and head.message == placement.message
        why_so = "" if told else f": {placement.message}"
        yield f"{placement.decision} ({placement.reason}){why_so}"
        if placement.excluded:
            yield f"kept off nodes with {', '.join(placement.excluded)}"
    observed = status.observed
    if observed is not UNSET:
        yield (
            "observe mode: with the gate on it would have been "
            f"{observed.decision} ({observed.reason}): {observed.message}"
        )
    yield from _redirected(restore)


def _redirected(restore: Restore) -> Iterator[str]:
    redirect = restore.status.redirect
    if redirect is UNSET:
        return
    blocked = f", blocked by {redirect.blocked_by}" if redirect.blocked_by else ""
    yield {
        "Redirect": "the pinned node cannot load it: restored from storage instead",
        "Stay": f"not redirected to storage{blocked}",
        "WouldRedirect": "observe mode: with the gate on it would be redirected to storage",
        "WouldStay": f"observe mode: with the gate on it would stay where it is{blocked}",
    }.get(redirect.decision, redirect.decision)


def _evidence(restore: Restore) -> Iterator[str]:
    placement = restore.status.placement
    if placement is UNSET or not placement.evidence:
        return
    cpu = placement.capture_cpu
    yield {
        "recorded": f"captured on {cpu}: recorded with the snapshot",
        "uploader-label": f"captured on {cpu}: the label of the node that uploaded it",
        "uploader-history": f"captured on {cpu}: what the uploading node carried at that time",
    }.get(placement.evidence, "the capture CPU is not known: nothing can be excluded")
    if placement.loaders:
        yield f"published CPUs that can load it: {', '.join(placement.loaders)}"


def _now(
    restore: Restore, state: State, pod: PodFacts | None, fleet: Fleet | None, now: datetime
) -> Iterator[str]:
    if state in (State.SUCCEEDED, State.FAILED):
        return
    if pod is not None:
        yield _pod_words(pod, now)
    needed = _needed(restore)
    if fleet is not None and needed:
        yield f"nodes with {' or '.join(needed)}: {fleet.with_cpu(needed).words}"


def _pod_words(pod: PodFacts, now: datetime) -> str:
    age = span(now - pod.created)
    if pod.deleting:
        return f"pod {pod.name} is being deleted"
    if pod.gates:
        return f"pod {pod.name} is held by its scheduling gate ({age} old)"
    if not pod.bound:
        told = f": {pod.unschedulable_message}" if pod.unschedulable_message else ""
        return f"pod {pod.name} waits for kube-scheduler, {age} old{told}"
    return f"pod {pod.name} is {pod.phase} on node {pod.node_name}, {age} old"


def _needed(restore: Restore) -> tuple[str, ...]:
    """The CPUs that can load the snapshot, as far as the status names them."""
    placement = restore.status.placement
    if placement is UNSET or not placement.capture_cpu:
        return ()
    return tuple(sorted({*placement.loaders} or {placement.capture_cpu}))


def _helps(
    restore: Restore,
    state: State,
    reason: str,
    pod: PodFacts | None,
    fleet: Fleet | None,
) -> Iterator[str]:
    if state is State.SUCCEEDED:
        return
    yield from advice_for(restore, reason)
    placement = restore.status.placement
    if state is State.FAILED or placement is UNSET:
        return
    wants_node = reason == "Unschedulable" or placement.decision == "Held"
    no_loader = placement.reason == "NoReachableLoader"
    if wants_node or no_loader:
        yield from _scale_up(restore, placement, pod, fleet)


def _scale_up(
    restore: Restore, placement: PlacementStatus, pod: PodFacts | None, fleet: Fleet | None
) -> Iterator[str]:
    """Which node would unblock it: first those that are there, then one to add."""
    needed = _needed(restore)
    if not needed:
        return
    confined = _confined(restore, pod)
    if fleet is not None:
        found = fleet.with_cpu(needed, labels=confined)
        for state, command in COMMAND.items():
            if names := found.names.get(state):
                what = "is" if len(names) == 1 else "are"
                yield f"{listed(names)} {what} {state}: {command.format(names[0])}"
    where = f" with {_pairs(confined)}" if confined else ""
    yield f"scale up: a node with host CPU {' or '.join(needed)}{where}"


def _confined(restore: Restore, pod: PodFacts | None) -> dict[str, str]:
    """Labels that the node would need besides, from the spec and the unbound pod's own terms."""
    labels = dict(restore.spec.node_selector)
    if restore.spec.evacuation is not UNSET:
        labels[COHORT_LABEL] = restore.spec.evacuation.cohort
    terms: Sequence[Any] = () if pod is None or pod.required_terms is None else pod.required_terms
    for term in terms:
        for wanted in term.get("matchExpressions") or ():
            if wanted.get("key") == NODE_GROUP_LABEL and wanted.get("operator") == "In":
                # One value: the group that the sandbox's row names.
                labels[NODE_GROUP_LABEL] = ",".join(wanted.get("values") or ())
    return labels


def _commands(restore: Restore, state: State) -> Iterator[str]:
    where = f"-n {restore.namespace}"
    yield f"kubectl describe sbr {restore.name} {where}"
    status = restore.status
    if status.pod_name and state is not State.FAILED:
        yield f"kubectl describe pod {status.pod_name} {where}"
    if status.node_name:
        yield f"kubectl describe node {status.node_name}"
    if state is State.UNSEEN:
        yield "sandbox-restore doctor"
    if state in (State.WAITING, State.FAILED):
        yield "sandbox-restore fleet"


def _pairs(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in labels.items())
