"""What the planner sees, what it may order, and what it says of each restore. PURE."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sandbox_restore.model.names import (
    EXECUTION_ANNOTATION,
    HOST_CPU_LABEL,
    RESTORE_UID_LABEL,
)
from sandbox_restore.model.pod import PodFacts
from sandbox_restore.model.restore import PlanStatus, Restore
from sandbox_restore.model.sandbox import (
    Execution,
    Outcome,
    SandboxState,
    SandboxView,
    Snapshot,
    Source,
)
from sandbox_restore.restore.choose import LocalPlan, StoragePlan
from sandbox_restore.restore.giveup import Evidence
from sandbox_restore.restore.liveness import NodeSighting
from sandbox_restore.restore.pinned import Loaders
from sandbox_restore.restore.redirect import Redirect
from sandbox_restore.restore.rerender import Rerender


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerConfig:
    """The settings that the planner's rules use."""

    gone_grace: timedelta = timedelta(minutes=5)
    """How long a Node must be absent before it counts as gone (section 10)."""
    pod_grace_seconds: int = 30
    """The template's `terminationGracePeriodSeconds`: what a pod that is gone had (section 15)."""
    backoff_base: timedelta = timedelta(seconds=1)
    backoff_max: timedelta = timedelta(minutes=1)
    storage_uri_prefixes: tuple[str, ...] = ()
    """Storage URIs outside these are refused; empty = any."""
    observation_ttl: timedelta = timedelta(hours=24)
    """How long a refusal counts (section 11)."""
    drain_marks: tuple[str, ...] = ()
    """Taints or labels of a node that is being drained away (section 10)."""
    cpu_label: str = HOST_CPU_LABEL


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A placement that must wait (`hostCpuPolicy: Required`, cold cache), or can never be."""

    reason: str
    message: str
    final: bool = False
    """No pod can be rendered for this restore at all: it ends."""
    recheck_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One consistent view for one decision (section 14)."""

    now: datetime
    sandbox_id: str
    restores: tuple[Restore, ...]
    """Every SandboxRestore that names the sandbox, in whatever namespace."""
    view: SandboxView | None
    pods: tuple[PodFacts, ...] = ()
    """Its restore pods in the row's namespace, by label and by the active execution's name."""
    sightings: Mapping[str, NodeSighting] = field(default_factory=dict)
    gone_since: Mapping[str, datetime] = field(default_factory=dict)
    """Pod name to the time this process first saw it gone."""
    ended_pods: Mapping[str, PodFacts] = field(default_factory=dict)
    """Pods that are gone and whose last state was terminal with their kubelet's report, by name."""
    seen_terminal: Mapping[str, datetime] = field(default_factory=dict)
    """Pod UID to the time this process first saw the pod terminal."""
    namespace_uid: str | None = None
    """UID of the row's namespace; None: not read."""
    namespace_uids: Mapping[str, str] = field(default_factory=dict)
    """Restore UID to the UID of the namespace that it lives in, where the row asks for it."""
    gate_for: Callable[[Restore], bool] = lambda _restore: False
    """The gate for an attempt that begins now (section 5)."""
    observes: Callable[[Restore], bool] = lambda _restore: False
    """The gate is off and what it would do is told (section 5)."""
    hold_for: Callable[[Restore, StoragePlan | LocalPlan], Hold | None] = lambda _r, _c: None
    """Whether the pod of an attempt that begins now must wait, or can never be (section 8)."""
    capture_for: Callable[[Snapshot], str | None] = lambda _snapshot: None
    """The CPU on which a snapshot was captured, as far as is known (section 6)."""
    loaders_for: Callable[[Restore, Snapshot | None], Loaders] = lambda _r, _s: Loaders(warm=False)
    """The nodes that can load a snapshot (section 10, condition 1)."""
    redirect_wait: Callable[[], datetime | None] = lambda: None
    """When the fleet's rate limit lets the next redirect through; None: now."""
    rerender_for: Callable[[Restore, Execution, PodFacts], Rerender | None] = lambda _r, _e, _p: (
        None
    )
    """Whether an unbound pod is to be rendered again, and when (section 8)."""
    config: PlannerConfig = PlannerConfig()

    def pod_of(self, execution: Execution) -> PodFacts | None:
        """The execution's pod: by name, and by UID once that is recorded."""
        return next((p for p in self.pods if is_pod_of(p, execution)), None)


