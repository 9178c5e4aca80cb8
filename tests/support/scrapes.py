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
    _last: dict[str, tuple[str, dict[str, str]]] = field(default_factory=dict)
    """The text of each target's last scrape, and what was read from it."""

    def take(self, targets: Mapping[str, tuple[Labels, MetricSet]]) -> None:
        """One scrape of each target: the labels that Prometheus gives it, and its metrics."""
        for target, (given, metrics) in targets.items():
            text = metrics.text().decode()
            before = self._last.get(target)
            if before is None or before[0] != text:
                self._last[target] = text, _samples(text, given)
            for name, value in self._last[target][1].items():
                self._series.setdefault(name, {})[self.minutes] = value
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


def _samples(text: str, given: Labels) -> dict[str, str]:
    """Every sample of a scrape: the series as promtool writes it, and its value."""
    return {
        _series_name(sample.name, {**sample.labels, **given}): f"{sample.value:g}"
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def _series_name(name: str, labels: Labels) -> str:
    inside = ",".join(f'{key}="{_escaped(value)}"' for key, value in sorted(labels.items()))
    return f"{name}{{{inside}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
