"""A real node, the agent beside it, and a sandbox on it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from sandbox_restore.model.names import HOST_CPU_LABEL, NETWORK_SLOTS
from tests.support.agentbed import AgentNode, History
from tests.support.operator_process import OperatorProcess
from tests.support.realnode import RealNode
from tests.support.realnode.image import IMAGE
from tests.support.realnode.node import idle_pod
from tests.support.waiting import until

ICE, CASCADE = "intel-6-106-6", "intel-6-85-7"
ICE_FILE, CASCADE_FILE = "intel-ice-lake.txt", "intel-cascade-lake.txt"
PODS = "/api/v1/namespaces/default/pods"
SLOTS = 4
SLOW = 90.0
"""Seconds: a kubelet takes its time to start on a busy machine."""


class Bed:
    """A real node and its agent, and a sandbox on it."""

    def __init__(self, real: RealNode, folder: Path) -> None:
        self.real = real
        self.view = AgentNode(real.plane, real.name, folder)
        self.sandbox = f"sandbox-{real.name}"
        self.container = ""
        self.probes = 0
        self.kubelet_started = 0.0
        """Of the clock `time.monotonic`."""

    async def start(self, *, ready: bool = True) -> None:
        await asyncio.to_thread(self.real.start)
        self.kubelet_started = time.monotonic()
        if ready:
            await asyncio.to_thread(self.real.wait_ready)

    def bind_agent_pod(self) -> str:
        """A pod of the agent's account on this node, and a token bound to it."""
        return self.view.bind_agent_pod(image=IMAGE)

    def agent(self, token: str, *, cpuinfo: str = ICE_FILE, **settings: str) -> OperatorProcess:
        return self.view.agent(
            token, cpuinfo=cpuinfo, agent_device_plugin_dir=str(self.real.plugins), **settings
        )

    async def settled(self, value: str = ICE) -> None:
        await self.view.settled(value, deadline_s=SLOW)

    def sandbox_pod(self, *, excluding: str | None = None) -> dict[str, Any]:
        """A pod that holds a slot, perhaps with the operator's term that excludes a CPU."""
        pod = idle_pod(self.sandbox, node=self.real.name, slots=1, resource=NETWORK_SLOTS)
        if excluding is not None:
            expression = {"key": HOST_CPU_LABEL, "operator": "NotIn", "values": [excluding]}
            terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
            required = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
            pod["spec"]["affinity"] = {"nodeAffinity": required}
        return pod

    async def run_sandbox(self, pod: dict[str, Any] | None = None) -> int:
        """A pod that holds a slot, or the given one; returns the process id of its container."""
        self.view.admin.post(PODS, pod or self.sandbox_pod())
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
        self.kubelet_started = time.monotonic()
        await until(
            lambda: self.heartbeat() != before,
            deadline_s=SLOW,
            what="the kubelet reports",
            detail=self.real.died,
        )
        await self.readmitted()

    async def registered(self, agent: OperatorProcess, *, times: int) -> None:
        """Wait until the agent has registered so often, and the kubelet has reported since."""
        await until(
            lambda: agent.log().count("device_plugin_registered") >= times,
            deadline_s=SLOW,
            what="the agent is registered",
            detail=agent.tail,
        )
        before = self.heartbeat()
        await until(
            lambda: self.heartbeat() != before,
            deadline_s=SLOW,
            what="the kubelet reports",
            detail=self.real.died,
        )

    def heartbeat(self) -> str:
        conditions = self.real.get().get("status", {}).get("conditions", ())
        return next((c["lastHeartbeatTime"] for c in conditions if c["type"] == "Ready"), "")


def unlabelled_with_slots(seen: History, value: str = ICE) -> list[tuple[str, str | None, int]]:
    """States that section 13 forbids: slots without this label."""
    return [state for state in seen.states if state[2] and state[1] != value]


def came_back(seen: History, start: float, *, slots: int = SLOTS) -> tuple[str, str]:
    """In words, how long after `start` the last label was there, and then all slots, for good."""
    label = seen.states[-1][1] or ICE
    told = []
    for name, holds in (
        ("label", lambda state: state[1] == label),
        ("slots", lambda state: state[2] == slots),
    ):
        states = seen.since(start)
        wrong = [at for at, state in states if not holds(state)]
        right = [at for at, state in states if holds(state) and at > max(wrong, default=-1.0)]
        assert right or not wrong, f"the {name} did not come back: {states}"
        told.append(f"{name} after {right[0]:.1f} s" if wrong else f"{name} shown throughout")
    return told[0], told[1]
