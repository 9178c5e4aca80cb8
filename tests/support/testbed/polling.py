"""The one way to wait: ask again until it holds or a deadline passes."""

import time
from collections.abc import Callable
from typing import TypeVar

from tests.support.testbed.errors import DeadlineError

T = TypeVar("T")


def wait_until(
    probe: Callable[[], T | None],
    *,
    what: str,
    timeout: float,
    interval: float = 0.05,
) -> T:
    """Return the first result of `probe` that is neither None nor False.

    `what` names the awaited state for the error message; `timeout` and `interval` are seconds.
    A probe that takes long is not asked more often than half of the time.

    Raises DeadlineError when `timeout` passes first; whatever `probe` raises goes through.
    """
    deadline = time.monotonic() + timeout
    while True:
        asked = time.monotonic()
        result = probe()
        if result is not None and result is not False:
            return result
        now = time.monotonic()
        if now >= deadline:
            raise DeadlineError(f"not within {timeout:g} s: {what}")
        time.sleep(min(max(interval, now - asked), deadline - now))
