"""The placement decision of one restore attempt from storage (sections 5 to 9 and 11).

`decide` answers from sets of nodes in less than 100 us, whatever the size of the fleet. What each
filter removed is told by `explain.explanation`, which costs more and is asked once an attempt.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace
from pyroaring import BitMap

from sandbox_restore.fleet.compatibility import Compatibility, Split
from sandbox_restore.fleet.evidence import CaptureEvidence, capture_evidence
from sandbox_restore.fleet.index import FleetIndex
from sandbox_restore.model.restore import HostCpuPolicy
from sandbox_restore.model.sandbox import Snapshot
from sandbox_restore.placement import term as terms
from sandbox_restore.placement.gate import Gate
from sandbox_restore.placement.reachable import Demand, reachable
from sandbox_restore.placement.shortlist import DEFAULT_FALLBACKS, CpuRule, shortlist
from sandbox_restore.placement.term import NOTHING_RENDERED, CpuTerm, Rendered


class Outcome(StrEnum):
    CONSTRAINED = "Constrained"
    """The pod carries the placement term."""
    UNCONSTRAINED = "Unconstrained"
    """The pod is placed as without the feature."""
    HELD = "Held"
    """No pod is made yet."""


class Reason(StrEnum):
    """Why a decision came out as it did; these are seen in the status, in Events and metrics."""

    LOADER_REACHABLE = "LoaderReachable"
    """Constrained: a reachable node's label is a loader."""
    GATE_OFF = "GateOff"
    POLICY_IGNORE = "PolicyIgnore"
    NOTHING_EXCLUDED = "NothingExcluded"
    """Every published CPU can load the snapshot."""
    NO_REACHABLE_LOADER = "NoReachableLoader"
    """`Auto`: no reachable node's label is a loader."""
    CAPTURE_CPU_UNKNOWN = "CaptureCpuUnknown"
    COLD_CACHE = "ColdCache"
    PLACEMENT_HELD = "PlacementHeld"
    """`Required`: no reachable node's label is a loader."""


