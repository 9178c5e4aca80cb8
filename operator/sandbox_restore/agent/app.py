"""The node agent as a process: builds its parts once, runs them until told to stop."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import structlog

from sandbox_restore.agent.detect import Detection, Dimensions, Reason
from sandbox_restore.agent.machine import detect_here
from sandbox_restore.agent.metrics import AgentMetrics
from sandbox_restore.agent.planner import label_changes
from sandbox_restore.agent.runner import Clock, Look, Runner, Slots, wait
from sandbox_restore.agent.state import Kubelet, Step, Wishes
from sandbox_restore.errors import ConfigurationError, SandboxRestoreError, UnavailableError
from sandbox_restore.health import serve
from sandbox_restore.kube.client import KubeClient, load_configuration
from sandbox_restore.kube.node import KubeNode
from sandbox_restore.model.names import NETWORK_SLOTS
from sandbox_restore.settings import Settings, variable

if TYPE_CHECKING:
    from sandbox_restore.agent.deviceplugin.plugin import DevicePlugin

log = structlog.get_logger()

WATCH_SECONDS: Final = 240
"""A watch of the Node is asked for anew after this time."""

_STEPS: Final = 20
"""`--once` ends after so many looks, whatever it sees."""


class NoSlots:
    """Offers nothing: for `--once`, whose slots would go with its process."""

    state = Kubelet()

    async def offer(self, slots: int) -> None:
        raise UnavailableError(f"{slots} slots are to be offered: only a running agent can do that")


@dataclass(slots=True)
class AgentHealth:
    """What the probes look at. Ready: the last look saw the Node, or saw that there is none.

    A node that is held up is told by condition and metrics: an agent that is not ready for it
    would stop the roll-out of the DaemonSet.
    """

    last: Callable[[], Look | None]
    phase: str = "starting"
    fatal: str | None = None
    ages: Callable[[], dict[str, float | None]] = dict
    refresh: Callable[[], None] = field(default=lambda: None)

    def problems(self) -> list[str]:
        """Why this agent is not ready; empty when it is."""
        look = self.last()
        if look is None:
            return ["it has not looked at the Node yet"]
        return [look.plan.message] if look.seen.node_unread else []


def detector(settings: Settings) -> Callable[[], Detection]:
    """Tells this machine's CPU with what the settings ask for."""
    dimensions = Dimensions(
        hybrid=settings.agent_hybrid_cpus,
        kernel=settings.agent_kernel_in_value,
        suffix=settings.agent_value_suffix,
    )
    return lambda: detect_here(dimensions=dimensions, path=settings.agent_cpuinfo_file)


