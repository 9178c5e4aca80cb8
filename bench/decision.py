"""How long a placement decision takes, and what a node costs, for fleets of several sizes.

Every decision is asked for another sandbox, snapshot, node group and node selector than the one
before, and one node changes for every ten decisions, so that nothing is answered from a memory of
the last answer. Times are CPU time of the thread, for a decision waits for nothing, and other
programs on the machine are not its cost; what they do to caches still shows, and `--repeat` keeps
the best of several runs. Garbage collection stays on.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sandbox_restore.fleet.compatibility import Compatibility
from sandbox_restore.fleet.index import FleetIndex
from sandbox_restore.model import names
from sandbox_restore.model.node import NodeFacts, Taint
from sandbox_restore.model.sandbox import Snapshot
from sandbox_restore.placement.decision import PlacementRequest, decide
from sandbox_restore.placement.explain import explanation, message
from sandbox_restore.placement.gate import Gate
from sandbox_restore.placement.match import PodRequirements
from sandbox_restore.placement.reachable import Demand

NOW: Final = datetime(2026, 3, 1, tzinfo=UTC)
SIZES: Final = (1_000, 15_000, 100_000)
LABELS: Final = 28
"""Labels of a node besides ours and its host name; cloud nodes carry 20 to 40."""
GROUPS: Final = 8

TEMPLATE: Final[dict[str, Any]] = {
    "spec": {
        "nodeSelector": {"kubernetes.io/arch": "amd64"},
        "tolerations": [{"key": "sandboxes", "operator": "Exists", "effect": "NoSchedule"}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {
                            "matchExpressions": [
                                {"key": "pool", "operator": "In", "values": ["p0", "p1", "p2"]},
                                {"key": "disk", "operator": "NotIn", "values": ["hdd"]},
                            ]
                        }
                    ]
                }
            }
        },
    }
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One fleet size. Times in microseconds."""

    nodes: int
    cpus: int
    decision_p50_us: float
    decision_p99_us: float
    shortlist_p50_us: float
    shortlist_p99_us: float
    explanation_p50_us: float
    explanation_p99_us: float
    heartbeat_p50_us: float
    heartbeat_p99_us: float
    event_p50_us: float
    event_p99_us: float
    fill_us_per_node: float
    bytes_per_node: float


def cpu_name(number: int) -> str:
    return f"intel-6-{number + 1}-{number % 7}"


def node_name(number: int) -> str:
    return f"ip-10-{number >> 16 & 255}-{number >> 8 & 255}-{number & 255}.region.compute.internal"


def make_node(number: int, *, cpus: int, dice: random.Random) -> NodeFacts:
    """A node as a cloud makes one: many labels, few taints, some cordoned or being deleted."""
    name = node_name(number)
    labels = {f"cloud.example.com/label-{i:02}": f"value-{number % (3 + i)}" for i in range(LABELS)}
    labels |= {
        "kubernetes.io/hostname": name,
        "kubernetes.io/arch": "amd64" if number % 10 else "arm64",
        "pool": f"p{number % 5}",
        "disk": "hdd" if number % 11 == 0 else "nvme",
        names.NODE_GROUP_LABEL: f"group-{number % GROUPS}",
    }
    if number % 29:
        labels[names.HOST_CPU_LABEL] = cpu_name(dice.randrange(cpus))
    if number % 97 == 0:
        labels[names.PLACEMENT_BLOCK_LABEL] = "draining"
    taints: tuple[Taint, ...] = (Taint("sandboxes", "", "NoSchedule"),)
    if number % 53 == 0:
        taints = (*taints, Taint("gpu", f"model-{number % 9}", "NoSchedule"))
    if number % 499 == 0:
        taints = (*taints, Taint("to-be-deleted", str(number), "NoSchedule"))
    return NodeFacts(
        name=name,
        uid=f"{dice.getrandbits(128):032x}",
        created=NOW - timedelta(days=1, seconds=number),
        labels=dict(sorted(labels.items())),  # as the API server sends them
        taints=taints,
        unschedulable=number % 41 == 0,
        deleting=number % 1009 == 0,
        ready=True,
        ready_since=NOW - timedelta(seconds=number),
        services_ready=number % 13 != 0,
        network_slots=number % 64,
        resource_version=number + 1,
    )


