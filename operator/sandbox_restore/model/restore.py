"""The custom resource SandboxRestore as Python records; the CRD file is generated from them.

Field documentation and bounds sit in `Annotated[..., Meta(...)]`, so that one place feeds the
decoder, the CRD schema and `kubectl explain`.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

LABEL_VALUE = r"^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
"""A label value that is not empty."""
SELECTOR_VALUE = r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$"
"""A label value; the empty one is allowed."""

SandboxId = Annotated[str, Meta(pattern=LABEL_VALUE, min_length=1, max_length=63)]
Time = Annotated[datetime, Meta(tz=True)]
"""A point in time with its zone: RFC 3339 on the wire, UTC by convention."""


class HostCpuPolicy(StrEnum):
    AUTO = "Auto"
    REQUIRED = "Required"
    IGNORE = "Ignore"


class Evacuation(Struct, frozen=True, kw_only=True, rename="camel"):
    """Moves the sandbox onto the nodes of one cohort. Immutable."""

    cohort: Annotated[
        str,
        Meta(
            pattern=LABEL_VALUE,
            min_length=1,
            max_length=63,
            description="Value of the node label space.pplx.net/cohort of the target nodes.",
        ),
    ]


class RestoreSpec(Struct, frozen=True, kw_only=True, rename="camel"):
    """What the user asks for."""

    sandbox_id: Annotated[
        SandboxId, Meta(description="The sandbox to restore; a row of this namespace. Immutable.")
    ]
    snapshot_id: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=253,
                description=(
                    "A full snapshot of this sandbox. Default: the newest ready one. Immutable."
                ),
            ),
        ]
        | UnsetType
    ) = UNSET
    host_cpu_policy: Annotated[
        HostCpuPolicy,
        Meta(
            description=(
                "Auto: keep off hosts that cannot load the snapshot while one that can is"
                " reachable. Required: only hosts that can. Ignore: never constrain. Immutable."
            )
        ),
    ] = HostCpuPolicy.AUTO
    node_selector: Annotated[
        dict[str, Annotated[str, Meta(pattern=SELECTOR_VALUE, max_length=63)]],
        Meta(
            max_length=32,
            description=(
                "Node labels that the restore pod needs as well. It only narrows: it cannot undo"
                " what the pod template or the sandbox requires. A change acts on the next attempt."
            ),
        ),
    ] = {}
    evacuation: Evacuation | UnsetType = UNSET
    backoff_limit: Annotated[
        int, Meta(ge=1, le=100, description="Attempts before the restore is marked failed.")
    ] = 4
    active_deadline_seconds: Annotated[
        int,
        Meta(
            ge=1,
            le=604800,
            description="Seconds the restore may take, time suspended not counted.",
        ),
    ] = 600
    ttl_seconds_after_finished: Annotated[
        int,
        Meta(
            ge=0,
            le=31536000,
            description="Seconds a finished restore is kept before it is deleted.",
        ),
    ] = 3600
    suspend: Annotated[
        bool, Meta(description="Begin no new attempt; a bound pod is left alone.")
    ] = False


class Condition(Struct, frozen=True, kw_only=True, rename="camel"):
    """One condition, as in metav1.Condition."""

    type: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=316,
            description="Planned, Placed, Succeeded, Stranded or Redirected.",
        ),
    ]
    status: Annotated[
        str, Meta(pattern="^(True|False|Unknown)$", description="True, False or Unknown.")
    ]
    observed_generation: Annotated[
        int, Meta(description="The metadata.generation this condition was decided for.")
    ] = 0
    last_transition_time: Annotated[Time, Meta(description="When the status last changed.")]
    reason: Annotated[
        str, Meta(min_length=1, max_length=1024, description="One word, for programs.")
    ]
    message: Annotated[
        str, Meta(max_length=32768, description="The same for people, with numbers.")
    ] = ""


class PlanStatus(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What is being restored, from where."""

    source: Annotated[str, Meta(description="storage, local or pod (follows a pod that runs).")] = (
        ""
    )
    snapshot_id: Annotated[str, Meta(description="The full snapshot chosen.")] = ""
    captured_at: (
        Annotated[Time, Meta(description="When that snapshot was captured.")] | UnsetType
    ) = UNSET
    node: Annotated[str, Meta(description="The node a local-only plan is bound to.")] = ""
    origin: Annotated[str, Meta(description="Where the plan came from, in words.")] = ""


class FilterCount(Struct, frozen=True, kw_only=True, rename="camel"):
    """How many nodes one filter removed, in the order in which the filters are applied."""

    filter: Annotated[str, Meta(description="What the filter removes, such as cordoned.")]
    removed: Annotated[int, Meta(description="Nodes removed by this filter.")]


