"""What the node agent does next (section 13): label before slots, at every look, whatever was.

The planner is asked again after each step; it never relies on what it answered before, but for
the time since when the label has been wanting.
"""

from __future__ import annotations

from sandbox_restore.agent.state import (
    Condition,
    NodeSeen,
    Plan,
    Reason,
    Seen,
    Step,
    Waiting,
    Wishes,
)
from sandbox_restore.fleet import cpu

HELD_LOOK = 15.0
"""Seconds between two looks at what holds a label: the end of a pod is no event of the Node."""

_NAMED_PODS = 5
"""A condition names so many pods; a list of hundreds helps nobody."""


def label_changes(*, node: NodeSeen, wanted: str | None, key: str) -> bool:
    """Whether the label has to be written or taken off.

    Where the CPU cannot be told, a label that reads as none is let stand.
    """
    current = node.labels.get(key)
    if wanted is None:
        return cpu.usable(current) is not None
    return current != wanted


def plan(seen: Seen, *, wishes: Wishes, waiting: Waiting | None, now: float) -> Plan:
    """Section 13: the next step. `now` is of the clock that `waiting` is of."""
    node = seen.node
    if node is None and seen.node_unread:
        # What was advertised rests on the last look; nothing new is advertised without one.
        return Plan(
            step=Step.NONE,
            reason=Reason.NODE_UNREAD,
            message=f"the Node cannot be read: {seen.node_unread}",
            waiting=waiting,
        )
    if node is None or node.deleting:
        return Plan(
            step=Step.TAKE_SLOTS if seen.kubelet.slots else Step.NONE,
            reason=Reason.NODE_ABSENT,
            message="there is no Node object, or it is being deleted; waiting for a new one",
        )
    if label_changes(node=node, wanted=seen.detection.value, key=wishes.key):
        return _change(node, seen, wishes=wishes, waiting=_since(waiting, node, now=now), now=now)
    if seen.detection.value is None:
        waiting = _since(waiting, node, now=now)
        return _unknown(node, seen, wishes=wishes, waiting=waiting, now=now)
    return _slots(
        seen,
        wishes=wishes,
        reason=Reason.PUBLISHED,
        message=f"{wishes.key} is {seen.detection.value}",
        waiting=None,
    )


def _since(waiting: Waiting | None, node: NodeSeen, *, now: float) -> Waiting:
    """A re-created Node is another Node: its wait begins anew."""
    if waiting is not None and waiting.uid == node.uid:
        return waiting
    return Waiting(uid=node.uid, since=now)


def _change(node: NodeSeen, seen: Seen, *, wishes: Wishes, waiting: Waiting, now: float) -> Plan:
    """The label must change: slots away first, then the label, unless it is held."""
    wanted, current = seen.detection.value, node.labels.get(wishes.key)
    what = f"{wishes.key} is {current or 'not set'}, the CPU is {wanted or 'not known'}"
    if seen.ended_pods and not wishes.force_relabel:
        return _held(node, seen, what, wishes=wishes, waiting=waiting)
    pods_unknown = seen.ended_pods is None and not wishes.force_relabel
    failed = seen.pods_unread if pods_unknown else seen.write_failed
    reads_unlabelled = cpu.usable(current) is None
    step = Step.NONE if pods_unknown else Step.WRITE_LABEL
    if failed and reads_unlabelled and _expired(wishes, waiting, now=now):
        return _unlabelled(seen, failed, wishes=wishes, waiting=waiting, retry=step, label=wanted)
    if seen.kubelet.slots:
        return Plan(
            step=Step.TAKE_SLOTS,
            reason=Reason.LABEL_DIFFERS,
            message=f"{what}; the slots are taken away before it is written",
            waiting=waiting,
        )
    if wishes.slots and node.slots_shown:
        return _told(
            step=_out_step(node, seen, wishes=wishes),
            reason=Reason.SLOTS_STILL_SHOWN,
            message=f"{what}; it is written once the Node shows no slots"
            f" ({node.slots_shown} now), which the kubelet has to report",
            waiting=waiting,
        )
    if failed:
        return _told(
            step=step,
            reason=Reason.PODS_UNKNOWN if pods_unknown else Reason.LABEL_WRITE_FAILED,
            message=f"{what}; {failed}{_until(wishes, reads_unlabelled=reads_unlabelled)}",
            waiting=waiting,
            label=wanted,
            look_again=_left(wishes, waiting, now=now) if reads_unlabelled else None,
            warn=True,
            event=True,
        )
    return Plan(step=step, reason=Reason.LABEL_DIFFERS, message=what, label=wanted, waiting=waiting)


