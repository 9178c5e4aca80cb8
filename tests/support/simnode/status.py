"""What a kubelet reports of a restore pod, as patches of its status; nothing here does I/O.

Follows the kubelet of Kubernetes 1.37 (status_manager.go, kubelet_pods.go), reduced to pods with
one container that matters and restartPolicy Never. Each patch carries the pod's UID, upon which the
API server refuses it for a pod of the same name that came later.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tests.support.simnode.plan import RUNNER_CONTAINER

SIMULATED = "simulated"
"""Runtime name in container ids: these containers are a simulation and say so."""

KUBELET_CONDITIONS = (
    "PodReadyToStartContainers",
    "Initialized",
    "Ready",
    "ContainersReady",
    "PodScheduled",
)
"""Conditions that the kubelet owns, in its order."""

SIGTERM_EXIT = 143
"""Exit code of a runner that was told to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerEnd:
    """How the runner container ended."""

    exit_code: int
    reason: str = "Error"
    message: str = ""
    """The termination message."""

    @property
    def phase(self) -> str:
        """The phase of a pod whose container ended so."""
        return "Succeeded" if self.exit_code == 0 else "Failed"


TERMINATED = ContainerEnd(exit_code=SIGTERM_EXIT)
"""The runner ended because the kubelet told it to."""

NEVER_STARTED = ContainerEnd(
    exit_code=137,
    reason="ContainerStatusUnknown",
    message="The container could not be located when the pod was terminated",
)
"""What a kubelet reports of a container that it never started, once the pod was deleted.

SyncTerminatingPod finds the container waiting and leaves it so; SyncTerminatedPod then calls
TerminatePod, which turns every container without a `terminated` state into this one (a pod without
init containers counts as initialized) and the phase Pending into Failed. So a restore that is
cancelled before its container started never gets a report that proves anything.
"""

MACHINE_RESTARTED = ContainerEnd(exit_code=255, reason="Unknown")
"""What a kubelet reports of a container that ran when its machine went down and came back."""


def creating(pod: Mapping[str, Any], *, now: datetime) -> dict[str, Any]:
    """The pod was admitted; its container waits to be created."""
    state = {"waiting": {"reason": "ContainerCreating", "message": "on a simulated node"}}
    return _patch(
        pod,
        now=now,
        phase="Pending",
        containers=_containers(pod, state=state, started=False, ready=False),
        conditions=_conditions(pod, now=now, sandbox=False, ready=False),
    )


def running(pod: Mapping[str, Any], *, now: datetime, ready: bool) -> dict[str, Any]:
    """The container runs; it is ready once the snapshot is loaded."""
    state = {"running": {"startedAt": _started_at(pod) or _time(now)}}
    return _patch(
        pod,
        now=now,
        phase="Running",
        containers=_containers(pod, state=state, started=True, ready=ready),
        conditions=_conditions(pod, now=now, sandbox=True, ready=ready),
        addresses=True,
    )


def ended(pod: Mapping[str, Any], end: ContainerEnd, *, now: datetime) -> dict[str, Any]:
    """The container ended; a phase that is already terminal stays what it is."""
    phase = (pod.get("status") or {}).get("phase")
    terminal = phase if phase in ("Failed", "Succeeded") else end.phase
    detail: dict[str, Any] = {
        "exitCode": end.exit_code,
        "reason": "Completed" if end.exit_code == 0 else end.reason,
    }
    if end.message:
        detail["message"] = end.message
    if end is not NEVER_STARTED:
        detail["startedAt"] = _started_at(pod) or _time(now)
        detail["finishedAt"] = _time(now)
        detail["containerID"] = _container_id(pod)
    return _patch(
        pod,
        now=now,
        phase=terminal,
        containers=_containers(pod, state={"terminated": detail}, started=False, ready=False),
        conditions=_conditions(pod, now=now, sandbox=False, ready=False, terminal=terminal),
    )


def rejected(
    pod: Mapping[str, Any], *, reason: str, message: str, now: datetime, keep_containers: bool
) -> dict[str, Any]:
    """The kubelet does not admit the pod, running or not.

    rejectPod writes a status of nothing but phase, reason and message, so the kubelet's patch takes
    the container statuses and its own conditions away, also where the container still runs;
    `keep_containers` leaves them, as kubelets did that merged.
    """
    status: dict[str, Any] = {
        "phase": "Failed",
        "reason": reason,
        "message": f"Pod was rejected: {message}",
        "startTime": (pod.get("status") or {}).get("startTime") or _time(now),
    }
    if keep_containers:
        status["conditions"] = _conditions(
            pod, now=now, sandbox=True, ready=False, terminal="Failed"
        )
    else:
        status["containerStatuses"] = None
        status["conditions"] = [{"$patch": "delete", "type": kind} for kind in KUBELET_CONDITIONS]
    return {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status}


