"""What the parts do, as metrics: counted where it happens, gauges read when they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from sandbox_restore.fleet.cpu import recorded_ancestors
from sandbox_restore.fleet.history import NodeHistory
from sandbox_restore.metrics import Metrics
from sandbox_restore.model.restore import Restore
from sandbox_restore.restore.breaker import Breaker
from sandbox_restore.restore.phase import by_phase
from sandbox_restore.restore.placing import Placing
from sandbox_restore.restore.queue import KeyedQueue
from sandbox_restore.restore.state import ClusterState
from sandbox_restore.restore.watches import WatchLog
from sandbox_restore.restore.world import BeginAttempt, Retire, Said, Step
from sandbox_restore.settings import Settings
from sandbox_restore.store.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Counting:
    """One leading operator's figures."""

    metrics: Metrics
    settings: Settings
    state: ClusterState
    queue: KeyedQueue
    breaker: Breaker
    history: NodeHistory
    watches: WatchLog
    store: Store
    clock: Callable[[], datetime]

    # --- as it happens

    def step(self, step: Step) -> None:
        """The reconciler is about to carry a step out."""
        self.metrics.steps.labels(type(step).__name__).inc()
        if isinstance(step, BeginAttempt):
            gate = "on" if step.gate else "off"
            self.metrics.attempts.labels(step.source.value, gate).inc()
            if step.redirect is not None:
                self.metrics.redirects.labels("redirected", "").inc()
        if isinstance(step, Retire):
            self.metrics.ended.labels(step.outcome.value).inc()
            if step.failure_class is not None:
                self.metrics.failures.labels(step.failure_class).inc()

    def finished(self, restore: Restore, said: Said) -> None:
        """A restore has ended, either way."""
        self.metrics.restore_ended(
            succeeded=bool(said.succeeded),
            reason=said.reason,
            seconds=(self.clock() - restore.created).total_seconds(),
        )

    def placed(self, placing: Placing) -> None:
        """A pod was made by this decision."""
        told = [(placing.placement, "on" if placing.placement.gate else "off")]
        if placing.observed is not None:
            told.append((placing.observed, "observed"))
        for status, gate in told:
            self.metrics.decisions.labels(status.decision, status.reason, gate).inc()

    def blocked(self, condition: str) -> None:
        """A redirect is held up by this condition."""
        self.metrics.redirects.labels("blocked", condition).inc()

    def would_change(self, change: str, reason: str) -> None:
        """The gate, observed only, would have done otherwise."""
        self.metrics.would_change.labels(change, reason).inc()

    # --- when it is asked for

    async def rows(self) -> None:
        """Rows by state, snapshots that no node of the fleet could load, refusals."""
        counts = await self.store.counts()
        # Not those that are only held as published: a snapshot whose last loader left has none.
        published = self.state.fleet.published()
        loaders = self.settings.compatibility.loaders
        self.metrics.set_rows(
            counts.sandboxes,
            await self.store.stored_lineages(),
            has_loader=lambda cpu, ancestors: bool(
                loaders(cpu, recorded_ancestors(ancestors), published)
            ),
        )
        since = self.clock() - self.settings.observation_ttl
        self.metrics.set_refusals(await self.store.refusals(since))

    def gauges(self) -> None:
        """What is so right now."""
        self.metrics.set_restores(by_phase(self.state.restores()))
        self.metrics.queue_depth.set(len(self.queue))
        self.metrics.queue_delayed.set(self.queue.delayed)
        self.metrics.index_warm.set(int(self.state.fleet.warm))
        self.metrics.set_fleet(self.state.fleet.counts())
        self._circuits()
        self.metrics.history_read.set(int(self.history.loaded))
        self.metrics.history_waiting.set(self.history.waiting)
        self.metrics.history_given_up.set(self.history.given_up)
        for kind, age in self.watches.ages().items():
            self.metrics.watch_age.labels(kind).set(-1 if age is None else age)

    def _circuits(self) -> None:
        now = self.clock()
        published = self.state.fleet.published(now=now)
        self.metrics.circuit_open.clear()
        for cpu in self.breaker.captures(now):
            loaders = self.settings.compatibility.loaders(cpu, (), published)
            found = self.breaker.verdict(cpu, loaders, now=now)
            self.metrics.circuit_open.labels(cpu).set(int(found is not None))
