"""Pods before the real kube-scheduler: each lands where we say it can, or nowhere."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import product
from typing import Any

import pytest

from sandbox_restore.fleet.compatibility import Compatibility
from sandbox_restore.fleet.index import FleetIndex
from sandbox_restore.model.names import HOST_CPU_LABEL, RUNNER_CONTAINER, UNSCHEDULABLE_TAINT
from sandbox_restore.model.restore import RestoreSpec
from sandbox_restore.model.sandbox import Sandbox, Snapshot, Source
from sandbox_restore.placement.decision import PlacementRequest, decide
from sandbox_restore.placement.gate import Gate
from sandbox_restore.placement.match import (
    PodRequirements,
    label_key_problem,
    label_value_problem,
)
from sandbox_restore.placement.pod import (
    PodIdentity,
    RunnerPlan,
    apply_decision,
    base_pod,
    demand_of,
)
from sandbox_restore.placement.template import PodTemplate
from tests.differential.compare import by_node, disagreements, index_of
from tests.differential.nasty import EFFECTS, Json, Nasty
from tests.support.oracle import Oracle
from tests.support.simnode import load_matrix
from tests.support.testbed import (
    ApiError,
    ControlPlane,
    NodeSpec,
    Taint,
    ensure_built,
    wait_until,
)

PODS = 100
NODES = 12
SEED = "scheduler/1"
_PATH = "/api/v1/namespaces/default/pods"


@pytest.fixture(scope="module")
def cluster() -> Iterator[ControlPlane]:
    with ControlPlane.start(ensure_built()) as plane:
        yield plane


def node_spec(node: Json) -> NodeSpec:
    """What of a nasty node an API server takes."""
    labels = {
        key: value
        for key, value in node["metadata"].get("labels", {}).items()
        if not label_key_problem(key) and not label_value_problem(value)
    }
    taints = {
        (taint["key"], taint["effect"]): Taint(
            taint["key"], value=_valid(taint.get("value", "")), effect=taint["effect"]
        )
        for taint in node["spec"].get("taints", ())
        if taint["effect"] in EFFECTS and taint["key"] not in ("", UNSCHEDULABLE_TAINT)
    }
    return NodeSpec(
        node["metadata"]["name"],
        labels=labels,
        taints=list(taints.values()),
        unschedulable=node["spec"].get("unschedulable", False),
    )


def _valid(value: str) -> str:
    return "" if label_value_problem(value) else value


def create_pods(cluster: ControlPlane, nasty: Nasty, names: list[str]) -> list[str]:
    """Creates pods until a hundred are taken; the API server refuses what is not valid."""
    api = cluster.api()
    taken: list[str] = []
    for number in range(10 * PODS):
        pod = nasty.pod(names, odd=0.04)
        pod["metadata"]["name"] = f"p{number}"
        pod["spec"]["containers"] = [{"name": "main", "image": "none"}]
        try:
            api.post(_PATH, {"apiVersion": "v1", "kind": "Pod", **pod})
        except ApiError as error:
            if error.status not in (400, 422):
                raise
            continue
        taken.append(f"p{number}")
        if len(taken) == PODS:
            return taken
    raise AssertionError(f"the API server took only {len(taken)} pods")


def _is_judged(pod: Json) -> bool:
    conditions: list[Any] = pod.get("status", {}).get("conditions") or []
    return bool(pod["spec"].get("nodeName")) or any(
        c["type"] == "PodScheduled" and c.get("reason") == "Unschedulable" for c in conditions
    )


@pytest.mark.timeout(1800)
def test_a_hundred_pods_land_where_we_say_they_can(cluster: ControlPlane) -> None:
    nasty = Nasty(SEED)
    fleet = [node_spec(node) for node in nasty.fleet(NODES)]
    names = [spec.name for spec in fleet]
    cluster.add_nodes(fleet)
    cluster.wait_nodes_ready(names=names)
    api = cluster.api()

    def nodes() -> list[Json]:
        return [
            {"metadata": node["metadata"], "spec": node["spec"]}
            for node in api.items("/api/v1/nodes")
        ]

    def tainted() -> bool:
        """The node controller has put its taint beside every cordon."""
        return all(
            any(taint["key"] == UNSCHEDULABLE_TAINT for taint in node["spec"].get("taints", ()))
            for node in nodes()
            if node["spec"].get("unschedulable")
        )

    wait_until(tainted, what="cordoned nodes are tainted", timeout=30)
    before = nodes()
    taken = create_pods(cluster, nasty, names)
    wait_until(
        lambda: all(map(_is_judged, api.items(_PATH))), what="every pod is judged", timeout=120
    )
    pods = list(api.items(_PATH))
    index = index_of(before)
    with Oracle() as oracle:
        oracle.keep(before)
        passing = oracle.passes(pods)
    bound = 0
    for pod, theirs in zip(pods, passing, strict=True):
        ours = by_node(PodRequirements.of(pod), index)
        landed = pod["spec"].get("nodeName")
        bound += landed is not None
        assert disagreements(pod, index, theirs) == {}, pod["spec"]
        assert landed in ours if landed else not ours, (landed, ours, pod["spec"])
    assert len(pods) == len(taken) == PODS
    assert [node["spec"] for node in nodes()] == [node["spec"] for node in before]
    # Both answers are worth something only if there are many of each.
    assert PODS / 4 < bound < PODS * 9 / 10


# --- the measured matrix, cell by cell

MATRIX = load_matrix()
CELLS = tuple(product(MATRIX.cpus, MATRIX.cpus))
"""(capture CPU, CPU of the node)."""


def only_at(cpu: str) -> str:
    """An extended resource that one node offers. Capacity is not judged by the operator, so that
    a pod that asks for it is placed as if every other node were full."""
    return f"example.com/room-on-{cpu}"


def cell_pod(capture: str, target: str, index: FleetIndex, *, gate: Gate) -> Json:
    """The pod of a restore, as rendered, which finds room on no node but the one with `target`."""
    number = CELLS.index((capture, target))
    name = f"cell-{number}-gate-{gate.lower()}"
    room = {only_at(target): "1"}
    runner = {"name": RUNNER_CONTAINER, "image": "none", "resources": {"limits": room}}
    spec = {"containers": [runner]}
    template = PodTemplate(
        labels={}, annotations={}, spec=spec, requirements=PodRequirements.of({"spec": spec})
    )
    row = Sandbox(id=name, namespace="default")
    asked = RestoreSpec(sandbox_id=name)
    snapshot = Snapshot(id=name, sandbox_id=name, host_cpu=capture)
    compatibility, _ = Compatibility.parse(MATRIX.compatibility())
    decision = decide(
        PlacementRequest(
            sandbox_id=name,
            snapshot=snapshot,
            demand=demand_of(template, sandbox=row, spec=asked),
            gate=gate,
        ),
        index,
        compatibility,
        now=datetime.now(UTC),
    )
    identity = PodIdentity(
        name=name,
        namespace="default",
        sandbox_id=name,
        restore_name=name,
        restore_uid=name,
        attempt=1,
        execution_id=name,
    )
    plan = RunnerPlan(snapshot_id=name, source=Source.STORAGE, storage_uri=f"s3://{name}")
    pod = apply_decision(
        base_pod(template, identity=identity, plan=plan, sandbox=row, spec=asked), decision
    )
    # As once its row is written: ungated. Owner and finalizer are nothing to the scheduler.
    for name in ("ownerReferences", "finalizers"):
        del pod["metadata"][name]
    del pod["spec"]["schedulingGates"]
    return pod


def _why_not(pod: Json) -> str:
    return " ".join(c.get("message", "") for c in pod["status"].get("conditions") or ())


@pytest.mark.timeout(1800)
def test_the_load_matrix_places_in_both_directions(cluster: ControlPlane) -> None:
    """n8n's measured matrix: a restore captured on one CPU lands on a node with another exactly
    when that one loads it. With the gate off each lands wherever there is room for it."""
    api = cluster.api()
    fleet = {
        cpu: NodeSpec(
            f"matrix-{number}", labels={HOST_CPU_LABEL: cpu}, allocatable={only_at(cpu): "16"}
        )
        for number, cpu in enumerate(MATRIX.cpus)
    }
    cluster.add_nodes(list(fleet.values()))
    cluster.wait_nodes_ready(names=[spec.name for spec in fleet.values()])
    index = index_of(list(api.items("/api/v1/nodes")))
    made = {
        (gate, *cell): cell_pod(*cell, index, gate=gate)
        for gate in (Gate.ON, Gate.OFF)
        for cell in CELLS
    }
    for pod in made.values():
        api.post(_PATH, pod)

    def seen() -> dict[str, Json]:
        found = api.items(_PATH, labelSelector="app.kubernetes.io/managed-by=sandbox-restore")
        return {pod["metadata"]["name"]: pod for pod in found}

    allowed = [cell for cell in CELLS if MATRIX.can_load(cell[0], on=cell[1])]
    assert len(allowed) == len(CELLS) / 2

    def settled() -> bool:
        pods = seen().values()
        bound = sum("nodeName" in pod["spec"] for pod in pods)
        return all(map(_is_judged, pods)) and bound >= len(CELLS) + len(allowed)

    wait_until(settled, what="every pod is bound or told that it cannot be", timeout=30)
    found = seen()
    for (gate, capture, target), pod in made.items():
        judged = found[pod["metadata"]["name"]]
        landed = judged["spec"].get("nodeName")
        if gate is Gate.OFF or (capture, target) in allowed:
            assert landed == fleet[target].name, (gate, capture, target, _why_not(judged))
        else:
            assert landed is None, (capture, target)
            assert "didn't match Pod's node affinity" in _why_not(judged)
