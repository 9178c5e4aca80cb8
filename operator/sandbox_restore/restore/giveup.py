"""When a row that a stuck restore left pinned loses its marker (domain.md section 10). PURE."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from sandbox_restore.model.node import NodeFacts
from sandbox_restore.model.sandbox import (
    Execution,
    Outcome,
    SandboxState,
    SandboxView,
    Source,
)
from sandbox_restore.restore.failure import FailureClass
from sandbox_restore.restore.liveness import NodeSighting


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Why a marker is given up."""

    node: str
    execution_id: str
    why: str


def give_up(
    view: SandboxView,
    sighting: NodeSighting | None,
    *,
    now: datetime,
    gone_grace: timedelta,
    drain_marks: Collection[str],
) -> Evidence | None:
    """The evidence on which the marker is cleared, or None: it stays.

    Only a row that a stuck restore left pinned loses it, and only when its node is being drained
    away or is gone. `sighting` is the pinned node as read from the API server.
    """
    row, newest = view.sandbox, view.newest
    if not row.local_artifact_marker or row.pinned_node is None or sighting is None:
        return None
    if newest is None or not left_pinned(view, newest):
        return None
    why = _gone(sighting, now=now, gone_grace=gone_grace)
    if why is None and newest.outcome is not Outcome.LOST and sighting.node is not None:
        # What a `lost` attempt may have run on a node that still is, the node may still hold.
        why = drained_away(sighting.node, drain_marks)
    if why is None:
        return None
    return Evidence(node=row.pinned_node, execution_id=newest.id, why=why)


def left_pinned(view: SandboxView, newest: Execution) -> bool:
    """Section 10, "left pinned by a stuck restore": that attempt set the pin, and no execution
    that ran there is the newest to have loaded."""
    row, loaded = view.sandbox, view.newest_loaded
    if row.state not in (SandboxState.RESTORING, SandboxState.FAILED):
        return False
    if loaded is not None and loaded.node_name == row.pinned_node:
        return False
    return (
        newest.source is Source.STORAGE
        and not newest.active
        and newest.loaded_at is None
        and newest.node_name == row.pinned_node
        and newest.prior_pin != row.pinned_node
        and (
            newest.outcome is Outcome.LOST
            or newest.failure_class == FailureClass.CPU_INCOMPATIBLE.value
        )
    )


def drained_away(node: NodeFacts, drain_marks: Collection[str]) -> str | None:
    """A taint or a label says that the node is being drained away; a cordon alone does not."""
    for key in drain_marks:
        if key in node.labels:
            return f"node {node.name} is being drained away (label {key})"
        if any(t.key == key for t in node.taints):
            return f"node {node.name} is being drained away (taint {key})"
    return None


def _gone(sighting: NodeSighting, *, now: datetime, gone_grace: timedelta) -> str | None:
    """Its Node object has been absent for longer than the grace period. A Node of that name that
    is there, whatever its state, is not gone."""
    since = sighting.absent_since
    if sighting.node is not None or since is None or now < since + gone_grace:
        return None
    return f"node {sighting.name} is gone: no Node object since {since:%Y-%m-%d %H:%M:%S} UTC"
