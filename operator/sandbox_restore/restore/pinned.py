"""Can the pinned node load the snapshot? Half of condition 1 (domain.md section 10). PURE."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sandbox_restore.fleet.cpu import label_cpu
from sandbox_restore.model.sandbox import (
    Execution,
    ExecutionState,
    LoadObservation,
    LoadResult,
    SandboxView,
    Snapshot,
    Source,
)
from sandbox_restore.restore.blocked import Reason
from sandbox_restore.restore.failure import FailureClass
from sandbox_restore.restore.liveness import NodeSighting


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaders:
    """What the fleet says of the nodes that can load one snapshot, for one restore."""

    warm: bool
    """The node index is complete; a redirect never acts on a cold one (section 8)."""
    capture_cpu: str | None = None
    """None: not known (section 6)."""
    known: frozenset[str] = frozenset()
    """Every CPU that can load the snapshot, in the fleet or not."""
    able: int = 0
    """Reachable nodes whose label is one of those and that have not refused the capture."""
    reachable: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedNode:
    """Whether the pinned node can load the snapshot, as far as is known."""

    cannot_load: bool
    reason: str
    message: str
    recheck_at: datetime | None = None
    """When time alone could turn it."""


def pinned_node(
    sighting: NodeSighting | None,
    *,
    name: str,
    snapshot: Snapshot | None,
    loaders: Loaders,
    view: SandboxView,
    own: tuple[Execution, ...],
    now: datetime,
    gone_grace: timedelta,
    observation_ttl: timedelta,
    cpu_label: str,
) -> PinnedNode:
    """First half of condition 1: the pinned node cannot load the snapshot.

    It cannot when its label is a usable CPU that is no loader; when this Node (name and UID)
    refused this snapshot, whatever its label; when its Node object has been absent for longer than
    the grace period; or when what it held turned out to be missing or unreadable.
    `own`: the restore's executions.
    """
    node = sighting.node if sighting is not None else None
    if not loaders.warm or sighting is None:
        return PinnedNode(
            cannot_load=False,
            reason=Reason.COLD_CACHE,
            message="the operator has not read all nodes yet",
        )
    if node is None:
        return _absent(sighting, name, now=now, gone_grace=gone_grace)
    what = f"snapshot {snapshot.id}" if snapshot is not None else "what was captured"
    refusal = _refusal(view, snapshot, name, node.uid, since=now - observation_ttl)
    if refusal is not None:
        return PinnedNode(
            cannot_load=True,
            reason="PinnedNodeRefused",
            message=f"pinned node {name} refused {what} as CPU-incompatible at "
            f"{refusal.observed_at:%Y-%m-%d %H:%M:%S} UTC",
        )
    cpu = label_cpu(node.labels, key=cpu_label)
    if cpu is not None and loaders.capture_cpu is not None and cpu not in loaders.known:
        return PinnedNode(
            cannot_load=True,
            reason="PinnedNodeCpuIncompatible",
            message=f"pinned node {name} has CPU {cpu}, which cannot load {what}, captured on "
            f"{loaders.capture_cpu}",
        )
    damage = _damage(view, own, snapshot, name)
    if damage is not None:
        return PinnedNode(
            cannot_load=True,
            reason="LocalStateUnusable",
            message=f"what pinned node {name} held of {what} is {damage.failure_class}",
        )
    if loaders.capture_cpu is None:
        reason = Reason.CAPTURE_CPU_UNKNOWN
        words = f"the CPU on which {what} was captured is not known"
    elif cpu is None:
        reason = Reason.PINNED_NODE_CPU_UNKNOWN
        words = f"pinned node {name} has no usable host-CPU label and has not refused {what}"
    else:
        reason = Reason.PINNED_NODE_CAN_LOAD
        words = f"pinned node {name} has CPU {cpu}, which can load {what}"
    return PinnedNode(cannot_load=False, reason=reason, message=words)


def _absent(
    sighting: NodeSighting, name: str, *, now: datetime, gone_grace: timedelta
) -> PinnedNode:
    since = sighting.absent_since or now
    gone_at = since + gone_grace
    if now >= gone_at:
        return PinnedNode(
            cannot_load=True,
            reason="PinnedNodeGone",
            message=f"pinned node {name} has been absent since {since:%Y-%m-%d %H:%M:%S} UTC",
        )
    return PinnedNode(
        cannot_load=False,
        reason=Reason.PINNED_NODE_ABSENT,
        message=f"pinned node {name} is absent since {since:%H:%M:%S} UTC and counts as gone at "
        f"{gone_at:%H:%M:%S} UTC",
        recheck_at=gone_at,
    )


def _refusal(
    view: SandboxView, snapshot: Snapshot | None, name: str, uid: str, *, since: datetime
) -> LoadObservation | None:
    if snapshot is None:
        return None
    return next(
        (
            o
            for o in fresh_refusals(view, since=since)
            if (o.snapshot_id, o.node_name, o.node_uid) == (snapshot.id, name, uid)
        ),
        None,
    )


def fresh_refusals(view: SandboxView, *, since: datetime) -> tuple[LoadObservation, ...]:
    """Section 11: refusals that have not aged out, newest first."""
    return tuple(
        o
        for o in view.refusals
        if o.result is LoadResult.CPU_INCOMPATIBLE and o.observed_at >= since
    )


_DAMAGED: Final = (FailureClass.MISSING.value, FailureClass.UNREADABLE.value)


def _damage(
    view: SandboxView, own: tuple[Execution, ...], snapshot: Snapshot | None, name: str
) -> Execution | None:
    """Section 11: a local-only attempt that found its files missing or unreadable."""
    newest = (view.newest,) if view.newest is not None else ()
    return next(
        (
            e
            for e in (*newest, *reversed(own))
            if e.source is Source.LOCAL
            and e.state is ExecutionState.RETIRED
            and e.loaded_at is None
            and e.failure_class in _DAMAGED
            and e.target_node == name
            and snapshot is not None
            and e.snapshot_id == snapshot.id
        ),
        None,
    )
