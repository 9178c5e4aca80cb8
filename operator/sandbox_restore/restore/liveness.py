"""Could a pod be hosting a live VM? (domain.md section 15)

PURE. Everything is taken as alive unless a read from the API server proves otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from sandbox_restore.model.names import OUT_OF_SERVICE_TAINT
from sandbox_restore.model.node import NodeFacts
from sandbox_restore.model.pod import PodFacts

NODE_READY_MARGIN = timedelta(seconds=30)
"""On top of the pod's grace period: section 15."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSighting:
    """What the API server answers for a node name: a Node, or nothing since some time."""

    name: str
    node: NodeFacts | None
    absent_since: datetime | None = None
    """When it was first seen absent by this process; None: not known to be absent before now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether the pod may host a live VM, with the reason in words a person can act on."""

    may_be_alive: bool
    why: str
    recheck_at: datetime | None = None
    """When time alone could turn the verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundPod:
    """The part of a pod's life that its node decides, whether or not its object still exists."""

    name: str
    node_name: str
    node_uid: str | None
    scheduled_at: datetime | None
    grace_seconds: int
    ended_at: datetime | None
    """When it became terminal or was first seen gone; None while it is neither."""


def could_host(
    pod: PodFacts,
    sighting: NodeSighting | None,
    *,
    now: datetime,
    gone_grace: timedelta,
    node_uid: str | None = None,
    seen_terminal: datetime | None = None,
) -> Verdict:
    """Section 15, "A pod could be hosting a live VM", for a pod whose object exists.

    `sighting` is the node named by the pod, needed only when the pod alone proves nothing;
    `node_uid` is the node's UID as the execution recorded it, when it did. `seen_terminal` is when
    this process first saw the pod terminal: no time in its status is an upper bound of its end.
    """
    if not pod.bound:
        if pod.deleting:
            return Verdict(may_be_alive=False, why="never bound and being deleted")
        return Verdict(may_be_alive=True, why=f"pod {pod.name} is not bound yet and may be")
    if pod.terminal and pod.runner_end is not None and pod.runner_end.is_report:
        return Verdict(may_be_alive=False, why="its kubelet reported the runner terminated")
    assert pod.node_name is not None
    return node_decides(
        BoundPod(
            name=pod.name,
            node_name=pod.node_name,
            node_uid=node_uid,
            scheduled_at=pod.scheduled_at,
            grace_seconds=pod.grace_seconds,
            ended_at=(seen_terminal or now) if pod.terminal else None,
        ),
        sighting,
        now=now,
        gone_grace=gone_grace,
    )


def node_decides(
    pod: BoundPod, sighting: NodeSighting | None, *, now: datetime, gone_grace: timedelta
) -> Verdict:
    """Section 15, third proof: the node, by name and UID, decides."""
    node = sighting.node if sighting is not None else None
    if sighting is None:
        return Verdict(may_be_alive=True, why=f"node {pod.node_name} was not read")
    if node is None:
        return _absent(pod, sighting.absent_since or now, now=now, gone_grace=gone_grace)
    if _replaced(pod, node):
        gone = _absent(pod, node.created, now=now, gone_grace=gone_grace)
        if gone.may_be_alive:
            return gone
        # Another UID is another machine, which has taken the name, or the same one registered
        # again, its pods still running. So the new Node is asked as well.
    if any(t.key == OUT_OF_SERVICE_TAINT for t in node.taints):
        return Verdict(may_be_alive=False, why=f"node {node.name} is marked out of service")
    if not node.ready or node.ready_since is None:
        ended = "has not ended" if pod.ended_at is None else "ended without its kubelet's report"
        return Verdict(
            may_be_alive=True,
            why=(
                f"pod {pod.name} {ended} and node {node.name} is not Ready: when the node is dead "
                f"for good, taint it {OUT_OF_SERVICE_TAINT} or delete its Node object"
            ),
        )
    if pod.ended_at is None:
        return Verdict(
            may_be_alive=True, why=f"pod {pod.name} is on node {node.name} and has not ended"
        )
    clear_at = (
        max(node.ready_since, pod.ended_at)
        + timedelta(seconds=pod.grace_seconds)
        + NODE_READY_MARGIN
    )
    if now >= clear_at:
        return Verdict(
            may_be_alive=False, why=f"node {node.name} has been Ready long enough since it ended"
        )
    return Verdict(
        may_be_alive=True,
        why=f"pod {pod.name} ended without its kubelet's report; node {node.name} is watched "
        f"until {clear_at:%H:%M:%S} UTC",
        recheck_at=clear_at,
    )


def _replaced(pod: BoundPod, node: NodeFacts) -> bool:
    """Another UID under the same name: the pod's Node is absent, its machine perhaps not.

    Without a recorded UID the clocks tell: a Node made after the pod was bound is another one
    (both times are the API server's own, in whole seconds).
    """
    if pod.node_uid is not None:
        return node.uid != pod.node_uid
    return pod.scheduled_at is not None and node.created > pod.scheduled_at


def _absent(pod: BoundPod, since: datetime, *, now: datetime, gone_grace: timedelta) -> Verdict:
    gone_at = since + gone_grace
    if now >= gone_at:
        return Verdict(
            may_be_alive=False,
            why=f"node {pod.node_name} has been absent for {int(gone_grace.total_seconds())} s",
        )
    return Verdict(
        may_be_alive=True,
        why=f"node {pod.node_name} of pod {pod.name} is absent since {since:%H:%M:%S} UTC and "
        f"counts as gone at {gone_at:%H:%M:%S} UTC",
        recheck_at=gone_at,
    )
