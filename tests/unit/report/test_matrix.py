"""`fleet`: who loads whose snapshots, and which are in danger."""

from __future__ import annotations

from typing import Any

import pytest

from sandbox_restore.fleet.compatibility import Compatibility
from sandbox_restore.model.names import HOST_CPU_LABEL, PLACEMENT_BLOCK_LABEL
from sandbox_restore.model.node import NodeFacts, Taint
from sandbox_restore.model.sandbox import StoredLineage
from sandbox_restore.report.matrix import Danger, LineageRow, Matrix, matrix_of
from sandbox_restore.report.nodes import NodeState, Tally, state_of
from tests.support import builders as b

ICE, CASCADE, BROADWELL = "intel-6-106-6", "intel-6-85-7", "intel-6-79-1"
MARKS = ("space.pplx.net/draining",)
PAIRS, _ = Compatibility.parse(f"{BROADWELL}=>{ICE}")


def node(name: str, cpu: str | None, **fields: Any) -> NodeFacts:
    labels = {**({HOST_CPU_LABEL: cpu} if cpu is not None else {}), **fields.pop("labels", {})}
    return b.node(name, labels=labels, **fields)


def stored(cpu: str | None, *ancestors: str, snapshots: int = 3) -> StoredLineage:
    return StoredLineage(capture_cpu=cpu, ancestor_cpus=ancestors, snapshots=snapshots, sandboxes=2)


def matrix(nodes: list[NodeFacts], *lineages: StoredLineage, database: bool = True) -> Matrix:
    return matrix_of(
        nodes,
        PAIRS,
        lineages if database else None,
        cpu_label=HOST_CPU_LABEL,
        drain_marks=MARKS,
    )


def only(found: Matrix) -> LineageRow:
    [row] = found.lineages
    return row


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({}, NodeState.SCHEDULABLE),
        ({"ready": False}, NodeState.NOT_READY),
        ({"unschedulable": True, "ready": False}, NodeState.CORDONED),
        ({"labels": {PLACEMENT_BLOCK_LABEL: ""}}, NodeState.BLOCKED),
        ({"labels": {MARKS[0]: "true"}, "unschedulable": True}, NodeState.DRAINING),
        ({"taints": (Taint(MARKS[0], "", "NoSchedule"),)}, NodeState.DRAINING),
        ({"deleting": True, "unschedulable": True}, NodeState.DELETING),
        ({"taints": (Taint("team", "a", "NoSchedule"),)}, NodeState.TAINTED),
        ({"taints": (Taint("team", "a", "PreferNoSchedule"),)}, NodeState.SCHEDULABLE),
        (
            {"taints": (Taint("node.kubernetes.io/memory-pressure", "", "NoSchedule"),)},
            NodeState.TAINTED,
        ),
        (
            {"taints": (Taint("node.kubernetes.io/unschedulable", "", "NoSchedule"),)},
            NodeState.SCHEDULABLE,
        ),
    ],
)
def test_a_node_is_named_by_what_is_worst_about_it(
    fields: dict[str, Any], state: NodeState
) -> None:
    assert state_of(node("n", ICE, **fields), drain_marks=MARKS) is state


def test_a_tally_names_every_node_that_is_not_simply_schedulable() -> None:
    nodes = [node("a", ICE), node("b", ICE, unschedulable=True), node("c", ICE, ready=False)]
    tally = Tally.of(nodes, drain_marks=MARKS)
    assert tally.words == "1 schedulable, 1 not ready (c), 1 cordoned (b)"
    assert (tally.total, tally.usable, tally.leaving) == (3, 1, 1)
    assert Tally.of([], drain_marks=MARKS).words == "none"


def test_a_cpu_guards_what_it_can_load_and_alone_what_no_other_can() -> None:
    found = matrix(
        [node("i1", ICE), node("i2", ICE), node("b1", BROADWELL)],
        stored(BROADWELL, snapshots=5),
        stored(ICE, snapshots=7),
    )
    rows = {row.cpu: row for row in found.cpus}
    assert (rows[ICE].guards, rows[ICE].alone, rows[ICE].loads) == (12, 7, (BROADWELL,))
    assert (rows[BROADWELL].guards, rows[BROADWELL].alone, rows[BROADWELL].loads) == (5, 0, ())


def test_an_ancestor_that_a_cpu_cannot_load_takes_it_out_of_the_loaders() -> None:
    found = matrix([node("i1", ICE), node("b1", BROADWELL)], stored(ICE, BROADWELL))
    assert only(found).loaders == (ICE,)
    found = matrix([node("i1", ICE), node("b1", BROADWELL)], stored(BROADWELL, ICE))
    assert only(found).loaders == (ICE,)
    found = matrix([node("i1", ICE), node("c1", CASCADE)], stored(ICE, CASCADE))
    assert (only(found).loaders, only(found).danger) == ((), Danger.NO_LOADER)
    assert "no CPU is known to load" in only(found).warning


@pytest.mark.parametrize(
    ("nodes", "danger"),
    [
        ([], Danger.NO_LOADER),
        ([node("c1", CASCADE)], Danger.NO_LOADER),
        ([node("i1", ICE, unschedulable=True)], Danger.NONE_USABLE),
        ([node("i1", ICE), node("i2", ICE, unschedulable=True)], Danger.LAST_NODE),
        ([node("i1", ICE), node("i2", ICE)], None),
    ],
)
def test_the_danger_of_a_lineage_is_what_its_last_nodes_are(
    nodes: list[NodeFacts], danger: Danger | None
) -> None:
    found = matrix(nodes, stored(ICE))
    assert only(found).danger is danger
    assert len(found.warnings) == (danger is not None)


def test_a_lineage_without_snapshots_is_in_no_danger() -> None:
    assert only(matrix([], stored(ICE, snapshots=0))).danger is None


@pytest.mark.parametrize("recorded", [None, "unknown", "Not Canonical"])
def test_a_capture_cpu_that_is_not_recorded_is_told_and_never_guessed(
    recorded: str | None,
) -> None:
    row = only(matrix([node("i1", ICE)], stored(recorded)))
    assert (row.capture_cpu, row.loaders, row.danger) == ("", (), Danger.UNKNOWN_CPU)


def test_without_a_database_the_fleet_and_the_list_give_the_rows_and_no_number_is_made_up() -> None:
    found = matrix([node("i1", ICE), node("i2", ICE)], database=False)
    assert [row.capture_cpu for row in found.lineages] == [ICE, BROADWELL]
    assert {row.snapshots for row in found.lineages} == {None}
    assert not found.database


def test_nodes_without_a_usable_label_have_a_row_of_their_own() -> None:
    found = matrix([node("i1", ICE), node("u1", None), node("u2", "Intel 6")])
    assert [(row.cpu, row.nodes.total, row.labels) for row in found.cpus] == [
        (ICE, 1, ()),
        ("", 2, ("Intel 6",)),
    ]
