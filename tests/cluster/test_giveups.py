"""When a stuck row loses its marker on the real API server, and when never (section 10)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.cluster.corner import CORNER, join, leave, own_node, own_nodes, relabel
from tests.cluster.rows import call, row_of
from tests.cluster.test_redirect import (
    CAPTURE,
    WRONG,
    apply,
    condition,
    events_of,
    finished,
    gate_on,
    loads_of,
    one_sandbox,
    restore_of,
    wake,
)
from tests.support.demo.scene import Scene
from tests.support.fleet import SandboxSeed
from tests.support.operator_process import OperatorProcess
from tests.support.simnode import Event
from tests.support.testbed import NodeSpec
from tests.support.waiting import until


async def stuck(scene: Scene, namespace: str, node: NodeSpec) -> SandboxSeed:
    """A row that a refused storage restore left pinned to `node`, with a marker on it."""
    seed = await one_sandbox(scene, namespace, f"{namespace}-sb")
    only = {"kubernetes.io/hostname": node.name}
    failed = await wake(scene, seed, "first", nodeSelector=only, backoffLimit=1)
    assert condition(failed, "Succeeded")["reason"] == "BackoffLimitExceeded"
    await call(
        scene.dsn,
        "UPDATE sandbox_restore.sandbox SET local_artifact_marker = true WHERE id = $1",
        seed.id,
    )
    row = await row_of(scene.dsn, seed.id)
    assert (row.state, row.pinned_node, row.marker) == ("failed", node.name, True)
    return seed


async def says(
    scene: Scene, seed: SandboxSeed, name: str, kind: str, reason: str, *, deadline_s: float = 60
) -> None:
    await until(
        lambda: condition(restore_of(scene, seed, name), kind).get("reason") == reason,
        deadline_s=deadline_s,
        what=f"{name} says {reason}",
        detail=lambda: restore_of(scene, seed, name).get("status", {}).get("conditions"),
    )


async def note_of(scene: Scene, seed: SandboxSeed, reason: str) -> str:
    """What the only Event with that reason in the sandbox's namespace says."""
    path = f"/apis/events.k8s.io/v1/namespaces/{seed.namespace}/events"
    [event] = [e for e in scene.plane.api().items(path) if e["reason"] == reason]
    assert event["type"] == "Warning"
    return str(event["note"])


def lines(operator: OperatorProcess, event: str) -> list[dict[str, Any]]:
    """The operator's log lines with that event name."""
    found = (json.loads(line) for line in operator.log().splitlines() if line.startswith("{"))
    return [line for line in found if line.get("event") == event]


async def label(scene: Scene, node: NodeSpec) -> None:
    await scene.kubectl("label", "node", node.name, "space.pplx.net/draining=")


async def taint(scene: Scene, node: NodeSpec) -> None:
    await scene.kubectl(
        "taint", "node", node.name, "ToBeDeletedByClusterAutoscaler=1790000000:NoSchedule"
    )


@pytest.mark.parametrize(
    ("away", "why"),
    [
        (label, "node {} is being drained away (label space.pplx.net/draining)"),
        (taint, "node {} is being drained away (taint ToBeDeletedByClusterAutoscaler)"),
        (leave, "node {} is gone: no Node object since "),
    ],
    ids=["a label", "a taint", "deleted"],
)
async def test_the_marker_of_a_stuck_row_goes_when_its_node_is_drained_away_or_gone(
    scene: Scene, namespace: str, away: Callable[..., Any], why: str
) -> None:
    wrong = own_node(namespace, "wrong", cpu=WRONG)
    right = own_node(namespace, "right", cpu=CAPTURE)
    operator = scene.operator_process(**gate_on(scene, node_gone_grace="2s"))
    async with operator, own_nodes(scene, wrong, right):
        seed = await stuck(scene, namespace, wrong)
        # Required burns no pod on a node that cannot load: the restore waits, and says why.
        corner = {CORNER: namespace}
        await apply(scene, seed, "waits", nodeSelector=corner, hostCpuPolicy="Required")
        await says(scene, seed, "waits", "Redirected", "LocalArtifactMarker")
        assert not lines(operator, "marker_given_up")

        await away(scene, wrong)
        over = await finished(scene, seed, "waits")
        assert condition(over, "Succeeded")["reason"] == "SnapshotLoaded"
        assert condition(over, "Redirected")["reason"] == "RedirectedToStorage"
        assert condition(over, "Stranded")["status"] == "False"
        assert loads_of(scene, seed) == [
            (Event.LOAD_REFUSED, wrong.name),
            (Event.VM_STARTED, right.name),
        ]
        given_up = why.format(wrong.name)
        note = await note_of(scene, seed, "MarkerGivenUp")
        assert note.startswith(f"what node {wrong.name} may hold is given up: {given_up}")
        [line] = lines(operator, "marker_given_up")
        assert (line["sandbox"], line["restore"], line["node"]) == (seed.id, "waits", wrong.name)
        assert line["why"].startswith(given_up)
    assert not scene.nodes.record.violations


