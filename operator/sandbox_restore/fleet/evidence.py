"""Which CPU a snapshot was captured on, and how that is known (domain.md section 6)."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Final

from msgspec import Struct

from sandbox_restore.fleet import cpu as cpus
from sandbox_restore.fleet.index import FleetIndex
from sandbox_restore.model.sandbox import Snapshot

NODE_OLDER_THAN_CAPTURE: Final = timedelta(seconds=1)
"""`creationTimestamp` has whole seconds: of the same second, the node may be the younger one."""

_SHOWN: Final = 64
"""Characters of an unusable value that are quoted."""


class Evidence(StrEnum):
    """Where the capture CPU is known from, best first."""

    RECORDED = "recorded"
    UPLOADER_LABEL = "uploader-label"
    UPLOADER_HISTORY = "uploader-history"
    UNKNOWN = "unknown"


class CaptureEvidence(Struct, frozen=True, kw_only=True):
    """The capture CPU of one snapshot, its ancestors' CPUs, and what was noticed on the way."""

    kind: Evidence
    cpu: str | None
    ancestors: tuple[str, ...] = ()
    node: str | None = None
    """The uploading node, where it is the source of the answer."""
    notes: tuple[str, ...] = ()
    """What was recorded and could not be used, and why: for a log line and the status."""


def capture_evidence(snapshot: Snapshot, *, fleet: FleetIndex) -> CaptureEvidence:
    """Section 6: recorded, else the uploader's label, else its history, else unknown.

    `fleet` must be warm: a node that an empty index does not show is no evidence of anything. A
    fleet without a history has nothing to say under the third rule.
    """
    notes: list[str] = []
    ancestors = _ancestors(snapshot, notes=notes)
    recorded = cpus.recorded_cpu(snapshot.host_cpu)
    if recorded is not None:
        return CaptureEvidence(
            kind=Evidence.RECORDED, cpu=recorded, ancestors=ancestors, notes=tuple(notes)
        )
    if snapshot.host_cpu is not None:
        notes.append(
            f"recorded host CPU {snapshot.host_cpu[:_SHOWN]!r} counts as not recorded:"
            f" {cpus.why_unusable(snapshot.host_cpu)}"
        )
    kind = Evidence.UPLOADER_LABEL
    found = _uploader_label(snapshot, fleet=fleet, notes=notes)
    if found is None:
        kind = Evidence.UPLOADER_HISTORY
        found = _uploader_history(snapshot, fleet=fleet, notes=notes)
    if found is not None:
        return CaptureEvidence(
            kind=kind,
            cpu=found,
            ancestors=ancestors,
            node=snapshot.uploaded_by,
            notes=tuple(notes),
        )
    return CaptureEvidence(kind=Evidence.UNKNOWN, cpu=None, ancestors=ancestors, notes=tuple(notes))


def _ancestors(snapshot: Snapshot, *, notes: list[str]) -> tuple[str, ...]:
    """Section 4, lineage: the usable ancestor CPUs, once each, in the order recorded."""
    kept: dict[str, None] = {}
    for value in snapshot.ancestor_cpus:
        usable = cpus.recorded_cpu(value)
        if usable is None:
            notes.append(
                f"recorded ancestor CPU {value[:_SHOWN]!r} counts as not recorded:"
                f" {cpus.why_unusable(value)}"
            )
        else:
            kept[usable] = None
    return tuple(kept)


def _uploader_label(snapshot: Snapshot, *, fleet: FleetIndex, notes: list[str]) -> str | None:
    """Section 6 rule 2: the live label of the uploading node, if that Node is older.

    A replacement instance can reuse the name, and then its label says nothing of the capture.
    """
    if snapshot.uploaded_by is None:
        return None
    node = fleet.get(snapshot.uploaded_by)
    if node is None:
        notes.append(f"uploading node {snapshot.uploaded_by} is not in the fleet")
        return None
    if snapshot.captured_at is None:
        notes.append("the capture time is not recorded, so the uploading node may be younger")
        return None
    if node.created + NODE_OLDER_THAN_CAPTURE > snapshot.captured_at:
        notes.append(
            f"uploading node {node.name} was created at {node.created.isoformat()}, not before"
            f" the capture at {snapshot.captured_at.isoformat()}: another instance of that name"
        )
        return None
    found = cpus.usable(node.host_cpu_label)
    if found is None:
        notes.append(f"uploading node {node.name} has no usable host-CPU label")
    elif fleet.history is not None:
        then = fleet.history.carried(node.name, snapshot.captured_at).cpu
        if then not in (None, found):
            notes.append(
                f"the label of node {node.name} has changed since the capture, when it was {then}"
            )
    return found


def _uploader_history(snapshot: Snapshot, *, fleet: FleetIndex, notes: list[str]) -> str | None:
    """Section 6 rule 3 [beyond]: what that node name carried at capture time (section 12)."""
    if fleet.history is None or snapshot.uploaded_by is None or snapshot.captured_at is None:
        return None
    carried = fleet.history.carried(snapshot.uploaded_by, snapshot.captured_at)
    found = cpus.recorded_cpu(carried.cpu)
    if found is None and carried.why:
        notes.append(carried.why)
    return found
