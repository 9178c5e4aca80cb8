"""`fleet drain-check`: what a drain would leave without a node."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sandbox_restore.fleet.compatibility import Compatibility
from sandbox_restore.model.names import HOST_CPU_LABEL, NODE_GROUP_LABEL
from sandbox_restore.model.node import NodeFacts, Taint
from sandbox_restore.model.restore import RestoreSpec
from sandbox_restore.model.sandbox import PinnedThere, Sandbox, SandboxState, StoredKind
from sandbox_restore.placement.pod import demand_of
from sandbox_restore.placement.reachable import Demand
from sandbox_restore.placement.template import PodTemplate
from sandbox_restore.report.drain import Confined, DemandOf, DrainCheck, Loss, drain_check
from tests.support import builders as b

ICE, BROADWELL = "intel-6-106-6", "intel-6-79-1"
MARKS = ("space.pplx.net/draining",)
PAIRS, _ = Compatibility.parse(f"{BROADWELL}=>{ICE}")


def node(name: str, cpu: str | None = ICE, **fields: Any) -> NodeFacts:
    labels = {**({HOST_CPU_LABEL: cpu} if cpu is not None else {}), **fields.pop("labels", {})}
    return b.node(name, labels=labels, **fields)


def kind(cpu: str | None = ICE, **fields: Any) -> StoredKind:
    return StoredKind(capture_cpu=cpu, sandboxes=fields.pop("sandboxes", 4), **fields)


def row(**fields: Any) -> PinnedThere:
    given = {
        "sandbox_id": "sb-1",
        "namespace": "team-a",
        "state": SandboxState.SUSPENDED,
        "pinned_node": "n1",
        "marker": False,
        "in_storage": True,
        **fields,
    }
    return PinnedThere(**given)


def asks(one: Confined) -> Demand:
    """What the default pod template and the row ask for."""
    row = Sandbox(
        id="any", namespace="any", node_group=one.node_group, node_selector=one.node_selector
    )
    return demand_of(PodTemplate.default(), sandbox=row, spec=RestoreSpec(sandbox_id="any"))


def check(
    nodes: list[NodeFacts],
    *kinds: StoredKind,
    pinned: tuple[PinnedThere, ...] = (),
    demand: DemandOf = asks,
) -> DrainCheck:
    return drain_check(
        pinned,
        kinds,
        nodes,
        PAIRS,
        demand_of=demand,
        drained={"n1"},
        cpu_label=HOST_CPU_LABEL,
        drain_marks=MARKS,
    )


def test_the_last_node_that_can_load_a_snapshot_is_not_safe_to_drain() -> None:
    found = check([node("n1"), node("n2", BROADWELL)], kind())
    assert not found.restorable
    assert found.lost == 4
    assert found.kinds[0].message == f"needs {ICE}, and no node that stays has it"


def test_with_another_loader_that_stays_it_is_safe() -> None:
    assert check([node("n1"), node("n2")], kind()).restorable
    assert check([node("n1", BROADWELL), node("n2")], kind(BROADWELL)).restorable


@pytest.mark.parametrize(
    "fields",
    [
        {"unschedulable": True},
        {"ready": False},
        {"deleting": True},
        {"labels": {MARKS[0]: ""}},
        {"labels": {"space.pplx.net/placement-block": ""}},
    ],
)
def test_a_node_that_takes_no_pods_is_no_place_to_go(fields: dict[str, Any]) -> None:
    assert not check([node("n1"), node("n2", **fields)], kind()).restorable


@pytest.mark.parametrize("key", ["team", "node.kubernetes.io/disk-pressure"])
def test_a_node_whose_taint_the_pod_template_does_not_tolerate_is_no_place_to_go(key: str) -> None:
    tainted = node("n2", taints=(Taint(key, "a", "NoSchedule"),))
    assert not check([node("n1"), tainted], kind()).restorable
    soft = node("n2", taints=(Taint(key, "a", "PreferNoSchedule"),))
    assert check([node("n1"), soft], kind()).restorable


def test_a_node_that_the_pod_template_does_not_select_is_no_place_to_go() -> None:
    def elsewhere(one: Confined) -> Demand:
        return replace(asks(one), requirements=asks(one).requirements.with_selector({"pool": "vm"}))

    nodes = [node("n1", labels={"pool": "vm"}), node("n2")]
    assert not check(nodes, kind(), demand=elsewhere).restorable
    nodes = [node("n1", labels={"pool": "vm"}), node("n2", labels={"pool": "vm"})]
    assert check(nodes, kind(), demand=elsewhere).restorable


def test_a_sandbox_that_can_be_nowhere_is_not_blamed_on_the_drain() -> None:
    found = check([node("n1"), node("n2")], kind(), demand=lambda _: None)
    assert (found.restorable, found.already) == (True, 4)


def test_a_node_cordoned_for_the_drain_already_counts_as_what_the_drain_takes() -> None:
    assert not check([node("n1", unschedulable=True)], kind()).restorable


def test_group_and_selector_of_the_sandbox_must_fit_a_node_that_stays() -> None:
    group = {NODE_GROUP_LABEL: "g1"}
    nodes = [node("n1", labels=group), node("n2", labels={NODE_GROUP_LABEL: "g2"})]
    assert not check(nodes, kind(node_group="g1")).restorable
    assert check(nodes, kind()).restorable
    wants = kind(node_selector={"disk": "fast"})
    nodes = [node("n1", labels={"disk": "fast"}), node("n2", labels={"disk": "slow"})]
    found = check(nodes, wants)
    assert not found.restorable
    assert "with disk=fast" in found.kinds[0].message


def test_what_no_node_could_load_before_is_counted_apart_and_not_blamed_on_the_drain() -> None:
    found = check([node("n1", BROADWELL), node("n2", BROADWELL)], kind())
    assert (found.restorable, found.already) == (True, 4)


def test_an_unlabelled_node_that_stays_is_no_proof_of_a_loader() -> None:
    assert not check([node("n1"), node("n2", None)], kind()).restorable


def test_a_snapshot_without_a_recorded_cpu_is_not_said_to_be_lost() -> None:
    found = check([node("n1")], kind(None), kind("unknown"))
    assert (found.restorable, found.unknown) == (True, 8)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"marker": True}, Loss.STATE_ONLY_THERE),
        ({"in_storage": False}, Loss.NO_COPY),
    ],
)
def test_state_that_only_the_drained_node_has_is_named(fields: dict[str, Any], why: Loss) -> None:
    found = check([node("n1"), node("n2")], pinned=(row(**fields),))
    assert not found.restorable
    assert [one.why for one in found.states] == [why]


@pytest.mark.parametrize(
    ("nodes", "lost"),
    [
        ([node("n1"), node("n2")], False),
        ([node("n1"), node("n2", BROADWELL)], True),
        ([node("n1", BROADWELL), node("n2")], False),
        ([node("n1"), node("n2", unschedulable=True)], True),
        ([node("n1", None), node("n2")], False),
    ],
)
def test_a_sandbox_that_runs_there_is_judged_by_what_would_be_captured_of_it(
    nodes: list[NodeFacts], *, lost: bool
) -> None:
    runs = row(marker=True, state=SandboxState.RUNNING)
    found = check(nodes, pinned=(runs,))
    assert found.restorable is not lost
    assert [one.why for one in found.states] == [Loss.NEXT_SNAPSHOT] * lost
    assert found.running == (not lost)


def test_a_pinned_row_whose_state_is_in_storage_is_not_lost_by_itself() -> None:
    assert check([node("n1"), node("n2")], pinned=(row(),)).restorable


def test_what_a_running_sandbox_descends_from_and_where_it_may_run_count_as_well() -> None:
    runs = {"marker": True, "state": SandboxState.RUNNING}
    stays = [node("n1", BROADWELL), node("n2"), node("n3", BROADWELL)]
    assert check(stays, pinned=(row(**runs),)).restorable
    # Captured on ICE before: BROADWELL cannot load that, and ICE loads both.
    found = check(
        [node("n1", BROADWELL), node("n3", BROADWELL)], pinned=(row(**runs, lineage=(ICE,)),)
    )
    assert [one.why for one in found.states] == [Loss.NEXT_SNAPSHOT]
    assert check(stays, pinned=(row(**runs, lineage=(ICE,)),)).restorable
    group = {NODE_GROUP_LABEL: "g1"}
    nodes = [node("n1", labels=group), node("n2")]
    assert not check(nodes, pinned=(row(**runs, node_group="g1"),)).restorable
    nodes = [node("n1", labels=group), node("n2", labels=group)]
    assert check(nodes, pinned=(row(**runs, node_group="g1"),)).restorable
