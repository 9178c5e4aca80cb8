"""The one word for a node that matters most to whoever wants a pod on it. PURE."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sandbox_restore.model.names import PLACEMENT_BLOCK_LABEL
from sandbox_restore.model.node import NodeFacts
from sandbox_restore.report.words import listed
from sandbox_restore.restore.giveup import drained_away


class NodeState(StrEnum):
    SCHEDULABLE = "schedulable"
    TAINTED = "tainted"
    """Schedulable for pods that tolerate its taints."""
    NOT_READY = "not ready"
    BLOCKED = "blocked"
    CORDONED = "cordoned"
    DRAINING = "draining"
    DELETING = "deleting"


COMMAND: Final[Mapping[NodeState, str]] = {
    NodeState.TAINTED: "kubectl describe node {}",
    NodeState.NOT_READY: "kubectl describe node {}",
    NodeState.BLOCKED: f"kubectl label node {{}} {PLACEMENT_BLOCK_LABEL}-",
    NodeState.CORDONED: "kubectl uncordon {}",
}
"""What a person would run to get such a node back, or to learn why it is away."""

_OF_STATES: Final = tuple(
    f"node.kubernetes.io/{what}" for what in ("not-ready", "unreachable", "unschedulable")
)
"""Taints that Kubernetes sets for states that are named here already."""


def state_of(node: NodeFacts, *, drain_marks: Collection[str]) -> NodeState:
    """Worst first: a node that is going counts as going, whatever else holds for it."""
    if node.deleting:
        return NodeState.DELETING
    if drained_away(node, drain_marks) is not None:
        return NodeState.DRAINING
    if node.unschedulable:
        return NodeState.CORDONED
    if PLACEMENT_BLOCK_LABEL in node.labels:
        return NodeState.BLOCKED
    if not node.ready:
        return NodeState.NOT_READY
    if any(t.effect != "PreferNoSchedule" and t.key not in _OF_STATES for t in node.taints):
        return NodeState.TAINTED
    return NodeState.SCHEDULABLE


@dataclass(frozen=True, slots=True)
class Tally:
    """Some nodes by state; names sorted."""

    names: Mapping[NodeState, tuple[str, ...]]

    @classmethod
    def of(cls, nodes: Iterable[NodeFacts], *, drain_marks: Collection[str]) -> Tally:
        found: dict[NodeState, list[str]] = {}
        for node in nodes:
            found.setdefault(state_of(node, drain_marks=drain_marks), []).append(node.name)
        return cls({state: tuple(sorted(found[state])) for state in NodeState if state in found})

    def __getitem__(self, state: NodeState) -> int:
        return len(self.names.get(state, ()))

    @property
    def total(self) -> int:
        return sum(len(names) for names in self.names.values())

    @property
    def usable(self) -> int:
        """Nodes that take some pods now."""
        return self[NodeState.SCHEDULABLE] + self[NodeState.TAINTED]

    @property
    def leaving(self) -> int:
        """Nodes that somebody is taking away."""
        gone = (NodeState.CORDONED, NodeState.DRAINING, NodeState.DELETING)
        return sum(self[state] for state in gone)

    @property
    def words(self) -> str:
        """`6 schedulable, 2 cordoned (a and b)`; `none` when there are no nodes."""
        parts = []
        for state, names in self.names.items():
            who = "" if state is NodeState.SCHEDULABLE else f" ({listed(names)})"
            parts.append(f"{len(names)} {state}{who}")
        return ", ".join(parts) or "none"

    @property
    def counts(self) -> dict[str, int]:
        """By state, for programs."""
        return {state.value: len(names) for state, names in self.names.items()}
