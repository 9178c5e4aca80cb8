"""What a simulated node is, and its Node object."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from typing import Any, Literal

from tests.support.testbed.gomodules import KUBERNETES_VERSION

SLOTS_RESOURCE = "space.pplx.net/network-slots"
"""Extended resource that every simulated node offers unless its spec says otherwise."""

DEFAULT_ALLOCATABLE: Mapping[str, str] = {
    "cpu": "32",
    "memory": "64Gi",
    "pods": "110",
    SLOTS_RESOURCE: "100",
}
"""Allocatable resources of a node whose spec does not name them."""

HEARTBEAT_LABEL = "kwok.x-k8s.io/node"
"""Label by which kwok knows the nodes whose lease it renews. A label, not an annotation: kwok asks
the API server to select by it, so taking it off ends the heartbeats; an annotation would be looked
at only when the node is first seen."""

HEARTBEAT_VALUE = "fake"
"""Value of HEARTBEAT_LABEL on a node that kwok keeps alive."""

NOT_READY_TAINT = "node.kubernetes.io/not-ready"
"""Taint that a new node carries until the node lifecycle controller has seen it Ready."""


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint as in `Node.spec.taints`."""

    key: str
    _: KW_ONLY
    value: str = ""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] = "NoSchedule"


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A simulated node.

    - `labels` and `annotations` are added to those that every kubelet sets (host name, OS, CPU
      architecture) and win over them.
    - `allocatable` is laid over DEFAULT_ALLOCATABLE; None takes a resource off. Capacity is equal.
    - `ready` is the status of its Ready condition; it stays what it is until a test changes it.
    - `heartbeats` has kwok renew the node's lease. Without them the node lifecycle controller sets
      Ready to Unknown once `node_grace` of the control plane has passed (50 s unless told
      otherwise), whatever the test posts as Ready in between: it goes by lease and status changes.
    """

    name: str
    _: KW_ONLY
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    taints: Sequence[Taint] = ()
    unschedulable: bool = False
    allocatable: Mapping[str, str | None] = field(default_factory=dict)
    ready: bool = True
    heartbeats: bool = True


def ready_condition(*, ready: bool, now: datetime) -> dict[str, str]:
    """Return the Ready condition of a simulated node that turned so at `now` (aware)."""
    moment = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "type": "Ready",
        "status": "True" if ready else "False",
        "reason": "KubeletReady" if ready else "KubeletNotReady",
        "message": "simulated node is ready" if ready else "simulated node is not ready",
        "lastHeartbeatTime": moment,
        "lastTransitionTime": moment,
    }


def node_manifest(spec: NodeSpec, *, now: datetime) -> dict[str, Any]:
    """Return the Node object to POST for `spec`, status included, as a kubelet would register it.

    `now` (aware) is the time of its conditions.
    """
    labels = {
        "kubernetes.io/hostname": spec.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
    }
    if spec.heartbeats:
        labels[HEARTBEAT_LABEL] = HEARTBEAT_VALUE
    labels.update(spec.labels)
    # The node lifecycle controller would add these with a patch for each node.
    for name in ("os", "arch"):
        labels.setdefault(f"beta.kubernetes.io/{name}", labels[f"kubernetes.io/{name}"])
    merged = {**DEFAULT_ALLOCATABLE, **spec.allocatable}
    resources = {name: value for name, value in merged.items() if value is not None}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": spec.name,
            "labels": labels,
            "annotations": dict(spec.annotations),
        },
        "spec": {
            "unschedulable": spec.unschedulable,
            "taints": [
                {"key": taint.key, "value": taint.value, "effect": taint.effect}
                for taint in spec.taints
            ],
        },
        "status": {
            "allocatable": resources,
            "capacity": resources,
            "addresses": [{"type": "Hostname", "address": spec.name}],
            "conditions": [
                ready_condition(ready=spec.ready, now=now),
                *(_quiet_condition(kind, now=now) for kind in _QUIET_CONDITIONS),
            ],
            "nodeInfo": _NODE_INFO,
        },
    }


def is_settled(node: Mapping[str, Any]) -> bool:
    """Tell whether a Node object is Ready and free of the not-ready taint."""
    conditions = node.get("status", {}).get("conditions") or ()
    taints = node.get("spec", {}).get("taints") or ()
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
    return ready and all(taint["key"] != NOT_READY_TAINT for taint in taints)


_QUIET_CONDITIONS = ("MemoryPressure", "DiskPressure", "PIDPressure")

_NODE_INFO = {
    "architecture": "amd64",
    "bootID": "",
    "containerRuntimeVersion": "simulated://1",
    "kernelVersion": "6.1.0",
    "kubeProxyVersion": "",
    "kubeletVersion": KUBERNETES_VERSION,
    "machineID": "",
    "operatingSystem": "linux",
    "osImage": "simulated",
    "systemUUID": "",
}


def _quiet_condition(kind: str, *, now: datetime) -> dict[str, str]:
    """Return a condition of type `kind` that reports no pressure."""
    moment = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "type": kind,
        "status": "False",
        "reason": "NoPressure",
        "message": "simulated node has enough",
        "lastHeartbeatTime": moment,
        "lastTransitionTime": moment,
    }
