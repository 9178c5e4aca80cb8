"""Restores on the real API server and scheduler: 200 of four capture CPUs, gate on and off."""

from __future__ import annotations

from typing import Any

from tests.support.demo.findings import Findings
from tests.support.demo.scene import Scene
from tests.support.fleet import sandbox_seeds

SEED = 20260612
COUNT = 200
KNOWN_ENDS = {"SnapshotLoaded", "Stranded", "BackoffLimitExceeded"}


def excluded_cpus(pod: dict[str, Any]) -> set[str]:
    """CPUs that the pod itself excludes, in any of its required terms."""
    affinity = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {})
    return {
        value
        for term in required.get("nodeSelectorTerms", [])
        for expression in term.get("matchExpressions", [])
        if expression["key"] == "space.pplx.net/host-cpu" and expression["operator"] == "NotIn"
        for value in expression["values"]
    }


def explained(findings: Findings) -> None:
    """Every restore ended, and says how in words."""
    for one in findings.sandboxes:
        assert one.reason in KNOWN_ENDS, (one.seed.restore_name, one.reason, one.message)
        assert one.message
        assert one.succeeded is one.runs


async def test_with_the_gate_on_no_labelled_node_refuses_a_restore(
    scene: Scene, namespace: str
) -> None:
    seeds = sandbox_seeds(COUNT, seed=SEED, namespace=namespace, prefix="on")
    await scene.add_sandboxes(seeds)
    async with scene.operator(
        host_cpu_placement_enabled="true", host_cpu_compatibility=scene.matrix.compatibility()
    ):
        found = await scene.wake(seeds)
    explained(found)
    labels = {n.name: n.labels.get("space.pplx.net/host-cpu", "") for n in scene.fleet}
    closed = {n.name for n in scene.fleet if n.unschedulable or n.taints}
    pods = list(scene.plane.api().items(f"/api/v1/namespaces/{namespace}/pods"))
    assert len(pods) >= COUNT
    for pod in pods:
        node = pod["spec"]["nodeName"]
        assert labels[node] not in excluded_cpus(pod), pod["metadata"]["name"]
        assert node not in closed
    for one in found.sandboxes:
        for load in one.from_storage:
            assert load.excluded, f"{load.pod} excludes no CPU"
        first = one.loads[0]
        if first.node_label:
            assert one.succeeded
            assert len(one.loads) == 1
    assert not found.refusals_on_labelled
    assert len(found.refusals) == len(found.refusals_on_unlabelled)
    print(
        f"gate on: {found.running} of {COUNT} run, {len(found.refusals)} refusals, all unlabelled"
    )
    assert not scene.nodes.record.violations


async def test_with_the_gate_off_the_same_seed_is_refused_at_least_thirty_times(
    scene: Scene, namespace: str
) -> None:
    seeds = sandbox_seeds(COUNT, seed=SEED, namespace=namespace, prefix="off")
    await scene.add_sandboxes(seeds)
    async with scene.operator(host_cpu_compatibility=scene.matrix.compatibility()):
        found = await scene.wake(seeds)
    explained(found)
    assert not any(load.excluded for one in found.sandboxes for load in one.loads)
    print(f"gate off: {found.running} of {COUNT} run, {len(found.refused_first)} first refused")
    assert len(found.refused_first) >= 30