def fresh(facts: NodeFacts) -> NodeFacts:
    """The same node as another event would bring it: equal, and no object the same."""
    return replace(
        facts,
        name="".join(facts.name),
        uid=facts.uid[:16] + facts.uid[16:],
        labels={key[:3] + key[3:]: value[:1] + value[1:] for key, value in facts.labels.items()},
        taints=tuple(replace(taint) for taint in facts.taints),
        created=facts.created + timedelta(0),
        resource_version=facts.resource_version + 10**7,
    )


def timed(actions: Iterator[Callable[[], object]]) -> list[float]:
    """Microseconds that each action took, sorted."""
    clock, taken = time.thread_time_ns, []
    for action in actions:
        start = clock()
        action()
        taken.append((clock() - start) / 1000)
    return sorted(taken)


def percentile(taken: list[float], share: float) -> float:
    return round(taken[min(len(taken) - 1, int(len(taken) * share))], 2)


def requests(count: int, *, cpus: int, nodes: int, hard_pin: bool) -> Iterator[PlacementRequest]:
    dice = random.Random(count)
    base = PodRequirements.of(TEMPLATE)
    for number in range(count):
        selector = {"kubernetes.io/arch": "amd64"}
        if number % 3 == 0:
            selector["cloud.example.com/label-20"] = f"value-{number % 23}"
        yield PlacementRequest(
            sandbox_id=f"sandbox-{number}",
            snapshot=Snapshot(
                id=f"snapshot-{number}",
                sandbox_id=f"sandbox-{number}",
                host_cpu=cpu_name(dice.randrange(cpus)) if number % 4 else None,
                captured_at=NOW,
                uploaded_by=node_name(dice.randrange(nodes)),
            ),
            demand=Demand(
                requirements=base.with_selector(selector),
                node_group=f"group-{number % GROUPS}" if number % 2 else None,
            ),
            gate=Gate.ON,
            hard_pin=hard_pin,
        )


