"""The chart on a real node: installed, restored with, upgraded under a restore, uninstalled.

Migration, operators and node agent run from an image of this checkout, as their pods say; the
restore's runner is an idle one that counts as loaded at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import pytest_asyncio

from sandbox_restore.agent.detect import Dimensions
from sandbox_restore.agent.machine import detect_here
from sandbox_restore.model.names import HOST_CPU_LABEL, NETWORK_SLOTS
from tests.support.demo.scene import DATABASE, Scene
from tests.support.fleet import SandboxSeed
from tests.support.helm import CHART, NAMESPACE, RELEASE, Helm
from tests.support.image import build_image
from tests.support.postgres import open_postgres
from tests.support.realnode import ApiService, RealNode, why_not
from tests.support.realnode.image import IMAGE as IDLE
from tests.support.simnode import CapturesInMemory, SimNode, load_matrix
from tests.support.testbed import ControlPlane, ensure_built, ensure_helm
from tests.support.waiting import until

REPOSITORY, TAG = "sandbox-restore.test/chart", "1"
AGENTS = "sandbox-restore-agents"
PORT = 5432
CORNER = "example.com/corner"
SLOW = 240.0
"""Seconds: scheduler, kubelet and interpreter start one after the other."""

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    """A control plane that the chart alone has given something."""
    if reason := why_not():
        pytest.skip(reason)
    with ControlPlane.start(ensure_built(), kwok=False) as plane, ApiService(plane):
        yield plane


@pytest_asyncio.fixture(scope="module")
async def scene(
    plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Scene]:
    """An empty database that pods can reach, with the operator's user and no schema."""
    folder, captures, matrix = tmp_path_factory.mktemp("scene"), CapturesInMemory(), load_matrix()
    with open_postgres() as postgres:
        for role in ("sandbox_restore_operator NOLOGIN", "operator LOGIN"):
            await postgres.execute(f"CREATE ROLE {role}")
        await postgres.execute("GRANT sandbox_restore_operator TO operator")
        nodes = SimNode(
            plane.kubeconfig, matrix=matrix, captures=captures, record=folder / "record.jsonl"
        )
        async with served(postgres.dsn, address=str(plane.api_service)):
            yield Scene(
                plane=plane,
                postgres=postgres,
                dsn=await postgres.create_database(DATABASE),
                matrix=matrix,
                fleet=(),
                captures=captures,
                nodes=nodes,
                folder=folder,
            )