class PlacementStatus(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The placement decision with its numbers."""

    capture_cpu: Annotated[
        str, Meta(description="CPU on which the snapshot was captured; empty when unknown.")
    ] = ""
    evidence: Annotated[
        str, Meta(description="recorded, uploader-label, uploader-history or unknown.")
    ] = ""
    decision: Annotated[str, Meta(description="Constrained, Unconstrained or Held.")] = ""
    reason: Annotated[str, Meta(description="Why this decision, one word.")] = ""
    gate: Annotated[
        bool, Meta(description="Whether placement by host CPU was on for this attempt.")
    ] = False
    policy: Annotated[str, Meta(description="The host CPU policy that was applied.")] = ""
    published: Annotated[
        list[str], Meta(description="CPUs published by any node, or held as published.")
    ] = []
    excluded: Annotated[
        list[str], Meta(description="Published CPUs that cannot load the snapshot, sorted.")
    ] = []
    loaders: Annotated[list[str], Meta(description="CPUs that can load the snapshot, sorted.")] = []
    nodes: Annotated[int, Meta(description="Nodes in the cache.")] = 0
    reachable: Annotated[int, Meta(description="Nodes the pod could go to, free or full.")] = 0
    reachable_loaders: Annotated[
        int, Meta(description="Reachable nodes whose label is a CPU that can load the snapshot.")
    ] = 0
    removed: Annotated[
        list[FilterCount], Meta(description="How many nodes each filter removed.")
    ] = []
    message: Annotated[str, Meta(description="The decision in one sentence.")] = ""


class AttemptStatus(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One attempt."""

    attempt: Annotated[int, Meta(description="Number of the attempt.")]
    pod: Annotated[str, Meta(description="Name of its pod.")] = ""
    node: Annotated[str, Meta(description="Node on which it ran.")] = ""
    cpu: Annotated[str, Meta(description="Host CPU of that node.")] = ""
    source: Annotated[str, Meta(description="storage or local.")] = ""
    outcome: Annotated[str, Meta(description="How it ended; empty while it goes on.")] = ""
    failure_class: Annotated[
        str, Meta(description="Class of the failure, such as cpu-incompatible.")
    ] = ""
    message: Annotated[str, Meta(description="What was reported, shortened.")] = ""
    started_at: Annotated[Time, Meta(description="When it began.")] | UnsetType = UNSET
    ended_at: Annotated[Time, Meta(description="When it ended.")] | UnsetType = UNSET


class RedirectCondition(Struct, frozen=True, kw_only=True, rename="camel"):
    """One of the seven conditions of a redirect."""

    name: Annotated[str, Meta(description="Name of the condition.")]
    met: Annotated[bool, Meta(description="Whether it holds.")]
    reason: Annotated[str, Meta(description="Why, one word.")] = ""
    message: Annotated[str, Meta(description="Why, in words.")] = ""


class RedirectStatus(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Whether a stranded local-only plan may switch to storage."""

    decision: Annotated[
        str,
        Meta(
            description="Redirect: the storage copy is used. Stay: the plan stays local."
            " WouldRedirect, WouldStay: the same with the gate off, observed only."
        ),
    ] = ""
    blocked_by: Annotated[str, Meta(description="Name of the first condition that is not met.")] = (
        ""
    )
    conditions: Annotated[
        list[RedirectCondition],
        Meta(description="All seven conditions, met or not; the first one not met decides."),
    ] = []


class RestoreStatus(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What the operator reports."""

    observed_generation: Annotated[
        int, Meta(description="The metadata.generation this status was made for.")
    ] = 0
    conditions: Annotated[list[Condition], Meta(description="Where the restore stands.")] = []
    plan: PlanStatus | UnsetType = UNSET
    placement: PlacementStatus | UnsetType = UNSET
    redirect: RedirectStatus | UnsetType = UNSET
    observed: (
        Annotated[
            PlacementStatus,
            Meta(description="What the gate would have decided (observe mode); nothing was done."),
        ]
        | UnsetType
    ) = UNSET
    attempts: Annotated[
        list[AttemptStatus], Meta(max_length=20, description="The newest attempts, oldest first.")
    ] = []
    failed_attempts: Annotated[
        int, Meta(description="Attempts that count against backoffLimit.")
    ] = 0
    pod_name: Annotated[str, Meta(description="The pod of the newest attempt.")] = ""
    node_name: Annotated[str, Meta(description="The node of that pod, once it is bound.")] = ""
    start_time: (
        Annotated[Time, Meta(description="When the operator took the restore up.")] | UnsetType
    ) = UNSET
    completion_time: (
        Annotated[Time, Meta(description="When the restore finished, either way.")] | UnsetType
    ) = UNSET
    suspended_at: (
        Annotated[Time, Meta(description="Since when the restore is suspended.")] | UnsetType
    ) = UNSET
    suspended_seconds: Annotated[
        int, Meta(description="Time spent suspended before that, in seconds.")
    ] = 0


class Restore(Struct, frozen=True, kw_only=True):
    """One SandboxRestore object as the operator sees it."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    generation: int
    created: datetime
    deleting: bool
    spec: RestoreSpec
    status: RestoreStatus

    def condition(self, kind: str) -> Condition | None:
        """The condition of that type, or None."""
        return next((c for c in self.status.conditions if c.type == kind), None)

    @property
    def finished(self) -> bool:
        """`Succeeded` is decided, either way."""
        found = self.condition("Succeeded")
        return found is not None and found.status in ("True", "False")
