"""The platform of the simulation: it reports through the real SQL functions, in time or late.

A report waits until it is delivered, and reports overtake each other where nothing orders them:
those of one snapshot come in order, everything else does not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import asyncpg

from sandbox_restore.model.sandbox import SandboxView
from tests.machine.cluster import Cluster, Machine, Snapshot, Vm
from tests.store.helpers import Database


@dataclass(kw_only=True, eq=False)
class Report:
    """One call of the contract that has not been made yet."""

    function: str
    arguments: dict[str, Any]
    machine: str | None = None
    """Lost with that machine."""
    after: Report | None = None

    @property
    def label(self) -> str:
        what = self.arguments.get("snapshot_id") or self.arguments.get("pod_uid") or ""
        return f"{self.function}({what})"


@dataclass(kw_only=True)
class Platform:
    """Its mail, and what it knows of its own pods."""

    db: Database
    sandbox_id: str
    cluster: Cluster
    mail: list[Report] = field(default_factory=list)
    pods: int = 0
    captures: int = 0

    # --- reports

    def deliverable(self) -> list[Report]:
        return [r for r in self.mail if r.after is None or r.after not in self.mail]

    async def deliver(self, report: Report) -> None:
        """Makes the call. A refusal that asks for patience leaves it where it is."""
        try:
            await self.db.call(report.function, sandbox_id=self.sandbox_id, **report.arguments)
        except asyncpg.ObjectNotInPrerequisiteStateError:
            return
        if report in self.mail:  # else its machine has died while the report waited for the lock
            self.mail.remove(report)
        snapshot = self.cluster.snapshots.get(report.arguments.get("snapshot_id", ""))
        if snapshot is not None:
            snapshot.reported = True

    async def record(self, function: str, vm: Vm) -> None:
        """A command or an access reaches a guest, changes it, and is recorded."""
        self.cluster.pass_time(timedelta(seconds=1))
        at = self.cluster.now
        self.cluster.change(vm)
        version = vm.version
        argument = {"sandbox_command": "command_at", "sandbox_access": "access_at"}[function]
        await self.db.call(function, sandbox_id=self.sandbox_id, **{argument: at})
        self.cluster.told = max(self.cluster.told, version)

    # --- captures

    def capture(self, vm: Vm, *, suspend: bool) -> None:
        """A full snapshot of a running VM, which is over if it is suspended by it."""
        cluster = self.cluster
        cluster.pass_time(timedelta(seconds=1))
        self.captures += 1
        name = f"{self.sandbox_id}-s{self.captures + 1}"
        machine = cluster.machines[vm.machine]
        cluster.snapshots[name] = Snapshot(
            version=vm.version, cpu=machine.cpu, captured_at=cluster.now
        )
        started = Report(
            function="snapshot_started",
            arguments={
                "snapshot_id": name,
                "captured_at": cluster.now,
                "uploaded_by": machine.name,
                "host_cpu": machine.cpu,
                "pod_uid": vm.uid,
            },
            machine=machine.name,
        )
        ready = Report(
            function="snapshot_ready",
            arguments={"snapshot_id": name, "storage_uri": f"s3://bucket/{name}"},
            machine=machine.name,
            after=started,
        )
        self.mail += [started, ready]
        if suspend:
            at = cluster.now
            cluster.end(vm, exit_code=0)
            self.mail.append(
                Report(
                    function="sandbox_suspended",
                    arguments={
                        "node_name": machine.name, "pod_uid": vm.uid, "suspended_at": at,
                    },
                    machine=machine.name,
                )
            )  # fmt: skip

    def expect_upload(self, name: str, *, machine: str) -> None:
        """An upload that has been told of and is still under way."""
        self.mail.append(
            Report(
                function="snapshot_ready",
                arguments={"snapshot_id": name, "storage_uri": f"s3://bucket/{name}"},
                machine=machine,
            )
        )

    def fail_upload(self, ready: Report) -> None:
        """The upload breaks instead."""
        ready.function, ready.arguments = (
            "snapshot_failed",
            {"snapshot_id": ready.arguments["snapshot_id"]},
        )
        ready.machine = None

    def machine_died(self, machine: Machine) -> None:
        """What it had not sent is lost; an upload that was told of has failed."""
        lost = [r for r in self.mail if r.machine == machine.name]
        under_way = [r for r in lost if r.function == "snapshot_ready" and r.after not in self.mail]
        for report in lost:
            if report in under_way:
                self.fail_upload(report)
            else:
                self.mail.remove(report)

    # --- starting by its own means

    async def start(self, view: SandboxView) -> str:
        """Asks first; starts the VM where the answer is yes. Returns what came of it."""
        cluster, node = self.cluster, view.sandbox.pinned_node or ""
        machine = cluster.machines[node]
        self.pods += 1
        name, node_uid = f"own-{self.pods}", cluster.api.nodes[node]["metadata"]["uid"]
        pod_uid = f"{self.sandbox_id}-{name}"
        try:
            await self.db.call(
                "execution_started",
                sandbox_id=self.sandbox_id,
                node_name=node,
                pod_name=name,
                pod_uid=pod_uid,
                node_uid=node_uid,
                started_at=cluster.now,
            )
        except asyncpg.ObjectInUseError:
            return "refused"
        if not self.may_start(view):
            return "too late"
        # A node daemon makes the pod; that its UID is known before it asks is played here.
        cluster.api.create(
            "pods",
            {
                "metadata": {"name": name, "namespace": cluster.api.namespace, "uid": pod_uid},
                "spec": {"nodeName": node, "containers": [{"name": "runner"}]},
                "status": {"phase": "Pending"},
            },
        )
        vm = Vm(pod=name, uid=pod_uid, machine=node)
        cluster.vms[pod_uid] = vm
        cluster.start(vm, machine.local or 0)
        return "started"

    def may_start(self, view: SandboxView) -> bool:
        """On the pinned node, from what it holds."""
        node = view.sandbox.pinned_node
        machine = self.cluster.machines.get(node or "")
        return (
            node is not None
            and machine is not None
            and machine.alive
            and machine.contact
            and machine.local is not None
            and self.cluster.ready(node)
        )
