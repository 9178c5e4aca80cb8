"""Requests and pods for tests, short to write down."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from sandbox_restore.fleet.compatibility import Compatibility
from sandbox_restore.fleet.index import FleetIndex
from sandbox_restore.model.restore import Evacuation, HostCpuPolicy, RestoreSpec
from sandbox_restore.model.sandbox import Sandbox, Snapshot, Source
from sandbox_restore.placement.decision import (
    NodeRef,
    PlacementDecision,
    PlacementRequest,
    decide,
)
from sandbox_restore.placement.gate import Gate
from sandbox_restore.placement.match import PodRequirements
from sandbox_restore.placement.pod import PodIdentity, RunnerPlan, base_pod
from sandbox_restore.placement.reachable import Demand
from sandbox_restore.placement.template import PodTemplate
from tests.unit.fleet.nodes import INTEL_A, NOW

GOLDEN = Path(__file__).parents[2] / "golden"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"

IDENTITY = PodIdentity(
    name="wake-1-f22ac41231-1",
    namespace="team-a",
    sandbox_id="sb-1",
    restore_name="wake-1",
    restore_uid="restore-uid-1",
    attempt=1,
    execution_id="exec-1",
)
PLAN = RunnerPlan(snapshot_id="snap-1", source=Source.STORAGE, storage_uri="s3://snapshots/snap-1")


def template(name: str = "template.yaml") -> PodTemplate:
    return PodTemplate.parse((GOLDEN / name).read_text("utf-8"))


def golden(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((GOLDEN / name).read_text("utf-8"))
    return found


def sandbox(**parts: Any) -> Sandbox:
    return Sandbox(**{"id": "sb-1", "namespace": "team-a", **parts})


def spec(*, cohort: str | None = None, selector: Mapping[str, str] | None = None) -> RestoreSpec:
    parts: dict[str, Any] = {"sandbox_id": "sb-1", "node_selector": dict(selector or {})}
    if cohort is not None:
        parts["evacuation"] = Evacuation(cohort=cohort)
    return RestoreSpec(**parts)


def rendered(
    found: PodTemplate | None = None,
    *,
    row: Sandbox | None = None,
    asked: RestoreSpec | None = None,
) -> dict[str, Any]:
    """The base pod."""
    return base_pod(
        found or template(),
        identity=IDENTITY,
        plan=PLAN,
        sandbox=row or sandbox(),
        spec=asked or spec(),
    )


def snapshot(cpu: str | None = INTEL_A, **parts: Any) -> Snapshot:
    return Snapshot(
        **{
            "id": "snap-1",
            "sandbox_id": "sb-1",
            "host_cpu": cpu,
            "captured_at": NOW,
            "uploaded_by": "source",
            "storage_uri": "s3://snapshots/snap-1",
            **parts,
        }
    )


def request(
    cpu: str | None = INTEL_A,
    *,
    gate: Gate = Gate.ON,
    policy: HostCpuPolicy = HostCpuPolicy.AUTO,
    pod: Mapping[str, Any] | None = None,
    group: str | None = None,
    cohort: str | None = None,
    refused: Iterable[str] = (),
    avoid: Iterable[str] = (),
    snap: Snapshot | None = None,
    **parts: Any,
) -> PlacementRequest:
    """A request for a snapshot captured on `cpu`."""
    return PlacementRequest(
        sandbox_id="sb-1",
        snapshot=snap or snapshot(cpu),
        demand=Demand(requirements=PodRequirements.of(pod or {}), node_group=group, cohort=cohort),
        gate=gate,
        policy=policy,
        refused=tuple(NodeRef(name, f"uid-of-{name}") for name in refused),
        avoid=tuple(NodeRef(name, f"uid-of-{name}") for name in avoid),
        **parts,
    )


def decided(asked: PlacementRequest, index: FleetIndex, pairs: str = "") -> PlacementDecision:
    compatibility, _ = Compatibility.parse(pairs)
    return decide(asked, index, compatibility, now=NOW)


def terms_of(pod: Mapping[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pod["spec"]["affinity"]["nodeAffinity"][REQUIRED][
        "nodeSelectorTerms"
    ]
    return found
