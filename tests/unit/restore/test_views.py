"""The view cache: current only while nothing newer was announced and announcements arrive."""

from __future__ import annotations

from sandbox_restore.restore.views import ViewCache
from tests.support.builders import SANDBOX, view


def versioned(version: int):
    return view(row={"version": version})


def test_a_view_is_current_until_a_newer_version_is_announced() -> None:
    cache = ViewCache(trusted=lambda: True)
    cache.put(versioned(3), ("r1",))
    assert cache.announced(SANDBOX, 3) is False
    assert cache.current(SANDBOX, ("r1",)) is not None
    assert cache.announced(SANDBOX, 4) is True
    assert cache.current(SANDBOX, ("r1",)) is None
    cache.put(versioned(4), ("r1",))
    assert cache.current(SANDBOX, ("r1",)) is not None


def test_an_announcement_that_overtakes_the_read_is_not_lost() -> None:
    cache = ViewCache(trusted=lambda: True)
    assert cache.announced(SANDBOX, 5) is True
    cache.put(versioned(4), ())
    assert cache.current(SANDBOX, ()) is None


def test_an_older_view_never_replaces_a_newer_one() -> None:
    cache = ViewCache(trusted=lambda: True)
    cache.put(versioned(5), ())
    cache.put(versioned(4), ())
    found = cache.peek(SANDBOX)
    assert found is not None
    assert found.sandbox.version == 5


def test_a_view_of_other_restores_is_not_current() -> None:
    cache = ViewCache(trusted=lambda: True)
    cache.put(versioned(1), ("r1",))
    assert cache.current(SANDBOX, ("r1", "r2")) is None


def test_no_view_is_current_while_announcements_do_not_arrive() -> None:
    up = [True]
    cache = ViewCache(trusted=lambda: up[0])
    cache.put(versioned(1), ())
    up[0] = False
    assert cache.current(SANDBOX, ()) is None


def test_after_a_gap_nothing_is_current() -> None:
    cache = ViewCache(trusted=lambda: True)
    cache.put(versioned(1), ())
    cache.forget()
    assert cache.current(SANDBOX, ()) is None
