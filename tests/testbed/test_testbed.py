"""The test bed itself: a real control plane that starts, schedules, and leaves nothing behind."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.testbed import (
    ApiError,
    ComponentDiedError,
    ControlPlane,
    NodeSpec,
    Programs,
    Taint,
    TestbedError,
    User,
    ensure_built,
    wait_until,
)
from tests.support.testbed.ports import is_free

REPOSITORY = Path(__file__).parents[2]
PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture(scope="module")
def programs() -> Programs:
    return ensure_built()


@pytest.fixture(scope="module")
def cluster(programs: Programs) -> Iterator[ControlPlane]:
    users = [User("visitor", groups=("visitors", "guests"))]
    with ControlPlane.start(programs, audit=True, users=users, node_grace=12) as plane:
        # Lost only when the tests are half through: what takes time goes on meanwhile.
        plane.add_nodes([NodeSpec("silenced"), NodeSpec("alive")])
        plane.wait_nodes_ready(names=["silenced", "alive"])
        plane.silence_node("silenced")
        yield plane


@pytest.fixture
def node(cluster: ControlPlane, request: pytest.FixtureRequest) -> str:
    """A Ready node of its own for each test, labelled and tainted with its name."""
    name = str(request.node.name).removeprefix("test_").replace("_", "-")
    taint = Taint("only", value=name)
    cluster.add_nodes([NodeSpec(name, labels={"only": name}, taints=[taint])])
    cluster.wait_nodes_ready(names=[name])
    return name


def pod_for(node: str, **spec: object) -> dict[str, Any]:
    """A pod that only the node of that name fits."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"pod-{node}"},
        "spec": {
            "containers": [{"name": "main", "image": "none"}],
            "tolerations": [{"key": "only", "operator": "Equal", "value": node}],
            "nodeSelector": {"only": node},
            **spec,
        },
    }


def create_bound_pod(cluster: ControlPlane, node: str) -> str:
    """Create a pod for the node, wait until the scheduler has bound it, return its path."""
    api = cluster.api()
    api.post(PODS, pod_for(node))
    path = f"{PODS}/pod-{node}"
    bound = wait_until(
        lambda: api.get(path)["spec"].get("nodeName"), what="the pod is bound", timeout=10
    )
    assert bound == node
    return path


def processes_of(root: Path) -> list[int]:
    """Ids of the processes whose command line names the folder `root`."""
    listed = subprocess.run(
        ["ps", "-A", "-ww", "-o", "pid=,stat=,args="], capture_output=True, text=True, check=True
    ).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()]
    return [
        int(row[0])
        for row in rows
        if len(row) == 3 and str(root) in row[2] and not row[1].startswith("Z")
    ]


def test_a_node_ends_ready_and_keeps_what_its_spec_says(cluster: ControlPlane) -> None:
    spec = NodeSpec(
        "spec",
        labels={"cpu": "icelake", "kubernetes.io/arch": "arm64"},
        annotations={"note": "kept"},
        taints=[Taint("dedicated", value="restore", effect="NoExecute")],
        unschedulable=True,
        allocatable={"cpu": "3", "example.com/gpu": "1", "memory": None},
    )
    cluster.add_nodes([spec])
    cluster.wait_nodes_ready(names=["spec"])

    node = cluster.api().get("/api/v1/nodes/spec")

    assert node["metadata"]["labels"]["cpu"] == "icelake"
    assert node["metadata"]["labels"]["kubernetes.io/arch"] == "arm64"
    assert node["metadata"]["annotations"]["note"] == "kept"
    assert node["spec"]["unschedulable"] is True
    taints = {taint["key"]: taint.get("value", "") for taint in node["spec"]["taints"]}
    assert taints == {"dedicated": "restore", "node.kubernetes.io/unschedulable": ""}
    assert node["status"]["allocatable"] == {
        "cpu": "3",
        "pods": "110",
        "example.com/gpu": "1",
        "space.pplx.net/network-slots": "100",
    }


def test_the_scheduler_binds_a_pod_to_the_only_fitting_node(
    cluster: ControlPlane, node: str
) -> None:
    create_bound_pod(cluster, node)


def test_kwok_leaves_pods_alone(cluster: ControlPlane, node: str) -> None:
    api = cluster.api()
    path = create_bound_pod(cluster, node)
    api.delete(path, grace_seconds=1)

    # Only kwok makes this node Ready, so it has worked since the pod was deleted.
    api.post(
        "/api/v1/nodes",
        {"metadata": {"name": "later", "labels": {"kwok.x-k8s.io/node": "fake"}}},
    )
    cluster.wait_nodes_ready(names=["later"])

    pod = api.get(path)
    assert pod["status"]["phase"] == "Pending"
    assert "containerStatuses" not in pod["status"]
    assert pod["metadata"]["deletionTimestamp"]
    entries = [json.loads(line) for line in cluster.audit_log.read_text().splitlines()]
    by_kwok = Counter(
        (entry["objectRef"]["resource"], entry["verb"])
        for entry in entries
        if entry["user"]["username"] == "kwok" and "objectRef" in entry
    )
    assert by_kwok["leases", "create"]
    assert {verb for resource, verb in by_kwok if resource == "pods"} <= {"get", "list", "watch"}

    api.delete(path, grace_seconds=0)
    with pytest.raises(ApiError, match="404"):
        api.get(path)


