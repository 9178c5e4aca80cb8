"""The operator dies, anywhere; nothing is lost and no sandbox ever has two live VMs."""

from __future__ import annotations

import random
import signal
import sys

import pytest

from tests.support.crashing_operator import EFFECTS
from tests.support.demo.findings import Findings
from tests.support.demo.scene import LEASE_NAMESPACE, Scene
from tests.support.fleet import sandbox_seeds
from tests.support.operator_process import OperatorProcess
from tests.support.waiting import until

KILLS = 20
SANDBOXES = 200
CRASHING = (sys.executable, "-m", "tests.support.crashing_operator")


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

NORMAL = sorted(set(EFFECTS) - {"delete-pod"})
MISSING = "Failed to open snapshot file: No such file or directory (os error 2)"


def crashing(scene: Scene, at: str) -> OperatorProcess:
    # With a Lease of its own: that a successor waits for it is tested by the first of the kills.
    environment = {"SPACE_SANDBOX_CRASH_AT": at}
    settings = {**gate_on(scene), "lease_name": "crashing"}
    return scene.operator_process(program=CRASHING, environment=environment, **settings)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("effect", NORMAL)
async def test_a_kill_between_any_two_side_effects_of_an_attempt_is_survived(
    scene: Scene, namespace: str, effect: str, moment: str
) -> None:
    seeds = sandbox_seeds(4, seed=1, namespace=namespace, prefix=f"{namespace}-sb")
    await scene.add_sandboxes(seeds)
    for seed in seeds[:2]:
        # Attempts that fail have side effects of their own: the retired row, the fence that goes.
        scene.nodes.fail(MISSING, sandbox=seed.id)
    operator = crashing(scene, f"{moment}:{effect}:2")
    await operator.start()
    await scene.apply(seeds, backoffLimit=100, **ONLY_LOADERS)
    assert await operator.wait(deadline_s=60) == -signal.SIGKILL
    scene.nodes.mend()
    async with scene.operator(**gate_on(scene)):
        found = await scene.finished(seeds)
    nothing_lost(scene, found)


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_kill_around_the_deletion_of_a_cancelled_pod_is_survived(
    scene: Scene, namespace: str, moment: str
) -> None:
    seeds = sandbox_seeds(3, seed=1, namespace=namespace, prefix=f"{namespace}-sb")
    await scene.add_sandboxes(seeds)
    scene.nodes.hold("load", sandbox=seeds[0].id)
    path = f"/api/v1/namespaces/{namespace}/pods"
    operator = crashing(scene, f"{moment}:delete-pod:1")
    await operator.start()
    await scene.apply(seeds, **ONLY_LOADERS)
    await until(
        lambda: any(
            pod["spec"].get("nodeName")
            for pod in scene.plane.api().items(path)
            if pod["metadata"]["labels"]["space.pplx.net/sandbox"] == seeds[0].id
        ),
        deadline_s=60,
        what="the held pod is bound",
    )
    # Its own garbage collection must not be quicker than the operator's deletion.
    await scene.kubectl(
        *("delete", "sandboxrestore", seeds[0].restore_name, "-n", namespace, "--cascade=orphan")
    )
    assert await operator.wait(deadline_s=60) == -signal.SIGKILL
    async with scene.operator(**gate_on(scene)):
        found = await scene.finished(seeds[1:])
        await until(
            lambda: all(
                pod["metadata"]["labels"]["space.pplx.net/sandbox"] != seeds[0].id
                for pod in scene.plane.api().items(path)
            ),
            deadline_s=60,
            what="the cancelled pod is gone",
        )
    scene.nodes.release()
    nothing_lost(scene, found)
