"""The simulated nodes: one watch over all bound restore pods, one worker for each pod."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.simnode import status
from tests.support.simnode.captures import Capture, Captures
from tests.support.simnode.client import Client, Object, read_kubeconfig
from tests.support.simnode.controls import REAL_CPU_ANNOTATION, Controls, Stage, Which
from tests.support.simnode.follow import Followed, follow
from tests.support.simnode.load import RunnerStyle
from tests.support.simnode.matrix import Matrix
from tests.support.simnode.plan import HOST_CPU_LABEL, SANDBOX_LABEL
from tests.support.simnode.record import Entry, Event, Record
from tests.support.simnode.status import ContainerEnd
from tests.support.simnode.worker import MACHINE_LOST, Ground, PodWorker, SimulatedNode

log = logging.getLogger("simnode")

_NODES = "/api/v1/nodes"
_PODS = "/api/v1/pods"
_BOUND = {"fieldSelector": "spec.nodeName!=", "labelSelector": SANDBOX_LABEL}


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspended:
    """What the platform is to report of a suspend: its pod, and the snapshot that was made."""

    sandbox: str
    namespace: str
    pod: str
    pod_uid: str
    node: str
    snapshot: str
    version: int
    capture_cpu: str
    ancestors: tuple[str, ...]

    @property
    def capture(self) -> Capture:
        """The snapshot as it is to be put into storage once uploaded."""
        return Capture(cpu=self.capture_cpu, version=self.version, ancestors=self.ancestors)


class SimNode:
    """All simulated nodes of one cluster, in this process; an asynchronous context manager.

    Acts for nodes whose Node object says what CPU they really have (annotation
    `sim.space.pplx.net/real-cpu`) or at least has a host-CPU label. A node that was seen once is
    acted for also when its Node object is gone, as its kubelet would.
    """

    def __init__(
        self,
        kubeconfig: Path,
        *,
        matrix: Matrix,
        captures: Captures,
        record: Path,
        load_seconds: float = 0.05,
        style: RunnerStyle = "coded",
    ) -> None:
        """Prepare; `record` is continued where it ends. Raises RecordInUseError."""
        self.controls = Controls(on_change=self._wake_all)
        self.record = Record(record)
        self._client = Client(read_kubeconfig(kubeconfig))
        self._ground = Ground(
            client=self._client,
            record=self.record,
            controls=self.controls,
            matrix=matrix,
            captures=captures,
            load_seconds=load_seconds,
            style=style,
        )
        self._nodes: dict[str, SimulatedNode] = {}
        self._workers: dict[str, PodWorker] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._finished: set[str] = set()
        self._unseen: dict[str, dict[str, Object | None]] = {}
        self._crashed: set[str] = set()
        self._loops: list[asyncio.Task[None]] = []
        self._ready = asyncio.Event()
        self.errors: list[BaseException] = []

    async def __aenter__(self) -> SimNode:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()
        if error is None:
            self.check()

    async def start(self) -> None:
        """Begin to act; returns once all nodes and pods that are there have been taken over."""
        self.record.append(Event.SIMULATION_STARTED)
        await self._client.__aenter__()
        for loop in (self._follow_nodes(), self._follow_pods()):
            self._ready.clear()
            task = asyncio.create_task(loop)
            task.add_done_callback(self._note_error)
            self._loops.append(task)
            await self._ready.wait()

    async def stop(self) -> None:
        """Stop acting. VMs live on as far as the record is concerned: a later start takes over."""
        tasks = [*self._loops, *self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._client.__aexit__(None, None, None)
        self.record.close()

    def check(self) -> None:
        """Raise AssertionError when something happened that must never happen, or failed here."""
        found = [*self.record.violations, *(repr(error) for error in self.errors)]
        if found:
            raise AssertionError("\n".join(found))

    @property
    def api_writes(self) -> int:
        """Status patches and deletes so far."""
        return self._client.writes

    # What tests tell the nodes to do

    def hold(self, stage: Stage | str, **which: str) -> None:
        """Let no pod of `sandbox`, `node` or `pod` (all that are told) pass the stage."""
        self.controls.hold(Stage(stage), Which(**which))

    def release(self, stage: Stage | str | None = None, **which: str) -> None:
        """Take a hold back, given as it was made; without arguments, every hold."""
        self.controls.release(
            Stage(stage) if stage is not None else None, Which(**which) if which else None
        )

    def fail(self, message: str, **which: str) -> None:
        """Let loads of such pods fail with this termination message, until `mend`."""
        self.controls.fail(Which(**which), message)

    def mend(self, **which: str) -> None:
        """Take back what `fail` was told; without arguments, all of it."""
        self.controls.mend(Which(**which) if which else None)

    def lose_contact(self, node: str) -> None:
        """Cut a node off: VMs and loads go on, nothing is seen or reported.

        Whether the Node turns NotReady is up to its heartbeats, which are not made here.
        """
        self.controls.lose_contact(node)

    def regain_contact(self, node: str) -> None:
        """Let a node see and report again, after `lose_contact` or `crash_machine`."""
        self.controls.regain_contact(node)
        for uid, pod in self._unseen.pop(node, {}).items():
            self._deliver(uid, pod)

    def crash_machine(self, node: str, *, keep_files: bool = True) -> None:
        """Take a machine down with all its VMs; nobody reports anything until `regain_contact`."""
        self.controls.lose_contact(node)
        for worker in [one for one in self._workers.values() if one.node.name == node]:
            self._drop(worker.uid)
            self._unseen.setdefault(node, {}).setdefault(worker.uid, worker.pod)
            if status.runner_state(worker.pod)[0] == "running":
                self._crashed.add(worker.uid)
        for vm in self.record.history.vms_on(node):
            self._end(vm, reason=MACHINE_LOST, exit_code=status.MACHINE_RESTARTED.exit_code)
        if not keep_files:
            self.drop_files(node)

    def drop_files(self, node: str) -> None:
        """Let a node lose the files of all its snapshots."""
        self.record.append(Event.FILES_DROPPED, node=node)

    async def reject(
        self,
        pod_uid: str,
        *,
        reason: str = "NodeAffinity",
        message: str = "Predicate NodeAffinity failed",
        keep_containers: bool = False,
    ) -> None:
        """Let a kubelet not admit a pod, as after its restart: `Failed`, and the VM goes on.

        The kubelet of Kubernetes 1.37 takes the container statuses away with that;
        `keep_containers` leaves them as they were.
        """
        await self._workers[pod_uid].reject(
            reason=reason, message=message, keep_containers=keep_containers
        )

    def finish_rejection(self, pod_uid: str) -> None:
        """Let the kubelet's housekeeping end the VM of a rejected pod, which it does not report."""
        vm = self.record.history.started[pod_uid]
        entry = self._end(vm, reason="rejected", exit_code=137)
        self._workers[pod_uid].exit(ContainerEnd(exit_code=entry.exit_code))

    def end_vm(self, sandbox: str, *, exit_code: int = 1, message: str = "") -> None:
        """Let the VM of a sandbox end by itself; its node reports the container terminated."""
        vm = self._only_vm(sandbox)
        entry = self._end(vm, reason="ended by itself", exit_code=exit_code, message=message)
        self._exit_worker(vm, ContainerEnd(exit_code=entry.exit_code, message=message))

    def suspend(self, sandbox: str, *, snapshot: str | None = None) -> Suspended:
        """Suspend a sandbox: a new snapshot is on its node, its VM ends, its container exits 0.

        What is returned is for the platform to report; nothing is put into storage.
        """
        vm = self._only_vm(sandbox)
        version = max(vm.version, self.record.history.acknowledged.get(sandbox, 0)) + 1
        ancestors = tuple(dict.fromkeys((*vm.ancestors, vm.capture_cpu)))
        made = Suspended(
            sandbox=sandbox,
            namespace=vm.namespace,
            pod=vm.pod,
            pod_uid=vm.pod_uid,
            node=vm.node,
            snapshot=snapshot or f"{sandbox}-v{version}",
            version=version,
            capture_cpu=vm.node_cpu,
            ancestors=tuple(cpu for cpu in ancestors if cpu != vm.node_cpu),
        )
        self.record.append(
            Event.VM_SUSPENDED, **{**asdict(made), "ancestors": list(made.ancestors)}
        )
        self._end(vm, reason="suspended", exit_code=0)
        self._exit_worker(vm, ContainerEnd(exit_code=0))
        return made

    def acknowledge(self, sandbox: str, version: int) -> None:
        """Note that the platform has promised not to lose state of this version."""
        self.record.append(Event.STATE_ACKNOWLEDGED, sandbox=sandbox, version=version)

    def live_vms(self, sandbox: str = "") -> list[Entry]:
        """Return the starts of all VMs that live now, or of those of one sandbox."""
        live = self.record.history.live
        found = [live.get(sandbox, {})] if sandbox else live.values()
        return [vm for vms in found for vm in vms.values()]

    # VMs

    def _only_vm(self, sandbox: str) -> Entry:
        (vm,) = self.record.history.live.get(sandbox, {}).values()
        return vm

    def _end(self, vm: Entry, *, reason: str, exit_code: int, message: str = "") -> Entry:
        return self.record.append(
            Event.VM_ENDED,
            sandbox=vm.sandbox,
            snapshot=vm.snapshot,
            version=vm.version,
            namespace=vm.namespace,
            pod=vm.pod,
            pod_uid=vm.pod_uid,
            restore_uid=vm.restore_uid,
            node=vm.node,
            node_cpu=vm.node_cpu,
            node_label=vm.node_label,
            reason=reason,
            exit_code=exit_code,
            message=message,
        )

    def _exit_worker(self, vm: Entry, end: ContainerEnd) -> None:
        worker = self._workers.get(vm.pod_uid)
        if worker is not None:
            worker.exit(end)

    # Following the cluster

    async def _follow_nodes(self) -> None:
        await follow(
            self._client,
            Followed(_NODES, metadata_only=True),
            replace=self._replace_nodes,
            change=self._see_node,
        )

    async def _follow_pods(self) -> None:
        await follow(
            self._client, Followed(_PODS, query=_BOUND), replace=self._replace, change=self._change
        )

    def _replace_nodes(self, nodes: list[Object]) -> None:
        for node in nodes:
            self._see_node("ADDED", node)
        self._ready.set()

    def _see_node(self, kind: str, node: Object) -> None:
        metadata = node["metadata"]
        label = (metadata.get("labels") or {}).get(HOST_CPU_LABEL, "")
        real_cpu = (metadata.get("annotations") or {}).get(REAL_CPU_ANNOTATION, label)
        if kind == "DELETED" or not real_cpu:
            return
        name = metadata["name"]
        known = self._nodes.get(name)
        self._nodes[name] = SimulatedNode(name, real_cpu, label)
        if known is None:
            self.regain_contact(name)

    def _replace(self, pods: list[Object]) -> None:
        listed = {pod["metadata"]["uid"] for pod in pods}
        for uid, worker in list(self._workers.items()):
            if uid not in listed:
                self._tell(worker.node.name, uid, None)
        self._finished &= listed
        for pod in pods:
            self._change("ADDED", pod)
        for vm in self.live_vms():
            # Its pod vanished while nobody watched: an orphan, which a kubelet ends.
            if vm.pod_uid not in listed and vm.pod_uid not in self._workers:
                self._end(vm, reason="pod gone", exit_code=status.SIGTERM_EXIT)
        self._ready.set()

    def _change(self, kind: str, pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        self._tell(pod["spec"]["nodeName"], uid, None if kind == "DELETED" else pod)

    def _tell(self, node: str, uid: str, pod: Object | None) -> None:
        """Let a node know of its pod's new state; one that is cut off hears of it later."""
        if node in self._nodes and self.controls.in_contact(node):
            self._deliver(uid, pod)
        else:
            self._unseen.setdefault(node, {})[uid] = pod

    def _deliver(self, uid: str, pod: Object | None) -> None:
        worker = self._workers.get(uid)
        if pod is None:
            self._finished.discard(uid)
            if worker is not None:
                worker.vanish()
        elif worker is not None:
            worker.observe(pod)
        elif uid not in self._finished:
            self._employ(uid, pod)

    def _employ(self, uid: str, pod: Object) -> None:
        worker = PodWorker(pod, self._nodes[pod["spec"]["nodeName"]], self._ground)
        if uid in self._crashed:
            self._crashed.discard(uid)
            worker.exit(status.MACHINE_RESTARTED)
        task = asyncio.create_task(worker.run(), name=f"pod {pod['metadata']['name']}")
        self._workers[uid], self._tasks[uid] = worker, task
        task.add_done_callback(lambda done: self._retire(uid, done))

    def _retire(self, uid: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(uid) is not task:
            return
        self._drop(uid)
        self._finished.add(uid)
        self._note_error(task)

    def _note_error(self, task: asyncio.Task[None]) -> None:
        """Keep what ended a task that should not have ended so, for `check`."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("failed: %s", task.get_name(), exc_info=error)
            self.errors.append(error)

    def _drop(self, uid: str) -> None:
        self._workers.pop(uid, None)
        task = self._tasks.pop(uid, None)
        if task is not None:
            task.cancel()

    def _wake_all(self) -> None:
        for worker in self._workers.values():
            worker.poke()


VERBS = (
    "hold",
    "release",
    "fail",
    "mend",
    "lose_contact",
    "regain_contact",
    "crash_machine",
    "drop_files",
    "reject",
    "finish_rejection",
    "end_vm",
    "suspend",
    "acknowledge",
    "live_vms",
)
"""Methods of SimNode that a test may call in another process."""


async def call(nodes: SimNode, verb: str, arguments: Mapping[str, Any]) -> Any:
    """Call one of VERBS with keyword arguments; raises KeyError for another."""
    if verb not in VERBS:
        raise KeyError(verb)
    result = getattr(nodes, verb)(**arguments)
    if asyncio.iscoroutine(result):
        return await result
    return result
