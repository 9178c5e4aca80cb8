"""Renders restore pods from the administrator's template (sections 7, 14 and 15). PURE."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from sandbox_restore.errors import SandboxRestoreError
from sandbox_restore.fleet.ring import stable_hash
from sandbox_restore.model import names
from sandbox_restore.model.restore import Evacuation, RestoreSpec
from sandbox_restore.model.sandbox import Sandbox, Source
from sandbox_restore.placement.decision import PlacementDecision
from sandbox_restore.placement.reachable import Demand
from sandbox_restore.placement.template import PodTemplate
from sandbox_restore.placement.template_checks import DOWNWARD_ENV, MANAGED_BY_LABEL
from sandbox_restore.placement.term import Json, and_required, node_field, render

MANAGED_BY: Final = "sandbox-restore"
PLAN_VERSION: Final = 1
MAX_NAME: Final = 63

_NOT_IN_A_LABEL: Final = re.compile(r"[^a-z0-9-]+")


class NodeSelectorConflictError(SandboxRestoreError):
    """Template, row and restore ask for different values of one label: no node has both."""

    reason: Final = "NodeSelectorConflict"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodIdentity:
    """Which attempt of which restore the pod is made for."""

    name: str
    namespace: str
    sandbox_id: str
    restore_name: str
    restore_uid: str
    attempt: int
    execution_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerPlan:
    """What the runner is told to load (runner contract)."""

    snapshot_id: str | None
    source: Source
    storage_uri: str | None = None
    """Only with source `storage`."""


def pod_name(restore_name: str, restore_uid: str, attempt: int) -> str:
    """Section 15: the pod's name, a function of restore and attempt; a DNS label.

    Two restores of one name, one after the other, have different UIDs and so different pods.
    """
    tail = f"-{stable_hash(restore_uid) & 0xFFFFFFFFFF:010x}-{attempt}"
    head = _NOT_IN_A_LABEL.sub("-", restore_name.lower()).strip("-")
    return f"{head[: MAX_NAME - len(tail)].rstrip('-') or 'restore'}{tail}"


def node_selector(template: PodTemplate, *, sandbox: Sandbox, spec: RestoreSpec) -> dict[str, str]:
    """Section 7: the node selectors of template, row and restore together.

    Each narrows further and none undoes another: raises NodeSelectorConflictError where two ask
    for different values.
    """
    merged: dict[str, tuple[str, str]] = {}
    for origin, selector in (
        ("pod template", dict(template.requirements.selector)),
        ("sandbox row", sandbox.node_selector),
        ("SandboxRestore", spec.node_selector),
    ):
        for key, value in selector.items():
            earlier, asker = merged.setdefault(key, (value, origin))
            if earlier != value:
                raise NodeSelectorConflictError(
                    f"node selector {key}: the {asker} requires {earlier!r} and the {origin}"
                    f" {value!r}; no node has both. A restore can only narrow what the"
                    " template and the sandbox require"
                )
    return {key: value for key, (value, _) in merged.items()}


def demand_of(template: PodTemplate, *, sandbox: Sandbox, spec: RestoreSpec) -> Demand:
    """What the base pod of a storage plan asks of a node (section 7); conflicts as above."""
    selector = node_selector(template, sandbox=sandbox, spec=spec)
    return Demand(
        requirements=template.requirements.with_selector(selector),
        node_group=sandbox.node_group,
        cohort=_cohort(spec),
    )


def base_pod(
    template: PodTemplate,
    *,
    identity: PodIdentity,
    plan: RunnerPlan,
    sandbox: Sandbox,
    spec: RestoreSpec,
) -> Json:
    """Section 7: the pod without anything the feature adds; the same with the gate on or off."""
    pod_spec = _copy(template.spec)
    pod_spec["restartPolicy"] = "Never"
    pod_spec["schedulingGates"] = [{"name": names.FENCE}]
    selector = node_selector(template, sandbox=sandbox, spec=spec)
    if selector:
        pod_spec["nodeSelector"] = selector
    runner = pod_spec["containers"][0]
    runner["env"] = [*_runner_env(identity, plan), *(runner.get("env") or ())]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _metadata(template, identity),
        "spec": pod_spec,
    }
    return and_required(pod, expressions=_confinement(sandbox, spec))


def local_only_pod(
    template: PodTemplate,
    *,
    identity: PodIdentity,
    plan: RunnerPlan,
    sandbox: Sandbox,
    spec: RestoreSpec,
    node: str,
) -> Json:
    """Section 14: the base pod, bound to its node by name. It has no choice, so it gets no
    placement term."""
    pod = base_pod(template, identity=identity, plan=plan, sandbox=sandbox, spec=spec)
    return and_required(pod, fields=(node_field("In", node),))


def apply_decision(pod: Mapping[str, Any], decision: PlacementDecision) -> Json:
    """The pod with what the decision adds; the input is not changed."""
    if decision.held:
        raise ValueError(f"no pod is made while the placement is held ({decision.reason})")
    return render(pod, decision.rendered)


def canonical_bytes(pod: Mapping[str, Any]) -> bytes:
    """One byte string per pod: JSON with sorted keys and no blanks."""
    return msgspec.json.encode(pod, order="sorted")


def _confinement(sandbox: Sandbox, spec: RestoreSpec) -> list[Json]:
    """Section 7: what every required term carries besides the template's own."""
    cohort = _cohort(spec)
    found = []
    if sandbox.node_group is not None:
        found.append(_in(names.NODE_GROUP_LABEL, sandbox.node_group))
    if cohort is not None:
        found.append(_in(names.COHORT_LABEL, cohort))
    found.append({"key": names.PLACEMENT_BLOCK_LABEL, "operator": "DoesNotExist"})
    return found


