"""Section 12: the node history between memory and a real Postgres, also one that is away."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from sandbox_restore.fleet.history import NodeHistory
from sandbox_restore.fleet.index import FleetIndex
from sandbox_restore.model.node import NodeFacts
from sandbox_restore.model.sandbox import NodeCpuSpan
from sandbox_restore.store import node_recorder
from sandbox_restore.store.node_recorder import Ages, NodeRecorder
from sandbox_restore.store.store import Store
from tests.store.helpers import SANDBOX, Database, at, begin, blocked, load
from tests.support.postgres import TestPostgres
from tests.unit.fleet.nodes import AMD, ARM, INTEL_A, node

HOUR = 3600.0
AGES = Ages(
    published_hold=timedelta(hours=1),
    node_history=timedelta(days=1),
    observations=timedelta(hours=2),
)


class Operator:
    """The history, index and recorder of one process, with a clock that is told."""

    def __init__(self, store: Store, **options: Any) -> None:
        self.second = 0.0
        self.leads = True
        self.late_reads = 0
        self.history = NodeHistory(**options)
        self.index = FleetIndex(history=self.history, published_hold=AGES.published_hold)
        self.recorder = NodeRecorder(
            store=store,
            fleet=self.index,
            history=self.history,
            ages=AGES,
            clock=self.now,
            may_write=lambda: self.leads,
            on_late_read=self._late,
            monotonic=lambda: self.second,
        )

    def now(self) -> datetime:
        return at(self.second)

    def _late(self) -> None:
        self.late_reads += 1

    async def starts(self, *nodes: NodeFacts, second: float = 0) -> Operator:
        self.second = second
        await self.recorder.first_read(wait=0)
        self.index.replace(nodes, now=self.now())
        return self

    def hears(self, facts: NodeFacts, *, second: float) -> None:
        self.second = second
        self.index.apply(facts, now=self.now())

    def loses(self, name: str, *, second: float) -> None:
        self.second = second
        self.index.remove(name, f"uid-of-{name}", now=self.now())


def row(name: str, cpu: str, first: float, last: float, *, uid: str | None = None) -> NodeCpuSpan:
    return NodeCpuSpan(
        node_name=name,
        node_uid=uid or f"uid-of-{name}",
        host_cpu=cpu,
        first_seen_at=at(first),
        last_seen_at=at(last),
    )


async def rows(store: Store) -> list[NodeCpuSpan]:
    found = await store.node_history(at(-HOUR))
    return sorted(found, key=lambda one: (one.node_name, one.first_seen_at))


@pytest.fixture
async def statements(dsn: str) -> AsyncIterator[tuple[Store, list[str]]]:
    """A store, and the names of the statements that it sends."""
    seen: list[str] = []
    async with await Store.open(dsn, observe=lambda name, _seconds: seen.append(name)) as opened:
        yield opened, seen


async def test_what_begins_and_ends_is_written_in_one_statement_and_news_of_nothing_in_none(
    statements: tuple[Store, list[str]],
) -> None:
    store, seen = statements
    operator = await Operator(store).starts(*(node(f"n{i}", AMD) for i in range(50)), node("x"))
    seen.clear()
    await operator.recorder.look()
    assert seen == ["record_nodes"]
    for second in range(1, 100):
        operator.hears(node("n0", AMD, ready=bool(second % 2)), second=second)
        await operator.recorder.look()
    assert seen == ["record_nodes"]
    operator.loses("n0", second=100)
    operator.hears(node("x", ARM), second=100)
    await operator.recorder.look()
    assert seen == ["record_nodes"] * 2
    found = await rows(store)
    assert found[0] == row("n0", AMD, 0, 100)
    assert found[-1] == row("x", ARM, 100, 100)
    assert {one.last_seen_at for one in found[1:-1]} == {at(0)}


async def test_open_spans_are_extended_once_in_a_while_a_batch_a_look(
    statements: tuple[Store, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_recorder, "BATCH", 2)
    store, seen = statements
    operator = await Operator(store).starts(*(node(f"n{i}", AMD) for i in range(5)))
    await operator.recorder.look()
    operator.hears(node("n0", AMD, ready=False), second=node_recorder.EXTEND_EVERY - 1)
    seen.clear()
    await operator.recorder.look()
    assert seen == []
    operator.hears(node("n0", AMD), second=node_recorder.EXTEND_EVERY)
    for _ in range(5):
        await operator.recorder.look()
    assert seen == ["record_nodes"] * 3
    assert {one.last_seen_at for one in await rows(store)} == {at(node_recorder.EXTEND_EVERY)}


async def test_a_restart_goes_on_where_the_last_operator_was(db: Database, store: Store) -> None:
    first = await Operator(store).starts(
        node("stays", AMD), node("leaves", ARM), node("unseen", INTEL_A)
    )
    first.loses("leaves", second=60)
    await first.recorder.look()
    second = await Operator(store).starts(node("stays", AMD), second=600)
    assert second.index.published(now=second.now()) == (AMD, ARM, INTEL_A)
    assert second.index.left(now=second.now()) == {ARM: at(60), INTEL_A: at(60)}
    assert second.history.carried("leaves", at(30)).cpu == ARM
    assert second.history.carried("stays", at(300)).cpu == AMD
    await second.recorder.look()
    assert await rows(store) == [
        row("leaves", ARM, 0, 60),
        row("stays", AMD, 0, 600),
        row("unseen", INTEL_A, 0, 60),
    ]


async def test_the_hold_of_a_cpu_ends_by_the_time_its_last_node_was_seen(
    db: Database, store: Store
) -> None:
    first = await Operator(store).starts(node("leaves", ARM), node("stays", AMD))
    first.loses("leaves", second=60)
    await first.recorder.look()
    last = await Operator(store).starts(node("stays", AMD), second=60 + HOUR - 1)
    assert last.index.published(now=last.now()) == (AMD, ARM)
    assert last.index.published(now=at(60 + HOUR)) == (AMD,)
    late = await Operator(store).starts(node("stays", AMD), second=60 + HOUR + 1)
    assert late.index.published(now=late.now()) == (AMD,)


async def test_more_spans_than_memory_allows_are_read_those_seen_last(
    db: Database, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_recorder, "PAGE", 4)
    await store.record_nodes([row(f"n{i}", AMD, -100, -i) for i in range(20)])
    operator = await Operator(store, max_past=11).starts()
    carried = [operator.history.carried(f"n{i}", at(-50)).cpu for i in range(20)]
    assert carried == [None] * 20
    assert [operator.history.carried(f"n{i}", at(-i)).cpu for i in range(11)] == [AMD] * 11
    assert operator.history.size == 12


async def test_only_the_holder_of_the_lease_writes_and_prunes(db: Database, store: Store) -> None:
    operator = await Operator(store).starts(node("n1", AMD))
    await store.record_nodes([row("old", ARM, -9e5, -9e5)])
    operator.leads = False
    operator.second = node_recorder.EXTEND_EVERY
    await operator.recorder.look()
    await operator.recorder.prune()
    assert await store.node_history(at(-1e6)) == [row("old", ARM, -9e5, -9e5)]
    operator.leads = True
    await operator.recorder.look()
    await operator.recorder.prune()
    assert await store.node_history(at(-1e6)) == [row("n1", AMD, 0, 0)]


async def test_what_aged_out_is_pruned_each_by_its_own_age(db: Database, store: Store) -> None:
    day = 24 * HOUR
    await db.created()
    await db.stored()
    async with store.locked(SANDBOX) as locked:
        await begin(locked)
        await load(locked)  # observed at second 110
    await store.record_nodes([row("n1", AMD, -day, 110), row("n2", AMD, -day, 110 + day)])
    operator = await Operator(store).starts()
    left = []
    for age in (2 * HOUR, 2 * HOUR + 1, day, day + 1):
        operator.second = 110 + age
        await operator.recorder.prune()
        left.append((len(await store.observations(at(0))), len(await store.node_history(at(0)))))
    assert left == [(1, 2), (0, 2), (0, 2), (0, 1)]


async def test_two_operators_that_write_at_once_agree(db: Database, store: Store) -> None:
    """The Lease saves work; correctness does not rest on it."""
    old = await Operator(store).starts(node("n1", AMD), node("n2", ARM))
    new = await Operator(store).starts(node("n1", AMD), node("n2", ARM), second=5)
    await asyncio.gather(old.recorder.look(), new.recorder.look())
    old.loses("n2", second=9)
    new.loses("n2", second=8)
    for operator in (old, new):
        operator.second = 2 * node_recorder.EXTEND_EVERY
    await asyncio.gather(*(o.recorder.look() for o in (old, new, old, new)))
    next_one = await Operator(store).starts(node("n1", AMD), second=4000)
    carried = next_one.history.carried
    assert [carried("n1", at(second)).cpu for second in (0, 5, 8)] == [AMD] * 3
    assert [carried("n2", at(second)).cpu for second in (0, 8, 9, 10)] == [ARM, ARM, ARM, None]


async def test_a_row_that_is_refused_keeps_no_other_out(db: Database, store: Store) -> None:
    long = "u" * 300
    nodes = [node(f"n{i}", AMD, uid=long if i == 3 else None) for i in range(9)]
    operator = await Operator(store).starts(*nodes)
    await operator.recorder.look()
    assert {one.node_name for one in await rows(store)} == {f"n{i}" for i in range(9) if i != 3}
    assert (operator.history.given_up, operator.history.waiting) == (1, 0)


async def test_a_write_that_is_interrupted_is_written_again(
    db: Database, other: Database, store: Store
) -> None:
    operator = await Operator(store).starts(node("n1", AMD))
    transaction = other.raw.transaction()
    await transaction.start()
    await other.raw.execute("LOCK TABLE sandbox_restore.node_cpu_history IN EXCLUSIVE MODE")
    writing = asyncio.create_task(operator.recorder.look())
    await blocked(db)
    writing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await writing
    assert operator.history.waiting == 1
    await transaction.rollback()
    await operator.recorder.look()
    assert await rows(store) == [row("n1", AMD, 0, 0)]


async def test_what_is_new_is_written_at_the_end(db: Database, store: Store) -> None:
    operator = await Operator(store).starts(node("n1", AMD))
    async with operator.recorder.running():
        operator.loses("n1", second=7)
    assert await rows(store) == [row("n1", AMD, 0, 7)]


# --- a history that cannot be read


@contextlib.asynccontextmanager
async def unreadable(db: Database) -> AsyncIterator[Callable[[], Any]]:
    """The table is out of reach, all else is there; yields what brings it back."""
    move = "ALTER TABLE sandbox_restore.node_cpu_history RENAME TO elsewhere"
    back = "ALTER TABLE sandbox_restore.elsewhere RENAME TO node_cpu_history"
    await db.raw.execute(move)
    done = False

    async def mended() -> None:
        nonlocal done
        if not done:
            await db.raw.execute(back)
        done = True

    try:
        yield mended
    finally:
        await mended()


async def test_a_history_that_cannot_be_read_blocks_no_start_and_is_read_later(
    db: Database, store: Store
) -> None:
    await store.record_nodes([row("n1", AMD, -100, -50), row("gone", ARM, -100, -50)])
    async with unreadable(db) as mended:
        operator = await Operator(store).starts(node("n1", AMD))
        assert operator.index.warm
        assert not operator.history.loaded
        assert operator.index.published(now=operator.now()) == (AMD,)
        operator.hears(node("n2", INTEL_A), second=10)
        operator.loses("n2", second=20)
        await operator.recorder.look()
        assert operator.history.waiting == 2
        assert operator.late_reads == 0
        version = operator.index.version
        await mended()
        await operator.recorder.look()
    assert operator.late_reads == 1
    assert operator.index.version > version
    assert operator.index.published(now=operator.now()) == (AMD, ARM, INTEL_A)
    assert operator.history.carried("gone", at(-70)).cpu == ARM
    assert await rows(store) == [
        row("gone", ARM, -100, -50),
        row("n1", AMD, -100, 20),
        row("n2", INTEL_A, 10, 20),
    ]
    await operator.recorder.look()
    assert operator.late_reads == 1


@pytest.fixture
async def server(postgres: TestPostgres, db: Database) -> AsyncIterator[TestPostgres]:
    """The session's server: it may be stopped, and runs again for the next test."""
    if not postgres.can_restart:
        pytest.skip("a given server is not ours to stop")
    yield postgres
    await asyncio.to_thread(postgres.start)


