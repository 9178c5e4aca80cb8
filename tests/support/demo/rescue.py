"""The second act: what becomes of the sandboxes that the first one left stranded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.support.demo.findings import Findings, Sandbox, StoryError, gather
from tests.support.demo.narrator import Narrator, excerpt
from tests.support.demo.scene import Scene
from tests.support.fleet import SandboxSeed
from tests.support.simnode import read_record

SECOND, THIRD = "-2", "-3"
"""Ends of the names of the second and the third wake of a sandbox."""
CONDITIONS = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Stranded:
    """Sandboxes that a failed restore left pinned to the node that refused them."""

    seeds: Sequence[SandboxSeed]
    pins: Mapping[str, str]
    """Sandbox id to node."""
    marked: SandboxSeed
    """The one that gets a local artifact marker."""

    @property
    def free(self) -> list[SandboxSeed]:
        """The others."""
        return [seed for seed in self.seeds if seed is not self.marked]


async def left_by(scene: Scene, before: Findings) -> Stranded:
    """Return the sandboxes that never came up in an act, with their pins. Raises StoryError."""
    failed = [one.seed for one in before.failed]
    pins = await scene.pins(failed[0].namespace)
    for one in before.failed:
        node = one.refusals[-1].node
        _demand(pins.get(one.seed.id) == node, f"{one.seed.id} is not pinned to {node}")
    return Stranded(seeds=failed, pins=pins, marked=failed[-1])


async def gate_off(
    scene: Scene, left: Stranded, narrator: Narrator, *, settings: Mapping[str, str]
) -> Findings:
    """The way it is today: the next wake fails on the same node again."""
    narrator.act("Act 2, gate off: the stranded wake again")
    narrator.say(
        f"Act 1 left {len(left.seeds)} sandboxes pinned to the nodes that refused them, where the "
        "next wake has to try. Their users wake them again."
    )
    async with scene.operator(**settings):
        found = await _wake(scene, left.seeds, suffix=SECOND)
    check_gate_off(found, left)
    narrator.gap()
    narrator.bad(
        f"{len(found.refusals)} of {len(left.seeds)} were refused again, each by its node, and so "
        "is every later wake."
    )
    return found


async def gate_on(
    scene: Scene, left: Stranded, narrator: Narrator, *, settings: Mapping[str, str]
) -> Findings:
    """With the feature: a wake leaves the node when it loses nothing by it."""
    narrator.act("Act 2, gate on: redirected to storage, where nothing is lost by it")
    marked = left.marked
    narrator.say(
        f"They wake once more. To one of them something has happened meanwhile: the platform has "
        f"booted {marked.id} afresh on its node and suspended it there. What it did exists on that "
        "node alone, and its row says so (local artifact marker)."
    )
    await _run_and_suspend(scene, marked, node=left.pins[marked.id])
    async with scene.operator(**settings):
        found = await _wake(scene, left.seeds, suffix=THIRD)
    check_gate_on(found, left)
    narrator.gap()
    narrator.good(
        f"{len(left.free)} of {len(left.free)} were redirected to the copy of their snapshot in "
        "storage, came to a node that can load it, and run."
    )
    narrator.good(
        f"{marked.id} stayed on its node, for the copy in storage is older than what it did there."
    )
    return found


async def look(scene: Scene, found: Findings, left: Stranded, narrator: Narrator) -> None:
    """Show what a user sees of one that was redirected, and of the one that was not."""
    redirected = [one.seed for one in found.sandboxes if one.runs]
    at_once = [one.seed for one in found.sandboxes if one.runs and not one.refusals]
    narrator.gap()
    narrator.say(
        "Of one that was redirected: the seven conditions under which that loses nothing, and what "
        "happened."
    )
    await _describe(scene, (at_once or redirected)[0], ("Redirect", "Events"), narrator)
    narrator.gap()
    narrator.say("And of the one that stayed: what blocks it, and what a person can do about it.")
    await _describe(scene, left.marked, ("Events",), narrator)


async def _describe(
    scene: Scene, seed: SandboxSeed, sections: tuple[str, ...], narrator: Narrator
) -> None:
    name = seed.restore_name + THIRD
    described = await scene.kubectl("describe", "sbr", name, "-n", seed.namespace)
    command = f"kubectl describe sbr {name} -n {seed.namespace}"
    narrator.command(command, excerpt(described, *sections))


def compare(off: Findings, on: Findings, narrator: Narrator) -> None:
    """Set both wakes side by side."""
    narrator.gap()
    narrator.table(
        ("", "gate off", "gate on"),
        [
            ("stranded sandboxes woken", str(len(off.sandboxes)), str(len(on.sandboxes))),
            ("redirected to storage", str(_redirected(off)), str(_redirected(on))),
            ("sandboxes that run", str(off.running), str(on.running)),
            ("kept where their state is", str(_kept(off)), str(_kept(on))),
        ],
    )


def check_gate_off(found: Findings, left: Stranded) -> None:
    """Check what is told of today's wakes. Raises StoryError."""
    for one in found.sandboxes:
        _check_refused_at_home(one, left)
        _demand("redirect" not in _status(one), f"{_name(one)} judges a redirect, gate off")