def _in(key: str, value: str) -> Json:
    return {"key": key, "operator": "In", "values": [value]}


def _cohort(spec: RestoreSpec) -> str | None:
    return spec.evacuation.cohort if isinstance(spec.evacuation, Evacuation) else None


def _metadata(template: PodTemplate, identity: PodIdentity) -> Json:
    """Section 15: labels to find the pod by, its owner, and the fence finalizer."""
    return {
        "name": identity.name,
        "namespace": identity.namespace,
        "labels": {
            **template.labels,
            names.SANDBOX_LABEL: identity.sandbox_id,
            names.RESTORE_UID_LABEL: identity.restore_uid,
            names.ATTEMPT_LABEL: str(identity.attempt),
            MANAGED_BY_LABEL: MANAGED_BY,
        },
        "annotations": {
            **template.annotations,
            names.EXECUTION_ANNOTATION: identity.execution_id,
        },
        "ownerReferences": [
            {
                "apiVersion": names.API_VERSION,
                "kind": names.KIND,
                "name": identity.restore_name,
                "uid": identity.restore_uid,
                "controller": True,
                "blockOwnerDeletion": False,
            }
        ],
        "finalizers": [names.FENCE],
    }


def _runner_env(identity: PodIdentity, plan: RunnerPlan) -> list[Json]:
    """The runner contract: the plan as one JSON variable, and where the runner is."""
    return [
        {"name": names.PLAN_ENV, "value": plan_json(identity, plan)},
        *(
            {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
            for name, path in DOWNWARD_ENV.items()
        ),
    ]


def plan_json(identity: PodIdentity, plan: RunnerPlan) -> str:
    """The plan that the runner reads: compact JSON with sorted keys.

    It says nothing of CPUs, so that it is the same with the gate on or off. A dollar sign is
    written as an escape: the kubelet would expand `$(NAME)` in the variable's value.
    """
    stored = plan.source is Source.STORAGE
    document = {
        "version": PLAN_VERSION,
        "sandboxId": identity.sandbox_id,
        "snapshotId": plan.snapshot_id,
        "source": str(plan.source),
        "storageUri": plan.storage_uri if stored else None,
        "attempt": identity.attempt,
        "executionId": identity.execution_id,
        "restore": {
            "name": identity.restore_name,
            "namespace": identity.namespace,
            "uid": identity.restore_uid,
        },
    }
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return text.replace("$", "\\u0024")


def _copy(value: Any) -> Any:
    """A deep copy of JSON: pods do not share parts with the template."""
    if isinstance(value, Mapping):
        return {key: _copy(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_copy(item) for item in value]
    return value
