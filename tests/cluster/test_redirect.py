"""Rescue on the real API server, scheduler and Postgres (domain.md section 10)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from tests.cluster.rows import call, row_of
from tests.support.demo.findings import is_finished
from tests.support.demo.scene import Scene
from tests.support.fleet import SandboxSeed, as_yaml_stream, restore_manifest, sandbox_seeds
from tests.support.simnode import Event, read_record
from tests.support.waiting import until

CAPTURE = "intel-6-106-6.d4sv5"
"""Only its own CPU loads it."""
WRONG = "intel-6-79-1"


def gate_on(scene: Scene, **more: str) -> dict[str, str]:
    return {
        "host_cpu_placement_enabled": "true",
        "host_cpu_compatibility": scene.matrix.compatibility(),
        "retry_backoff_base": "100ms",
        **more,
    }


def node_of(scene: Scene, cpu: str) -> str:
    return next(
        n.name
        for n in scene.fleet
        if n.labels.get("space.pplx.net/host-cpu") == cpu and not n.unschedulable and not n.taints
    )


async def one_sandbox(scene: Scene, namespace: str, name: str) -> SandboxSeed:
    seeds = sandbox_seeds(8, seed=7, namespace=namespace, prefix=name)
    seed = next(s for s in seeds if s.capture_cpu == CAPTURE)
    await scene.add_sandboxes([seed])
    return seed


async def apply(scene: Scene, seed: SandboxSeed, name: str, **spec: object) -> None:
    manifest = restore_manifest(seed, **spec)
    manifest["metadata"]["name"] = name
    await scene.kubectl("apply", "-f", "-", stdin=as_yaml_stream([manifest]))


def restore_of(scene: Scene, seed: SandboxSeed, name: str) -> dict[str, Any]:
    return next(r for r in scene.restores(seed.namespace) if r["metadata"]["name"] == name)


def condition(restore: dict[str, Any], kind: str) -> dict[str, Any]:
    found = restore.get("status", {}).get("conditions", [])
    return next((c for c in found if c["type"] == kind), {})


async def finished(scene: Scene, seed: SandboxSeed, name: str) -> dict[str, Any]:
    await until(
        lambda: is_finished(restore_of(scene, seed, name)), deadline_s=60, what=f"{name} is over"
    )
    return restore_of(scene, seed, name)


async def wake(scene: Scene, seed: SandboxSeed, name: str, **spec: object) -> dict[str, Any]:
    await apply(scene, seed, name, **spec)
    return await finished(scene, seed, name)


async def events_of(scene: Scene, seed: SandboxSeed, name: str) -> list[str]:
    """Reasons of the Events on one restore, one an Event."""
    printed = await scene.kubectl(
        "get", "events", "-n", seed.namespace,
        "--field-selector", f"involvedObject.name={name}",
        "-o", "jsonpath={range .items[*]}{.reason}{'\\n'}{end}",
    )  # fmt: skip
    return sorted(printed.split())


async def strand(scene: Scene, seed: SandboxSeed, *, node: str) -> dict[str, Any]:
    """Gate off: a cross-node restore on a node that cannot load it leaves the sandbox there."""
    async with scene.operator(retry_backoff_base="100ms"):
        only = {"kubernetes.io/hostname": node}
        failed = await wake(scene, seed, "first", nodeSelector=only, backoffLimit=1)
    row = await row_of(scene.dsn, seed.id)
    assert condition(failed, "Succeeded")["reason"] == "BackoffLimitExceeded"
    assert (row.pinned_node, row.marker, row.active) == (node, False, [])
    return failed


def loads_of(scene: Scene, seed: SandboxSeed) -> list[tuple[Event, str]]:
    return [
        (e.event, e.node)
        for e in read_record(scene.nodes.record.path)
        if e.sandbox == seed.id and e.event in (Event.VM_STARTED, Event.LOAD_REFUSED)
    ]


async def test_a_restore_stranded_on_an_incompatible_cpu_restores_from_its_snapshot(
    scene: Scene, namespace: str
) -> None:
    seed = await one_sandbox(scene, namespace, "stranded")
    wrong = node_of(scene, WRONG)
    await strand(scene, seed, node=wrong)
    # Gate off: each later wake is local-only on that node, and fails there.
    async with scene.operator(retry_backoff_base="100ms"):
        again = await wake(scene, seed, "gate-off")
    assert condition(again, "Succeeded")["reason"] == "Stranded"
    assert loads_of(scene, seed) == [(Event.LOAD_REFUSED, wrong)] * 2
    assert (await row_of(scene.dsn, seed.id)).pinned_node == wrong
    # Gate on: the next wake is redirected.
    async with scene.operator(**gate_on(scene)):
        # Required keeps the nodes without a label out, which could refuse it once more.
        rescued = await wake(scene, seed, "gate-on", hostCpuPolicy="Required")
    assert condition(rescued, "Succeeded")["status"] == "True"
    assert condition(rescued, "Redirected")["reason"] == "RedirectedToStorage"
    redirect = rescued["status"]["redirect"]
    assert redirect["decision"] == "Redirect"
    assert [c["met"] for c in redirect["conditions"]] == [True] * 7
    assert rescued["status"]["plan"]["source"] == "storage"
    started, where = loads_of(scene, seed)[-1]
    assert started is Event.VM_STARTED
    assert where != wrong
    row = await row_of(scene.dsn, seed.id)
    assert (row.state, row.pinned_node, row.marker) == ("running", where, True)
    assert row.executions[-1]["prior_pin"] == wrong
    reasons = await events_of(scene, seed, "gate-on")
    assert reasons.count("RedirectedToStorage") == 1
    assert not scene.nodes.record.violations


async def test_a_refused_storage_attempt_is_redirected_within_the_same_restore(
    scene: Scene, namespace: str
) -> None:
    """An unlabelled node may refuse; the next attempt goes elsewhere, and not there again."""
    seed = await one_sandbox(scene, namespace, "same")
    wrong, right = node_of(scene, WRONG), node_of(scene, CAPTURE)
    await scene.kubectl("label", "node", wrong, "space.pplx.net/host-cpu-", "rescue=here")
    scene.nodes.hold("load", sandbox=seed.id)
    try:
        async with scene.operator(**gate_on(scene)):
            await apply(scene, seed, "wake", nodeSelector={"rescue": "here"})
            await until(
                lambda: restore_of(scene, seed, "wake").get("status", {}).get("nodeName") == wrong,
                deadline_s=60,
                what="the first attempt loads on the node without a label",
            )
            await scene.kubectl("label", "node", right, "rescue=here")
            scene.nodes.release("load", sandbox=seed.id)
            over = await finished(scene, seed, "wake")
    finally:
        scene.nodes.release()
        await scene.kubectl("label", "node", wrong, f"space.pplx.net/host-cpu={WRONG}")
        await scene.kubectl("label", "node", wrong, right, "rescue-")
    assert condition(over, "Succeeded")["status"] == "True"
    assert loads_of(scene, seed) == [(Event.LOAD_REFUSED, wrong), (Event.VM_STARTED, right)]
    first = over["status"]["redirect"]["conditions"][0]
    assert (first["met"], first["reason"]) == (True, "PinnedNodeRefused")
    assert over["status"]["failedAttempts"] == 1
    assert not scene.nodes.record.violations


async def test_a_sandbox_with_a_marker_stays_put_and_says_why(scene: Scene, namespace: str) -> None:
    seed = await one_sandbox(scene, namespace, "marked")
    wrong = node_of(scene, WRONG)
    await strand(scene, seed, node=wrong)
    await call(
        scene.dsn,
        "UPDATE sandbox_restore.sandbox SET local_artifact_marker = true WHERE id = $1",
        seed.id,
    )
    async with scene.operator(**gate_on(scene)):
        over = await wake(scene, seed, "marked")
    assert condition(over, "Succeeded")["reason"] == "Stranded"
    assert condition(over, "Stranded")["status"] == "True"
    assert condition(over, "Redirected")["reason"] == "LocalArtifactMarker"
    assert over["status"]["redirect"]["blockedBy"] == "NoLocalArtifact"
    assert {node for _, node in loads_of(scene, seed)} == {wrong}
    row = await row_of(scene.dsn, seed.id)
    assert (row.pinned_node, row.marker, row.active) == (wrong, True, [])
    reasons = await events_of(scene, seed, "marked")
    assert (reasons.count("Stranded"), reasons.count("RedirectBlocked")) == (1, 1)


async def test_a_command_recorded_after_the_capture_blocks_the_redirect(
    scene: Scene, namespace: str
) -> None:
    seed = await one_sandbox(scene, namespace, "behind")
    wrong = node_of(scene, WRONG)
    await strand(scene, seed, node=wrong)
    await call(
        scene.dsn,
        "UPDATE sandbox_restore.sandbox SET last_command_at = $2 WHERE id = $1",
        seed.id,
        datetime.now(UTC),
    )
    async with scene.operator(**gate_on(scene)):
        over = await wake(scene, seed, "behind")
    assert condition(over, "Redirected")["reason"] == "SnapshotBehindActivity"
    assert {node for _, node in loads_of(scene, seed)} == {wrong}