@dataclass(frozen=True, slots=True)
class NodeRef:
    """One Node object."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementRequest:
    """What is asked of the fleet for one attempt of a storage plan."""

    sandbox_id: str
    snapshot: Snapshot
    demand: Demand
    gate: Gate = Gate.OFF
    policy: HostCpuPolicy = HostCpuPolicy.AUTO
    hard_pin: bool = False
    fallbacks: int = DEFAULT_FALLBACKS
    may_wait_for_cache: bool = False
    """The time that a decision may wait for a warm index is not over (section 8)."""
    refused: tuple[NodeRef, ...] = ()
    """Nodes that refused this capture as CPU-incompatible, newest first (section 11)."""
    avoid: tuple[NodeRef, ...] = ()
    """Nodes that the next attempt had better not take (class `host`), newest first."""


class PlacementDecision(Struct, frozen=True, kw_only=True):
    """What was decided and why, as data; `explain` puts it into words."""

    outcome: Outcome
    reason: Reason
    gate: Gate
    policy: HostCpuPolicy
    rendered: Rendered = NOTHING_RENDERED
    evidence: CaptureEvidence | None = None
    published: tuple[str, ...] = ()
    loaders: tuple[str, ...] = ()
    """Published CPUs that can load the snapshot."""
    excluded: tuple[str, ...] = ()
    """Published CPUs that cannot."""
    known_loaders: tuple[str, ...] = ()
    """Every CPU that can by the compatibility list, in the fleet or not."""
    nodes: int = 0
    reachable: int = 0
    source_node: str | None = None
    """The node that uploaded the snapshot, where the shortlist is asked for."""
    would: PlacementDecision | None = None
    """Observed only: what the gate would have decided."""

    @property
    def capture_cpu(self) -> str | None:
        return None if self.evidence is None else self.evidence.cpu

    @property
    def term(self) -> CpuTerm | None:
        return self.rendered.term

    @property
    def held(self) -> bool:
        return self.outcome is Outcome.HELD

    @property
    def would_change(self) -> bool:
        """Observed only: with the gate on, the pod would wait or look different."""
        return self.would is not None and (self.would.held or self.would.rendered != self.rendered)


def decide(
    request: PlacementRequest,
    fleet: FleetIndex,
    compatibility: Compatibility,
    *,
    now: datetime,
) -> PlacementDecision:
    """Section 5: with the gate off, nothing about a CPU is read, asked or rendered."""
    if request.gate is Gate.ON:
        return _by_cpu(request, fleet, compatibility, now=now)
    decision = _without_cpu(request, fleet)
    if request.gate is Gate.OBSERVE:
        would = _by_cpu(request, fleet, compatibility, now=now)
        return replace(decision, would=would)
    return decision


def loader_nodes(
    nodes: BitMap,
    fleet: FleetIndex,
    *,
    loaders: Iterable[str],
    refused: Iterable[NodeRef] = (),
) -> BitMap:
    """Those of `nodes` whose label is a loader and that have not refused the capture (section 10,
    condition 1)."""
    slots = slots_of(refused, fleet)
    able = nodes & fleet.labels.union(fleet.cpu_label, loaders)
    return able - slots if slots else able


def slots_of(nodes: Iterable[NodeRef], fleet: FleetIndex) -> BitMap:
    """Those of the Node objects that are in the fleet; another UID is another machine."""
    records = ((ref, fleet.get(ref.name)) for ref in nodes)
    return BitMap(
        [record.slot for ref, record in records if record is not None and record.uid == ref.uid]
    )


def verdict(
    policy: HostCpuPolicy, *, capture_known: bool, any_excluded: bool, loader_reachable: bool
) -> tuple[Outcome, Reason]:
    """Section 8 with a warm index: what becomes of the pod, by `hostCpuPolicy`."""
    required = policy is HostCpuPolicy.REQUIRED
    if policy is HostCpuPolicy.IGNORE:
        return Outcome.UNCONSTRAINED, Reason.POLICY_IGNORE
    if not capture_known:
        outcome = Outcome.HELD if required else Outcome.UNCONSTRAINED
        return outcome, Reason.CAPTURE_CPU_UNKNOWN
    if required:
        if loader_reachable:
            return Outcome.CONSTRAINED, Reason.LOADER_REACHABLE
        return Outcome.HELD, Reason.PLACEMENT_HELD
    if not any_excluded:
        return Outcome.UNCONSTRAINED, Reason.NOTHING_EXCLUDED
    if loader_reachable:
        return Outcome.CONSTRAINED, Reason.LOADER_REACHABLE
    return Outcome.UNCONSTRAINED, Reason.NO_REACHABLE_LOADER


def _source(request: PlacementRequest) -> str | None:
    """Section 9: the source node, where the hard pin asks for a shortlist."""
    return request.snapshot.uploaded_by if request.hard_pin else None


def _cold(request: PlacementRequest, *, waits: bool, reason: Reason) -> PlacementDecision:
    """Section 8, cold cache: wait for a warm index, or decide nothing from what there is."""
    return PlacementDecision(
        outcome=Outcome.HELD if waits else Outcome.UNCONSTRAINED,
        reason=Reason.COLD_CACHE if waits else reason,
        gate=request.gate,
        policy=request.policy,
        source_node=_source(request),
    )


def _without_cpu(request: PlacementRequest, fleet: FleetIndex) -> PlacementDecision:
    """Gate off: the base pod, and the shortlist of section 9 without its CPU rules."""
    source = _source(request)
    if not fleet.warm:
        # Fallbacks from a half-filled index are not the ones that a retry would pick.
        waits = source is not None and request.may_wait_for_cache
        return _cold(request, waits=waits, reason=Reason.GATE_OFF)
    nodes = reachable(request.demand, fleet)
    return PlacementDecision(
        outcome=Outcome.UNCONSTRAINED,
        reason=Reason.GATE_OFF,
        gate=request.gate,
        policy=request.policy,
        nodes=len(fleet),
        reachable=len(nodes),
        source_node=source,
        rendered=Rendered(shortlist=_shortlist(request, fleet, candidates=nodes, rule=None)),
    )


def _by_cpu(
    request: PlacementRequest,
    fleet: FleetIndex,
    compatibility: Compatibility,
    *,
    now: datetime,
) -> PlacementDecision:
    """Gate on: sections 6, 8, 9 and 11."""
    if not fleet.warm:
        waits = request.may_wait_for_cache or request.policy is HostCpuPolicy.REQUIRED
        return _cold(request, waits=waits, reason=Reason.COLD_CACHE)
    evidence = capture_evidence(request.snapshot, fleet=fleet)
    published = fleet.published(now=now)
    split = Split()
    if evidence.cpu is not None:
        split = compatibility.split(published, capture=evidence.cpu, ancestors=evidence.ancestors)
    nodes = reachable(request.demand, fleet)
    left, refusers = _without(nodes, request.refused, fleet)
    outcome, reason = verdict(
        request.policy,
        capture_known=evidence.cpu is not None,
        any_excluded=bool(split.excluded),
        loader_reachable=any(left.intersect(fleet.with_cpu(cpu)) for cpu in split.loaders),
    )
    rule = None
    if outcome is Outcome.CONSTRAINED:
        required = request.policy is HostCpuPolicy.REQUIRED
        term = terms.placement_term(
            excluded=split.excluded, loaders=split.known, required=required, key=fleet.cpu_label
        )
        rule = CpuRule(term=term, excluded=split.excluded, loaders=split.loaders)
    rendered = NOTHING_RENDERED
    if reason is Reason.POLICY_IGNORE:
        # An override for bad days: it constrains in no way, not even by what a node has shown.
        rendered = Rendered(shortlist=_shortlist(request, fleet, candidates=nodes, rule=None))
    elif outcome is not Outcome.HELD:
        rendered = _rendered(request, fleet, left=left, refusers=refusers, rule=rule)
    return PlacementDecision(
        outcome=outcome,
        reason=reason,
        gate=request.gate,
        policy=request.policy,
        rendered=rendered,
        evidence=evidence,
        published=published,
        loaders=split.loaders,
        excluded=split.excluded,
        known_loaders=split.known,
        nodes=len(fleet),
        reachable=len(nodes),
        source_node=_source(request),
    )


def _rendered(
    request: PlacementRequest,
    fleet: FleetIndex,
    *,
    left: BitMap,
    refusers: tuple[str, ...],
    rule: CpuRule | None,
) -> Rendered:
    """What is added to the pod, from the reachable nodes that have not refused the snapshot.

    Nodes to avoid are excluded too, but only while another node remains that can take the pod.
    """
    avoided: tuple[str, ...] = ()
    if request.avoid:
        remaining, names = _without(left, request.avoid, fleet)
        able = remaining
        if rule is not None:
            able = remaining & fleet.labels.union(fleet.cpu_label, rule.loaders)
        if able:
            left, avoided = remaining, names
    exclusions = tuple(dict.fromkeys((*avoided, *refusers)))[: terms.MAX_NODE_EXCLUSIONS]
    return Rendered(
        term=None if rule is None else rule.term,
        shortlist=_shortlist(request, fleet, candidates=left, rule=rule),
        node_exclusions=tuple(sorted(exclusions)),
    )


def _without(
    nodes: BitMap, refs: tuple[NodeRef, ...], fleet: FleetIndex
) -> tuple[BitMap, tuple[str, ...]]:
    """Section 11, node exclusion: the nodes without these, and the names that takes.

    Left out if no reachable node would remain. A name whose Node object is another one by now
    (UID), or is gone, is not excluded: it has refused nothing.
    """
    if not refs:
        return nodes, ()
    found = [ref.name for ref in refs if _is_there(ref, fleet)]
    remaining = nodes - slots_of(refs, fleet)
    return (remaining, tuple(found)) if remaining else (nodes, ())


def _is_there(ref: NodeRef, fleet: FleetIndex) -> bool:
    record = fleet.get(ref.name)
    return record is not None and record.uid == ref.uid


def _shortlist(
    request: PlacementRequest, fleet: FleetIndex, *, candidates: BitMap, rule: CpuRule | None
) -> tuple[str, ...]:
    """Section 9, where the hard pin is on and the source node is known."""
    source = _source(request)
    if source is None:
        return ()
    return shortlist(
        candidates,
        fleet,
        source=source,
        sandbox_id=request.sandbox_id,
        fallbacks=request.fallbacks,
        rule=rule,
    )
