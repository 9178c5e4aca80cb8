"""One pod and one fleet, judged by us in three ways and by the scheduler's plugins."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from sandbox_restore.fleet.index import FleetIndex
from sandbox_restore.kube.decode import node_from_body
from sandbox_restore.model.names import PLACEMENT_BLOCK_LABEL
from sandbox_restore.placement.match import PodRequirements, matches
from sandbox_restore.placement.reachable import Demand, Filter, is_reachable, reachable, removed
from tests.differential.nasty import Json
from tests.differential.shrink import shrunk
from tests.support.oracle import Oracle

NOW: Final = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
SCHEDULERS_OWN: Final = frozenset(
    {Filter.NODE_SELECTOR, Filter.NODE_AFFINITY, Filter.CORDONED, Filter.TAINTED}
)
"""The first list of section 7: what kube-scheduler judges too."""

Names = frozenset[str]


def index_of(nodes: Sequence[Json]) -> FleetIndex:
    """The nodes as the operator takes them in."""
    index = FleetIndex()
    index.replace([node_from_body(node) for node in nodes], now=NOW)
    return index


def by_node(requirements: PodRequirements, index: FleetIndex) -> Names:
    """The slow form: `match.matches` for each node."""
    return frozenset(node.name for node in index if matches(requirements, node))


def by_sets(requirements: PodRequirements, index: FleetIndex) -> Names:
    """The sets over the index, restricted to the scheduler's own rules."""
    left = index.all
    for rule, nodes in removed(Demand(requirements=requirements), index):
        if rule in SCHEDULERS_OWN:
            left = left - nodes
    return frozenset(index.names(left))


def ours_too(index: FleetIndex) -> Names:
    """Nodes that our own rules keep any pod off: being deleted, or under a placement block."""
    return frozenset(
        node.name for node in index if node.deleting or PLACEMENT_BLOCK_LABEL in node.labels
    )


@dataclass(frozen=True, slots=True)
class View:
    """One way in which we judge, and what it must equal, given what the plugins let pass."""

    name: str
    ours: Callable[[PodRequirements, FleetIndex], Names]
    own_rules: bool = False
    """Deletion and placement block count as well."""


VIEWS: Final = (
    View("match.matches", by_node),
    View("reachable.removed", by_sets),
    View(
        "reachable.is_reachable",
        lambda pod, index: frozenset(
            node.name for node in index if is_reachable(Demand(requirements=pod), node)
        ),
        own_rules=True,
    ),
    View(
        "reachable.reachable",
        lambda pod, index: frozenset(
            index.names(reachable(Demand(requirements=pod), index)),
        ),
        own_rules=True,
    ),
)


def disagreements(pod: Json, index: FleetIndex, passing: Names) -> dict[str, Names]:
    """For each view that differs from the plugins, the nodes on which it does.

    An exception of ours is a disagreement on every node.
    """
    try:
        requirements = PodRequirements.of(pod)
    except Exception as error:
        return {f"PodRequirements.of raised {error!r}": frozenset(node.name for node in index)}
    answer: dict[str, Names] = {}
    blocked = ours_too(index)
    for view in VIEWS:
        wanted = passing - blocked if view.own_rules else passing
        try:
            found = view.ours(requirements, index)
        except Exception as error:
            answer[f"{view.name} raised {error!r}"] = frozenset(node.name for node in index)
            continue
        if found != wanted:
            answer[view.name] = found ^ wanted
    return answer


def report(pod: Json, nodes: Sequence[Json], oracle: Oracle) -> str:
    """A difference, made as small as it still shows, in words; empty when a fresh index shows
    none.

    Uses the oracle, which then keeps another fleet.
    """

    def differs(case: Json) -> bool:
        oracle.keep(case["nodes"])
        (passing,) = oracle.passes([case["pod"]])
        return bool(disagreements(case["pod"], index_of(case["nodes"]), passing))

    whole = {"pod": pod, "nodes": list(nodes)}
    if not differs(whole):
        return ""
    for node in nodes:
        if differs({"pod": pod, "nodes": [node]}):
            whole = {"pod": pod, "nodes": [node]}
            break
    small = shrunk(whole, differs, keep=("metadata.name",))
    oracle.keep(small["nodes"])
    (passing,) = oracle.passes([small["pod"]])
    found = disagreements(small["pod"], index_of(small["nodes"]), passing)
    why = oracle.why(small["pod"], small["nodes"])
    lines = [f"  pod   {json.dumps(small['pod'].get('spec'), ensure_ascii=True)}"]
    for node in small["nodes"]:
        name = node["metadata"]["name"]
        theirs = "lets it pass" if name in passing else f"rejects it: {why.get(name)}"
        lines.append(f"  node  {json.dumps(node, ensure_ascii=True)}")
        lines.append(f"  kube-scheduler {theirs}")
        lines += [
            f"  {view} says the opposite" for view, differing in found.items() if name in differing
        ]
    return "\n".join(lines)