@contextlib.asynccontextmanager
async def served(dsn: str, *, address: str) -> AsyncIterator[None]:
    """Hands connections to this address on to the server's Unix socket: pods have no other way."""
    (folder,) = parse_qs(urlsplit(dsn).query)["host"]

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while content := await source.read(2**16):
                target.write(content)
                await target.drain()
        target.close()

    async def connected(client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        server, to_server = await asyncio.open_unix_connection(f"{folder}/.s.PGSQL.{PORT}")
        await asyncio.gather(copy(client, to_server), copy(server, back))

    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # IP_FREEBIND: the address is on this machine only while a pod is.
    listening.setsockopt(socket.IPPROTO_IP, 15, 1)
    listening.bind((address, PORT))
    server = await asyncio.start_server(connected, sock=listening)
    try:
        yield
    finally:
        server.close()


def values(scene: Scene) -> dict[str, Any]:
    """What a user writes, for images that no registry has."""
    return {
        "image": {"repository": REPOSITORY, "tag": TAG, "pullPolicy": "Never"},
        "database": {"migration": {"secretKey": "owner-url"}},
        "podTemplate": {
            "spec": {
                "terminationGracePeriodSeconds": 1,
                "containers": [
                    {
                        "name": "runner",
                        "image": IDLE,
                        "imagePullPolicy": "Never",
                        "readinessProbe": {
                            "exec": {"command": ["/bin/busybox", "true"]},
                            "periodSeconds": 1,
                            "timeoutSeconds": 10,
                        },
                        "resources": {"limits": {NETWORK_SLOTS: "1"}},
                        "securityContext": {
                            "allowPrivilegeEscalation": False,
                            "capabilities": {"drop": ["ALL"]},
                        },
                    }
                ],
            }
        },
        "settings": {"hostCpuPlacementEnabled": True, "sweepInterval": "1s"},
        "nodeAgent": {"namespace": AGENTS, "settings": {"networkSlots": 4}},
    }


def sandbox(name: str, *, cpu: str) -> SandboxSeed:
    """A suspended sandbox, captured on this CPU, its snapshot in storage."""
    return SandboxSeed(
        id=name,
        namespace="team-a",
        snapshot_id=f"{name}-full-1",
        capture_cpu=cpu,
        captured_at=datetime.now(UTC).replace(microsecond=0) - timedelta(days=1),
        storage_uri=f"s3://snapshots/{name}/full-1",
    )


def reason(scene: Scene, seed: SandboxSeed) -> str:
    for restore in scene.restores(seed.namespace):
        if restore["metadata"]["name"] == seed.restore_name:
            conditions = restore.get("status", {}).get("conditions", ())
            return next((c["reason"] for c in conditions if c["type"] == "Succeeded"), "")
    return "gone"


def pods(scene: Scene, namespace: str) -> list[dict[str, Any]]:
    return list(scene.plane.api().items(f"/api/v1/namespaces/{namespace}/pods"))


async def says(scene: Scene, seed: SandboxSeed, wanted: str) -> None:
    await until(
        lambda: reason(scene, seed) == wanted,
        deadline_s=SLOW,
        what=f"{seed.restore_name} says {wanted}",
        detail=lambda: (reason(scene, seed), [p["status"] for p in pods(scene, "team-a")]),
    )


async def test_a_release_restores_survives_an_upgrade_and_leaves_sandboxes_when_it_goes(
    scene: Scene,
    plane: ControlPlane,
    nodes: Callable[..., RealNode],
    measured: Callable[[str], None],
    tmp_path: Path,
) -> None:
    cpu = detect_here(dimensions=Dimensions()).value
    if cpu is None:
        pytest.skip("this machine's CPU cannot be told")
    image = tmp_path / "image.tar"
    await asyncio.to_thread(build_image, f"{REPOSITORY}:{TAG}", image)
    node = nodes(images=[image])
    await asyncio.to_thread(node.start)
    await asyncio.to_thread(node.wait_ready)

    for namespace, level in ((NAMESPACE, "restricted"), (AGENTS, "privileged")):
        await scene.add_namespace(namespace)
        enforced = f"pod-security.kubernetes.io/enforce={level}"
        await scene.kubectl("label", "namespace", namespace, enforced)
    at = f"{plane.api_service}:{PORT}/{DATABASE}"
    owner = urlsplit(scene.postgres.dsn).username
    await scene.kubectl(
        *("create", "secret", "generic", "sandbox-restore-database", "-n", NAMESPACE),
        f"--from-literal=url=postgresql://operator@{at}",
        f"--from-literal=owner-url=postgresql://{owner}@{at}",
    )
    helm = Helm(ensure_helm(), home=tmp_path, kubeconfig=plane.kubeconfig)

    async def run(verb: str, **settings: Any) -> None:
        given = values(scene)
        given["settings"] |= settings
        arguments = (verb, RELEASE, str(CHART), "-n", NAMESPACE, "--wait", f"--timeout={SLOW:g}s")
        try:
            await asyncio.to_thread(helm.run, *arguments, values=given, timeout=2 * SLOW)
        except BaseException:
            print(await scene.kubectl("get", "pods", "-A", "-o", "wide"))
            print(await scene.kubectl("get", "events", "-A"))
            raise

    began = asyncio.get_running_loop().time()
    await run("install")
    measured(
        f"helm install on a real node, migration included, until all pods are ready: "
        f"{asyncio.get_running_loop().time() - began:.1f} s"
    )
    await until(
        lambda: node.get()["metadata"]["labels"].get(HOST_CPU_LABEL) == cpu,
        deadline_s=SLOW,
        what="the node is labelled by the agent",
    )

    await scene.add_namespace("team-a")
    first, second = sandbox("first", cpu=cpu), sandbox("second", cpu=cpu)
    await scene.add_sandboxes([first, second])
    await scene.apply([first], hostCpuPolicy="Required")
    await says(scene, first, "SnapshotLoaded")

    # Under way while every operator is replaced: no node takes it yet.
    await scene.apply([second], nodeSelector={CORNER: "free"})
    await says(scene, second, "Unschedulable")
    before = {pod["metadata"]["uid"] for pod in pods(scene, NAMESPACE)}
    await run("upgrade", logLevel="debug")
    operators = [
        pod
        for pod in pods(scene, NAMESPACE)
        if pod["metadata"]["labels"].get("app.kubernetes.io/component") == "operator"
        and "deletionTimestamp" not in pod["metadata"]
    ]
    assert len(operators) == 2
    assert not before & {pod["metadata"]["uid"] for pod in operators}
    plane.api().merge(node.path, {"metadata": {"labels": {CORNER: "free"}}})
    await says(scene, second, "SnapshotLoaded")

    sandboxes = {pod["metadata"]["uid"] for pod in pods(scene, "team-a")}
    assert len(sandboxes) == 2
    await asyncio.to_thread(helm.run, "uninstall", RELEASE, "-n", NAMESPACE, "--wait")
    await until(
        lambda: not [*pods(scene, NAMESPACE), *pods(scene, AGENTS)],
        deadline_s=SLOW,
        what="its pods are gone",
    )
    assert {p["metadata"]["uid"] for p in pods(scene, "team-a")} == sandboxes
    assert all(p["status"]["phase"] == "Running" for p in pods(scene, "team-a"))
    assert reason(scene, first) == reason(scene, second) == "SnapshotLoaded"
