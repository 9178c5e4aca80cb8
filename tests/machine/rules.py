"""The rules of the state machine: everything that may happen next, as far as a test can choose it.

The same events and invariants as the explicit-state model that the protocol was checked with, on
the real planner, reconciler and store; and one that the model lacks: the same machine registers
again under a new Node UID.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from sandbox_restore.model import names
from tests.machine.actors import BEGINNINGS, RIGHT, WRONG, Rig, Story
from tests.machine.cluster import Machine, Vm
from tests.machine.ending import come_to_rest
from tests.machine.gates import Fate
from tests.machine.moves import moves, reject

WHO = st.integers(0, 1)
PERMITS = st.sampled_from((1, 1, 2, 3, 5, 8, 13, 1000, 1000, 1000))
FATES = st.sampled_from((*[Fate.ANSWERED] * 6, Fate.UNANSWERED, Fate.LOST, Fate.LATE))
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
    """One sandbox; two operators that share nothing but the database and the API server."""

    rig: ClassVar[Rig]
    story: Story | None = None

    @initialize(
        start=st.sampled_from(sorted(BEGINNINGS)),
        gates=st.sampled_from(((True, True), (True, True), (True, False))),
        odd=st.sampled_from((WRONG, RIGHT)),
        spec=st.sampled_from(VARIANTS),
    )
    def begin(
        self, start: str, gates: tuple[bool, bool], odd: str, spec: dict[str, object]
    ) -> None:
        self.rig.examples += 1
        self.story = Story(self.rig, gates=gates, odd=odd)
        self.story.add_restore(**spec)
        self.run(self.story.begin(start))

    def run(self, work: Awaitable[Any]) -> Any:
        return self.rig.loop.run_until_complete(work)

    def step(self, what: str, work: Callable[[], Awaitable[None] | None]) -> None:
        """One step: a second passes, something happens, everybody comes to rest."""
        assert self.story is not None
        self.rig.steps += 1
        self.story.cluster.pass_time(timedelta(seconds=1))
        self.run(self.story.step(what, work))

    def teardown(self) -> None:
        if self.story is not None:
            self.run(come_to_rest(self.story))

    # --- operators

    @rule(who=WHO, permits=PERMITS, fate=FATES)
    def an_operator_goes_on(self, who: int, permits: int, fate: Fate) -> None:
        operator = self.of.operators[who]
        self.step(
            f"operator {who + 1} may do {permits}", lambda: self.of.advance(operator, permits, fate)
        )

    @rule(who=WHO, late=st.booleans())
    def an_operator_is_killed(self, who: int, late: bool) -> None:
        self.step(
            f"operator {who + 1} is killed",
            lambda: self.of.restart(self.of.operators[who], late=late),
        )

    @rule(who=WHO, kind=st.sampled_from(("nodes", "pods", "restores")), most=st.integers(1, 3))
    def a_watch_tells(self, who: int, kind: str, most: int) -> None:
        self.step(
            f"operator {who + 1} hears of {kind}",
            lambda: self.of.tell(self.of.operators[who], kind, most=most),
        )

    @rule(who=WHO)
    def an_operator_hears_everything(self, who: int) -> None:
        self.step(
            f"operator {who + 1} hears everything", lambda: self.of.tell_all(self.of.operators[who])
        )

    @rule(who=WHO)
    def the_database_announces(self, who: int) -> None:
        self.step(
            f"operator {who + 1} is notified", lambda: self.of.announce(self.of.operators[who])
        )

    @precondition(lambda self: self.of.conductor.late)
    @rule(data=st.data())
    def a_late_request_arrives(self, data: st.DataObject) -> None:
        late = self.of.conductor.late
        index = data.draw(st.integers(0, len(late) - 1), label="which")
        self.step(f"late: {late[index][0]}", lambda: self.of.arrive(index))

    # --- the world goes on

    @precondition(lambda self: moves(self.of.cluster))
    @rule(data=st.data())
    def the_world_moves(self, data: st.DataObject) -> None:
        found = dict(moves(self.of.cluster))
        label = data.draw(st.sampled_from(list(found)), label="move")
        self.step(label, lambda: _done(found[label]()))

    @rule(who=WHO, rounds=st.integers(1, 4))
    def all_goes_well_for_a_while(self, who: int, rounds: int) -> None:
        """News arrives, one operator looks, the world does what is next."""
        for _ in range(rounds):
            self.step(
                f"operator {who + 1} hears everything",
                lambda: self.of.tell_all(self.of.operators[who]),
            )
            self.step(
                f"operator {who + 1} looks", lambda: self.of.advance(self.of.operators[who], 1000)
            )
            for _ in range(4):
                found = [m for m in moves(self.of.cluster) if _goes_well(m[0])]
                if found:
                    self.step(found[0][0], lambda found=found: _done(found[0][1]()))  # type: ignore[misc]

    @rule(seconds=st.sampled_from((3, 10, 31, 61, 125)))
    def time_passes(self, seconds: int) -> None:
        self.step(
            f"{seconds} s pass", lambda: self.of.cluster.pass_time(timedelta(seconds=seconds))
        )

    # --- guests and the platform

    @precondition(lambda self: self.of.platform_is_free and self.of.platform.deliverable())
    @rule(data=st.data())
    def the_platform_reports(self, data: st.DataObject) -> None:
        reports = {r.label: r for r in self.of.platform.deliverable()}
        label = data.draw(st.sampled_from(list(reports)), label="report")
        self.step(label, lambda: self.of.report(self.of.platform.deliver(reports[label])))

    @precondition(lambda self: self.of.platform_is_free and self.reachable_vms())
    @rule(function=st.sampled_from(("sandbox_command", "sandbox_access")))
    def a_guest_is_used(self, function: str) -> None:
        vm = self.reachable_vms()[0]
        self.step(function, lambda: self.of.report(self.of.platform.record(function, vm)))

    @precondition(lambda self: self.marked_vms())
    @rule()
    def a_guest_changes_and_nobody_records_it(self) -> None:
        """Only where the row says that the node holds state that exists nowhere else."""
        vm = self.marked_vms()[0]
        self.step(
            "a guest changes and nobody records it",
            lambda: setattr(vm, "version", self.of.cluster.next_version()),
        )

    @precondition(lambda self: self.reachable_vms())
    @rule(suspend=st.sampled_from((True, True, False)))
    def the_platform_captures(self, suspend: bool) -> None:
        vm = self.reachable_vms()[0]
        self.step(
            "suspend" if suspend else "capture",
            lambda: self.of.platform.capture(vm, suspend=suspend),
        )

    @precondition(lambda self: self.uploads())
    @rule()
    def an_upload_fails(self) -> None:
        self.step("an upload fails", lambda: self.of.platform.fail_upload(self.uploads()[0]))

    @precondition(lambda self: self.of.cluster.live())
    @rule(exit_code=st.sampled_from((0, 137)))
    def a_vm_ends_by_itself(self, exit_code: int) -> None:
        vm = self.of.cluster.live()[0]
        self.step("a vm ends by itself", lambda: self.of.cluster.end(vm, exit_code=exit_code))

    @precondition(
        lambda self: self.of.platform_is_free and self.of.platform.may_start(self.of.view)
    )
    @rule()
    def the_platform_starts_the_sandbox_by_its_own_means(self) -> None:
        self.step(
            "the platform starts the sandbox by its own means",
            lambda: self.of.report(self.of.platform.start(self.of.view)),
        )

    @precondition(lambda self: self.of.platform_is_free and self.state_is_lost())
    @rule()
    def the_platform_says_that_a_nodes_state_is_lost(self) -> None:
        call = self.of.rig.db.call
        self.step(
            "the platform says that a nodes state is lost",
            lambda: self.of.report(call("node_state_lost", sandbox_id=self.of.id)),
        )

    # --- nodes

    @rule(node=st.sampled_from("abc"), data=st.data())
    def something_befalls_a_node(self, node: str, data: st.DataObject) -> None:
        found = self.node_faults(self.of.cluster.machines[node])
        label = data.draw(st.sampled_from(list(found)), label="what")
        self.step(f"node {node} {label}", lambda: _done(found[label]()))

    @precondition(lambda self: any(not vm.cut_off for vm in self.of.cluster.live()))
    @rule()
    def a_kubelet_restarts_and_rejects_a_running_pod(self) -> None:
        cluster = self.of.cluster
        vm = next(vm for vm in cluster.live() if not vm.cut_off)
        if cluster.machines[vm.machine].contact and not cluster.has_to_go(vm):
            self.step("a kubelet restarts and rejects a running pod", lambda: reject(cluster, vm))

    # --- users

    @precondition(lambda self: self.of.restores < MOST_RESTORES)
    @rule(spec=st.sampled_from(VARIANTS))
    def a_restore_is_created(self, spec: dict[str, object]) -> None:
        self.step(f"user creates a restore {spec}", lambda: _done(self.of.add_restore(**spec)))

    @precondition(lambda self: self.of.api.restores)
    @rule(data=st.data(), what=st.sampled_from(("delete", "deadline", "suspend", "go on")))
    def a_user_changes_a_restore(self, data: st.DataObject, what: str) -> None:
        api = self.of.api
        name = data.draw(st.sampled_from(sorted(api.restores)), label="restore")
        match what:
            case "delete":
                self.step(f"user: {what} {name}", lambda: api.remove("restores", name))
            case "deadline":
                self.step(
                    f"user: {what} {name}", lambda: api.edit_restore(name, activeDeadlineSeconds=1)
                )
            case "suspend":
                self.step(f"user: {what} {name}", lambda: api.edit_restore(name, suspend=True))
            case _:
                self.step(f"user: {what} {name}", lambda: api.edit_restore(name, suspend=False))

    @precondition(lambda self: self.of.api.pods)
    @rule(data=st.data(), force=st.booleans())
    def a_user_deletes_a_pod(self, data: st.DataObject, force: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.of.api.pods)), label="pod")
        self.step(
            f"user deletes {name}{' by force' if force else ''}",
            lambda: self.of.api.delete_pod(name, force=force),
        )

    # --- what the preconditions ask

    @property
    def of(self) -> Story:
        assert self.story is not None
        return self.story

    def reachable_vms(self) -> list[Vm]:
        """Live ones that the platform has contact with."""
        machines = self.of.cluster.machines
        return [
            vm for vm in self.of.cluster.live() if not vm.cut_off and machines[vm.machine].contact
        ]

    def marked_vms(self) -> list[Vm]:
        active = self.of.view.active
        uid = active.pod_uid if active is not None and active.loaded_at is not None else None
        return [vm for vm in self.reachable_vms() if vm.uid == uid]

    def uploads(self) -> list[Any]:
        return [r for r in self.of.platform.deliverable() if r.function == "snapshot_ready"]

    def state_is_lost(self) -> bool:
        """The pinned node's machine is dead, or its disk is empty."""
        node = self.of.view.sandbox.pinned_node
        machine = self.of.cluster.machines.get(node or "")
        return machine is not None and machine.local is None and not self.of.cluster.live()

    def node_faults(self, machine: Machine) -> dict[str, Callable[[], object]]:
        cluster, name = self.of.cluster, machine.name
        there = cluster.node(name) is not None

        def die() -> None:
            cluster.die(machine)
            self.of.platform.machine_died(machine)

        def reboot() -> None:
            cluster.reboot(machine)
            self.of.platform.machine_died(machine)

        found: dict[str, Callable[[], object]] = {}
        if machine.alive and machine.contact:
            found["loses contact"] = lambda: cluster.lose_contact(machine)
        if machine.alive and (not machine.contact or not there):
            found["is back, or registers again under a new UID"] = lambda: cluster.find_contact(
                machine
            )
        if machine.alive:
            found["dies"] = die
        if not machine.alive and there:
            found["is back, empty"] = reboot
        if there:
            found["loses its Node object"] = lambda: cluster.delete_node(machine)
            found["is drained"] = lambda: cluster.taint(name, "space.pplx.net/draining")
            for label in (RIGHT, WRONG, None):
                found[f"is labelled {label}"] = lambda label=label: cluster.label(name, label)
        else:
            found["is another machine"] = lambda: cluster.replace(machine)
        if there and not machine.alive:
            found["is out of service"] = lambda: cluster.taint(name, names.OUT_OF_SERVICE_TAINT)
        return found


def _goes_well(label: str) -> bool:
    return "fails in" not in label and "dies in" not in label


def _done(_result: object) -> None:
    """What a move returns is nobody's."""


def machine_for(rig: Rig) -> type[ProtocolMachine]:
    """The machine on this rig."""
    return type("ProtocolMachineOnRig", (ProtocolMachine,), {"rig": rig})
