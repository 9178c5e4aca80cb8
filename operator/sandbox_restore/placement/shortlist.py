"""Which nodes a pinned restore may choose from: the source and a few others (section 9)."""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from pyroaring import BitMap

from sandbox_restore.fleet.index import FleetIndex
from sandbox_restore.fleet.record import NodeRecord
from sandbox_restore.placement.term import CpuTerm

DEFAULT_FALLBACKS: Final = 3


class CpuRule(Struct, frozen=True, kw_only=True):
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
    names = [source] if record is not None and record.slot in eligible else []
    ready = eligible & fleet.services_ready
    # One more than wanted, for the source may be among them and is not its own fallback.
    picked = _others(fleet.first(ready, fallbacks + 1, sandbox_id=sandbox_id), source, fallbacks)
    if rule is not None and record is not None and record.host_cpu_label in rule.excluded:
        picked = _with_compatible(
            picked, eligible, fleet, rule=rule, count=fallbacks, sandbox_id=sandbox_id
        )
    return (*names, *(node.name for node in picked))


def _others(nodes: list[NodeRecord], source: str, count: int) -> list[NodeRecord]:
    return [node for node in nodes if node.name != source][: max(count, 0)]


def _with_compatible(
    picked: list[NodeRecord],
    eligible: BitMap,
    fleet: FleetIndex,
    *,
    rule: CpuRule,
    count: int,
    sandbox_id: str,
) -> list[NodeRecord]:
    """Section 9, where the source's own CPU is excluded: the readiness filter may not leave the
    shortlist without a fallback that is labelled with a loader.

    If it would, nodes with a loader whose services are not ready are kept. One of the picks is a
    node with a loader if there is any: a shortlist of unlabelled nodes would be a guess.
    """
    if count < 1 or any(node.host_cpu_label in rule.loaders for node in picked):
        return picked
    labelled = eligible & fleet.labels.union(fleet.cpu_label, rule.loaders)
    compatible = labelled & fleet.services_ready
    if not compatible:
        compatible = labelled
        ready = eligible & fleet.services_ready
        picked = fleet.first(ready | labelled, count, sandbox_id=sandbox_id)
    if compatible and not any(node.slot in compatible for node in picked):
        picked = [*picked[: count - 1], *fleet.first(compatible, 1, sandbox_id=sandbox_id)]
    return picked


def _allowed(nodes: BitMap, fleet: FleetIndex, *, rule: CpuRule) -> BitMap:
    """Section 9: the nodes that the placement term lets pass, by the cheaper of two ways."""
    union, key = fleet.labels.union, fleet.cpu_label
    if rule.term.operator == "In":
        return nodes & union(key, rule.term.values)
    spared = fleet.labels.values(key) - set(rule.excluded)
    if len(rule.excluded) <= len(spared) + 2:
        return nodes - union(key, rule.excluded)
    return (nodes - fleet.labels.having(key)) | (nodes & union(key, spared))