def is_pod_of(pod: PodFacts, execution: Execution) -> bool:
    """A pod re-created under the name of a recorded one is another pod."""
    return pod.name == execution.pod_name and execution.pod_uid in (None, pod.uid)


def is_made_for(pod: PodFacts, execution: Execution) -> bool:
    """Whether this operator made the pod for the execution, whatever a user has edited since."""
    if execution_of(pod) == execution.id or pod.uid == execution.pod_uid:
        return True
    uid = execution.restore_uid
    return uid is not None and (uid in pod.owner_uids or pod.labels.get(RESTORE_UID_LABEL) == uid)


def execution_of(pod: PodFacts) -> str | None:
    """The id of the execution the pod was made for."""
    return pod.annotations.get(EXECUTION_ANNOTATION)


# --- steps: one side effect each, in the order of section 15


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginAttempt:
    """Insert the execution, row `restoring`."""

    restore: Restore
    attempt: int
    source: Source
    snapshot: Snapshot | None
    target_node: str | None
    gate: bool
    clear_pin: bool = False
    """A redirect or an evacuation: the pin goes and is kept in the execution (section 10)."""
    redirect: Redirect | None = None
    """The conditions that let it through."""
    rate_limited: bool = False
    """It takes a place in the fleet's rate limit of redirects."""
    capture_cpu: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePod:
    """POST the one pod of an active execution, gated and fenced."""

    restore: Restore
    execution: Execution


@dataclass(frozen=True, slots=True, kw_only=True)
class Ungate:
    """Remove the gate; tests the pod's UID."""

    pod: PodFacts
    execution: Execution


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkLoaded:
    """The pod is Ready: execution gets pod and node, row `running`, pinned, marker set."""

    execution: Execution
    pod: PodFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Remove owner and finalizer in one patch; tests the pod's UID."""

    execution: Execution
    pod: PodFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkReleased:
    """Record that the pod has no owner and no finalizer any more."""

    execution: Execution
    pod: PodFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Retire:
    """Retire the active execution; the row's new state, pin and marker come with it."""

    execution: Execution
    outcome: Outcome
    row_state: SandboxState
    pinned_node: str | None
    marker: bool
    failure_class: str | None = None
    failure_message: str | None = None
    pod_uid: str | None = None
    node_name: str | None = None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUpMarker:
    """The give-up of section 10: the marker goes, and nothing else."""

    restore: Restore
    evidence: Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class FailRow:
    """A `restoring` row whose restore is finished or gone becomes `failed`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletePod:
    """DELETE with UID and resourceVersion as preconditions."""

    pod: PodFacts
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DropFinalizer:
    """Remove the fence from a pod whose execution is no longer active; tests the UID."""

    pod: PodFacts
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRestore:
    """A finished restore's time to live is over."""

    restore: Restore


Step = (
    BeginAttempt
    | CreatePod
    | Ungate
    | MarkLoaded
    | Release
    | MarkReleased
    | Retire
    | FailRow
    | GiveUpMarker
    | DeletePod
    | DropFinalizer
    | DeleteRestore
)

ROW_STEPS = (BeginAttempt, Retire, FailRow, GiveUpMarker)
"""Steps that are decided again and written under the row's lock."""
CONFIRMED_STEPS = (DeletePod, DropFinalizer, Ungate)
"""Steps that no stale view may order: decided again on a fresh view and live pods first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What is said of one restore: its `Succeeded` condition and what stands behind it."""

    succeeded: bool | None
    """None: not decided yet."""
    reason: str
    message: str
    plan: PlanStatus | None = None
    pod: PodFacts | None = None
    placed: tuple[bool, str, str] | None = None
    """Condition `Placed`: status, reason, message."""
    planned: bool | None = None
    """Condition `Planned`; None: leave as it is."""
    recheck_at: datetime | None = None
    redirect: Redirect | None = None
    """The seven conditions, where they were judged."""
    observed: bool = False
    """They were judged only to tell what the gate would do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The next step (at most one), what to say, and when time alone calls for another look."""

    step: Step | None
    said: Mapping[str, Said]
    """By restore UID."""
    recheck_at: datetime | None = None
