"""What each alert is for, and what it must leave in peace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sandbox_restore.agent.state import Reason
from sandbox_restore.placement.gate import GateSettings
from tests.alerts.installation import (
    AGENT,
    AMD,
    INTEL,
    LEADER,
    NAMESPACE,
    OFF,
    Installation,
)
from tests.unit.fleet.nodes import node

Act = Callable[[Installation, int], None]
"""Done before each scrape while the case lasts; the number is that of the minute."""

HERE = {"namespace": NAMESPACE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fires:
    """A state that calls for a person."""

    alert: str
    what: str
    act: Act
    labels: dict[str, str]
    """Beside the severity."""
    summary: str
    window: int = 0
    """Minutes that the expression looks back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Silent:
    """A state that looks like it and does not."""

    alert: str
    what: str
    act: Act


@dataclass(slots=True)
class Cases:
    fires: list[Fires] = field(default_factory=list)
    silent: list[Silent] = field(default_factory=list)


CASES = Cases()


def fires(
    alert: str, what: str, act: Act, labels: dict[str, str], summary: str, *, window: int = 0
) -> None:
    CASES.fires.append(
        Fires(alert=alert, what=what, act=act, labels=labels, summary=summary, window=window)
    )


def silent(alert: str, what: str, act: Act) -> None:
    CASES.silent.append(Silent(alert=alert, what=what, act=act))


# --- stranded

STRANDED = "SandboxRestoreStranded"


def stranded(blocked_by: str, gate: GateSettings | None = None) -> Act:
    def act(here: Installation, _minute: int) -> None:
        here.leader.set_stranded({(INTEL, "PinnedNodeRefused", blocked_by): 3})
        if gate is not None:
            here.set_gate(gate)

    return act


fires(
    STRANDED,
    "a marker holds them",
    stranded("LocalArtifactMarker"),
    {
        **HERE,
        "capture_cpu": INTEL,
        "reason": "PinnedNodeRefused",
        "blocked_by": "LocalArtifactMarker",
    },
    "3 sandboxes are pinned to nodes that cannot load them (PinnedNodeRefused)",
)
for _gate, _named in (
    (OFF, "off"),
    (GateSettings(observe=True), "observed"),
    (GateSettings(enabled=True, percent=10), "on for a part"),
):
    fires(
        STRANDED,
        f"nothing holds them and the gate is {_named}",
        stranded("", _gate),
        {**HERE, "capture_cpu": INTEL, "reason": "PinnedNodeRefused"},
        "3 sandboxes are pinned to nodes that cannot load them (PinnedNodeRefused)",
    )
silent(STRANDED, "the next wake leaves the node", stranded(""))
silent(
    STRANDED,
    "others are stranded for 20 minutes now and then",
    lambda here, minute: here.leader.set_stranded(
        {(INTEL, "PinnedNodeGone", "NoStorageCopy"): 1} if minute % 30 < 20 else {}
    ),
)

# --- fleet

NO_LOADER = "SandboxRestoreCaptureCpuWithoutLoader"


def last_loader_leaves(here: Installation, _minute: int) -> None:
    here.has_snapshots({INTEL: 40, AMD: 7, "": 2}, published=(AMD,))


def last_loader_leaves_with_the_gate_off(here: Installation, minute: int) -> None:
    here.set_gate(OFF)
    last_loader_leaves(here, minute)


fires(
    NO_LOADER,
    "the last node of a CPU leaves",
    last_loader_leaves,
    {**HERE, "capture_cpu": INTEL},
    f"no node of the fleet can load the 40 snapshots captured on {INTEL}",
)
silent(NO_LOADER, "the gate is off", last_loader_leaves_with_the_gate_off)
silent(
    NO_LOADER,
    "capture CPUs are not recorded",
    lambda here, _minute: here.has_snapshots({"": 500}, published=(AMD,)),
)
silent(
    NO_LOADER,
    "a node is replaced within ten minutes",
    lambda here, minute: here.has_snapshots(
        {INTEL: 40}, published=(AMD,) if minute % 60 < 10 else (AMD, INTEL)
    ),
)

CIRCUIT = "SandboxRestoreCircuitOpen"
fires(
    CIRCUIT,
    "all loaders refuse",
    lambda here, _minute: here.leader.circuit_open.labels(INTEL).set(1),
    {**HERE, "capture_cpu": INTEL},
    f"every CPU that is said to load snapshots of {INTEL} refuses them",
)
silent(
    CIRCUIT,
    "one of several loaders refuses",
    lambda here, _minute: here.leader.circuit_open.labels(INTEL).set(0),
)

UNLABELLED = "SandboxRestoreNodeUnlabelled"


def unlabelled(here: Installation, _minute: int) -> None:
    here.has_nodes(node("n1", INTEL), node("n2"), node("n3", "Not-Canonical"))


def unlabelled_with_the_gate_off(here: Installation, minute: int) -> None:
    here.set_gate(OFF)
    unlabelled(here, minute)


fires(
    UNLABELLED,
    "nodes with slots have no usable label",
    unlabelled,
    HERE,
    "2 nodes take sandboxes and publish no host CPU",
)
silent(
    UNLABELLED,
    "a node takes no sandboxes",
    lambda here, _minute: here.has_nodes(node("n1", INTEL), node("system", network_slots=0)),
)
silent(UNLABELLED, "the gate is off", unlabelled_with_the_gate_off)

# --- operator

NO_LEADER = "SandboxRestoreNoLeader"


def nobody_leads(here: Installation, _minute: int) -> None:
    here.leader.leading.set(0)


