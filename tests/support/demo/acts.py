"""The acts of the story. Each tells what it does, does it, and checks what it tells."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tests.support.demo.findings import Findings, Sandbox
from tests.support.demo.narrator import Narrator, cut, keep_first
from tests.support.demo.scene import Scene
from tests.support.fleet import matrix_fleet, real_cpu, sandbox_seeds
from tests.support.simnode import Entry, Matrix, load_matrix
from tests.support.simnode.plan import HOST_CPU_LABEL
from tests.support.testbed import NodeSpec

SANDBOXES = 40
"""Sandboxes of each act; the same seed gives both acts the same capture CPUs."""
SEED = 7
ATTEMPTS = 2
LOAD_SECONDS = 2.0
"""Long enough that a node that refuses is not the emptiest all the time and attracts every pod."""
OPERATOR = {"retry_backoff_base": "200ms", "retry_backoff_max": "1s"}
"""Shorter waits between attempts than the default, so that the story is not long."""

BEFORE = "before"
AFTER = "after"
_MATRIX = load_matrix()
_SMALL = {"cpu": "4", "memory": "8Gi"}
"""Nodes so small that kube-scheduler sees each pod on them and spreads the restores."""
_ROWS_SHOWN = 12
_SENTENCE = 200
"""Characters of a condition's message that the story repeats."""


def gate_on_settings(matrix: Matrix) -> dict[str, str]:
    """Return the operator's settings with the gate on."""
    return {
        **OPERATOR,
        "host_cpu_placement_enabled": "true",
        "host_cpu_compatibility": matrix.compatibility(),
    }


def fleet() -> list[NodeSpec]:
    """Return the nodes of the story: five of each CPU, and two that no label tells of.

    Of these one refuses nearly everything and one nothing, so that both can be seen.
    """
    pickiest, *_, most_generous = sorted(_MATRIX.cpus, key=_loaded_by)
    return matrix_fleet(
        nodes_per_cpu=5,
        unlabelled=2,
        unlabelled_cpus=(pickiest, most_generous),
        allocatable=_SMALL,
    )


def _loaded_by(cpu: str) -> int:
    """Return how many CPUs' snapshots a CPU loads."""
    return sum(_MATRIX.can_load(capture, on=cpu) for capture in _MATRIX.cpus)


def show_fleet(nodes: Sequence[NodeSpec], *, matrix: Matrix, narrator: Narrator) -> None:
    """Show the fleet and who loads whose snapshots."""
    narrator.say(
        "The fleet has four CPU models. Two nodes have no host-CPU label, so nobody can see their "
        "CPU; they have one all the same, and the simulated nodes know it."
    )
    rows = []
    for cpu in matrix.cpus:
        of_cpu = [node for node in nodes if real_cpu(node) == cpu]
        labelled = [node.name for node in of_cpu if HOST_CPU_LABEL in node.labels]
        hidden = [node.name for node in of_cpu if HOST_CPU_LABEL not in node.labels]
        refuses = [other for other in matrix.cpus if not matrix.can_load(other, on=cpu)]
        rows.append(
            (cpu, str(len(labelled)), ", ".join(hidden) or "-", "\n".join(refuses) or "nothing")
        )
    narrator.table(("CPU", "labelled", "unlabelled", "refuses snapshots captured on"), rows)
    narrator.say(
        "Which CPU loads which snapshot is a measured, one-way matrix of real hosts "
        "(tests/fixtures/load-matrix.yaml)."
    )


async def gate_off(scene: Scene, narrator: Narrator) -> Findings:
    """The way it is today: Kubernetes places restores and knows nothing of CPUs."""
    narrator.act("Act 1, gate off: as today")
    narrator.say(
        f"{SANDBOXES} suspended sandboxes wake: one SandboxRestore each, by kubectl apply. "
        "kube-scheduler picks a node for each restore pod; it knows nothing of vCPU state. "
        f"Each restore may try {ATTEMPTS} times."
    )
    seeds = sandbox_seeds(SANDBOXES, seed=SEED, namespace=BEFORE, prefix="a")
    await scene.add_namespace(BEFORE)
    await scene.add_sandboxes(seeds)
    async with scene.operator(**OPERATOR):
        found = await scene.wake(seeds, backoffLimit=ATTEMPTS)
    found.check_sound(scene.matrix)
    found.check_gate_off()

    narrator.gap()
    narrator.good(f"{found.running} of {SANDBOXES} sandboxes run.")
    narrator.bad(
        f"{len(found.refused_first)} were refused by the first node they came to, "
        f"{len(found.failed)} of these never came up."
    )
    example = found.refused_first[0]
    refusal = example.refusals[0]
    narrator.gap()
    narrator.say(
        f"One of them: {example.seed.restore_name}, captured on {example.seed.capture_cpu}, came "
        f"to {refusal.node} ({refusal.node_cpu}). Firecracker said there:"
    )
    narrator.quote(_words(refusal))
    if len(example.refusals) > 1:
        narrator.say(_again(example))
    narrator.say(f"The restore ended as {example.reason}: {cut(example.message, _SENTENCE)}")
    return found


