"""What Prometheus keeps of the processes that it scrapes, as the input of promtool's unit tests.

Every sample is one that the real metrics have rendered: their text is read as Prometheus reads it.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from sandbox_restore.metric_set import MetricSet

Labels = Mapping[str, str]


@dataclass(slots=True)
class Scrapes:
    """Series of one scrape a minute."""

    minutes: int = 0
    """How many there were."""
    _series: dict[str, dict[int, str]] = field(default_factory=dict)

    def take(self, targets: Mapping[str, tuple[Labels, MetricSet]]) -> None:
        """One scrape of each target: the labels that Prometheus gives it, and its metrics."""
        for given, metrics in targets.values():
            for family in text_string_to_metric_families(metrics.text().decode()):
                for sample in family.samples:
                    name = _series_name(sample.name, {**sample.labels, **given})
                    self._series.setdefault(name, {})[self.minutes] = f"{sample.value:g}"
        self.minutes += 1

    def input_series(self) -> list[dict[str, str]]:
        """`input_series` of a promtool test with `interval: 1m`.

        A series that a scrape does not have any more gets the mark that Prometheus gives it.
        """
        return [
            {"series": name, "values": self._values(samples)}
            for name, samples in sorted(self._series.items())
        ]

    def _values(self, samples: Mapping[int, str]) -> str:
        found: list[str] = []
        for minute in range(self.minutes):
            before = found[-1] if found else "_"
            missing = "_" if before in ("_", "stale") else "stale"
            found.append(samples.get(minute, missing))
        return " ".join(_run(value, len(list(same))) for value, same in itertools.groupby(found))


def _run(value: str, times: int) -> str:
    """promtool's short form: `axn` is a and n more, `_xn` is n gaps."""
    if value == "_":
        return f"_x{times}"
    return value if times == 1 else f"{value}x{times - 1}"


def _series_name(name: str, labels: Labels) -> str:
    inside = ",".join(f'{key}="{_escaped(value)}"' for key, value in sorted(labels.items()))
    return f"{name}{{{inside}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
