"""When a restore pod that is still unscheduled is rendered again (section 8, known limits). PURE.

The pod itself tells what was rendered into it, so that a restart of the operator changes nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from pyroaring import BitMap

from sandbox_restore.fleet.index import FleetIndex
from sandbox_restore.model.pod import PodFacts
from sandbox_restore.placement.decision import PlacementDecision, Reason
from sandbox_restore.placement.reachable import Demand, reachable
from sandbox_restore.placement.term import (
    Change,
    CpuTerm,
    Rendered,
    placement_term,
    read_back,
    render,
    required_terms,
    term_change,
)

RERENDERED: Final = "rendered again"
"""How the message of an attempt begins whose pod was taken back for this."""

KEPT: Final = 10_000
"""Pods whose time of steady difference is remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerender:
    """The pod's requirement is not what it would be now."""

    why: str
    due_at: datetime
    """When the pod is to be taken back, if that still holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What a rendering of now would change in the pod's requirement."""

    change: Change
    why: str


class SteadyTimes:
    """Since when something has held at every look, by pod UID; a restart begins anew."""

    def __init__(self, *, kept: int = KEPT) -> None:
        self._since: OrderedDict[str, datetime] = OrderedDict()
        self._kept = kept

    def since(self, uid: str, now: datetime) -> datetime:
        """When it began to hold: now, if that is news."""
        found = self._since.setdefault(uid, now)
        while len(self._since) > self._kept:
            self._since.popitem(last=False)
        return found

    def broken(self, uid: str) -> None:
        """It does not hold now."""
        self._since.pop(uid, None)


class Rerendering:
    """Judges the pods that wait; pure but for the times since when they could be less strict."""

    def __init__(
        self, fleet: FleetIndex, template_spec: Mapping[str, Any], *, loosen_after: timedelta
    ) -> None:
        self._fleet = fleet
        self._spec = template_spec
        self._loosen_after = loosen_after
        self._looser = SteadyTimes()

    def judge(
        self, pod: PodFacts, decision: PlacementDecision, demand: Demand, *, now: datetime
    ) -> Rerender | None:
        """Section 8, known limits: at once when the pod's requirement gets stricter, after a steady
        time when it only gets looser; None: it is what it would be now."""
        key = self._fleet.cpu_label
        found = difference(
            read_back(pod.required_terms, key=key),
            wanted(decision, self._spec, key=key),
            decision,
            self._fleet,
            nodes=reachable(demand, self._fleet),
        )
        if found is not None and found.change is Change.LOOSER:
            since = self._looser.since(pod.uid, now)
            return Rerender(why=found.why, due_at=since + self._loosen_after)
        self._looser.broken(pod.uid)
        return None if found is None else Rerender(why=found.why, due_at=now)


def wanted(decision: PlacementDecision, spec: Mapping[str, Any], *, key: str) -> Rendered:
    """What `read_back` would find on a pod that is rendered now from this template's spec.

    A pod of a `Required` restore whose decision is held would get the loaders that are known.
    """
    added = decision.rendered
    if decision.reason is Reason.PLACEMENT_HELD:
        term = placement_term(excluded=(), loaders=decision.known_loaders, required=True, key=key)
        added = Rendered(term=term)
    return read_back(required_terms(render({"spec": spec}, added)), key=key)


def difference(
    on_pod: Rendered,
    wanted: Rendered,
    decision: PlacementDecision,
    fleet: FleetIndex,
    *,
    nodes: BitMap,
) -> Difference | None:
    """Whether the pod is to be rendered again, and in which direction its requirement changes.

    Stricter: a CPU or a node is excluded now that was not. Looser, and only where it gives the pod
    somewhere to go: no loader is left, or what is excluded is in the fleet and may take it by now,
    or none of its shortlist can be reached. What is lost is no news: on a cold cache, and where the
    capture CPU cannot be told any more, the pod keeps what was once known. `nodes`: those that the
    pod's base can reach.
    """
    if decision.reason is Reason.COLD_CACHE:
        return None
    found = [_cpus(on_pod.term, wanted.term, decision)]
    if not decision.held:
        found += [
            _excluded_nodes(on_pod, wanted),
            _readmitted_nodes(on_pod, wanted, fleet),
            _lost_shortlist(on_pod, wanted, fleet, nodes),
        ]
    for change in (Change.STRICTER, Change.LOOSER):
        why = [one.why for one in found if one is not None and one.change is change]
        if why:
            return Difference(change=change, why="; ".join(why))
    return None


def _cpus(
    on_pod: CpuTerm | None, wanted: CpuTerm | None, decision: PlacementDecision
) -> Difference | None:
    """What changes on the host-CPU label."""
    if decision.reason is Reason.CAPTURE_CPU_UNKNOWN:
        return None
    change = term_change(on_pod, wanted)
    if change is Change.STRICTER:
        named = (*_values(on_pod), *_values(wanted), *decision.published)
        lost = sorted({c for c in named if _takes(on_pod, c) and not _takes(wanted, c)})
        words = f"newly excluded: {', '.join(lost)}" if lost else "only loaders may take it now"
        return Difference(change=change, why=words)
    # A held restore gains nothing: its pod already waits for the loaders that it names.
    if change is Change.NONE or decision.held:
        return None
    if decision.reason is Reason.NO_REACHABLE_LOADER:
        return Difference(change=change, why="no node with a loader can be reached")
    gained = [c for c in decision.published if _takes(wanted, c) and not _takes(on_pod, c)]
    if not gained:
        return None
    return Difference(change=change, why=f"no longer excluded: {', '.join(gained)}")


def _values(term: CpuTerm | None) -> tuple[str, ...]:
    return () if term is None else term.values


def _takes(term: CpuTerm | None, cpu: str) -> bool:
    """Whether the term lets a node with that label pass."""
    return term is None or (cpu in term.values) == (term.operator == "In")


def _excluded_nodes(on_pod: Rendered, wanted: Rendered) -> Difference | None:
    names = sorted(set(wanted.node_exclusions) - set(on_pod.node_exclusions))
    if not names:
        return None
    return Difference(change=Change.STRICTER, why=f"newly excluded: node {', '.join(names)}")


def _readmitted_nodes(on_pod: Rendered, wanted: Rendered, fleet: FleetIndex) -> Difference | None:
    left = set(on_pod.node_exclusions) - set(wanted.node_exclusions)
    names = sorted(name for name in left if fleet.get(name) is not None)
    if not names:
        return None
    return Difference(change=Change.LOOSER, why=f"no longer excluded: node {', '.join(names)}")


def _lost_shortlist(
    on_pod: Rendered, wanted: Rendered, fleet: FleetIndex, nodes: BitMap
) -> Difference | None:
    """A shortlist is picked once an attempt; it is replaced when it leads nowhere."""
    if not on_pod.shortlist or set(on_pod.shortlist) == set(wanted.shortlist):
        return None
    listed = (fleet.get(name) for name in on_pod.shortlist)
    if any(node is not None and node.slot in nodes for node in listed):
        return None
    return Difference(change=Change.LOOSER, why="no node of its shortlist can be reached")
