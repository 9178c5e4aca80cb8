"""The machines of the simulation: nodes, kubelets, runners, live VMs, and what they hold.

A simulation, not a cluster. It plays what the protocol's proofs stand on, and no more: a kubelet
reports only what it sees and only while it has contact; a Node object says nothing of its machine;
Kubernetes itself writes `Failed` on pods whose VM runs on.

Versions stand for state: every change inside a guest gets the next number. `newest` is the state
that nobody may be made to forget (domain.md section 16).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sandbox_restore.model import names
from tests.support.simapi import SimApi
from tests.support.simapi.objects import TERMINAL, bound, set_condition

Json = dict[str, Any]

INCOMPATIBLE = "Failed to set all KVM MSRs for this vCPU. Only a partial write was done."
BROKEN = "Failed to open snapshot file: No such file or directory (os error 2)"

NOTICE = timedelta(seconds=25)
"""A node that has lost contact is marked not Ready at the latest so long after."""
KUBELET_ENDS = timedelta(seconds=50)
"""A kubelet with contact has ended the VM of a pod that is over at the latest so long after:
the pod's grace period (30 s) and what it takes to notice."""
GONE_GRACE = timedelta(seconds=120)
"""A machine whose Node object is away for so long is dead: what an administrator promises."""


class ViolationError(AssertionError):
    """Something that must never happen has happened (domain.md section 16)."""


@dataclass(kw_only=True)
class Snapshot:
    """What a full snapshot really holds."""

    version: int
    cpu: str
    captured_at: datetime
    reported: bool = False


@dataclass(kw_only=True)
class Vm:
    """The runner of one pod on one machine: not started, live, or over."""

    pod: str
    uid: str
    machine: str
    live: bool = False
    over: bool = False
    version: int = -1
    end: str = ""
    """Its termination message; none for an end without the runner's word."""
    exit_code: int = 0
    cut_off: bool = False
    """It runs on a machine whose name another has taken."""
    to_end_since: datetime | None = None
    """When its kubelet could first see that it has to go."""


@dataclass(kw_only=True)
class Machine:
    """One host under a node name."""

    name: str
    cpu: str
    label: str | None = None
    """What its node agent publishes."""
    alive: bool = True
    contact: bool = True
    lost_at: datetime | None = None
    absent_since: datetime | None = None
    """Since when no Node object stands for it."""
    local: int | None = None
    """The newest state that lies on its disk."""
    knows: set[str] = field(default_factory=set)
    """UIDs of the pods that its kubelet has seen."""


