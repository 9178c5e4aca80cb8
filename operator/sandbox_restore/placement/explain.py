"""Says what a placement decision found, first as counts and then in words (sections 8 and 16).

One place makes the text for the condition message, the Event, the log line and the command line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyroaring import BitMap

from sandbox_restore.fleet.index import FleetIndex
from sandbox_restore.fleet.record import NodeRecord
from sandbox_restore.model.restore import FilterCount, PlacementStatus
from sandbox_restore.placement.decision import (
    Outcome,
    PlacementDecision,
    PlacementRequest,
    Reason,
    slots_of,
)
from sandbox_restore.placement.gate import Gate
from sandbox_restore.placement.match import Tolerations
from sandbox_restore.placement.reachable import Demand, Filter, blocking_filters, removed

MAX_NAMES: Final = 10
"""Nodes named for each filter; the rest is only counted."""
_NAMES_IN_TEXT: Final = 3
_LOOKED_AT: Final = 200
"""Nodes with a loader that are looked at one by one for the nearest change."""

WORDS: Final[dict[Filter, str]] = {
    Filter.NODE_SELECTOR: "not matching the node selector",
    Filter.NODE_AFFINITY: "not matching the node affinity",
    Filter.CORDONED: "cordoned",
    Filter.TAINTED: "tainted",
    Filter.DELETING: "being deleted",
    Filter.PLACEMENT_BLOCK: "under a placement block",
    Filter.NODE_GROUP: "other node group",
    Filter.COHORT: "other cohort",
}

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
    gaps = removed(request.demand, fleet) if fleet.warm else []
    reachable = fleet.all
    for _, nodes in gaps:
        reachable = reachable - nodes
    if decision.evidence is None:
        return Explanation(
            nodes=len(fleet),
            reachable=len(reachable),
            removed=tuple(Removed(filter=rule, nodes=len(nodes)) for rule, nodes in gaps),
        )
    loaders = fleet.labels.one_of(fleet.cpu_label, decision.loaders)
    refused = slots_of(request.refused, fleet)
    able = reachable & loaders
    labelled = fleet.labels.one_of(fleet.cpu_label, decision.published)
    return Explanation(
        nodes=len(fleet),
        reachable=len(reachable),
        removed=tuple(_removed(rule, nodes, loaders, fleet) for rule, nodes in gaps),
        loader_nodes=len(loaders),
        reachable_loaders=len(able - refused),
        refused_loaders=able.intersection_cardinality(refused),
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
    """The nodes with a loader that the fewest and easiest rules keep the pod off.

    Looks at no more than some hundred nodes, so that a large fleet costs no more.
    """
    groups: dict[tuple[Filter, ...], list[NodeRecord]] = {}
    for slot in loaders[:_LOOKED_AT]:
        node = fleet.at(slot)
        held = blocking_filters(demand, node)
        if held and Filter.DELETING not in held:
            groups.setdefault(held, []).append(node)
    if not groups:
        return None
    best = min(groups, key=lambda held: (len(held), [_EFFORT.index(rule) for rule in held]))
    nodes = groups[best]
    taints: tuple[str, ...] = ()
    if Filter.TAINTED in best:
        taints = _taints_in_the_way(nodes, demand.requirements.tolerations)
    return Nearest(
        filters=best,
        nodes=len(nodes),
        names=tuple(sorted(node.name for node in nodes))[:MAX_NAMES],
        taints=taints,
    )


def _taints_in_the_way(nodes: Sequence[NodeRecord], tolerations: Tolerations) -> tuple[str, ...]:
    found = {
        f"{taint.key}={taint.value}:{taint.effect}"
        if taint.value
        else f"{taint.key}:{taint.effect}"
        for node in nodes
        for taint in node.taints
        if not tolerations.all_of((taint,))
    }
    return tuple(sorted(found))[:_NAMES_IN_TEXT]


# --- words


def message(decision: PlacementDecision, explained: Explanation) -> str:
    """The decision in one or more sentences, for a condition, an Event or a terminal."""
    if decision.evidence is None:
        return _without_evidence(decision, explained)
    sentences = [_policy(decision)]
    if decision.capture_cpu is None:
        sentences.append(_unknown(decision))
    else:
        sentences.append(_numbers(decision, explained))
        sentences.append(_what_follows(decision, explained))
    sentences += [f"{note[:1].upper()}{note[1:]}." for note in decision.evidence.notes]
    return " ".join(sentence for sentence in sentences if sentence)


def _without_evidence(decision: PlacementDecision, explained: Explanation) -> str:
    if decision.reason is Reason.COLD_CACHE:
        rest = (
            "waiting for it before the pod is made."
            if decision.held
            else "the pod is placed without regard to the host CPU."
        )
        return f"The list of nodes is not complete yet; {rest}"
    text = "Placement by host CPU is off for this restore."
    if decision.policy != "Auto":
        text += f" hostCpuPolicy {decision.policy} has no effect."
    if decision.reachable or explained.removed:
        text += f" {explained.reachable} of {_count(explained.nodes, 'node')} are reachable"
        text += f"{_gaps(explained)}."
    return text


def _policy(decision: PlacementDecision) -> str:
    if decision.reason is Reason.POLICY_IGNORE:
        return "hostCpuPolicy Ignore: not constrained, whatever the CPU."
    return ""


def _unknown(decision: PlacementDecision) -> str:
    rest = (
        "hostCpuPolicy Required waits until it is known."
        if decision.held
        else "the pod is placed without regard to the host CPU."
    )
    return f"The CPU on which the snapshot was captured is not known; {rest}"


def _numbers(decision: PlacementDecision, explained: Explanation) -> str:
    """Section 8: the numbers, in the words of the API's example."""
    lineage = decision.evidence.ancestors if decision.evidence is not None else ()
    after = f" (restored before on {', '.join(lineage)})" if lineage else ""
    text = (
        f"{len(decision.loaders)} of {_count(len(decision.published), 'published CPU')} can load"
        f" {decision.capture_cpu}{after};"
        f" {explained.reachable_loaders} of {_count(explained.reachable, 'reachable node')}"
        f" {'have one' if len(decision.loaders) != 1 else 'have it'}"
    )
    return f"{text}{_gaps(explained)}."


