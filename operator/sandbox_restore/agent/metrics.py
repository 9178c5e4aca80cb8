"""Prometheus metrics of the node agent; docs/metrics.md lists them."""

from __future__ import annotations

from typing import Final

from sandbox_restore.agent.detect import Detection
from sandbox_restore.agent.state import Plan, Reason, Seen
from sandbox_restore.metric_set import MetricSet

PREFIX: Final = "sandbox_restore_node_agent_"


class AgentMetrics(MetricSet):
    """All metrics; each one's help text is its documentation."""

    def __init__(self) -> None:
        super().__init__(PREFIX)
        self.cpu = self._gauge(
            "cpu_info", "1 for the CPU that was told; none when it cannot be.", "cpu"
        )
        self.label_ok = self._gauge("label_ok", "1 while the Node carries the right label.")
        self.slots = self._gauge("slots_advertised", "Slots that the kubelet has been offered.")
        self.reason = self._gauge(
            "state", "1 for the reason of the Node's condition, 0 for the others.", "reason"
        )
        self.held = self._gauge("relabel_held_pods", "Sandbox pods that hold a new label back.")
        self.writes = self._counter("label_writes", "Writes of the label, by result.", "result")
        self.registrations = self._counter(
            "registrations", "Registrations with the kubelet, by result.", "result"
        )
        self.looks = self._counter("looks", "Looks at the Node.")
        for reason in Reason:
            self.reason.labels(reason.value).set(0)

    def looked(self, seen: Seen, found: Plan, *, label_ok: bool) -> None:
        """One look has ended."""
        self.looks.inc()
        self._detected(seen.detection)
        self.slots.set(seen.kubelet.slots)
        for reason in Reason:
            self.reason.labels(reason.value).set(reason is found.reason)
        held = found.reason is Reason.RELABEL_HELD
        self.held.set(len(seen.ended_pods or ()) if held else 0)
        if seen.node is not None or not seen.node_unread:
            self.label_ok.set(label_ok)

    def _detected(self, detection: Detection) -> None:
        self.cpu.clear()
        if detection.value is not None:
            self.cpu.labels(detection.value).set(1)