def _out_step(node: NodeSeen, seen: Seen, *, wishes: Wishes) -> Step:
    """Takes slots away that are out: offered by this agent, or left in the Node's status by another
    machine or a kubelet that lost its checkpoint. The kubelet of now knows nothing of those, and
    shows them on until it is told that there are none."""
    stale = bool(wishes.slots and node.slots_shown and not seen.kubelet.registered)
    return Step.TAKE_SLOTS if seen.kubelet.slots or stale else Step.NONE


def _held(node: NodeSeen, seen: Seen, what: str, *, wishes: Wishes, waiting: Waiting) -> Plan:
    """Section 13 [beyond]: sandboxes run here that the kubelet would end at its next restart."""
    pods = seen.ended_pods or ()
    more = f" and {len(pods) - _NAMED_PODS} more" if len(pods) > _NAMED_PODS else ""
    return _told(
        step=_out_step(node, seen, wishes=wishes),
        reason=Reason.RELABEL_HELD,
        message=f"{what}; held until these sandbox pods, which exclude it, are gone, or"
        f" --force-relabel: {', '.join(pods[:_NAMED_PODS])}{more}",
        waiting=waiting,
        look_again=HELD_LOOK,
        warn=True,
        event=True,
    )


def _unknown(node: NodeSeen, seen: Seen, *, wishes: Wishes, waiting: Waiting, now: float) -> Plan:
    """The CPU cannot be told: as a label that cannot be written."""
    why = seen.detection.text
    if _expired(wishes, waiting, now=now):
        return _unlabelled(seen, why, wishes=wishes, waiting=waiting, retry=Step.NONE, label=None)
    return _told(
        step=_out_step(node, seen, wishes=wishes),
        reason=Reason.CPU_UNKNOWN,
        message=f"the CPU cannot be told: {why}{_until(wishes, reads_unlabelled=True)}",
        waiting=waiting,
        look_again=_left(wishes, waiting, now=now),
        warn=True,
        event=True,
    )


def _unlabelled(
    seen: Seen, why: str, *, wishes: Wishes, waiting: Waiting, retry: Step, label: str | None
) -> Plan:
    """The wait is over: slots without a label, and the label is tried for all the same."""
    offered = seen.kubelet.registered and seen.kubelet.slots == wishes.slots
    return _told(
        step=retry if offered or not wishes.slots else Step.ADVERTISE,
        reason=Reason.ADVERTISED_UNLABELLED,
        message=f"the node reads as unlabelled, eligible for every restore: {why}",
        waiting=waiting,
        label=label,
        warn=True,
        event=True,
    )


def _slots(
    seen: Seen, *, wishes: Wishes, reason: Reason, message: str, waiting: Waiting | None
) -> Plan:
    """The label is right: the slots may be there."""
    kubelet = seen.kubelet
    if not wishes.slots or (kubelet.registered and kubelet.slots == wishes.slots):
        slots = f"; {wishes.slots} slots advertised" if wishes.slots else ""
        return _told(
            step=Step.NONE, reason=reason, message=message + slots, waiting=waiting, event=True
        )
    if kubelet.problem:
        return _told(
            step=Step.ADVERTISE,
            reason=Reason.KUBELET_UNREACHABLE,
            message=f"{message}; the slots cannot be advertised: {kubelet.problem}",
            waiting=waiting,
            warn=True,
            event=True,
        )
    return Plan(step=Step.ADVERTISE, reason=reason, message=message, waiting=waiting)


def _told(
    *,
    step: Step,
    reason: Reason,
    message: str,
    waiting: Waiting | None,
    label: str | None = None,
    look_again: float | None = None,
    warn: bool = False,
    event: bool = False,
) -> Plan:
    """A plan whose reason goes into the Node's condition."""
    status = "True" if reason is Reason.PUBLISHED else "False"
    return Plan(
        step=step,
        reason=reason,
        message=message,
        label=label,
        waiting=waiting,
        look_again=look_again,
        condition=Condition(status=status, reason=reason.value, message=message),
        warn=warn,
        event=event,
    )


def _expired(wishes: Wishes, waiting: Waiting, *, now: float) -> bool:
    """Section 13: the slots have waited for the label for as long as the setting says."""
    return wishes.patience is not None and now - waiting.since >= wishes.patience


def _left(wishes: Wishes, waiting: Waiting, *, now: float) -> float | None:
    return None if wishes.patience is None else max(0.0, waiting.since + wishes.patience - now)


def _until(wishes: Wishes, *, reads_unlabelled: bool) -> str:
    """How long the slots wait; no countdown, so that the condition changes only with its cause."""
    if not wishes.slots:
        return ""
    if not reads_unlabelled or wishes.patience is None:
        return "; no slots until then"
    return f"; no slots for up to {wishes.patience:g} s"
