"""Which Node objects were seen to go, and when; bounded."""

from __future__ import annotations

from collections import OrderedDict
from datetime import datetime


class Tombstones:
    """Nodes that are gone, by name and UID. A UID never comes back."""

    __slots__ = ("_by_uid", "_limit", "_newest", "forgotten_until")

    def __init__(self, *, limit: int) -> None:
        self._limit = limit
        self._by_uid: OrderedDict[tuple[str, str], datetime] = OrderedDict()
        self._newest: dict[str, str] = {}
        self.forgotten_until: datetime | None = None
        """The newest time that was dropped for want of room: a node that is not found may have
        been gone only since then."""

    def bury(self, name: str, uid: str, when: datetime) -> None:
        """The node is gone since `when`; the first time told of a node stays."""
        key = (name, uid)
        if key in self._by_uid:
            return
        self._by_uid[key] = when
        self._newest[name] = uid
        if len(self._by_uid) <= self._limit:
            return
        (old_name, old_uid), dropped = self._by_uid.popitem(last=False)
        if self._newest.get(old_name) == old_uid:
            del self._newest[old_name]
        if self.forgotten_until is None or dropped > self.forgotten_until:
            self.forgotten_until = dropped

    def holds(self, name: str, uid: str) -> bool:
        return (name, uid) in self._by_uid

    def since(self, name: str, uid: str | None) -> datetime | None:
        """When the node went; without a UID, the newest node of that name."""
        found = uid if uid is not None else self._newest.get(name)
        return None if found is None else self._by_uid.get((name, found))
