"""Pods that wait while the fleet changes, on the real API server and scheduler (section 8)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml

from sandbox_restore.placement.template import DEFAULT_TEMPLATE
from tests.cluster.rows import Row, row_of
from tests.cluster.test_cancel import pods_of, says, settings
from tests.cluster.test_restores import excluded_cpus
from tests.support.crashes import Operators
from tests.support.demo.scene import Scene
from tests.support.fleet import SandboxSeed, as_yaml_stream, sandbox_seeds
from tests.support.late_deleting_operator import HELD
from tests.support.simnode.controls import REAL_CPU_ANNOTATION
from tests.support.simnode.plan import HOST_CPU_LABEL
from tests.support.testbed.nodes import SLOTS_RESOURCE, NodeSpec
from tests.support.waiting import until

CORNER = "example.com/corner"
"""Label of the nodes that a test's restores may use: nobody else's."""
LATE = (sys.executable, "-m", "tests.support.late_deleting_operator")


def new_cpu(namespace: str) -> str:
    """A CPU in no pair and, until the test has it join, in no fleet: the operator remembers those
    of earlier tests."""
    return f"intel-6-207-{namespace.removeprefix('test-')}"


def node(namespace: str, name: str, cpu: str, *, slots: int = 0) -> NodeSpec:
    """A node in the test's corner; without slots it can be reached, and is full."""
    return NodeSpec(
        f"{namespace}-{name}",
        labels={HOST_CPU_LABEL: cpu, CORNER: namespace},
        annotations={REAL_CPU_ANNOTATION: cpu},
        allocatable={SLOTS_RESOURCE: str(slots)},
    )


@contextlib.asynccontextmanager
async def corner(scene: Scene, *specs: NodeSpec) -> AsyncIterator[None]:
    """These nodes beside the fleet; at the end none of the corner is left."""
    namespace = specs[0].labels[CORNER]
    await join(scene, *specs)
    try:
        yield
    finally:
        await scene.kubectl("delete", "nodes", "-l", f"{CORNER}={namespace}")


async def join(scene: Scene, *specs: NodeSpec, ready: bool = True) -> None:
    await asyncio.to_thread(scene.plane.add_nodes, specs)
    if ready:
        names = [spec.name for spec in specs]
        await asyncio.to_thread(scene.plane.wait_nodes_ready, names=names)


async def offer(scene: Scene, spec: NodeSpec, slots: int) -> None:
    """Another pod has ended: the node has room."""
    amounts = {SLOTS_RESOURCE: str(slots)}
    path = f"/api/v1/nodes/{spec.name}/status"
    body = {"status": {"allocatable": amounts, "capacity": amounts}}
    await asyncio.to_thread(scene.plane.api().merge, path, body)


async def waiting_pods(
    scene: Scene, namespace: str, count: int = 1, *, reason: str = "Unschedulable", **spec: Any
) -> list[SandboxSeed]:
    """Sandboxes whose pods can be scheduled on no node, mostly for want of room in the corner."""
    seeds = [
        replace(seed, capture_cpu=scene.matrix.cpus[0])
        for seed in sandbox_seeds(count, seed=1, namespace=namespace, prefix=f"{namespace}-sb")
    ]
    await scene.add_sandboxes(seeds)
    await scene.apply(seeds, nodeSelector={CORNER: namespace}, **spec)
    for seed in seeds:
        await says(scene, seed, reason)
    return seeds


def only_waits_for_news(scene: Scene) -> dict[str, str]:
    """No periodic look may do what an event must."""
    return {**settings(scene), "resync_interval": "1h", "relist_interval": "1h"}


async def rerendered(scene: Scene, seed: SandboxSeed, before: dict[str, Any]) -> dict[str, Any]:
    """The pod that has taken the place of another; at no moment are there two that may run."""

    def replaced() -> dict[str, Any] | None:
        pods = pods_of(scene, seed)
        assert sum("deletionTimestamp" not in pod["metadata"] for pod in pods) <= 1
        [pod] = pods if len(pods) == 1 else [before]
        is_open = not pod["spec"].get("schedulingGates")
        return pod if pod["metadata"]["uid"] != before["metadata"]["uid"] and is_open else None

    found = await until(
        replaced, deadline_s=60, what="the pod is replaced", detail=lambda: pods_of(scene, seed)
    )
    assert found is not None
    return found


async def executions(scene: Scene, seed: SandboxSeed) -> list[tuple[str | None, str | None]]:
    row: Row = await row_of(scene.dsn, seed.id)
    return [(e["outcome"], e["failure_message"]) for e in row.executions]


def restore_of(scene: Scene, seed: SandboxSeed) -> dict[str, Any]:
    return next(
        one
        for one in scene.restores(seed.namespace)
        if one["metadata"]["name"] == seed.restore_name
    )


