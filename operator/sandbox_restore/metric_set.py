"""Prometheus metrics of one process: one registry, none global, and a description of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from sandbox_restore import __version__

Kind = Literal["counter", "gauge", "histogram"]

LONG: Final = (0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800)
"""Buckets in seconds for what takes as long as a restore."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """What docs/metrics.md says of one metric."""

    name: str
    """As it is scraped: a counter's ends with `_total`."""
    kind: Kind
    labels: tuple[str, ...]
    text: str


class MetricSet:
    """Makes metrics under one prefix and remembers what each of them is."""

    def __init__(self, prefix: str) -> None:
        self.registry = CollectorRegistry()
        self.described: list[Described] = []
        self._prefix = prefix
        self._gauge("build_info", "1 for the version of the program.", "version").labels(
            __version__
        ).set(1)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        self._describe(f"{name}_total", "counter", text, labels)
        return Counter(self._prefix + name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        self._describe(name, "gauge", text, labels)
        return Gauge(self._prefix + name, text, labels, registry=self.registry)

    def _histogram(
        self,
        name: str,
        text: str,
        *labels: str,
        buckets: tuple[float, ...] = Histogram.DEFAULT_BUCKETS,
    ) -> Histogram:
        self._describe(name, "histogram", text, labels)
        return Histogram(self._prefix + name, text, labels, registry=self.registry, buckets=buckets)

    def _describe(self, name: str, kind: Kind, text: str, labels: tuple[str, ...]) -> None:
        self.described.append(
            Described(name=self._prefix + name, kind=kind, labels=labels, text=text)
        )

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self.registry)
