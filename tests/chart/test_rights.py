"""Least privilege: operator and node agent with exactly the chart's rights, and the audit log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sandbox_restore.model.names import HOST_CPU_LABEL
from sandbox_restore.placement.template import PodTemplate
from tests.chart import audit
from tests.chart.audit import Right
from tests.chart.release import operator
from tests.support.agentbed import AgentNode
from tests.support.demo.scene import Scene, raised
from tests.support.fleet import SandboxSeed, matrix_fleet, sandbox_seeds
from tests.support.helm import CHART, NAMESPACE, RELEASE, Helm
from tests.support.testbed import wait_until
from tests.support.waiting import until

AGENT = "sandbox-restore-node-agent"
REFUSED = "intel-6-79-1"
"""A CPU whose snapshots ICE refuses."""
ICE, ICE_FILE = "intel-6-106-6", "intel-ice-lake.txt"
RESTRICTED = "pod-security.kubernetes.io/enforce=restricted"
ONLY_LOADERS = {"hostCpuPolicy": "Required"}

UNUSED: dict[Right, str] = {}
"""Rights that no run here uses, each with the reason why it is granted all the same."""

pytestmark = pytest.mark.timeout(600)


class _Quiet:
    """A narrator that says nothing."""

    def doing(self, _text: str) -> None:
        return None


@pytest_asyncio.fixture(scope="module")
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    """Real parts with an audit log; custom resource and rights are left to the chart."""
    folder = tmp_path_factory.mktemp("rights")
    fleet = matrix_fleet(nodes_per_cpu=1, unlabelled=0)
    async with raised(
        fleet,
        folder=folder,
        narrator=_Quiet(),  # type: ignore[arg-type]
        audit=True,
        installed=False,
    ) as scene:
        yield scene


class Chart:
    """The release on the scene's server."""

    def __init__(self, scene: Scene, helm: Helm) -> None:
        self.scene = scene
        self._helm = helm

    async def configure(self, **settings: Any) -> None:
        """Install or upgrade the release with these settings."""
        values = {
            "database": {"migration": {"enabled": False}},
            "settings": {"hostCpuCompatibility": self.pairs(), **settings},
        }
        arguments = ("upgrade", "--install", RELEASE, str(CHART), "-n", NAMESPACE)
        await asyncio.to_thread(self._helm.run, *arguments, "--create-namespace", values=values)
        wait = ("wait", "--for=condition=Established", "crd/sandboxrestores.space.pplx.net")
        await self.scene.kubectl(*wait)

    def pairs(self) -> list[str]:
        return [pair.strip() for pair in self.scene.matrix.compatibility().split(",")]


@pytest.fixture(scope="module")
def chart(scene: Scene, program: Path, tmp_path_factory: pytest.TempPathFactory) -> Chart:
    home = tmp_path_factory.mktemp("admin")
    return Chart(scene, Helm(program, home=home, kubeconfig=scene.plane.kubeconfig))


async def suspended(scene: Scene, namespace: str, count: int) -> list[SandboxSeed]:
    """Sandboxes in a new namespace that enforces restricted Pod Security."""
    await scene.add_namespace(namespace)
    await scene.kubectl("label", "namespace", namespace, RESTRICTED)
    seeds = sandbox_seeds(count, seed=7, namespace=namespace, prefix=namespace)
    await scene.add_sandboxes(seeds)
    return seeds


def user_of(account: str) -> str:
    return f"system:serviceaccount:{NAMESPACE}:{account}"


def asked(scene: Scene, account: str) -> set[Right]:
    """What the service account asked for."""
    return audit.asked(scene.plane.audit_log, user=user_of(account))


def unused(scene: Scene, account: str) -> set[Right]:
    """Rights that are granted and were never asked for, the explained ones left out."""
    used = asked(scene, account)
    rights = audit.granted(scene.plane.api(), account=account, namespace=NAMESPACE)
    assert rights
    return {right for right in rights if right not in used and right not in UNUSED}


def refused(scene: Scene, account: str) -> list[str]:
    return audit.refused(scene.plane.audit_log, user=user_of(account))


