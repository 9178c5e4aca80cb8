"""Restore pods for the tests of the simulated nodes, as the operator renders them in essence."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

FENCE = "space.pplx.net/fence"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSpec:
    """What varies between the pods of these tests."""

    name: str
    sandbox: str = "sb-1"
    snapshot: str = "snap-1"
    source: str = "storage"
    node: str | None = None
    """Bind it there at once, past the scheduler."""
    fenced: bool = True
    plan: str | None = None
    """The plan as text, instead of one made from the rest."""
    annotations: dict[str, str] = field(default_factory=dict)
    grace_seconds: int = 30


def manifest(spec: PodSpec) -> dict[str, Any]:
    """Return the pod to POST."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": spec.name,
            "namespace": "default",
            "labels": {"space.pplx.net/sandbox": spec.sandbox},
            "annotations": spec.annotations,
            "finalizers": [FENCE] if spec.fenced else [],
        },
        "spec": {
            "restartPolicy": "Never",
            "nodeName": spec.node,
            "terminationGracePeriodSeconds": spec.grace_seconds,
            "automountServiceAccountToken": False,
            "containers": [
                {
                    "name": "runner",
                    "image": "example.com/runner:1",
                    "env": [{"name": "SANDBOX_RESTORE_PLAN", "value": spec.plan or plan(spec)}],
                    "resources": {"requests": {"space.pplx.net/network-slots": "1"}}
                    | {"limits": {"space.pplx.net/network-slots": "1"}},
                }
            ],
        },
    }


def plan(spec: PodSpec) -> str:
    """Return the plan that the operator would give to the pod's runner."""
    return json.dumps(
        {
            "version": 1,
            "sandboxId": spec.sandbox,
            "snapshotId": spec.snapshot,
            "source": spec.source,
            "storageUri": f"s3://bucket/{spec.snapshot}" if spec.source == "storage" else None,
            "attempt": 1,
            "executionId": f"exec-{spec.name}",
            "restore": {"name": f"wake-{spec.name}", "namespace": "default", "uid": "uid-1"},
        }
    )
