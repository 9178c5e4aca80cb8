"""Rows of the schema that the platform and the operator share (domain.md section 15)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from msgspec import Struct


class SandboxState(StrEnum):
    SUSPENDED = "suspended"
    RESTORING = "restoring"
    RUNNING = "running"
    FAILED = "failed"


class SnapshotState(StrEnum):
    UPLOADING = "uploading"
    READY = "ready"
    FAILED = "failed"


class SnapshotKind(StrEnum):
    FULL = "full"
    DIFF = "diff"


class Source(StrEnum):
    """Where an execution gets its state from."""

    STORAGE = "storage"
    LOCAL = "local"
    PLATFORM = "platform"
    """Started by the platform's own means (`execution_started`)."""


class ExecutionState(StrEnum):
    ACTIVE = "active"
    RETIRED = "retired"


class Outcome(StrEnum):
    """Why an execution was retired."""

    SUSPENDED = "suspended"
    FAILED = "failed"
    """The load failed; `failure_class` says how (section 11)."""
    LOST = "lost"
    """A pod that was, or may have been, running the sandbox ended without a suspend or a word."""
    SUPERSEDED = "superseded"
    """An unbound pod was deleted, another attempt takes its place; not counted in backoffLimit."""
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """One row of `sandbox`."""

    id: str
    namespace: str
    namespace_uid: str | None = None
    state: SandboxState = SandboxState.SUSPENDED
    node_group: str | None = None
    node_selector: Mapping[str, str] = field(default_factory=dict)
    pinned_node: str | None = None
    local_artifact_marker: bool = False
    last_command_at: datetime | None = None
    last_access_at: datetime | None = None
    restore_started_at: datetime | None = None
    version: int = 0
    """Rises with every change of the row, its snapshots or its executions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One row of `snapshot`."""

    id: str
    sandbox_id: str
    kind: SnapshotKind = SnapshotKind.FULL
    state: SnapshotState = SnapshotState.READY
    captured_at: datetime | None = None
    uploaded_by: str | None = None
    """Name of the node that uploaded it: the source node."""
    host_cpu: str | None = None
    """Capture CPU as recorded; may be non-canonical, read through `fleet.cpu`."""
    ancestor_cpus: tuple[str, ...] = ()
    storage_uri: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """One row of `execution`: one run of a sandbox in one pod."""

    id: str
    sandbox_id: str
    source: Source
    state: ExecutionState
    snapshot_id: str | None = None
    restore_uid: str | None = None
    restore_name: str | None = None
    attempt: int = 0
    pod_name: str | None = None
    pod_uid: str | None = None
    node_name: str | None = None
    node_uid: str | None = None
    node_cpu: str | None = None
    target_node: str | None = None
    """Local-only: the pinned node the pod must run on."""
    prior_pin: str | None = None
    """The row's pin before this attempt began."""
    gate: bool = False
    """The gate as evaluated when the attempt began (section 5)."""
    capture_cpu: str | None = None
    """Capture CPU of the snapshot as evaluated when the attempt began (section 6), if known."""
    outcome: Outcome | None = None
    failure_class: str | None = None
    failure_message: str | None = None
    created_at: datetime
    loaded_at: datetime | None = None
    suspended_at: datetime | None = None
    """When its VM was suspended, as the platform reported; set with outcome `suspended` only."""
    released_at: datetime | None = None
    retired_at: datetime | None = None

    @property
    def active(self) -> bool:
        return self.state is ExecutionState.ACTIVE


class LoadResult(StrEnum):
    """What a host did with a snapshot; only what is evidence about a CPU is kept (section 11)."""

    LOADED = "loaded"
    CPU_INCOMPATIBLE = "cpu-incompatible"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadObservation:
    """One row of `load_observation`: one host loaded, or refused, one snapshot (section 11)."""

    execution_id: str
    sandbox_id: str
    snapshot_id: str | None = None
    result: LoadResult
    capture_cpu: str | None = None
    node_name: str
    node_uid: str | None = None
    node_cpu: str | None = None
    observed_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCpuSpan:
    """One row of `node_cpu_history`: the CPU a Node (name and UID) carried, from when to when."""

    node_name: str
    node_uid: str
    host_cpu: str
    first_seen_at: datetime
    last_seen_at: datetime
    """The span holds from first to last seen, both included."""


class LeftPinned(Struct, frozen=True, gc=False, array_like=True):
    """A row that a restore left pinned, with what tells whether it is stranded (section 10).

    An array in JSON: there can be tens of thousands of them.
    """

    sandbox_id: str
    namespace: str
    pinned_node: str
    marker: bool
    failure_class: str | None
    """Of the newest execution."""
    node_name: str | None
    node_uid: str | None
    """The Node on which the newest execution ran."""
    retired_at: datetime | None
    snapshot_id: str | None
    """The newest ready full snapshot."""
    captured_at: datetime | None
    uploaded_by: str | None
    host_cpu: str | None
    ancestor_cpus: tuple[str, ...] | None
    in_storage: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLineage:
    """Ready full snapshots of one capture CPU and ancestry, counted."""

    capture_cpu: str | None
    """As recorded; None: not recorded."""
    ancestor_cpus: tuple[str, ...] = ()
    snapshots: int
    sandboxes: int
    """Sandboxes that have one of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredKind:
    """Sandboxes that only storage can bring back, and that need the same of a node: their newest
    ready full snapshot is in storage and has this lineage; they are not pinned to a node that
    stays."""

    capture_cpu: str | None
    ancestor_cpus: tuple[str, ...] = ()
    node_group: str | None = None
    node_selector: Mapping[str, str] = field(default_factory=dict)
    sandboxes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedThere:
    """A row pinned to one of some nodes, with what tells whether its state is safe."""

    sandbox_id: str
    namespace: str
    state: SandboxState
    pinned_node: str
    marker: bool
    in_storage: bool
    """Its newest full snapshot is ready in storage, and holds its last command and access."""
    node_group: str | None = None
    node_selector: Mapping[str, str] = field(default_factory=dict)
    lineage: tuple[str, ...] = ()
    """Of one that runs: the capture CPUs of the snapshots it descends from, as recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxView:
    """One consistent view of a sandbox: its row, full and diff snapshots, and executions."""

    sandbox: Sandbox
    snapshots: tuple[Snapshot, ...] = ()
    active: Execution | None = None
    newest: Execution | None = None
    """The newest execution, active or retired."""
    newest_loaded: Execution | None = None
    """The newest execution known to have loaded, active or retired (section 10, give-ups)."""
    attempts: tuple[Execution, ...] = ()
    """Executions of the sandbox's open restores (by the restore UIDs asked for), oldest first."""
    refusals: tuple[LoadObservation, ...] = ()
    """Hosts that refused a snapshot of this sandbox for its CPU, newest first, 64 at most."""
