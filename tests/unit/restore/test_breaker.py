"""The circuit breaker of section 11: one capture CPU fails on all its loaders within a window."""

from __future__ import annotations

import itertools
from datetime import timedelta

import pytest

from sandbox_restore.model.sandbox import LoadObservation, LoadResult
from sandbox_restore.restore.breaker import KEPT, Breaker
from tests.support.builders import NOW, ago

A, B, C = "intel-6-106-6", "intel-6-85-7", "intel-6-79-1"
WINDOW = timedelta(minutes=10)
_numbers = itertools.count()


def seen(
    cpu: str | None,
    *,
    box: str = "box-1",
    seconds: float = 60,
    result: LoadResult = LoadResult.CPU_INCOMPATIBLE,
    capture: str | None = A,
) -> LoadObservation:
    return LoadObservation(
        execution_id=f"e{next(_numbers)}",
        sandbox_id=box,
        result=result,
        capture_cpu=capture,
        node_name="n",
        node_cpu=cpu,
        observed_at=ago(seconds),
    )


def is_open(*observations: LoadObservation, window: timedelta = WINDOW) -> bool:
    breaker = Breaker(window)
    breaker.record(observations)
    return breaker.verdict(A, (A, B), now=NOW) is not None


BOTH = (seen(A), seen(B, box="box-2"))


def test_it_opens_when_every_loader_has_refused() -> None:
    assert is_open(*BOTH)


@pytest.mark.parametrize(
    "observations",
    [
        (),
        (seen(A), seen(A, box="box-2")),
        (seen(A), seen(B)),
        (seen(A, seconds=601), seen(B, box="box-2")),
        (seen(A, capture=C), seen(B, box="box-2", capture=C)),
        (seen(None), seen(B, box="box-2")),
        (*BOTH, seen(B, box="box-3", seconds=30, result=LoadResult.LOADED)),
    ],
    ids=[
        "nothing was seen",
        "one loader has refused nothing",
        "all of one sandbox, whose snapshot may be at fault",
        "one refusal is older than the window",
        "refusals of another capture CPU",
        "a node without a label says nothing of a CPU",
        "a load succeeded since",
    ],
)
def test_it_stays_closed(observations: tuple[LoadObservation, ...]) -> None:
    assert not is_open(*observations)


def test_a_load_before_the_refusals_does_not_keep_it_closed() -> None:
    assert is_open(*BOTH, seen(B, seconds=120, result=LoadResult.LOADED))


def test_it_tells_when_an_attempt_may_try_again_and_then_lets_it() -> None:
    breaker = Breaker(WINDOW)
    breaker.record([seen(A, seconds=300), seen(B, box="box-2", seconds=60)])
    found = breaker.verdict(A, (A, B), now=NOW)
    assert found is not None
    assert found.until == ago(300) + WINDOW
    assert (found.refusals, found.sandboxes, found.loaders) == (2, 2, (A, B))
    assert A in found.words
    assert breaker.verdict(A, (A, B), now=found.until) is None


def test_a_window_of_zero_switches_it_off() -> None:
    assert not is_open(*BOTH, window=timedelta())


def test_without_a_loader_or_a_capture_cpu_there_is_nothing_to_break() -> None:
    breaker = Breaker(WINDOW)
    breaker.record(BOTH)
    assert breaker.verdict(A, (), now=NOW) is None
    assert breaker.verdict(None, (A, B), now=NOW) is None


def test_the_same_observation_read_twice_is_one() -> None:
    breaker = Breaker(WINDOW)
    for _ in range(3):
        breaker.record(BOTH)
    found = breaker.verdict(A, (A, B), now=NOW)
    assert found is not None
    assert found.refusals == 2


def test_memory_is_bounded_and_old_captures_are_dropped() -> None:
    breaker = Breaker(WINDOW)
    breaker.record(seen(A) for _ in range(KEPT + 10))
    breaker.record([seen(B, capture=C, seconds=700)])
    assert breaker.captures(NOW) == {A}
    assert breaker.captures(NOW + WINDOW) == frozenset()
