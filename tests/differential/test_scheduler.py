"""A hundred pods before the real kube-scheduler: each lands where we say it can, or nowhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sandbox_restore.model.names import UNSCHEDULABLE_TAINT
from sandbox_restore.placement.match import (
    PodRequirements,
    label_key_problem,
    label_value_problem,
)
from tests.differential.compare import by_node, disagreements, index_of
from tests.differential.nasty import EFFECTS, Json, Nasty
from tests.support.oracle import Oracle
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