def events_of(scene: Scene, seed: SandboxSeed) -> list[str]:
    """Notes of its Events of a re-rendering."""
    path = f"/apis/events.k8s.io/v1/namespaces/{seed.namespace}/events"
    return [
        event["note"]
        for event in scene.plane.api().items(path)
        if event["reason"] == "PlacementRerendered"
        and event["regarding"]["name"] == seed.restore_name
    ]


async def told(scene: Scene, seed: SandboxSeed) -> list[str]:
    """The same, once there is one: it follows the pod."""
    return await until(
        lambda: events_of(scene, seed), deadline_s=60, what="a re-rendering is told in an Event"
    )


def writes_to_pods(scene: Scene, seed: SandboxSeed) -> list[tuple[str, str]]:
    """Verb and pod of the operator's creates and deletes, in order, from the audit log."""
    found = []
    for line in scene.plane.audit_log.read_text().splitlines():
        entry: dict[str, Any] = json.loads(line)
        target = entry.get("objectRef", {})
        ours = entry.get("userAgent", "").startswith("sandbox-restore")
        is_pod = target.get("resource") == "pods" and target.get("namespace") == seed.namespace
        if not (entry.get("stage") == "ResponseComplete" and ours and is_pod):
            continue
        if entry["verb"] in ("create", "delete") and entry["responseStatus"]["code"] < 300:
            found.append((entry["verb"], target.get("name", "")))
    return found


async def test_a_new_cpu_joins_while_a_pod_waits(scene: Scene, namespace: str) -> None:
    loader = node(namespace, "loader", scene.matrix.cpus[0])
    new = replace(node(namespace, "new", new_cpu(namespace), slots=10), unschedulable=True)
    async with corner(scene, loader), scene.operator(**only_waits_for_news(scene)):
        [seed] = await waiting_pods(scene, namespace, backoffLimit=1)
        [before] = pods_of(scene, seed)
        assert excluded_cpus(before)
        assert new_cpu(namespace) not in excluded_cpus(before)

        # As every new node, it is closed when it joins.
        await join(scene, new, ready=False)
        after = await rerendered(scene, seed, before)
        assert excluded_cpus(after) == excluded_cpus(before) | {new_cpu(namespace)}
        assert after["metadata"]["name"] != before["metadata"]["name"]
        why = f"rendered again: newly excluded: {new_cpu(namespace)}"
        assert await executions(scene, seed) == [("superseded", why), (None, None)]
        [note] = await told(scene, seed)
        assert note == f"pod {before['metadata']['name']} was not scheduled yet and is {why}"

        await scene.kubectl("uncordon", new.name)
        await asyncio.to_thread(scene.plane.wait_nodes_ready, names=[new.name])
        await offer(scene, loader, 1)
        await says(scene, seed, "SnapshotLoaded")
        [pod] = pods_of(scene, seed)
        assert (pod["metadata"]["uid"], pod["spec"]["nodeName"]) == (
            after["metadata"]["uid"],
            loader.name,
        )
        status = restore_of(scene, seed)["status"]
        assert not status.get("failedAttempts")
        assert [a["outcome"] for a in status["attempts"]] == ["superseded", "loaded"]
        assert new_cpu(namespace) in status["placement"]["excluded"]
        assert len(events_of(scene, seed)) == 1
        assert [verb for verb, _ in writes_to_pods(scene, seed)] == ["create", "delete", "create"]
    assert not scene.nodes.record.violations


async def test_a_pod_that_is_bound_meanwhile_survives(scene: Scene, namespace: str) -> None:
    loader = node(namespace, "loader", scene.matrix.cpus[0])
    new = node(namespace, "new", new_cpu(namespace))
    operator = scene.operator_process(program=LATE, **only_waits_for_news(scene))
    async with corner(scene, loader), operator:
        [seed] = await waiting_pods(scene, namespace)
        [before] = pods_of(scene, seed)
        await join(scene, new, ready=False)
        await until(
            lambda: HELD + before["metadata"]["name"] in operator.log(),
            deadline_s=60,
            what="the operator is about to delete the pod",
            detail=operator.tail,
        )
        await offer(scene, loader, 1)
        await says(scene, seed, "SnapshotLoaded")
        [pod] = pods_of(scene, seed)
        assert pod["metadata"]["uid"] == before["metadata"]["uid"]
        assert await executions(scene, seed) == [(None, None)]
        assert not events_of(scene, seed)
    assert not scene.nodes.record.violations


def packaged_template() -> dict[str, Any]:
    packaged = files("sandbox_restore.placement").joinpath(DEFAULT_TEMPLATE).read_text("utf-8")
    template: dict[str, Any] = yaml.safe_load(packaged)
    return template