def _gaps(explained: Explanation) -> str:
    gaps = [f"{gap.nodes} {WORDS[gap.filter]}" for gap in explained.removed if gap.nodes]
    if explained.refused_loaders:
        gaps.append(f"{explained.refused_loaders} refused this capture before")
    return f"; removed: {', '.join(gaps)}" if gaps else ""


def _what_follows(decision: PlacementDecision, explained: Explanation) -> str:
    """What is done about it, and what a person could do."""
    match decision.reason:
        case Reason.LOADER_REACHABLE if explained.without_slots == explained.reachable_loaders:
            return "None of them offers a network slot now: the pod waits until one does."
        case Reason.NOTHING_EXCLUDED:
            return "Nothing is excluded."
        case Reason.PLACEMENT_HELD:
            return f"hostCpuPolicy Required waits for one. {nearest_change(decision, explained)}"
        case Reason.NO_REACHABLE_LOADER:
            return (
                f"The pod is placed without regard to the host CPU and may fail to load there."
                f" {nearest_change(decision, explained)}"
            )
    return ""


def nearest_change(decision: PlacementDecision, explained: Explanation) -> str:
    """The CPU that is needed, and the nearest thing that a person could change."""
    needed = " or ".join(decision.known_loaders) or str(decision.capture_cpu)
    nearest = explained.nearest
    if nearest is None:
        if explained.refused_loaders:
            return (
                f"Needed: a node with {needed}. Every one that can be reached has refused this"
                " capture: compare their firmware and microcode."
            )
        if explained.loader_nodes:
            return f"Needed: a node with {needed}. Those there are are being deleted; add one."
        return (
            f"Needed: a node with {needed}. There is none in the fleet: add one, or list a CPU"
            " that can load it in SPACE_SANDBOX_RESTORE_HOST_CPU_COMPATIBILITY."
        )
    who = named(nearest.names, nearest.nodes)
    held = " and ".join(_held_by(rule, nearest) for rule in nearest.filters)
    return f"Needed: a node with {needed}. Nearest: {who} {held}."


