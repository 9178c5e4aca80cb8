"""`why`: what is told of one restore in each state it can be in."""

from __future__ import annotations

import ast
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from sandbox_restore.model.names import HOST_CPU_LABEL, NODE_GROUP_LABEL
from sandbox_restore.model.pod import PodFacts
from sandbox_restore.model.restore import (
    Condition,
    Evacuation,
    PlacementStatus,
    PlanStatus,
    RedirectCondition,
    RedirectStatus,
    Restore,
)
from sandbox_restore.report.advice import ADVICE
from sandbox_restore.report.why import Answer, Fleet, State, why
from sandbox_restore.restore.blocked import ADVICE as BLOCKED
from sandbox_restore.restore.blocked import Reason
from tests.support import builders as b

ICE, BROADWELL = "intel-6-106-6", "intel-6-79-1"
ROOT = Path(__file__).parents[3] / "operator" / "sandbox_restore"


def condition(kind: str, status: str, reason: str, message: str = "so it is") -> Condition:
    return Condition(
        type=kind,
        status=status,
        reason=reason,
        message=message,
        last_transition_time=b.ago(120),
    )


def restore(status: str = "Unknown", reason: str = "Unschedulable", **more: Any) -> Restore:
    spec = more.pop("spec", {})
    fields = {
        "observed_generation": 1,
        "conditions": [condition("Succeeded", status, reason)],
        "placement": PlacementStatus(
            capture_cpu=ICE,
            evidence="recorded",
            decision="Constrained",
            reason="LoaderReachable",
            loaders=[ICE],
            excluded=[BROADWELL],
            message="1 of 2 published CPUs can load it.",
        ),
        **more,
    }
    return b.restore(status=fields, **spec)


def fleet(**states: Any) -> Fleet:
    nodes = [
        b.node(name, labels={HOST_CPU_LABEL: ICE, **fields.pop("labels", {})}, **fields)
        for name, fields in states.items()
    ]
    return Fleet(nodes=nodes, cpu_label=HOST_CPU_LABEL, drain_marks=("space.pplx.net/draining",))


def asked(
    one: Restore, *, pod: PodFacts | None = None, nodes: Fleet | None = None, now: datetime = b.NOW
) -> Answer:
    return why(one, pod=pod, fleet=nodes, now=now)


@pytest.mark.parametrize(
    ("one", "state"),
    [
        (b.restore(), State.UNSEEN),
        (restore("True", "SnapshotLoaded"), State.SUCCEEDED),
        (restore("False", "BackoffLimitExceeded"), State.FAILED),
        (restore("Unknown", "Suspended"), State.SUSPENDED),
        (restore("Unknown", "LoadingSnapshot"), State.WORKING),
        (restore("Unknown", "Unschedulable"), State.WAITING),
        (restore("Unknown", "SandboxBusy"), State.WAITING),
        (restore("Unknown", "Unschedulable", observed_generation=0), State.UNSEEN),
    ],
)
def test_the_state_is_one_word(one: Restore, state: State) -> None:
    assert asked(one).state is state


def test_a_succeeded_restore_needs_no_help() -> None:
    assert asked(restore("True", "SnapshotLoaded"), nodes=fleet(n1={})).helps == ()


def test_a_restore_that_nobody_looked_at_points_to_the_operator() -> None:
    answer = asked(b.restore())
    assert "no operator has looked at it yet" in answer.message
    assert "sandbox-restore doctor" in answer.commands


def test_what_was_asked_is_told_in_the_words_of_the_spec() -> None:
    spec = {
        "snapshot_id": "s-9",
        "node_selector": {"disk": "fast"},
        "evacuation": Evacuation(cohort="blue"),
    }
    told = " / ".join(asked(restore(spec=spec)).asked)
    for words in ("snapshot s-9", "hostCpuPolicy Auto", "disk=fast", "cohort blue", "within 10m"):
        assert words in told


def test_a_waiting_pod_is_told_with_the_schedulers_own_words_and_the_nodes_that_could_take_it() -> (
    None
):
    pod = b.pod(unschedulable_message="0/2 nodes are available: 2 node(s) were unschedulable.")
    nodes = fleet(n1={"unschedulable": True}, n2={})
    answer = asked(restore(pod_name=pod.name), pod=pod, nodes=nodes)
    told = " / ".join(answer.now)
    assert "0/2 nodes are available" in told
    assert f"nodes with {ICE}: 1 schedulable, 1 cordoned (n1)" in told
    assert "n1 is cordoned: kubectl uncordon n1" in answer.helps
    assert f"scale up: a node with host CPU {ICE}" in answer.helps


