"""Pods that look dead while their VM lives (domain.md section 15): none is redirected too early.

In each test a sandbox is pinned without a marker to a node whose host-CPU label somebody has edited
so that it cannot load the snapshot any more, and another node can: but for the pod in which its VM
runs, a redirect would go through at once.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from tests.cluster.corner import CORNER, join, leave, own_node, own_nodes, relabel
from tests.cluster.rows import row_of
from tests.cluster.test_redirect import (
    CAPTURE,
    WRONG,
    apply,
    condition,
    finished,
    gate_on,
    one_sandbox,
    restore_of,
    wake,
)
from tests.support.demo.scene import Scene
from tests.support.fleet import SandboxSeed
from tests.support.late_deleting_operator import HELD
from tests.support.simnode.plan import HOST_CPU_LABEL
from tests.support.testbed import NodeSpec
from tests.support.waiting import until

LATE = (sys.executable, "-m", "tests.support.late_deleting_operator")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trap:
    """A sandbox whose second wake is local-only on `home`; `other` could take it."""

    scene: Scene
    seed: SandboxSeed
    home: NodeSpec
    other: NodeSpec

    @property
    def pod(self) -> dict[str, Any]:
        """The pod of the second wake, whatever its labels are now."""
        path = f"/api/v1/namespaces/{self.seed.namespace}/pods"
        pods = self.scene.plane.api().items(path)
        return next(p for p in pods if p["metadata"]["name"].startswith("second-"))

    @property
    def pod_uid(self) -> str:
        return str(self.pod["metadata"]["uid"])

    def restore(self, name: str = "second") -> dict[str, Any]:
        return restore_of(self.scene, self.seed, name)

    async def wake(self, name: str, **spec: object) -> None:
        """Ask for a wake on the test's own nodes."""
        corner = self.home.labels[CORNER]
        await apply(self.scene, self.seed, name, nodeSelector={CORNER: corner}, **spec)

    async def says(self, reason: str, name: str = "second") -> None:
        await until(
            lambda: condition(self.restore(name), "Succeeded").get("reason") == reason,
            deadline_s=60,
            what=f"{name} says {reason}",
            detail=lambda: condition(self.restore(name), "Succeeded"),
        )

    async def open_the_way_out(self) -> None:
        """From now on the pinned node cannot load by its label, and another node can."""
        await relabel(self.scene, self.home, WRONG)
        await self.scene.kubectl("uncordon", self.other.name)

    async def stays(self, *also: str) -> None:
        """The operator has judged a redirect; the pod stands against it, and what is named."""
        await self.wake("judge")

        def judged() -> list[str] | None:
            found = self.restore("judge").get("status", {}).get("redirect", {})
            unmet = [c["reason"] for c in found.get("conditions", ()) if not c["met"]]
            return unmet if "PinnedNodeCanLoad" not in unmet else None

        unmet = await until(judged, deadline_s=60, what="the seven conditions are judged")
        assert unmet == [*also, "PlanFromPod", "PreviousPodMayBeAlive"]
        await self.is_untouched()

    async def is_untouched(self) -> None:
        [vm] = self.scene.nodes.live_vms(self.seed.id)
        assert vm.node == self.home.name
        row = await row_of(self.scene.dsn, self.seed.id)
        assert [(e["source"], e["outcome"]) for e in row.executions] == [
            ("storage", "suspended"),
            ("local", None),
        ]

    async def is_redirected(self) -> None:
        """The pod is proven over: the same restore goes on from storage."""
        over = await finished(self.scene, self.seed, "second")
        assert condition(over, "Succeeded")["reason"] == "SnapshotLoaded"
        assert condition(over, "Redirected")["reason"] == "RedirectedToStorage"
        [vm] = self.scene.nodes.live_vms(self.seed.id)
        assert vm.node == self.other.name
        assert not self.scene.nodes.record.violations