def runner_state(pod: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return the runner's state as the API has it: its kind (empty when none) and its detail."""
    for container in (pod.get("status") or {}).get("containerStatuses") or ():
        if container["name"] == RUNNER_CONTAINER:
            for kind in ("waiting", "running", "terminated"):
                if container["state"].get(kind) is not None:
                    return kind, container["state"][kind]
    return "", {}


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Tell whether the API has the pod as Ready."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def is_terminal(pod: Mapping[str, Any]) -> bool:
    """Tell whether the API has the pod in a terminal phase, whoever wrote it."""
    return (pod.get("status") or {}).get("phase") in ("Failed", "Succeeded")


def _patch(
    pod: Mapping[str, Any],
    *,
    now: datetime,
    phase: str,
    containers: list[dict[str, Any]],
    conditions: list[dict[str, Any]],
    addresses: bool = False,
) -> dict[str, Any]:
    status: dict[str, Any] = {
        "observedGeneration": pod["metadata"].get("generation", 1),
        "phase": phase,
        "startTime": (pod.get("status") or {}).get("startTime") or _time(now),
        "containerStatuses": containers,
        "conditions": conditions,
    }
    if addresses:
        address = _address(pod["metadata"]["uid"])
        status |= {"podIP": address, "podIPs": [{"ip": address}]}
    return {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status}


def _containers(
    pod: Mapping[str, Any], *, state: Mapping[str, Any], started: bool, ready: bool
) -> list[dict[str, Any]]:
    """Return the status of each container; those beside the runner share its fate."""
    return [
        {
            "name": container["name"],
            "image": container.get("image", ""),
            "imageID": "",
            "containerID": "" if "waiting" in state else _container_id(pod),
            "restartCount": 0,
            "started": started,
            "ready": ready,
            "state": dict(state),
            "lastState": {},
        }
        for container in sorted(pod["spec"]["containers"], key=lambda one: str(one["name"]))
    ]


def _conditions(
    pod: Mapping[str, Any], *, now: datetime, sandbox: bool, ready: bool, terminal: str = ""
) -> list[dict[str, Any]]:
    """Return the kubelet's conditions; a transition time moves only when the status does."""
    names = ", ".join(sorted(str(container["name"]) for container in pod["spec"]["containers"]))
    unready: dict[str, str] = {}
    if terminal:
        unready = {"reason": "PodCompleted" if terminal == "Succeeded" else "PodFailed"}
    elif not ready:
        unready = {
            "reason": "ContainersNotReady",
            "message": f"containers with unready status: [{names}]",
        }
    truth = {
        "PodReadyToStartContainers": (sandbox, {}),
        "Initialized": (True, {"reason": "PodCompleted"} if terminal == "Succeeded" else {}),
        "Ready": (ready, unready),
        "ContainersReady": (ready, unready),
        "PodScheduled": (True, {}),
    }
    before = {c["type"]: c for c in (pod.get("status") or {}).get("conditions") or ()}
    result = []
    for kind, (holds, words) in truth.items():
        status = "True" if holds else "False"
        old = before.get(kind, {})
        moved = old.get("status") != status or not old.get("lastTransitionTime")
        result.append(
            {
                "type": kind,
                "status": status,
                "observedGeneration": pod["metadata"].get("generation", 1),
                "lastProbeTime": None,
                "lastTransitionTime": _time(now) if moved else old["lastTransitionTime"],
                "reason": words.get("reason"),
                "message": words.get("message"),
            }
        )
    return result


def _started_at(pod: Mapping[str, Any]) -> str | None:
    kind, detail = runner_state(pod)
    return detail.get("startedAt") if kind in ("running", "terminated") else None


def _container_id(pod: Mapping[str, Any]) -> str:
    return f"{SIMULATED}://{pod['metadata']['uid']}"


def _address(uid: str) -> str:
    """Return an address that is the same whenever it is asked for the same pod."""
    digest = hashlib.sha256(uid.encode()).digest()
    return f"10.{digest[0]}.{digest[1]}.{digest[2]}"


def _time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
