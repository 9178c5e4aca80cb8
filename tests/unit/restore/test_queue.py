"""The keyed queue: each key once, one worker a key, fresh before slow, errors come back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from sandbox_restore.restore.queue import Backoff, KeyedQueue

Handler = Callable[[str], Awaitable[None]]


@contextlib.asynccontextmanager
async def working(queue: KeyedQueue, handle: Handler, *, workers: int = 1) -> AsyncIterator[list]:
    errors: list[tuple[str, str, float]] = []
    tasks = [
        asyncio.create_task(
            queue.work(handle, on_error=lambda k, e, d: errors.append((k, str(e), d)))
        )
        for _ in range(workers)
    ]
    try:
        async with asyncio.timeout(5):
            yield errors
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_key_added_twice_is_handled_once() -> None:
    queue, seen, done = KeyedQueue(), [], asyncio.Event()

    async def handle(key: str) -> None:
        seen.append(key)
        if key == "last":
            done.set()

    queue.add("a")
    queue.add("a")
    queue.add("last")
    async with working(queue, handle):
        await done.wait()
    assert seen == ["a", "last"]


async def test_a_key_added_while_it_is_handled_is_handled_again_and_never_by_two() -> None:
    queue = KeyedQueue()
    started, go, again = asyncio.Event(), asyncio.Event(), asyncio.Event()
    inside = most = rounds = 0

    async def handle(_key: str) -> None:
        nonlocal inside, most, rounds
        inside += 1
        most, rounds = max(most, inside), rounds + 1
        started.set()
        await go.wait()
        inside -= 1
        if rounds == 2:
            again.set()

    async with working(queue, handle, workers=3):
        queue.add("a")
        await started.wait()
        queue.add("a")
        queue.add("a")
        go.set()
        await again.wait()
    assert (most, rounds) == (1, 2)


async def test_fresh_keys_go_before_slow_ones_and_a_slow_key_can_become_fresh() -> None:
    queue, seen, done = KeyedQueue(), [], asyncio.Event()

    async def handle(key: str) -> None:
        seen.append(key)
        if len(seen) == 3:
            done.set()

    queue.add("slow-1", slow=True)
    queue.add("slow-2", slow=True)
    queue.add("fresh")
    queue.add("slow-2")
    async with working(queue, handle):
        await done.wait()
    assert seen == ["fresh", "slow-2", "slow-1"]


async def test_a_failed_key_comes_back_and_its_failures_are_forgotten_after_success() -> None:
    queue = KeyedQueue(backoff=Backoff(base=0.001, cap=0.002))
    tries, done = [0], asyncio.Event()

    async def handle(_key: str) -> None:
        tries[0] += 1
        if tries[0] < 3:
            raise ValueError(f"try {tries[0]}")
        done.set()

    async with working(queue, handle) as errors:
        queue.add("a")
        await done.wait()
        await asyncio.sleep(0)
    assert [e[1] for e in errors] == ["try 1", "try 2"]
    assert not queue._failures


async def test_of_several_delays_the_earliest_counts() -> None:
    queue, done = KeyedQueue(), asyncio.Event()

    async def handle(_key: str) -> None:
        done.set()

    async with working(queue, handle):
        queue.add_after("a", 3600)
        queue.add_after("a", 0.001)
        queue.add_after("a", 1800)
        await done.wait()
    assert queue.delayed == 0


def test_backoff_doubles_with_jitter_up_to_its_cap() -> None:
    backoff = Backoff(base=1.0, cap=8.0)
    for failures, ceiling in ((0, 1.0), (1, 2.0), (2, 4.0), (3, 8.0), (50, 8.0)):
        for _ in range(50):
            assert ceiling / 2 <= backoff.delay(failures) <= ceiling


def test_length_counts_queued_keys() -> None:
    queue = KeyedQueue()
    queue.add("a")
    queue.add("b", slow=True)
    assert len(queue) == 2


@pytest.mark.parametrize("kind", ["nodes", "pods", "sandboxrestores"])
def test_a_second_list_of_a_kind_is_a_gap_and_its_pages_are_not(kind: str) -> None:
    from sandbox_restore.restore.watches import WatchLog

    gaps: list[str] = []
    clock = [0.0]
    log = WatchLog(monotonic=lambda: clock[0], on_gap=gaps.append)
    path = f"/api/v1/{kind}"
    log.answered(path, {"limit": "500"})
    log.answered(path, {"limit": "500", "continue": "x"})
    log.answered(path, {"watch": "true"})
    clock[0] = 30.0
    assert gaps == []
    assert log.ages()[kind] == 30.0
    log.answered(path, {"limit": "500"})
    assert gaps == [kind]
    assert log.ages()[kind] == 0.0


def test_a_watch_that_was_never_heard_has_no_age() -> None:
    from sandbox_restore.restore.watches import WatchLog

    log = WatchLog(monotonic=lambda: 0.0, on_gap=lambda _kind: None)
    assert log.ages() == {"nodes": None, "pods": None, "sandboxrestores": None}
