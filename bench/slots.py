"""What a kubelet's restart does to running pods that hold network slots (docs/adr).

`python -m bench.slots [--restarts N] [VARIANT ...]`: a real kubelet and containerd on this machine
(tests/support/realnode says what they need), one pod that holds a slot, N restarts for each
variant. A pod counts as ended when its phase is no longer Running.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandbox_restore.agent.deviceplugin import plugin as device_plugin
from sandbox_restore.agent.deviceplugin import v1beta1_pb2 as pb
from sandbox_restore.agent.deviceplugin.plugin import DevicePlugin
from sandbox_restore.logs import configure_logging
from sandbox_restore.model.names import NETWORK_SLOTS
from tests.support.realnode import RealNode, why_not
from tests.support.realnode.node import STATUS_SECONDS, idle_pod
from tests.support.testbed import ApiError, ControlPlane, ensure_built, wait_until

SLOTS = 4
SETTLE_SECONDS = 9.0
"""How long after the kubelet's first report the pod is looked at. A kubelet that turns a running
pod away ends it like any other, which is seen some seconds later."""

LATE_SECONDS = 6.0
"""How long the runtime keeps a kubelet waiting that has lost its folder at a boot."""

CHECKPOINT = "kubelet_internal_checkpoint"
PODS = "/api/v1/namespaces/default/pods"


@dataclass
class Tally:
    """What happened in the restarts of one variant."""

    outcomes: Counter[str] = field(default_factory=Counter)
    shown: Counter[str] = field(default_factory=Counter)
    """Allocatable slots that the Node showed in the end."""
    reasons: Counter[str] = field(default_factory=Counter)
    last_ended: bool = False
    ended_late: int = 0
    """Pods that ended after they had been looked at: then SETTLE_SECONDS is too short."""


class Bench:
    """One node, and what variants do with it."""

    def __init__(self, node: RealNode) -> None:
        self.node = node
        self.api = node.plane.api()
        self.plugin: DevicePlugin | None = None
        self.number = 0

    # the slots

    def patch(self, amount: str | None) -> None:
        """Slots as a patch of the Node's status: the way that the kubelet knows nothing of."""
        self.api.merge(
            f"{self.node.path}/status",
            {"status": {"capacity": {NETWORK_SLOTS: amount}}},
        )

    async def advertise(self) -> None:
        """Slots from a device plugin, registered anew with this kubelet."""
        if self.plugin is None:
            self.plugin = DevicePlugin(
                folder=self.node.plugins, resource=NETWORK_SLOTS, changed=lambda: None
            )
        for _ in range(50):
            with contextlib.suppress(Exception):
                await self.plugin.offer(SLOTS)
                return
            await asyncio.sleep(0.2)
        raise SystemExit("the device plugin could not be registered")

    async def no_plugin(self) -> None:
        if self.plugin is not None:
            await self.plugin.stop()
            self.plugin = None

    def shown(self) -> str:
        status = self.node.get().get("status", {})
        return str(status.get("allocatable", {}).get(NETWORK_SLOTS, "absent"))

    async def wait_shown(self, amount: str) -> None:
        await asyncio.to_thread(
            wait_until, lambda: self.shown() == amount, what=f"{amount} slots", timeout=60
        )

    # the pod

    async def pod(self) -> str:
        """A running pod that holds one slot."""
        self.number += 1
        name = f"sandbox-{self.number}"
        pod = idle_pod(name, node=self.node.name, slots=1, resource=NETWORK_SLOTS)
        self.api.post(PODS, pod)
        try:
            await asyncio.to_thread(
                wait_until,
                lambda: self.phase(name)[0] == "Running",
                what="the pod runs",
                timeout=60,
            )
        except Exception as error:
            raise SystemExit(f"{error}: {self.phase(name)}") from error
        return name

    def phase(self, name: str) -> tuple[str, str]:
        status = self.api.get(f"{PODS}/{name}")["status"]
        return status["phase"], status.get("reason", "")

    def forget_pods(self) -> None:
        for pod in list(self.api.items(PODS)):
            with contextlib.suppress(ApiError):
                self.api.delete(f"{PODS}/{pod['metadata']['name']}", grace_seconds=0)

    # one restart

    async def restart(self, *, forget: str) -> None:
        """`forget` "checkpoint": the checkpoint file is lost; "folder": all files beside it too;
        "boot": these, and the runtime answers only after the kubelet has registered its Node."""
        before = self.heartbeat()
        self.node.stop_kubelet()
        for path in self.node.plugins.iterdir():
            if forget in ("folder", "boot") or (forget and path.name == CHECKPOINT):
                path.unlink()
        if forget == "boot":
            self.node.signal("containerd", signal.SIGSTOP)
        self.node.start_kubelet()
        if forget == "boot":
            await asyncio.sleep(LATE_SECONDS)
            self.node.signal("containerd", signal.SIGCONT)
        await asyncio.to_thread(
            wait_until,
            lambda: self.heartbeat() != before,
            what="the kubelet reports",
            timeout=60,
        )

    def heartbeat(self) -> str:
        for condition in self.node.get().get("status", {}).get("conditions", ()):
            if condition["type"] == "Ready":
                return f"{condition['status']} {condition['lastHeartbeatTime']}"
        return ""


Variant = Callable[[Bench, Tally, int], Awaitable[None]]


