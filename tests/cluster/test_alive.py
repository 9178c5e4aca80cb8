"""What a sandbox goes through after its restore, and the traps of "could a pod be alive"."""

from __future__ import annotations

import json

from tests.cluster.rows import call, row_of
from tests.cluster.test_cancel import ONLY_LOADERS, pods_of, says, settings
from tests.support.demo.scene import Scene
from tests.support.fleet import SandboxSeed, sandbox_seeds
from tests.support.waiting import until


async def woken(scene: Scene, namespace: str, *, count: int = 1) -> list[SandboxSeed]:
    """Sandboxes whose restore is applied, on nodes that can load them."""
    seeds = sandbox_seeds(count, seed=9, namespace=namespace, prefix=f"{namespace}-sb")
    await scene.add_sandboxes(seeds)
    await scene.apply(seeds, **ONLY_LOADERS)
    return seeds


async def test_a_suspended_sandbox_is_restored_from_what_its_node_holds(
    scene: Scene, namespace: str
) -> None:
    async with scene.operator(**settings(scene)):
        [seed] = await woken(scene, namespace)
        await says(scene, seed, "SnapshotLoaded")
        stopped = scene.nodes.suspend(seed.id)
        await call(
            scene.dsn,
            "SELECT sandbox_restore.sandbox_suspended(sandbox_id => $1, node_name => $2,"
            " pod_uid => $3)",
            *(seed.id, stopped.node, stopped.pod_uid),
        )
        await scene.kubectl("delete", "sandboxrestore", seed.restore_name, "-n", namespace)
        await until(
            lambda: not pods_of(scene, seed),
            deadline_s=60,
            what="the released pod of the suspended execution is deleted",
        )
        row = await row_of(scene.dsn, seed.id)
        assert (row.state, row.pinned_node, row.marker) == ("suspended", stopped.node, True)

        await scene.apply([seed], **ONLY_LOADERS)
        await says(scene, seed, "SnapshotLoaded")
        row = await row_of(scene.dsn, seed.id)
        assert [e["source"] for e in row.executions] == ["storage", "local"]
        assert [e["outcome"] for e in row.executions] == ["suspended", None]
        assert row.executions[1]["node_name"] == stopped.node
    assert not scene.nodes.record.violations


async def test_a_sandbox_that_ends_by_itself_is_lost_with_its_pin_and_marker(
    scene: Scene, namespace: str
) -> None:
    async with scene.operator(**settings(scene)):
        [seed] = await woken(scene, namespace)
        await says(scene, seed, "SnapshotLoaded")
        node = (await row_of(scene.dsn, seed.id)).pinned_node
        scene.nodes.end_vm(seed.id)

        async def lost() -> bool:
            row = await row_of(scene.dsn, seed.id)
            return bool(row.executions) and row.executions[-1]["outcome"] == "lost"

        await until(lost, deadline_s=60, what="the execution is retired as lost")
        row = await row_of(scene.dsn, seed.id)
        assert (row.state, row.pinned_node, row.marker) == ("suspended", node, True)
        assert reason_stays(scene, seed) == "SnapshotLoaded"


def reason_stays(scene: Scene, seed: SandboxSeed) -> str:
    """The reason of a restore that has finished."""
    for one in scene.restores(seed.namespace):
        if one["metadata"]["name"] == seed.restore_name:
            conditions = {c["type"]: c for c in one["status"]["conditions"]}
            return str(conditions["Succeeded"]["reason"])
    return ""


async def test_a_pod_that_a_restarted_kubelet_rejects_is_alive_until_that_is_disproved(
    scene: Scene, namespace: str
) -> None:
    async with scene.operator(**settings(scene)):
        seeds = sandbox_seeds(1, seed=9, namespace=namespace, prefix=f"{namespace}-sb")
        [seed] = seeds
        await scene.add_sandboxes(seeds)
        # Its VM runs, and its kubelet has not said so yet.
        scene.nodes.hold("ready", sandbox=seed.id)
        await scene.apply(seeds, **ONLY_LOADERS)
        await until(
            lambda: scene.nodes.live_vms(seed.id) or None, deadline_s=60, what="its VM runs"
        )
        [pod] = pods_of(scene, seed)
        await scene.nodes.reject(pod["metadata"]["uid"])
        await says(scene, seed, "PreviousPodMayBeAlive")
        assert len(scene.nodes.live_vms(seed.id)) == 1
        row = await row_of(scene.dsn, seed.id)
        assert [e["state"] for e in row.executions] == ["active"]
        assert len(pods_of(scene, seed)) == 1
        scene.nodes.finish_rejection(pod["metadata"]["uid"])
        scene.nodes.release()
    assert not scene.nodes.record.violations


async def test_what_a_user_edits_on_a_running_pod_ends_nothing(
    scene: Scene, namespace: str
) -> None:
    async with scene.operator(**settings(scene), resync_interval="1s"):
        first, second = await woken(scene, namespace, count=2)
        await says(scene, first, "SnapshotLoaded")
        await says(scene, second, "SnapshotLoaded")
        [pod] = pods_of(scene, first)
        name = pod["metadata"]["name"]
        await scene.kubectl("annotate", "pod", name, "-n", namespace, "space.pplx.net/execution-")
        # Something for the operator to look at it again: a second restore of the same sandbox.
        again = {
            "apiVersion": "space.pplx.net/v1alpha1",
            "kind": "SandboxRestore",
            "metadata": {"name": "again", "namespace": namespace},
            "spec": {"sandboxId": first.id},
        }
        await scene.kubectl("apply", "-f", "-", stdin=json.dumps(again))
        await until(
            lambda: any(
                c["type"] == "Succeeded" and c["reason"] == "FollowedPod"
                for one in scene.restores(namespace)
                if one["metadata"]["name"] == "again"
                for c in one.get("status", {}).get("conditions", [])
            ),
            deadline_s=60,
            what="the second restore follows the running pod",
        )
        row = await row_of(scene.dsn, first.id)
        assert (row.state, len(row.executions), len(row.active)) == ("running", 1, 1)
        assert len(scene.nodes.live_vms(first.id)) == 1
    assert not scene.nodes.record.violations
