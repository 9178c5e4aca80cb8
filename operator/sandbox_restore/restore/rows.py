"""What is written to a sandbox's row under its lock, and what goes with each write (section 15)."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

import structlog

from sandbox_restore.errors import (
    ConflictError,
)
from sandbox_restore.fleet.cpu import label_cpu
from sandbox_restore.kube.objects import KubeObjects
from sandbox_restore.model.node import NodeFacts
from sandbox_restore.model.sandbox import (
    Execution,
    LoadObservation,
    LoadResult,
    SandboxView,
)
from sandbox_restore.restore.breaker import Breaker
from sandbox_restore.restore.budget import RedirectBudget
from sandbox_restore.restore.failure import FailureClass
from sandbox_restore.restore.news import News
from sandbox_restore.restore.placing import Placer
from sandbox_restore.restore.redirect import Redirect
from sandbox_restore.restore.reporter import Reporter
from sandbox_restore.restore.state import ClusterState
from sandbox_restore.restore.views import ViewCache
from sandbox_restore.restore.world import (
    BeginAttempt,
    FailRow,
    GiveUpMarker,
    Plan,
    Retire,
    Step,
    World,
)
from sandbox_restore.store.locked import LockedSandbox

EXECUTION_NAMESPACE = uuid.UUID("6f1f1d0e-6d8e-4c39-9d1a-3f6d2f3c9a51")
"""Execution ids are a function of restore and attempt, so that a retry cannot double one."""

log = structlog.get_logger()


def execution_id(restore_uid: str, attempt: int) -> str:
    """The id of the execution of one attempt of one restore."""
    return str(uuid.uuid5(EXECUTION_NAMESPACE, f"{restore_uid}/{attempt}"))


@dataclass(frozen=True, slots=True)
class _Begun:
    """A redirect that was written and perhaps committed."""

    execution_id: str
    redirect: Redirect


class RowWriter:
    """Carries out the steps that need the row's lock; the caller holds it and has judged anew."""

    def __init__(
        self,
        *,
        state: ClusterState,
        kube: KubeObjects,
        placer: Placer,
        reporter: Reporter,
        views: ViewCache,
        budget: RedirectBudget,
        breaker: Breaker,
        clock: Callable[[], datetime],
    ) -> None:
        self._state = state
        self._kube = kube
        self._placer = placer
        self._reporter = reporter
        self._views = views
        self._budget = budget
        self._breaker = breaker
        self._redirects: dict[str, _Begun] = {}
        self._clock = clock

    async def write(self, locked: LockedSandbox, step: Step, live: World) -> None:
        match step:
            case BeginAttempt():
                await self._begin(locked, step, live)
            case Retire():
                await self.retire(locked, step, live)
            case GiveUpMarker():
                await self._give_up_marker(locked, step)
            case FailRow():
                await locked.fail_row(live.now)
                log.info("row_set_failed", sandbox=live.sandbox_id)
            case _:
                raise AssertionError(f"no row write for {type(step).__name__}")

    async def _begin(self, locked: LockedSandbox, step: BeginAttempt, live: World) -> None:
        if live.namespace_uid is None:
            raise ConflictError(f"namespace {step.restore.namespace} is gone")
        identity = execution_id(step.restore.uid, step.attempt)
        await locked.begin_attempt(
            execution_id=identity,
            restore_uid=step.restore.uid,
            restore_name=step.restore.name,
            attempt=step.attempt,
            source=step.source,
            snapshot_id=step.snapshot.id if step.snapshot is not None else None,
            pod_name=self._placer.pod_name(step.restore, step.attempt),
            target_node=step.target_node,
            gate=step.gate,
            clear_pin=step.clear_pin,
            namespace_uid=live.namespace_uid,
            now=live.now,
            capture_cpu=step.capture_cpu,
        )
        if step.rate_limited:
            self._budget.take(live.sandbox_id, live.now)
        if step.redirect is not None:
            self._redirects[live.sandbox_id] = _Begun(identity, step.redirect)
        log.info(
            "attempt_begun",
            sandbox=live.sandbox_id,
            restore=step.restore.name,
            attempt=step.attempt,
            source=step.source.value,
            snapshot=step.snapshot.id if step.snapshot is not None else None,
            gate=step.gate,
            redirected=step.redirect is not None,
        )

    async def retire(self, locked: LockedSandbox, step: Retire, live: World) -> None:
        sighting = live.sightings.get(step.node_name or "")
        node = sighting.node if sighting is not None else None
        if node is None and step.node_name is not None:
            node = await self._kube.node(step.node_name)
        node_uid, node_cpu = self.identity(node)
        await locked.retire(
            execution_id=step.execution.id,
            outcome=step.outcome,
            row_state=step.row_state,
            pinned_node=step.pinned_node,
            marker=step.marker,
            now=self._clock(),
            failure_class=step.failure_class,
            failure_message=step.failure_message,
            pod_uid=step.pod_uid,
            node_name=step.node_name,
            node_uid=node_uid,
            node_cpu=node_cpu,
        )
        if step.failure_class == FailureClass.CPU_INCOMPATIBLE.value and step.node_name is not None:
            self.observe(
                live.view,
                step.execution,
                LoadResult.CPU_INCOMPATIBLE,
                node_name=step.node_name,
                node_uid=node_uid,
                node_cpu=node_cpu,
            )
        if step.execution.pod_uid is not None:
            self._state.forget_gone(step.execution.pod_uid)
        log.info(
            "execution_retired",
            sandbox=locked.sandbox_id,
            execution=step.execution.id,
            outcome=step.outcome.value,
            failure_class=step.failure_class,
            node=step.node_name,
            why=step.why,
        )

    async def _give_up_marker(self, locked: LockedSandbox, step: GiveUpMarker) -> None:
        """The Event first: it has a name of its own, so that a second one changes nothing, and
        none is missing for a marker that is gone."""
        evidence = step.evidence
        await self._reporter.announce(
            step.restore,
            News(
                reason="MarkerGivenUp",
                note=f"what node {evidence.node} may hold is given up: {evidence.why}",
                identity=evidence.execution_id,
            ),
            now=self._clock(),
        )
        await locked.clear_marker()
        log.warning(
            "marker_given_up",
            sandbox=locked.sandbox_id,
            restore=step.restore.name,
            node=evidence.node,
            execution=evidence.execution_id,
            why=evidence.why,
        )

    def with_redirects(self, decided: Plan, sandbox_id: str) -> Plan:
        """The conditions that let a redirect through are told with its outcome: by then the row is
        not pinned any more, and they cannot be judged again. One whose commit was lost has not
        happened and is not told."""
        begun = self._redirects.get(sandbox_id)
        if begun is None:
            return decided
        view = self._views.peek(sandbox_id)
        newest = view.newest if view is not None else None
        if newest is None or newest.id != begun.execution_id:
            del self._redirects[sandbox_id]
            return decided
        if not newest.active or newest.released_at is not None:
            # Told by now, or about to be; until then a status that came second is written again.
            del self._redirects[sandbox_id]
        said = {
            uid: replace(words, redirect=begun.redirect)
            if words.redirect is None and uid == newest.restore_uid
            else words
            for uid, words in decided.said.items()
        }
        return replace(decided, said=said)

    def observe(
        self,
        view: SandboxView | None,
        execution: Execution,
        result: LoadResult,
        *,
        node_name: str,
        node_uid: str | None,
        node_cpu: str | None,
    ) -> None:
        """Tells the circuit breaker at once what the row keeps as an observation (section 11)."""
        snapshots = view.snapshots if view is not None else ()
        recorded = next((s.host_cpu for s in snapshots if s.id == execution.snapshot_id), None)
        self._breaker.record(
            [
                LoadObservation(
                    execution_id=execution.id,
                    sandbox_id=execution.sandbox_id,
                    snapshot_id=execution.snapshot_id,
                    result=result,
                    capture_cpu=execution.capture_cpu or recorded,
                    node_name=node_name,
                    node_uid=node_uid,
                    node_cpu=node_cpu,
                    observed_at=self._clock(),
                )
            ]
        )

    def identity(self, node: NodeFacts | None) -> tuple[str | None, str | None]:
        """UID and CPU of a node as just read from the API server."""
        if node is None:
            return None, None
        return node.uid, label_cpu(node.labels, key=self._state.fleet.cpu_label)
