"""What the operator knows of a restore pod."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerEnd:
    """A `terminated` state of the runner container as its kubelet reported it."""

    exit_code: int
    reason: str
    message: str
    """The termination message (domain.md section 11); empty when the runner left none."""
    finished: datetime | None

    @property
    def is_report(self) -> bool:
        """`ContainerStatusUnknown` is written by a kubelet that lost the container: no report."""
        return self.reason != "ContainerStatusUnknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFacts:
    """One Pod object, reduced to what decisions need. All times are UTC."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    created: datetime
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    owner_uids: tuple[str, ...] = ()
    finalizers: tuple[str, ...] = ()
    gates: tuple[str, ...] = ()
    """Names in `spec.schedulingGates`."""
    node_name: str | None = None
    scheduled_at: datetime | None = None
    """Last transition of condition `PodScheduled` when it is `True`."""
    unschedulable_message: str = ""
    """kube-scheduler's words when `PodScheduled` is `False` with reason `Unschedulable`."""
    nominated_node: str | None = None
    """`status.nominatedNodeName`: kube-scheduler makes room for the pod there."""
    required_terms: tuple[Mapping[str, Any], ...] | None = None
    """The required node-selector terms as JSON, of an unbound pod only; None: it has none."""
    deleted_at: datetime | None = None
    """`metadata.deletionTimestamp`; for a bound pod this lies a grace period in the future."""
    grace_seconds: int = 30
    """`spec.terminationGracePeriodSeconds`."""
    phase: str = "Pending"
    reason: str = ""
    """`status.reason`, such as `Evicted` or `NodeAffinity`."""
    message: str = ""
    disruption_target: str | None = None
    """Reason of condition `DisruptionTarget` when it is `True`."""
    ready: bool = False
    """Condition `Ready` is `True`: the runner has loaded the snapshot (runner contract)."""
    runner_started: bool = False
    """The runner container was ever reported running or terminated by its kubelet."""
    runner_end: RunnerEnd | None = None

    @property
    def deleting(self) -> bool:
        return self.deleted_at is not None

    @property
    def bound(self) -> bool:
        return self.node_name is not None

    @property
    def terminal(self) -> bool:
        return self.phase in ("Succeeded", "Failed")