def _held_by(rule: Filter, nearest: Nearest) -> str:
    one = nearest.nodes == 1
    is_, has = ("is", "has") if one else ("are", "have")
    match rule:
        case Filter.CORDONED:
            return f"{is_} cordoned (kubectl uncordon)"
        case Filter.TAINTED:
            return f"{has} a taint that the pod does not tolerate ({', '.join(nearest.taints)})"
        case Filter.PLACEMENT_BLOCK:
            return f"{is_} under a placement block (label space.pplx.net/placement-block)"
        case Filter.NODE_GROUP:
            return f"{is_} in another node group than the sandbox"
        case Filter.COHORT:
            return f"{is_} not in the target cohort"
        case Filter.NODE_SELECTOR:
            return f"{'does' if one else 'do'} not match the pod's node selector"
        case Filter.NODE_AFFINITY:
            return f"{'does' if one else 'do'} not match the pod template's node affinity"
    return f"{is_} {WORDS[rule]}"


def named(names: Sequence[str], total: int) -> str:
    """`a, b and c`, or `a, b, c and 4 more`."""
    listed = list(names[:_NAMES_IN_TEXT])
    if total > len(listed):
        return f"{', '.join(listed)} and {total - len(listed)} more"
    return f"{', '.join(listed[:-1])} and {listed[-1]}" if len(listed) > 1 else "".join(listed)


def blocked_loaders(explained: Explanation) -> tuple[str, ...]:
    """One line for each filter that removed nodes with a loader:
    `3 nodes with a loader are cordoned: a, b and c`."""
    lines = []
    for gap in explained.removed:
        if gap.loaders:
            verb = "" if gap.filter in (Filter.NODE_SELECTOR, Filter.NODE_AFFINITY) else "are "
            words = WORDS[gap.filter]
            if gap.filter in (Filter.NODE_GROUP, Filter.COHORT):
                words = f"of an{words}" if words.startswith("other") else words
            lines.append(
                f"{_count(gap.loaders, 'node')} with a loader {verb}{words}:"
                f" {named(gap.loader_names, gap.loaders)}"
            )
    return tuple(lines)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


# --- other forms


def log_fields(decision: PlacementDecision, explained: Explanation) -> dict[str, object]:
    """The decision as key=value fields of one log line."""
    term = decision.term
    return {
        "outcome": str(decision.outcome),
        "reason": str(decision.reason),
        "gate": str(decision.gate),
        "policy": str(decision.policy),
        "capture_cpu": decision.capture_cpu,
        "evidence": None if decision.evidence is None else str(decision.evidence.kind),
        "published": len(decision.published),
        "excluded": len(decision.excluded),
        "loaders": list(decision.loaders),
        "nodes": explained.nodes,
        "reachable": explained.reachable,
        "reachable_loaders": explained.reachable_loaders,
        "unlabelled": explained.unlabelled,
        "removed": {str(gap.filter): gap.nodes for gap in explained.removed if gap.nodes},
        "operator": None if term is None else term.operator,
        "shortlist": list(decision.rendered.shortlist),
        "node_exclusions": list(decision.rendered.node_exclusions),
    }


def event_reason(decision: PlacementDecision) -> str:
    """The reason of the one Event that tells the decision (api.md)."""
    return {
        Outcome.CONSTRAINED: "PlacementConstrained",
        Outcome.UNCONSTRAINED: "PlacementUnconstrained",
        Outcome.HELD: "PlacementHeld",
    }[decision.outcome]


def placement_status(decision: PlacementDecision, explained: Explanation) -> PlacementStatus:
    """The decision as `status.placement` shows it."""
    return PlacementStatus(
        capture_cpu=decision.capture_cpu or "",
        evidence="" if decision.evidence is None else str(decision.evidence.kind),
        decision=str(decision.outcome),
        reason=str(decision.reason),
        gate=decision.gate is Gate.ON,
        policy=str(decision.policy),
        published=list(decision.published),
        excluded=list(decision.excluded),
        loaders=list(decision.loaders),
        nodes=explained.nodes,
        reachable=explained.reachable,
        reachable_loaders=explained.reachable_loaders,
        removed=[
            FilterCount(filter=str(gap.filter), removed=gap.nodes)
            for gap in explained.removed
            if gap.nodes
        ],
        message=message(decision, explained),
    )
