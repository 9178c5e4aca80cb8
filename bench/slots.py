"""What a kubelet's restart does to running pods that hold network slots (docs/adr).

`python -m bench.slots [--restarts N] [--at-once N] [VARIANT ...]`: a real kubelet and containerd
on this machine (tests/support/realnode says what they need), one pod that holds a slot, N restarts
for each variant, a node for each. A pod counts as ended when its phase is no longer Running.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandbox_restore.agent.deviceplugin import v1beta1_pb2 as pb
from sandbox_restore.agent.deviceplugin.plugin import DevicePlugin
from sandbox_restore.logs import configure_logging
from sandbox_restore.model.names import NETWORK_SLOTS
from tests.support.realnode import RealNode, why_not
from tests.support.realnode.node import STATUS_SECONDS, idle_pod
from tests.support.testbed import (
    ApiError,
    ControlPlane,
    TestbedError,
    ensure_built,
    wait_until,
)

SLOTS = 4
SETTLE_SECONDS = 5.0
"""How long after a later pod runs the pod is looked at. A kubelet that starts admits the pods that
were there first, and ends those that it turns away like any other, which is seen a moment later."""

CHECKPOINT = "kubelet_internal_checkpoint"
PODS = "/api/v1/namespaces/default/pods"


class BenchError(Exception):
    """A variant could not be measured."""


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


class Plugin(DevicePlugin):
    """The agent's device plugin, which can also say that there are no devices at all."""

    empty = False

    async def _list_and_watch(
        self, request: pb.Empty, context: Any
    ) -> AsyncIterator[pb.ListAndWatchResponse]:
        async with contextlib.aclosing(super()._list_and_watch(request, context)) as answers:
            async for answer in answers:
                yield pb.ListAndWatchResponse() if self.empty else answer


class Bench:
    """One node, and what variants do with it."""

    def __init__(self, node: RealNode) -> None:
        self.node = node
        self.api = node.plane.api()
        self.plugin: Plugin | None = None
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
            self.plugin = Plugin(
                folder=self.node.plugins,
                resource=NETWORK_SLOTS,
                devices=SLOTS,
                changed=lambda: None,
            )
        self.plugin.empty = False
        for _ in range(50):
            with contextlib.suppress(Exception):
                await self.plugin.offer(SLOTS)
                return
            await asyncio.sleep(0.2)
        raise BenchError("the device plugin could not be registered")

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

    async def pod(self, *, slots: int = 1) -> str:
        """A running pod that holds one slot."""
        self.number += 1
        name = f"{self.node.name}-{self.number}"
        pod = idle_pod(name, node=self.node.name, slots=slots, resource=NETWORK_SLOTS)
        self.api.post(PODS, pod)
        try:
            await asyncio.to_thread(
                wait_until,
                lambda: self.phase(name)[0] == "Running",
                what="the pod runs",
                timeout=60,
            )
        except TestbedError as error:
            raise BenchError(f"{error}: {self.phase(name)[1]}") from error
        return name

    def phase(self, name: str) -> tuple[str, str]:
        """The pod's phase, and the words that its status has for it."""
        status = self.api.get(f"{PODS}/{name}")["status"]
        words = [status["phase"], status.get("reason", "")]
        for container in status.get("containerStatuses", ()):
            ended = container["state"].get("terminated", {})
            words += [f"{ended['reason']}, exit code {ended['exitCode']}"] if ended else []
        return status["phase"], " ".join(word for word in words if word)

    async def forget_pods(self) -> None:
        """Delete this node's pods and wait until they are gone, their slots with them."""
        for name in self.pods():
            with contextlib.suppress(ApiError):
                self.api.delete(f"{PODS}/{name}")
        await asyncio.to_thread(
            wait_until, lambda: not self.pods(), what="the pods are gone", timeout=60
        )

    def pods(self) -> list[str]:
        found = self.api.items(PODS)
        return [p["metadata"]["name"] for p in found if p["spec"].get("nodeName") == self.node.name]

    # one restart

    async def restart(self, *, forget: str) -> None:
        """`forget` "checkpoint": the checkpoint file is lost; "folder": all files beside it too."""
        before = self.heartbeat()
        await asyncio.to_thread(self.node.stop_kubelet)
        for path in self.node.plugins.iterdir():
            if forget == "folder" or (forget and path.name == CHECKPOINT):
                path.unlink()
        self.node.start_kubelet()
        await asyncio.to_thread(
            wait_until,
            lambda: self.heartbeat() != before,
            what="the kubelet reports",
            timeout=60,
        )

    async def readmitted(self) -> None:
        """Wait until the kubelet runs a pod that was made now: by then it has looked at all others
        once more, and told those that it turns away to end."""
        probe = await self.pod(slots=0)
        await asyncio.sleep(SETTLE_SECONDS)
        with contextlib.suppress(ApiError):
            self.api.delete(f"{PODS}/{probe}")

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
                await bench.forget_pods()
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
            await bench.readmitted()
            phase, words = bench.phase(name)
            tally.last_ended = phase != "Running"
            tally.outcomes["ended" if tally.last_ended else "alive"] += 1
            tally.shown[bench.shown()] += 1
            if tally.last_ended:
                tally.reasons[words] += 1
            if taken or not device_plugin:
                # The next round begins with slots again.
                if device_plugin:
                    await bench.advertise()
                else:
                    bench.patch(str(SLOTS))
                await bench.wait_shown(str(SLOTS))
        if not tally.last_ended and bench.phase(name)[0] != "Running":
            tally.ended_late += 1
        await bench.forget_pods()
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
            bench.plugin.empty = True
            await bench.plugin.offer(0)
        case "unhealthy":
            assert bench.plugin is not None
            await bench.plugin.offer(0)
        case "plugin gone":
            await bench.no_plugin()
        case _:
            return
    await asyncio.to_thread(
        wait_until, lambda: bench.shown() in ("0", "absent"), what="no slots", timeout=60
    )


