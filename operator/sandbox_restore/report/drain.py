"""Which sandboxes no node could restore any more once some nodes have been drained. PURE.

A drain evicts pods; what the platform does with their sandboxes is its own. Judged here is whether
what is stored, and what those nodes alone hold, still has a node that can load it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from sandbox_restore.fleet import cpu as cpus
from sandbox_restore.fleet.compatibility import Compatibility
from sandbox_restore.model.names import NODE_GROUP_LABEL
from sandbox_restore.model.node import NodeFacts
from sandbox_restore.model.sandbox import PinnedThere, SandboxState, StoredKind
from sandbox_restore.report.nodes import NodeState, state_of


class Loss(StrEnum):
    """Why nothing could restore a sandbox after the drain."""

    NEXT_SNAPSHOT = "next-snapshot"
    """It runs there, and no node that stays could load what would be captured of it."""
    STATE_ONLY_THERE = "state-only-there"
    """A node to be drained holds state that exists nowhere else (local artifact marker)."""
    NO_COPY = "no-copy"
    """It is pinned to a node to be drained, and storage has no full snapshot of it."""
    LAST_LOADER = "last-loader"
    """Only nodes to be drained can load its newest stored snapshot."""


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
    """Sandboxes that run there and could be restored elsewhere once they are suspended."""
    already: int
    """Sandboxes whose newest stored snapshot no usable node can load as it is, drain or not."""

    @property
    def safe(self) -> bool:
        return not self.states and not self.kinds

    @property
    def lost(self) -> int:
        """How many sandboxes; one that is lost in two ways counts twice."""
        return len(self.states) + sum(found.kind.sandboxes for found in self.kinds)


def drain_check(
    pinned: Iterable[PinnedThere],
    stored: Iterable[StoredKind],
    nodes: Sequence[NodeFacts],
    compatibility: Compatibility,
    *,
    drained: Collection[str],
    cpu_label: str,
    drain_marks: Collection[str],
) -> DrainCheck:
    """Judge the drain of the nodes named in `drained`.

    `pinned`: the rows pinned to these nodes; `stored`: the sandboxes that storage would have to
    bring back, by kind. A node that stays counts when it takes pods as it is: one that is cordoned,
    draining, blocked or not ready is no place to go. Taints are left to the pod template: a tainted
    node counts.
    """
    before, after = _hosts(nodes, drained=drained, cpu_label=cpu_label, drain_marks=drain_marks)
    kinds: list[LostKind] = []
    already = 0
    for kind in stored:
        capture = cpus.recorded_cpu(kind.capture_cpu)
        if capture is None:
            # Placed by other evidence, or without regard to the host CPU: not known to be lost.
            continue
        ancestors = tuple(a for a in kind.ancestor_cpus if cpus.recorded_cpu(a) is not None)
        needed = tuple(sorted(compatibility.known_loaders(capture, ancestors)))
        if _can_take(kind, needed, after):
            continue
        if _can_take(kind, needed, before):
            kinds.append(LostKind(kind=kind, needed=needed))
        else:
            already += kind.sandboxes
    rows = list(pinned)
    cpu_of = {node.name: cpus.usable(node.labels.get(cpu_label)) for node in nodes}
    states = [_lost_state(row, cpu_of, after, compatibility) for row in rows]
    return DrainCheck(
        nodes=tuple(sorted(drained)),
        states=tuple(lost for lost in states if lost is not None),
        kinds=tuple(kinds),
        running=sum(
            row.state is SandboxState.RUNNING and lost is None
            for row, lost in zip(rows, states, strict=True)
        ),
        already=already,
    )


def _lost_state(
    row: PinnedThere,
    cpu_of: Mapping[str, str | None],
    after: _Hosts,
    compatibility: Compatibility,
) -> LostState | None:
    node = row.pinned_node
    if row.state is SandboxState.RUNNING:
        cpu = cpu_of.get(node)
        if cpu is None or any(loader in after for loader in compatibility.known_loaders(cpu)):
            return None
        message = f"runs on node {node}: no node that stays can load what {cpu} captures"
        return LostState(row=row, why=Loss.NEXT_SNAPSHOT, message=message)
    if row.marker:
        message = f"node {node} holds state of it that exists nowhere else: upload it first"
        return LostState(row=row, why=Loss.STATE_ONLY_THERE, message=message)
    if not row.in_storage:
        message = f"storage has no full snapshot of it: upload one from node {node}"
        return LostState(row=row, why=Loss.NO_COPY, message=message)
    return None


_Hosts = Mapping[str, Sequence[NodeFacts]]
"""Nodes that take pods, by CPU."""


def _hosts(
    nodes: Iterable[NodeFacts],
    *,
    drained: Collection[str],
    cpu_label: str,
    drain_marks: Collection[str],
) -> tuple[_Hosts, _Hosts]:
    """Before the drain and after it. Nodes to be drained count before it in whatever state: they
    may have been cordoned for it already."""
    before: dict[str, list[NodeFacts]] = {}
    after: dict[str, list[NodeFacts]] = {}
    for node in nodes:
        cpu = cpus.usable(node.labels.get(cpu_label))
        if cpu is None:
            continue
        if node.name in drained:
            before.setdefault(cpu, []).append(node)
        elif state_of(node, drain_marks=drain_marks) in (
            NodeState.SCHEDULABLE,
            NodeState.TAINTED,
        ):
            before.setdefault(cpu, []).append(node)
            after.setdefault(cpu, []).append(node)
    return before, after


def _can_take(kind: StoredKind, loaders: Iterable[str], hosts: _Hosts) -> bool:
    return any(_fits(kind, node) for cpu in loaders for node in hosts.get(cpu, ()))


def _fits(kind: StoredKind, node: NodeFacts) -> bool:
    if kind.node_group is not None and node.labels.get(NODE_GROUP_LABEL) != kind.node_group:
        return False
    return all(node.labels.get(key) == value for key, value in kind.node_selector.items())
