"""Architecture, speed: a restore costs at most six statements, as the server counts them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from sandbox_restore.model.sandbox import NodeCpuSpan, Outcome, SandboxState
from sandbox_restore.store.store import Store
from tests.store.helpers import SANDBOX, Database, at, begin, load, with_option
from tests.support.postgres import EmbeddedPostgres, TestPostgres

FREE = re.compile(r"(BEGIN|COMMIT|ROLLBACK)\b")


class Counter:
    """The statements that the server ran for the store, from the server's log."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._offset = log.stat().st_size

    def taken(self) -> list[str]:
        """Those since the last call, without BEGIN, COMMIT and ROLLBACK."""
        with self._log.open(encoding="utf-8", errors="replace") as file:
            file.seek(self._offset)
            text = file.read()
            self._offset = file.tell()
        found = re.findall(r"LOG:  (?:statement|execute \S+):\s+(\S.*)", text)
        return [sql for sql in found if not FREE.match(sql)]


@pytest.fixture
def counter(postgres: TestPostgres) -> Counter:
    if not isinstance(postgres, EmbeddedPostgres):
        pytest.skip("the server's log is out of reach")
    return Counter(postgres.log)


@pytest.fixture
async def logged(dsn: str, counter: Counter) -> AsyncIterator[Store]:
    """A store whose connections are new, so that their first use is counted too."""
    async with await Store.open(with_option(dsn, "log_statement=all")) as opened:
        yield opened


@pytest.fixture
async def box(db: Database) -> Database:
    await db.created()
    await db.stored()
    return db


async def test_opening_asks_nothing(box: Database, logged: Store, counter: Counter) -> None:
    assert counter.taken() == []


CALLS: dict[str, Callable[[Store], Awaitable[object]]] = {
    "ping": lambda s: s.ping(),
    "view": lambda s: s.view(SANDBOX, restore_uids=["a", "b"]),
    "mark_released": lambda s: s.mark_released(SANDBOX, "e", pod_uid="u", now=at(1)),
    "unreleased_active": lambda s: s.unreleased_active(),
    "restoring_without_active": lambda s: s.restoring_without_active(),
    "released_retired": lambda s: s.released_retired(at(0)),
    "counts": lambda s: s.counts(),
    "refusals": lambda s: s.refusals(at(0)),
    "observations": lambda s: s.observations(at(0)),
    "node_history": lambda s: s.node_history(at(0)),
    "cpus_last_seen": lambda s: s.cpus_last_seen(at(0)),
    "record_nodes": lambda s: s.record_nodes(
        [
            NodeCpuSpan(
                node_name="n",
                node_uid="u",
                host_cpu="a",
                first_seen_at=at(0),
                last_seen_at=at(1),
            )
        ]
    ),
    "prune": lambda s: s.prune(observations_before=at(0), spans_before=at(0)),
}


@pytest.mark.parametrize("name", CALLS)
async def test_each_call_is_one_statement_also_the_first_time(
    box: Database, logged: Store, counter: Counter, name: str
) -> None:
    await CALLS[name](logged)
    assert len(counter.taken()) == 1
    await CALLS[name](logged)
    assert len(counter.taken()) == 1


async def test_the_lock_is_one_statement_and_so_is_each_write(
    box: Database, logged: Store, counter: Counter
) -> None:
    async with logged.locked(SANDBOX, restore_uids=["restore-uid"]) as locked:
        assert len(counter.taken()) == 1
        await begin(locked)
        assert len(counter.taken()) == 1
        await load(locked)
        assert len(counter.taken()) == 1
        await locked.clear_marker()
        await locked.set_marker()
        await locked.fail_row(at(130))
        assert len(counter.taken()) == 3
        await locked.retire(
            execution_id="execution-1",
            outcome=Outcome.LOST,
            row_state=SandboxState.SUSPENDED,
            pinned_node="node-b",
            marker=True,
            now=at(140),
        )
        assert len(counter.taken()) == 1
    assert counter.taken() == []


async def test_a_successful_restore_is_six_statements(
    box: Database, logged: Store, counter: Counter
) -> None:
    uids = ["restore-uid"]
    await logged.view(SANDBOX, restore_uids=uids)
    async with logged.locked(SANDBOX, restore_uids=uids) as locked:
        await begin(locked)
    async with logged.locked(SANDBOX, restore_uids=uids) as locked:
        await load(locked)
    await logged.mark_released(
        SANDBOX, "execution-1", pod_uid="pod-of-1", now=at(111), restore_uids=uids
    )
    assert [re.search(r"operator_\w+", sql).group() for sql in counter.taken()] == [  # type: ignore[union-attr]
        "operator_view",
        "operator_lock",
        "operator_begin_attempt",
        "operator_lock",
        "operator_mark_loaded",
        "operator_mark_released",
    ]


async def test_nothing_to_record_is_no_statement(
    box: Database, logged: Store, counter: Counter
) -> None:
    assert await logged.record_nodes([]) == 0
    assert counter.taken() == []


async def test_every_statement_is_observed_by_name(box: Database, dsn: str) -> None:
    seen: list[str] = []
    async with await Store.open(dsn, observe=lambda name, _seconds: seen.append(name)) as store:
        await store.view(SANDBOX)
        async with store.locked(SANDBOX) as locked:
            await begin(locked)
    assert seen == ["view", "lock", "begin_attempt"]