def test_the_node_to_add_carries_what_the_pod_is_confined_to() -> None:
    term = {"matchExpressions": [{"key": NODE_GROUP_LABEL, "operator": "In", "values": ["g1"]}]}
    pod = b.pod(required_terms=(term,))
    one = restore(spec={"node_selector": {"disk": "fast"}}, pod_name=pod.name)
    [hint] = [line for line in asked(one, pod=pod).helps if line.startswith("scale up")]
    assert hint == f"scale up: a node with host CPU {ICE} with disk=fast, {NODE_GROUP_LABEL}=g1"


def test_without_the_right_to_read_nodes_nothing_is_said_of_them() -> None:
    answer = why(restore(), pod=None, fleet=None, now=b.NOW, unread=("the nodes",))
    assert not [line for line in answer.now if line.startswith("nodes with")]
    assert answer.unread == ("the nodes",)


def test_a_blocked_redirect_is_told_with_its_condition_and_what_to_do() -> None:
    redirect = RedirectStatus(
        decision="Stay",
        blocked_by="NoLocalArtifact",
        conditions=[
            RedirectCondition(
                name="NoLocalArtifact",
                met=False,
                reason="LocalArtifactMarker",
                message="node n1 may hold state that exists nowhere else",
            )
        ],
    )
    answer = asked(restore("False", "Stranded", redirect=redirect))
    assert "not redirected to storage, blocked by NoLocalArtifact" in answer.decided
    assert answer.helps == (f"NoLocalArtifact: {BLOCKED[Reason.LOCAL_ARTIFACT_MARKER]}",)


def test_what_observe_mode_would_do_is_told_apart_from_what_was_done() -> None:
    observed = PlacementStatus(
        decision="Held", reason="PlacementHeld", message="waits.", capture_cpu=ICE
    )
    told = asked(restore(observed=observed)).decided
    assert "observe mode: with the gate on it would have been Held (PlacementHeld): waits." in told


def test_a_local_plan_says_which_node_holds_the_state() -> None:
    plan = PlanStatus(source="local", node="n7", origin="the sandbox is pinned to node n7")
    assert asked(restore(plan=plan)).decided[0].startswith("its state from what node n7 holds")


def test_every_reason_of_a_restore_has_advice() -> None:
    """Each reason that the planner can give, found in its source, is in the table (or means that
    nothing has to be done)."""
    given = set()
    for name in (
        "restore/look.py",
        "restore/active.py",
        "restore/idle.py",
        "restore/choose.py",
        "restore/outcome.py",
        "restore/reconciler.py",
    ):
        for node in ast.walk(ast.parse((ROOT / name).read_text())):
            if isinstance(node, ast.keyword) and node.arg == "reason":
                given |= _words(node.value)
            elif isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
                given |= _words(node.value.elts[0])
            elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "reason":
                given |= _words(node.value)
            elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in (
                "waiting",
                "say_working",
                "hold_all",
            ):
                for argument in node.args:
                    given |= _words(argument)
    assert {"SandboxBusy", "SnapshotUnavailable", "BackoffLimitExceeded", "Unschedulable"} <= given
    needless = {
        "SnapshotLoaded",
        "FollowedPod",
        "SandboxSuspended",
        "Scheduling",
        "Planning",
        "Releasing",
        "Retrying",
    }
    by_other_means = {"Unschedulable", "Stranded"}
    assert given - needless - by_other_means <= set(ADVICE)


def _words(node: ast.AST) -> set[str]:
    """String constants in CamelCase: reasons, not messages."""
    return {
        leaf.value
        for leaf in ast.walk(node)
        if isinstance(leaf, ast.Constant)
        and isinstance(leaf.value, str)
        and leaf.value.isalnum()
        and leaf.value[:1].isupper()
        and leaf.value not in ("True", "False")
    }


def test_a_node_that_its_labels_keep_out_is_not_said_to_help() -> None:
    one = restore(spec={"node_selector": {"disk": "fast"}})
    nodes = fleet(
        n1={"unschedulable": True}, n2={"unschedulable": True, "labels": {"disk": "fast"}}
    )
    helps = asked(one, nodes=nodes).helps
    assert "n2 is cordoned: kubectl uncordon n2" in helps
    assert not [line for line in helps if "n1" in line]


def test_what_heads_the_answer_is_not_told_twice() -> None:
    words = "1 of 2 published CPUs can load it."
    said = condition("Succeeded", "Unknown", "PlacementHeld", words)
    told = asked(restore(conditions=[said])).decided
    assert "Constrained (LoaderReachable)" in told
