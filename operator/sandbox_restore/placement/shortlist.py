"""Which nodes a pinned restore may choose from: the source and a few others (section 9)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyroaring import BitMap

from sandbox_restore.fleet.index import FleetIndex
from sandbox_restore.fleet.record import NodeRecord
from sandbox_restore.placement.term import CpuTerm

DEFAULT_FALLBACKS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuRule:
    """What the placement term says, as the shortlist needs it; only with the gate on."""

    term: CpuTerm
    excluded: tuple[str, ...]
    """Published CPUs that cannot load the snapshot."""
    loaders: tuple[str, ...]
    """Published CPUs that can."""


def shortlist(
    candidates: BitMap,
    fleet: FleetIndex,
    *,
    source: str,
    sandbox_id: str,
    fallbacks: int = DEFAULT_FALLBACKS,
    rule: CpuRule | None = None,
) -> tuple[str, ...]:
    """Section 9: the source, then fallbacks; first drop, then pick. Empty: no shortlist.

    `candidates`: the reachable nodes, without those that section 11 excludes. A source that is
    not among them, or that the placement term excludes, gets no term.
    """
    eligible = candidates if rule is None else _allowed(candidates, fleet, rule=rule)
    record = fleet.get(source)
    others, names = eligible, []
    if record is not None and record.slot in eligible:
        others, names = eligible - BitMap((record.slot,)), [source]
    if rule is None or record is None or record.host_cpu_label not in rule.excluded:
        picked = fleet.first(others & fleet.services_ready, fallbacks, sandbox_id=sandbox_id)
    else:
        picked = _with_compatible(others, fleet, rule=rule, count=fallbacks, sandbox_id=sandbox_id)
    return (*names, *(node.name for node in picked))


def _with_compatible(
    others: BitMap, fleet: FleetIndex, *, rule: CpuRule, count: int, sandbox_id: str
) -> list[NodeRecord]:
    """Section 9, where the source's own CPU is excluded: the readiness filter may not leave the
    shortlist without a fallback that is labelled with a loader.

    If it would, nodes with a loader whose services are not ready are kept. One of the picks is a
    node with a loader if there is any: a shortlist of unlabelled nodes would be a guess.
    """
    labelled = others & fleet.labels.one_of(fleet.cpu_label, rule.loaders)
    ready = others & fleet.services_ready
    compatible = labelled & ready
    if not compatible:
        compatible, ready = labelled, ready | labelled
    picked = fleet.first(ready, count, sandbox_id=sandbox_id)
    if picked and compatible and not any(node.slot in compatible for node in picked):
        picked[-1:] = fleet.first(compatible, 1, sandbox_id=sandbox_id)
    return picked


def _allowed(nodes: BitMap, fleet: FleetIndex, *, rule: CpuRule) -> BitMap:
    """Section 9: the nodes that the placement term lets pass."""
    named = fleet.labels.one_of(fleet.cpu_label, rule.term.values)
    return nodes & named if rule.term.operator == "In" else nodes - named
