"""Which nodes a restore pod can reach, and which rule keeps it off the others (section 7)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from pyroaring import BitMap

from sandbox_restore.fleet import record
from sandbox_restore.fleet.index import FleetIndex
from sandbox_restore.fleet.record import NodeChange
from sandbox_restore.model.names import COHORT_LABEL, NODE_GROUP_LABEL, PLACEMENT_BLOCK_LABEL
from sandbox_restore.placement.match import (
    NAME_FIELD,
    NodeLike,
    PodRequirements,
    Requirement,
    Term,
    Tolerations,
    affinity_matches,
    matches,
    selector_matches,
)


class Filter(StrEnum):
    """The rules of section 7, in the order in which they are applied and counted.

    A node that several would remove is counted by the first, so that the counts add up.
    """

    NODE_SELECTOR = "nodeSelector"
    NODE_AFFINITY = "nodeAffinity"
    CORDONED = "cordoned"
    TAINTED = "tainted"
    DELETING = "deleting"
    PLACEMENT_BLOCK = "placementBlock"
    NODE_GROUP = "nodeGroup"
    COHORT = "cohort"


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What the base pod of a storage plan asks of a node (section 7)."""

    requirements: PodRequirements = field(default_factory=PodRequirements)
    """Of the template, with the node selectors of template, row and restore together."""
    node_group: str | None = None
    cohort: str | None = None
    """The target cohort, when the restore is an evacuation."""


class FleetNode(NodeLike, Protocol):
    """The part of a node that section 7 looks at."""

    @property
    def deleting(self) -> bool: ...


def is_reachable(demand: Demand, node: FleetNode) -> bool:
    """Section 7 for one node of the cache: the slow form, each rule in turn."""
    labels = node.labels
    return (
        matches(demand.requirements, node)
        and not node.deleting
        and PLACEMENT_BLOCK_LABEL not in labels
        and (demand.node_group is None or labels.get(NODE_GROUP_LABEL) == demand.node_group)
        and (demand.cohort is None or labels.get(COHORT_LABEL) == demand.cohort)
    )


def blocking_filters(demand: Demand, node: FleetNode) -> tuple[Filter, ...]:
    """Every rule of section 7 that alone would keep the pod off this node, in order."""
    labels, requirements = node.labels, demand.requirements
    tolerations = requirements.tolerations
    held = {
        Filter.NODE_SELECTOR: not selector_matches(requirements, labels),
        Filter.NODE_AFFINITY: not affinity_matches(requirements, name=node.name, labels=labels),
        Filter.CORDONED: node.unschedulable and not tolerations.cordon,
        Filter.TAINTED: not tolerations.all_of(node.taints),
        Filter.DELETING: node.deleting,
        Filter.PLACEMENT_BLOCK: PLACEMENT_BLOCK_LABEL in labels,
        Filter.NODE_GROUP: demand.node_group is not None
        and labels.get(NODE_GROUP_LABEL) != demand.node_group,
        Filter.COHORT: demand.cohort is not None and labels.get(COHORT_LABEL) != demand.cohort,
    }
    return tuple(rule for rule in Filter if held[rule])


def reachable(demand: Demand, fleet: FleetIndex) -> BitMap:
    """Section 7: the reachable nodes. The set may be the index's own; it is not to be changed."""
    found = _Narrowing()
    if demand.node_group is not None:
        found.keep(fleet.labels.equal(NODE_GROUP_LABEL, demand.node_group))
    if demand.cohort is not None:
        found.keep(fleet.labels.equal(COHORT_LABEL, demand.cohort))
    _select(demand.requirements, fleet, found)
    found.keep(_open_to(demand.requirements, fleet))
    return found.within(fleet)


