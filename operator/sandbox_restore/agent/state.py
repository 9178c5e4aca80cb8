"""What the node agent looks at, and what it decides to do: records of the planner (section 13)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from sandbox_restore.agent.detect import Detection


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A condition of the Node, as far as a change is told from none."""

    status: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSeen:
    """The Node object, read now."""

    name: str
    uid: str
    labels: Mapping[str, str] = field(default_factory=dict)
    slots_shown: int = 0
    """Allocatable network slots in its status."""
    deleting: bool = False
    condition: Condition | None = None
    """Our own condition on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubelet:
    """What the kubelet of this node has been told."""

    slots: int = 0
    """Devices offered to it now; 0: none."""
    registered: bool = False
    """It has our registration since its last start."""
    problem: str = ""
    """Why the last try to register failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One look: everything a decision is made from."""

    detection: Detection
    node: NodeSeen | None
    """None: there is no such Node, or it could not be read."""
    node_unread: str = ""
    """Why the Node could not be read; empty with no node: there is none."""
    kubelet: Kubelet = Kubelet()
    ended_pods: tuple[str, ...] | None = ()
    """Sandbox pods that the change of the label would end; None: they could not be listed."""
    pods_unread: str = ""
    write_failed: str = ""
    """Why the last write of the label failed; empty when it did not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """The settings that decisions depend on."""

    key: str
    slots: int
    patience: float | None
    """Seconds that the slots wait for a label; None: for ever."""
    force_relabel: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Since when, in seconds of any steady clock, which Node object has had no label."""

    uid: str
    since: float


class Step(StrEnum):
    """At most one a look."""

    NONE = "none"
    TAKE_SLOTS = "take-slots"
    """Tell the kubelet that there are no slots; register with it first if need be."""
    WRITE_LABEL = "write-label"
    """Write the label of the plan, or take it off when the plan has none."""
    ADVERTISE = "advertise"
    """Register with the kubelet and offer the slots."""


class Reason(StrEnum):
    """What holds the node up, or that nothing does: the reason of the condition."""

    PUBLISHED = "Published"
    LABEL_DIFFERS = "LabelDiffers"
    """On the way: slots are being taken away, or the label is being written."""
    SLOTS_STILL_SHOWN = "SlotsStillShown"
    LABEL_WRITE_FAILED = "LabelWriteFailed"
    RELABEL_HELD = "RelabelHeld"
    PODS_UNKNOWN = "PodsUnknown"
    CPU_UNKNOWN = "CpuUnknown"
    ADVERTISED_UNLABELLED = "AdvertisedUnlabelled"
    KUBELET_UNREACHABLE = "KubeletUnreachable"
    NODE_ABSENT = "NodeAbsent"
    NODE_UNREAD = "NodeUnread"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The next step, why, and what to tell."""

    step: Step
    reason: Reason
    message: str
    label: str | None = None
    """For WRITE_LABEL: the new value; None takes the label off."""
    waiting: Waiting | None = None
    """To be handed back at the next look."""
    look_again: float | None = None
    """Seconds after which time alone changes the answer."""
    condition: Condition | None = None
    """What the Node's condition should say; None: leave it as it is."""
    warn: bool = False
    """A person should look: the event is a Warning."""
    event: bool = False
    """The reason is worth an Event when it was another before."""