def check_gate_on(found: Findings, left: Stranded) -> None:
    """Check what is told of the redirect. Raises StoryError."""
    for one in found.sandboxes:
        redirect = _status(one).get("redirect", {})
        if one.seed is left.marked:
            _check_refused_at_home(one, left)
            blocker = redirect.get("blockedBy")
            _demand(blocker == "NoLocalArtifact", f"{_name(one)} is blocked by {blocker}")
            continue
        _demand(
            one.succeeded and one.runs, f"{_name(one)} does not run: {one.reason}: {one.message}"
        )
        met = [condition["met"] for condition in redirect.get("conditions", ())]
        _demand(met == [True] * CONDITIONS, f"{_name(one)} has conditions {met}")
        home = left.pins[one.seed.id]
        away = all(load.source == "storage" and load.node != home for load in one.loads)
        _demand(away, f"{_name(one)} was loaded on {home} again")


def _check_refused_at_home(one: Sandbox, left: Stranded) -> None:
    home = left.pins[one.seed.id]
    where = [load.node for load in one.loads]
    _demand(where == [home], f"{_name(one)} came to {where}, and is pinned to {home}")
    _demand(bool(one.refusals), f"{_name(one)} was not refused on {home}")
    _demand(one.reason == "Stranded", f"{_name(one)} ended as {one.reason}: {one.message}")


async def _wake(scene: Scene, seeds: Sequence[SandboxSeed], *, suffix: str) -> Findings:
    """Wake these once more; return what came of these wakes alone."""
    await scene.apply(seeds, suffix=suffix, backoffLimit=2)
    await scene.finished(seeds)
    names = {seed.restore_name + suffix for seed in seeds}
    return gather(
        seeds,
        record=[e for e in read_record(scene.nodes.record.path) if e.restore in names],
        restores=[
            one for one in scene.restores(seeds[0].namespace) if one["metadata"]["name"] in names
        ],
    )


async def _run_and_suspend(scene: Scene, seed: SandboxSeed, *, node: str) -> None:
    """Report a run by the platform's own means, and its suspend; no snapshot of it is reported."""
    pod = {"node_name": node, "pod_uid": f"uid-of-{seed.id}"}
    await scene.report("execution_started", sandbox_id=seed.id, pod_name=f"{seed.id}-0", **pod)
    await scene.report("sandbox_suspended", sandbox_id=seed.id, **pod)


def _status(one: Sandbox) -> Mapping[str, Any]:
    status: Mapping[str, Any] = one.restore.get("status", {})
    return status


def _name(one: Sandbox) -> str:
    return str(one.restore.get("metadata", {}).get("name", one.seed.id))


def _redirected(found: Findings) -> int:
    return sum(_condition(one, "Redirected") == "True" for one in found.sandboxes)


def _kept(found: Findings) -> int:
    return sum(_condition(one, "Redirected") == "False" for one in found.sandboxes)


def _condition(one: Sandbox, kind: str) -> str:
    found = (c for c in _status(one).get("conditions", ()) if c["type"] == kind)
    return next((str(c["status"]) for c in found), "")


def _demand(holds: bool, otherwise: str) -> None:
    if not holds:
        raise StoryError(otherwise)