def written(path: Path, template: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(template))
    return path


def low_priority_pod(namespace: str, on: NodeSpec) -> dict[str, Any]:
    """A pod that takes the only slot of a node and takes its time to end."""
    slot = {SLOTS_RESOURCE: "1"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "low",
            "namespace": namespace,
            "labels": {"app": "low"},
            "finalizers": ["example.com/slow"],
        },
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": on.name},
            "containers": [
                {"name": "c", "image": "c", "resources": {"requests": slot, "limits": slot}}
            ],
        },
    }


async def test_a_pod_for_which_room_is_being_made_is_left_alone(
    scene: Scene, namespace: str
) -> None:
    cpu = scene.matrix.cpus[0]
    full, other = node(namespace, "full", cpu, slots=1), node(f"{namespace}-b", "other", cpu)
    new = node(namespace, "new", new_cpu(namespace))
    priority = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 1000}
    high = {**priority, "metadata": {"name": f"{namespace}-high"}}
    low = low_priority_pod(namespace, full)
    await scene.add_namespace(f"{namespace}-b")
    template = packaged_template()
    template["spec"]["priorityClassName"] = f"{namespace}-high"
    path = written(scene.folder / f"{namespace}.yaml", template)
    settled = {**only_waits_for_news(scene), "pod_template_file": str(path)}
    async with corner(scene, full), corner(scene, other), scene.operator(**settled):
        await scene.kubectl("apply", "-f", "-", stdin=as_yaml_stream([high, low]))
        low_path = f"/api/v1/namespaces/{namespace}/pods/low"
        await until(
            lambda: scene.plane.api().get(low_path)["spec"].get("nodeName"),
            deadline_s=60,
            what="the pod of low priority takes the slot",
        )
        [seed] = await waiting_pods(scene, namespace)
        await until(
            lambda: pods_of(scene, seed)[0]["status"].get("nominatedNodeName"),
            deadline_s=60,
            what="kube-scheduler makes room for the restore pod",
        )
        [before] = pods_of(scene, seed)
        # One for which no room is made is looked at for the same event.
        [beside] = await waiting_pods(scene, f"{namespace}-b")
        [replaced] = pods_of(scene, beside)
        await join(scene, new, ready=False)
        await rerendered(scene, beside, replaced)

        await scene.kubectl(
            *("patch", "pod", "low", "-n", namespace, "--type=merge"),
            *("-p", '{"metadata":{"finalizers":null}}'),
        )
        # As its kubelet would, once its containers have ended.
        await asyncio.to_thread(scene.plane.api().delete, low_path, grace_seconds=0)
        await says(scene, seed, "SnapshotLoaded")
        [pod] = pods_of(scene, seed)
        assert pod["metadata"]["uid"] == before["metadata"]["uid"]
        assert await executions(scene, seed) == [(None, None)]
    assert not scene.nodes.record.violations


async def test_the_news_of_a_node_alone_brings_a_waiting_restore_back(
    scene: Scene, namespace: str
) -> None:
    """kube-scheduler's own second look at a pod changes the pod, which is news as well; so these
    two have no pod that it looks at."""
    cpu = scene.matrix.cpus[0]
    loader = node(namespace, "loader", cpu, slots=1)
    cordoned = replace(node(f"{namespace}-b", "loader", cpu, slots=1), unschedulable=True)
    template = packaged_template()
    template["spec"]["schedulerName"] = "nobody"
    path = written(scene.folder / f"{namespace}.yaml", template)
    await scene.add_namespace(f"{namespace}-b")
    settled = {**only_waits_for_news(scene), "pod_template_file": str(path)}
    async with corner(scene, loader), corner(scene, cordoned), scene.operator(**settled):
        [unseen] = await waiting_pods(scene, namespace, reason="Scheduling")
        [held] = await waiting_pods(
            scene, f"{namespace}-b", reason="PlacementHeld", hostCpuPolicy="Required"
        )
        assert not pods_of(scene, held)
        [before] = pods_of(scene, unseen)
        await join(scene, node(namespace, "new", new_cpu(namespace)), ready=False)
        assert new_cpu(namespace) in excluded_cpus(await rerendered(scene, unseen, before))
        await scene.kubectl("uncordon", cordoned.name)
        await until(lambda: pods_of(scene, held), deadline_s=60, what="the held one has a pod")


