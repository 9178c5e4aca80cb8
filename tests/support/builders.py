"""Small records for tests of the planner: each names only what the test is about."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sandbox_restore.model import names
from sandbox_restore.model.node import NodeFacts
from sandbox_restore.model.pod import PodFacts, RunnerEnd
from sandbox_restore.model.restore import Condition, Restore, RestoreSpec, RestoreStatus
from sandbox_restore.model.sandbox import (
    Execution,
    ExecutionState,
    LoadObservation,
    LoadResult,
    Sandbox,
    SandboxState,
    SandboxView,
    Snapshot,
    Source,
)
from sandbox_restore.restore.liveness import NodeSighting
from sandbox_restore.restore.world import World

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
SANDBOX = "sb-1"
NAMESPACE = "team-a"


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def restore(uid: str = "r1", *, status: dict[str, Any] | None = None, **spec: Any) -> Restore:
    meta = {k: spec.pop(k) for k in ("namespace", "created", "deleting") if k in spec}
    return Restore(
        namespace=meta.get("namespace", NAMESPACE),
        name=f"wake-{uid}",
        uid=uid,
        resource_version="1",
        generation=1,
        created=meta.get("created", ago(10)),
        deleting=meta.get("deleting", False),
        spec=RestoreSpec(sandbox_id=SANDBOX, **spec),
        status=RestoreStatus(**(status or {})),
    )


def finished(
    uid: str = "r1", *, succeeded: bool = True, completed: datetime | None = None, **spec: Any
) -> Restore:
    condition = Condition(
        type="Succeeded",
        status=str(succeeded),
        last_transition_time=ago(5),
        reason="SnapshotLoaded" if succeeded else "BackoffLimitExceeded",
    )
    status = {"conditions": [condition], "completion_time": completed or ago(5)}
    return restore(uid, status=status, **spec)


def snapshot(uid: str = "s1", **fields: Any) -> Snapshot:
    given = {"captured_at": ago(3600), "storage_uri": f"s3://snapshots/{uid}", **fields}
    return Snapshot(id=uid, sandbox_id=SANDBOX, **given)


def execution(uid: str = "e1", **fields: Any) -> Execution:
    given: dict[str, Any] = {
        "source": Source.STORAGE,
        "state": ExecutionState.ACTIVE,
        "snapshot_id": "s1",
        "restore_uid": "r1",
        "restore_name": "wake-r1",
        "attempt": 1,
        "pod_name": "wake-r1-1",
        "created_at": ago(8),
        **fields,
    }
    if given.get("outcome") is not None:
        given.setdefault("retired_at", ago(60))
        given["state"] = ExecutionState.RETIRED
    return Execution(id=uid, sandbox_id=SANDBOX, **given)


def view(
    *,
    row: dict[str, Any] | None = None,
    snapshots: Sequence[Snapshot] | None = None,
    active: Execution | None = None,
    attempts: Sequence[Execution] = (),
    newest: Execution | None = None,
    newest_loaded: Execution | None = None,
    refusals: Sequence[LoadObservation] = (),
) -> SandboxView:
    fields: dict[str, Any] = {"namespace": NAMESPACE, "state": SandboxState.SUSPENDED}
    if active is not None:
        loaded = active.loaded_at is not None
        fields["state"] = SandboxState.RUNNING if loaded else SandboxState.RESTORING
    fields.update(row or {})
    known = [*attempts, *([active] if active is not None and active not in attempts else [])]
    return SandboxView(
        sandbox=Sandbox(id=SANDBOX, **fields),
        snapshots=tuple([snapshot()] if snapshots is None else snapshots),
        active=active,
        newest=newest or (known[-1] if known else None),
        newest_loaded=newest_loaded,
        attempts=tuple(known),
        refusals=tuple(refusals),
    )


def refusal(node_name: str = "n1", **fields: Any) -> LoadObservation:
    """A node that refused snapshot `s1` as CPU-incompatible a minute ago."""
    given: dict[str, Any] = {
        "execution_id": f"e-{node_name}",
        "snapshot_id": "s1",
        "capture_cpu": "intel-6-106-6",
        "node_uid": f"uid-{node_name}",
        "observed_at": ago(60),
        **fields,
    }
    return LoadObservation(
        sandbox_id=SANDBOX, node_name=node_name, result=LoadResult.CPU_INCOMPATIBLE, **given
    )


def pod(name: str = "wake-r1-1", *, execution_id: str = "e1", **fields: Any) -> PodFacts:
    """A fenced, ungated, unbound pod of an execution, unless told otherwise."""
    given: dict[str, Any] = {
        "namespace": NAMESPACE,
        "name": name,
        "uid": f"uid-{name}",
        "resource_version": "7",
        "created": ago(7),
        "labels": {names.SANDBOX_LABEL: SANDBOX},
        "annotations": {names.EXECUTION_ANNOTATION: execution_id},
        "owner_uids": ("r1",),
        "finalizers": (names.FENCE,),
        **fields,
    }
    return PodFacts(**given)


def bound(node: str = "n1", **fields: Any) -> dict[str, Any]:
    """Fields of a pod that runs on a node and has not loaded yet."""
    return {
        "node_name": node,
        "scheduled_at": ago(6),
        "phase": "Running",
        "runner_started": True,
        **fields,
    }


def ended(
    message: str = "", *, exit_code: int = 1, reason: str = "Error", **fields: Any
) -> dict[str, Any]:
    """Fields of a bound pod whose kubelet reported the runner terminated."""
    end = RunnerEnd(exit_code=exit_code, reason=reason, message=message, finished=ago(1))
    return bound(phase="Failed", runner_end=end, **fields)


def node(name: str = "n1", **fields: Any) -> NodeFacts:
    given: dict[str, Any] = {
        "uid": f"uid-{name}",
        "created": ago(86400),
        "ready": True,
        "ready_since": ago(86000),
        **fields,
    }
    return NodeFacts(name=name, **given)


def sees(*nodes: NodeFacts) -> dict[str, NodeSighting]:
    return {n.name: NodeSighting(name=n.name, node=n) for n in nodes}


def absent(name: str, *, since: datetime) -> dict[str, NodeSighting]:
    return {name: NodeSighting(name=name, node=None, absent_since=since)}


def world(
    *restores: Restore, view: SandboxView | None, pods: Sequence[PodFacts] = (), **fields: Any
) -> World:
    return World(
        now=NOW,
        sandbox_id=SANDBOX,
        restores=restores,
        view=view,
        pods=tuple(pods),
        **fields,
    )