VARIANTS: dict[str, Variant] = {
    "status patch": variant(device_plugin=False),
    "status patch, checkpoint lost": variant(device_plugin=False, forget="checkpoint"),
    "status patch, folder emptied": variant(device_plugin=False, forget="folder"),
    "status patch, set to 0 before": variant(device_plugin=False, taken="0"),
    "status patch, removed before": variant(device_plugin=False, taken="removed"),
    "device plugin": variant(device_plugin=True),
    "device plugin, checkpoint lost": variant(device_plugin=True, forget="checkpoint"),
    "device plugin, folder emptied": variant(device_plugin=True, forget="folder"),
    "device plugin, not back": variant(device_plugin=True, back=False),
    "device plugin, no devices before": variant(device_plugin=True, taken="no devices"),
    "device plugin, unhealthy before": variant(device_plugin=True, taken="unhealthy"),
    "device plugin, gone before": variant(device_plugin=True, taken="plugin gone"),
    "device plugin, no devices before, checkpoint lost": variant(
        device_plugin=True, taken="no devices", forget="checkpoint"
    ),
    "device plugin, unhealthy before, checkpoint lost": variant(
        device_plugin=True, taken="unhealthy", forget="checkpoint"
    ),
    "device plugin, gone before, checkpoint lost": variant(
        device_plugin=True, taken="plugin gone", forget="checkpoint"
    ),
}


async def measure(chosen: list[str], *, restarts: int, at_once: int) -> None:
    with ControlPlane.start(ensure_built(), kwok=False) as plane:
        print(f"restarts: {restarts}; Node status every {STATUS_SECONDS} s\n")
        print("| slots from | pod alive | pod ended | why | slots shown after |")
        print("|---|---|---|---|---|", flush=True)
        free = asyncio.Semaphore(at_once)

        async def one(number: int, name: str) -> None:
            async with free:
                await _report(plane, f"real-{number}", name, restarts=restarts)

        results = await asyncio.gather(
            *(one(number, name) for number, name in enumerate(chosen, start=1)),
            return_exceptions=True,
        )
    for name, result in zip(chosen, results, strict=True):
        if isinstance(result, BaseException):
            print(f"\n{name}: not measured: {result}")


async def _report(plane: ControlPlane, node_name: str, name: str, *, restarts: int) -> None:
    began = time.monotonic()
    tally = await measure_one(plane, node_name, VARIANTS[name], restarts=restarts)
    print(
        f"| {name} | {tally.outcomes['alive']} | {tally.outcomes['ended']} |"
        f" {_words(tally.reasons)} | {_words(tally.shown)} |",
        flush=True,
    )
    if tally.ended_late:
        print(f"\n{name}: {tally.ended_late} more ended late; its figures are wrong\n", flush=True)
    sys.stderr.write(f"{name}: {time.monotonic() - began:.0f} s\n")


async def measure_one(
    plane: ControlPlane, node_name: str, chosen: Variant, *, restarts: int
) -> Tally:
    """One variant on a node of its own: a kubelet remembers resources that it has once seen."""
    tally = Tally()
    node = RealNode(plane, node_name, folder=Path(tempfile.mkdtemp(prefix="rn", dir="/tmp")))
    try:
        await asyncio.to_thread(node.start)
        await asyncio.to_thread(node.wait_ready)
        await chosen(Bench(node), tally, restarts)
    finally:
        await asyncio.to_thread(node.stop)
        node.remove()
    return tally


def _words(counts: Counter[Any]) -> str:
    return ", ".join(f"{what}: {count}" for what, count in counts.most_common()) or "-"


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.slots", description=__doc__)
    parser.add_argument("variants", nargs="*", metavar="VARIANT", help=", ".join(VARIANTS))
    parser.add_argument("--restarts", type=int, default=20)
    parser.add_argument("--at-once", type=int, default=2, help="variants measured at a time")
    arguments = parser.parse_args(given)
    if reason := why_not():
        sys.stderr.write(f"error: {reason}\n")
        return 2
    unknown = [name for name in arguments.variants if name not in VARIANTS]
    if unknown:
        parser.error(f"no such variant: {', '.join(unknown)}")
    configure_logging(level="error")
    asyncio.run(
        measure(
            arguments.variants or list(VARIANTS),
            restarts=arguments.restarts,
            at_once=arguments.at_once,
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