def hands_over(here: Installation, minute: int) -> None:
    """Each hour another leads, and nobody for three minutes in between."""
    here.leader.leading.set(int(minute // 60 % 2 == 0 and minute % 60 > 2))
    here.standby.leading.set(int(minute // 60 % 2 == 1 and minute % 60 > 2))


fires(NO_LEADER, "all stand by", nobody_leads, HERE, "no operator holds the Lease")
fires(
    NO_LEADER,
    "no operator is there",
    lambda here, _minute: here.targets.clear(),
    {},
    "no operator holds the Lease",
)
silent(NO_LEADER, "one takes over from the other", hands_over)

DATABASE = "SandboxRestoreDatabaseUnreachable"
fires(
    DATABASE,
    "it does not answer the leader",
    lambda here, _minute: here.leader.set_connections(database=False, api_server=True),
    {**HERE, "pod": LEADER["pod"]},
    f"the operator {LEADER['pod']} cannot reach the database",
)
silent(
    DATABASE,
    "it fails over in two minutes",
    lambda here, minute: here.leader.set_connections(database=minute % 30 > 1, api_server=True),
)
silent(
    DATABASE,
    "only the API server is away",
    lambda here, _minute: here.leader.set_connections(database=True, api_server=False),
)

WATCH = "SandboxRestoreWatchStale"


def heard(seconds: float) -> Act:
    return lambda here, _minute: here.leader.watch_age.labels("pods").set(seconds)


fires(
    WATCH,
    "one of three is silent",
    heard(600),
    {**HERE, "pod": LEADER["pod"], "watch": "pods"},
    "the watch of pods was last heard of 10m 0s ago",
)
silent(WATCH, "a quiet cluster, asked anew each minute", heard(149))
silent(WATCH, "it has not begun", heard(-1))

ERRORS = "SandboxRestoreReconcileErrors"


def errors(kind: str, *, every: int = 1) -> Act:
    def act(here: Installation, minute: int) -> None:
        here.leader.reconcile_errors.labels(kind).inc(int(minute % every == 0))

    return act


fires(
    ERRORS,
    "a right is missing",
    errors("PermissionDeniedError"),
    {**HERE, "error": "PermissionDeniedError"},
    "15 passes in 15 minutes ended with PermissionDeniedError",
    window=15,
)
fires(
    ERRORS,
    "a fault of the operator",
    errors("KeyError"),
    {**HERE, "error": "KeyError"},
    "15 passes in 15 minutes ended with KeyError",
    window=15,
)
silent(ERRORS, "a server is away", errors("UnavailableError"))
silent(ERRORS, "others write too", errors("ConflictError"))
silent(ERRORS, "one now and then", errors("RejectedError", every=5))

HISTORY = "SandboxRestoreNodeHistoryNotWritten"
fires(
    HISTORY,
    "spans wait",
    lambda here, _minute: here.leader.history_waiting.set(12),
    LEADER,
    "the history of the nodes' CPUs cannot be read or written",
    window=15,
)
fires(
    HISTORY,
    "it was not read",
    lambda here, _minute: here.leader.history_read.set(0),
    LEADER,
    "the history of the nodes' CPUs cannot be read or written",
)
silent(
    HISTORY,
    "nodes come and go all the time",
    lambda here, minute: here.leader.history_waiting.set(40 if minute % 3 else 0),
)

# --- node agent


def agent_says(reason: Reason, *held: str) -> Act:
    return lambda here, _minute: here.agent_says(reason, held=held)


fires(
    "SandboxRestoreAgentUnlabelled",
    "the wait for a label is over",
    agent_says(Reason.ADVERTISED_UNLABELLED),
    {**AGENT, "reason": "AdvertisedUnlabelled"},
    f"the node of agent {AGENT['instance']} takes sandboxes and reads as unlabelled",
)
silent("SandboxRestoreAgentUnlabelled", "it still waits", agent_says(Reason.LABEL_WRITE_FAILED))
for _reason in (
    Reason.LABEL_WRITE_FAILED,
    Reason.CPU_UNKNOWN,
    Reason.PODS_UNKNOWN,
    Reason.SLOTS_STILL_SHOWN,
    Reason.KUBELET_UNREACHABLE,
):
    fires(
        "SandboxRestoreAgentWithoutSlots",
        _reason.value,
        agent_says(_reason),
        {**AGENT, "reason": _reason.value},
        f"the node of agent {AGENT['instance']} takes no sandboxes: {_reason.value}",
    )
for _reason in (Reason.LABEL_DIFFERS, Reason.RELABEL_HELD, Reason.NODE_ABSENT, Reason.NODE_UNREAD):
    silent("SandboxRestoreAgentWithoutSlots", _reason.value, agent_says(_reason, "a/b"))
silent(
    "SandboxRestoreAgentWithoutSlots",
    "the kubelet restarts",
    lambda here, minute: here.agent_says(
        Reason.KUBELET_UNREACHABLE if minute % 30 < 10 else Reason.PUBLISHED
    ),
)

fires(
    "SandboxRestoreAgentRelabelHeld",
    "two sandboxes hold it",
    agent_says(Reason.RELABEL_HELD, "a/b", "a/c"),
    AGENT,
    f"the node of agent {AGENT['instance']} waits for 2 sandboxes before it is relabelled",
)
silent(
    "SandboxRestoreAgentRelabelHeld",
    "they leave within the hour",
    lambda here, minute: here.agent_says(
        *(Reason.RELABEL_HELD,) if minute % 70 < 50 else (Reason.PUBLISHED,),
        held=("a/b",) if minute % 70 < 50 else (),
    ),
)
