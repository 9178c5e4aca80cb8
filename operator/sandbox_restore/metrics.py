"""Prometheus metrics of the operator (api.md); docs/metrics.md lists them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from sandbox_restore.fleet.cpu import usable
from sandbox_restore.fleet.index import CpuCount
from sandbox_restore.metric_set import LONG, MetricSet
from sandbox_restore.model.sandbox import StoredLineage
from sandbox_restore.placement.gate import GateSettings

PREFIX: Final = "sandbox_restore_"

NODE_STATES: Final = {
    "all": "nodes",
    "ready": "ready",
    "cordoned": "cordoned",
    "tainted": "tainted",
    "deleting": "deleting",
    "blocked": "blocked",
    "services_ready": "services_ready",
    "slots": "with_slots",
}
"""States of `fleet_nodes`, and the count that each of them shows."""

GATE_MODES: Final = ("off", "observe", "staged", "on")


class Metrics(MetricSet):
    """All metrics; each one's help text is its documentation."""

    def __init__(self) -> None:
        super().__init__(PREFIX)
        self._restore_metrics()
        self._placement_metrics()
        self._rescue_metrics()
        self._fleet_metrics()
        self._server_metrics()
        self._process_metrics()

    def _restore_metrics(self) -> None:
        self.restores = self._gauge(
            "restores", "SandboxRestores there are, by phase and reason.", "phase", "reason"
        )
        self.finished = self._counter(
            "restores_finished", "Restores that ended, by result and reason.", "result", "reason"
        )
        self.restore_seconds = self._histogram(
            "restore_seconds",
            "Time from the creation of a restore to its end, by result.",
            "result",
            buckets=LONG,
        )
        self.attempts = self._counter(
            "attempts_begun", "Attempts begun, by source and gate.", "source", "gate"
        )
        self.ended = self._counter("attempts_ended", "Attempts that ended, by outcome.", "outcome")
        self.failures = self._counter(
            "attempt_failures", "Attempts that ended without a load, by class.", "class"
        )
        self.steps = self._counter("steps", "Steps carried out, by kind.", "step")

    def _placement_metrics(self) -> None:
        self.decisions = self._counter(
            "placement_decisions", "Placement decisions of pods made.", "decision", "reason", "gate"
        )
        self.would_change = self._counter(
            "placement_would_change",
            "Attempts that the gate would have changed, by what it would have done and why; "
            "observed only.",
            "change",
            "reason",
        )
        self.gate_mode = self._gauge(
            "gate_mode", "1 for how the gate is set, 0 for the others.", "mode"
        )
        self.rollout_percent = self._gauge(
            "rollout_percent", "Share of sandboxes that the gate is on for; 0 while it is off."
        )

    def _rescue_metrics(self) -> None:
        self.stranded = self._gauge(
            "stranded",
            "Sandboxes that the node they are pinned to cannot load, by capture CPU, reason and "
            "what is known to hold them there (empty: their next wake may leave it).",
            "capture_cpu",
            "reason",
            "blocked_by",
        )
        self.redirects = self._counter(
            "redirects",
            "Redirects of stranded restores to storage, by result and the condition that blocked.",
            "result",
            "condition",
        )
        self.circuit_open = self._gauge(
            "circuit_open",
            "1 while every loader of this capture CPU has refused it lately.",
            "capture_cpu",
        )
        self.refusals = self._gauge(
            "refusals",
            "Pairs of sandbox and node that are kept apart because the node refused the capture.",
            "capture_cpu",
            "node_cpu",
        )

    def _fleet_metrics(self) -> None:
        self.fleet_nodes = self._gauge(
            "fleet_nodes",
            "Nodes by CPU (empty: no usable label) and state; a node can have several states.",
            "cpu",
            "state",
        )
        self.snapshots = self._gauge(
            "snapshots",
            "Ready full snapshots by capture CPU (empty: not recorded), and whether a node of the "
            "fleet is labelled with a CPU that can load them, their ancestors' CPUs considered.",
            "capture_cpu",
            "loader",
        )
        self.sandboxes = self._gauge("sandboxes", "Rows of sandboxes, by state.", "state")
        self.index_warm = self._gauge("index_warm", "1 when the fleet index is complete.")
        self.history_read = self._gauge(
            "node_history_read", "1 when the node history of earlier times is known."
        )
        self.history_waiting = self._gauge(
            "node_history_waiting", "Spans of the node history that wait to be written."
        )
        self.history_given_up = self._gauge(
            "node_history_given_up", "Spans of the node history that were never written."
        )

    def _server_metrics(self) -> None:
        self.database_up = self._gauge("database_up", "1 while the database answers.")
        self.api_server_up = self._gauge("api_server_up", "1 while the API server answers.")
        self.api_writes = self._counter(
            "api_writes",
            "Write requests to the API server, by verb and resource.",
            "verb",
            "resource",
        )
        self.statements = self._counter(
            "store_statements", "SQL statements, BEGIN and COMMIT not counted.", "statement"
        )
        self.store_seconds = self._histogram(
            "store_statement_seconds", "Time of a SQL statement.", "statement"
        )

    def _process_metrics(self) -> None:
        self.leading = self._gauge("leading", "1 while this process holds the Lease.")
        self.reconcile_seconds = self._histogram("reconcile_seconds", "Time of one pass.")
        self.reconcile_errors = self._counter(
            "reconcile_errors", "Passes that ended in an error, by its kind.", "error"
        )
        self.queue_depth = self._gauge("queue_depth", "Sandboxes queued now.")
        self.queue_delayed = self._gauge(
            "queue_delayed", "Sandboxes that are to be looked at again at a later time."
        )
        self.watch_age = self._gauge(
            "watch_age_seconds",
            "Seconds since a watch was last heard of; -1: it has not begun.",
            "watch",
        )

    # --- events

    def statement(self, name: str, seconds: float) -> None:
        """One SQL statement has ended."""
        self.statements.labels(name).inc()
        self.store_seconds.labels(name).observe(seconds)

    def api_write(self, verb: str, path: str) -> None:
        """One write request is sent."""
        self.api_writes.labels(verb, resource_of(path)).inc()

    def restore_ended(self, *, succeeded: bool, reason: str, seconds: float) -> None:
        """A restore has finished, `seconds` after its creation."""
        result = "succeeded" if succeeded else "failed"
        self.finished.labels(result, reason).inc()
        self.restore_seconds.labels(result).observe(max(0.0, seconds))

    # --- state, set before a scrape or by a sweep

    def set_gate(self, gate: GateSettings) -> None:
        """How the gate is set (section 5)."""
        for mode in GATE_MODES:
            self.gate_mode.labels(mode).set(int(mode == gate_mode(gate)))
        self.rollout_percent.set(gate.percent if gate.enabled else 0)

    def set_connections(self, *, database: bool, api_server: bool) -> None:
        """Whether the two servers answered last."""
        self.database_up.set(int(database))
        self.api_server_up.set(int(api_server))

    def set_restores(self, counted: Mapping[tuple[str, str], int]) -> None:
        """The restores there are, by phase and reason."""
        self.restores.clear()
        for (phase, reason), number in counted.items():
            self.restores.labels(phase, reason).set(number)

    def set_fleet(self, counted: Mapping[str | None, CpuCount]) -> None:
        """The node index as it is now."""
        self.fleet_nodes.clear()
        for cpu, count in counted.items():
            for state, name in NODE_STATES.items():
                self.fleet_nodes.labels(cpu or "", state).set(getattr(count, name))

    def set_rows(
        self,
        sandboxes: Mapping[str, int],
        stored: Iterable[StoredLineage],
        *,
        has_loader: Callable[[str, tuple[str, ...]], bool],
    ) -> None:
        """What was counted in the database last; `has_loader` is asked with a capture CPU and its
        ancestors."""
        self.sandboxes.clear()
        for state, number in sandboxes.items():
            self.sandboxes.labels(state).set(number)
        self.snapshots.clear()
        for one in stored:
            cpu = usable(one.capture_cpu) or ""
            known = str(has_loader(cpu, one.ancestor_cpus)).lower() if cpu else "unknown"
            self.snapshots.labels(cpu, known).inc(one.snapshots)

    def set_refusals(self, counted: Mapping[tuple[str, str], int]) -> None:
        """Sandboxes and nodes that are kept apart (section 11), by capture CPU and node CPU."""
        self.refusals.clear()
        for (capture_cpu, node_cpu), number in counted.items():
            self.refusals.labels(capture_cpu, node_cpu).set(number)

    def set_stranded(self, counted: Mapping[tuple[str, str, str], int]) -> None:
        """What one sweep found; what it did not find is zero again."""
        self.stranded.clear()
        for (capture_cpu, reason, blocked_by), number in counted.items():
            self.stranded.labels(capture_cpu, reason, blocked_by).set(number)


def gate_mode(gate: GateSettings) -> str:
    """One of GATE_MODES: `staged` is on for a part of the restores."""
    if not gate.enabled:
        return "observe" if gate.observe else "off"
    return "staged" if gate.namespaces or gate.percent < 100 else "on"


def resource_of(path: str) -> str:
    """The resource, with its subresource, that an API path names."""
    parts = [p for p in path.split("/") if p]
    at = 2 if parts[0] == "api" else 3
    if len(parts) > at + 1 and parts[at] == "namespaces":
        at += 2
    resource = parts[at] if len(parts) > at else "unknown"
    return "/".join([resource, *parts[at + 2 :]])
