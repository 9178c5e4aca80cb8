"""The fleet as a matrix: which CPUs there are, which load whose snapshots, what they guard. PURE.

A snapshot needs a loader for its capture CPU and for each ancestor's (domain.md section 4), so the
rows of the matrix are lineages: the capture CPU with its ancestors.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from sandbox_restore.fleet import cpu as cpus
from sandbox_restore.fleet.compatibility import Compatibility
from sandbox_restore.model.node import NodeFacts
from sandbox_restore.model.sandbox import StoredLineage
from sandbox_restore.report.nodes import NodeState, Tally
from sandbox_restore.report.words import counted, listed


class Danger(StrEnum):
    """What threatens the snapshots of a lineage, worst first."""

    NO_LOADER = "no-loader"
    """No node of the fleet can load them."""
    NONE_USABLE = "none-usable"
    """Nodes can, and none of them takes pods now."""
    LAST_NODE = "last-node"
    """One node takes pods now, and others are being taken away or there are none."""
    UNKNOWN_CPU = "unknown-cpu"
    """The capture CPU is not recorded: the evidence ladder decides at each restore."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuRow:
    """One CPU that nodes publish, or the nodes without a usable label (`cpu` empty)."""

    cpu: str
    nodes: Tally
    labels: tuple[str, ...] = ()
    """Only for nodes without a usable label: values that name no CPU."""
    loads: tuple[str, ...] = ()
    """Capture CPUs of the matrix, its own left out, that it can load."""
    guards: int = 0
    """Stored snapshots that it can load."""
    alone: int = 0
    """Of these, those that no other published CPU can load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageRow:
    """Stored snapshots of one capture CPU and ancestry."""

    capture_cpu: str
    """Empty: not recorded."""
    ancestors: tuple[str, ...]
    snapshots: int | None
    """None: the database was not asked."""
    sandboxes: int | None
    """Sandboxes that have such a snapshot."""
    known_loaders: tuple[str, ...]
    """Every CPU that the compatibility rules name, in the fleet or not."""
    loaders: tuple[str, ...]
    """Those of them that a node publishes."""
    nodes: Tally
    """The nodes of all loaders."""
    danger: Danger | None

    @property
    def name(self) -> str:
        after = f" (restored before on {', '.join(self.ancestors)})" if self.ancestors else ""
        return f"{self.capture_cpu or '(not recorded)'}{after}"

    @property
    def unloadable(self) -> bool:
        """No node can load them as the fleet is now."""
        return self.danger in (Danger.NO_LOADER, Danger.NONE_USABLE)

    @property
    def warning(self) -> str:
        """What a person must know, with what to do; empty when nothing threatens."""
        what = "snapshots" if self.snapshots is None else counted(self.snapshots, "snapshot")
        needed = " or ".join(self.known_loaders)
        match self.danger:
            case Danger.NO_LOADER if not self.known_loaders:
                return (
                    f"{self.name}: no CPU is known to load its {what}: none can load its capture "
                    "CPU and all of its ancestors'"
                )
            case Danger.NO_LOADER:
                return f"{self.name}: no node can load its {what}; add a node with {needed}"
            case Danger.NONE_USABLE:
                return (
                    f"{self.name}: no node that can load its {what} takes pods now: "
                    f"{self.nodes.words}"
                )
            case Danger.LAST_NODE:
                last = [
                    *self.nodes.names.get(NodeState.SCHEDULABLE, ()),
                    *self.nodes.names.get(NodeState.TAINTED, ()),
                ]
                return (
                    f"{self.name}: {listed(last)} is the last usable node that can load its {what}"
                )
            case Danger.UNKNOWN_CPU:
                return (
                    f"{what} without a recorded capture CPU: each is placed by its uploading "
                    "node's label or history, or not constrained"
                )
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """The whole fleet at one moment."""

    cpus: tuple[CpuRow, ...]
    lineages: tuple[LineageRow, ...]
    database: bool
    """Whether the numbers of snapshots are known."""

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(row.warning for row in self.lineages if row.danger is not None)


def matrix_of(
    nodes: Iterable[NodeFacts],
    compatibility: Compatibility,
    stored: Sequence[StoredLineage] | None,
    *,
    cpu_label: str,
    drain_marks: Collection[str],
) -> Matrix:
    """The matrix of a fleet; `stored` is what the database holds, None when it was not asked."""
    by_cpu, unlabelled, values = _by_cpu(nodes, cpu_label=cpu_label)
    lineages = _lineages(by_cpu, compatibility, stored)
    published = tuple(by_cpu)
    rows = tuple(
        sorted(
            (
                _lineage_row(one, by_cpu, compatibility, drain_marks=drain_marks, asked=stored)
                for one in lineages
            ),
            key=lambda row: (not row.capture_cpu, row.capture_cpu, row.ancestors),
        )
    )
    cpu_rows = [
        _cpu_row(cpu, by_cpu[cpu], rows, drain_marks=drain_marks) for cpu in sorted(published)
    ]
    if unlabelled:
        cpu_rows.append(
            CpuRow(
                cpu="",
                nodes=Tally.of(unlabelled, drain_marks=drain_marks),
                labels=tuple(sorted(values)),
            )
        )
    return Matrix(cpus=tuple(cpu_rows), lineages=rows, database=stored is not None)


def _by_cpu(
    nodes: Iterable[NodeFacts], *, cpu_label: str
) -> tuple[dict[str, list[NodeFacts]], list[NodeFacts], set[str]]:
    by_cpu: dict[str, list[NodeFacts]] = {}
    unlabelled: list[NodeFacts] = []
    values: set[str] = set()
    for node in nodes:
        label = node.labels.get(cpu_label)
        cpu = cpus.usable(label)
        if cpu is not None:
            by_cpu.setdefault(cpu, []).append(node)
            continue
        unlabelled.append(node)
        if label is not None:
            values.add(label)
    return by_cpu, unlabelled, values


def _lineages(
    published: Mapping[str, object],
    compatibility: Compatibility,
    stored: Sequence[StoredLineage] | None,
) -> list[StoredLineage]:
    """What is stored; without a database, what the fleet and the list could have captured."""
    if stored is not None:
        return list(stored)
    captures = sorted({*published, *compatibility.pairs})
    return [
        StoredLineage(capture_cpu=cpu, ancestor_cpus=(), snapshots=0, sandboxes=0)
        for cpu in captures
    ]


def _lineage_row(
    one: StoredLineage,
    by_cpu: Mapping[str, Sequence[NodeFacts]],
    compatibility: Compatibility,
    *,
    drain_marks: Collection[str],
    asked: Sequence[StoredLineage] | None,
) -> LineageRow:
    capture = cpus.recorded_cpu(one.capture_cpu)
    ancestors = cpus.recorded_ancestors(one.ancestor_cpus)
    known = (
        () if capture is None else tuple(sorted(compatibility.known_loaders(capture, ancestors)))
    )
    loaders = tuple(cpu for cpu in known if cpu in by_cpu)
    nodes = Tally.of((node for cpu in loaders for node in by_cpu[cpu]), drain_marks=drain_marks)
    return LineageRow(
        capture_cpu=capture or "",
        ancestors=ancestors,
        snapshots=None if asked is None else one.snapshots,
        sandboxes=None if asked is None else one.sandboxes,
        known_loaders=known,
        loaders=loaders,
        nodes=nodes,
        danger=_danger(capture, nodes, guarded=asked is None or one.snapshots > 0),
    )


def _danger(capture: str | None, nodes: Tally, *, guarded: bool) -> Danger | None:
    if not guarded:
        return None
    if capture is None:
        return Danger.UNKNOWN_CPU
    if not nodes.total:
        return Danger.NO_LOADER
    if not nodes.usable:
        return Danger.NONE_USABLE
    return Danger.LAST_NODE if nodes.usable == 1 else None


def _cpu_row(
    cpu: str,
    nodes: Sequence[NodeFacts],
    lineages: Sequence[LineageRow],
    *,
    drain_marks: Collection[str],
) -> CpuRow:
    able = [row for row in lineages if cpu in row.loaders]
    return CpuRow(
        cpu=cpu,
        nodes=Tally.of(nodes, drain_marks=drain_marks),
        loads=tuple(sorted({row.capture_cpu for row in able} - {cpu})),
        guards=sum(row.snapshots or 0 for row in able),
        alone=sum(row.snapshots or 0 for row in able if row.loaders == (cpu,)),
    )