@contextlib.asynccontextmanager
async def pinned(scene: Scene, namespace: str) -> AsyncIterator[Trap]:
    """A sandbox that ran on `home` and was suspended there, its snapshot in storage.

    An operator must run already.
    """
    home = own_node(namespace, "home", cpu=CAPTURE)
    other = own_node(namespace, "other", cpu=CAPTURE, cordoned=True)
    seed = await one_sandbox(scene, namespace, f"{namespace}-sb")
    trap = Trap(scene=scene, seed=seed, home=home, other=other)
    async with own_nodes(scene, home, other):
        await wake(scene, seed, "first", nodeSelector={CORNER: namespace})
        stopped = scene.nodes.suspend(seed.id)
        now = datetime.now(UTC)
        about = {"sandbox_id": seed.id, "snapshot_id": stopped.snapshot}
        await scene.report(
            "snapshot_started", **about, captured_at=now, uploaded_by=home.name, host_cpu=CAPTURE
        )
        where = {"node_name": stopped.node, "pod_uid": stopped.pod_uid}
        await scene.report("sandbox_suspended", sandbox_id=seed.id, suspended_at=now, **where)
        scene.captures.put(stopped.snapshot, stopped.capture)
        await scene.report("snapshot_ready", **about, storage_uri=f"s3://s/{stopped.snapshot}")
        scene.nodes.acknowledge(seed.id, stopped.version)
        row = await row_of(scene.dsn, seed.id)
        assert (row.pinned_node, row.marker, row.active) == (home.name, False, [])
        try:
            yield trap
        finally:
            scene.nodes.release()
            scene.nodes.regain_contact(home.name)


@contextlib.asynccontextmanager
async def trapped(scene: Scene, namespace: str) -> AsyncIterator[Trap]:
    """Its next wake has loaded on `home`, where its kubelet has not said so yet."""
    async with pinned(scene, namespace) as trap:
        scene.nodes.hold("ready", node=trap.home.name)
        await trap.wake("second")
        await until(
            lambda: scene.nodes.live_vms(trap.seed.id) or None, deadline_s=60, what="its VM runs"
        )
        await trap.open_the_way_out()
        yield trap


def settings(scene: Scene, **more: str) -> dict[str, str]:
    return gate_on(scene, resync_interval="1s", **more)


async def test_a_pod_rejected_by_a_restarted_kubelet_is_not_redirected_before_its_node_is_out(
    scene: Scene, namespace: str
) -> None:
    async with scene.operator(**settings(scene)), trapped(scene, namespace) as trap:
        await scene.nodes.reject(trap.pod_uid)
        await trap.says("PreviousPodMayBeAlive")
        await trap.stays()
        # Its kubelet ends the VM, and says nothing: a person says that the machine is out.
        scene.nodes.finish_rejection(trap.pod_uid)
        await trap.says("PreviousPodMayBeAlive")
        out = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
        await scene.kubectl("taint", "node", trap.home.name, out)
        await trap.is_redirected()


async def test_a_force_deleted_pod_is_not_redirected_before_its_kubelet_has_ended_it(
    scene: Scene, namespace: str
) -> None:
    async with scene.operator(**settings(scene)), trapped(scene, namespace) as trap:
        scene.nodes.hold("end", node=trap.home.name)
        name = trap.pod["metadata"]["name"]
        await scene.kubectl(
            *("delete", "pod", name, "-n", namespace, "--force", "--grace-period=0"),
            "--wait=false",
        )
        assert trap.pod["metadata"]["deletionTimestamp"]
        await trap.stays()
        scene.nodes.release()
        await trap.is_redirected()


async def test_a_pod_whose_label_was_edited_is_still_found_and_not_redirected(
    scene: Scene, namespace: str
) -> None:
    async with scene.operator(**settings(scene)), trapped(scene, namespace) as trap:
        name = trap.pod["metadata"]["name"]
        label = "space.pplx.net/sandbox=another"
        await scene.kubectl("label", "--overwrite", "pod", name, "-n", namespace, label)
        await trap.stays()
        scene.nodes.release()
        # It comes up where it is, whatever the node's label says by now.
        over = await finished(scene, trap.seed, "second")
        assert condition(over, "Succeeded")["reason"] == "SnapshotLoaded"
        await trap.is_untouched()
        assert not scene.nodes.record.violations


