"""Goes through fleets, each made from the seed and its number, and compares."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from sandbox_restore.fleet.index import FleetIndex
from sandbox_restore.kube.decode import node_from_body
from tests.differential.compare import NOW, disagreements, index_of, report
from tests.differential.nasty import Json, Nasty
from tests.differential.rendered import Restore, faults, restore
from tests.support.oracle import Oracle

NODES = 12
PODS = 20
"""Pods of each fleet: that many pairs."""
RESTORES = 4
"""Restores that are rendered for each fleet."""


@dataclass(slots=True)
class Result:
    """What a run found."""

    seed: int
    pairs: int = 0
    """Pairs of a pod and a fleet."""
    nodes: int = 0
    """Pairs of a pod and a node."""
    passing: int = 0
    """Of them, those that kube-scheduler lets pass."""
    restores: int = 0
    constrained: int = 0
    """Restores whose pod got the placement term."""
    shortlisted: int = 0
    differing: int = 0
    """Pairs that differ."""
    faulty: int = 0
    """Restores with a fault."""
    texts: list[str] = field(default_factory=list)
    """The first differences and faults, small enough to read."""
    seconds: float = 0.0

    @property
    def clean(self) -> bool:
        return not (self.differing or self.faulty)

    def line(self) -> str:
        share = self.passing / self.nodes if self.nodes else 0.0
        return (
            f"seed {self.seed}: {self.pairs} pairs of a pod and a fleet ({self.nodes} of a pod and"
            f" a node, {share:.0%} pass): {self.differing} differ; {self.restores} restores"
            f" ({self.constrained} with the term, {self.shortlisted} with a shortlist):"
            f" {self.faulty} faulty; {self.seconds:.1f} s"
        )


def compare(
    oracle: Oracle,
    *,
    pairs: int,
    seed: int,
    only: int | None = None,
    texts: int = 3,
    stop_early: bool = False,
) -> Result:
    """Compares `pairs` pairs; `only` one fleet of them. `texts`: differences to put in words."""
    result = Result(seed=seed)
    began = time.monotonic()
    fleets = range(-(-pairs // PODS)) if only is None else [only]
    for number in fleets:
        pods = min(PODS, pairs - result.pairs) if only is None else PODS
        _fleet(oracle, result, number=number, pods=pods, texts=texts)
        if stop_early and not result.clean:
            break
    result.seconds = time.monotonic() - began
    return result


def _fleet(oracle: Oracle, result: Result, *, number: int, pods: int, texts: int) -> None:
    """One fleet before and after some of its nodes change, so that kept sets must follow."""
    nasty = Nasty(f"{result.seed}/{number}")
    nodes = nasty.fleet(NODES)
    names = [node["metadata"]["name"] for node in nodes]
    index = index_of(nodes)
    asked = [nasty.pod(names, odd=nasty.random.choice((0.02, 0.1, 0.3))) for _ in range(pods)]
    restores = RESTORES * pods // PODS
    half = pods // 2
    again = asked[:half]
    for part, made_now in ((asked[:half], restores // 2), (asked[half:], restores - restores // 2)):
        made = [restore(nasty, index, names) for _ in range(made_now)]
        kept = [found for found in made if found is not None]
        extra = [] if part is again else again
        _compare(
            oracle,
            result,
            index=index,
            nodes=nodes,
            pods=[*part, *extra],
            restores=kept,
            number=number,
            texts=texts,
            counted=len(part),
        )
        nodes = _changed(nasty, nodes, index)


def _compare(
    oracle: Oracle,
    result: Result,
    *,
    index: FleetIndex,
    nodes: list[Json],
    pods: list[Json],
    restores: list[Restore],
    number: int,
    texts: int,
    counted: int,
) -> None:
    """The first `counted` pods count as pairs; the others were counted before a node changed."""
    oracle.keep(nodes)
    passing = oracle.passes([*pods, *_both(restores)])
    result.pairs += counted
    differing = []
    for pod, names in zip(pods, passing, strict=False):
        result.nodes += len(nodes)
        result.passing += len(names)
        found = disagreements(pod, index, names)
        if found:
            differing.append((pod, found))
    after = passing[len(pods) :]
    for made, base, rendered in zip(restores, after[::2], after[1::2], strict=True):
        result.restores += 1
        result.constrained += made.decision.term is not None
        result.shortlisted += bool(made.decision.rendered.shortlist)
        wrong = faults(made, index, base=base, passing=rendered)
        if wrong:
            result.faulty += 1
            if len(result.texts) < texts:
                result.texts.append(_fault_text(result.seed, number, made, nodes, wrong))
    result.differing += len(differing)
    for pod, found in differing[: max(texts - len(result.texts), 0)]:
        text = report(pod, nodes, oracle)
        if not text:
            # A fresh index agrees: it is what the index kept over a change of its nodes.
            text = f"  only after nodes changed: {found}\n  pod   {json.dumps(pod['spec'])}"
        result.texts.append(f"seed {result.seed}, fleet {number}: a pair differs\n{text}")


def _both(restores: list[Restore]) -> Iterator[Json]:
    for made in restores:
        yield made.base
        yield made.pod


def _fault_text(seed: int, number: int, made: Restore, nodes: list[Json], wrong: list[str]) -> str:
    spec = {name: made.pod["spec"].get(name) for name in ("nodeSelector", "affinity")}
    spec["tolerations"] = made.pod["spec"].get("tolerations")
    lines = [
        f"seed {seed}, fleet {number}: a restore is faulty",
        *(f"  {fault}" for fault in wrong),
    ]
    lines.append(f"  decision {made.decision.outcome} {made.decision.reason}")
    lines.append(f"  rendered {made.decision.rendered}")
    lines.append(f"  pod   {json.dumps(spec)}")
    lines += [
        f"  node  {json.dumps(node)}"
        for node in nodes
        if any(node["metadata"]["name"] in fault for fault in wrong)
    ]
    return "\n".join(lines)


def _changed(nasty: Nasty, nodes: list[Json], index: FleetIndex) -> list[Json]:
    """The fleet after one node is gone and two are others; the index takes in the events."""
    left = list(nodes)
    gone = left.pop(nasty.random.randrange(len(left)))["metadata"]
    index.remove(gone["name"], gone["uid"], now=NOW)
    for at in nasty.random.sample(range(len(left)), 2):
        node = nasty.node(left[at]["metadata"]["name"])
        if nasty.chance(0.5):
            node["metadata"]["uid"] = left[at]["metadata"]["uid"]
        left[at] = node
        index.apply(node_from_body(node), now=NOW)
    return left