async def test_a_marker_stays_while_its_node_is_only_away_for_a_moment(
    scene: Scene, namespace: str
) -> None:
    # A label that no other node has: whether it is there shows in the number of published CPUs.
    wrong = own_node(namespace, "wrong", cpu=WRONG, label="intel-6-207-2")
    right = own_node(namespace, "right", cpu=CAPTURE)
    patient = gate_on(scene, node_gone_grace="1h", published_hold="0s")
    operator = scene.operator_process(**patient)
    async with operator, own_nodes(scene, wrong, right):
        seed = await stuck(scene, namespace, wrong)
        corner = {CORNER: namespace}
        await apply(scene, seed, "waits", nodeSelector=corner, hostCpuPolicy="Required")
        await says(scene, seed, "waits", "Redirected", "LocalArtifactMarker")
        seen = await witness(scene, namespace, wrong)
        await seen("of 5 published")

        await asyncio.to_thread(scene.plane.set_node_ready, wrong.name, ready=False)
        await seen("1 tainted")
        await keeps_its_marker(scene, seed, wrong)
        await asyncio.to_thread(scene.plane.set_node_ready, wrong.name, ready=True)

        await scene.kubectl("cordon", wrong.name)
        await seen("1 cordoned")
        await keeps_its_marker(scene, seed, wrong)
        await scene.kubectl("uncordon", wrong.name)

        await relabel(scene, wrong, None)
        await seen("of 4 published")
        await keeps_its_marker(scene, seed, wrong)
        await relabel(scene, wrong, "intel-6-207-2")

        await leave(scene, wrong)
        await says(scene, seed, "waits", "Succeeded", "PinnedNodeAbsent")
        await keeps_its_marker(scene, seed, wrong)
        await join(scene, wrong)
        await says(scene, seed, "waits", "Stranded", "PinnedNodeCpuIncompatible")
        await keeps_its_marker(scene, seed, wrong)
        assert not lines(operator, "marker_given_up")
        assert "MarkerGivenUp" not in await events_of(scene, seed, "waits")

        # All that time a drain would have been enough.
        await label(scene, wrong)
        over = await finished(scene, seed, "waits")
        assert condition(over, "Succeeded")["reason"] == "SnapshotLoaded"
        assert len(lines(operator, "marker_given_up")) == 1
    assert not scene.nodes.record.violations


async def keeps_its_marker(scene: Scene, seed: SandboxSeed, node: NodeSpec) -> None:
    row = await row_of(scene.dsn, seed.id)
    assert (row.pinned_node, row.marker, row.active) == (node.name, True, [])


async def witness(
    scene: Scene, namespace: str, node: NodeSpec
) -> Callable[[str], Coroutine[Any, Any, None]]:
    """A restore of another sandbox that is held, confined to the node: it tells what the operator
    sees of the node. Returns a function that waits until it has told these words."""
    seed = await one_sandbox(scene, namespace, f"{namespace}-witness")
    only = {"kubernetes.io/hostname": node.name}
    await apply(scene, seed, "witness", nodeSelector=only, hostCpuPolicy="Required")
    await says(scene, seed, "witness", "Succeeded", "PlacementHeld")

    async def seen(words: str) -> None:
        await until(
            lambda: words in condition(restore_of(scene, seed, "witness"), "Succeeded")["message"],
            deadline_s=60,
            what=f"the operator has seen {words}",
            detail=lambda: condition(restore_of(scene, seed, "witness"), "Succeeded"),
        )

    return seen
