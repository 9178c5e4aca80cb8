"""The real operator's restores on real kubelets: which node takes one, and what ends it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sandbox_restore.model.names import HOST_CPU_LABEL, NETWORK_SLOTS
from tests.cluster.rows import Row, row_of
from tests.nodes.bed import CASCADE, CASCADE_FILE, ICE, ICE_FILE, PODS, SLOTS, SLOW, Bed
from tests.support.demo.scene import Scene
from tests.support.fleet import SandboxSeed
from tests.support.operator_process import OperatorProcess
from tests.support.realnode import RealNode
from tests.support.realnode.image import IMAGE
from tests.support.realnode.node import idle_pod
from tests.support.testbed import NodeSpec
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(600)


def template(*, loads: bool) -> str:
    """A runner that loads at once, or never; on SIGTERM it exits with 0 and leaves no report."""
    check = "true" if loads else "false"
    runner = {
        "name": "runner",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "readinessProbe": {
            "exec": {"command": ["/bin/busybox", check]},
            "periodSeconds": 1,
            "timeoutSeconds": 10,
        },
        "resources": {"limits": {NETWORK_SLOTS: "1"}},
    }
    spec = {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 5,
        "containers": [runner],
    }
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "spec": spec})


def operator(scene: Scene, folder: Path, *, loads: bool = True) -> OperatorProcess:
    file = folder / "template.json"
    file.write_text(template(loads=loads))
    return scene.operator_process(
        host_cpu_placement_enabled="true",
        pod_template_file=str(file),
        retry_backoff_base="100ms",
        sweep_interval="1s",
    )


async def sandbox(scene: Scene, name: str) -> SandboxSeed:
    """A suspended sandbox in a namespace of its own, captured on ICE, its snapshot in storage."""
    await scene.add_namespace(name)
    seed = SandboxSeed(
        id=name,
        namespace=name,
        snapshot_id=f"{name}-full-1",
        capture_cpu=ICE,
        captured_at=datetime.now(UTC).replace(microsecond=0) - timedelta(days=1),
        storage_uri=f"s3://snapshots/{name}/full-1",
    )
    await scene.add_sandboxes([seed])
    return seed


def pod_of(scene: Scene, seed: SandboxSeed) -> dict[str, Any] | None:
    """The newest pod of the sandbox's restore."""
    pods = list(scene.plane.api().items(f"/api/v1/namespaces/{seed.namespace}/pods"))
    return max(pods, key=lambda pod: str(pod["metadata"]["name"]), default=None)


def reason(scene: Scene, seed: SandboxSeed) -> str:
    [restore] = scene.restores(seed.namespace)
    conditions = restore.get("status", {}).get("conditions", ())
    return next((c["reason"] for c in conditions if c["type"] == "Succeeded"), "")


async def test_a_restore_that_waits_for_capacity_lands_where_the_label_says_that_it_may(
    scene: Scene, nodes: Callable[..., RealNode], tmp_path: Path
) -> None:
    # A loader that is full, and an incompatible CPU that the fleet publishes.
    full = NodeSpec(
        "full", labels={HOST_CPU_LABEL: ICE}, allocatable={NETWORK_SLOTS: "0"}, heartbeats=False
    )
    known = NodeSpec(
        "known", labels={HOST_CPU_LABEL: CASCADE}, unschedulable=True, heartbeats=False
    )
    scene.plane.add_nodes([full, known])
    scene.plane.wait_nodes_ready(names=["full", "known"])
    beds = []
    for cpuinfo in (CASCADE_FILE, ICE_FILE):
        folder = tmp_path / cpuinfo
        folder.mkdir()
        beds.append((Bed(nodes(), folder), cpuinfo))
    (excluded, _), (loader, _) = beds
    seed = await sandbox(scene, "waiting")
    try:
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(operator(scene, tmp_path))
            await scene.apply([seed])
            await until(lambda: _refused(pod_of(scene, seed)), deadline_s=SLOW, what="no room")
            assert _not_in(pod_of(scene, seed)) == [CASCADE]
            for bed, cpuinfo in beds:
                token = bed.bind_agent_pod()
                await stack.enter_async_context(bed.agent(token, cpuinfo=cpuinfo))
            await excluded.start()
            await excluded.settled(CASCADE)
            # kube-scheduler gives that node's slots to a pod that asks for no CPU.
            anyone = idle_pod("anyone", node="", slots=1, resource=NETWORK_SLOTS)
            del anyone["spec"]["nodeName"]
            scene.plane.api().post(PODS, anyone)
            await until(
                lambda: scene.plane.api().get(f"{PODS}/anyone")["spec"].get("nodeName"),
                deadline_s=SLOW,
                what="a pod takes a slot",
            )
            assert _refused(pod_of(scene, seed))
            await loader.start()
            await loader.settled(ICE)
            await until(
                lambda: reason(scene, seed) == "SnapshotLoaded",
                deadline_s=SLOW,
                what="the restore succeeds",
                detail=lambda: pod_of(scene, seed),
            )
        row = await row_of(scene.dsn, seed.id)
        assert (row.state, row.pinned_node) == ("running", loader.real.name)
        assert len(row.executions) == 1, "its pod was never made anew"
    finally:
        for name in ("full", "known"):
            scene.plane.api().delete(f"/api/v1/nodes/{name}")


