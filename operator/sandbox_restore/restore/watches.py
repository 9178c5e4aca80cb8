"""When each watch was last heard of, and when it began anew (a gap). PURE but for its clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sandbox_restore.model import names

KINDS = ("nodes", "pods", names.PLURAL)


class WatchLog:
    """Told of each answered list and watch request and of each event.

    A list after the first one means that the watch could not go on from where it was (410): events
    may have been missed, deletions for certain are not told, so `on_gap` is called with the kind.
    """

    def __init__(self, *, monotonic: Callable[[], float], on_gap: Callable[[str], None]) -> None:
        self._monotonic = monotonic
        self._on_gap = on_gap
        self._heard: dict[str, float] = {}
        self._listed: set[str] = set()

    def answered(self, path: str, query: Mapping[str, str]) -> None:
        """An HTTP 200 on a URL of the watched API."""
        kind = path.rsplit("/", 1)[-1]
        if kind not in KINDS:
            return
        self._heard[kind] = self._monotonic()
        if query.get("watch") == "true" or query.get("continue"):
            return
        if path in self._listed:
            self._on_gap(kind)
        self._listed.add(path)

    def event(self, kind: str) -> None:
        """An event of that kind has arrived."""
        self._heard[kind] = self._monotonic()

    def ages(self) -> dict[str, float | None]:
        """Seconds since each watch was last heard of; None: not yet."""
        now = self._monotonic()
        return {kind: now - self._heard[kind] if kind in self._heard else None for kind in KINDS}