def _open_to(requirements: PodRequirements, fleet: FleetIndex) -> BitMap:
    """Nodes that pass every rule but the node selector, the node group and the cohort.

    The set is kept: these rules come from the template, so that all its pods share the answer.
    """
    question = ("open", id(requirements.terms), requirements.tolerations)
    kept = fleet.standing(question)
    if kept is not None:
        return kept
    found = _match_terms(requirements, fleet, _Narrowing())
    found.drop(fleet.deleting, fleet)
    found.drop(fleet.labels.having(PLACEMENT_BLOCK_LABEL), fleet)
    found.drop(_untolerated(requirements.tolerations, fleet), fleet)
    if not requirements.tolerations.cordon:
        found.drop(fleet.cordoned, fleet)
    terms = requirements.terms or ()
    # The judge holds the terms, so that none later gets their identity while the answer is kept.
    return fleet.keep(
        question,
        found.within(fleet),
        judge=lambda node: _is_open(requirements, node),
        aspects=record.CORDON | record.DELETING | record.TAINTS,
        label_keys=frozenset(
            {PLACEMENT_BLOCK_LABEL, *(e.key for term in terms for e in term.expressions)}
        ),
    )


def _is_open(requirements: PodRequirements, node: FleetNode) -> bool:
    """As `_open_to`, for one node; first what needs no look at the labels."""
    tolerations = requirements.tolerations
    if (
        node.deleting
        or (node.unschedulable and not tolerations.cordon)
        or not tolerations.all_of(node.taints)
    ):
        return False
    labels = node.labels
    return PLACEMENT_BLOCK_LABEL not in labels and affinity_matches(
        requirements, name=node.name, labels=labels
    )


def _untolerated(tolerations: Tolerations, fleet: FleetIndex) -> BitMap:
    """Nodes with a taint that filters and is not tolerated. The set is kept: a fleet can have as
    many different taints as nodes."""
    question = ("untolerated", tolerations)
    kept = fleet.standing(question)
    if kept is not None:
        return kept
    return fleet.keep(
        question,
        fleet.tainted(lambda taints: not tolerations.all_of(taints)),
        judge=lambda node: not tolerations.all_of(node.taints),
        aspects=record.TAINTS,
    )


def removed(demand: Demand, fleet: FleetIndex) -> list[tuple[Filter, BitMap]]:
    """The nodes that each rule removes from what the rules before it left, in order."""
    left = fleet.all
    answer: list[tuple[Filter, BitMap]] = []
    for rule, passing in _passing(demand, fleet):
        kept = left & passing
        answer.append((rule, left - kept))
        left = kept
    return answer


def failing(demand: Demand, fleet: FleetIndex, nodes: BitMap) -> dict[Filter, BitMap]:
    """Those of `nodes` that each rule alone would remove; a node can be with several rules."""
    return {rule: nodes - passing for rule, passing in _passing(demand, fleet)}


def concerns(demand: Demand, change: NodeChange, *, named: Collection[str] = ()) -> bool:
    """Whether a node's change can alter a decision made for this demand.

    Published CPUs count over the whole fleet, whatever their nodes' state (section 2), so a CPU
    that comes or goes concerns every restore; any other change only those that can reach the node
    before it or after it, and those that ask for it by name. `named`: the uploading node and the
    nodes that refused the snapshot.
    """
    if not change.matters:
        return False
    if change.cpu_values_changed or change.name in named:
        return True
    return any(
        node is not None and is_reachable(demand, node) for node in (change.before, change.after)
    )


class _Narrowing:
    """A set of nodes that is narrowed step by step; at first, every node.

    The first step makes a set of its own, which later steps change in place: on a large fleet
    most of the time goes into making sets.
    """

    __slots__ = ("_nodes", "_own")

    def __init__(self, nodes: BitMap | None = None) -> None:
        self._nodes = nodes
        self._own = False

    def keep(self, nodes: BitMap) -> None:
        """Leaves only these."""
        if self._nodes is None:
            self._nodes = nodes
        elif self._own:
            self._nodes &= nodes
        else:
            self._nodes, self._own = self._nodes & nodes, True

    def drop(self, nodes: BitMap, fleet: FleetIndex) -> None:
        """Leaves all but these."""
        if self._own and self._nodes is not None:
            self._nodes -= nodes
        else:
            self._nodes, self._own = self.within(fleet) - nodes, True

    def branch(self) -> _Narrowing:
        """Another set that begins as this one is now."""
        return _Narrowing(self._nodes)

    def within(self, fleet: FleetIndex) -> BitMap:
        return fleet.all if self._nodes is None else self._nodes


