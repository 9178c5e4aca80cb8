"""The life of one restore pod on its node, in the order in which a kubelet does things."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tests.support.simnode import status
from tests.support.simnode.captures import Capture, Captures
from tests.support.simnode.client import ABSENCE, ApiAnswerError, Client, Object
from tests.support.simnode.controls import Controls, Stage
from tests.support.simnode.load import Loaded, Refused, RunnerStyle, load
from tests.support.simnode.matrix import Matrix
from tests.support.simnode.plan import SANDBOX_LABEL, Plan, excluded_cpus
from tests.support.simnode.record import Entry, Event, Record
from tests.support.simnode.status import ContainerEnd

log = logging.getLogger("simnode")

MACHINE_LOST = "machine lost"
"""Reason of a vm-ended: the machine went down with all that ran on it."""

_RETRY_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class SimulatedNode:
    """A node as the simulation knows it."""

    name: str
    real_cpu: str
    label: str
    """Its host-CPU label; empty when it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What all pods stand on."""

    client: Client
    record: Record
    controls: Controls
    matrix: Matrix
    captures: Captures
    load_seconds: float
    style: RunnerStyle


class PodWorker:
    """Plays kubelet and runner for one pod; `run` ends when the pod needs nothing more."""

    def __init__(self, pod: Object, node: SimulatedNode, ground: Ground) -> None:
        self.pod = pod
        self.node = node
        self.uid: str = pod["metadata"]["uid"]
        self.rejected = False
        self._ground = ground
        self._gone = False
        self._exit: ContainerEnd | None = None
        self._poke = asyncio.Event()

    # What others tell it

    def observe(self, pod: Object) -> None:
        """Take in the pod as the API server has it now; an older state than known is dropped."""
        if _version(pod) >= _version(self.pod):
            self.pod = pod
            self.poke()

    def vanish(self) -> None:
        """The pod object is gone."""
        self._gone = True
        self.poke()

    def exit(self, end: ContainerEnd) -> None:
        """The container ended by itself; the record has it already."""
        self._exit = end
        self.poke()

    def poke(self) -> None:
        """Look again at what has changed."""
        self._poke.set()

    async def reject(self, *, reason: str, message: str, keep_containers: bool) -> None:
        """Report the pod as not admitted, as a kubelet may after a restart; a VM goes on."""
        self.rejected = True
        self.poke()
        await self._report(
            lambda: status.rejected(
                self.pod,
                reason=reason,
                message=message,
                now=_now(),
                keep_containers=keep_containers,
            )
        )

    # Its life

    async def run(self) -> None:
        """Live through what is left of the pod's life."""
        end = self._known_end() or await self._live()
        if self.rejected:
            # A kubelet reports nothing of a pod that it rejected until that pod is deleted.
            await self._until(self._deleting)
        await self._until(lambda: self._gone or not self._held(Stage.REPORT_END))
        if status.runner_state(self.pod)[0] != "terminated" or not status.is_terminal(self.pod):
            await self._report(lambda: status.ended(self.pod, end, now=_now()))
        await self._until(self._deleting)
        await self._request(self._ground.client.finish)

    def _known_end(self) -> ContainerEnd | None:
        """Return how the container ended, when it did before this process began."""
        entry = self._ground.record.history.ended.get(self.uid)
        if entry is not None:
            return end_of(entry)
        kind, detail = status.runner_state(self.pod)
        if kind != "terminated":
            return None
        return ContainerEnd(exit_code=detail["exitCode"], reason=detail.get("reason", ""))

    async def _live(self) -> ContainerEnd:
        """Start, load and run; return how the container ended."""
        lives = self._ground.record.history.lives(self.uid)
        runs = lives or status.runner_state(self.pod)[0] == "running"
        if not runs and not await self._start():
            return status.NEVER_STARTED
        if not lives:
            if not await self._pass(Stage.LOAD):
                return self._exit or status.TERMINATED
            refused = await self._load()
            if refused is not None:
                return refused
        if await self._pass(Stage.READY) and not self.rejected and not status.is_ready(self.pod):
            await self._report(lambda: status.running(self.pod, now=_now(), ready=True))
        await self._until(self._interrupted)
        await self._until(lambda: self._exit is not None or not self._held(Stage.END))
        if self._exit is None:
            self._note(Event.VM_ENDED, reason=self._why(), exit_code=status.SIGTERM_EXIT)
        return self._exit or status.TERMINATED

    async def _start(self) -> bool:
        """Start the container, unless the pod is to end before; tell whether it started."""
        if not self._interrupted() and not status.runner_state(self.pod)[0]:
            await self._report(lambda: status.creating(self.pod, now=_now()))
        if not await self._pass(Stage.START) or self.rejected:
            return False
        await self._report(lambda: status.running(self.pod, now=_now(), ready=False))
        return True

    async def _load(self) -> ContainerEnd | None:
        """Load the snapshot; return None when the VM lives then, else how the container ended."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(
                self._until(self._interrupted), timeout=self._ground.load_seconds
            )
            return self._exit or status.TERMINATED
        result = load(
            self.pod,
            matrix=self._ground.matrix,
            node_cpu=self.node.real_cpu,
            stored=self._ground.captures.find,
            local=self._local,
            failure=self._ground.controls.failure(self.pod),
        )
        facts = _facts(result.plan, result.capture) | {"excluded": excluded_cpus(self.pod)}
        if isinstance(result, Loaded):
            self._note(Event.VM_STARTED, **facts)
            return None
        return self._refuse(result, facts)

    def _refuse(self, result: Refused, facts: dict[str, Any]) -> ContainerEnd:
        message = result.termination_message(self._ground.style)
        entry = self._note(
            Event.LOAD_REFUSED, **facts, code=result.code, message=message, exit_code=1
        )
        return end_of(entry)

    def _local(self, snapshot_id: str) -> Capture | None:
        """Find a snapshot among the files that the node holds."""
        history = self._ground.record.history
        if snapshot_id not in history.files.get(self.node.name, ()):
            return None
        return history.made.get(snapshot_id) or self._ground.captures.find(snapshot_id)

    # Waiting

    def _deleting(self) -> bool:
        return self._gone or "deletionTimestamp" in self.pod["metadata"]

    def _interrupted(self) -> bool:
        """Tell whether the container is to end, or has."""
        ended_elsewhere = status.is_terminal(self.pod) and not self.rejected
        return self._deleting() or ended_elsewhere or self._exit is not None

    def _why(self) -> str:
        """Return in words why the kubelet ends the container."""
        if self._gone:
            return "pod gone"
        return "pod deleted" if self._deleting() else "pod terminal"

    def _held(self, stage: Stage) -> bool:
        return self._ground.controls.is_held(stage, self.pod)

    async def _pass(self, stage: Stage) -> bool:
        """Wait while the stage is held; tell whether to go on."""
        barred = stage is Stage.START

        def decided() -> bool:
            return self._interrupted() or (barred and self.rejected) or not self._held(stage)

        await self._until(decided)
        return not self._interrupted()

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._poke.clear()
            await self._poke.wait()

    # Telling

    def _note(self, event: Event, **fields: object) -> Entry:
        """Write to the record what happened to this pod's VM."""
        metadata = self.pod["metadata"]
        started = self._ground.record.history.started.get(self.uid)
        about = {
            "sandbox": (metadata.get("labels") or {}).get(SANDBOX_LABEL, ""),
            "namespace": metadata["namespace"],
            "pod": metadata["name"],
            "pod_uid": self.uid,
            "node": self.node.name,
            "node_cpu": self.node.real_cpu,
            "node_label": self.node.label,
        }
        if started is not None:
            # Whatever somebody has made of the pod's label since: it is that sandbox's VM.
            about |= {
                "sandbox": started.sandbox,
                "snapshot": started.snapshot,
                "restore_uid": started.restore_uid,
            }
            fields.setdefault("version", started.version)
        return self._ground.record.append(event, **about | fields)

    async def _report(self, build: Callable[[], Object]) -> None:
        """Patch the pod's status with what `build` makes of its newest state."""

        async def patch(_: Object) -> None:
            self.observe(await self._ground.client.patch_status(self.pod, build()))

        await self._request(patch)

    async def _request(self, send: Callable[[Object], Any]) -> None:
        """Send a request once the node is in contact, until it is answered or the pod is gone."""
        while True:
            await self._until(
                lambda: self._gone or self._ground.controls.in_contact(self.node.name)
            )
            if self._gone:
                return
            try:
                await send(self.pod)
                return
            except ApiAnswerError as error:
                if error.status == 404 or "UID in" in str(error):
                    # Gone, or another pod of that name: either way this one is no more.
                    self._gone = True
                    return
                if error.status < 500 and error.status not in (409, 429):
                    raise
                log.warning(
                    "API server answered %s for pod %s", error, self.pod["metadata"]["name"]
                )
            except ABSENCE as error:
                log.warning("no answer for pod %s: %r", self.pod["metadata"]["name"], error)
            await asyncio.sleep(_RETRY_SECONDS)


def end_of(entry: Entry) -> ContainerEnd:
    """Return how a container ended, from the entry about the end of its VM or its load."""
    if entry.reason == MACHINE_LOST:
        return status.MACHINE_RESTARTED
    return ContainerEnd(exit_code=entry.exit_code, message=entry.message)


def _facts(plan: Plan | None, capture: Capture | None) -> dict[str, Any]:
    """Return what the record keeps of a plan and the snapshot that it names."""
    facts: dict[str, Any] = {}
    if plan is not None:
        facts |= {
            "snapshot": plan.snapshot_id,
            "source": plan.source,
            "attempt": plan.attempt,
            "execution": plan.execution_id,
            "restore": plan.restore.name,
            "restore_uid": plan.restore.uid,
        }
    if capture is not None:
        facts |= {
            "version": capture.version,
            "capture_cpu": capture.cpu,
            "ancestors": list(capture.ancestors),
        }
    return facts


def _version(pod: Object) -> int:
    return int(pod["metadata"]["resourceVersion"])


def _now() -> datetime:
    return datetime.now(UTC)
