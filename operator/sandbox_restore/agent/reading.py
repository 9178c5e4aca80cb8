"""Kubernetes JSON to and from the agent's records; nothing is decided here."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from sandbox_restore.agent.state import Condition, NodeSeen, Plan
from sandbox_restore.model.names import GROUP, NETWORK_SLOTS

CONDITION: Final = f"{GROUP}/HostCpuPublished"
"""Type of the Node's condition: True when the label is right and the slots are advertised."""

CONTROLLER: Final = f"{GROUP}/node-agent"
_LONGEST_NOTE: Final = 1024
"""Bytes that an Event's note may have; a condition's message is kept as short."""


def node_seen(body: Mapping[str, Any]) -> NodeSeen:
    """A Node as JSON gives it."""
    metadata, status = body["metadata"], body.get("status") or {}
    slots = str((status.get("allocatable") or {}).get(NETWORK_SLOTS, "0"))
    ours = next((c for c in status.get("conditions") or () if c.get("type") == CONDITION), None)
    return NodeSeen(
        name=metadata["name"],
        uid=metadata["uid"],
        labels=metadata.get("labels") or {},
        # A quantity in another form (1k) is not zero, which is all that is asked of it.
        slots_shown=int(slots) if slots.isdigit() else 1,
        deleting=metadata.get("deletionTimestamp") is not None,
        condition=None
        if ours is None
        else Condition(
            status=ours.get("status", ""),
            reason=ours.get("reason", ""),
            message=ours.get("message", ""),
        ),
    )


def cut(text: str) -> str:
    """One line that fits into an Event and a condition."""
    line = " ".join(text.split())
    encoded = line.encode()
    if len(encoded) <= _LONGEST_NOTE:
        return line
    return encoded[: _LONGEST_NOTE - 3].decode(errors="ignore") + "…"


def condition_body(
    condition: Condition, *, before: Condition | None, now: datetime
) -> dict[str, Any]:
    """The condition to write; the transition time moves only with the status."""
    stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    body = {
        "type": CONDITION,
        "status": condition.status,
        "reason": condition.reason,
        "message": condition.message,
        "lastHeartbeatTime": stamp,
    }
    if before is None or before.status != condition.status:
        body["lastTransitionTime"] = stamp
    return body


def event_body(
    plan: Plan, *, node: NodeSeen, name: str, instance: str, now: datetime
) -> dict[str, Any]:
    """An Event on the Node that tells the plan's reason."""
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": "default"},
        "eventTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "reportingController": CONTROLLER,
        "reportingInstance": instance,
        "action": "PublishHostCpu",
        "reason": plan.reason.value,
        "type": "Warning" if plan.warn else "Normal",
        "note": cut(plan.message),
        "regarding": {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid},
    }
