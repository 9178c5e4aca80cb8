"""Which of the rows that restores left pinned are stranded (domain.md section 10). PURE."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from sandbox_restore.fleet.compatibility import Compatibility
from sandbox_restore.fleet.evidence import capture_evidence
from sandbox_restore.fleet.index import FleetIndex
from sandbox_restore.model.sandbox import LeftPinned, Snapshot
from sandbox_restore.restore.blocked import Reason
from sandbox_restore.restore.failure import FailureClass


class Why(StrEnum):
    """Why a pinned node cannot load the newest snapshot; the words of condition 1."""

    REFUSED = "PinnedNodeRefused"
    CPU = "PinnedNodeCpuIncompatible"
    GONE = "PinnedNodeGone"


@dataclass(frozen=True, slots=True, kw_only=True)
class StrandedRow:
    """A sandbox that the node it is pinned to cannot load."""

    sandbox_id: str
    namespace: str
    node: str
    why: Why
    capture_cpu: str | None
    marker: bool
    blocked_by: str = ""
    """A `Reason` that keeps its next wake from leaving the node, as far as the row alone tells;
    empty: none is known."""


def stranded_rows(
    rows: Iterable[LeftPinned],
    fleet: FleetIndex,
    compatibility: Compatibility,
    *,
    now: datetime,
    gone_grace: timedelta,
    observation_ttl: timedelta,
) -> list[StrandedRow]:
    """The rows whose pinned node cannot load the newest ready snapshot.

    For metrics and people: judged on the index as it is, which follows the API server by seconds,
    and on the newest execution. A redirect judges anew, on live reads (`redirect.evaluate`).
    """
    if not fleet.warm:
        return []
    found: list[StrandedRow] = []
    known: dict[tuple[str, tuple[str, ...]], frozenset[str]] = {}
    for row in rows:
        cpu, ancestors = _captured_on(row, fleet)
        loaders: frozenset[str] | None = None
        if cpu is not None:
            lineage = (cpu, ancestors)
            if lineage not in known:
                known[lineage] = compatibility.known_loaders(cpu, ancestors)
            loaders = known[lineage]
        why = _why(
            row, fleet, loaders, now=now, gone_grace=gone_grace, observation_ttl=observation_ttl
        )
        if why is not None:
            found.append(
                StrandedRow(
                    sandbox_id=row.sandbox_id,
                    namespace=row.namespace,
                    node=row.pinned_node,
                    why=why,
                    capture_cpu=cpu,
                    marker=row.marker,
                    blocked_by=_blocked_by(row, cpu),
                )
            )
    return found


def by_reason(rows: Iterable[StrandedRow]) -> Mapping[tuple[str, str, str], int]:
    """How many are stranded, by capture CPU (empty: unknown), reason and what blocks a redirect."""
    counted: dict[tuple[str, str, str], int] = {}
    for row in rows:
        key = (row.capture_cpu or "", row.why.value, row.blocked_by)
        counted[key] = counted.get(key, 0) + 1
    return counted


def _blocked_by(row: LeftPinned, capture_cpu: str | None) -> str:
    """Of the conditions of section 10, in their order, those that the row alone answers."""
    if row.snapshot_id is None or not row.in_storage:
        return Reason.NO_STORAGE_COPY.value
    if capture_cpu is None:
        return Reason.CAPTURE_CPU_UNKNOWN.value
    return Reason.LOCAL_ARTIFACT_MARKER.value if row.marker else ""


def _captured_on(row: LeftPinned, fleet: FleetIndex) -> tuple[str | None, tuple[str, ...]]:
    if row.snapshot_id is None:
        return None, ()
    evidence = capture_evidence(
        Snapshot(
            id=row.snapshot_id,
            sandbox_id=row.sandbox_id,
            captured_at=row.captured_at,
            uploaded_by=row.uploaded_by,
            host_cpu=row.host_cpu,
            ancestor_cpus=row.ancestor_cpus or (),
        ),
        fleet=fleet,
    )
    return evidence.cpu, evidence.ancestors


def _why(
    row: LeftPinned,
    fleet: FleetIndex,
    loaders: frozenset[str] | None,
    *,
    now: datetime,
    gone_grace: timedelta,
    observation_ttl: timedelta,
) -> Why | None:
    node = fleet.get(row.pinned_node)
    if node is None:
        since = fleet.absent_since(row.pinned_node, None, now=now)
        return Why.GONE if since is not None and now >= since + gone_grace else None
    if (
        row.failure_class == FailureClass.CPU_INCOMPATIBLE.value
        and (row.node_name, row.node_uid) == (node.name, node.uid)
        and row.retired_at is not None
        and row.retired_at >= now - observation_ttl
    ):
        return Why.REFUSED
    cpu = node.cpu
    if cpu is not None and loaders is not None and cpu not in loaders:
        return Why.CPU
    return None
