"""Nodes and fleets for tests, short to write down."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from sandbox_restore.fleet.history import NodeHistory
from sandbox_restore.fleet.index import FleetIndex
from sandbox_restore.model import names
from sandbox_restore.model.node import NodeFacts, Taint
from sandbox_restore.model.sandbox import NodeCpuSpan

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
LONG_AGO = NOW - timedelta(days=30)

INTEL_A = "intel-6-106-6"
INTEL_B = "intel-6-143-8"
AMD = "amd-25-17-1"
ARM = "arm-41-d40-r1p1"


def node(
    name: str,
    cpu: str | None = None,
    *,
    group: str | None = None,
    cohort: str | None = None,
    blocked: bool = False,
    taints: Iterable[tuple[str, str, str]] = (),
    labels: Mapping[str, str] | None = None,
    services: bool = True,
    uid: str | None = None,
    created: datetime = LONG_AGO,
    **facts: Any,
) -> NodeFacts:
    """A node, ready and open unless told otherwise; `cpu` is its host-CPU label."""
    ours = {
        names.HOST_CPU_LABEL: cpu,
        names.NODE_GROUP_LABEL: group,
        names.COHORT_LABEL: cohort,
        names.PLACEMENT_BLOCK_LABEL: "" if blocked else None,
    }
    found = dict(labels or {}) | {key: value for key, value in ours.items() if value is not None}
    return NodeFacts(
        **{
            "name": name,
            "uid": uid or f"uid-of-{name}",
            "created": created,
            "labels": found,
            "taints": tuple(Taint(*taint) for taint in taints),
            "ready": True,
            "ready_since": created,
            "services_ready": services,
            "network_slots": 8,
            **facts,
        }
    )


def fleet(
    *nodes: NodeFacts, warm: bool = True, now: datetime = LONG_AGO, **options: Any
) -> FleetIndex:
    """An index with these nodes, taken in at `now`."""
    index = FleetIndex(**options)
    if warm:
        index.replace(nodes, now=now)
    else:
        for facts in nodes:
            index.apply(facts, now=now)
    return index


def span(
    name: str,
    cpu: str,
    *,
    first: datetime = LONG_AGO,
    last: datetime = NOW,
    uid: str | None = None,
) -> NodeCpuSpan:
    """One span of the node history."""
    return NodeCpuSpan(
        node_name=name,
        node_uid=uid or f"uid-of-{name}",
        host_cpu=cpu,
        first_seen_at=first,
        last_seen_at=last,
    )


def history(
    *spans: NodeCpuSpan, known_after: datetime = datetime(1970, 1, 1, tzinfo=UTC), **options: Any
) -> NodeHistory:
    """A node history that has read these spans."""
    found = NodeHistory(**options)
    found.load(spans, known_after=known_after)
    return found
