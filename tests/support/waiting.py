"""The one way for asynchronous tests to wait: ask again until it holds or a deadline passes."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

T = TypeVar("T")

INTERVAL_S = 0.05
"""How often a predicate is asked unless the caller says otherwise, in seconds."""


class NotInTimeError(AssertionError):
    """The awaited state did not come; an AssertionError, so that a test fails with its text."""


@overload
async def until(
    predicate: Callable[[], Awaitable[T | None]],
    *,
    deadline_s: float,
    what: str,
    interval_s: float = ...,
    detail: Callable[[], object] | None = ...,
) -> T: ...


@overload
async def until(
    predicate: Callable[[], T | None],
    *,
    deadline_s: float,
    what: str,
    interval_s: float = ...,
    detail: Callable[[], object] | None = ...,
) -> T: ...


async def until(
    predicate: Callable[[], Any],
    *,
    deadline_s: float,
    what: str,
    interval_s: float = INTERVAL_S,
    detail: Callable[[], object] | None = None,
) -> Any:
    """Return the first result of `predicate` that is neither None, False nor empty.

    `predicate` may be a function or a coroutine function; what it raises goes through. One that
    takes long is not asked more often than half of the time. `what` names the awaited state and
    `detail` what is there instead, both for the message.

    Raises NotInTimeError when `deadline_s` seconds pass first.
    """
    end = time.monotonic() + deadline_s
    while True:
        asked = time.monotonic()
        outcome = predicate()
        found = await outcome if inspect.isawaitable(outcome) else outcome
        if found:
            return found
        now = time.monotonic()
        if now >= end:
            seen = f"; seen: {detail()}" if detail is not None else ""
            raise NotInTimeError(f"not within {deadline_s:g} s: {what}{seen}")
        await asyncio.sleep(min(max(interval_s, now - asked), end - now))
