"""The rules of the state machine: everything that may happen next, as far as a test can choose it.

The same events and invariants as the explicit-state model that the protocol was checked with, on
the real planner, reconciler and store; and one that the model lacks: the same machine registers
again under a new Node UID.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, ClassVar, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.machine.beginnings import BEGINNINGS, UNDER_WAY, begin
from tests.machine.cluster import ViolationError, Vm
from tests.machine.ending import come_to_rest
from tests.machine.faults import node_faults
from tests.machine.moves import moves, reject
from tests.machine.story import RIGHT, WRONG, Rig, Story
from tests.support.gates import Fate

T = TypeVar("T")

WHO = st.integers(0, 1)
NEWS = st.sampled_from(("nothing", "all", "all", "all", "pods", "nodes", "restores", "row"))
PERMITS = st.sampled_from((0, 1, 1, 2, 3, 1000, 1000, 1000))
FATES = st.sampled_from((*[Fate.ANSWERED] * 9, Fate.UNANSWERED, Fate.LOST, Fate.LATE))
WEIGHTS = {
    "operator": 10, "world": 12, "report": 3, "well": 3, "late": 2, "time": 2,
    "guest": 4, "user": 3, "node": 3, "platform": 1, "killed": 2,
}  # fmt: skip
"""How often each kind of event is drawn, one against another."""
SPARED = st.sampled_from(((), (), ("node",), ("user",), ("killed", "late"), ("guest", "platform")))
"""Kinds that an example does without: what needs many steps of the others then comes to pass."""
SECONDS = st.sampled_from((3, 10, 31, 61, 125))
GUEST = ["command", "access", "unrecorded", "suspend", "suspend", "capture", "end", "reject"]
USER = [*["create"] * 3, *["delete"] * 2, *["pod"] * 4, "deadline", "suspend", "go on", "go on"]
MOST_RESTORES = 4
VARIANTS: tuple[dict[str, object], ...] = (
    {},
    {},
    {},
    {"hostCpuPolicy": "Required"},
    {"hostCpuPolicy": "Ignore"},
    {"backoffLimit": 1},
    {"evacuation": {"cohort": "blue"}},
    {"snapshotId": "box-s1"},
)


class ProtocolMachine(RuleBasedStateMachine):
    """One sandbox; two operators that share nothing but the database and the API server.

    What is drawn and not possible now does nothing.
    """

    rig: ClassVar[Rig]
    story: Story | None = None

    @initialize(
        start=st.sampled_from((*sorted(BEGINNINGS), "dead", "dead")),
        gates=st.sampled_from(((True, True), (True, True), (True, False))),
        odd=st.sampled_from((WRONG, RIGHT)),
        spec=st.sampled_from(VARIANTS),
        spared=SPARED,
        writes=st.integers(0, 9),
    )
    def begin(
        self,
        start: str,
        gates: tuple[bool, bool],
        odd: str,
        spec: dict[str, object],
        spared: tuple[str, ...],
        writes: int,
    ) -> None:
        self.spared = spared
        self.rig.examples += 1
        self.story = Story(self.rig, gates=gates, odd=odd)
        if start not in UNDER_WAY:
            self.story.add_restore(**spec)
        self.run(begin(self.story, start, writes=writes))
        if start in UNDER_WAY:
            self.story.add_restore(**spec)

    def run(self, work: Awaitable[Any]) -> Any:
        return self.rig.loop.run_until_complete(work)

    def step(self, what: str, work: Callable[[], object]) -> None:
        """One step: a second passes, something happens, everybody comes to rest."""
        self.rig.steps += 1
        self.of.cluster.pass_time(timedelta(seconds=1))
        self.run(self.of.step(what, work))

    def teardown(self) -> None:
        if self.story is not None:
            try:
                self.run(come_to_rest(self.story))
            except ViolationError as error:
                error.add_note(self.story.last_lines())
                raise
            self.story.count()

    @property
    def of(self) -> Story:
        assert self.story is not None
        return self.story

    # One rule and its weights: with a rule for each event they would be drawn alike, and whole
    # examples would pass without an operator.
    @rule(data=st.data())
    def something_happens(self, data: st.DataObject) -> None:
        kinds = [k for k, n in WEIGHTS.items() if k not in self.spared for _ in range(n)]
        match draw(data, kinds, "kind"):
            case "operator":
                self.an_operator_goes_on(
                    data.draw(WHO, label="who"),
                    data.draw(NEWS, label="news"),
                    data.draw(PERMITS, label="requests"),
                    data.draw(FATES, label="fate"),
                    fine=data.draw(st.sampled_from((False, False, True)), label="reads too"),
                )
            case "world":
                self.the_world_moves(data)
            case "report":
                self.the_platform_reports(data)
            case "well":
                self.all_goes_well_for_a_while(data.draw(WHO, label="who"))
            case "late":
                self.a_late_request_arrives(data)
            case "time":
                seconds = data.draw(SECONDS, label="seconds")
                self.step(f"{seconds} s pass", lambda: self.of.pass_time(seconds))
            case "guest":
                self.a_guest_lives(data)
            case "user":
                self.a_user_acts(data)
            case "node":
                self.something_befalls_a_node(data)
            case "platform":
                self.the_platform_acts(data)
            case "killed":
                self.an_operator_is_killed(data)

    def an_operator_goes_on(
        self, who: int, news: str, permits: int, fate: Fate = Fate.ANSWERED, *, fine: bool = False
    ) -> None:
        """Its watches are as late as they like; so is each of its requests."""
        operator = self.of.operators[who]

        def go() -> None:
            self.of.tell(operator, news)
            self.of.advance(operator, permits, fate, fine=fine)

        words = f"{operator.line.name} hears of {news} and may do {permits}"
        self.step(f"{words}{' requests' if fine else ' writes'}", go)

    def the_world_moves(self, data: st.DataObject) -> None:
        found = dict(moves(self.of.cluster))
        if found:
            label = draw(data, list(found), "move")
            self.step(label, found[label])

    def all_goes_well_for_a_while(self, who: int) -> None:
        """News arrives, one operator looks, the world does what is next."""
        for _ in range(3):
            self.an_operator_goes_on(who, "all", 1000)
            for _ in range(4):
                found = [m for m in moves(self.of.cluster) if "fails" not in m[0]]
                found = [m for m in found if "dies" not in m[0]]
                if found:
                    self.step(*found[0])

    def the_platform_reports(self, data: st.DataObject) -> None:
        reports = {r.label: r for r in self.of.platform.deliverable()}
        if reports and self.of.platform_line.idle:
            label = draw(data, list(reports), "report")
            self.step(label, lambda: self.of.report(self.of.platform.deliver(reports[label])))

    def a_late_request_arrives(self, data: st.DataObject) -> None:
        late = self.of.conductor.late
        if late:
            index = data.draw(st.integers(0, len(late) - 1), label="which")
            self.step(f"late: {late[index][0]}", lambda: self.of.arrive(index))

    # --- what befalls it

    def an_operator_is_killed(self, data: st.DataObject) -> None:
        operator = self.of.operators[data.draw(WHO, label="who")]
        late = data.draw(st.booleans(), label="its request arrives late")
        self.step(f"{operator.line.name} is killed", lambda: self.of.restart(operator, late=late))

    def something_befalls_a_node(self, data: st.DataObject) -> None:
        node = draw(data, [*"abc", *self.nodes_that_matter() * 3], "node")
        found = node_faults(self.of, self.of.cluster.machines[node])
        label = draw(data, [k for k in found for _ in range(1 if k == "dies" else 2)], "what")
        self.step(f"node {node} {label}", found[label])

    def a_guest_lives(self, data: st.DataObject) -> None:
        of, cluster = self.of, self.of.cluster
        if not cluster.live():
            return
        vm, what = cluster.live()[0], draw(data, GUEST, "what")
        reachable = not vm.cut_off and cluster.machines[vm.machine].contact
        match what:
            case "command" | "access" if reachable and of.platform_line.idle:
                self.step(what, lambda: of.report(of.platform.record(f"sandbox_{what}", vm)))
            case "unrecorded" if self.marked(vm):
                # Only where the row says that the node holds state that exists nowhere else.
                self.step("unrecorded change", lambda: cluster.change(vm))
            case "suspend" | "capture" if reachable:
                self.step(what, lambda: of.platform.capture(vm, suspend=what == "suspend"))
            case "end":
                self.step("the VM ends by itself", lambda: cluster.end(vm))
            case "reject" if reachable and not cluster.has_to_go(vm):
                self.step("kubelet rejects a running pod", lambda: reject(cluster, vm))

    def the_platform_acts(self, data: st.DataObject) -> None:
        of, view = self.of, self.of.view
        uploads = [r for r in of.platform.deliverable() if r.function == "snapshot_ready"]
        match draw(data, ["start", "state lost", "upload fails"], "what"):
            case "start" if of.platform_line.idle and of.platform.may_start(view):
                self.step("platform starts", lambda: of.report(of.platform.start(view)))
            case "state lost" if of.platform_line.idle and self.state_is_lost():
                call = of.rig.db.call("node_state_lost", sandbox_id=of.id)
                self.step("node_state_lost", lambda: of.report(call))
            case "upload fails" if uploads:
                self.step("upload fails", lambda: of.platform.fail_upload(uploads[0]))

    def a_user_acts(self, data: st.DataObject) -> None:
        of, api = self.of, self.of.api
        what = draw(data, USER, "what")
        if what == "create":
            if of.restores < MOST_RESTORES:
                spec = draw(data, list(VARIANTS), "spec")
                self.step(f"user creates a restore {spec}", lambda: of.add_restore(**spec))
        elif what == "pod":
            if api.pods:
                pod = draw(data, sorted(api.pods), "pod")
                force = data.draw(st.booleans(), label="by force")
                self.step(
                    f"user deletes {pod}{' by force' if force else ''}",
                    lambda: api.delete_pod(pod, force=force),
                )
        elif api.restores:
            name = draw(data, sorted(api.restores), "restore")
            self.step(f"user: {what} {name}", lambda: of.change_restore(name, what))

    # --- what is asked first

    def marked(self, vm: Vm) -> bool:
        """Its load is recorded: the row is pinned and marked."""
        active = self.of.view.active
        return active is not None and active.loaded_at is not None and active.pod_uid == vm.uid

    def nodes_that_matter(self) -> list[str]:
        """Where a VM runs, and where the row says that the sandbox lives."""
        pinned = self.of.view.sandbox.pinned_node
        return [vm.machine for vm in self.of.cluster.live()] + ([pinned] if pinned else [])

    def state_is_lost(self) -> bool:
        """The pinned node's machine is dead, or its disk is empty."""
        node = self.of.view.sandbox.pinned_node
        machine = self.of.cluster.machines.get(node or "")
        return machine is not None and machine.local is None and not self.of.cluster.live()


def draw(data: st.DataObject, found: list[T], label: str) -> T:
    """One of those that are possible now."""
    return data.draw(st.sampled_from(found), label=label)


def machine_for(rig: Rig) -> type[ProtocolMachine]:
    """The machine on this rig."""
    return type("ProtocolMachineOnRig", (ProtocolMachine,), {"rig": rig})