def measure(*, nodes: int, cpus: int, count: int = 4_000, memory: bool = True) -> Figures:
    """All figures of one fleet size."""
    dice = random.Random(nodes)
    facts = [make_node(number, cpus=cpus, dice=dice) for number in range(nodes)]
    index = FleetIndex()
    gc.collect()
    start = time.thread_time_ns()
    index.replace(facts, now=NOW)
    filled = (time.thread_time_ns() - start) / 1000 / nodes
    gc.collect()
    pairs = {cpu_name(i): frozenset({cpu_name((i + 1) % cpus)}) for i in range(0, cpus, 2)}
    compatibility = Compatibility(pairs)

    def decisions(
        *, hard_pin: bool = False, before: Callable[[int], object] = lambda _number: None
    ) -> Iterator[Callable[[], object]]:
        asked = requests(count, cpus=cpus, nodes=nodes, hard_pin=hard_pin)
        for number, request in enumerate(list(asked)):
            before(number)
            yield lambda r=request: decide(r, index, compatibility, now=NOW)

    def churn(number: int) -> None:
        """One node is cordoned or uncordoned for every ten decisions."""
        if number % 10 == 0:
            facts_of = facts[dice.randrange(nodes)]
            node = index.get(facts_of.name)
            cordoned = node is not None and node.unschedulable
            index.apply(replace(fresh(facts_of), unschedulable=not cordoned), now=NOW)

    def explanations() -> Iterator[Callable[[], object]]:
        for r in requests(count // 10, cpus=cpus, nodes=nodes, hard_pin=False):
            decision = decide(r, index, compatibility, now=NOW)
            yield lambda r=r, d=decision: message(d, explanation(d, r, index))

    def events(change: Callable[[NodeFacts, int], NodeFacts]) -> Iterator[Callable[[], object]]:
        for number in range(min(count, nodes)):
            event = change(fresh(facts[dice.randrange(nodes)]), number)
            yield lambda e=event: index.apply(e, now=NOW)

    plain = timed(decisions(before=churn))
    pinned = timed(decisions(hard_pin=True, before=churn))
    told = timed(explanations())
    heartbeats = timed(events(lambda event, _: event))
    changes = timed(events(changed))
    return Figures(
        nodes=nodes,
        cpus=cpus,
        decision_p50_us=percentile(plain, 0.5),
        decision_p99_us=percentile(plain, 0.99),
        shortlist_p50_us=percentile(pinned, 0.5),
        shortlist_p99_us=percentile(pinned, 0.99),
        explanation_p50_us=percentile(told, 0.5),
        explanation_p99_us=percentile(told, 0.99),
        heartbeat_p50_us=percentile(heartbeats, 0.5),
        heartbeat_p99_us=percentile(heartbeats, 0.99),
        event_p50_us=percentile(changes, 0.5),
        event_p99_us=percentile(changes, 0.99),
        fill_us_per_node=round(filled, 2),
        bytes_per_node=kept_bytes(nodes=nodes, cpus=cpus) if memory else 0.0,
    )


def changed(event: NodeFacts, number: int) -> NodeFacts:
    """One of the things that happen to nodes: cordon, taint, another CPU, services, a new label."""
    match number % 5:
        case 0:
            return replace(event, unschedulable=not event.unschedulable)
        case 1:
            return replace(event, taints=(Taint("maintenance", "", "NoSchedule"),))
        case 2:
            labels = {**event.labels, names.HOST_CPU_LABEL: cpu_name(number % 40)}
            return replace(event, labels=labels)
        case 3:
            return replace(event, services_ready=not event.services_ready)
    return replace(event, labels={**event.labels, "cloud.example.com/new": str(number % 3)})


def kept_bytes(*, nodes: int, cpus: int) -> float:
    """Bytes that the index keeps per node: Python objects, and what the sets hold besides."""
    dice = random.Random(nodes)
    index = FleetIndex()
    gc.collect()
    tracemalloc.start()
    index.replace(
        (fresh(make_node(number, cpus=cpus, dice=dice)) for number in range(nodes)), now=NOW
    )
    gc.collect()
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(index) == nodes
    sets = [index.all, index.services_ready]
    for key in {key for node in index for key in node.label_keys}:
        sets.append(index.labels.having(key))
        sets += [index.labels.equal(key, value) for value in index.labels.values(key)]
    kept += sum(
        size
        for nodes_of in sets
        if len(nodes_of) > 1
        for name, size in nodes_of.get_statistics().items()
        if name.startswith("n_bytes")
    )
    return round(kept / nodes, 1)


def best(runs: list[Figures]) -> Figures:
    """The lowest of each figure: what the code costs, without what else ran."""
    found = [asdict(run) for run in runs]
    return Figures(**{name: min(run[name] for run in found) for name in found[0]})


def main(arguments: list[str]) -> int:
    """The command `python -m bench decision`."""
    parser = argparse.ArgumentParser(prog="python -m bench decision", description=__doc__)
    parser.add_argument("--nodes", type=int, action="append", help=f"default: {SIZES}")
    parser.add_argument("--cpus", type=int, default=40)
    parser.add_argument("--repeat", type=int, default=1, help="runs, of which the best counts")
    parser.add_argument("--no-memory", action="store_true", help="leave out bytes_per_node")
    parser.add_argument("--json", action="store_true", help="one object a line, one per size")
    options = parser.parse_args(arguments)
    answers = []
    for nodes in options.nodes or SIZES:
        runs = [
            measure(nodes=nodes, cpus=options.cpus, memory=not options.no_memory and not run)
            for run in range(options.repeat)
        ]
        first, figures = runs[0], best(runs)
        answers.append(replace(figures, bytes_per_node=first.bytes_per_node))
    if options.json:
        for answer in answers:
            print(json.dumps(asdict(answer)))
        return 0
    for name in asdict(answers[0]):
        print(f"{name:<20}", *(f"{getattr(answer, name):>12}" for answer in answers))
    return 0
