"""Nodes of a test's own, which it may take down, relabel and make anew."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from tests.support.demo.scene import Scene
from tests.support.simnode.controls import REAL_CPU_ANNOTATION
from tests.support.simnode.plan import HOST_CPU_LABEL
from tests.support.testbed import NodeSpec

CORNER = "example.com/corner"
"""Label of the nodes that only one test's restores may use."""


def own_node(
    corner: str, name: str, *, cpu: str, label: str | None = None, cordoned: bool = False
) -> NodeSpec:
    """A node of a test; `label` is its host-CPU label where that is not its CPU."""
    return NodeSpec(
        f"{corner}-{name}",
        labels={CORNER: corner, HOST_CPU_LABEL: label or cpu},
        annotations={REAL_CPU_ANNOTATION: cpu},
        unschedulable=cordoned,
    )


@contextlib.asynccontextmanager
async def own_nodes(scene: Scene, *specs: NodeSpec) -> AsyncIterator[None]:
    """These nodes beside the fleet; at the end none of their corner is left."""
    await join(scene, *specs)
    try:
        yield
    finally:
        await scene.kubectl("delete", "nodes", "-l", f"{CORNER}={specs[0].labels[CORNER]}")


async def join(scene: Scene, *specs: NodeSpec) -> None:
    """Add nodes; returns once pods can be bound to them."""
    await asyncio.to_thread(scene.plane.add_nodes, specs)
    names = [spec.name for spec in specs]
    await asyncio.to_thread(scene.plane.wait_nodes_ready, names=names)


async def leave(scene: Scene, spec: NodeSpec) -> None:
    """Delete a Node object; its machine, if it runs, runs on."""
    await scene.kubectl("delete", "node", spec.name)


async def relabel(scene: Scene, spec: NodeSpec, cpu: str | None) -> None:
    """Edit a node's host-CPU label; None takes it off."""
    change = f"{HOST_CPU_LABEL}-" if cpu is None else f"{HOST_CPU_LABEL}={cpu}"
    await scene.kubectl("label", "--overwrite", "node", spec.name, change)