def _passing(demand: Demand, fleet: FleetIndex) -> Iterator[tuple[Filter, BitMap]]:
    """Each rule with the nodes that pass it."""
    requirements, labels = demand.requirements, fleet.labels
    tolerations = requirements.tolerations
    selected = _Narrowing()
    _select(requirements, fleet, selected)
    yield Filter.NODE_SELECTOR, selected.within(fleet)
    matched = _match_terms(requirements, fleet, _Narrowing())
    yield Filter.NODE_AFFINITY, matched.within(fleet)
    yield Filter.CORDONED, fleet.all if tolerations.cordon else fleet.all - fleet.cordoned
    yield Filter.TAINTED, fleet.all - _untolerated(tolerations, fleet)
    yield Filter.DELETING, fleet.all - fleet.deleting
    yield Filter.PLACEMENT_BLOCK, fleet.all - labels.having(PLACEMENT_BLOCK_LABEL)
    if demand.node_group is not None:
        yield Filter.NODE_GROUP, labels.equal(NODE_GROUP_LABEL, demand.node_group)
    if demand.cohort is not None:
        yield Filter.COHORT, labels.equal(COHORT_LABEL, demand.cohort)


def _select(requirements: PodRequirements, fleet: FleetIndex, nodes: _Narrowing) -> None:
    """Section 7, `nodeSelector`."""
    for key, value in requirements.selector:
        nodes.keep(fleet.labels.equal(key, value))


def _match_terms(requirements: PodRequirements, fleet: FleetIndex, nodes: _Narrowing) -> _Narrowing:
    """Section 7, required terms, ORed."""
    if requirements.terms is None:
        return nodes
    terms = [term for term in requirements.terms if not (term.empty or term.problems)]
    if not terms:
        return _Narrowing(BitMap())
    if len(terms) == 1:
        _match_term(terms[0], fleet, nodes)
        return nodes
    union = BitMap()
    for term in terms:
        branch = nodes.branch()
        _match_term(term, fleet, branch)
        union |= branch.within(fleet)
    return _Narrowing(union)


def _match_term(term: Term, fleet: FleetIndex, nodes: _Narrowing) -> None:
    """Section 7, one term: first what it demands, then what it forbids."""
    forbidden: list[BitMap] = []
    for requirement in term.expressions:
        labelled = _label_set(requirement, fleet)
        if requirement.operator in ("NotIn", "DoesNotExist"):
            forbidden.append(labelled)
        else:
            nodes.keep(labelled)
    for requirement in term.fields:
        named = _field_set(requirement, fleet)
        if requirement.operator == "NotIn":
            forbidden.append(named)
        else:
            nodes.keep(named)
    for held in forbidden:
        nodes.drop(held, fleet)


def _label_set(requirement: Requirement, fleet: FleetIndex) -> BitMap:
    """Nodes that a requirement demands, or, for NotIn and DoesNotExist, those it forbids."""
    match requirement.operator:
        case "In" | "NotIn":
            return fleet.labels.one_of(requirement.key, requirement.values)
        case "Exists" | "DoesNotExist":
            return fleet.labels.having(requirement.key)
    return fleet.labels.compared(
        requirement.key, greater=requirement.operator == "Gt", bound=requirement.bound
    )


def _field_set(requirement: Requirement, fleet: FleetIndex) -> BitMap:
    """Nodes whose field has the value; a field other than the name reads as empty."""
    if requirement.key != NAME_FIELD:
        return BitMap() if requirement.values[0] else fleet.all
    node = fleet.get(requirement.values[0])
    return BitMap() if node is None else BitMap((node.slot,))