async def test_a_database_that_is_away_loses_no_span(server: TestPostgres, store: Store) -> None:
    operator = await Operator(store).starts(node("n1", AMD), node("n2", ARM))
    await operator.recorder.look()
    await asyncio.to_thread(server.stop)
    operator.loses("n1", second=10)
    operator.hears(node("n3", INTEL_A), second=20)
    await operator.recorder.look()
    operator.loses("n3", second=30)
    operator.second = node_recorder.EXTEND_EVERY
    await operator.recorder.look()
    assert operator.history.waiting == 2
    await asyncio.to_thread(server.start)
    for _ in range(2):  # connections of before the outage fail once
        await operator.recorder.look()
    assert operator.history.waiting == 0
    assert await rows(store) == [
        row("n1", AMD, 0, 10),
        row("n2", ARM, 0, 30),
        row("n3", INTEL_A, 20, 30),
    ]


async def test_a_start_waits_for_a_database_that_is_away(server: TestPostgres, dsn: str) -> None:
    """Nothing can be decided without it either, so nothing is decided without the history."""
    # One connection: what a ping was answered on is what the next try asks.
    async with await Store.open(dsn, pool_size=1) as store:
        await store.record_nodes([row("gone", ARM, -100, -50)])
        await asyncio.to_thread(server.stop)
        operator = Operator(store)
        starting = asyncio.create_task(operator.starts())
        done, _ = await asyncio.wait({starting}, timeout=0.5)
        assert not done
        await asyncio.to_thread(server.start)
        async with asyncio.timeout(60):
            await starting
        assert operator.history.loaded
        assert operator.index.published(now=operator.now()) == (ARM,)
