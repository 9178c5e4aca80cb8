"""What the operator knows of a Node object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True, order=True)
class Taint:
    """One taint of a node; `effect` is `NoSchedule`, `PreferNoSchedule` or `NoExecute`."""

    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """One Node object, reduced to what decisions need. All times are UTC."""

    name: str
    uid: str
    created: datetime
    """`metadata.creationTimestamp`: whole seconds."""
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    """`spec.unschedulable` (cordoned)."""
    deleting: bool = False
    """`metadata.deletionTimestamp` is set."""
    ready: bool = False
    """Condition `Ready` is `True`."""
    ready_since: datetime | None = None
    """Last transition of condition `Ready`, when it is `True`."""
    services_ready: bool = False
    """Condition `space.pplx.net/NodeServicesReady` is `True` (section 2: node services)."""
    network_slots: int = 0
    """Allocatable `space.pplx.net/network-slots`; reported, never judged (section 7)."""
    resource_version: int = 0
    """`metadata.resourceVersion` as a number, to tell a late event from a new one; 0: not known."""