class Agent:
    """The parts of one agent, and what runs them."""

    def __init__(self, settings: Settings, *, force_relabel: bool) -> None:
        _check(settings)
        self.settings = settings
        self.metrics = AgentMetrics()
        self.detect = detector(settings)
        _refuse_elsewhere(self.detect())
        patience = settings.advertise_unlabelled_after
        self.wishes = Wishes(
            key=settings.host_cpu_label,
            slots=settings.network_slots,
            patience=None if patience is None else patience.total_seconds(),
            force_relabel=force_relabel,
        )
        self.stop = asyncio.Event()
        self.wake = asyncio.Event()

    async def run(self) -> int:
        """Keeps label and slots true until told to stop."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        async with AsyncExitStack() as stack:
            node = await self._node(stack)
            runner: Runner

            def kubelet_changed() -> None:
                runner.hurry()
                self.wake.set()

            plugin = self._plugin(kubelet_changed)
            runner = self._runner(node, plugin or NoSlots())
            health = AgentHealth(last=lambda: runner.last)
            await self._serve(health, stack)
            followers = [asyncio.create_task(self._follow_node(node), name="node")]
            if plugin is not None:
                stack.push_async_callback(plugin.stop)
                followers.append(asyncio.create_task(plugin.follow_kubelet(), name="kubelet"))
            log.info("agent_started", node=node.name, slots=self.wishes.slots)
            health.phase = "running"
            try:
                await self._keep(runner, followers)
            finally:
                for task in followers:
                    task.cancel()
                await asyncio.gather(*followers, return_exceptions=True)
        log.info("agent_stopped")
        return 0

    async def once(self, *, dry_run: bool) -> tuple[Look, bool]:
        """Label only: looks and acts until there is nothing left to do, or it failed.

        Returns the last look, and whether the label is right. With `dry_run` one look is taken
        and nothing is written.
        """
        async with AsyncExitStack() as stack:
            runner = self._runner(await self._node(stack), NoSlots())
            look = await runner.look(act=not dry_run, leave=Step.ADVERTISE)
            for _ in range(0 if dry_run else _STEPS):
                if look.failed or look.plan.step in (Step.NONE, Step.ADVERTISE):
                    break
                look = await runner.look(leave=Step.ADVERTISE)
        node, wanted = look.seen.node, look.seen.detection.value
        right = (
            node is not None
            and wanted is not None
            and not label_changes(node=node, wanted=wanted, key=self.wishes.key)
        )
        return look, right

    # --- parts

    async def _node(self, stack: AsyncExitStack) -> KubeNode:
        client = KubeClient(await load_configuration(), connections=4)
        stack.push_async_callback(client.close)
        return KubeNode(client, name=self.settings.node_name)

    def _plugin(self, changed: Callable[[], None]) -> DevicePlugin | None:
        """None where the slots come from elsewhere: then grpc is not even loaded."""
        if not self.wishes.slots:
            return None
        from sandbox_restore.agent.deviceplugin.plugin import DevicePlugin

        return DevicePlugin(
            folder=self.settings.agent_device_plugin_dir,
            resource=NETWORK_SLOTS,
            devices=self.wishes.slots,
            changed=changed,
        )

    def _runner(self, node: KubeNode, slots: Slots) -> Runner:
        settings = self.settings
        return Runner(
            node=node,
            slots=slots,
            detect=self.detect,
            wishes=self.wishes,
            check_pods=settings.agent_check_pods,
            clock=Clock(steady=time.monotonic, wall=lambda: datetime.now(UTC)),
            metrics=self.metrics,
            recheck=settings.agent_recheck_interval.total_seconds(),
            retry_max=settings.agent_retry_max.total_seconds(),
            instance=f"{socket.gethostname()}-{os.getpid()}",
        )

    async def _serve(self, health: AgentHealth, stack: AsyncExitStack) -> None:
        settings = self.settings
        try:
            port, stop = await serve(
                health,
                host=settings.health_host,
                port=settings.health_port,
                metrics=self.metrics.text,
            )
        except OSError as error:
            raise ConfigurationError(
                [
                    f"{variable('health_port')}={settings.health_port}: {error.strerror or error};"
                    " choose another, or 0 for a free one"
                ]
            ) from error
        stack.push_async_callback(stop)
        log.info("probes_served", host=settings.health_host, port=port)

    # --- running

    async def _keep(self, runner: Runner, followers: list[asyncio.Task[None]]) -> None:
        """Looks until told to stop; an unexpected error of a follower ends the process."""
        while not self.stop.is_set():
            for task in followers:
                if task.done():
                    task.result()
            look = await runner.look()
            if look.delay > 0 and not self.stop.is_set():
                await wait(self.wake, look.delay)

    async def _follow_node(self, node: KubeNode) -> None:
        """Wakes the agent when the Node changes; a watch that fails is tried again by and by."""
        pause = 1.0
        while True:
            try:
                async for _ in node.stirs(seconds=WATCH_SECONDS):
                    pause = 1.0
                    self.wake.set()
            except SandboxRestoreError as error:
                log.info("node_watch_failed", problem=str(error))
                await asyncio.sleep(pause)
                pause = min(2 * pause, self.settings.agent_retry_max.total_seconds())

    def _stop(self) -> None:
        self.stop.set()
        self.wake.set()


def _check(settings: Settings) -> None:
    if not settings.node_name:
        raise ConfigurationError(
            [
                f"{variable('node_name')}: not set; set it to the name of the Node that this agent"
                " runs on, in a pod from fieldRef spec.nodeName"
            ]
        )


def _refuse_elsewhere(found: Detection) -> None:
    """Section 13: the agent needs Linux; elsewhere it says so. An unreadable file is waited for."""
    if found.reason is Reason.NOT_LINUX:
        raise ConfigurationError([found.text])


def run(settings: Settings, *, force_relabel: bool) -> int:
    """Runs the agent until SIGTERM; its exit code."""

    async def main() -> int:
        return await Agent(settings, force_relabel=force_relabel).run()

    return asyncio.run(main())


def once(settings: Settings, *, force_relabel: bool, dry_run: bool) -> tuple[Look, bool]:
    """`--once` and `--dry-run`."""

    async def main() -> tuple[Look, bool]:
        return await Agent(settings, force_relabel=force_relabel).once(dry_run=dry_run)

    return asyncio.run(main())
