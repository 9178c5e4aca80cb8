"""The operator dies, anywhere; nothing is lost and no sandbox ever has two live VMs."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from typing import Any

import pytest

from sandbox_restore.model.names import HOST_CPU_LABEL
from tests.cluster.rows import left_stranded, row_of
from tests.support.crashes import Operators
from tests.support.demo.findings import Findings
from tests.support.demo.scene import LEASE_NAMESPACE, Scene
from tests.support.fleet import SandboxSeed, sandbox_seeds
from tests.support.waiting import until

KILLS = 20
SANDBOXES = 200


def gate_on(scene: Scene) -> dict[str, str]:
    return {
        "host_cpu_placement_enabled": "true",
        "host_cpu_compatibility": scene.matrix.compatibility(),
        "retry_backoff_base": "100ms",
        "retry_backoff_max": "500ms",
        "sweep_interval": "1s",
    }


def nothing_lost(scene: Scene, found: Findings) -> None:
    """Every restore has ended, truthfully, and the nodes saw no second VM of any sandbox."""
    assert not scene.nodes.record.violations
    for one in found.sandboxes:
        assert one.succeeded is one.runs, (one.seed.restore_name, one.reason, one.message)
        started = [load for load in one.loads if load.event == "vm-started"]
        assert len(started) <= 1, one.seed.restore_name
        if all(load.node_label for load in one.loads):
            assert one.succeeded, (one.seed.restore_name, one.reason, one.message)


async def forget_lease(scene: Scene) -> None:
    await scene.kubectl(
        "delete", "lease", "sandbox-restore", "-n", LEASE_NAMESPACE, "--ignore-not-found"
    )


@pytest.mark.timeout(900)
async def test_twenty_kills_at_random_moments_lose_no_restore_and_make_no_second_vm(
    scene: Scene, namespace: str
) -> None:
    moments = random.Random(20260301)
    seeds = sandbox_seeds(SANDBOXES, seed=7, namespace=namespace, prefix="kill")
    await scene.add_sandboxes(seeds)
    operator = scene.operator_process(**gate_on(scene))
    await operator.start()
    await scene.apply(seeds, activeDeadlineSeconds=3600)
    for number in range(KILLS):
        lines = len(operator.log().splitlines()) + moments.randint(1, 30)
        await until(
            lambda wanted=lines: len(operator.log().splitlines()) >= wanted or None,
            deadline_s=60,
            what="the operator goes on",
            interval_s=0.002,
            detail=operator.tail,
        )
        await operator.kill()
        if number:
            # The first successor waits for the Lease to run out, as in life; the others need not.
            await forget_lease(scene)
        await operator.start()
    found = await scene.finished(seeds, deadline_s=600)
    await operator.stop()
    nothing_lost(scene, found)


ONLY_LOADERS = {"hostCpuPolicy": "Required"}
"""Keeps the unlabelled nodes out: a restore that they strand has no second release to die at."""

MISSING = "Failed to open snapshot file: No such file or directory (os error 2)"
ATTEMPT = (
    "begin-row",
    "create-pod",
    "ungate",
    "loaded-row",
    "release",
    "released-row",
    "event",
    "status",
    "retire-row",
    "drop-finalizer",
)
"""The side effects of an attempt, in their order; those of a cancelled one are below."""


def operators(scene: Scene) -> Operators:
    return Operators(scene.operator_process(**gate_on(scene)))


@pytest.mark.parametrize("effect", ATTEMPT)
async def test_a_kill_around_any_side_effect_of_an_attempt_is_survived(
    scene: Scene, namespace: str, effect: str
) -> None:
    """Right before it and right after it: so between any two. Each successor meets what the one
    before left, and new restores besides."""
    woken: list[SandboxSeed] = []
    async with operators(scene) as these:
        for moment in ("before", "after"):
            seeds = sandbox_seeds(4, seed=1, namespace=namespace, prefix=f"{namespace}-{moment}")
            await scene.add_sandboxes(seeds)
            for seed in seeds[:2]:
                # Attempts that fail have side effects of their own: the row, the fence that goes.
                scene.nodes.fail(MISSING, sandbox=seed.id)
            await scene.apply(seeds, backoffLimit=100, **ONLY_LOADERS)
            woken += seeds
            await these.killed(f"{moment}:{effect}:2")
        scene.nodes.mend()
        async with these.spared():
            found = await scene.finished(woken)
    nothing_lost(scene, found)


async def test_a_kill_around_the_deletion_of_a_cancelled_pod_is_survived(
    scene: Scene, namespace: str
) -> None:
    woken: list[SandboxSeed] = []
    cancelled: list[SandboxSeed] = []
    path = f"/api/v1/namespaces/{namespace}/pods"

    def of_cancelled() -> list[dict[str, Any]]:
        ids = {seed.id for seed in cancelled}
        return [
            pod
            for pod in scene.plane.api().items(path)
            if pod["metadata"]["labels"]["space.pplx.net/sandbox"] in ids
        ]

    async with operators(scene) as these:
        for moment in ("before", "after"):
            seeds = sandbox_seeds(2, seed=1, namespace=namespace, prefix=f"{namespace}-{moment}")
            await scene.add_sandboxes(seeds)
            cancelled.append(seeds[0])
            woken.append(seeds[1])
            scene.nodes.hold("load", sandbox=seeds[0].id)
            dying = asyncio.create_task(these.killed(f"{moment}:delete-pod:1"))
            await scene.apply(seeds, **ONLY_LOADERS)
            await until(
                lambda: any(
                    pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]
                    for pod in of_cancelled()
                ),
                deadline_s=60,
                what="the held pod is bound",
            )
            # Its own garbage collection must not be quicker than the operator's deletion.
            name = seeds[0].restore_name
            await scene.kubectl(
                *("delete", "sandboxrestore", name, "-n", namespace, "--cascade=orphan")
            )
            await dying
        async with these.spared():
            found = await scene.finished(woken)
            await until(
                lambda: not of_cancelled(), deadline_s=60, what="the cancelled pods are gone"
            )
    scene.nodes.release()
    nothing_lost(scene, found)


REDIRECT = ("give-up-event", "give-up-row", "redirect-row", "redirect-event")
"""The side effects that a redirect has beside those of every attempt, in their order."""


async def test_a_kill_around_any_side_effect_of_a_redirect_is_survived(
    scene: Scene, namespace: str
) -> None:
    """The row keeps the pin until the attempt is there, the marker until its Event is; each of
    them happens once, and each is told once."""
    wrong = next(
        n.name
        for n in scene.fleet
        if n.labels.get(HOST_CPU_LABEL) == "intel-6-79-1" and not n.unschedulable and not n.taints
    )
    woken: list[SandboxSeed] = []
    await scene.kubectl("label", "node", wrong, "space.pplx.net/draining=")
    try:
        async with operators(scene) as these:
            for number, effect in enumerate(REDIRECT):
                for moment in ("before", "after"):
                    prefix = f"{namespace}-{number}{moment[0]}"
                    seeds = sandbox_seeds(8, seed=7, namespace=namespace, prefix=prefix)
                    seed = next(s for s in seeds if s.capture_cpu == "intel-6-106-6.d4sv5")
                    await scene.add_sandboxes([seed])
                    await left_stranded(scene, seed, node=wrong, marker=True)
                    await scene.apply([seed], **ONLY_LOADERS)
                    woken.append(seed)
                    await these.killed(f"{moment}:{effect}:1")
            async with these.spared():
                found = await scene.finished(woken)
    finally:
        await scene.kubectl("label", "node", wrong, "space.pplx.net/draining-")
    nothing_lost(scene, found)
    told = reasons_told(scene, namespace)
    for seed in woken:
        row = await row_of(scene.dsn, seed.id)
        assert row.state == "running"
        moved = [e for e in row.executions if e["prior_pin"] == wrong]
        assert [e["source"] for e in moved] == ["storage"]
        reasons = told[seed.restore_name]
        assert reasons.count("MarkerGivenUp") == 1
        assert reasons.count("RedirectedToStorage") == 1


def reasons_told(scene: Scene, namespace: str) -> dict[str, list[str]]:
    """Reasons of the Events of a namespace by the name of the restore, one an Event."""
    told: dict[str, list[str]] = defaultdict(list)
    for event in scene.plane.api().items(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"):
        told[event["regarding"]["name"]].append(event["reason"])
    return told