def test_conditions_of_a_test_survive_the_heartbeats(cluster: ControlPlane, node: str) -> None:
    api = cluster.api()
    services = {"type": "space.pplx.net/NodeServicesReady", "status": "True", "reason": "Test"}
    api.strategic(f"/api/v1/nodes/{node}/status", {"status": {"conditions": [services]}})
    cluster.set_node_ready(node, ready=False)

    def taints() -> set[str]:
        return {taint["key"] for taint in api.get(f"/api/v1/nodes/{node}")["spec"]["taints"]}

    wait_until(
        lambda: "node.kubernetes.io/not-ready" in taints(), what="node is tainted", timeout=15
    )
    shown = api.get(f"/api/v1/nodes/{node}")["status"]["conditions"]
    statuses = {condition["type"]: condition["status"] for condition in shown}
    assert statuses["Ready"] == "False"
    assert statuses["space.pplx.net/NodeServicesReady"] == "True"

    cluster.set_node_ready(node, ready=True)
    cluster.wait_nodes_ready(names=[node])


def test_two_hundred_nodes(cluster: ControlPlane) -> None:
    names = [f"many-{number}" for number in range(200)]
    taint = Taint("only", value="many")
    cluster.add_nodes([NodeSpec(name, taints=[taint]) for name in names])
    cluster.wait_nodes_ready(names=names)

    with pytest.raises(ApiError, match="already exists"):
        cluster.add_nodes([NodeSpec("many-0")])


def test_users_have_the_rights_that_they_are_given(cluster: ControlPlane) -> None:
    def may(user: str, verb: str, resource: str) -> bool:
        return cluster.kubectl("auth", "can-i", verb, resource, user=user, check=False).stdout == (
            "yes\n"
        )

    assert may("admin", "delete", "nodes")
    assert not may("operator", "list", "pods")
    cluster.kubectl("create", "clusterrole", "see-pods", "--verb=list", "--resource=pods")
    cluster.kubectl(
        "create", "clusterrolebinding", "guests", "--clusterrole=see-pods", "--group=guests"
    )
    assert may("visitor", "list", "pods")
    with pytest.raises(TestbedError, match="forbidden"):
        cluster.kubectl("get", "pods", user="viewer")
    with pytest.raises(TestbedError, match="no token"):
        cluster.kubeconfig_for("nobody")


def test_kubectl_takes_standard_input_and_says_why_it_fails(cluster: ControlPlane) -> None:
    manifest = json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "given"}})
    assert "created" in cluster.kubectl("create", "-f", "-", stdin=manifest).stdout
    with pytest.raises(TestbedError, match="AlreadyExists"):
        cluster.kubectl("create", "-f", "-", stdin=manifest)


def test_the_api_server_comes_back_with_its_data(cluster: ControlPlane, node: str) -> None:
    cluster.stop_apiserver()
    with pytest.raises(TestbedError, match="no answer"):
        cluster.api().get("/api/v1/nodes")

    cluster.start_apiserver()

    assert cluster.api().get(f"/api/v1/nodes/{node}")["metadata"]["labels"]["only"] == node
    create_bound_pod(cluster, node)


def test_a_silenced_node_is_lost_and_others_are_not(cluster: ControlPlane) -> None:
    def ready(name: str) -> str:
        conditions = cluster.api().get(f"/api/v1/nodes/{name}")["status"]["conditions"]
        return next(str(one["status"]) for one in conditions if one["type"] == "Ready")

    wait_until(lambda: ready("silenced") == "Unknown", what="the node is lost", timeout=40)

    assert ready("alive") == "True"


def test_stop_leaves_no_process_no_port_and_no_folder(programs: Programs) -> None:
    plane = ControlPlane.start(programs)
    port = int(plane.server.rpartition(":")[2])
    assert len(processes_of(plane.root)) == 5
    assert not is_free(port)

    plane.stop()

    assert not processes_of(plane.root)
    assert is_free(port)
    assert not plane.root.exists()
    plane.stop()


def test_a_killed_test_run_leaves_no_process(tmp_path: Path) -> None:
    root = tmp_path / "root"
    # Without controllers, so that this too is run: a node is free of taints at once.
    script = (
        "import sys, signal, pathlib\n"
        "from tests.support.testbed import ControlPlane, NodeSpec, ensure_built\n"
        "root = pathlib.Path(sys.argv[1])\n"
        "plane = ControlPlane.start(ensure_built(), root=root, controllers=False)\n"
        "plane.add_nodes([NodeSpec('a')])\n"
        "plane.wait_nodes_ready(timeout=0)\n"
        "plane.kubectl('run', 'pod', '--image=none')\n"
        "print('up', flush=True)\n"
        "signal.pause()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(root)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
    ) as run:
        assert run.stdout
        assert run.stdout.readline() == "up\n"
        assert len(processes_of(root)) >= 3
        os.kill(run.pid, signal.SIGKILL)

    wait_until(lambda: not processes_of(root), what="no process is left", timeout=20)


def test_a_program_that_dies_at_the_start_is_named(programs: Programs, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho its last words\nexit 3\n")
    broken.chmod(0o755)
    paths = {name: getattr(programs, name) for name in Programs.__annotations__}
    root = tmp_path / "root"

    with pytest.raises(ComponentDiedError, match=r"(?s)kube-apiserver.*exit code 3.*last words"):
        ControlPlane.start(Programs(**{**paths, "kube_apiserver": broken}), root=root)

    assert not processes_of(root)
