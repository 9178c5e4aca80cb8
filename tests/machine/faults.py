"""What can befall a node, its machine and its Node object."""

from __future__ import annotations

from collections.abc import Callable

from sandbox_restore.model import names
from tests.machine.cluster import Cluster, Machine
from tests.machine.story import RIGHT, WRONG, Story

DRAINING = "space.pplx.net/draining"


def node_faults(story: Story, machine: Machine) -> dict[str, Callable[[], object]]:
    """All that may happen to it now, by what a person would call it."""
    cluster, name = story.cluster, machine.name
    there = cluster.node(name) is not None

    def die() -> None:
        cluster.die(machine)
        story.platform.machine_died(machine)

    def reboot() -> None:
        cluster.reboot(machine)
        story.platform.machine_died(machine)

    found: dict[str, Callable[[], object]] = {}
    if machine.alive and machine.contact and there:
        found["loses contact"] = lambda: cluster.lose_contact(machine)
    if machine.alive and not (machine.contact and there):
        again = "has contact again" if there else "registers again under a new UID"
        found[again] = lambda: cluster.find_contact(machine)
    if machine.alive:
        found["dies"] = die
    if not machine.alive and there:
        found["is back, empty"] = reboot
        found["is out of service"] = lambda: cluster.taint(name, names.OUT_OF_SERVICE_TAINT)
    if there:
        found["loses its Node object"] = lambda: cluster.delete_node(machine)
        found["is drained"] = lambda: cluster.taint(name, DRAINING)
        found["is labelled anew"] = lambda: cluster.label(name, _next_label(cluster, name))
    else:
        found["is another machine"] = lambda: cluster.replace(machine)
    return found


def _next_label(cluster: Cluster, name: str) -> str | None:
    """Its labels in turn: the right CPU, a wrong one, none."""
    labels = cluster.api.nodes[name]["metadata"]["labels"]
    return {RIGHT: WRONG, WRONG: None, None: RIGHT}[labels.get(names.HOST_CPU_LABEL)]
