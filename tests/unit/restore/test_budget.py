"""The fleet's rate limit of redirects (section 10)."""

from __future__ import annotations

from datetime import timedelta

from sandbox_restore.restore.budget import NEVER, RedirectBudget
from tests.support.builders import NOW


def test_no_more_than_the_limit_begin_in_any_minute() -> None:
    budget = RedirectBudget(2)
    for second in (0, 10):
        assert budget.wait(NOW + timedelta(seconds=second)) is None
        budget.take(NOW + timedelta(seconds=second))
    assert budget.wait(NOW + timedelta(seconds=11)) == NOW + timedelta(seconds=60)
    assert budget.wait(NOW + timedelta(seconds=60)) is None
    budget.take(NOW + timedelta(seconds=60))
    assert budget.wait(NOW + timedelta(seconds=61)) == NOW + timedelta(seconds=70)


def test_a_limit_of_zero_lets_none_through() -> None:
    assert RedirectBudget(0).wait(NOW) == NEVER
