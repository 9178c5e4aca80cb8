"""When the agent acts again: waits grow, waking it early does not shorten them, nothing spins."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from sandbox_restore.agent.detect import Detection
from sandbox_restore.agent.metrics import AgentMetrics
from sandbox_restore.agent.runner import Clock, Runner
from sandbox_restore.agent.state import Kubelet, Reason, Step, Wishes
from sandbox_restore.errors import ConflictError, RejectedError, UnavailableError
from sandbox_restore.model.names import HOST_CPU_LABEL

ICE, CASCADE = "intel-6-106-6", "intel-6-85-7"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Server:
    """One Node in memory; stands in for requests about it."""

    name = "n1"

    def __init__(self) -> None:
        self.labels: dict[str, str] = {"a": "b"}
        self.uid = "u1"
        self.conditions: list[dict[str, Any]] = []
        self.events: list[str] = []
        self.writes = 0
        self.refusal: Exception | None = None
        self.unread: Exception | None = None
        self.strips = False

    async def read(self) -> dict[str, Any]:
        if self.unread is not None:
            raise self.unread
        metadata = {"name": self.name, "uid": self.uid, "labels": dict(self.labels)}
        return {"metadata": metadata, "status": {"conditions": list(self.conditions)}}

    async def write_label(self, key: str, value: str | None, **_: object) -> None:
        self.writes += 1
        if self.refusal is not None:
            raise self.refusal
        if not self.strips:
            self.labels.pop(key, None)
            self.labels |= {key: value} if value is not None else {}

    async def write_condition(self, condition: Mapping[str, Any], *, uid: str) -> None:
        self.conditions = [dict(condition)]

    async def pods(self) -> list[dict[str, Any]]:
        return []

    async def create_event(self, event: Mapping[str, Any]) -> None:
        self.events.append(event["reason"])


class Slots:
    """A kubelet that takes what it is offered, unless it has a problem."""

    def __init__(self) -> None:
        self.state = Kubelet()
        self.problem = ""

    async def offer(self, slots: int) -> None:
        if self.problem:
            self.state = Kubelet(problem=self.problem)
            raise UnavailableError(self.problem)
        self.state = Kubelet(slots=slots, registered=True)


class Rig:
    def __init__(self, *, patience: float | None = 120.0, detection: str | None = ICE) -> None:
        self.time = 1000.0
        self.server = Server()
        self.slots = Slots()
        found = Detection(value=detection, text="" if detection else "no processor found")
        self.runner = Runner(
            node=self.server,  # type: ignore[arg-type]
            slots=self.slots,
            detect=lambda: found,
            wishes=Wishes(key=HOST_CPU_LABEL, slots=4, patience=patience),
            check_pods=True,
            clock=Clock(steady=lambda: self.time, wall=lambda: NOW),
            metrics=AgentMetrics(),
            recheck=300.0,
            retry_max=30.0,
            instance="test",
        )

    async def settle(self) -> list[Step]:
        """Look until there is something to wait for; the steps taken."""
        steps = []
        for _ in range(20):
            look = await self.runner.look()
            steps.append(look.plan.step)
            if look.delay > 0:
                return steps
        raise AssertionError(f"it spins: {steps}")


async def test_a_new_node_takes_two_steps_and_then_rests() -> None:
    rig = Rig()
    assert await rig.settle() == [Step.WRITE_LABEL, Step.ADVERTISE, Step.NONE]
    last = rig.runner.last
    assert last is not None
    assert 150 <= last.delay <= 300
    assert rig.server.events == ["Published"]


async def test_waits_grow_while_a_write_fails_and_waking_early_does_not_write() -> None:
    rig = Rig(patience=None)
    rig.server.refusal = RejectedError("403 no")
    delays = []
    for round_ in range(8):
        look = await rig.runner.look()
        assert look.failed
        assert rig.server.writes == round_ + 1
        delays.append(look.delay)
        again = await rig.runner.look()
        assert rig.server.writes == round_ + 1, "woken early"
        assert again.delay <= look.delay
        rig.time += look.delay
    assert all(delay <= 0.5 * 2**n for n, delay in enumerate(delays))
    assert all(delay >= 0.25 * 2**n for n, delay in enumerate(delays[:6]))
    assert max(delays) <= 30.0
    assert rig.server.events == ["LabelWriteFailed"]
    rig.server.refusal = None
    await rig.settle()
    assert rig.server.labels[HOST_CPU_LABEL] == ICE


async def test_a_label_that_is_stripped_again_does_not_make_it_spin() -> None:
    rig = Rig()
    rig.server.strips = True
    await rig.settle()
    assert rig.server.writes <= 2


async def test_a_conflict_is_tried_again_and_is_no_refusal() -> None:
    rig = Rig(patience=0.0)
    rig.server.refusal = ConflictError("changed")
    look = await rig.runner.look()
    assert look.failed
    assert look.plan.reason is Reason.LABEL_DIFFERS
    assert rig.slots.state.slots == 0


async def test_a_kubelet_that_is_away_is_tried_again_with_waits() -> None:
    rig = Rig()
    rig.slots.problem = "no kubelet"
    await rig.settle()
    await rig.runner.look()
    assert rig.server.conditions[0]["reason"] == "KubeletUnreachable"
    rig.slots.problem = ""
    rig.runner.hurry()
    await rig.settle()
    assert rig.slots.state.slots == 4


async def test_slots_are_taken_away_at_once_whatever_is_waited_for() -> None:
    rig = Rig()
    await rig.settle()
    rig.server.unread = UnavailableError("away")
    await rig.runner.look()
    assert rig.slots.state.slots == 4
    rig.server.unread = None
    rig.server.labels[HOST_CPU_LABEL] = CASCADE
    await rig.runner.look()
    assert rig.slots.state.slots == 0


async def test_a_reason_is_told_once_and_again_for_a_new_node() -> None:
    rig = Rig()
    await rig.settle()
    await rig.runner.look()
    assert rig.server.events == ["Published"]
    rig.server.uid, rig.server.labels, rig.server.conditions = "u2", {}, []
    await rig.settle()
    rig.time += 1.0
    await rig.settle()
    assert rig.server.events == ["Published", "Published"]


async def test_an_agent_that_starts_anew_does_not_tell_again_what_is_told() -> None:
    rig, later = Rig(), Rig()
    await rig.settle()
    later.server = rig.server
    later.runner._node = rig.server  # type: ignore[assignment]
    await later.settle()
    assert rig.server.events == ["Published"]


async def test_nothing_is_written_without_leave_to_act() -> None:
    rig = Rig()
    look = await rig.runner.look(act=False)
    assert look.plan.step is Step.WRITE_LABEL
    assert (rig.server.writes, rig.server.conditions, rig.server.events) == (0, [], [])


async def test_no_secret_of_a_server_gets_into_the_nodes_condition() -> None:
    rig = Rig(patience=None)
    rig.server.refusal = RejectedError("403: Authorization: Bearer Hunter2Zz is not valid")
    await rig.settle()
    await rig.runner.look()
    assert "403" in rig.server.conditions[0]["message"]
    assert "Hunter2Zz" not in rig.server.conditions[0]["message"]
