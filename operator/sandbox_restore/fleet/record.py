"""What the fleet index keeps of a node, and what it says when that changes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from enum import IntFlag, auto
from typing import Final

from msgspec import Struct

from sandbox_restore.fleet import cpu as cpus
from sandbox_restore.model.names import OUT_OF_SERVICE_TAINT
from sandbox_restore.model.node import Taint


class NodeRecord(Struct, frozen=True, gc=False, kw_only=True):
    """One node of the fleet, slim; it never changes, a new event makes a new record.

    `gc=False`: 100,000 of these need no visit by the garbage collector, for they hold strings,
    numbers and tuples of them, and so cannot be part of a cycle.
    """

    name: str
    uid: str
    created_at: float
    """Seconds since the epoch: half of what a datetime takes."""
    label_keys: tuple[str, ...]
    """Sorted; one tuple is shared by all nodes with the same keys."""
    label_values: tuple[str, ...]
    taints: tuple[Taint, ...]
    unschedulable: bool
    deleting: bool
    ready: bool
    ready_at: float | None
    services_ready: bool
    network_slots: int
    host_cpu_label: str | None
    """The host-CPU label as it stands, usable or not (section 3)."""
    slot: int
    """The node's position in the index's bitmaps while it is in the index."""

    @property
    def created(self) -> datetime:
        """`metadata.creationTimestamp`, UTC."""
        return datetime.fromtimestamp(self.created_at, UTC)

    @property
    def ready_since(self) -> datetime | None:
        """Last transition of condition `Ready`, when it is `True`."""
        return None if self.ready_at is None else datetime.fromtimestamp(self.ready_at, UTC)

    @property
    def labels(self) -> Mapping[str, str]:
        return dict(zip(self.label_keys, self.label_values, strict=True))

    @property
    def cpu(self) -> str | None:
        """The CPU that the label names, None when it names none (section 3)."""
        return cpus.usable(self.host_cpu_label)

    @property
    def out_of_service(self) -> bool:
        """A person has declared the node dead (section 15)."""
        return any(taint.key == OUT_OF_SERVICE_TAINT for taint in self.taints)


class Aspect(IntFlag):
    """What about a node changed."""

    ADDED = auto()
    REMOVED = auto()
    REPLACED = auto()
    """Another Node object (UID) under the same name."""
    LABELS = auto()
    HOST_CPU = auto()
    TAINTS = auto()
    CORDON = auto()
    DELETING = auto()
    SERVICES = auto()
    READY = auto()
    SLOTS = auto()


# Numbers beside the flags: an operation on a flag costs as much as taking in a whole change.
ADDED: Final[int] = Aspect.ADDED.value
REMOVED: Final[int] = Aspect.REMOVED.value
REPLACED: Final[int] = Aspect.REPLACED.value
LABELS: Final[int] = Aspect.LABELS.value
HOST_CPU: Final[int] = Aspect.HOST_CPU.value
TAINTS: Final[int] = Aspect.TAINTS.value
CORDON: Final[int] = Aspect.CORDON.value
DELETING: Final[int] = Aspect.DELETING.value
SERVICES: Final[int] = Aspect.SERVICES.value
READY: Final[int] = Aspect.READY.value
SLOTS: Final[int] = Aspect.SLOTS.value

_JUDGED: Final = ~(READY | SLOTS)


class NodeChange(Struct, frozen=True, gc=False, kw_only=True):
    """One change of one node, before and after."""

    aspects: int
    """`what` as a number."""
    before: NodeRecord | None
    after: NodeRecord | None
    label_keys: tuple[str, ...] = ()
    """Label keys that were added, removed or given another value."""
    cpu_values_changed: bool = False
    """A host-CPU label value was seen on its first node, or left its last one."""

    @property
    def what(self) -> Aspect:
        return Aspect(self.aspects)

    @property
    def name(self) -> str:
        record = self.after or self.before
        return record.name if record is not None else ""

    @property
    def matters(self) -> bool:
        """Whether any placement decision can depend on it: readiness and slots are not judged."""
        return self.aspects & _JUDGED != 0

    @property
    def only_services(self) -> bool:
        """Of what decisions depend on, only the readiness of the node's services has changed."""
        return self.aspects & _JUDGED == SERVICES
