"""Section 15: what the end of an attempt's pod does to the row, for ends that real kubelets wrote.

tests/nodes/test_turned_away.py shows them on one: a kubelet that turns a running pod away at its
restart gives it two seconds. A runner that exits with 0 by then makes the pod `Succeeded`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from sandbox_restore.model.sandbox import Outcome, Sandbox, SandboxState
from sandbox_restore.restore.liveness import NodeSighting, could_host
from sandbox_restore.restore.outcome import counts, retire_ended
from tests.support.builders import NAMESPACE, NOW, SANDBOX, ago, ended, execution, node, pod

ROW = Sandbox(id=SANDBOX, namespace=NAMESPACE, state=SandboxState.RESTORING)
IN_TIME: dict[str, Any] = {**ended(exit_code=0, reason="Completed"), "phase": "Succeeded"}
TOO_LATE: dict[str, Any] = ended(exit_code=137)
NO_SLOTS = "OutOfspace.pplx.net/network-slots"


@pytest.mark.parametrize(
    ("end", "failure", "counted"),
    [
        (IN_TIME, "unknown", True),
        ({**TOO_LATE, "reason": NO_SLOTS}, "disrupted", False),
        ({**TOO_LATE, "reason": "NodeAffinity"}, "disrupted", False),
    ],
    ids=["Succeeded", "no slots", "no match"],
)
def test_a_pod_turned_away_before_its_load_is_lost_and_tried_on_its_node_first(
    end: dict[str, Any], failure: str, counted: bool
) -> None:
    attempt = execution(prior_pin=None)
    retired = retire_ended(
        attempt, ROW, pod(**end), row_state=SandboxState.RESTORING, why="its pod has ended"
    )
    assert (retired.outcome, retired.failure_class) == (Outcome.LOST, failure)
    assert (retired.pinned_node, retired.marker) == ("n1", False)
    assert retired.row_state is SandboxState.RESTORING
    after = execution(outcome=retired.outcome, failure_class=retired.failure_class)
    assert counts(after) is counted


@pytest.mark.parametrize("end", [IN_TIME, TOO_LATE], ids=["Succeeded", "Failed"])
def test_a_pod_turned_away_after_its_load_leaves_pin_and_marker(end: dict[str, Any]) -> None:
    row = Sandbox(
        id=SANDBOX,
        namespace=NAMESPACE,
        state=SandboxState.RUNNING,
        pinned_node="n1",
        local_artifact_marker=True,
    )
    retired = retire_ended(
        execution(loaded_at=ago(5)), row, pod(**end), row_state=SandboxState.RESTORING, why="ended"
    )
    assert (retired.outcome, retired.row_state) == (Outcome.LOST, SandboxState.SUSPENDED)
    assert (retired.pinned_node, retired.marker) == ("n1", True)


@pytest.mark.parametrize("phase", ["Running", "Failed", "Succeeded"])
def test_without_the_kubelets_report_of_the_container_no_phase_proves_an_end(phase: str) -> None:
    """A kubelet that has restarted tells a running pod without its containers at first."""
    silent = pod(node_name="n1", scheduled_at=ago(60), phase=phase)
    sighting = NodeSighting(name="n1", node=node())
    verdict = could_host(silent, sighting, now=NOW, gone_grace=timedelta(0))
    assert verdict.may_be_alive
