"""One story: a sandbox, a cluster, the platform, two operators, and how they meet."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from sandbox_restore.errors import SandboxRestoreError
from sandbox_restore.model.sandbox import Outcome, SandboxState, SandboxView, Source
from sandbox_restore.restore.redirect import Redirect
from sandbox_restore.restore.world import BeginAttempt, Retire, Step
from sandbox_restore.store.store import Store
from tests.machine.cluster import Cluster, Machine, ViolationError
from tests.machine.platform import Platform
from tests.store.helpers import Database
from tests.support.driven import DrivenOperator
from tests.support.gates import Conductor, Fate, GatedStore, Line
from tests.support.simapi import SimApi, SimClient

NAMESPACE = "team-a"
BEGINNING = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
RIGHT, WRONG = "intel-6-106-6", "intel-6-79-1"
"""The CPU on which everything is captured, and one that cannot load it."""
FOREVER = 604_800
"""Seconds: the deadline of restores that nobody hurries."""

SANDBOX = "box"

TOLD = 120
"""Lines of the story that a violation comes with."""


@dataclass(kw_only=True)
class Rig:
    """What examples share: the event loop, the database, and a count of steps."""

    loop: asyncio.AbstractEventLoop
    stores: list[Store]
    db: Database
    """The platform's connection."""
    eye: Database
    """A connection that only looks."""
    steps: int = 0
    examples: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    """How often operators did what, and how often the world did."""


@dataclass(kw_only=True)
class Operator:
    """One process: its memory, the line it runs on, and how far its watches have come."""

    driven: DrivenOperator
    line: Line
    heard: dict[str, int] = field(default_factory=dict)
    """Changes of a kind that it has been told of."""
    announced: list[int] = field(default_factory=list)
    """Row versions that it has not been told of yet."""


