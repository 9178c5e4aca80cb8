"""What a restore pod tells: the plan that its runner is given, and where it may not run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

SANDBOX_LABEL = "space.pplx.net/sandbox"
HOST_CPU_LABEL = "space.pplx.net/host-cpu"
RUNNER_CONTAINER = "runner"
PLAN_ENV = "SANDBOX_RESTORE_PLAN"


class BadPlanError(Exception):
    """The runner was asked wrongly; the text says how."""


class RestoreRef(msgspec.Struct, frozen=True, kw_only=True):
    """The SandboxRestore that the pod serves."""

    name: str
    namespace: str
    uid: str


class Plan(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What to restore and from where."""

    version: Literal[1]
    sandbox_id: str
    snapshot_id: str
    source: Literal["storage", "local"]
    storage_uri: str | None = None
    attempt: int
    execution_id: str
    restore: RestoreRef


def read_plan(pod: Mapping[str, Any]) -> Plan:
    """Return the plan of a restore pod.

    Raises BadPlanError when there is none, it cannot be read, or it is another sandbox's.
    """
    raw = _plan_text(pod)
    try:
        plan = msgspec.json.decode(raw, type=Plan)
    except msgspec.DecodeError as error:
        raise BadPlanError(f"{PLAN_ENV} cannot be read: {error}") from error
    labelled = (pod["metadata"].get("labels") or {}).get(SANDBOX_LABEL)
    if plan.sandbox_id != labelled:
        raise BadPlanError(
            f"{PLAN_ENV} names sandbox {plan.sandbox_id!r}, the pod's label {labelled!r}"
        )
    if plan.source == "storage" and not plan.storage_uri:
        raise BadPlanError(f"{PLAN_ENV} has source storage and no storageUri")
    return plan


def excluded_cpus(pod: Mapping[str, Any]) -> list[str]:
    """Return the CPUs that every required node-selector term of the pod excludes by `NotIn`."""
    affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    by_term = [
        {
            value
            for one in term.get("matchExpressions") or ()
            if (one["key"], one["operator"]) == (HOST_CPU_LABEL, "NotIn")
            for value in one["values"]
        }
        for term in required.get("nodeSelectorTerms") or ()
    ]
    return sorted(set.intersection(*by_term)) if by_term else []


def _plan_text(pod: Mapping[str, Any]) -> str:
    for container in pod["spec"]["containers"]:
        if container["name"] == RUNNER_CONTAINER:
            for variable in container.get("env") or ():
                if variable["name"] == PLAN_ENV and variable.get("value"):
                    return str(variable["value"])
            raise BadPlanError(f"container {RUNNER_CONTAINER} has no variable {PLAN_ENV}")
    raise BadPlanError(f"the pod has no container {RUNNER_CONTAINER}")