def variant(
    *,
    device_plugin: bool,
    forget: str = "",
    taken: str = "",
    back: bool = True,
) -> Variant:
    """How a variant goes: slots, a pod, `taken` away or not, N restarts, what became of the pod."""

    async def run(bench: Bench, tally: Tally, restarts: int) -> None:
        name = ""
        for _ in range(restarts):
            if not name or bench.phase(name)[0] != "Running":
                if name and not tally.last_ended:
                    tally.ended_late += 1
                bench.forget_pods()
                if device_plugin:
                    await bench.advertise()
                else:
                    bench.patch(str(SLOTS))
                await bench.wait_shown(str(SLOTS))
                name = await bench.pod()
            await _take(bench, taken)
            await bench.restart(forget=forget)
            if device_plugin and back and not taken:
                await bench.advertise()
            await asyncio.sleep(SETTLE_SECONDS)
            phase, reason = bench.phase(name)
            tally.last_ended = phase != "Running"
            tally.outcomes["ended" if tally.last_ended else "alive"] += 1
            tally.shown[bench.shown()] += 1
            if tally.last_ended:
                tally.reasons[reason or phase] += 1
            if taken:
                # The next round begins with slots again.
                if device_plugin:
                    await bench.advertise()
                else:
                    bench.patch(str(SLOTS))
                await bench.wait_shown(str(SLOTS))
        bench.forget_pods()
        await bench.no_plugin()

    return run


async def _take(bench: Bench, how: str) -> None:
    match how:
        case "0":
            bench.patch("0")
        case "removed":
            bench.patch(None)
        case "no devices":
            assert bench.plugin is not None
            bench.plugin.take_away()
        case "unhealthy":
            assert bench.plugin is not None
            _unhealthy(bench.plugin)
        case "plugin gone":
            await bench.no_plugin()
        case _:
            return
    await asyncio.to_thread(
        wait_until, lambda: bench.shown() in ("0", "absent"), what="no slots", timeout=60
    )


def _unhealthy(plugin: DevicePlugin) -> None:
    """The same devices, none of them healthy; the agent itself never sends such a list."""
    healthy = device_plugin._devices

    def devices(slots: int) -> pb.ListAndWatchResponse:
        answer = healthy(slots)
        for device in answer.devices:
            device.health = "Unhealthy"
        return answer

    device_plugin._devices = devices
    plugin._tell()
    asyncio.get_running_loop().call_later(2, lambda: setattr(device_plugin, "_devices", healthy))


VARIANTS: dict[str, Variant] = {
    "status patch": variant(device_plugin=False),
    "status patch, folder emptied": variant(device_plugin=False, forget="folder"),
    "status patch, folder emptied, runtime late": variant(device_plugin=False, forget="boot"),
    "status patch, set to 0 before": variant(device_plugin=False, taken="0"),
    "status patch, removed before": variant(device_plugin=False, taken="removed"),
    "device plugin": variant(device_plugin=True),
    "device plugin, checkpoint lost": variant(device_plugin=True, forget="checkpoint"),
    "device plugin, folder emptied": variant(device_plugin=True, forget="folder"),
    "device plugin, folder emptied, runtime late": variant(device_plugin=True, forget="boot"),
    "device plugin, not back": variant(device_plugin=True, back=False),
    "device plugin, no devices before": variant(device_plugin=True, taken="no devices"),
    "device plugin, unhealthy before": variant(device_plugin=True, taken="unhealthy"),
    "device plugin, gone before": variant(device_plugin=True, taken="plugin gone"),
    "device plugin, no devices before, checkpoint lost": variant(
        device_plugin=True, taken="no devices", forget="checkpoint"
    ),
}


async def measure(chosen: list[str], *, restarts: int) -> None:
    with ControlPlane.start(ensure_built(), kwok=False) as plane:
        print(f"restarts: {restarts}; Node status every {STATUS_SECONDS} s\n")
        print("| slots from | pod alive | pod ended | why | slots shown after |")
        print("|---|---|---|---|---|", flush=True)
        for number, name in enumerate(chosen, start=1):
            began = time.monotonic()
            tally = await measure_one(plane, f"real-{number}", VARIANTS[name], restarts=restarts)
            print(
                f"| {name} | {tally.outcomes['alive']} | {tally.outcomes['ended']} |"
                f" {_words(tally.reasons)} | {_words(tally.shown)} |",
                flush=True,
            )
            if tally.ended_late:
                print(f"\n{tally.ended_late} more ended late; these figures are wrong\n")
            sys.stderr.write(f"{name}: {time.monotonic() - began:.0f} s\n")


async def measure_one(
    plane: ControlPlane, node_name: str, chosen: Variant, *, restarts: int
) -> Tally:
    """One variant on a node of its own: a kubelet remembers resources that it has once seen."""
    tally = Tally()
    node = RealNode(plane, node_name, folder=Path(tempfile.mkdtemp(prefix="rn", dir="/tmp")))
    try:
        with node:
            node.wait_ready()
            await chosen(Bench(node), tally, restarts)
    finally:
        node.remove()
    return tally


def _words(counts: Counter[Any]) -> str:
    return ", ".join(f"{what}: {count}" for what, count in counts.most_common()) or "-"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("variants", nargs="*", metavar="VARIANT", help=", ".join(VARIANTS))
    parser.add_argument("--restarts", type=int, default=20)
    arguments = parser.parse_args()
    if reason := why_not():
        sys.stderr.write(f"error: {reason}\n")
        return 2
    unknown = [name for name in arguments.variants if name not in VARIANTS]
    if unknown:
        parser.error(f"no such variant: {', '.join(unknown)}")
    configure_logging(level="error")
    asyncio.run(measure(arguments.variants or list(VARIANTS), restarts=arguments.restarts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
