"""The fleet as sets of nodes, kept up to date change by change."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final, NamedTuple

from pyroaring import BitMap

from sandbox_restore.fleet import record
from sandbox_restore.fleet.labels import LabelIndex
from sandbox_restore.fleet.record import NodeRecord
from sandbox_restore.fleet.ring import Ring
from sandbox_restore.model.node import Taint

_MAX_STANDING: Final = 32
_COMES_OR_GOES: Final = record.ADDED | record.REMOVED

Taints = tuple[Taint, ...]


class _Standing(NamedTuple):
    """The answer to a question that is asked again and again, brought up to date by each change."""

    nodes: BitMap
    judge: Callable[[NodeRecord], bool]
    aspects: int
    """Changes on which the judgement depends, besides those of labels."""
    label_keys: frozenset[str]
    """Labels that it looks at."""


class NodeSets:
    """Sets of slots, one for each thing that is asked of many nodes at once.

    They are changed in place: whoever reads one must neither change nor keep it.
    """

    __slots__ = (
        "_standing",
        "_tainted",
        "all",
        "cordoned",
        "deleting",
        "labels",
        "ready",
        "ring",
        "services_ready",
        "without_slots",
    )

    def __init__(self) -> None:
        self.labels: Final = LabelIndex()
        self.ring: Final = Ring()
        self.all: Final = BitMap()
        self.cordoned: Final = BitMap()
        self.deleting: Final = BitMap()
        self.ready: Final = BitMap()
        self.services_ready: Final = BitMap()
        self.without_slots: Final = BitMap()
        self._tainted: Final[dict[Taints, tuple[Taints, BitMap]]] = {}
        """Nodes by the taints that they carry together, with the one tuple that all of them keep;
        nodes with none are not listed."""
        self._standing: OrderedDict[Hashable, _Standing] = OrderedDict()

    def standing(self, question: Hashable) -> BitMap | None:
        """The kept answer to a question, if there is one."""
        kept = self._standing.get(question)
        return None if kept is None else kept.nodes

    def keep(
        self,
        question: Hashable,
        nodes: BitMap,
        *,
        judge: Callable[[NodeRecord], bool],
        aspects: int,
        label_keys: frozenset[str] = frozenset(),
    ) -> BitMap:
        """Keeps an answer; the set is from now on the index's own and follows every change.

        `judge` says of one node whether it belongs to the set, looking at what these aspects stand
        for and at these labels. Questions come from the few templates that there are.
        """
        if len(self._standing) >= _MAX_STANDING:
            self._standing.popitem(last=False)
        self._standing[question] = _Standing(nodes, judge, aspects | _COMES_OR_GOES, label_keys)
        return nodes

    def tainted(self, test: Callable[[Taints], bool]) -> BitMap:
        """Nodes whose taints pass a test."""
        found = BitMap()
        for taints, nodes in self._tainted.values():
            if test(taints):
                found |= nodes
        return found

    def same_taints(self, taints: Taints) -> Taints:
        """The tuple to keep for these taints: the one that other nodes already share."""
        held = self._tainted.get(taints)
        return taints if held is None else held[0]

    def move(
        self,
        before: NodeRecord | None,
        after: NodeRecord | None,
        slot: int,
        *,
        label_keys: tuple[str, ...],
    ) -> int:
        """Follows a node in all sets but those of its labels, of which `label_keys` changed.
        Returns the aspects that did."""
        what = self._move_states(before, after, slot)
        what |= self._move_taints(before, after, slot)
        if before is None and after is not None:
            what |= record.ADDED
            self.all.add(slot)
            self.ring.add(slot, after.name)
        elif after is None:
            what |= record.REMOVED
            self.all.discard(slot)
            self.ring.discard(slot)
        for kept in self._standing.values():
            if what & kept.aspects or not kept.label_keys.isdisjoint(label_keys):
                _put(kept.nodes, slot, here=after is not None and kept.judge(after))
        return what

    def _move_states(self, before: NodeRecord | None, after: NodeRecord | None, slot: int) -> int:
        was = 0 if before is None else _states(before)
        now_is = 0 if after is None else _states(after)
        changed = was ^ now_is
        if changed:
            for bit, nodes in (
                (record.CORDON, self.cordoned),
                (record.DELETING, self.deleting),
                (record.READY, self.ready),
                (record.SERVICES, self.services_ready),
                (record.SLOTS, self.without_slots),
            ):
                if changed & bit:
                    _put(nodes, slot, here=bool(now_is & bit))
        return changed

    def _move_taints(self, before: NodeRecord | None, after: NodeRecord | None, slot: int) -> int:
        was = () if before is None else before.taints
        now_are = () if after is None else after.taints
        if was is now_are or was == now_are:
            return 0
        if was:
            _, nodes = self._tainted[was]
            nodes.discard(slot)
            if not nodes:
                del self._tainted[was]
        if now_are:
            self._tainted.setdefault(now_are, (now_are, BitMap()))[1].add(slot)
        return record.TAINTS


def _states(node: NodeRecord) -> int:
    return (
        (record.CORDON if node.unschedulable else 0)
        | (record.DELETING if node.deleting else 0)
        | (record.READY if node.ready else 0)
        | (record.SERVICES if node.services_ready else 0)
        | (record.SLOTS if node.network_slots <= 0 else 0)
    )


def _put(nodes: BitMap, slot: int, *, here: bool) -> None:
    if here:
        nodes.add(slot)
    else:
        nodes.discard(slot)
