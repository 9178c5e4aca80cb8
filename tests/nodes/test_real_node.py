"""Section 13 on a real kubelet: label before slots, and running sandboxes outlive its restarts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from sandbox_restore.model.names import HOST_CPU_LABEL, NETWORK_SLOTS
from tests.support.agentbed import AgentNode, History, history
from tests.support.operator_process import OperatorProcess
from tests.support.realnode import RealNode
from tests.support.realnode.image import IMAGE
from tests.support.realnode.node import idle_pod
from tests.support.waiting import until

ICE, CASCADE = "intel-6-106-6", "intel-6-85-7"
ICE_FILE, CASCADE_FILE = "intel-ice-lake.txt", "intel-cascade-lake.txt"
PODS = "/api/v1/namespaces/default/pods"
SLOW = 90.0
"""Seconds: a kubelet takes its time to start on a busy machine."""

pytestmark = pytest.mark.timeout(600)


class Bed:
    """A real node and its agent, and a sandbox on it."""

    def __init__(self, real: RealNode, folder: Path) -> None:
        self.real = real
        self.view = AgentNode(real.plane, real.name, folder)
        self.sandbox = f"sandbox-{real.name}"
        self.container = ""
        self.probes = 0

    async def start(self) -> None:
        await asyncio.to_thread(self.real.start)

    def agent(self, token: str, *, cpuinfo: str = ICE_FILE, **settings: str) -> OperatorProcess:
        return self.view.agent(
            token, cpuinfo=cpuinfo, agent_device_plugin_dir=str(self.real.plugins), **settings
        )

    async def settled(self, value: str = ICE) -> None:
        await self.view.settled(value, deadline_s=SLOW)

    async def run_sandbox(self) -> int:
        """A pod that holds a slot; returns the process id of its container."""
        pod = idle_pod(self.sandbox, node=self.real.name, slots=1, resource=NETWORK_SLOTS)
        self.view.admin.post(PODS, pod)
        await until(
            lambda: self.phase() == "Running",
            deadline_s=SLOW,
            what="the sandbox runs",
            detail=lambda: self.view.admin.get(f"{PODS}/{self.sandbox}")["status"],
        )
        status = self.view.admin.get(f"{PODS}/{self.sandbox}")["status"]
        self.container = status["containerStatuses"][0]["containerID"].removeprefix("containerd://")
        return self.process()

    def phase(self) -> str:
        status: dict[str, str] = self.view.admin.get(f"{PODS}/{self.sandbox}")["status"]
        return status["phase"]

    def process(self) -> int:
        """The process id of the sandbox's container; 0 when it does not run."""
        return self.real.running().get(self.container, 0)

    async def readmitted(self) -> None:
        """Wait until the kubelet has admitted a pod that was made now: it looks at the pods that
        were there before it started first, and ends at once those that it turns away."""
        self.probes += 1
        name = f"probe-{self.probes}-{self.real.name}"
        self.view.admin.post(PODS, idle_pod(name, node=self.real.name, resource=NETWORK_SLOTS))
        await until(
            lambda: self.view.admin.get(f"{PODS}/{name}")["status"]["phase"] == "Running",
            deadline_s=SLOW,
            what="a later pod runs",
            detail=self.real.died,
        )

    async def restart_kubelet(self, *, forget_checkpoint: bool = False) -> None:
        """Restart it and wait until it has told its Node's state and admitted its pods anew."""
        before = self.heartbeat()
        await asyncio.to_thread(self.real.restart_kubelet, forget_checkpoint=forget_checkpoint)
        await until(
            lambda: self.heartbeat() != before,
            deadline_s=SLOW,
            what="the kubelet reports",
            detail=self.real.died,
        )
        await self.readmitted()

    def heartbeat(self) -> str:
        conditions = self.real.get().get("status", {}).get("conditions", ())
        return next((c["lastHeartbeatTime"] for c in conditions if c["type"] == "Ready"), "")


@pytest.fixture
def bed(node: RealNode, tmp_path: Path) -> Bed:
    return Bed(node, tmp_path)


def unlabelled_with_slots(seen: History, value: str = ICE) -> list[tuple[str, str | None, int]]:
    return [state for state in seen.states if state[2] and state[1] != value]


async def test_a_new_node_never_shows_slots_before_its_label(bed: Bed) -> None:
    token = bed.view.bind_agent_pod(image=IMAGE)
    async with history(bed.view) as seen, bed.agent(token):
        await bed.start()
        await bed.settled()
    assert unlabelled_with_slots(seen) == []


@pytest.mark.parametrize("forget", [False, True], ids=["with checkpoint", "checkpoint lost"])
async def test_a_sandbox_outlives_a_kubelet_restart_and_the_slots_come_back(
    bed: Bed, forget: bool
) -> None:
    await bed.start()
    await asyncio.to_thread(bed.real.wait_ready)
    token = bed.view.bind_agent_pod(image=IMAGE)
    async with history(bed.view) as seen, bed.agent(token):
        await bed.settled()
        process = await bed.run_sandbox()
        assert process
        await bed.restart_kubelet(forget_checkpoint=forget)
        await bed.settled()
        await until(lambda: seen.states[-1][2] == 4, deadline_s=SLOW, what="the slots are told")
        assert (bed.phase(), bed.process()) == ("Running", process)
    assert unlabelled_with_slots(seen) == []


