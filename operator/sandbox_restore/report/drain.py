"""Which sandboxes no node could restore any more once some nodes have been drained. PURE.

A drain evicts pods; what the platform does with their sandboxes is its own. Judged here is whether
what is stored, and what those nodes alone hold, still has a node that can load it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

from sandbox_restore.fleet import cpu as cpus
from sandbox_restore.fleet.compatibility import Compatibility
from sandbox_restore.model.names import UNSCHEDULABLE_TAINT
from sandbox_restore.model.node import NodeFacts
from sandbox_restore.model.sandbox import PinnedThere, SandboxState, StoredKind
from sandbox_restore.placement.reachable import Demand, is_reachable
from sandbox_restore.restore.giveup import drained_away


class Loss(StrEnum):
    """Why nothing could restore a sandbox after the drain."""

    NEXT_SNAPSHOT = "next-snapshot"
    """It runs there, and no node that stays could load what would be captured of it."""
    STATE_ONLY_THERE = "state-only-there"
    """A node to be drained holds state that exists nowhere else (local artifact marker)."""
    NO_COPY = "no-copy"
    """It is pinned to a node to be drained, and storage does not have its newest state."""
    LAST_LOADER = "last-loader"
    """Only nodes to be drained can load its newest stored snapshot."""


class Confined(Protocol):
    """What a sandbox's row asks of its node."""

    @property
    def node_group(self) -> str | None: ...
    @property
    def node_selector(self) -> Mapping[str, str]: ...


