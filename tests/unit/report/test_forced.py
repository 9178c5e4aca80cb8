"""`retire`: what is known, and what a person's word does to the row."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from sandbox_restore.model.pod import PodFacts
from sandbox_restore.model.sandbox import Execution, Outcome, SandboxState, Source
from sandbox_restore.report.forced import Known, forced_retirement, known, node_name_of
from sandbox_restore.restore.liveness import NodeSighting
from tests.support import builders as b


def found(
    active: Execution,
    pod: PodFacts | None = None,
    *,
    node: NodeSighting | None = None,
    row: dict[str, Any] | None = None,
) -> Known:
    answer = known(
        b.view(active=active, row=row),
        pod,
        node,
        now=b.NOW,
        gone_grace=timedelta(minutes=5),
        pod_grace_seconds=30,
    )
    assert answer is not None
    return answer


def test_an_attempt_whose_pod_object_is_gone_may_be_alive_and_says_why() -> None:
    one = found(b.execution())
    assert one.verdict.may_be_alive
    assert "somebody removed it with its finalizer" in one.verdict.why
    assert any("there is no such object" in line for line in one.lines())


def test_a_pod_that_its_kubelet_reported_over_needs_no_word() -> None:
    one = found(b.execution(), b.pod(**b.ended()))
    assert not one.verdict.may_be_alive


def test_a_loaded_sandbox_is_judged_by_its_node_when_its_pod_is_gone() -> None:
    active = b.execution(loaded_at=b.ago(60), node_name="n1", node_uid="uid-n1", pod_uid="p")
    one = found(active, node=NodeSighting(name="n1", node=b.node("n1", ready=False)))
    assert one.verdict.may_be_alive
    assert "n1" in one.verdict.why


def test_a_loaded_sandbox_ends_as_lost_and_keeps_pin_and_marker() -> None:
    active = b.execution(loaded_at=b.ago(60), node_name="n1", pod_uid="p")
    step = forced_retirement(
        found(active, row={"pinned_node": "n1", "local_artifact_marker": True})
    )
    assert (step.outcome, step.row_state) == (Outcome.LOST, SandboxState.SUSPENDED)
    assert (step.pinned_node, step.marker) == ("n1", True)


@pytest.mark.parametrize(
    ("active", "pod", "pin"),
    [
        (b.execution(prior_pin=None), None, None),
        (b.execution(prior_pin="n0"), None, "n0"),
        (b.execution(prior_pin="n0"), b.pod(**b.bound("n5")), "n5"),
        (b.execution(source=Source.LOCAL, target_node="n7"), None, "n7"),
    ],
)
def test_an_attempt_pins_the_row_to_where_it_may_have_run_and_sets_no_marker(
    active: Execution, pod: PodFacts | None, pin: str | None
) -> None:
    row = {"pinned_node": "n7"} if active.source is Source.LOCAL else None
    step = forced_retirement(found(active, pod, row=row))
    assert (step.outcome, step.row_state) == (Outcome.LOST, SandboxState.FAILED)
    assert (step.pinned_node, step.marker) == (pin, False)
    assert "by hand" in step.why


def test_the_node_that_decides_is_the_pods_then_the_executions_then_the_target() -> None:
    assert node_name_of(b.view(active=b.execution()), b.pod(**b.bound("n5"))) == "n5"
    assert node_name_of(b.view(active=b.execution(node_name="n4")), None) == "n4"
    local = b.execution(source=Source.LOCAL, target_node="n7")
    assert node_name_of(b.view(active=local), None) == "n7"
    assert node_name_of(b.view(active=b.execution()), None) is None


def test_without_an_active_execution_there_is_nothing_to_retire() -> None:
    assert (
        known(
            b.view(),
            None,
            None,
            now=b.NOW,
            gone_grace=timedelta(minutes=5),
            pod_grace_seconds=30,
        )
        is None
    )


@pytest.mark.parametrize(
    ("pod", "ready", "needless"),
    [
        (b.pod(**b.bound("n1")), True, True),
        (b.pod(**b.bound("n1")), False, False),
        (b.pod(), True, True),
        (b.pod(**b.ended()), True, True),
        (None, True, False),
    ],
)
def test_no_word_is_taken_for_what_is_proven_or_can_be_ended_by_other_means(
    pod: PodFacts | None, *, ready: bool, needless: bool
) -> None:
    """A pod that runs on a Ready node, one that may be bound any moment, one that is over."""
    sighting = NodeSighting(name="n1", node=b.node("n1", ready=ready))
    assert bool(found(b.execution(), pod, node=sighting).needless) is needless
