"""The fleet as sets of nodes, kept up to date change by change."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final, NamedTuple, Protocol

from pyroaring import BitMap

from sandbox_restore.fleet.labels import LabelIndex
from sandbox_restore.fleet.record import Aspect, NodeRecord
from sandbox_restore.fleet.ring import Ring
from sandbox_restore.model.names import PLACEMENT_BLOCK_LABEL
from sandbox_restore.model.node import Taint

_MAX_TOLERANCES: Final = 16

Taints = tuple[Taint, ...]


class Tolerance(Hashable, Protocol):
    """What a pod tolerates; equal ones share one kept set of nodes."""

    @property
    def cordon(self) -> bool:
        """Cordoned nodes are tolerated."""

    def all_of(self, taints: Taints) -> bool:
        """Every taint that filters is tolerated."""


class _Shut(NamedTuple):
    """The nodes that are shut to pods with some tolerations."""

    closed: BitMap
    tainted: BitMap


class NodeSets:
    """Sets of slots, one for each thing that is asked of many nodes at once.

    They are changed in place: whoever reads one must neither change nor keep it.
    """

    __slots__ = (
        "_kept",
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
        self._kept: OrderedDict[Tolerance, _Shut] = OrderedDict()

    def closed_to(self, tolerance: Tolerance) -> BitMap:
        """Nodes that take no pod with these tolerations, whatever it selects (section 7).

        They are cordoned, tainted, being deleted or under a placement block.
        """
        return self._shut(tolerance).closed

    def untolerated(self, tolerance: Tolerance) -> BitMap:
        """Nodes with a taint that filters and is not tolerated."""
        return self._shut(tolerance).tainted

    def _shut(self, tolerance: Tolerance) -> _Shut:
        """Both are kept and follow every change: tolerations come from the few templates that
        there are, while a fleet can have as many different taints as nodes."""
        kept = self._kept.get(tolerance)
        if kept is not None:
            return kept
        tainted = self.tainted(lambda taints: not tolerance.all_of(taints))
        closed = tainted | self.deleting | self.labels.having(PLACEMENT_BLOCK_LABEL)
        if not tolerance.cordon:
            closed |= self.cordoned
        if len(self._kept) >= _MAX_TOLERANCES:
            self._kept.popitem(last=False)
        self._kept[tolerance] = found = _Shut(closed, tainted)
        return found

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

    def move(self, before: NodeRecord | None, after: NodeRecord | None, slot: int) -> int:
        """Follows a node in all sets but those of its labels; returns the aspects that changed."""
        what = self._move_states(before, after, slot)
        what |= self._move_taints(before, after, slot)
        if before is None and after is not None:
            what |= Aspect.ADDED.value
            self.all.add(slot)
            self.ring.add(slot, after.name)
        elif after is None:
            what |= Aspect.REMOVED.value
            self.all.discard(slot)
            self.ring.discard(slot)
        for tolerance, kept in self._kept.items():
            tainted = after is not None and _is_tainted(after, tolerance)
            _put(kept.tainted, slot, here=tainted)
            closed = tainted or (after is not None and _is_closed(after, tolerance))
            _put(kept.closed, slot, here=closed)
        return what

    def _move_states(self, before: NodeRecord | None, after: NodeRecord | None, slot: int) -> int:
        was = 0 if before is None else _states(before)
        now_is = 0 if after is None else _states(after)
        changed = was ^ now_is
        if changed:
            for bit, nodes in (
                (_CORDON, self.cordoned),
                (_DELETING, self.deleting),
                (_READY, self.ready),
                (_SERVICES, self.services_ready),
                (_SLOTS, self.without_slots),
            ):
                if changed & now_is & bit:
                    nodes.add(slot)
                elif changed & bit:
                    nodes.discard(slot)
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
        return Aspect.TAINTS.value


# Numbers instead of flags: an operation on an IntFlag costs as much as everything else here.
_CORDON: Final = Aspect.CORDON.value
_DELETING: Final = Aspect.DELETING.value
_READY: Final = Aspect.READY.value
_SERVICES: Final = Aspect.SERVICES.value
_SLOTS: Final = Aspect.SLOTS.value


def _states(node: NodeRecord) -> int:
    return (
        (_CORDON if node.unschedulable else 0)
        | (_DELETING if node.deleting else 0)
        | (_READY if node.ready else 0)
        | (_SERVICES if node.services_ready else 0)
        | (_SLOTS if node.network_slots <= 0 else 0)
    )


def _is_tainted(node: NodeRecord, tolerance: Tolerance) -> bool:
    """As `untolerated`, for one node."""
    return bool(node.taints) and not tolerance.all_of(node.taints)


def _is_closed(node: NodeRecord, tolerance: Tolerance) -> bool:
    """As `closed_to`, for one node and without its taints."""
    return (
        node.deleting
        or (node.unschedulable and not tolerance.cordon)
        or PLACEMENT_BLOCK_LABEL in node.label_keys
    )


def _put(nodes: BitMap, slot: int, *, here: bool) -> None:
    if here:
        nodes.add(slot)
    else:
        nodes.discard(slot)
