"""Section 12 over whole stories: whatever happens, and whenever the operator restarts, the history
never tells of a CPU that another Node or label of that name had at that time."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from hypothesis import event, given, settings
from hypothesis import strategies as st

from sandbox_restore.fleet.history import NodeHistory
from sandbox_restore.fleet.index import FleetIndex
from sandbox_restore.model.node import NodeFacts
from sandbox_restore.model.sandbox import NodeCpuSpan
from tests.unit.fleet.nodes import NOW, node

NAMES = ("n1", "n2")


def at(second: float) -> datetime:
    return NOW + timedelta(seconds=second)


@dataclass
class Database:
    """What `record_nodes` and `node_history` do."""

    rows: dict[tuple[str, str, datetime], NodeCpuSpan] = field(default_factory=dict)

    def record(self, spans: list[NodeCpuSpan]) -> None:
        assert len({(s.node_name, s.node_uid, s.first_seen_at) for s in spans}) == len(spans)
        for span in spans:
            assert span.first_seen_at <= span.last_seen_at
            key = (span.node_name, span.node_uid, span.first_seen_at)
            known = self.rows.setdefault(key, span)
            assert known.host_cpu == span.host_cpu
            if known.last_seen_at < span.last_seen_at:
                self.rows[key] = span


class World:
    """Nodes as they really are, a watch that may lag or lose events, and an operator."""

    def __init__(self) -> None:
        self.second = 0
        self.version = 1
        self.numbers = 0
        self.there: dict[str, NodeFacts] = {}
        self.truth: dict[str, list[tuple[str, str] | None]] = {name: [] for name in NAMES}
        """By second: UID and label, "" for none; None: no such node."""
        self.news: list[tuple[str, NodeFacts]] = []
        self.lossy = False
        """The watch is broken: nothing is told until the next list."""
        self.database = Database()
        self.restart(late=False)

    def passes(self, seconds: int) -> None:
        for _ in range(seconds):
            for name in NAMES:
                facts = self.there.get(name)
                self.truth[name].append(None if facts is None else (facts.uid, label(facts)))
            self.second += 1

    def fresh(self) -> int:
        self.numbers += 1
        return self.numbers

    # --- the cluster

    def put(self, name: str, cpu: str | None, *, uid: str, created: datetime) -> None:
        self.version += 1
        facts = node(name, cpu, uid=uid, created=created, resource_version=self.version)
        self.there[name] = facts
        self.tell("MODIFIED", facts)

    def create(self, name: str, labelled: bool) -> None:
        if name not in self.there:
            cpu = f"cpu-{self.fresh()}" if labelled else None
            # Whole seconds: it may have been created up to one second later.
            self.put(name, cpu, uid=f"uid-{self.fresh()}", created=at(self.second - 1))

    def delete(self, name: str) -> None:
        facts = self.there.pop(name, None)
        if facts is not None:
            self.version += 1
            self.tell("DELETED", facts)

    def relabel(self, name: str) -> None:
        """A label that was left never comes back, so that what is unseen cannot be undone; and it
        is told at once or, with a broken watch, by the next list."""
        facts = self.there.get(name)
        if facts is not None:
            self.put(name, f"cpu-{self.fresh()}", uid=facts.uid, created=facts.created)
            self.deliver()

    def blink(self, name: str) -> None:
        """The label is gone for a second."""
        facts = self.there.get(name)
        if facts is not None and label(facts):
            cpu = label(facts)
            self.put(name, None, uid=facts.uid, created=facts.created)
            self.passes(1)
            self.put(name, cpu, uid=facts.uid, created=facts.created)

    # --- the operator

    def tell(self, kind: str, facts: NodeFacts) -> None:
        if not self.lossy:
            self.news.append((kind, facts))

    def deliver(self) -> None:
        for kind, facts in self.news:
            if kind == "DELETED":
                self.index.remove(facts.name, facts.uid, now=at(self.second))
            else:
                self.index.apply(facts, now=at(self.second))
        self.news.clear()

    def hears(self) -> None:
        """News of another node: so far all is told."""
        if not self.lossy:
            self.deliver()
            self.version += 1
            beat = node("other", resource_version=self.version)
            self.index.apply(beat, now=at(self.second))

    def breaks(self) -> None:
        self.deliver()
        self.lossy = True

    def unseen(self, what: str, name: str, seconds: int) -> None:
        """The watch breaks, something happens to a node, and a list shows it later."""
        self.breaks()
        getattr(self, what)(name)
        self.passes(seconds)
        self.relist()

    def late(self, name: str, seconds: int, labelled: bool) -> None:
        """A node is replaced under its name, and the watch tells of it later."""
        self.delete(name)
        self.create(name, labelled)
        self.passes(seconds)
        self.deliver()

    def relist(self) -> None:
        self.lossy = False
        self.news.clear()
        self.index.replace(self.there.values(), now=at(self.second), version=self.version)

    def write(self, fails: bool, extend: bool) -> None:
        self.deliver()
        if extend:
            self.history.extend_all()
        batch = self.history.unwritten(3) + self.history.extended(9)
        if fails:
            self.history.give_back(batch)
        else:
            unique = {(s.node_name, s.node_uid, s.first_seen_at): s for s in batch}
            self.database.record(list(unique.values()))

    def unrecorded(self, name: str) -> None:
        """A node leaves while the database is away."""
        self.delete(name)
        self.write(fails=True, extend=False)

    def write_all(self) -> None:
        self.deliver()
        self.history.extend_all()
        while batch := self.history.unwritten(3):
            self.database.record(batch)
        self.database.record(self.history.extended(99))

    def restart(self, late: bool) -> None:
        self.news.clear()
        self.lossy = False
        self.history = NodeHistory()
        self.index = FleetIndex(history=self.history)
        if not late:
            self.read()
        self.relist()

    def read(self) -> None:
        if not self.history.loaded:
            self.history.load(list(self.database.rows.values()), known_after=at(-1e6))


def within(second: int) -> datetime:
    """A time after all that happened in that second."""
    return at(second + 0.5)


def label(facts: NodeFacts) -> str:
    return facts.labels.get("space.pplx.net/host-cpu", "")


names = st.sampled_from(NAMES)
whats = st.sampled_from(["relabel", "delete", "blink"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("unseen"), whats, names, st.integers(1, 3)),
        st.tuples(st.just("unrecorded"), names),
        st.tuples(st.just("late"), names, st.integers(1, 3), st.booleans()),
        st.tuples(st.just("passes"), st.integers(1, 5)),
        st.tuples(st.just("create"), names, st.booleans()),
        st.tuples(st.just("delete"), names),
        st.tuples(st.just("relabel"), names),
        st.tuples(st.just("blink"), names),
        st.tuples(st.just("deliver")),
        st.tuples(st.just("hears")),
        st.tuples(st.just("breaks")),
        st.tuples(st.just("relist")),
        st.tuples(st.just("write"), st.booleans(), st.booleans()),
        st.tuples(st.just("restart"), st.booleans()),
        st.tuples(st.just("read")),
    ),
    min_size=5,
    max_size=40,
)


def told_rightly(world: World) -> int:
    """Checks every second of every name; returns how many answers there were."""
    answers = 0
    for name in NAMES:
        for second, real in enumerate(world.truth[name]):
            cpu = world.history.carried(name, within(second)).cpu
            if cpu is None:
                continue
            answers += 1
            if real is None or real[1] == "":
                # Between the end and what was told of it, or while the label blinked: nobody
                # else had the name, and this is what it had.
                earlier = [one for one in world.truth[name][:second] if one and one[1]]
                assert earlier, (name, second, cpu)
                assert earlier[-1][1] == cpu, (name, second, cpu)
            else:
                assert real[1] == cpu, (name, second, cpu, real)
    return answers


@settings(max_examples=200, deadline=None)
@given(STEPS)
def test_no_story_makes_the_history_tell_of_another_cpu(steps: list[tuple[object, ...]]) -> None:
    world = World()
    for step, *arguments in steps:
        getattr(world, str(step))(*arguments)
        world.passes(1)
    world.deliver()
    world.read()
    event("answered" if told_rightly(world) else "silent")
    world.restart(late=False)
    told_rightly(world)


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_a_restart_forgets_nothing_that_was_written(steps: list[tuple[object, ...]]) -> None:
    world = World()
    for step, *arguments in steps:
        getattr(world, str(step))(*arguments)
        world.passes(1)
    world.read()
    world.write_all()
    seconds = range(world.second)
    before = {(n, s): world.history.carried(n, within(s)).cpu for n in NAMES for s in seconds}
    world.restart(late=False)
    for (name, second), cpu in before.items():
        if cpu is not None:
            assert world.history.carried(name, within(second)).cpu == cpu, (name, second)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("create"), names, st.just(True)),
            st.tuples(st.just("delete"), names),
            st.tuples(st.just("passes"), st.integers(1, 5)),
        ),
        max_size=40,
    )
)
def test_with_prompt_news_every_second_of_every_node_is_known(
    steps: list[tuple[object, ...]],
) -> None:
    world = World()
    for step, *arguments in steps:
        getattr(world, str(step))(*arguments)
        world.deliver()
        world.passes(1)
    world.hears()
    for name in NAMES:
        for second, real in enumerate(world.truth[name]):
            if real is not None:
                assert world.history.carried(name, within(second)).cpu == real[1]