class Story:
    """One sandbox, from a beginning on."""

    def __init__(self, rig: Rig, *, gates: tuple[bool, bool], odd: str) -> None:
        self.rig = rig
        self.id = SANDBOX
        self.conductor = Conductor(tell=self.tell_story)
        self.api = SimApi(namespace=NAMESPACE, clock=lambda: self.cluster.now)
        self.cluster = Cluster(api=self.api, now=BEGINNING)
        self.platform = Platform(db=rig.db, sandbox_id=self.id, cluster=self.cluster)
        self.platform_line = self.conductor.line("platform")
        self.operators = [
            self._operator(number, store, gate=gate)
            for number, (store, gate) in enumerate(zip(rig.stores, gates, strict=True), start=1)
        ]
        for name, cpu, label in (("a", WRONG, WRONG), ("b", RIGHT, RIGHT), ("c", odd, None)):
            self.cluster.add_machine(Machine(name=name, cpu=cpu, label=label))
        self.restores = 0
        self.verdicts: dict[str, tuple[str, str]] = {}
        """What each finished restore said, by UID: it never takes that back."""
        self.view: SandboxView
        self.told: list[str] = []
        """What has happened, for whoever has to understand a violation."""
        self.happened: Counter[str] = Counter()
        self.last_change = BEGINNING
        self._api_version = 0

    def _operator(self, number: int, store: Store, *, gate: bool) -> Operator:
        line = self.conductor.line(f"operator {number}")
        driven = DrivenOperator(
            store=GatedStore(store, line),
            client=SimClient(self.api, carry=line.carry),
            clock=lambda: self.cluster.now,
            name=line.name,
            gate=gate,
        )
        return Operator(driven=driven, line=line)

    # --- one step

    async def step(self, what: str, work: Callable[[], object]) -> None:
        """Does it, lets everybody come to rest, and looks at what is now."""
        self.tell_story(what)
        self.happened[what_kind(what)] += 1
        try:
            done = work()
            if inspect.isawaitable(done):
                await done
            await self.conductor.settle()
            await self.check(changed=self.conductor.asked)
        except Exception as error:
            error.add_note(self.last_lines())
            raise

    def last_lines(self) -> str:
        return "\n".join(self.told[-TOLD:])

    def count(self) -> None:
        """Adds this story to what the rig has seen."""
        for operator in self.operators:
            self.rig.seen.update(step_name(step) for step in operator.driven.steps)
        self.rig.seen.update(self.happened)

    def tell_story(self, what: str) -> None:
        self.told.append(f"{self.cluster.now:%H:%M:%S} {what}")

    async def look(self) -> SandboxView:
        uids = [r["metadata"]["uid"] for r in self.api.restores.values()]
        return await self.rig.eye.view(self.id, *uids)

    async def check(self, *, changed: bool = True) -> None:
        """The invariants of the row, and what the simulation has to know of it."""
        before = self.view
        after = await self.look() if changed else before
        self.conductor.asked = False
        check_row(before, after)
        self.view = after
        if row_of(after) != row_of(before):
            self.tell_story(f"    row: {row_of(after)}")
        if (self.api.version, after.sandbox.version) != (
            self._api_version,
            before.sandbox.version,
        ):
            self._api_version, self.last_change = self.api.version, self.cluster.now
        if after.sandbox.version != before.sandbox.version:
            for operator in self.operators:
                operator.announced.append(after.sandbox.version)
        for run in after.attempts:
            if run.source is Source.STORAGE and run.prior_pin is not None:
                self.cluster.rescues.add(run.id)
        for restore in self.api.restores.values():
            self._check_verdict(restore)

    def _check_verdict(self, restore: dict[str, Any]) -> None:
        uid = restore["metadata"]["uid"]
        conditions = restore.get("status", {}).get("conditions", ())
        said = next((c for c in conditions if c["type"] == "Succeeded"), None)
        if said is None or said["status"] == "Unknown":
            if uid in self.verdicts:
                raise ViolationError(f"restore {uid} was {self.verdicts[uid]} and is open again")
            return
        verdict = (said["status"], said["reason"])
        if self.verdicts.setdefault(uid, verdict)[0] != verdict[0]:
            raise ViolationError(f"restore {uid} was {self.verdicts[uid]} and is {verdict}")
        if verdict[0] == "True":
            self.cluster.succeeded.add(uid)

    # --- operators

    def advance(
        self,
        operator: Operator,
        permits: int,
        fate: Fate = Fate.ANSWERED,
        *,
        fine: bool = True,
    ) -> None:
        """Begins a pass, or lets the one that goes on do so much more.

        `fine`: also each read needs a permit; else only locks, commits and API writes do.
        """
        if operator.line.idle:
            work = operator.driven.look(self.id)
            self.conductor.start(operator.line, work, permits=permits, fine=fine)
        else:
            operator.line.allow(permits, fine=fine)
        operator.line.fate = fate

    async def restart(self, operator: Operator, *, late: bool) -> None:
        """SIGKILL, and a new process with fresh caches."""
        if not operator.line.idle:
            await self.conductor.crash(operator.line, late=late)
        operator.driven.restart()
        await self.warm(operator)

    async def warm(self, operator: Operator) -> None:
        """Its first lists; the gates are open for them."""
        self.conductor.start(operator.line, operator.driven.warm(), permits=1000)
        await self.conductor.settle()
        operator.heard = {kind: len(self.api.changes) for kind in ("nodes", "pods", "restores")}
        operator.announced.clear()

    def tell(self, operator: Operator, news: str = "all") -> None:
        """Its watch events of one kind, in order, or what Postgres has notified it of, or all."""
        if news in ("row", "all"):
            for version in operator.announced:
                operator.driven.views.announced(self.id, version)
            operator.announced.clear()
        for kind in operator.heard:
            if news in (kind, "all"):
                for change in self.api.changes[operator.heard[kind] :]:
                    if change.kind == kind:
                        operator.driven.hear(kind, deleted=change.deleted, body=change.body)
                operator.heard[kind] = len(self.api.changes)

    def arrive(self, index: int) -> None:
        """A request that was under way takes effect after all."""
        _, deliver = self.conductor.late.pop(index)
        try:
            deliver()
        except SandboxRestoreError:
            return

    # --- the platform

    def report(self, work: Awaitable[Any]) -> None:
        """A call of the platform: at once, or after whoever holds the row's lock."""
        line = self.platform_line

        async def call() -> None:
            async with line.asking():
                await work

        self.conductor.start(line, call(), permits=0)

    def pass_time(self, seconds: float) -> None:
        self.cluster.pass_time(timedelta(seconds=seconds))

    # --- users

    def change_restore(self, name: str, what: str) -> None:
        match what:
            case "delete":
                self.api.remove("restores", name)
            case "deadline":
                self.api.edit_restore(name, activeDeadlineSeconds=1)
            case "suspend" | "go on":
                self.api.edit_restore(name, suspend=what == "suspend")

    def add_restore(self, **spec: object) -> str:
        self.restores += 1
        name = f"r{self.restores}"
        body = self.api.create(
            "restores",
            {
                "apiVersion": "space.pplx.net/v1alpha1",
                "kind": "SandboxRestore",
                "metadata": {"name": name, "namespace": NAMESPACE, "uid": f"{self.id}-{name}"},
                "spec": {
                    "sandboxId": self.id,
                    "activeDeadlineSeconds": FOREVER,
                    "ttlSecondsAfterFinished": 900,
                    **spec,
                },
            },
        )
        uid: str = body["metadata"]["uid"]
        if "snapshotId" in spec:
            self.cluster.named.add(uid)
        return uid


