"""docs/install/node-agent.yaml on a real node: its token, its rights, its confinement."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from sandbox_restore.model.names import NETWORK_SLOTS
from tests.support.agentbed import FIXTURES, INSTALL, NAMESPACE, ROOT, AgentNode, history
from tests.support.realnode import RealNode
from tests.support.realnode.image import IMAGE
from tests.support.realnode.node import idle_pod
from tests.support.testbed import ControlPlane
from tests.support.testbed.ports import free_ports
from tests.support.waiting import until

ICE = "intel-6-106-6"
SLOTS = 3
SLOW = 120.0
"""Seconds: scheduler, kubelet and interpreter start one after the other."""

pytestmark = pytest.mark.timeout(600)


def daemonset(plane: ControlPlane) -> dict[str, Any]:
    """The DaemonSet of the docs. Its image holds no Python: this machine's is mounted into it, and
    the API server is on the host's loopback. Nothing else is changed."""
    (found,) = yaml.safe_load_all((INSTALL / "node-agent.yaml").read_text())
    spec = found["spec"]["template"]["spec"]
    (agent,) = spec["containers"]
    port = free_ports(1)[0]
    host, api_port = plane.server.removeprefix("https://").rsplit(":", 1)
    spec["hostNetwork"] = True
    agent["image"], agent["imagePullPolicy"] = IMAGE, "Never"
    assert agent["args"][0] == "sandbox-restore"
    agent["command"] = [sys.executable, "-m", "sandbox_restore.cli.main", *agent.pop("args")[1:]]
    agent["ports"] = [{"name": "health", "containerPort": port}]
    slots = next(e for e in agent["env"] if e["name"].endswith("NETWORK_SLOTS"))
    slots["value"] = str(SLOTS)
    given = {
        "KUBERNETES_SERVICE_HOST": host,
        "KUBERNETES_SERVICE_PORT": api_port,
        "PYTHONPATH": str(ROOT / "operator"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "SPACE_SANDBOX_RESTORE_HEALTH_PORT": str(port),
        "SPACE_SANDBOX_RESTORE_AGENT_CPUINFO_FILE": str(FIXTURES / "intel-ice-lake.txt"),
    }
    agent["env"] += [{"name": name, "value": value} for name, value in given.items()]
    for number, path in enumerate(_needed()):
        spec["volumes"].append({"name": f"host-{number}", "hostPath": {"path": str(path)}})
        agent["volumeMounts"].append(
            {"name": f"host-{number}", "mountPath": str(path), "readOnly": True}
        )
    result: dict[str, Any] = found
    return result


def _needed() -> list[Path]:
    """Folders that hold this interpreter, its libraries and the package."""
    system = [Path(name) for name in ("/usr/lib", "/lib", "/lib64") if Path(name).is_dir()]
    ours = [Path(sys.prefix), Path(sys.base_prefix), ROOT]
    return list(dict.fromkeys([*system, *ours]))


async def test_the_daemonset_of_the_docs_labels_a_new_node_before_its_slots(
    plane: ControlPlane, node: RealNode, tmp_path: Path
) -> None:
    view = AgentNode(plane, node.name, tmp_path)
    sets = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets"
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
    view.admin.post(sets, daemonset(plane))
    try:
        async with history(view) as seen:
            await asyncio.to_thread(node.start)
            await until(
                lambda: (view.label, view.slots) == (ICE, SLOTS),
                deadline_s=SLOW,
                what="label and slots",
                detail=lambda: [pod.get("status") for pod in view.admin.items(pods)],
            )
        assert [state for state in seen.states if state[2] and state[1] != ICE] == []
        await until(
            lambda: [_ready(pod) for pod in view.admin.items(pods)] == [True],
            deadline_s=SLOW,
            what="the agent's pod is ready",
        )
        await view.until("Published", deadline_s=SLOW)
        sandbox = idle_pod("daemonset-sandbox", node=node.name, slots=1, resource=NETWORK_SLOTS)
        del sandbox["spec"]["nodeName"]
        view.admin.post("/api/v1/namespaces/default/pods", sandbox)
        await until(
            lambda: (
                view.admin.get("/api/v1/namespaces/default/pods/daemonset-sandbox")["status"][
                    "phase"
                ]
                == "Running"
            ),
            deadline_s=SLOW,
            what="kube-scheduler gives a slot to a pod",
        )
    finally:
        view.admin.delete(f"{sets}/sandbox-restore-node-agent")


def _ready(pod: dict[str, Any]) -> bool:
    conditions = pod["status"].get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