async def gate_on(scene: Scene, narrator: Narrator) -> Findings:
    """The same with the feature: restores keep off hosts that cannot load them."""
    narrator.act("Act 1, gate on")
    narrator.say(
        "The same operator with two more settings, and fresh sandboxes with the same capture CPUs:"
    )
    narrator.point("SPACE_SANDBOX_RESTORE_HOST_CPU_PLACEMENT_ENABLED=true")
    pairs = scene.matrix.compatibility().replace(",", ", ")
    narrator.point(f"SPACE_SANDBOX_RESTORE_HOST_CPU_COMPATIBILITY={pairs}")
    seeds = sandbox_seeds(SANDBOXES, seed=SEED, namespace=AFTER, prefix="b")
    await scene.add_namespace(AFTER)
    await scene.add_sandboxes(seeds)
    async with scene.operator(**gate_on_settings(scene.matrix)):
        found = await scene.wake(seeds, backoffLimit=ATTEMPTS)
    found.check_sound(scene.matrix)
    found.check_gate_on(scene.matrix)

    on_labelled = SANDBOXES - found.first_loads()[""]
    example = next(one for one in found.sandboxes if one.succeeded).loads[0]
    narrator.gap()
    narrator.say(
        f"Each restore pod now carries a requirement. That of {example.pod}, captured on "
        f"{example.capture_cpu}: {HOST_CPU_LABEL} NotIn [{', '.join(example.excluded)}]."
    )
    narrator.gap()
    narrator.good(
        f"{on_labelled} restores came to labelled nodes: not one was refused, each came up at the "
        "first try."
    )
    _tell_unlabelled(found, narrator)
    narrator.good(f"{found.running} of {SANDBOXES} sandboxes run.")
    return found


async def look(scene: Scene, found: Findings, narrator: Narrator) -> None:
    """Show what a user sees."""
    narrator.act("What a user sees")
    narrator.say("One line for each restore, and everything about one of them:")
    listed = await scene.kubectl("get", "sbr", "-n", AFTER, "-o", "wide")
    narrator.command(
        f"kubectl get sbr -n {AFTER} -o wide", keep_first(listed, lines=_ROWS_SHOWN, of="rows")
    )
    example = next(one for one in found.sandboxes if one.succeeded and one.loads[0].node_label)
    name = example.seed.restore_name
    described = await scene.kubectl("describe", "sbr", name, "-n", AFTER)
    narrator.command(f"kubectl describe sbr {name} -n {AFTER}", described)


def compare(before: Findings, after: Findings, narrator: Narrator) -> None:
    """Set the gate off and on side by side."""
    narrator.act("Act 1, side by side")
    narrator.table(
        ("", "gate off", "gate on"),
        [
            ("sandboxes woken", str(len(before.sandboxes)), str(len(after.sandboxes))),
            (
                "loads refused by labelled nodes",
                str(len(before.refusals_on_labelled)),
                str(len(after.refusals_on_labelled)),
            ),
            (
                "loads refused by unlabelled nodes",
                str(len(before.refusals_on_unlabelled)),
                str(len(after.refusals_on_unlabelled)),
            ),
            ("sandboxes that run", str(before.running), str(after.running)),
        ],
    )


def _tell_unlabelled(found: Findings, narrator: Narrator) -> None:
    came = found.first_loads()[""]
    refused = [one for one in found.refused_first if not one.loads[0].node_label]
    if came:
        later = sum(one.succeeded for one in refused)
        (narrator.bad if refused else narrator.good)(
            f"{came} came to nodes without a label; {len(refused)} of these were refused there"
            + (f", {later} of them came up elsewhere at the next try." if later else ".")
        )
    else:
        narrator.good(
            "None came to a node without a label this time; one that does may be refused."
        )
    narrator.aside(
        "That is allowed: a node without a label may have any CPU, and the operator leaves it "
        "eligible, so that a fleet whose labels are not there yet goes on working. The node agent "
        "puts the labels on; hostCpuPolicy: Required keeps a restore off unlabelled nodes."
    )


def _words(refusal: Entry) -> str:
    """Return the runner's words out of its termination message."""
    try:
        return str(json.loads(refusal.message)["message"])
    except (ValueError, KeyError):
        return refusal.message


def _again(example: Sandbox) -> str:
    nodes = {load.node for load in example.refusals}
    where = "the same node" if len(nodes) == 1 else f"{len(nodes)} nodes"
    return f"It was refused {len(example.refusals)} times, by {where}."