async def test_a_node_re_created_under_the_same_name_proves_nothing_while_its_pod_runs(
    scene: Scene, namespace: str
) -> None:
    operator = scene.operator(**settings(scene, node_gone_grace="1s"))
    async with operator, trapped(scene, namespace) as trap:
        again = replace(trap.home, labels={**trap.home.labels, HOST_CPU_LABEL: WRONG})
        before = trap.pod_uid
        await leave(scene, trap.home)
        await join(scene, again)
        await trap.says("LoadingSnapshot")
        await trap.stays()
        assert trap.pod_uid == before
        scene.nodes.end_vm(trap.seed.id)
        await trap.is_redirected()


async def test_a_pod_failed_by_the_pod_garbage_collector_is_not_redirected_before_its_node_is_gone(
    scene: Scene, namespace: str
) -> None:
    """The collector waits 40 s for a lost Node, and looks every 20 s."""
    async with contextlib.AsyncExitStack() as stack:
        async with scene.operator(**settings(scene, node_gone_grace="1h")):
            trap = await stack.enter_async_context(trapped(scene, namespace))
            # The node is cut off and its Node object deleted: its VM lives on.
            scene.nodes.lose_contact(trap.home.name)
            await leave(scene, trap.home)
            await until(
                lambda: trap.pod["status"]["phase"] == "Failed",
                deadline_s=180,
                what="the garbage collector has failed the pod",
                interval_s=0.5,
            )
            await trap.says("PreviousPodMayBeAlive")
            await trap.stays("PinnedNodeAbsent")
        # With time the machine is powered off: the grace period stands for that.
        scene.nodes.crash_machine(trap.home.name)
        async with scene.operator(**settings(scene, node_gone_grace="1s")):
            await trap.is_redirected()


async def test_a_pod_bound_while_the_operator_is_about_to_retire_it_is_not_redirected(
    scene: Scene, namespace: str
) -> None:
    late = scene.operator_process(program=LATE, **settings(scene))
    async with late, pinned(scene, namespace) as trap:
        # Cordoned, so that the local-only pod finds no node.
        await scene.kubectl("cordon", trap.home.name)
        await trap.wake("second")
        await trap.says("Unschedulable")
        await trap.open_the_way_out()
        before = trap.pod_uid
        await suspend(trap)
        await until(
            lambda: HELD + trap.pod["metadata"]["name"] in late.log(),
            deadline_s=60,
            what="the operator is about to delete the unbound pod",
            detail=late.tail,
        )
        await scene.kubectl("uncordon", trap.home.name)
        over = await finished(scene, trap.seed, "second")
        assert condition(over, "Succeeded")["reason"] == "SnapshotLoaded"
        assert trap.pod_uid == before
        await trap.is_untouched()
        assert not scene.nodes.record.violations


async def test_a_pod_deleted_unbound_is_over_and_its_restore_is_redirected(
    scene: Scene, namespace: str
) -> None:
    async with scene.operator(**settings(scene)), pinned(scene, namespace) as trap:
        await scene.kubectl("cordon", trap.home.name)
        await trap.wake("second")
        await trap.says("Unschedulable")
        await trap.open_the_way_out()
        name = trap.pod["metadata"]["name"]
        await scene.kubectl("delete", "pod", name, "-n", namespace, "--wait=false")
        await trap.is_redirected()
        row = await row_of(scene.dsn, trap.seed.id)
        assert [e["outcome"] for e in row.executions] == ["suspended", "superseded", None]


async def suspend(trap: Trap) -> None:
    """The user wants no attempt now: an unbound pod is to go."""
    namespace = trap.seed.namespace
    patch = '{"spec": {"suspend": true}}'
    await trap.scene.kubectl(
        *("patch", "sandboxrestore", "second", "-n", namespace, "--type=merge", "-p", patch)
    )
