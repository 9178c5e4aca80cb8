"""Section 12: what the operator remembers of nodes that left, across its own restarts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg

from tests.cluster.rows import call
from tests.cluster.test_cancel import pods_of, settings
from tests.cluster.test_restores import excluded_cpus
from tests.support.demo.scene import Scene
from tests.support.fleet import SandboxSeed, sandbox_seeds
from tests.support.simnode.controls import REAL_CPU_ANNOTATION
from tests.support.testbed.nodes import NodeSpec
from tests.support.waiting import until

CAPTURED_ON, REPLACED_BY = "intel-6-85-7", "intel-6-106-6"
"""A snapshot of the first is refused by the second."""
RARE = ("intel-6-207-2", "intel-6-207-3")
"""CPUs that no other node of the fleet has, and on which no snapshot here can be loaded."""

Span = dict[str, Any]


def spec(name: str, cpu: str, *, unschedulable: bool = False) -> NodeSpec:
    return NodeSpec(
        name,
        labels={"space.pplx.net/host-cpu": cpu},
        annotations={REAL_CPU_ANNOTATION: cpu},
        unschedulable=unschedulable,
    )


async def spans(scene: Scene, name: str) -> list[Span]:
    connection = await asyncpg.connect(scene.dsn)
    try:
        found = await connection.fetch(
            "SELECT * FROM sandbox_restore.node_cpu_history WHERE node_name = $1"
            " ORDER BY first_seen_at",
            name,
        )
    finally:
        await connection.close()
    return [dict(one) for one in found]


async def recorded(scene: Scene, name: str, *, after: datetime | None = None) -> Span:
    """The node's newest span, once it is in the database; `after`: with an end later than that."""

    async def newest() -> Span | None:
        found = await spans(scene, name)
        return found[-1] if found and (after is None or found[-1]["last_seen_at"] > after) else None

    return await until(newest, deadline_s=60, what=f"{name} is in the node history")


async def replace(scene: Scene, node: NodeSpec, *, after: datetime) -> None:
    """Delete the node of that name and add another, whose creation is in a later second."""
    await leave(scene, node.name)
    await until(
        lambda: datetime.now(UTC) >= after + timedelta(seconds=1),
        deadline_s=5,
        what="the next whole second",
    )
    await asyncio.to_thread(scene.plane.add_nodes, [node])


async def leave(scene: Scene, name: str) -> None:
    await scene.kubectl("delete", "node", name)


@contextlib.asynccontextmanager
async def added(scene: Scene, node: NodeSpec) -> AsyncIterator[None]:
    """One more node; whatever has its name at the end is gone afterwards, and so is its history."""
    await asyncio.to_thread(scene.plane.add_nodes, [node])
    try:
        yield
    finally:
        await scene.kubectl("delete", "node", node.name, "--ignore-not-found")
        await call(
            scene.dsn,
            "DELETE FROM sandbox_restore.node_cpu_history WHERE node_name = $1",
            node.name,
        )


async def legacy_sandbox(
    scene: Scene, namespace: str, *, node: str, captured_at: datetime
) -> SandboxSeed:
    """A suspended sandbox whose snapshot does not record its capture CPU, as old ones do."""
    [seed] = sandbox_seeds(1, seed=1, namespace=namespace, prefix=f"{namespace}-legacy")
    for sql, *arguments in (
        ("sandbox_created(sandbox_id => $1, namespace => $2)", seed.id, namespace),
        (
            "snapshot_started(sandbox_id => $1, snapshot_id => $2, captured_at => $3,"
            " uploaded_by => $4)",
            *(seed.id, seed.snapshot_id, captured_at, node),
        ),
        (
            "snapshot_ready(sandbox_id => $1, snapshot_id => $2, storage_uri => $3)",
            *(seed.id, seed.snapshot_id, seed.storage_uri),
        ),
    ):
        await call(scene.dsn, f"SELECT sandbox_restore.{sql}", *arguments)
    scene.captures.put(seed.snapshot_id, CAPTURED_ON)
    return seed


async def first_pod(scene: Scene, seed: SandboxSeed) -> dict[str, Any]:
    pods = await until(
        lambda: pods_of(scene, seed), deadline_s=60, what=f"{seed.id} has its first pod"
    )
    return min(pods, key=lambda pod: str(pod["metadata"]["name"]))


async def placement(scene: Scene, seed: SandboxSeed) -> dict[str, Any]:
    def said() -> dict[str, Any] | None:
        for one in scene.restores(seed.namespace):
            if one["metadata"]["name"] == seed.restore_name:
                found: dict[str, Any] | None = one.get("status", {}).get("placement")
                return found
        return None

    return await until(said, deadline_s=60, what=f"{seed.restore_name} tells its placement")


async def test_a_replaced_node_is_known_by_what_it_was_when_it_captured_the_snapshot(
    scene: Scene, namespace: str
) -> None:
    name = f"{namespace}-reused"
    async with added(scene, spec(name, CAPTURED_ON)):
        async with scene.operator(**settings(scene)):
            captured_at = (await recorded(scene, name))["first_seen_at"]
            seed = await legacy_sandbox(scene, namespace, node=name, captured_at=captured_at)
            await replace(scene, spec(name, REPLACED_BY), after=captured_at)
            await recorded(scene, name, after=captured_at)
        async with scene.operator(**settings(scene)):
            await scene.apply([seed])
            pod = await first_pod(scene, seed)
            told = await placement(scene, seed)
            await scene.finished([seed])
    assert (told["captureCpu"], told["evidence"]) == (CAPTURED_ON, "uploader-history")
    assert told["decision"] == "Constrained"
    assert f"what uploading node {name} carried at capture time" in told["message"]
    assert "another instance of that name" in told["message"]
    assert REPLACED_BY in excluded_cpus(pod)
    assert CAPTURED_ON not in excluded_cpus(pod)
    assert not scene.nodes.record.violations


async def test_cpus_whose_last_node_left_are_excluded_after_a_restart_for_the_hold(
    scene: Scene, namespace: str
) -> None:
    seeds = sandbox_seeds(2, seed=5, namespace=namespace, prefix=f"{namespace}-sb")
    await scene.add_sandboxes(seeds)
    seen, unseen = (f"{namespace}-{cpu}" for cpu in RARE)
    nodes = [
        spec(name, cpu, unschedulable=True) for name, cpu in zip((seen, unseen), RARE, strict=True)
    ]
    async with added(scene, nodes[0]), added(scene, nodes[1]):
        async with scene.operator(**settings(scene)):
            await recorded(scene, seen)
            await recorded(scene, unseen)
            await leave(scene, seen)
        await leave(scene, unseen)
        pods = []
        for seed, hold in zip(seeds, ("1h", "0s"), strict=True):
            async with scene.operator(**settings(scene), published_hold=hold):
                await scene.apply([seed])
                pods.append(await first_pod(scene, seed))
    assert [excluded_cpus(pod) & set(RARE) for pod in pods] == [set(RARE), set()]