DemandOf = Callable[[Confined], Demand | None]
"""What a pod of such a sandbox asks of a node, its template included; None: it can be nowhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostState:
    """A sandbox whose only state is on a node to be drained."""

    row: PinnedThere
    why: Loss
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LostKind:
    """Sandboxes of one kind whose newest stored snapshot would have no node."""

    kind: StoredKind
    needed: tuple[str, ...]
    """CPUs that can load it."""

    @property
    def message(self) -> str:
        needed = " or ".join(self.needed)
        group = f" in node group {self.kind.node_group}" if self.kind.node_group else ""
        chosen = ", ".join(f"{key}={value}" for key, value in self.kind.node_selector.items())
        with_labels = f" with {chosen}" if chosen else ""
        return f"needs {needed}{group}{with_labels}, and no node that stays has it"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainCheck:
    """What a drain would take."""

    nodes: tuple[str, ...]
    states: tuple[LostState, ...]
    kinds: tuple[LostKind, ...]
    running: int
    """Sandboxes that run there and could be restored elsewhere, once they are suspended."""
    already: int
    """Sandboxes whose newest stored snapshot no usable node can load as it is, drain or not."""
    unknown: int
    """Sandboxes whose newest stored snapshot has no recorded capture CPU: not judged."""

    @property
    def restorable(self) -> bool:
        """Nothing is lost for good, once what runs there is suspended and stored."""
        return not self.states and not self.kinds

    @property
    def lost(self) -> int:
        """How many sandboxes, at most: one that is lost in two ways counts twice."""
        return len(self.states) + sum(found.kind.sandboxes for found in self.kinds)


def drain_check(
    pinned: Iterable[PinnedThere],
    stored: Iterable[StoredKind],
    nodes: Sequence[NodeFacts],
    compatibility: Compatibility,
    *,
    demand_of: DemandOf,
    drained: Collection[str],
    cpu_label: str,
    drain_marks: Collection[str],
) -> DrainCheck:
    """Judge the drain of the nodes named in `drained`.

    `pinned`: the rows pinned to these nodes; `stored`: the sandboxes that storage would have to
    bring back, by kind. A node that stays counts when a restore pod could go there as it is
    (section 7), it is Ready, and nobody drains it.
    """
    hosts = _Hosts.of(nodes, drained=drained, cpu_label=cpu_label, drain_marks=drain_marks)
    kinds: list[LostKind] = []
    already = unknown = 0
    for kind in stored:
        capture = cpus.recorded_cpu(kind.capture_cpu)
        if capture is None:
            # Placed by other evidence, or without regard to the host CPU: not known to be lost.
            unknown += kind.sandboxes
            continue
        needed = tuple(sorted(_loaders(compatibility, capture, kind.ancestor_cpus)))
        demand = demand_of(kind)
        if hosts.can_take(demand, needed):
            continue
        if hosts.could_take(demand, needed):
            kinds.append(LostKind(kind=kind, needed=needed))
        else:
            already += kind.sandboxes
    rows = list(pinned)
    states = [_lost_state(row, hosts, compatibility, demand_of(row)) for row in rows]
    return DrainCheck(
        nodes=tuple(sorted(drained)),
        states=tuple(lost for lost in states if lost is not None),
        kinds=tuple(kinds),
        running=sum(
            row.state is SandboxState.RUNNING and lost is None
            for row, lost in zip(rows, states, strict=True)
        ),
        already=already,
        unknown=unknown,
    )


def _loaders(
    compatibility: Compatibility, capture: str, ancestors: Iterable[str]
) -> frozenset[str]:
    """Section 4, of what was recorded."""
    return compatibility.known_loaders(capture, cpus.recorded_ancestors(ancestors))


def _lost_state(
    row: PinnedThere, hosts: _Hosts, compatibility: Compatibility, demand: Demand | None
) -> LostState | None:
    node = row.pinned_node
    if row.state is SandboxState.RUNNING:
        cpu = hosts.cpu_of.get(node)
        if cpu is None or hosts.can_take(demand, _loaders(compatibility, cpu, row.lineage)):
            return None
        message = f"runs on node {node}: no node that stays can load what would be captured of it"
        return LostState(row=row, why=Loss.NEXT_SNAPSHOT, message=message)
    if row.marker:
        message = f"node {node} holds state of it that exists nowhere else: upload it first"
        return LostState(row=row, why=Loss.STATE_ONLY_THERE, message=message)
    if not row.in_storage:
        message = f"storage does not have its newest state: upload a full snapshot from node {node}"
        return LostState(row=row, why=Loss.NO_COPY, message=message)
    return None


@dataclass(frozen=True, slots=True)
class _Hosts:
    """Nodes that take pods, by CPU, before the drain and after it."""

    before: Mapping[str, Sequence[NodeFacts]]
    after: Mapping[str, Sequence[NodeFacts]]
    cpu_of: Mapping[str, str | None]
    """By node name; None: no usable label."""

    @classmethod
    def of(
        cls,
        nodes: Iterable[NodeFacts],
        *,
        drained: Collection[str],
        cpu_label: str,
        drain_marks: Collection[str],
    ) -> _Hosts:
        before: dict[str, list[NodeFacts]] = {}
        after: dict[str, list[NodeFacts]] = {}
        cpu_of: dict[str, str | None] = {}
        for node in nodes:
            cpu = cpu_of[node.name] = cpus.usable(node.labels.get(cpu_label))
            if cpu is None:
                continue
            if node.name in drained:
                # It may have been cordoned for the drain already.
                before.setdefault(cpu, []).append(_uncordoned(node))
            elif node.ready and drained_away(node, drain_marks) is None:
                before.setdefault(cpu, []).append(node)
                after.setdefault(cpu, []).append(node)
        return cls(before, after, cpu_of)

    def can_take(self, demand: Demand | None, loaders: Iterable[str]) -> bool:
        """A node that stays can load it."""
        return _any(self.after, demand, loaders)

    def could_take(self, demand: Demand | None, loaders: Iterable[str]) -> bool:
        """A node can load it as long as nothing is drained."""
        return _any(self.before, demand, loaders)


def _any(
    hosts: Mapping[str, Sequence[NodeFacts]], demand: Demand | None, loaders: Iterable[str]
) -> bool:
    if demand is None:
        return False
    return any(is_reachable(demand, node) for cpu in loaders for node in hosts.get(cpu, ()))


def _uncordoned(node: NodeFacts) -> NodeFacts:
    taints = tuple(t for t in node.taints if t.key != UNSCHEDULABLE_TAINT)
    return replace(node, unschedulable=False, taints=taints)
