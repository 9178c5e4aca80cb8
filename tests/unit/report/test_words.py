"""Spans, counts and lists as people read them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from sandbox_restore.report.words import ago, counted, listed, span
from tests.support.builders import NOW


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (-5, "0s"),
        (59, "59s"),
        (60, "1m"),
        (61, "1m1s"),
        (3600, "1h"),
        (3605, "1h"),
        (3660, "1h1m"),
        (90061, "1d1h"),
    ],
)
def test_a_span_shows_its_two_largest_units(seconds: int, text: str) -> None:
    assert span(timedelta(seconds=seconds)) == text


def test_a_time_is_told_from_where_the_reader_stands() -> None:
    assert ago(NOW - timedelta(minutes=3), NOW) == "3m ago"
    assert ago(NOW + timedelta(minutes=3), NOW) == "in 3m"


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [(1, "node", "1 node"), (0, "node", "0 nodes"), (2, "sandbox", "2 sandboxes")],
)
def test_a_count_agrees_with_its_noun(number: int, noun: str, text: str) -> None:
    assert counted(number, noun) == text


@pytest.mark.parametrize(
    ("names", "text"),
    [([], ""), (["a"], "a"), (["a", "b"], "a and b"), (list("abcde"), "a, b, c and 2 more")],
)
def test_a_list_names_a_few_and_counts_the_rest(names: list[str], text: str) -> None:
    assert listed(names) == text
