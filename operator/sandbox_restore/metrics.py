"""Prometheus metrics of the operator (api.md); one registry an operator, none global."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from sandbox_restore import __version__
from sandbox_restore.fleet.index import CpuCount

PREFIX = "sandbox_restore_"


class Metrics:
    """All metrics; each one's help text is its documentation."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.steps = self._counter("steps", "Steps carried out, by kind.", "step")
        self.decisions = self._counter(
            "placement_decisions", "Placement decisions of pods made.", "decision", "reason", "gate"
        )
        self.finished = self._counter(
            "restores_finished", "Restores that ended, by result and reason.", "result", "reason"
        )
        self.failures = self._counter(
            "attempt_failures", "Attempts that ended without a load, by class.", "class"
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
        self.stranded = self._gauge(
            "stranded",
            "Sandboxes that the node they are pinned to cannot load, by capture CPU and reason.",
            "capture_cpu",
            "reason",
        )
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
        self.reconcile_seconds = self._histogram("reconcile_seconds", "Time of one pass.")
        self.reconcile_errors = self._counter(
            "reconcile_errors", "Passes that ended in an error, by its kind.", "error"
        )
        self.queue_depth = self._gauge("queue_depth", "Sandboxes queued now.")
        self.watch_age = self._gauge(
            "watch_age_seconds", "Seconds since a watch was last heard of.", "watch"
        )
        self.fleet_nodes = self._gauge(
            "fleet_nodes",
            "Nodes by CPU (empty: no usable label) and state; a node can have several states.",
            "cpu",
            "state",
        )
        self.sandboxes = self._gauge("sandboxes", "Rows of sandboxes, by state.", "state")
        self.snapshots = self._gauge(
            "snapshots",
            "Ready full snapshots by capture CPU (empty: not recorded), and whether a node of the "
            "fleet is labelled with a CPU that can load them.",
            "capture_cpu",
            "loader",
        )
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
        self.leading = self._gauge("leading", "1 while this process holds the Lease.")
        build = Gauge(PREFIX + "build_info", "Version.", ["version"], registry=self.registry)
        build.labels(__version__).set(1)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(PREFIX + name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(PREFIX + name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(PREFIX + name, text, labels, registry=self.registry)

    def statement(self, name: str, seconds: float) -> None:
        """One SQL statement has ended."""
        self.statements.labels(name).inc()
        self.store_seconds.labels(name).observe(seconds)

    def api_write(self, verb: str, path: str) -> None:
        """One write request is sent."""
        self.api_writes.labels(verb, resource_of(path)).inc()

    def set_fleet(self, counted: Mapping[str | None, CpuCount]) -> None:
        """The node index as it is now."""
        self.fleet_nodes.clear()
        for cpu, count in counted.items():
            for state in ("nodes", "ready", "cordoned", "tainted", "deleting", "blocked"):
                name = "all" if state == "nodes" else state
                self.fleet_nodes.labels(cpu or "", name).set(getattr(count, state))

    def set_rows(
        self,
        sandboxes: Mapping[str, int],
        snapshots: Mapping[str, int],
        *,
        has_loader: Callable[[str], bool],
    ) -> None:
        """What the last sweep counted in the database."""
        self.sandboxes.clear()
        for state, number in sandboxes.items():
            self.sandboxes.labels(state).set(number)
        self.snapshots.clear()
        for cpu, number in snapshots.items():
            known = str(has_loader(cpu)).lower() if cpu else "unknown"
            self.snapshots.labels(cpu, known).set(number)

    def set_stranded(self, counted: Mapping[tuple[str, str], int]) -> None:
        """What one sweep found; what it did not find is zero again."""
        self.stranded.clear()
        for (capture_cpu, reason), number in counted.items():
            self.stranded.labels(capture_cpu, reason).set(number)

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self.registry)


def resource_of(path: str) -> str:
    """The resource, with its subresource, that an API path names."""
    parts = [p for p in path.split("/") if p]
    at = 2 if parts[0] == "api" else 3
    if len(parts) > at + 1 and parts[at] == "namespaces":
        at += 2
    resource = parts[at] if len(parts) > at else "unknown"
    return "/".join([resource, *parts[at + 2 :]])
