"""How a page's console blocks are read and compared: tests/support/pages.py."""

from __future__ import annotations

import pytest

from tests.support.pages import missing, shape, steps_of

PAGE = """
```console
$ kubectl get sbr
NAME     AGE
wake-1   14s
$ true
```

```sh
$ not run
```
"""


def test_a_command_has_the_lines_below_it() -> None:
    first, second = steps_of(PAGE)
    assert (first.command, list(first.shown)) == (
        "kubectl get sbr",
        ["NAME     AGE", "wake-1   14s"],
    )
    assert (second.command, list(second.shown)) == ("true", [])


def test_a_block_that_begins_with_no_command_is_refused() -> None:
    with pytest.raises(ValueError, match="which is no command"):
        steps_of("```console\nNAME\n```\n")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("wake-1   14s", "wake-1 2m5s"),
        ("pod wake-1-a94495f8af-1 on node b", "pod wake-1-1e67c1e092-1 on node b"),
        ("https://127.0.0.1:15528 answers", "https://127.0.0.1:6443 answers"),
        ("vm-16166-ef5a8c leads, renewed 4s ago", "host.example-1-0a leads, renewed 1s ago"),
        ("since 2026-11-30 18:50:15 UTC", "since 2026-12-01 00:00:00 UTC"),
    ],
)
def test_what_differs_from_run_to_run_does_not_count(one: str, other: str) -> None:
    assert shape(one) == shape(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("wake-1 True SnapshotLoaded", "wake-1 Unknown PlacementHeld"),
        ("1 of 3 published CPUs", "2 of 3 published CPUs"),
        ("intel-6-106-6.d4sv5", "intel-6-106-6"),
    ],
)
def test_everything_else_counts(one: str, other: str) -> None:
    assert shape(one) != shape(other)


def test_lines_are_looked_for_in_their_order() -> None:
    printed = ["a", "b", "c"]
    assert missing(["a", "…", "c"], printed) is None
    assert missing(["c", "a"], printed) == "a"
    assert missing(["d"], printed) == "d"
