"""Which Node objects were seen to go, and when; bounded."""

from __future__ import annotations

from collections import OrderedDict
from datetime import datetime


class Tombstones:
    """Nodes that are gone, by name and UID.

    Some are known for certain to be gone, for their deletion was told or another UID took the
    name; such a UID never comes back. Others were only missing from a list, which may have been
    older than the node.
    """

    __slots__ = ("_by_uid", "_certain", "_limit", "_newest", "forgotten_until")

    def __init__(self, *, limit: int) -> None:
        self._limit = limit
        self._by_uid: OrderedDict[tuple[str, str], datetime] = OrderedDict()
        self._certain: set[tuple[str, str]] = set()
        self._newest: dict[str, str] = {}
        self.forgotten_until: datetime | None = None
        """The newest time that was dropped for want of room: a node that is not found may have
        been gone only since then."""

    def bury(self, name: str, uid: str, when: datetime, *, certain: bool) -> None:
        """The node is gone since `when`; the first time told of a node stays."""
        key = (name, uid)
        if certain:
            self._certain.add(key)
        if key in self._by_uid:
            return
        self._by_uid[key] = when
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
        return (name, uid) in self._certain

    def since(self, name: str, uid: str | None) -> datetime | None:
        """When the node went; without a UID, the newest node of that name."""
        found = uid if uid is not None else self._newest.get(name)
        return None if found is None else self._by_uid.get((name, found))

    def _drop_oldest(self) -> None:
        key, dropped = self._by_uid.popitem(last=False)
        self._certain.discard(key)
        name, uid = key
        if self._newest.get(name) == uid:
            del self._newest[name]
        if self.forgotten_until is None or dropped > self.forgotten_until:
            self.forgotten_until = dropped
