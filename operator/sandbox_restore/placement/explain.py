"""Says in words what a placement decision found (sections 8 and 16).

One place makes the text for the condition message, the Event, the log line and the command line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sandbox_restore.fleet.compatibility import SETTING
from sandbox_restore.fleet.evidence import Evidence
from sandbox_restore.model.names import PLACEMENT_BLOCK_LABEL
from sandbox_restore.model.restore import FilterCount, HostCpuPolicy, PlacementStatus
from sandbox_restore.placement.counts import Explanation, Nearest, Removed, explanation
from sandbox_restore.placement.decision import Outcome, PlacementDecision, Reason
from sandbox_restore.placement.gate import Gate
from sandbox_restore.placement.reachable import Filter

__all__ = [
    "WORDS",
    "Explanation",
    "Nearest",
    "Removed",
    "blocked_loaders",
    "event_reason",
    "explanation",
    "log_fields",
    "message",
    "named",
    "nearest_change",
    "placement_status",
]

_NAMES_IN_TEXT: Final = 3

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


def message(decision: PlacementDecision, explained: Explanation) -> str:
    """The decision in one or more sentences, for a condition, an Event or a terminal."""
    if decision.evidence is None:
        return _without_evidence(decision, explained)
    sentences = ["With the gate on:"] if decision.gate is Gate.OBSERVE else []
    if decision.reason is Reason.POLICY_IGNORE:
        sentences.append("hostCpuPolicy Ignore: not constrained, whatever the CPU.")
    if decision.capture_cpu is None:
        sentences.append(_unknown(decision))
    else:
        sentences += [_numbers(decision, explained), _source(decision)]
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
    if decision.policy is not HostCpuPolicy.AUTO:
        text += f" hostCpuPolicy {decision.policy} has no effect."
    if explained.removed:
        text += f" {explained.reachable} of {explained.nodes} nodes are reachable"
        text += f"{_gaps(explained)}."
    return text


def _unknown(decision: PlacementDecision) -> str:
    text = "The CPU on which the snapshot was captured is not known"
    if decision.reason is Reason.POLICY_IGNORE:
        return f"{text}."
    if decision.held:
        return f"{text}; hostCpuPolicy Required waits until it is."
    return f"{text}; the pod is placed without regard to the host CPU."


def _numbers(decision: PlacementDecision, explained: Explanation) -> str:
    """Section 8: the numbers, in the words of the API's example."""
    lineage = () if decision.evidence is None else decision.evidence.ancestors
    after = f" (restored before on {', '.join(lineage)})" if lineage else ""
    have = "have it" if len(decision.loaders) == 1 else "have one"
    return (
        f"{len(decision.loaders)} of {len(decision.published)} published CPUs can load"
        f" {decision.capture_cpu}{after};"
        f" {explained.reachable_loaders} of {explained.reachable} reachable nodes {have}"
        f"{_gaps(explained)}."
    )


def _gaps(explained: Explanation) -> str:
    gaps = [f"{gap.nodes} {WORDS[gap.filter]}" for gap in explained.removed if gap.nodes]
    if explained.refused_loaders:
        gaps.append(f"{explained.refused_loaders} refused this capture before")
    return f"; removed: {', '.join(gaps)}" if gaps else ""


def _source(decision: PlacementDecision) -> str:
    """Section 6: how the capture CPU is known, where the snapshot does not record it."""
    evidence = decision.evidence
    if evidence is None or evidence.node is None:
        return ""
    if evidence.kind is Evidence.UPLOADER_LABEL:
        return f"The capture CPU is the label of uploading node {evidence.node}."
    return f"The capture CPU is what uploading node {evidence.node} carried at capture time."


def _what_follows(decision: PlacementDecision, explained: Explanation) -> str:
    """What is done about it, and what a person could do."""
    match decision.reason:
        case Reason.LOADER_REACHABLE if explained.without_slots == explained.reachable_loaders:
            return "None of them offers a network slot now: the pod waits until one does."
        case Reason.LOADER_REACHABLE if explained.unlabelled and not _is_in(decision):
            return (
                f"{_count(explained.unlabelled, 'reachable node')} without a usable host-CPU label"
                " may take it too."
            )
        case Reason.NOTHING_EXCLUDED:
            return "Nothing is excluded."
        case Reason.PLACEMENT_HELD:
            return f"hostCpuPolicy Required waits for one. {nearest_change(decision, explained)}"
        case Reason.NO_REACHABLE_LOADER:
            return (
                "The pod is placed without regard to the host CPU and may fail to load there."
                f" {nearest_change(decision, explained)}"
            )
    return ""


def _is_in(decision: PlacementDecision) -> bool:
    return decision.term is not None and decision.term.operator == "In"


def nearest_change(decision: PlacementDecision, explained: Explanation) -> str:
    """The CPU that is needed, and the nearest thing that a person could change."""
    needed = " or ".join(decision.known_loaders)
    if not needed:
        return (
            "No CPU is known to load it: none can load its capture CPU and all of its ancestors'."
            f" A pair in {SETTING} could name one."
        )
    needed = f"Needed: a node with {needed}."
    nearest = explained.nearest
    if nearest is not None:
        who = named(nearest.names, nearest.nodes)
        held = " and ".join(_to_change(rule, nearest) for rule in nearest.filters)
        return f"{needed} Nearest: {who} {held}."
    if explained.refused_anywhere:
        return (
            f"{needed} Every one that could be had has refused this capture: compare their"
            " firmware and microcode."
        )
    if explained.loader_nodes:
        return f"{needed} All that there are are being deleted: add one."
    return (
        f"{needed} There is none in the fleet: add one, or list another CPU that can load it in"
        f" {SETTING}."
    )


def _to_change(rule: Filter, nearest: Nearest) -> str:
    """What keeps the pod off these nodes, with what a person would look for."""
    text = _held_by(rule, nearest.nodes)
    match rule:
        case Filter.CORDONED:
            return f"{text} (kubectl uncordon)"
        case Filter.TAINTED:
            return f"{text} with what the pod does not tolerate ({', '.join(nearest.taints)})"
        case Filter.PLACEMENT_BLOCK:
            return f"{text} (label {PLACEMENT_BLOCK_LABEL})"
    return text


def _held_by(rule: Filter, nodes: int) -> str:
    """What holds for one or several nodes that the rule removes."""
    is_, do = ("is", "does") if nodes == 1 else ("are", "do")
    match rule:
        case Filter.NODE_SELECTOR:
            return f"{do} not match the pod's node selector"
        case Filter.NODE_AFFINITY:
            return f"{do} not match the pod template's node affinity"
        case Filter.NODE_GROUP:
            return f"{is_} in another node group than the sandbox"
        case Filter.COHORT:
            return f"{is_} not in the target cohort"
    return f"{is_} {WORDS[rule]}"


def named(names: Sequence[str], total: int, *, limit: int = _NAMES_IN_TEXT) -> str:
    """`a, b and c`, or `a, b, c and 4 more`."""
    listed = list(names[:limit])
    if total > len(listed):
        return f"{', '.join(listed)} and {total - len(listed)} more"
    return f"{', '.join(listed[:-1])} and {listed[-1]}" if len(listed) > 1 else "".join(listed)


def blocked_loaders(explained: Explanation) -> tuple[str, ...]:
    """One line for each filter that removed nodes with a loader:
    `3 nodes with a loader are cordoned: a, b and c`."""
    return tuple(
        f"{_count(gap.loaders, 'node')} with a loader {_held_by(gap.filter, gap.loaders)}:"
        f" {named(gap.loader_names, gap.loaders)}"
        for gap in explained.removed
        if gap.loaders
    )


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
