"""Kubernetes JSON to facts: only what decisions need, from raw bytes or parsed bodies."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Struct, field

from sandbox_restore.model import names
from sandbox_restore.model.node import NodeFacts, Taint
from sandbox_restore.model.pod import PodFacts, RunnerEnd
from sandbox_restore.model.restore import Restore, RestoreSpec, RestoreStatus

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class _Owner(Struct, rename="camel"):
    uid: str = ""


class _Meta(Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    owner_references: list[_Owner] = field(default_factory=list)
    finalizers: list[str] = field(default_factory=list)


class _NodeMeta(Struct, rename="camel"):
    """Metadata of a node: annotations are large there and nothing decides on them."""

    name: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    labels: dict[str, str] = field(default_factory=dict)


class _Condition(Struct, rename="camel"):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None


class _Taint(Struct):
    key: str = ""
    value: str = ""
    effect: str = ""


class _NodeSpec(Struct):
    taints: list[_Taint] | None = None
    unschedulable: bool = False


class _NodeStatus(Struct):
    conditions: list[_Condition] | None = None
    allocatable: dict[str, Any] | None = None


class _Node(Struct):
    metadata: _NodeMeta
    spec: _NodeSpec = field(default_factory=_NodeSpec)
    status: _NodeStatus = field(default_factory=_NodeStatus)


class _Gate(Struct):
    name: str = ""


class _NodeSelector(Struct, rename="camel"):
    node_selector_terms: list[dict[str, Any] | None] | None = None


class _NodeAffinity(Struct):
    required: _NodeSelector | None = field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )


class _Affinity(Struct, rename="camel"):
    node_affinity: _NodeAffinity | None = None


class _PodSpec(Struct, rename="camel"):
    node_name: str | None = None
    affinity: _Affinity | None = None
    termination_grace_period_seconds: int | None = None
    scheduling_gates: list[_Gate] | None = None


class _Terminated(Struct, rename="camel"):
    exit_code: int = 0
    reason: str = ""
    message: str = ""
    started_at: datetime | None = None
    finished_at: datetime | None = None


class _ContainerState(Struct):
    running: dict[str, Any] | None = None
    terminated: _Terminated | None = None


class _ContainerStatus(Struct, rename="camel"):
    name: str = ""
    started: bool | None = None
    state: _ContainerState = field(default_factory=_ContainerState)


class _PodStatus(Struct, rename="camel"):
    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    nominated_node_name: str | None = None
    conditions: list[_Condition] | None = None
    container_statuses: list[_ContainerStatus] | None = None


class _Pod(Struct):
    metadata: _Meta
    spec: _PodSpec = field(default_factory=_PodSpec)
    status: _PodStatus = field(default_factory=_PodStatus)


class _Restore(Struct):
    metadata: _Meta
    spec: RestoreSpec
    status: RestoreStatus = RestoreStatus()


class ListMeta(Struct, rename="camel"):
    """`metadata` of a list: where it stands and how to go on."""

    resource_version: str = ""
    continue_: str = field(default="", name="continue")


class NodeList(Struct):
    """One page of nodes."""

    metadata: ListMeta
    items: list[_Node]


class PodList(Struct):
    """One page of pods."""

    metadata: ListMeta
    items: list[_Pod]


class RestoreList(Struct):
    """One page of SandboxRestores, not decoded yet: one that an older CRD let in stops no list."""

    metadata: ListMeta
    items: list[msgspec.Raw]


class _AnyList(Struct):
    metadata: ListMeta


_any_list = msgspec.json.Decoder(_AnyList).decode


def list_version(raw: bytes) -> int:
    """The resource version that a list shows."""
    return _integer(_any_list(raw).metadata.resource_version)


node_list = msgspec.json.Decoder(NodeList).decode
pod_list = msgspec.json.Decoder(PodList).decode
restore_list = msgspec.json.Decoder(RestoreList).decode
_node_json = msgspec.json.Decoder(_Node).decode
_pod_json = msgspec.json.Decoder(_Pod).decode
_restore_json = msgspec.json.Decoder(_Restore).decode


def _integer(quantity: object) -> int:
    """An extended resource is a whole number; anything else counts as none."""
    text = str(quantity)
    return int(text) if text.isdigit() else 0


def node_facts(node: _Node) -> NodeFacts:
    """The facts of one decoded node."""
    meta, spec, status = node.metadata, node.spec, node.status
    conditions = {c.type: c for c in status.conditions or ()}
    ready = conditions.get("Ready")
    services = conditions.get(names.NODE_SERVICES_READY)
    is_ready = ready is not None and ready.status == "True"
    return NodeFacts(
        name=meta.name,
        uid=meta.uid,
        created=meta.creation_timestamp or _EPOCH,
        labels=meta.labels,
        taints=tuple(Taint(t.key, t.value, t.effect) for t in spec.taints or ()),
        unschedulable=spec.unschedulable,
        deleting=meta.deletion_timestamp is not None,
        ready=is_ready,
        ready_since=ready.last_transition_time if ready is not None and is_ready else None,
        services_ready=services is not None and services.status == "True",
        network_slots=_integer((status.allocatable or {}).get(names.NETWORK_SLOTS, 0)),
        resource_version=_integer(meta.resource_version),
    )


def _has_run(ended: _Terminated) -> bool:
    """A container that its runtime could not start is reported terminated all the same."""
    if ended.reason in ("StartError", "ContainerCannotRun"):
        return False
    return ended.started_at is not None and ended.started_at > _EPOCH


def _runner_end(pod: _Pod) -> tuple[bool, RunnerEnd | None]:
    """Whether the runner was ever reported started, and its end as reported."""
    for status in pod.status.container_statuses or ():
        if status.name != names.RUNNER_CONTAINER:
            continue
        ended = status.state.terminated
        if ended is None:
            return status.state.running is not None or bool(status.started), None
        end = RunnerEnd(
            exit_code=ended.exit_code,
            reason=ended.reason,
            message=ended.message,
            finished=ended.finished_at,
        )
        return end.is_report and _has_run(ended), end
    return False, None


def _required_terms(spec: _PodSpec) -> tuple[dict[str, Any], ...] | None:
    """What the pod requires of its node; a bound one has its node, and nobody asks any more."""
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    required = affinity.required if affinity is not None else None
    if required is None or spec.node_name:
        return None
    return tuple(term or {} for term in required.node_selector_terms or ())


def pod_facts(pod: _Pod) -> PodFacts:
    """The facts of one decoded pod."""
    meta, spec, status = pod.metadata, pod.spec, pod.status
    conditions = {c.type: c for c in status.conditions or ()}
    scheduled = conditions.get("PodScheduled")
    ready = conditions.get("Ready")
    disruption = conditions.get("DisruptionTarget")
    started, end = _runner_end(pod)
    grace = spec.termination_grace_period_seconds
    return PodFacts(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
        created=meta.creation_timestamp or _EPOCH,
        labels=meta.labels,
        annotations=meta.annotations,
        owner_uids=tuple(o.uid for o in meta.owner_references),
        finalizers=tuple(meta.finalizers),
        gates=tuple(g.name for g in spec.scheduling_gates or ()),
        node_name=spec.node_name or None,
        scheduled_at=(
            scheduled.last_transition_time
            if scheduled is not None and scheduled.status == "True"
            else None
        ),
        unschedulable_message=(
            scheduled.message
            if scheduled is not None and scheduled.reason == "Unschedulable"
            else ""
        ),
        nominated_node=status.nominated_node_name or None,
        required_terms=_required_terms(spec),
        deleted_at=meta.deletion_timestamp,
        grace_seconds=30 if grace is None else grace,
        phase=status.phase,
        reason=status.reason,
        message=status.message,
        disruption_target=(
            disruption.reason if disruption is not None and disruption.status == "True" else None
        ),
        ready=ready is not None and ready.status == "True",
        runner_started=started,
        runner_end=end,
    )


def restore_record(restore: _Restore) -> Restore:
    """The record of one decoded SandboxRestore."""
    meta = restore.metadata
    return Restore(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
        generation=meta.generation,
        created=meta.creation_timestamp or _EPOCH,
        deleting=meta.deletion_timestamp is not None,
        spec=restore.spec,
        status=restore.status,
    )


def node_from_json(raw: bytes) -> NodeFacts:
    """A Node as the API server sent it."""
    return node_facts(_node_json(raw))


def pod_from_json(raw: bytes) -> PodFacts:
    """A Pod as the API server sent it."""
    return pod_facts(_pod_json(raw))


def restore_from_json(raw: bytes) -> Restore:
    """A SandboxRestore as the API server sent it."""
    return restore_record(_restore_json(raw))


def node_from_body(body: Mapping[str, Any]) -> NodeFacts:
    """A Node as a parsed body."""
    return node_facts(msgspec.convert(body, _Node))


def pod_from_body(body: Mapping[str, Any]) -> PodFacts:
    """A Pod as a parsed body."""
    return pod_facts(msgspec.convert(body, _Pod))


def restore_from_body(body: Mapping[str, Any]) -> Restore:
    """A SandboxRestore as a parsed body.

    Raises `msgspec.ValidationError` for an object that an older CRD let in.
    """
    return restore_record(msgspec.convert(body, _Restore))
