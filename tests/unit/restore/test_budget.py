"""The fleet's rate limit of redirects (section 10)."""

from __future__ import annotations

from datetime import datetime, timedelta

from sandbox_restore.restore.budget import LONGEST, NEVER, WINDOW, RedirectBudget
from tests.support.builders import NOW


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def test_no_more_than_the_limit_begin_in_any_minute() -> None:
    budget = RedirectBudget(2)
    for second in (0, 10):
        assert budget.wait("box", after(second)) is None
        budget.take("box", after(second))
    waits = budget.wait("box", after(11))
    assert waits is not None
    assert waits >= after(60)
    assert budget.wait("box", after(60)) is None
    budget.take("box", after(60))
    again = budget.wait("box", after(61))
    assert again is not None
    assert again >= after(70)


def test_a_limit_of_zero_lets_none_through() -> None:
    assert RedirectBudget(0).wait("box", NOW) == NEVER


def test_those_that_wait_are_spread_over_the_time_that_all_of_them_take() -> None:
    budget = RedirectBudget(60)
    for number in range(60):
        budget.take(f"first-{number}", NOW)
    names = [f"box-{number}" for number in range(240)]
    for name in names:
        budget.wait(name, after(1))
    times = sorted(t for t in (budget.wait(name, after(1)) for name in names) if t is not None)
    assert len(times) == 240
    assert times[0] >= NOW + WINDOW
    assert times[-1] <= NOW + WINDOW + timedelta(minutes=4)
    # No second has many more than its share of one in a second.
    seconds = [t.replace(microsecond=0) for t in times]
    assert max(seconds.count(s) for s in set(seconds)) < 10


def test_nobody_is_told_to_wait_for_ever_and_who_stopped_asking_is_forgotten() -> None:
    budget = RedirectBudget(1)
    budget.take("first", NOW)
    for number in range(1000):
        told = budget.wait(f"box-{number}", after(1))
        assert told is not None
        assert told <= NOW + WINDOW + LONGEST
    budget.take("second", after(3000))
    told = budget.wait("box-1", after(3001))
    assert told is not None
    assert told <= after(3000) + 2 * WINDOW