async def test_a_recreated_node_gets_its_label_and_then_its_slots(bed: Bed) -> None:
    await bed.start()
    await asyncio.to_thread(bed.real.wait_ready)
    token = bed.view.bind_agent_pod(image=IMAGE)
    async with history(bed.view) as seen, bed.agent(token):
        await bed.settled()
        uid = bed.real.get()["metadata"]["uid"]
        await asyncio.to_thread(bed.real.stop_kubelet)
        bed.view.delete()
        await asyncio.to_thread(bed.real.start_kubelet)
        await until(
            lambda: bed.real.get().get("metadata", {}).get("uid", uid) != uid,
            deadline_s=SLOW,
            what="a new Node of that name",
        )
        await bed.settled()
    assert unlabelled_with_slots(seen) == []


async def test_a_relabel_takes_the_slots_away_and_leaves_the_sandbox_alone(bed: Bed) -> None:
    await bed.start()
    await asyncio.to_thread(bed.real.wait_ready)
    token = bed.view.bind_agent_pod(image=IMAGE)
    async with bed.agent(token):
        await bed.settled()
        process = await bed.run_sandbox()
    async with history(bed.view) as seen, bed.agent(token, cpuinfo=CASCADE_FILE):
        await bed.settled(CASCADE)
        assert (bed.phase(), bed.process()) == ("Running", process)
        await bed.restart_kubelet()
        await bed.settled(CASCADE)
        assert (bed.phase(), bed.process()) == ("Running", process)
    labelled = next(i for i, state in enumerate(seen.states) if state[1] == CASCADE)
    assert seen.states[labelled][2] == 0


async def test_slots_patched_to_zero_end_a_sandbox_at_a_restart(bed: Bed) -> None:
    """Why the slots come from a device plugin; and that these tests would see a sandbox end."""
    await bed.start()
    await asyncio.to_thread(bed.real.wait_ready)
    status = f"{bed.view.path}/status"
    bed.view.admin.merge(status, {"status": {"capacity": {NETWORK_SLOTS: "4"}}})
    await until(lambda: bed.view.slots == 4, deadline_s=SLOW, what="the patched slots")
    await bed.run_sandbox()
    bed.view.admin.merge(status, {"status": {"capacity": {NETWORK_SLOTS: "0"}}})
    await until(lambda: bed.view.slots == 0, deadline_s=SLOW, what="no slots")
    await bed.restart_kubelet()
    await until(lambda: bed.process() == 0, deadline_s=SLOW, what="the sandbox is ended")


async def test_a_sandbox_outlives_the_agent_and_a_kubelet_restart_without_it(bed: Bed) -> None:
    await bed.start()
    await asyncio.to_thread(bed.real.wait_ready)
    token = bed.view.bind_agent_pod(image=IMAGE)
    async with bed.agent(token):
        await bed.settled()
        process = await bed.run_sandbox()
    await bed.restart_kubelet()
    assert (bed.phase(), bed.process()) == ("Running", process)
    async with bed.agent(token):
        await bed.settled()
        assert (bed.phase(), bed.process()) == ("Running", process)


async def test_a_waiting_restore_lands_only_where_the_label_says_that_it_may(
    nodes: Callable[[], RealNode], tmp_path: Path
) -> None:
    """Two real nodes join while a pod waits whose required term excludes the CPU of the first."""
    beds = []
    for cpuinfo in (CASCADE_FILE, ICE_FILE):
        folder = tmp_path / cpuinfo
        folder.mkdir()
        beds.append((Bed(nodes(), folder), cpuinfo))
    (excluded, _), (loader, _) = beds
    pod = idle_pod("waiting", node="", slots=1, resource=NETWORK_SLOTS)
    del pod["spec"]["nodeName"]
    term = {"matchExpressions": [{"key": HOST_CPU_LABEL, "operator": "NotIn", "values": [CASCADE]}]}
    pod["spec"]["affinity"] = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}
        }
    }
    admin = loader.view.admin
    admin.post(PODS, pod)
    async with contextlib.AsyncExitStack() as stack:
        for bed, cpuinfo in beds:
            token = bed.view.bind_agent_pod(image=IMAGE)
            await stack.enter_async_context(bed.agent(token, cpuinfo=cpuinfo))
        await excluded.start()
        await excluded.settled(CASCADE)
        assert "nodeName" not in admin.get(f"{PODS}/waiting")["spec"]
        await loader.start()
        await loader.settled(ICE)
        await until(
            lambda: admin.get(f"{PODS}/waiting")["status"]["phase"] == "Running",
            deadline_s=SLOW,
            what="the waiting pod runs",
        )
        assert admin.get(f"{PODS}/waiting")["spec"]["nodeName"] == loader.real.name
