"""Rows as last read: a pass with nothing new asks the database nothing (architecture.md)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from sandbox_restore.model.sandbox import SandboxView

KEPT = 50_000
"""Sandboxes whose view is kept; the least recently used goes first."""


class ViewCache:
    """Views by sandbox, valid while no later version was announced.

    `trusted` tells whether announcements arrive (the LISTEN connection is up); while they do not,
    no view is current.
    """

    def __init__(self, *, trusted: Callable[[], bool]) -> None:
        self._trusted = trusted
        self._views: OrderedDict[str, tuple[tuple[str, ...], SandboxView]] = OrderedDict()
        self._announced: OrderedDict[str, int] = OrderedDict()
        self._generation = 0

    def current(self, sandbox_id: str, uids: tuple[str, ...]) -> SandboxView | None:
        """The view, if it was read for these restores and nothing newer was announced since."""
        kept = self._views.get(sandbox_id)
        if kept is None or kept[0] != uids or not self._trusted():
            return None
        if kept[1].sandbox.version < self._announced.get(sandbox_id, 0):
            return None
        self._views.move_to_end(sandbox_id)
        return kept[1]

    def peek(self, sandbox_id: str) -> SandboxView | None:
        """The last view, current or not."""
        kept = self._views.get(sandbox_id)
        return kept[1] if kept is not None else None

    def reading(self) -> int:
        """To be asked before a read, and given to `put` with what was read."""
        return self._generation

    def put(self, view: SandboxView, uids: tuple[str, ...], *, read: int | None = None) -> None:
        """Keeps what was just read or written; an older version never replaces a newer one.

        What was read before a gap is not kept: an announcement of its change may be lost.
        """
        if read is not None and read != self._generation:
            return
        sandbox_id = view.sandbox.id
        kept = self._views.get(sandbox_id)
        if kept is not None and kept[1].sandbox.version > view.sandbox.version:
            return
        self._views[sandbox_id] = (uids, view)
        self._views.move_to_end(sandbox_id)
        while len(self._views) > KEPT:
            self._views.popitem(last=False)

    def announced(self, sandbox_id: str, version: int) -> bool:
        """A row has reached this version. True when that is news."""
        kept = self._views.get(sandbox_id)
        if kept is not None and kept[1].sandbox.version >= version:
            return False
        self._announced[sandbox_id] = max(version, self._announced.get(sandbox_id, 0))
        self._announced.move_to_end(sandbox_id)
        while len(self._announced) > KEPT:
            forgotten, _ = self._announced.popitem(last=False)
            self._views.pop(forgotten, None)
        return True

    def drop(self, sandbox_id: str) -> None:
        """The next look reads the row again."""
        self._views.pop(sandbox_id, None)

    def forget(self) -> None:
        """Announcements may have been missed: nothing is current any more."""
        self._generation += 1
        self._views.clear()
        self._announced.clear()
