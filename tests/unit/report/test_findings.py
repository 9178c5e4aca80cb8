"""`doctor`: what is judged well, and what is not."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from sandbox_restore.fleet.compatibility import Compatibility
from sandbox_restore.model.names import HOST_CPU_LABEL
from sandbox_restore.model.restore import Condition
from sandbox_restore.report import findings
from sandbox_restore.report.findings import Finding, Level
from tests.support import builders as b

ICE = "intel-6-106-6"


def lease(seconds: float, **fields: Any) -> dict[str, Any]:
    return {
        "spec": {
            "holderIdentity": "op-1",
            "leaseDurationSeconds": 15,
            "renewTime": b.ago(seconds).isoformat().replace("+00:00", "Z"),
            **fields,
        }
    }


@pytest.mark.parametrize(
    ("found", "level", "words"),
    [
        (None, Level.PROBLEM, "no operator has ever led here"),
        (lease(2), Level.OK, "op-1 leads, renewed 2s ago"),
        (lease(20), Level.OK, "op-1 leads"),
        (lease(31), Level.PROBLEM, "it is gone"),
        (lease(2, holderIdentity=""), Level.PROBLEM, "nobody holds"),
        (lease(2, renewTime=None), Level.PROBLEM, "nobody holds"),
        (lease(2, renewTime="soon"), Level.PROBLEM, "nobody holds"),
        ({}, Level.PROBLEM, "nobody holds"),
    ],
)
def test_a_lease_says_whether_an_operator_leads(
    found: dict[str, Any] | None, level: Level, words: str
) -> None:
    one = findings.of_lease(found, where="ns/sandbox-restore", now=b.NOW)
    assert one.level is level
    assert words in one.message
    assert bool(one.fix) == (level is Level.PROBLEM)


def labels(*nodes: Any) -> list[Finding]:
    return list(findings.of_labels(nodes, cpu_label=HOST_CPU_LABEL))


def levels(found: list[Finding]) -> list[Level]:
    return [one.level for one in found]


def test_a_fleet_whose_nodes_are_all_labelled_is_well() -> None:
    nodes = [b.node(name, labels={HOST_CPU_LABEL: ICE}) for name in ("n1", "n2")]
    [one] = labels(*nodes)
    assert (one.level, one.message) == (
        Level.OK,
        f"2 of 2 nodes publish 1 CPU in label {HOST_CPU_LABEL}",
    )


def test_nodes_without_label_with_a_wrong_one_or_with_slots_are_named() -> None:
    found = labels(
        b.node("n1", labels={HOST_CPU_LABEL: ICE}),
        b.node("n2"),
        b.node("n3", labels={HOST_CPU_LABEL: "Xeon"}),
        b.node("n4", network_slots=4),
    )
    text = " / ".join(one.message for one in found)
    assert levels(found) == [Level.OK, Level.WARNING, Level.WARNING, Level.WARNING]
    assert "2 nodes without the label: n2 and n4" in text
    assert "node n3: label value 'Xeon' names no CPU" in text
    assert "n4 offer network slots and have no label" in text


def test_a_fleet_without_any_label_or_node_is_a_problem() -> None:
    assert levels(labels(b.node("n1"))) == [Level.PROBLEM]
    assert levels(labels()) == [Level.PROBLEM]


def test_pairs_that_name_a_cpu_no_node_has_are_worth_a_look() -> None:
    pairs, _ = Compatibility.parse(f"intel-6-79-1=>{ICE}")
    [one] = findings.of_compatibility(pairs, {ICE})
    assert (one.level, "intel-6-79-1" in one.message) == (Level.NOTE, True)
    [one] = findings.of_compatibility(pairs, {ICE, "intel-6-79-1"})
    assert one.level is Level.OK
    assert list(findings.of_compatibility(Compatibility({}), {ICE})) == []


def test_a_restore_that_nobody_looks_at_is_a_problem_only_where_somebody_should() -> None:
    old = b.restore(created=b.NOW - timedelta(minutes=5))
    found = list(findings.of_restores([old], namespaces=(), now=b.NOW))
    assert levels(found) == [Level.PROBLEM]
    assert "team-a/wake-r1 for 5m ago" not in found[0].message
    found = list(findings.of_restores([old], namespaces=("team-b",), now=b.NOW))
    assert levels(found) == [Level.OK]
    young = b.restore(created=b.ago(3))
    assert levels(list(findings.of_restores([young], namespaces=(), now=b.NOW))) == [Level.OK]


def test_stranded_restores_are_named() -> None:
    stranded = Condition(
        type="Stranded", status="True", reason="PinnedNodeRefused", last_transition_time=b.NOW
    )
    one = b.restore(status={"conditions": [stranded]})
    found = list(findings.of_restores([one], namespaces=(), now=b.NOW))
    assert levels(found) == [Level.WARNING]
    assert "1 restore stranded: team-a/wake-r1" in found[0].message