def step_name(step: Step) -> str:
    """What an operator did, as one would count it."""
    match step:
        case BeginAttempt(redirect=Redirect()):
            return "op: redirect"
        case BeginAttempt(clear_pin=True):
            return "op: evacuate"
        case BeginAttempt(source=source):
            return f"op: begin {source}"
        case Retire(outcome=how):
            return f"op: retire {how}"
    return f"op: {type(step).__name__}"


def what_kind(what: str) -> str:
    """A line of the story without the names in it."""
    return re.sub(r"\b(?:[abc]|r\d+\S*|own-\d+|operator \d|\{.*|\d+)(?=\s|$)", "…", what)


def row_of(view: SandboxView) -> str:
    """The row in one line."""
    row, newest = view.sandbox, view.newest
    run = "no execution"
    if newest is not None:
        run = (
            f"{newest.source} {newest.state} {newest.outcome or ''} attempt {newest.attempt} of "
            f"{newest.restore_uid} pod {newest.pod_name}"
            f"{' loaded' if newest.loaded_at else ''}{' released' if newest.released_at else ''}"
        )
    shots = ", ".join(f"{s.id} {s.state}" for s in view.snapshots)
    marker = " with marker" if row.local_artifact_marker else ""
    return f"{row.state} pinned to {row.pinned_node}{marker}; {run}; {shots}"


def check_row(before: SandboxView, after: SandboxView) -> None:
    """Section 15: what a row and its executions never do."""
    row = after.sandbox
    loaded = after.active is not None and after.active.loaded_at is not None
    if (row.state is SandboxState.RUNNING) != loaded:
        raise ViolationError(f"row {row.state}, active execution {after.active}")
    if after.active is not None and not loaded and row.state is not SandboxState.RESTORING:
        raise ViolationError(f"row {row.state} while execution {after.active.id} is active")
    older = {e.id: e for e in before.attempts}
    for run in after.attempts:
        known = older.get(run.id)
        if known is None or known.outcome is None:
            continue
        if (known.outcome, run.outcome) not in (
            (known.outcome, known.outcome),
            (Outcome.LOST, Outcome.SUSPENDED),
        ):
            raise ViolationError(f"execution {run.id} was {known.outcome} and is {run.outcome}")
