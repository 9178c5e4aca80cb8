"""From wake to plan: which source a new attempt gets (domain.md section 14, steps 2 to 4). PURE."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from msgspec import UNSET

from sandbox_restore.model.restore import Restore
from sandbox_restore.model.sandbox import (
    Sandbox,
    SandboxView,
    Snapshot,
    SnapshotKind,
    SnapshotState,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoragePlan:
    """Restore from the snapshot's storage URI; any node may take it."""

    snapshot: Snapshot
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPlan:
    """Restore from what the pinned node holds; the pod can run only there."""

    node: str
    snapshot: Snapshot | None
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoPlan:
    """No attempt now; `final` ends the restore."""

    reason: str
    message: str
    final: bool


Choice = StoragePlan | LocalPlan | NoPlan

_NEVER = datetime.min.replace(tzinfo=UTC)


def choose(
    view: SandboxView, restore: Restore, *, storage_uri_prefixes: tuple[str, ...] = ()
) -> Choice:
    """Steps 2 to 4 of section 14 for a sandbox without an active execution."""
    row = view.sandbox
    named = restore.spec.snapshot_id
    fulls = [s for s in view.snapshots if s.kind is SnapshotKind.FULL]
    if named is not UNSET and not any(s.id == named for s in fulls):
        return NoPlan(
            reason="SnapshotUnavailable",
            message=f"sandbox {row.id} has no full snapshot {named}",
            final=True,
        )
    if row.pinned_node is not None:
        return LocalPlan(
            node=row.pinned_node,
            snapshot=_named(fulls, named) if named is not UNSET else newest_captured(fulls),
            origin=f"the sandbox is pinned to node {row.pinned_node}",
        )
    if named is not UNSET:
        return _from_named(_named(fulls, named), storage_uri_prefixes)
    return _from_newest(fulls, row, storage_uri_prefixes)


def _named(fulls: list[Snapshot], name: str) -> Snapshot:
    return next(s for s in fulls if s.id == name)


def newest_captured(fulls: Sequence[Snapshot]) -> Snapshot | None:
    """The newest, capture time unknown = newest; a failed upload's is still on its node."""
    return max(
        fulls, key=lambda s: (s.captured_at is None, s.captured_at or _NEVER, s.id), default=None
    )


def newest_ready(fulls: list[Snapshot]) -> Snapshot | None:
    """The newest ready full snapshot by capture time."""
    ready = [s for s in fulls if s.state is SnapshotState.READY and s.captured_at is not None]
    return max(ready, key=lambda s: (s.captured_at or _NEVER, s.id), default=None)


def _from_named(snapshot: Snapshot, prefixes: tuple[str, ...]) -> Choice:
    """The user named the snapshot: newer state is set aside, as section 14 allows for a row
    without the marker; a row with the marker is pinned and never comes here."""
    if snapshot.state is SnapshotState.UPLOADING:
        return _waiting(snapshot)
    if snapshot.state is SnapshotState.FAILED:
        return NoPlan(
            reason="SnapshotUnavailable",
            message=f"snapshot {snapshot.id} failed to upload",
            final=True,
        )
    return _storage(snapshot, prefixes, origin="named in spec.snapshotId")


def _from_newest(fulls: list[Snapshot], row: Sandbox, prefixes: tuple[str, ...]) -> Choice:
    snapshot = newest_ready(fulls)
    if snapshot is None:
        uploading = next((s for s in fulls if s.state is SnapshotState.UPLOADING), None)
        if uploading is not None:
            return _waiting(uploading)
        found = ", ".join(f"{s.id} {s.state}" for s in fulls) or "none"
        return NoPlan(
            reason="SnapshotUnavailable",
            message=(
                f"sandbox {row.id} is pinned to no node and has no ready full snapshot "
                f"(full snapshots: {found})"
            ),
            final=True,
        )
    behind = _behind(snapshot, fulls, row)
    if behind is not None:
        return behind
    return _storage(snapshot, prefixes, origin="newest ready full snapshot")


def is_newer(other: Snapshot, snapshot: Snapshot) -> bool:
    """Section 14: a capture time not yet known counts as newer."""
    if other.id == snapshot.id:
        return False
    if other.captured_at is None or snapshot.captured_at is None:
        return True
    return other.captured_at > snapshot.captured_at


def _behind(snapshot: Snapshot, fulls: list[Snapshot], row: Sandbox) -> NoPlan | None:
    """Section 14, second point: wait for, or refuse because of, state newer than the snapshot."""
    newer = [s for s in fulls if is_newer(s, snapshot)]
    for other in newer:
        if other.state is SnapshotState.UPLOADING:
            return _waiting(other)
    for other in newer:
        if other.state is SnapshotState.FAILED:
            return NoPlan(
                reason="NewerSnapshotFailed",
                message=(
                    f"snapshot {other.id} is newer than {snapshot.id} and failed; to restore the "
                    f"older state anyway, name it in spec.snapshotId"
                ),
                final=True,
            )
    for what, at in (("command", row.last_command_at), ("access", row.last_access_at)):
        if at is not None and (snapshot.captured_at is None or snapshot.captured_at < at):
            return NoPlan(
                reason="SnapshotBehindActivity",
                message=(
                    f"the last {what} was recorded at {at:%Y-%m-%d %H:%M:%S} UTC, after snapshot "
                    f"{snapshot.id} was captured; to restore the older state anyway, name it in "
                    f"spec.snapshotId"
                ),
                final=True,
            )
    return None


def _storage(snapshot: Snapshot, prefixes: tuple[str, ...], *, origin: str) -> Choice:
    if snapshot.storage_uri is None:
        return NoPlan(
            reason="SnapshotUnavailable",
            message=(
                f"snapshot {snapshot.id} has no storage URI and the sandbox is pinned to no node"
            ),
            final=True,
        )
    if prefixes and not snapshot.storage_uri.startswith(prefixes):
        return NoPlan(
            reason="SnapshotUnavailable",
            message=(
                f"the storage URI of snapshot {snapshot.id} is outside the configured prefixes "
                f"(SPACE_SANDBOX_RESTORE_STORAGE_URI_PREFIXES)"
            ),
            final=True,
        )
    return StoragePlan(snapshot=snapshot, origin=origin)


def _waiting(snapshot: Snapshot) -> NoPlan:
    return NoPlan(
        reason="WaitingForSnapshot",
        message=f"snapshot {snapshot.id} is still uploading",
        final=False,
    )
