"""Which waiting restores a node's change concerns (architecture.md, "How data flows", 4). PURE.

Thousands of nodes send heartbeats and flap; only a change that can alter the decision on a waiting
restore brings it back to the queue.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TypeVar

from sandbox_restore.fleet.record import NodeChange
from sandbox_restore.placement.reachable import Demand, concerns

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interest:
    """What a waiting restore asks of the fleet."""

    demand: Demand
    named: frozenset[str] = frozenset()
    """Nodes that it asks for by name: the uploading node and those that refused the snapshot."""
    services: bool = False
    """Whether the readiness of node services counts: it does for a shortlist alone."""


class Interests:
    """The interests of the sandboxes that wait for nodes.

    Restores of one template, group and cohort ask the same, and a change is judged once for all of
    them.
    """

    def __init__(self) -> None:
        self._of: dict[str, Interest] = {}
        self._asking: dict[tuple[Demand, bool], set[str]] = defaultdict(set)
        self._naming: dict[str, set[str]] = defaultdict(set)

    def put(self, sandbox_id: str, interest: Interest | None) -> None:
        """The sandbox waits for this; None: for no node."""
        known = self._of.get(sandbox_id)
        if interest == known:
            return
        if known is not None:
            del self._of[sandbox_id]
            _discard(self._asking, (known.demand, known.services), sandbox_id)
            for name in known.named:
                _discard(self._naming, name, sandbox_id)
        if interest is not None:
            self._of[sandbox_id] = interest
            self._asking[interest.demand, interest.services].add(sandbox_id)
            for name in interest.named:
                self._naming[name].add(sandbox_id)

    def __len__(self) -> int:
        return len(self._of)

    def all(self) -> set[str]:
        """Every sandbox that waits for nodes."""
        return set(self._of)

    def concerned(self, change: NodeChange) -> set[str]:
        """The sandboxes whose decision the change can alter."""
        if not change.matters:
            return set()
        found = set(self._naming.get(change.name, ()))
        for (demand, services), asking in self._asking.items():
            if (services or not change.only_services) and concerns(demand, change):
                found |= asking
        return found


def _discard(index: dict[K, set[str]], key: K, sandbox_id: str) -> None:
    """Takes the sandbox out, and the key with its last one."""
    index[key].discard(sandbox_id)
    if not index[key]:
        del index[key]
