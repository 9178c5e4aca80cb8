"""Which Node objects were seen to go, and when; bounded."""

from __future__ import annotations

from collections import OrderedDict
from datetime import datetime
from typing import NamedTuple


class _Gone(NamedTuple):
    since: datetime
    certain: bool


class Tombstones:
    """Nodes that are gone, by name and UID.

    Some are known for certain to be gone, for their deletion was told or another UID took the
    name; such a UID never comes back. Others were only missing from a list, which may have been
    older than the node.
    """

    __slots__ = ("_by_uid", "_limit", "_newest", "forgotten_until")

    def __init__(self, *, limit: int) -> None:
        self._limit = limit
        self._by_uid: OrderedDict[tuple[str, str], _Gone] = OrderedDict()
        self._newest: dict[str, str] = {}
        self.forgotten_until: datetime | None = None
        """The newest time that was dropped for want of room: a node that is not found may have
        been gone only since then."""

    def bury(self, name: str, uid: str, when: datetime, *, certain: bool) -> None:
        """The node is gone since `when`; the first time told of a node stays."""
        known = self._by_uid.get((name, uid))
        if known is not None:
            self._by_uid[name, uid] = _Gone(known.since, known.certain or certain)
            return
        self._by_uid[name, uid] = _Gone(when, certain)
        self._newest[name] = uid
        if len(self._by_uid) > self._limit:
            self._drop_oldest()

    def lift(self, name: str, uid: str) -> None:
        """The node is there after all."""
        self._by_uid.pop((name, uid), None)
        if self._newest.get(name) == uid:
            del self._newest[name]

    def holds(self, name: str, uid: str) -> bool:
        """The node is gone for certain."""
        gone = self._by_uid.get((name, uid))
        return gone is not None and gone.certain

    def since(self, name: str, uid: str | None) -> datetime | None:
        """When the node went; without a UID, the newest node of that name."""
        gone = self._by_uid.get((name, self._newest.get(name, "") if uid is None else uid))
        return None if gone is None else gone.since

    def _drop_oldest(self) -> None:
        (name, uid), gone = self._by_uid.popitem(last=False)
        if self._newest.get(name) == uid:
            del self._newest[name]
        if self.forgotten_until is None or gone.since > self.forgotten_until:
            self.forgotten_until = gone.since