async def test_the_last_loader_leaves_while_a_pod_waits(scene: Scene, namespace: str) -> None:
    cpus = scene.matrix.cpus
    loader, other = node(namespace, "loader", cpus[0]), node(namespace, "other", cpus[1])
    settled = {**only_waits_for_news(scene), "loosen_after": "1s"}
    async with corner(scene, loader, other), scene.operator(**settled):
        [seed] = await waiting_pods(scene, namespace)
        [before] = pods_of(scene, seed)
        assert excluded_cpus(before)
        await scene.kubectl("cordon", loader.name)
        after = await rerendered(scene, seed, before)
        assert not excluded_cpus(after)
        [note] = await told(scene, seed)
        assert "no node with a loader can be reached" in note
        await until(
            lambda: restore_of(scene, seed)["status"]["placement"]["reason"] == "NoReachableLoader",
            deadline_s=60,
            what="the status tells the new decision",
        )

        await scene.kubectl("uncordon", loader.name)
        confined = await rerendered(scene, seed, after)
        assert excluded_cpus(confined) == excluded_cpus(before)
        assert [outcome for outcome, _ in await executions(scene, seed)] == [
            "superseded",
            "superseded",
            None,
        ]
        await offer(scene, other, 1)
        await offer(scene, loader, 1)
        await says(scene, seed, "SnapshotLoaded")
        [pod] = pods_of(scene, seed)
        assert pod["spec"]["nodeName"] == loader.name
    assert not scene.nodes.record.violations


async def test_with_the_gate_off_a_waiting_pod_is_left_alone(scene: Scene, namespace: str) -> None:
    outside = f"{namespace}-b"
    await scene.add_namespace(outside)
    cpu = scene.matrix.cpus[0]
    inside_node, outside_node = node(namespace, "loader", cpu), node(outside, "loader", cpu)
    rollout = {**only_waits_for_news(scene), "rollout_namespaces": namespace}
    async with corner(scene, inside_node), corner(scene, outside_node), scene.operator(**rollout):
        [off] = await waiting_pods(scene, outside)
        [on] = await waiting_pods(scene, namespace)
        [before], [replaced] = pods_of(scene, off), pods_of(scene, on)
        await join(scene, node(namespace, "new", new_cpu(namespace)))
        await rerendered(scene, on, replaced)
        await offer(scene, outside_node, 1)
        await says(scene, off, "SnapshotLoaded")
        [pod] = pods_of(scene, off)
        assert pod["metadata"]["uid"] == before["metadata"]["uid"]
        assert await executions(scene, off) == [(None, None)]
    assert not scene.nodes.record.violations


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_kill_around_the_deletion_is_survived_and_told(
    scene: Scene, namespace: str, moment: str
) -> None:
    loader = node(namespace, "loader", scene.matrix.cpus[0])
    operators = Operators(scene.operator_process(**only_waits_for_news(scene)))
    async with corner(scene, loader), operators as these:
        dying = asyncio.create_task(these.killed(f"{moment}:delete-pod:1"))
        [seed] = await waiting_pods(scene, namespace)
        [before] = pods_of(scene, seed)
        await join(scene, node(namespace, "new", new_cpu(namespace)), ready=False)
        await dying
        async with these.spared():
            after = await rerendered(scene, seed, before)
            assert new_cpu(namespace) in excluded_cpus(after)
            await offer(scene, loader, 1)
            await says(scene, seed, "SnapshotLoaded")
            assert [outcome for outcome, _ in await executions(scene, seed)] == ["superseded", None]
            assert len(events_of(scene, seed)) == 1
    assert not scene.nodes.record.violations


async def test_two_operators_and_a_label_that_flaps_replace_each_pod_once(
    scene: Scene, namespace: str
) -> None:
    loader = node(namespace, "loader", scene.matrix.cpus[0])
    new = node(namespace, "new", new_cpu(namespace))
    one = scene.operator_process(**only_waits_for_news(scene), lease_name="first")
    two = scene.operator_process(**only_waits_for_news(scene), lease_name="second")
    async with corner(scene, loader), one, two:
        seeds = await waiting_pods(scene, namespace, count=5)
        before = {seed.id: pods_of(scene, seed)[0] for seed in seeds}
        await join(scene, new)
        for flap in range(20):
            label = {HOST_CPU_LABEL: new_cpu(namespace) if flap % 2 else None}
            path = f"/api/v1/nodes/{new.name}"
            await asyncio.to_thread(scene.plane.api().merge, path, {"metadata": {"labels": label}})
        for seed in seeds:
            pod = await rerendered(scene, seed, before[seed.id])
            assert new_cpu(namespace) in excluded_cpus(pod)
        await offer(scene, loader, len(seeds))
        found = await scene.finished(seeds)
        assert all(sandbox.succeeded for sandbox in found.sandboxes)
        for seed in seeds:
            assert len(await executions(scene, seed)) == 2
            assert len(events_of(scene, seed)) == 1
    assert not scene.nodes.record.violations
