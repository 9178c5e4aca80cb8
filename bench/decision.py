"""How long a placement decision takes, and what a node costs, for fleets of several sizes.

Every decision is asked for another sandbox, snapshot, node group and node selector than the one
before, and one node changes for every ten decisions, so that nothing is answered from a memory of
the last answer. Times are CPU time of the thread, for a decision waits for nothing, and other
programs on the machine are not its cost; what they do to caches still shows, and `--repeat` keeps
the best of several runs. Garbage collection stays on.

Beside it, for the same restores on the same fleet: a plain scan in Python over the records
(`scan`), and kube-scheduler's own filter plugins looped over the nodes in Go (`plugins`).
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Final

from bench._beside import plugin_times, scan_times
from bench._fleet import NOW, changed, cpu_name, fresh, make_node, requests
from sandbox_restore.fleet.compatibility import Compatibility
from sandbox_restore.fleet.index import FleetIndex
from sandbox_restore.model.node import NodeFacts
from sandbox_restore.placement.decision import decide
from sandbox_restore.placement.explain import explanation, message
from tests.support.oracle import Oracle
from tests.support.testbed import BuildError

SIZES: Final = (1_000, 15_000, 100_000)
BESIDE: Final = 30
"""Restores for which the scan and the plugins are asked; they take long on a large fleet."""


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
    scan_p50_us: float
    scan_p99_us: float
    plugins_p50_us: float | None
    plugins_p99_us: float | None
    """None where the program that links the plugins is not there."""
    fill_us_per_node: float
    bytes_per_node: float | None


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


def measure(
    *,
    nodes: int,
    cpus: int,
    count: int = 4_000,
    beside: int = BESIDE,
    memory: bool = True,
    oracle: Oracle | None = None,
) -> Figures:
    """All figures of one fleet size; `count` decisions, `beside` scans."""
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
    asked = list(requests(beside, cpus=cpus, nodes=nodes, hard_pin=False))
    scanned = scan_times(asked, index, compatibility)
    plugins = None
    if oracle is not None:
        plugins = plugin_times(asked, index, compatibility, oracle=oracle)
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
        scan_p50_us=percentile(scanned, 0.5),
        scan_p99_us=percentile(scanned, 0.99),
        plugins_p50_us=None if plugins is None else percentile(plugins, 0.5),
        plugins_p99_us=None if plugins is None else percentile(plugins, 0.99),
        fill_us_per_node=round(filled, 2),
        bytes_per_node=kept_bytes(nodes=nodes, cpus=cpus) if memory else None,
    )


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
    known = {name: [run[name] for run in found if run[name] is not None] for name in found[0]}
    return Figures(**{name: min(values, default=None) for name, values in known.items()})


def main(arguments: list[str]) -> int:
    """The command `python -m bench decision`."""
    parser = argparse.ArgumentParser(prog="python -m bench decision", description=__doc__)
    parser.add_argument(
        "--nodes", type=int, default=SIZES[-1], help=f"the largest fleet, besides {SIZES[:-1]}"
    )
    parser.add_argument("--cpus", type=int, default=40)
    parser.add_argument("--repeat", type=int, default=1, help="runs, of which the best counts")
    parser.add_argument("--no-memory", action="store_true", help="leave out bytes_per_node")
    parser.add_argument("--json", action="store_true", help="one object a line, one a fleet size")
    options = parser.parse_args(arguments)
    sizes = [*(size for size in SIZES[:-1] if size < options.nodes), options.nodes]
    answers = []
    with ExitStack() as stack:
        oracle = _oracle(stack)
        for nodes in sizes:
            runs = [
                measure(
                    nodes=nodes,
                    cpus=options.cpus,
                    memory=not options.no_memory and not run,
                    oracle=oracle,
                )
                for run in range(options.repeat)
            ]
            answers.append(best(runs))
    if options.json:
        for answer in answers:
            print(json.dumps(asdict(answer)))
        return 0
    for name in asdict(answers[0]):
        print(f"{name:<20}", *(f"{getattr(answer, name) or '-':>12}" for answer in answers))
    return 0


def _oracle(stack: ExitStack) -> Oracle | None:
    """The plugins; without them the rest is measured all the same."""
    try:
        return stack.enter_context(Oracle(log=lambda text: print(text, file=sys.stderr)))
    except BuildError as error:
        print(f"warning: no plugins: {error}", file=sys.stderr)
        return None
