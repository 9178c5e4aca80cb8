"""Which metrics, labels and values a PromQL expression names, and whether there are such.

Not a parser of PromQL: promtool is that (tests/alerts). It finds the selectors of our own metrics.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from sandbox_restore.agent.metrics import AgentMetrics
from sandbox_restore.agent.state import Reason as AgentReason
from sandbox_restore.errors import SandboxRestoreError
from sandbox_restore.metric_set import Described
from sandbox_restore.metrics import GATE_MODES, NODE_STATES, Metrics
from sandbox_restore.placement.decision import Outcome, Reason
from sandbox_restore.restore.failure import FailureClass
from sandbox_restore.restore.news import Change
from sandbox_restore.restore.phase import Phase

TARGET: Final = frozenset({"namespace", "pod", "instance", "job"})
"""Labels that Prometheus adds to every series of a pod."""

_SELECTOR: Final = re.compile(r"\b(sandbox_restore_[a-z_]+)(\{[^}]*\})?")
_MATCHER: Final = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
_GROUPED: Final = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_OF_HISTOGRAM: Final = re.compile(r"_(bucket|sum|count)$")

_P: Final = "sandbox_restore_"
VALUES: Final[Mapping[tuple[str, str], frozenset[str]]] = {
    (_P + "restores", "phase"): frozenset(Phase),
    (_P + "restores_finished_total", "result"): frozenset({"succeeded", "failed"}),
    (_P + "restore_seconds", "result"): frozenset({"succeeded", "failed"}),
    (_P + "placement_decisions_total", "decision"): frozenset(Outcome),
    (_P + "placement_decisions_total", "reason"): frozenset({*Reason, "LocalOnly"}),
    (_P + "placement_decisions_total", "gate"): frozenset({"on", "off", "observed"}),
    (_P + "placement_would_change_total", "change"): frozenset(Change),
    (_P + "gate_mode", "mode"): frozenset(GATE_MODES),
    (_P + "attempt_failures_total", "class"): frozenset(FailureClass),
    (_P + "redirects_total", "result"): frozenset({"redirected", "blocked"}),
    (_P + "snapshots", "loader"): frozenset({"true", "false", "unknown"}),
    (_P + "fleet_nodes", "state"): frozenset(NODE_STATES),
    (_P + "reconcile_errors_total", "error"): frozenset(
        kind.__name__ for kind in SandboxRestoreError.__subclasses__()
    ),
    (_P + "node_agent_state", "reason"): frozenset(AgentReason),
}
"""What the labels can be whose values are a list of our own."""


@dataclass(frozen=True, slots=True)
class Selector:
    """One metric as an expression asks for it."""

    name: str
    matchers: tuple[tuple[str, str, str], ...]
    """Label, operator, value."""


def there_are() -> dict[str, Described]:
    """Every metric of the operator and the agent by the name it is asked for by."""
    return {one.name: one for one in (*Metrics().described, *AgentMetrics().described)}


def selectors(expression: str) -> Iterator[Selector]:
    """The metrics of ours that an expression asks for."""
    for found in _SELECTOR.finditer(expression):
        yield Selector(found[1], tuple(_MATCHER.findall(found[2] or "")))


def labels_of(selector: Selector) -> frozenset[str]:
    """Labels that its series have; LookupError when there is no such metric."""
    known = there_are()
    one = known.get(selector.name)
    if one is not None and one.kind != "histogram":
        return frozenset(one.labels) | TARGET
    base = known.get(_OF_HISTOGRAM.sub("", selector.name))
    if base is None or base.kind != "histogram" or base.name == selector.name:
        raise LookupError(selector.name)
    le = {"le"} if selector.name.endswith("_bucket") else set()
    return frozenset({*base.labels, *le}) | TARGET


def problems(expression: str, used: Iterable[str] = ()) -> list[str]:
    """What an expression names that is not there; `used`: labels that its texts name."""
    told: list[str] = []
    labels: set[str] = set()
    found = list(selectors(expression))
    if not found:
        told.append("no metric of ours")
    for one in found:
        try:
            own = labels_of(one)
        except LookupError:
            told.append(f"no metric {one.name}")
            continue
        labels |= own
        told += [
            f"{one.name} has no label {name}" for name, _, _ in one.matchers if name not in own
        ]
        told += list(_unknown_values(one))
    grouped = {name.strip() for names in _GROUPED.findall(expression) for name in names.split(",")}
    told += [f"no label {name}" for name in sorted((grouped | set(used)) - labels - {""})]
    return told


def _unknown_values(one: Selector) -> Iterator[str]:
    base = one.name if one.name in there_are() else _OF_HISTOGRAM.sub("", one.name)
    for label, operator, value in one.matchers:
        known = VALUES.get((base, label))
        if known is None or "$" in value:
            continue
        for single in value.split("|") if "~" in operator else [value]:
            if single not in {str(v) for v in known}:
                yield f"{one.name}: {label} is never {single}"