@dataclass(kw_only=True)
class Cluster:
    """Everything that is not the operator or the database."""

    api: SimApi
    now: datetime
    machines: dict[str, Machine] = field(default_factory=dict)
    vms: dict[str, Vm] = field(default_factory=dict)
    """By pod UID."""
    snapshots: dict[str, Snapshot] = field(default_factory=dict)
    told: int = 0
    """The newest state of which the platform has recorded something."""
    versions: int = 0
    named: set[str] = field(default_factory=set)
    """UIDs of restores whose user named the snapshot: they may go back in time."""
    rescues: set[str] = field(default_factory=set)
    """Executions that took a pinned row elsewhere: they may not."""
    succeeded: set[str] = field(default_factory=set)
    """UIDs of restores that have said so."""

    # --- state that exists

    def next_version(self) -> int:
        self.versions += 1
        return self.versions

    def live(self) -> list[Vm]:
        return [vm for vm in self.vms.values() if vm.live]

    def newest(self) -> int:
        """The newest state that exists, or that the platform has acknowledged."""
        return max(
            [
                self.told,
                *(m.local for m in self.machines.values() if m.alive and m.local is not None),
                *(vm.version for vm in self.live()),
                *(s.version for s in self.snapshots.values() if s.reported),
            ]
        )

    def start(self, vm: Vm, version: int, *, may_go_back: bool = False) -> None:
        """A VM begins to run. Raises ViolationError."""
        others = [other for other in self.live() if other is not vm]
        if others:
            raise ViolationError(
                f"two live VMs: pod {vm.pod} starts on {vm.machine} while pod {others[0].pod} "
                f"runs on {others[0].machine}"
            )
        if version < self.newest() and not may_go_back:
            raise ViolationError(
                f"lost state: pod {vm.pod} starts from version {version} while version "
                f"{self.newest()} exists"
            )
        if may_go_back:
            self._forget_newer_than(version)
        vm.live, vm.version = True, version
        machine = self.machines[vm.machine]
        machine.local = max(version, machine.local if machine.local is not None else version)

    def change(self, vm: Vm) -> None:
        """Something changes inside a guest."""
        vm.version = self.next_version()

    def _forget_newer_than(self, version: int) -> None:
        """A user has chosen older state: the newer one counts no longer."""
        self.told = min(self.told, version)
        for machine in self.machines.values():
            if machine.local is not None and machine.local > version:
                machine.local = None
        for snapshot in self.snapshots.values():
            if snapshot.version > version:
                snapshot.reported = False

    def end(self, vm: Vm, *, message: str = "", exit_code: int = 137) -> None:
        """A VM, or the try to start one, is over; its state stays on the machine."""
        if vm.live:
            machine = self.machines[vm.machine]
            if not vm.cut_off and machine.alive:
                machine.local = max(vm.version, machine.local or 0)
        vm.live, vm.over, vm.end, vm.exit_code = False, True, message, exit_code

    # --- Node objects

    def add_machine(self, machine: Machine) -> None:
        self.machines[machine.name] = machine
        self.register(machine)

    def register(self, machine: Machine) -> None:
        """A Node object with a new UID for what runs there, running VMs included."""
        labels = {names.COHORT_LABEL: "blue"}
        if machine.label is not None:
            labels[names.HOST_CPU_LABEL] = machine.label
        body: Json = {"metadata": {"name": machine.name, "labels": labels}, "spec": {}}
        set_condition(body, "Ready", "True", at=self.api.stamp())
        self.api.create("nodes", body)
        machine.absent_since = None

    def node(self, name: str) -> Json | None:
        return self.api.nodes.get(name)

    def ready(self, name: str) -> bool:
        body = self.node(name)
        if body is None:
            return False
        found = next((c for c in body["status"]["conditions"] if c["type"] == "Ready"), None)
        return found is not None and found["status"] == "True"

    def tainted(self, name: str, key: str) -> bool:
        body = self.node(name)
        return body is not None and any(t["key"] == key for t in body["spec"].get("taints", ()))

    def taint(self, name: str, key: str) -> None:
        def put(node: Json) -> None:
            node["spec"].setdefault("taints", []).append({"key": key, "effect": "NoExecute"})

        self.api.update("nodes", name, put)

    def label(self, name: str, value: str | None) -> None:
        def put(node: Json) -> None:
            node["metadata"]["labels"].pop(names.HOST_CPU_LABEL, None)
            if value is not None:
                node["metadata"]["labels"][names.HOST_CPU_LABEL] = value

        self.api.update("nodes", name, put)

    def say_ready(self, name: str, *, ready: bool) -> None:
        self.api.update(
            "nodes",
            name,
            lambda node: set_condition(
                node, "Ready", "True" if ready else "Unknown", at=self.api.stamp()
            ),
        )

    # --- faults

    def lose_contact(self, machine: Machine) -> None:
        machine.contact, machine.lost_at = False, self.now

    def find_contact(self, machine: Machine) -> None:
        """The kubelet speaks again. Where its Node object is gone it registers anew: the same
        machine with what runs on it, under a new UID."""
        machine.contact, machine.lost_at = True, None
        if self.node(machine.name) is None:
            self.register(machine)
        elif not self.ready(machine.name):
            self.say_ready(machine.name, ready=True)

    def die(self, machine: Machine) -> None:
        """The machine and all that lies on it are no more."""
        machine.alive, machine.contact = False, False
        machine.lost_at = machine.lost_at or self.now
        for vm in self.vms.values():
            if vm.machine == machine.name and not vm.over and not vm.cut_off:
                vm.live, vm.over, vm.exit_code = False, True, 137
        machine.local = None

    def reboot(self, machine: Machine) -> None:
        """The same Node, on an empty disk."""
        self.die(machine)
        machine.alive = True
        self.find_contact(machine)

    def delete_node(self, machine: Machine) -> None:
        self.api.remove("nodes", machine.name)
        machine.absent_since = self.now

    def replace(self, machine: Machine) -> None:
        """Another machine takes the name, while the old one is cut off and runs on."""
        for vm in self.vms.values():
            if vm.machine == machine.name and not vm.over:
                vm.cut_off, vm.over = vm.live, not vm.live
        self.add_machine(Machine(name=machine.name, cpu=machine.cpu, label=machine.label))

    # --- time

    def obligations(self) -> list[tuple[datetime, Vm | Machine]]:
        """What the world owes the proofs, and by when."""
        due: list[tuple[datetime, Vm | Machine]] = []
        for machine in self.machines.values():
            if machine.lost_at is not None and self.ready(machine.name):
                due.append((machine.lost_at + NOTICE, machine))
            if machine.alive and machine.absent_since is not None:
                due.append((machine.absent_since + GONE_GRACE - timedelta(seconds=5), machine))
        for vm in self.live():
            since = self._to_end_since(vm)
            if since is not None:
                due.append((since + KUBELET_ENDS, vm))
        return sorted(due, key=lambda one: one[0])

    def _to_end_since(self, vm: Vm) -> datetime | None:
        """Since when its kubelet could have ended it; a cut-off machine ends with the grace."""
        if vm.cut_off:
            vm.to_end_since = vm.to_end_since or self.now
            return vm.to_end_since + GONE_GRACE - KUBELET_ENDS - timedelta(seconds=5)
        machine = self.machines[vm.machine]
        if not (machine.contact and machine.absent_since is None and self.has_to_go(vm)):
            vm.to_end_since = None
        elif vm.to_end_since is None:
            vm.to_end_since = self.now
        return vm.to_end_since

    def has_to_go(self, vm: Vm) -> bool:
        """The API server says that the pod is gone, being deleted, or terminal."""
        pod = self.pod_of(vm)
        return (
            pod is None
            or "deletionTimestamp" in pod["metadata"]
            or pod["status"].get("phase") in TERMINAL
        )

    def pod_of(self, vm: Vm) -> Json | None:
        pod = self.api.pods.get(vm.pod)
        return pod if pod is not None and pod["metadata"]["uid"] == vm.uid else None

    def pass_time(self, by: timedelta) -> None:
        """Time goes on; what is due on the way happens."""
        until = self.now + by
        while True:
            due = [(when, what) for when, what in self.obligations() if when <= until]
            if not due:
                break
            when, what = due[0]
            self.now = max(self.now, when)
            self._meet(what)
        self.now = until

    def _meet(self, what: Vm | Machine) -> None:
        if isinstance(what, Vm):
            self.end(what)
        elif what.absent_since is not None:
            self.die(what)
            what.absent_since = None
        else:
            self.say_ready(what.name, ready=False)
            what.lost_at = None

    # --- pods

    def see_pods(self) -> None:
        """Kubelets with contact learn of the pods that are bound to them."""
        for pod in self.api.pods.values():
            machine = self.machines.get(pod["spec"].get("nodeName", ""))
            uid = pod["metadata"]["uid"]
            if machine is None or not machine.contact or uid in self.vms:
                continue
            self.vms[uid] = Vm(pod=pod["metadata"]["name"], uid=uid, machine=machine.name)


