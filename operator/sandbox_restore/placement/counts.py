"""The numbers behind a placement decision: what each filter removed, and what is nearest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyroaring import BitMap

from sandbox_restore.fleet.index import FleetIndex
from sandbox_restore.fleet.record import NodeRecord
from sandbox_restore.placement.decision import PlacementDecision, PlacementRequest, slots_of
from sandbox_restore.placement.match import Tolerations
from sandbox_restore.placement.reachable import Demand, Filter, blocking_filters, failing, removed

MAX_NAMES: Final = 10
"""Nodes named for each filter; the rest is only counted."""
_TAINTS_IN_TEXT: Final = 3
_LOOKED_AT: Final = 50
"""Nodes that are looked at one by one, where no single rule keeps the pod off a loader."""

_EFFORT: Final = (
    Filter.CORDONED,
    Filter.PLACEMENT_BLOCK,
    Filter.TAINTED,
    Filter.COHORT,
    Filter.NODE_SELECTOR,
    Filter.NODE_AFFINITY,
    Filter.NODE_GROUP,
)
"""What a person can undo, the easiest first. A node being deleted cannot be had back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """What one filter of section 7 removed from what the filters before it left."""

    filter: Filter
    nodes: int
    loaders: int = 0
    """Of them, nodes whose label is a loader."""
    loader_names: tuple[str, ...] = ()
    """Up to ten of those, sorted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearest:
    """The smallest change by a person that would give the restore a node with a loader."""

    filters: tuple[Filter, ...]
    """The rules that keep the pod off these nodes, and no other rule does."""
    nodes: int
    names: tuple[str, ...]
    taints: tuple[str, ...] = ()
    """The taints not tolerated, as `key=value:effect`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The numbers behind a decision."""

    nodes: int
    reachable: int
    removed: tuple[Removed, ...]
    loader_nodes: int = 0
    """Nodes of the fleet whose label is a loader."""
    reachable_loaders: int = 0
    """Of them, those that can be reached and have not refused the snapshot."""
    refused_loaders: int = 0
    """Reachable nodes with a loader that have refused the snapshot (section 11)."""
    refused_anywhere: int = 0
    """The same, reachable or not."""
    without_slots: int = 0
    """Reachable loaders that offer no network slot now: reported, never judged (section 7)."""
    unlabelled: int = 0
    """Reachable nodes without a usable host-CPU label."""
    nearest: Nearest | None = None
    """Only where no loader is reachable."""


def explanation(
    decision: PlacementDecision, request: PlacementRequest, fleet: FleetIndex
) -> Explanation:
    """Section 8: how many nodes each filter of section 7 removed, and which had a loader.

    To be asked in the same step as `decide`, while the index is the same. With the gate off the
    CPU is left out, as everywhere.
    """
    if not fleet.warm:
        return Explanation(nodes=0, reachable=0, removed=())
    gaps = removed(request.demand, fleet)
    reachable = fleet.all
    for _, nodes in gaps:
        reachable = reachable - nodes
    if decision.evidence is None:
        return Explanation(
            nodes=len(fleet),
            reachable=len(reachable),
            removed=tuple(Removed(filter=rule, nodes=len(nodes)) for rule, nodes in gaps),
        )
    loaders = fleet.labels.union(fleet.cpu_label, decision.loaders)
    refused = slots_of(request.refused, fleet)
    able = reachable & loaders
    unusable = fleet.labels.values(fleet.cpu_label) - set(decision.published)
    labelled = fleet.labels.having(fleet.cpu_label)
    if unusable:
        labelled = labelled - fleet.labels.union(fleet.cpu_label, unusable)
    return Explanation(
        nodes=len(fleet),
        reachable=len(reachable),
        removed=tuple(_removed(rule, nodes, loaders, fleet) for rule, nodes in gaps),
        loader_nodes=len(loaders),
        reachable_loaders=len(able - refused),
        refused_loaders=able.intersection_cardinality(refused),
        refused_anywhere=loaders.intersection_cardinality(refused),
        without_slots=(able - refused).intersection_cardinality(fleet.without_slots),
        unlabelled=reachable.difference_cardinality(labelled),
        nearest=None if able - refused else _nearest(request.demand, fleet, loaders - refused),
    )


def _removed(rule: Filter, nodes: BitMap, loaders: BitMap, fleet: FleetIndex) -> Removed:
    lost = nodes & loaders
    return Removed(
        filter=rule,
        nodes=len(nodes),
        loaders=len(lost),
        loader_names=fleet.names(lost, limit=MAX_NAMES),
    )


def _nearest(demand: Demand, fleet: FleetIndex, loaders: BitMap) -> Nearest | None:
    """The nodes with a loader that the fewest and easiest rules keep the pod off."""
    failed = failing(demand, fleet, loaders)
    for rule in _EFFORT:
        nodes = failed.get(rule, BitMap())
        for other, held in failed.items():
            if nodes and other is not rule:
                nodes = nodes - held
        if nodes:
            return _told((rule,), nodes, demand, fleet)
    return _nearest_of_several(demand, fleet, loaders - failed[Filter.DELETING])


def _nearest_of_several(demand: Demand, fleet: FleetIndex, loaders: BitMap) -> Nearest | None:
    """Where two rules or more keep the pod off each node: the best of some that are looked at."""
    groups: dict[tuple[Filter, ...], BitMap] = {}
    for slot in loaders[:_LOOKED_AT]:
        held = blocking_filters(demand, fleet.at(slot))
        if held:
            groups.setdefault(held, BitMap()).add(slot)
    if not groups:
        return None
    best = min(groups, key=lambda held: (len(held), [_EFFORT.index(rule) for rule in held]))
    return _told(best, groups[best], demand, fleet)


def _told(rules: tuple[Filter, ...], nodes: BitMap, demand: Demand, fleet: FleetIndex) -> Nearest:
    taints: tuple[str, ...] = ()
    if Filter.TAINTED in rules:
        some = [fleet.at(slot) for slot in nodes[:MAX_NAMES]]
        taints = _taints_in_the_way(some, demand.requirements.tolerations)
    names = fleet.names(nodes, limit=MAX_NAMES)
    return Nearest(filters=rules, nodes=len(nodes), names=names, taints=taints)


def _taints_in_the_way(nodes: Sequence[NodeRecord], tolerations: Tolerations) -> tuple[str, ...]:
    found = {
        f"{taint.key}={taint.value}:{taint.effect}"
        if taint.value
        else f"{taint.key}:{taint.effect}"
        for node in nodes
        for taint in node.taints
        if not tolerations.all_of((taint,))
    }
    return tuple(sorted(found))[:_TAINTS_IN_TEXT]
