"""Makes a JSON document smaller while it still shows what it shows."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

Json = dict[str, Any]
Path = tuple[str | int, ...]

_MOST_TRIES = 2_000


def shrunk(document: Json, shows: Callable[[Json], bool], *, keep: tuple[str, ...] = ()) -> Json:
    """The document without every part that it can do without.

    `keep`: ends of dotted paths that stay. A candidate on which `shows` raises is not taken.
    """
    tries = 0
    again = True
    while again:
        again = False
        for path in sorted(_paths(document), key=len):
            if ".".join(map(str, path)).endswith(keep) or not _has(document, path):
                continue
            tries += 1
            if tries > _MOST_TRIES:
                return document
            candidate = copy.deepcopy(document)
            inner = _at(candidate, path[:-1])
            del inner[path[-1]]
            if _holds(candidate, shows):
                document, again = candidate, True
    return document


def _holds(candidate: Json, shows: Callable[[Json], bool]) -> bool:
    try:
        return shows(candidate)
    except Exception:
        return False


def _paths(value: Any, path: Path = ()) -> Iterator[Path]:
    """Every part of the document, without its two roots; a list's items last to first."""
    items: list[tuple[str | int, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = [(at, value[at]) for at in reversed(range(len(value)))]
    for key, item in items:
        if path:
            yield (*path, key)
        yield from _paths(item, (*path, key))


def _at(document: Any, path: Path) -> Any:
    for key in path:
        document = document[key]
    return document


def _has(document: Any, path: Path) -> bool:
    try:
        _at(document, path)
    except (KeyError, IndexError, TypeError):
        return False
    return True
