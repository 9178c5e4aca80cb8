"""Spans, counts and lists as people read them. PURE."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from sandbox_restore.placement.explain import named

_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


def span(length: timedelta) -> str:
    """The two largest units of a span, as kubectl shows ages: `3d4h`, `12m`, `0s`."""
    rest = max(0, int(length.total_seconds()))
    parts: list[str] = []
    for unit, seconds in _UNITS:
        number, rest = divmod(rest, seconds)
        if number:
            parts.append(f"{number}{unit}")
        elif parts:
            break
        if len(parts) == 2:
            break
    return "".join(parts) or "0s"


def ago(then: datetime, now: datetime) -> str:
    """`12m ago`, or `in 12m`."""
    return f"in {span(then - now)}" if then > now else f"{span(now - then)} ago"


def counted(number: int, noun: str) -> str:
    """`1 node`, `3 nodes`, `2 sandboxes`."""
    plural = "es" if noun.endswith("x") else "s"
    return f"{number} {noun}{'' if number == 1 else plural}"


def listed(names: Sequence[str], *, limit: int = 3) -> str:
    """`a, b and c`, or `a, b, c and 4 more`."""
    return named(names, len(names), limit=limit)
