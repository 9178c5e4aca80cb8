"""Deleting a restore, at each phase, and a namespace; two operators that act at once."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.cluster.rows import row_of
from tests.support.demo.scene import Scene
from tests.support.fleet import SandboxSeed, sandbox_seeds
from tests.support.waiting import until

ONLY_LOADERS = {"hostCpuPolicy": "Required"}
"""Keeps the unlabelled nodes out, which may refuse: what is tested here is not who loads what."""


def settings(scene: Scene) -> dict[str, str]:
    return {
        "host_cpu_placement_enabled": "true",
        "host_cpu_compatibility": scene.matrix.compatibility(),
        "retry_backoff_base": "100ms",
        "sweep_interval": "1s",
    }


def pods_of(scene: Scene, seed: SandboxSeed) -> list[dict[str, Any]]:
    path = f"/api/v1/namespaces/{seed.namespace}/pods"
    return [
        pod
        for pod in scene.plane.api().items(path)
        if pod["metadata"]["labels"].get("space.pplx.net/sandbox") == seed.id
    ]


def reason_of(scene: Scene, seed: SandboxSeed) -> str:
    for one in scene.restores(seed.namespace):
        if one["metadata"]["name"] == seed.restore_name:
            for condition in one.get("status", {}).get("conditions", []):
                if condition["type"] == "Succeeded":
                    return str(condition["reason"])
    return ""


async def says(scene: Scene, seed: SandboxSeed, reason: str) -> None:
    await until(
        lambda: reason_of(scene, seed) == reason,
        deadline_s=60,
        what=f"{seed.restore_name} says {reason}",
        detail=lambda: reason_of(scene, seed),
    )


async def delete(scene: Scene, seed: SandboxSeed) -> None:
    await scene.kubectl("delete", "sandboxrestore", seed.restore_name, "-n", seed.namespace)


async def cancelled(scene: Scene, seed: SandboxSeed, *, live_vms: int = 0) -> None:
    """The pod is gone, the execution retired, the row failed and pinned to nothing."""
    await until(
        lambda: not pods_of(scene, seed), deadline_s=60, what=f"the pod of {seed.id} is gone"
    )

    async def settled() -> bool:
        row = await row_of(scene.dsn, seed.id)
        return not row.active and row.state == "failed"

    await until(settled, deadline_s=60, what=f"the row of {seed.id} is failed")
    assert len(scene.nodes.live_vms(seed.id)) == live_vms


async def test_deleting_a_restore_cancels_it_cleanly_at_each_phase(
    scene: Scene, namespace: str
) -> None:
    unscheduled, loading, running = sandbox_seeds(
        3, seed=3, namespace=namespace, prefix=f"{namespace}-sb"
    )
    await scene.add_sandboxes([unscheduled, loading, running])
    scene.nodes.hold("load", sandbox=loading.id)
    async with scene.operator(**settings(scene)):
        await scene.apply([unscheduled], nodeSelector={"example.com/no": "node"})
        await scene.apply([loading, running], **ONLY_LOADERS)
        await says(scene, unscheduled, "Unschedulable")
        await says(scene, loading, "LoadingSnapshot")
        await says(scene, running, "SnapshotLoaded")

        await delete(scene, unscheduled)
        await cancelled(scene, unscheduled)
        await delete(scene, loading)
        await cancelled(scene, loading)
        await delete(scene, running)
        scene.nodes.release()

        # A restore is an operation: deleting a finished one leaves the sandbox as it is.
        assert len(scene.nodes.live_vms(running.id)) == 1
        [pod] = pods_of(scene, running)
        assert not pod["metadata"].get("deletionTimestamp")
        assert not pod["metadata"].get("ownerReferences")
        row = await row_of(scene.dsn, running.id)
        assert (row.state, row.marker) == ("running", True)
        assert row.pinned_node == pod["spec"]["nodeName"]

        # The runner was ended in the middle of its load and left no word: the next wake would try
        # there first. Nothing says that the node holds state, so there is no marker.
        row = await row_of(scene.dsn, loading.id)
        assert row.executions[-1]["outcome"] == "lost"
        assert (row.pinned_node, row.marker) == (row.executions[-1]["node_name"], False)
        # What was never bound is as it was before, and can be restored.
        assert (await row_of(scene.dsn, unscheduled.id)).pinned_node is None
        await scene.apply([unscheduled], **ONLY_LOADERS)
        await says(scene, unscheduled, "SnapshotLoaded")
    assert not scene.nodes.record.violations


async def test_a_restore_deleted_while_no_operator_runs_is_cancelled_by_the_next(
    scene: Scene, namespace: str
) -> None:
    seeds = sandbox_seeds(2, seed=4, namespace=namespace, prefix=f"{namespace}-sb")
    await scene.add_sandboxes(seeds)
    scene.nodes.hold("load", sandbox=seeds[1].id)
    async with scene.operator(**settings(scene)):
        await scene.apply(seeds[:1], nodeSelector={"example.com/no": "node"})
        await scene.apply(seeds[1:], **ONLY_LOADERS)
        await says(scene, seeds[0], "Unschedulable")
        await says(scene, seeds[1], "LoadingSnapshot")
    for seed in seeds:
        await delete(scene, seed)
    async with scene.operator(**settings(scene)):
        for seed in seeds:
            await cancelled(scene, seed)
    scene.nodes.release()
    assert not scene.nodes.record.violations


async def test_deleting_a_namespace_ends_all_of_it_and_nothing_keeps_it(
    scene: Scene, namespace: str
) -> None:
    unscheduled, loading, running = seeds = sandbox_seeds(
        3, seed=5, namespace=namespace, prefix=f"{namespace}-sb"
    )
    await scene.add_sandboxes(seeds)
    scene.nodes.hold("load", sandbox=loading.id)
    async with scene.operator(**settings(scene)):
        await scene.apply([unscheduled], nodeSelector={"example.com/no": "node"})
        await scene.apply([loading, running], **ONLY_LOADERS)
        await says(scene, unscheduled, "Unschedulable")
        await says(scene, loading, "LoadingSnapshot")
        await says(scene, running, "SnapshotLoaded")
        await scene.kubectl("delete", "namespace", namespace, "--wait=false")
        await until(
            lambda: all(
                one["metadata"]["name"] != namespace
                for one in scene.plane.api().items("/api/v1/namespaces")
            ),
            deadline_s=90,
            what="the namespace is gone",
            interval_s=0.5,
        )

        async def retired() -> bool:
            rows = [await row_of(scene.dsn, seed.id) for seed in seeds]
            return not any(row.active for row in rows)

        await until(retired, deadline_s=120, what="every execution is retired", interval_s=0.5)
    scene.nodes.release()
    assert not any(scene.nodes.live_vms(seed.id) for seed in seeds)
    assert not scene.nodes.record.violations
    # A namespace of the same name that is made anew owns nothing.
    await scene.add_namespace(namespace)
    async with scene.operator(**settings(scene)):
        await scene.apply([running])
        await says(scene, running, "SandboxNotFound")


async def test_two_operators_that_act_at_once_do_no_harm(scene: Scene, namespace: str) -> None:
    seeds = sandbox_seeds(40, seed=6, namespace=namespace, prefix=f"{namespace}-sb")
    await scene.add_sandboxes(seeds)
    one = scene.operator_process(**settings(scene), lease_name="first")
    two = scene.operator_process(**settings(scene), lease_name="second")
    async with one, two:
        await scene.apply(seeds)
        found = await scene.finished(seeds)
    assert "lease_acquired" in one.log()
    assert "lease_acquired" in two.log()
    rows = await asyncio.gather(*(row_of(scene.dsn, seed.id) for seed in seeds))
    for sandbox, row in zip(found.sandboxes, rows, strict=True):
        assert sandbox.succeeded is sandbox.runs, (sandbox.reason, sandbox.message)
        assert len(row.active) <= 1
        assert len([e for e in row.executions if e["loaded_at"]]) == int(sandbox.succeeded)
        assert len(pods_of(scene, sandbox.seed)) == len(row.executions)
    assert not scene.nodes.record.violations