async def test_the_operator_uses_every_right_of_the_chart_and_misses_none(
    scene: Scene, chart: Chart, tmp_path: Path
) -> None:
    """One run with the gate off for refused loads, one with it on for all the rest."""
    await chart.configure(retryBackoffBase="100ms")
    refusing = next(s for s in await suspended(scene, "refusing", 8) if s.capture_cpu == REFUSED)
    async with await operator(scene, tmp_path):
        found = await scene.wake([refusing], backoffLimit=1, nodeSelector={HOST_CPU_LABEL: ICE})
    assert len(found.refusals) == 1

    await chart.configure(hostCpuPlacementEnabled=True)
    seeds = await suspended(scene, "loading", 8)
    kept, ending, unscheduled = seeds[:-2], seeds[-2], seeds[-1]
    async with await operator(scene, tmp_path):
        found = await scene.wake(kept, **ONLY_LOADERS)
        assert found.running == len(kept)
        await scene.apply([ending], suffix="-once", ttlSecondsAfterFinished=0, **ONLY_LOADERS)
        ended = f"{ending.restore_name}-once"
        await until(
            lambda: ended not in [r["metadata"]["name"] for r in scene.restores("loading")],
            deadline_s=60,
            what="the finished restore is deleted by the operator",
        )
        await scene.apply([unscheduled], nodeSelector={"example.com/no": "node"})
        pods = "/api/v1/namespaces/loading/pods"
        selector = f"space.pplx.net/sandbox={unscheduled.id}"
        await until(
            lambda: list(scene.plane.api().items(pods, labelSelector=selector)),
            deadline_s=60,
            what="a pod that no node takes is there",
        )
        name = unscheduled.restore_name
        await scene.kubectl(
            *("patch", "sandboxrestore", name, "-n", "loading", "--type=merge"),
            *("-p", '{"spec": {"suspend": true}}'),
        )
        await until(
            lambda: not list(scene.plane.api().items(pods, labelSelector=selector)),
            deadline_s=60,
            what="the pod of a suspended restore is deleted by the operator",
        )
    assert refused(scene, RELEASE) == []
    assert unused(scene, RELEASE) == set()


async def test_with_namespaces_named_their_rights_are_enough(
    scene: Scene, chart: Chart, tmp_path: Path
) -> None:
    seeds = await suspended(scene, "served", 4)
    elsewhere = await suspended(scene, "not-served", 1)
    await chart.configure(hostCpuPlacementEnabled=True, namespaces=["served"])
    try:
        async with await operator(scene, tmp_path) as running:
            await scene.apply(elsewhere)
            found = await scene.wake(seeds, **ONLY_LOADERS)
            assert await running.probe("/readyz") == 200
    finally:
        await chart.configure()
    assert found.running == len(seeds)
    (untouched,) = scene.restores("not-served")
    assert "status" not in untouched
    assert refused(scene, RELEASE) == []


async def test_the_pod_template_of_the_chart_is_what_restore_pods_are_made_from(
    scene: Scene, chart: Chart, tmp_path: Path
) -> None:
    await chart.configure()
    (seed,) = await suspended(scene, "templated", 1)
    async with await operator(scene, tmp_path):
        await scene.wake([seed], **ONLY_LOADERS)
    pods = scene.plane.api().items("/api/v1/namespaces/templated/pods")
    for pod in pods:
        assert pod["metadata"]["labels"].items() >= PodTemplate.default().labels.items()


async def test_the_node_agent_uses_every_right_of_the_chart_and_misses_none(
    scene: Scene, chart: Chart, short_folder: Path
) -> None:
    await chart.configure()
    node = AgentNode(scene.plane, "agents-own", short_folder)
    node.create()
    async with node.kubelet, node.agent(node.bind_agent_pod(), cpuinfo=ICE_FILE):
        await node.settled(ICE)
        await node.until("Published")
        node.set_label("intel-6-85-7")
        await node.settled(ICE)
    wait_until(
        lambda: Right("create", "events", "events.k8s.io") in asked(scene, AGENT),
        what="the audit log tells of the agent's Events",
        timeout=30,
    )
    assert refused(scene, AGENT) == []
    assert unused(scene, AGENT) == set()
