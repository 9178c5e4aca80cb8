"""docs/install/node-agent.yaml on a real node, as it stands: only the image's name is another.

An image of this checkout, the token that the kubelet asks the API server for, the service
`kubernetes`, the machine's own /proc/cpuinfo, the confinement that the manifest asks for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from sandbox_restore.agent.detect import Dimensions
from sandbox_restore.agent.machine import detect_here
from sandbox_restore.model.names import HOST_CPU_LABEL, NETWORK_SLOTS
from tests.nodes.bed import PODS, came_back
from tests.support.agentbed import INSTALL, NAMESPACE, AgentNode, history
from tests.support.image import build_image
from tests.support.realnode import RealNode
from tests.support.realnode.node import idle_pod
from tests.support.testbed import Api, ApiError, ControlPlane
from tests.support.waiting import until

IMAGE = "sandbox-restore.test/sandbox-restore:1"
AGENT_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
SETS = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets"
TOKEN = "var/run/secrets/kubernetes.io/serviceaccount/token"
SLOW = 180.0
"""Seconds: scheduler, kubelet and interpreter start one after the other."""

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of this checkout's image."""
    path = tmp_path_factory.mktemp("image") / "sandbox-restore.tar"
    build_image(IMAGE, path)
    return path


@pytest.fixture
def slots(plane: ControlPlane) -> Iterator[int]:
    """The DaemonSet is installed; how many slots it says."""
    (found,) = yaml.safe_load_all((INSTALL / "node-agent.yaml").read_text())
    (agent,) = found["spec"]["template"]["spec"]["containers"]
    agent["image"] = IMAGE
    plane.api().post(SETS, found)
    yield next(int(e["value"]) for e in agent["env"] if e["name"].endswith("NETWORK_SLOTS"))
    plane.api().delete(f"{SETS}/{found['metadata']['name']}")


async def test_the_daemonset_of_the_docs_labels_a_new_node_before_its_slots(
    plane: ControlPlane,
    nodes: Callable[..., RealNode],
    image: Path,
    slots: int,
    measured: Callable[[str], None],
    tmp_path: Path,
) -> None:
    cpu = detect_here(dimensions=Dimensions())
    if cpu.value is None:
        pytest.skip(f"this machine's CPU cannot be told: {cpu.text}")
    node = nodes(images=[image])
    view = AgentNode(plane, node.name, tmp_path)
    async with history(view) as seen:
        await asyncio.to_thread(node.start)
        await until(
            lambda: (view.label, view.slots) == (cpu.value, slots),
            deadline_s=SLOW,
            what="label and slots",
            detail=lambda: [pod.get("status") for pod in view.admin.items(AGENT_PODS)],
        )
    assert [state for state in seen.states if state[2] and state[1] != cpu.value] == []
    back = ", ".join(came_back(seen, seen.times[0], slots=slots))
    measured(f"new node with the DaemonSet, from its registration: {back}")
    pod = await until(
        lambda: next((p for p in view.admin.items(AGENT_PODS) if _ready(p, node)), None),
        deadline_s=SLOW,
        what="the agent's pod is ready",
    )
    await view.until("Published", deadline_s=SLOW)
    assert view.events() == [("Normal", "Published")]
    url = f"http://{pod['status']['podIP']}:8080/metrics"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        assert f'cpu_info{{cpu="{cpu.value}"}} 1.0' in await answer.text()
    _kubelets_token_is_for_this_node_alone(view, _token(node, pod))
    sandbox = idle_pod("daemonset-sandbox", node=node.name, slots=1, resource=NETWORK_SLOTS)
    del sandbox["spec"]["nodeName"]
    view.admin.post(PODS, sandbox)
    await until(
        lambda: view.admin.get(f"{PODS}/daemonset-sandbox")["status"]["phase"] == "Running",
        deadline_s=SLOW,
        what="kube-scheduler gives a slot to a pod",
    )


def _ready(pod: dict[str, Any], node: RealNode) -> bool:
    """A ready pod of the DaemonSet on this node; pods of other tests may be left behind."""
    if pod["spec"].get("nodeName") != node.name:
        return False
    conditions = pod["status"].get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _token(node: RealNode, pod: dict[str, Any]) -> str:
    """The token that the kubelet has mounted into the pod's container."""
    (status,) = pod["status"]["containerStatuses"]
    process = node.running()[status["containerID"].removeprefix("containerd://")]
    return (Path(f"/proc/{process}/root") / TOKEN).read_text()


def _kubelets_token_is_for_this_node_alone(view: AgentNode, token: str) -> None:
    agent: Api = view.api(token)
    agent.merge(view.path, {"metadata": {"labels": {HOST_CPU_LABEL: view.label}}})
    view.admin.post("/api/v1/nodes", {"metadata": {"name": "not-its-own"}})
    try:
        for path, labels in (
            ("/api/v1/nodes/not-its-own", {HOST_CPU_LABEL: "intel-6-106-6"}),
            (view.path, {"another": "label"}),
        ):
            with pytest.raises(ApiError) as refused:
                agent.merge(path, {"metadata": {"labels": labels}})
            assert refused.value.status == 403
    finally:
        view.admin.delete("/api/v1/nodes/not-its-own")
