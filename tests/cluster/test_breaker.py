"""Section 11 on real parts: what a node refused, it is not given again, and a CPU that fails on all
its loaders is not tried by every restore in turn."""

from __future__ import annotations

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
)
from tests.support.demo.scene import Scene
from tests.support.simnode import REAL_CPU_ANNOTATION, Event
from tests.support.waiting import until


async def test_a_cpu_that_all_its_loaders_refuse_is_told_loudly_and_burns_no_more_attempts(
    scene: Scene, namespace: str
) -> None:
    """Two hosts whose label promises what they cannot do, as after a firmware update."""
    liars = [
        n.name
        for n in scene.fleet
        if n.labels.get("space.pplx.net/host-cpu") == CAPTURE
        and not n.unschedulable
        and not n.taints
    ]
    first, second, third = [
        await one_sandbox(scene, namespace, f"circuit-{n}") for n in ("a", "b", "c")
    ]
    for node in liars:
        await scene.kubectl(
            "annotate", "node", node, f"{REAL_CPU_ANNOTATION}={WRONG}", "--overwrite"
        )
    try:
        async with scene.operator(**gate_on(scene)):
            for seed in (first, second):
                await apply(scene, seed, seed.id, hostCpuPolicy="Required")
                await until(
                    lambda seed=seed: (
                        condition(restore_of(scene, seed, seed.id), "Succeeded").get("reason")
                        in ("Stranded", "CircuitOpen")
                    ),
                    deadline_s=60,
                    what=f"{seed.id} finds no loader any more",
                )
            # A node that refused is not given the same snapshot again, whatever its label.
            nodes = [node for event, node in loads_of(scene, first) if event is Event.LOAD_REFUSED]
            assert sorted(nodes) == sorted(liars)
            await apply(scene, third, third.id, hostCpuPolicy="Required")
            await until(
                lambda: (
                    condition(restore_of(scene, third, third.id), "Succeeded").get("reason")
                    == "CircuitOpen"
                ),
                deadline_s=60,
                what="the third restore is held back",
            )
            assert loads_of(scene, third) == []
            assert (await events_of(scene, third, third.id)).count("CircuitOpen") == 1
            said = condition(restore_of(scene, third, third.id), "Succeeded")["message"]
            assert CAPTURE in said
            # An override for bad days is not held back.
            await scene.kubectl("delete", "sandboxrestore", third.id, "-n", namespace)
            await apply(scene, third, "anyway", hostCpuPolicy="Ignore", backoffLimit=1)
            await finished(scene, third, "anyway")
            assert loads_of(scene, third)
    finally:
        for node in liars:
            await scene.kubectl(
                "annotate", "node", node, f"{REAL_CPU_ANNOTATION}={CAPTURE}", "--overwrite"
            )