def _refused(pod: dict[str, Any] | None) -> bool:
    """kube-scheduler has found no node for it."""
    conditions = (pod or {}).get("status", {}).get("conditions", ())
    return any(c["type"] == "PodScheduled" and c["status"] == "False" for c in conditions)


def _not_in(pod: dict[str, Any] | None) -> list[str]:
    assert pod is not None
    required = pod["spec"]["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    (term,) = required["nodeSelectorTerms"]
    (found,) = [e for e in term["matchExpressions"] if e["key"] == HOST_CPU_LABEL]
    assert found["operator"] == "NotIn"
    return list(found["values"])


@pytest.mark.parametrize("loads", [False, True], ids=["before its load", "after its load"])
async def test_a_pod_that_a_restarted_kubelet_turns_away_is_no_success(
    scene: Scene, bed: Bed, tmp_path: Path, loads: bool
) -> None:
    """Its runner exits with 0 on SIGTERM: Kubernetes calls such a pod Succeeded."""
    await bed.start()
    status, admin = f"{bed.view.path}/status", bed.view.admin
    bed.view.set_label(ICE)
    admin.merge(status, {"status": {"capacity": {NETWORK_SLOTS: "4"}}})
    await until(lambda: bed.view.slots == SLOTS, deadline_s=SLOW, what="the slots")
    seed = await sandbox(scene, f"turned-away-{'loaded' if loads else 'loading'}")
    async with operator(scene, tmp_path, loads=loads):
        await scene.apply([seed])
        before = await until(
            lambda: _runs(pod_of(scene, seed)), deadline_s=SLOW, what="its runner runs"
        )
        if loads:
            await until(
                lambda: reason(scene, seed) == "SnapshotLoaded", deadline_s=SLOW, what="loaded"
            )
        admin.merge(status, {"status": {"capacity": {NETWORK_SLOTS: "0"}}})
        await until(lambda: bed.view.slots == 0, deadline_s=SLOW, what="no slots")
        await bed.restart_kubelet()

        async def retired() -> Row | None:
            row = await row_of(scene.dsn, seed.id)
            return row if row.executions[0]["state"] == "retired" else None

        row = await until(retired, deadline_s=SLOW, what="its execution is retired")
        assert row.executions[0]["outcome"] == "lost"
        assert row.pinned_node == bed.real.name
        if loads:
            assert (row.state, row.marker) == ("suspended", True)
        else:
            assert row.state in ("restoring", "failed")
            assert reason(scene, seed) not in ("SnapshotLoaded", "FollowedPod")
            assert row.executions[0]["failure_class"] == "unknown"
    assert before["metadata"]["uid"] == row.executions[0]["pod_uid"]


def _runs(pod: dict[str, Any] | None) -> dict[str, Any] | None:
    statuses = (pod or {}).get("status", {}).get("containerStatuses", ())
    return pod if any("running" in one["state"] for one in statuses) else None
