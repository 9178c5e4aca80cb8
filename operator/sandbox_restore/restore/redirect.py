"""May a stranded local-only plan switch to the storage copy? (domain.md section 10) PURE.

Seven conditions, one function each; the first that is not met is the reason shown. They are judged
on records alone, so that the same look can be taken again under the row's lock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sandbox_restore.model.sandbox import (
    Execution,
    Sandbox,
    SandboxState,
    SandboxView,
    Snapshot,
    SnapshotKind,
    SnapshotState,
)
from sandbox_restore.restore.blocked import ADVICE, Reason
from sandbox_restore.restore.choose import is_newer
from sandbox_restore.restore.liveness import Verdict
from sandbox_restore.restore.pinned import Loaders, PinnedNode


class Name(StrEnum):
    """The conditions, in the order in which they are judged and shown."""

    PINNED_NODE_CANNOT_LOAD = "PinnedNodeCannotLoad"
    PLAN_NOT_FROM_POD = "PlanNotFromPod"
    NO_POD_MAY_BE_ALIVE = "NoPodMayBeAlive"
    NO_LOCAL_ARTIFACT = "NoLocalArtifact"
    COVERS_ACTIVITY = "SnapshotCoversActivity"
    NO_NEWER_SNAPSHOT = "NoNewerSnapshot"
    NO_CAPTURE_SINCE = "NoCaptureSinceRestoreBegan"


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One condition, judged."""

    name: Name
    met: bool
    reason: str
    """A `Reason` where it is not met."""
    message: str

    @property
    def with_advice(self) -> str:
        """What is not met, and what a person can do about it."""
        return (
            f"{self.message} (condition {list(Name).index(self.name) + 1} of {len(Name)}, "
            f"{self.name}). What to do: {ADVICE[Reason(self.reason)]}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that the conditions are judged on."""

    row: Sandbox
    fulls: tuple[Snapshot, ...]
    """The sandbox's full snapshots."""
    snapshot: Snapshot | None
    """The one that a storage plan would take: `ready` and with a storage URI."""
    pinned: PinnedNode
    loaders: Loaders
    active: Execution | None = None
    alive: Verdict | None = None
    """A pod of the sandbox that could be hosting a live VM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Redirect:
    """The answer: all seven conditions, whether stranded, and the storage copy."""

    conditions: tuple[Condition, ...]
    pinned: PinnedNode
    snapshot: Snapshot | None
    node: str
    """The pinned node."""

    @property
    def blocker(self) -> Condition | None:
        """The first condition that is not met."""
        return next((c for c in self.conditions if not c.met), None)

    @property
    def allowed(self) -> bool:
        """The plan may switch to storage."""
        return self.snapshot is not None and self.blocker is None

    @property
    def stranded(self) -> bool:
        """The pinned node cannot load what the sandbox would be restored from, and the plan has
        to stay there."""
        return self.pinned.cannot_load and not self.allowed

    @property
    def words(self) -> str:
        """One sentence for a person; the conditions tell the rest."""
        blocker = self.blocker
        if blocker is None:
            return f"{self.pinned.message}; the storage copy is used"
        if not self.pinned.cannot_load:
            return blocker.message
        return (
            f"the sandbox is pinned to node {self.node}, which cannot load it "
            f"({self.pinned.reason}), and may not leave it ({blocker.reason})"
        )


def evaluate(facts: Facts) -> Redirect:
    """All seven, each judged by itself."""
    return Redirect(
        conditions=tuple(judge(facts) for judge in CONDITIONS),
        pinned=facts.pinned,
        snapshot=facts.snapshot,
        node=facts.row.pinned_node or "",
    )


# --- condition 1


def pinned_node_cannot_load(facts: Facts) -> Condition:
    """1: the pinned node cannot load the snapshot, and a reachable node that can exists."""
    name, pinned, loaders = Name.PINNED_NODE_CANNOT_LOAD, facts.pinned, facts.loaders
    if not pinned.cannot_load:
        return Condition(name=name, met=False, reason=pinned.reason, message=pinned.message)
    if facts.snapshot is None:
        return _unmet(name, Reason.NO_STORAGE_COPY, "no ready full snapshot is in storage")
    what = f"snapshot {facts.snapshot.id}"
    if loaders.capture_cpu is None:
        return _unmet(
            name,
            Reason.CAPTURE_CPU_UNKNOWN,
            f"the CPU on which {what} was captured is not known, so that no node is known to load "
            "it",
        )
    if loaders.able == 0:
        return _unmet(
            name,
            Reason.NO_REACHABLE_LOADER,
            f"none of {nodes(loaders.reachable)} can load {what}; it takes one with CPU "
            f"{' or '.join(sorted(loaders.known))}",
        )
    return _met(name, pinned.reason, f"{pinned.message}; {nodes(loaders.able)} can load it")


# --- conditions 2 to 7


def plan_not_from_pod(facts: Facts) -> Condition:
    """2: the plan did not come from the active execution's pod."""
    active = facts.active
    if active is None:
        return _met(Name.PLAN_NOT_FROM_POD, "NoActiveExecution", "no earlier attempt is under way")
    return _unmet(
        Name.PLAN_NOT_FROM_POD,
        Reason.PLAN_FROM_POD,
        f"the plan comes from pod {active.pod_name}, whose attempt is not over",
    )


def no_pod_may_be_alive(facts: Facts) -> Condition:
    """3: no pod of the sandbox could be hosting a live VM (section 15)."""
    if facts.alive is None:
        return _met(
            Name.NO_POD_MAY_BE_ALIVE, "NoPod", "no pod of the sandbox could still run its VM"
        )
    return _unmet(Name.NO_POD_MAY_BE_ALIVE, Reason.PREVIOUS_POD_MAY_BE_ALIVE, facts.alive.why)


def no_local_artifact(facts: Facts) -> Condition:
    """4: the sandbox has no local artifact marker."""
    node = facts.row.pinned_node
    if not facts.row.local_artifact_marker:
        return _met(
            Name.NO_LOCAL_ARTIFACT, "NoMarker", f"nothing is recorded that only node {node} holds"
        )
    return _unmet(
        Name.NO_LOCAL_ARTIFACT,
        Reason.LOCAL_ARTIFACT_MARKER,
        f"node {node} may hold state that exists nowhere else",
    )


def covers_activity(facts: Facts) -> Condition:
    """5: captured at or after the last recorded command and the last recorded access."""
    name, snapshot = Name.COVERS_ACTIVITY, facts.snapshot
    if snapshot is None or snapshot.captured_at is None:
        return _unmet(name, Reason.NO_STORAGE_COPY, "no ready full snapshot is in storage")
    for what, at in (("command", facts.row.last_command_at), ("access", facts.row.last_access_at)):
        if at is not None and snapshot.captured_at < at:
            return _unmet(
                name,
                Reason.SNAPSHOT_BEHIND_ACTIVITY,
                f"the last {what} was recorded at {at:%Y-%m-%d %H:%M:%S} UTC, after snapshot "
                f"{snapshot.id} was captured at {snapshot.captured_at:%Y-%m-%d %H:%M:%S} UTC",
            )
    return _met(
        name,
        "Covered",
        f"snapshot {snapshot.id} holds the last recorded command and access: it was captured at "
        f"{snapshot.captured_at:%Y-%m-%d %H:%M:%S} UTC",
    )


def no_newer_snapshot(facts: Facts) -> Condition:
    """6: no newer full snapshot is still uploading or has failed."""
    name, snapshot = Name.NO_NEWER_SNAPSHOT, facts.snapshot
    newer = [
        s
        for s in facts.fulls
        if s.state is not SnapshotState.READY and (snapshot is None or is_newer(s, snapshot))
    ]
    if not newer:
        return _met(name, "NoneNewer", "no newer full snapshot is uploading or has failed")
    first = next((s for s in newer if s.state is SnapshotState.UPLOADING), newer[0])
    uploading = first.state is SnapshotState.UPLOADING
    return _unmet(
        name,
        Reason.NEWER_SNAPSHOT_UPLOADING if uploading else Reason.NEWER_SNAPSHOT_FAILED,
        f"newer snapshot {first.id} {'is still uploading' if uploading else 'has failed'}",
    )


def no_capture_since(facts: Facts) -> Condition:
    """7: for a row in state `restoring`, no full snapshot was captured after the restore began."""
    name, began, state = Name.NO_CAPTURE_SINCE, facts.row.restore_started_at, facts.row.state
    if state is not SandboxState.RESTORING or began is None:
        return _met(name, "NotRestoring", f"the sandbox is {state}, not in the middle of a restore")
    since = next(
        (s for s in facts.fulls if s.captured_at is not None and s.captured_at > began), None
    )
    if since is None:
        return _met(
            name,
            "NoneCaptured",
            f"nothing was captured since the restore began at {began:%Y-%m-%d %H:%M:%S} UTC",
        )
    return _unmet(
        name,
        Reason.CAPTURED_SINCE_RESTORE_BEGAN,
        f"snapshot {since.id} was captured after the restore began at "
        f"{began:%Y-%m-%d %H:%M:%S} UTC: somebody ran this sandbox meanwhile",
    )


CONDITIONS: Final[tuple[Callable[[Facts], Condition], ...]] = (
    pinned_node_cannot_load,
    plan_not_from_pod,
    no_pod_may_be_alive,
    no_local_artifact,
    covers_activity,
    no_newer_snapshot,
    no_capture_since,
)


def _met(name: Name, reason: str, message: str) -> Condition:
    return Condition(name=name, met=True, reason=reason, message=message)


def _unmet(name: Name, reason: Reason, message: str) -> Condition:
    return Condition(name=name, met=False, reason=reason, message=message)


def nodes(count: int) -> str:
    """A number of reachable nodes, in words."""
    return f"{count} reachable node{'' if count == 1 else 's'}"


def storage_copy(
    fulls: tuple[Snapshot, ...], named: str | None, *, prefixes: tuple[str, ...]
) -> Snapshot | None:
    """The snapshot of section 14 where it is `ready` and in storage: the named one, else the
    newest ready full one."""
    ready = [s for s in fulls if s.state is SnapshotState.READY and s.captured_at is not None]
    if named is not None:
        ready = [s for s in ready if s.id == named]
    found = max(ready, key=lambda s: (s.captured_at, s.id), default=None)
    uri = found.storage_uri if found is not None else None
    if uri is None or (prefixes and not uri.startswith(prefixes)):
        return None
    return found


def full_snapshots(view: SandboxView) -> tuple[Snapshot, ...]:
    """The sandbox's full snapshots."""
    return tuple(s for s in view.snapshots if s.kind is SnapshotKind.FULL)