def plan_of(pod: Json) -> Json:
    """The plan that the runner reads."""
    env = pod["spec"]["containers"][0]["env"]
    found: Json = json.loads(next(e["value"] for e in env if e["name"] == names.PLAN_ENV))
    return found


def fits(pod: Json, node: Json) -> bool:
    """kube-scheduler's required node affinity, as far as restore pods use it."""
    affinity = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    selector = pod["spec"].get("nodeSelector", {})
    labels = node["metadata"].get("labels", {})
    if any(labels.get(key) != value for key, value in selector.items()):
        return False
    if any(t["effect"] in ("NoSchedule", "NoExecute") for t in node["spec"].get("taints", ())):
        return False
    if required is None:
        return True
    return any(_term(term, node, labels) for term in required["nodeSelectorTerms"])


def _term(term: Json, node: Json, labels: dict[str, str]) -> bool:
    wanted = [
        *((labels, e) for e in term.get("matchExpressions", ())),
        *(({"metadata.name": node["metadata"]["name"]}, e) for e in term.get("matchFields", ())),
    ]
    return bool(wanted) and all(_expression(held, e) for held, e in wanted)


def _expression(held: dict[str, str], expression: Json) -> bool:
    value, values = held.get(expression["key"]), expression.get("values", ())
    match expression["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    raise AssertionError(f"operator {expression['operator']} is not played")


__all__ = [
    "BROKEN",
    "GONE_GRACE",
    "INCOMPATIBLE",
    "Cluster",
    "Machine",
    "Snapshot",
    "ViolationError",
    "Vm",
    "bound",
    "fits",
    "plan_of",
]
