"""The same decisions by other means: a plain scan in Python, and kube-scheduler's own plugins.

Both are held against what was decided: a figure for another answer would be worth nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from bench._fleet import NOW, TEMPLATE
from sandbox_restore.fleet.compatibility import Compatibility
from sandbox_restore.fleet.evidence import capture_evidence
from sandbox_restore.fleet.index import FleetIndex
from sandbox_restore.fleet.record import NodeRecord
from sandbox_restore.model.names import NODE_GROUP_LABEL, PLACEMENT_BLOCK_LABEL
from sandbox_restore.placement.decision import PlacementRequest, decide
from sandbox_restore.placement.reachable import is_reachable, reachable
from sandbox_restore.placement.term import and_required, render
from tests.support.oracle import Oracle


def scan_times(
    requests: Iterable[PlacementRequest], fleet: FleetIndex, compatibility: Compatibility
) -> list[float]:
    """Microseconds of CPU that a scan takes over the records that the index keeps, sorted."""
    taken = []
    for request in requests:
        start = time.thread_time_ns()
        found = _scan(request, fleet, compatibility)
        taken.append((time.thread_time_ns() - start) / 1000)
        decision = decide(request, fleet, compatibility, now=NOW)
        able = reachable(request.demand, fleet) & fleet.labels.union(
            fleet.cpu_label, decision.loaders
        )
        wanted = (decision.reachable, len(able), decision.excluded)
        if found != wanted:
            raise SystemExit(f"error: the scan found {found}, decided was {wanted}")
    return sorted(taken)


def _scan(
    request: PlacementRequest, fleet: FleetIndex, compatibility: Compatibility
) -> tuple[int, int, tuple[str, ...]]:
    """Reachable nodes, those of them with a loader, and the excluded CPUs: each node in turn."""
    evidence = capture_evidence(request.snapshot, fleet=fleet)
    known: frozenset[str] = frozenset()
    if evidence.cpu is not None:
        known = compatibility.known_loaders(evidence.cpu, evidence.ancestors)
    published: set[str] = set()
    found = able = 0
    for node in fleet:
        cpu = node.cpu
        if cpu is not None:
            published.add(cpu)
        if is_reachable(request.demand, node):
            found += 1
            able += cpu in known
    return found, able, tuple(sorted(published - known)) if known else ()


def plugin_times(
    requests: Iterable[PlacementRequest],
    fleet: FleetIndex,
    compatibility: Compatibility,
    *,
    oracle: Oracle,
) -> list[float]:
    """Microseconds that NodeUnschedulable, TaintToleration and NodeAffinity take, in Go, for the
    rendered pod on each node in turn, without reading and writing JSON; sorted."""
    oracle.keep([_body(node) for node in fleet])
    taken = []
    for request in requests:
        decision = decide(request, fleet, compatibility, now=NOW)
        before = oracle.nanoseconds
        (passing,) = oracle.passes([render(_base(request), decision.rendered)])
        taken.append((oracle.nanoseconds - before) / 1000)
        excluded = decision.excluded if decision.term is not None else ()
        wanted = frozenset(
            fleet.names(
                reachable(request.demand, fleet) - fleet.labels.union(fleet.cpu_label, excluded)
            )
        )
        if passing - frozenset(fleet.names(fleet.deleting)) != wanted:
            raise SystemExit("error: the plugins let other nodes pass than was decided")
    return sorted(taken)


def _base(request: PlacementRequest) -> dict[str, Any]:
    """The base pod's requirements (domain.md section 7)."""
    demand = request.demand
    spec = {**TEMPLATE["spec"], "nodeSelector": dict(demand.requirements.selector)}
    expressions: list[dict[str, Any]] = [{"key": PLACEMENT_BLOCK_LABEL, "operator": "DoesNotExist"}]
    if demand.node_group is not None:
        expressions.append(
            {"key": NODE_GROUP_LABEL, "operator": "In", "values": [demand.node_group]}
        )
    return and_required({"metadata": {"name": "p"}, "spec": spec}, expressions=expressions)


def _body(node: NodeRecord) -> dict[str, Any]:
    """The Node as the API server would send it."""
    taints = [{"key": t.key, "value": t.value, "effect": t.effect} for t in node.taints]
    return {
        "metadata": {"name": node.name, "uid": node.uid, "labels": dict(node.labels)},
        "spec": {"taints": taints, "unschedulable": node.unschedulable},
    }
