"""Looks at the node, asks the planner, carries one step out, tells the reason; again and again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, Protocol

import structlog

from sandbox_restore.agent.detect import Detection
from sandbox_restore.agent.metrics import AgentMetrics
from sandbox_restore.agent.planner import label_changes, plan
from sandbox_restore.agent.reading import condition_body, cut, event_body, node_seen
from sandbox_restore.agent.relabel import pods_ended_by
from sandbox_restore.agent.state import Kubelet, NodeSeen, Plan, Seen, Step, Waiting, Wishes
from sandbox_restore.errors import ConflictError, SandboxRestoreError
from sandbox_restore.kube.node import KubeNode
from sandbox_restore.redact import redact

log = structlog.get_logger()

FIRST_RETRY: Final = 0.5
"""Seconds before what failed is tried again; doubled with each further failure."""


class Slots(Protocol):
    """What offers slots to the kubelet: the device plugin, or nothing at all."""

    @property
    def state(self) -> Kubelet: ...
    async def offer(self, slots: int) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """`steady` in seconds, `wall` in UTC."""

    steady: Callable[[], float]
    wall: Callable[[], datetime]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a look found, and when the next one is due unless something happens before."""

    seen: Seen
    plan: Plan
    failed: bool
    delay: float


class Runner:
    """The agent of one Node. One look at a time."""

    def __init__(
        self,
        *,
        node: KubeNode,
        slots: Slots,
        detect: Callable[[], Detection],
        wishes: Wishes,
        check_pods: bool,
        clock: Clock,
        metrics: AgentMetrics,
        recheck: float,
        retry_max: float,
        instance: str,
    ) -> None:
        self._node = node
        self._slots = slots
        self._detect = detect
        self._detection: Detection | None = None
        self._wishes = wishes
        self._check_pods = check_pods
        self._clock = clock
        self._metrics = metrics
        self._recheck = recheck
        self._retry_max = retry_max
        self._instance = instance
        self._waiting: Waiting | None = None
        self._write_failed: tuple[str, str] = ("", "")
        """UID of the Node and why the last write of its label failed."""
        self._failures = 0
        self._retry_at = 0.0
        self._done: tuple[Step, str | None] | None = None
        """The step of the last look, if it was carried out: asked for again it did not help."""
        self._told: tuple[str, str] | None = None
        """UID of the Node and the reason that the last Event told."""
        self.last: Look | None = None

    def hurry(self) -> None:
        """What failed may work now: it is tried again at the next look, and not later."""
        self._retry_at = self._clock.steady()

    async def look(self, *, act: bool = True, leave: Step = Step.NONE) -> Look:
        """One look, at most one step, and what there is to tell.

        Without `act` nothing is written at all; the step `leave` is decided and not carried out.
        """
        seen = await self._see()
        found = plan(seen, wishes=self._wishes, waiting=self._waiting, now=self._clock.steady())
        found = replace(found, message=cut(redact(found.message)))
        if found.condition is not None:
            found = replace(found, condition=replace(found.condition, message=found.message))
        self._waiting = found.waiting
        if not act or found.step is leave is not Step.NONE:
            self.last = Look(seen=seen, plan=found, failed=False, delay=0.0)
            return self.last
        failed = bool(seen.node_unread) or seen.ended_pods is None
        if found.step is not Step.NONE and self._due(found):
            failed = not await self._carry_out(found, seen)
        elif found.step is not Step.NONE:
            failed = True
        else:
            self._done = None
        if failed and self._clock.steady() >= self._retry_at:
            self._back_off()
        elif not failed and found.step is Step.NONE:
            self._failures = 0
        await self._tell(found, seen)
        self._metrics.looked(seen, found, label_ok=self._label_ok(seen))
        self.last = Look(
            seen=seen, plan=found, failed=failed, delay=self._delay(found, failed=failed)
        )
        return self.last

    # --- seeing

    async def _see(self) -> Seen:
        if self._detection is None or self._detection.value is None:
            self._detection = self._detect()
        node, unread = None, ""
        try:
            body = await self._node.read()
            node = None if body is None else node_seen(body)
        except SandboxRestoreError as error:
            unread = str(error)
        ended, pods_unread = await self._ended_pods(node)
        failed_on, why = self._write_failed
        return Seen(
            detection=self._detection,
            node=node,
            node_unread=unread,
            kubelet=self._slots.state,
            ended_pods=ended,
            pods_unread=pods_unread,
            write_failed=why if node is not None and node.uid == failed_on else "",
        )

    async def _ended_pods(self, node: NodeSeen | None) -> tuple[tuple[str, ...] | None, str]:
        """Listed only when the label has to change: the list is the costliest request."""
        assert self._detection is not None
        wanted = self._detection.value
        if node is None or not self._check_pods:
            return (), ""
        if not label_changes(node=node, wanted=wanted, key=self._wishes.key):
            return (), ""
        try:
            pods = await self._node.pods()
        except SandboxRestoreError as error:
            return None, f"its pods cannot be listed: {error}"
        return (
            pods_ended_by(
                pods, node_name=node.name, labels=node.labels, key=self._wishes.key, value=wanted
            ),
            "",
        )

    # --- doing

    def _due(self, found: Plan) -> bool:
        """What failed waits for its time, whatever wakes the agent meanwhile. Taking slots away
        never waits."""
        return found.step is Step.TAKE_SLOTS or self._clock.steady() >= self._retry_at

    async def _carry_out(self, found: Plan, seen: Seen) -> bool:
        """True when the step was carried out and may have helped."""
        log.info("step_begun", step=found.step.value, reason=found.reason.value, label=found.label)
        try:
            match found.step:
                case Step.TAKE_SLOTS:
                    await self._offer(0)
                case Step.WRITE_LABEL:
                    await self._write_label(found, seen)
                case Step.ADVERTISE:
                    await self._offer(self._wishes.slots)
        except ConflictError as error:
            log.info("node_changed_meanwhile", problem=str(error))
            return False
        except SandboxRestoreError as error:
            log.warning("step_failed", step=found.step.value, problem=str(error))
            self._done = None
            return False
        again = self._done == (found.step, found.label)
        self._done = (found.step, found.label)
        return not again

    async def _write_label(self, found: Plan, seen: Seen) -> None:
        node = seen.node
        assert node is not None
        try:
            await self._node.write_label(
                self._wishes.key,
                found.label,
                uid=node.uid,
                before=node.labels.get(self._wishes.key),
                any_label=bool(node.labels),
            )
        except ConflictError:
            self._metrics.writes.labels("conflict").inc()
            raise
        except SandboxRestoreError as error:
            self._metrics.writes.labels("failed").inc()
            self._write_failed = (node.uid, f"the label cannot be written: {error}")
            raise
        self._metrics.writes.labels("written").inc()
        self._write_failed = ("", "")
        log.info("label_written", node=node.name, label=self._wishes.key, value=found.label)

    async def _offer(self, slots: int) -> None:
        try:
            await self._slots.offer(slots)
        except SandboxRestoreError:
            self._metrics.registrations.labels("failed").inc()
            raise
        self._metrics.registrations.labels("registered").inc()

    # --- telling

    async def _tell(self, found: Plan, seen: Seen) -> None:
        """Condition and Event; that they cannot be written stops nothing."""
        node = seen.node
        if node is None or found.condition is None:
            return
        if node.condition != found.condition:
            body = condition_body(found.condition, before=node.condition, now=self._clock.wall())
            try:
                await self._node.write_condition(body, uid=node.uid)
            except SandboxRestoreError as error:
                log.warning("condition_not_written", problem=str(error))
        # What an agent before this one has told is in the condition.
        before = self._told or (node.uid, node.condition.reason if node.condition else "")
        if found.event and before != (node.uid, found.reason.value):
            await self._create_event(found, node)
        self._told = (node.uid, found.reason.value)

    async def _create_event(self, found: Plan, node: NodeSeen) -> None:
        now = self._clock.wall()
        name = f"{node.name}.{int(now.timestamp() * 1e6):x}"
        event = event_body(found, node=node, name=name, instance=self._instance, now=now)
        try:
            await self._node.create_event(event)
        except SandboxRestoreError as error:
            log.warning("event_not_created", reason=found.reason.value, problem=str(error))

    # --- when next

    def _back_off(self) -> None:
        ceiling = min(self._retry_max, FIRST_RETRY * 2.0 ** min(self._failures, 16))
        self._failures += 1
        self._retry_at = self._clock.steady() + random.uniform(ceiling / 2, ceiling)

    def _delay(self, found: Plan, *, failed: bool) -> float:
        """Seconds until the next look unless something happens before."""
        now = self._clock.steady()
        if failed:
            delay = max(0.0, self._retry_at - now)
        elif found.step is not Step.NONE:
            delay = 0.0
        else:
            delay = random.uniform(self._recheck / 2, self._recheck)
        if found.look_again is not None:
            delay = min(delay, found.look_again)
        return delay

    def _label_ok(self, seen: Seen) -> bool:
        wanted = seen.detection.value
        return (
            seen.node is not None
            and wanted is not None
            and seen.node.labels.get(self._wishes.key) == wanted
        )


async def wait(event: asyncio.Event, seconds: float) -> None:
    """Until the event is set, which is taken back, or the time has passed."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
    event.clear()
