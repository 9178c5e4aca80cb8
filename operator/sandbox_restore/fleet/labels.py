"""Node labels as sets of nodes: which slots carry a key, and which carry a value of it."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, KeysView
from typing import Final

from pyroaring import BitMap

_INT64: Final = range(-(2**63), 2**63)
_DECIMAL: Final = re.compile(r"[+-]?[0-9]+")
_MAX_KEPT: Final = 128
_NOTHING: Final = BitMap()

_Selection = frozenset[str] | tuple[bool, int]
"""A set of values, or a comparison: (greater, bound)."""

Labels = tuple[tuple[str, ...], tuple[str, ...]]
"""Keys, sorted, and their values."""


def parse_int64(text: str) -> int | None:
    """A decimal integer as kube-scheduler parses one for Gt and Lt, else None.

    A sign and leading zeros are allowed; blanks, underscores, digits outside ASCII and numbers
    outside 64 bits are not.
    """
    if _DECIMAL.fullmatch(text) is None:
        return None
    # Longer texts are out of range unless zeros lead; the cut keeps the conversion cheap.
    digits = text.lstrip("+-").lstrip("0")
    if len(digits) > 19:
        return None
    number = int(digits or "0") * (-1 if text[0] == "-" else 1)
    return number if number in _INT64 else None


def _compares(value: str, *, greater: bool, bound: int) -> bool:
    number = parse_int64(value)
    return number is not None and (number > bound if greater else number < bound)


class _Key:
    """The values of one label key, and the sets that are asked of it again and again."""

    __slots__ = ("kept", "present", "values")

    def __init__(self) -> None:
        self.present = BitMap()
        self.values: dict[str, tuple[str, BitMap] | int] = {}
        """For each value the string to keep for it and its nodes. A value that one node carries
        (a host name, say) is only that slot number: a bitmap for each would cost more than all
        else that is kept of the node."""
        self.kept: OrderedDict[_Selection, tuple[Callable[[str], bool], BitMap]] = OrderedDict()
        """Answers that follow every change, with the test that a value must pass."""

    def add(self, value: str, slot: int) -> tuple[str, bool]:
        """Returns the string to keep for the value, and whether no other node carries it."""
        self.present.add(slot)
        for test, nodes in self.kept.values():
            if test(value):
                nodes.add(slot)
        held = self.values.get(value)
        if held is None:
            self.values[value] = slot
            return value, True
        if isinstance(held, int):
            self.values[value] = held = (value, BitMap((held, slot)))
        else:
            held[1].add(slot)
        return held[0], False

    def discard(self, value: str, slot: int) -> bool:
        """True when no other node carries the value."""
        self.present.discard(slot)
        for _, nodes in self.kept.values():
            nodes.discard(slot)
        held = self.values.get(value)
        if held is None or isinstance(held, int):
            self.values.pop(value, None)
            return True
        held[1].discard(slot)
        if len(held[1]) == 1:
            self.values[value] = held[1].min()
        return False

    def slots(self, value: str) -> BitMap:
        held = self.values.get(value)
        if held is None:
            return _NOTHING
        return BitMap((held,)) if isinstance(held, int) else held[1]

    def selected(self, selection: _Selection, test: Callable[[str], bool]) -> BitMap:
        """Nodes whose value passes the test; the set is kept and follows every change.

        Terms come from the few templates that there are and sets of CPUs from the compatibility
        list, so that the same few are asked for again.
        """
        found = self.kept.get(selection)
        if found is not None:
            self.kept.move_to_end(selection)
            return found[1]
        nodes = BitMap()
        for value in [value for value in self.values if test(value)]:
            nodes |= self.slots(value)
        if len(self.kept) >= _MAX_KEPT:
            self.kept.popitem(last=False)
        self.kept[selection] = test, nodes
        return nodes


class LabelIndex:
    """Sets of slots by label. The sets returned are the index's own: they are not to be changed,
    and are good until the next change."""

    __slots__ = ("_keys",)

    def __init__(self) -> None:
        self._keys: dict[str, _Key] = {}

    def place(
        self, keys: tuple[str, ...], values: Iterable[str], slot: int
    ) -> tuple[tuple[str, ...], list[str]]:
        """Takes in all labels of a new node. Returns the values to keep, which are the strings
        that other nodes already share, and the keys whose value no other node carries."""
        index = self._keys
        kept: list[str] = []
        first: list[str] = []
        for key, value in zip(keys, values, strict=True):
            found = index.get(key)
            held = None if found is None else found.values.get(value)
            if found is None or held is None or isinstance(held, int) or found.kept:
                same, alone = self._add(key, value, slot)
                kept.append(same)
                if alone:
                    first.append(key)
            else:
                # What `_Key.add` does for a common value: a fleet's first list is mostly this.
                found.present.add(slot)
                held[1].add(slot)
                kept.append(held[0])
        return tuple(kept), first

    def move(
        self, before: Labels, after: Labels, slot: int
    ) -> tuple[tuple[str, ...], tuple[str, ...], list[str]]:
        """Follows the labels of a known node. Returns the values to keep, the keys whose label
        changed, and those of them of which a value is on its first node or off its last."""
        if after[0] is before[0]:
            return self._move_values(before, after, slot)
        old = dict(zip(*before, strict=True))
        kept: list[str] = []
        changed: list[str] = []
        alone: list[str] = []
        for key, value in zip(*after, strict=True):
            was = old.pop(key, None)
            if was == value:
                kept.append(was)
                continue
            changed.append(key)
            if was is not None and self._discard(key, was, slot):
                alone.append(key)
            same, first = self._add(key, value, slot)
            kept.append(same)
            if first:
                alone.append(key)
        for key, was in old.items():
            changed.append(key)
            if self._discard(key, was, slot):
                alone.append(key)
        return tuple(kept), tuple(changed), alone

    def _move_values(
        self, before: Labels, after: Labels, slot: int
    ) -> tuple[tuple[str, ...], tuple[str, ...], list[str]]:
        """As `move`, for a node that has the same keys as before."""
        keys, values = after
        kept = list(before[1])
        at = [i for i, was in enumerate(kept) if was != values[i]]
        alone: list[str] = []
        for i in at:
            last = self._discard(keys[i], kept[i], slot)
            kept[i], first = self._add(keys[i], values[i], slot)
            if last or first:
                alone.append(keys[i])
        return tuple(kept), tuple([keys[i] for i in at]), alone

    def remove(self, keys: tuple[str, ...], values: tuple[str, ...], slot: int) -> list[str]:
        """Takes all labels of a node out; returns the keys whose value no other node carries."""
        return [
            key for key, value in zip(keys, values, strict=True) if self._discard(key, value, slot)
        ]

    def _add(self, key: str, value: str, slot: int) -> tuple[str, bool]:
        found = self._keys.get(key)
        if found is None:
            found = self._keys[key] = _Key()
        return found.add(value, slot)

    def _discard(self, key: str, value: str, slot: int) -> bool:
        found = self._keys[key]
        last = found.discard(value, slot)
        if not found.present:
            del self._keys[key]
        return last

    def compact(self) -> None:
        """Gives back the room that sets keep to grow in; worth it once, after the first list."""
        for key in self._keys.values():
            key.present.shrink_to_fit()
            for held in key.values.values():
                if not isinstance(held, int):
                    held[1].shrink_to_fit()

    def having(self, key: str) -> BitMap:
        """Nodes with the label, whatever its value."""
        found = self._keys.get(key)
        return _NOTHING if found is None else found.present

    def equal(self, key: str, value: str) -> BitMap:
        """Nodes with exactly that label."""
        found = self._keys.get(key)
        return _NOTHING if found is None else found.slots(value)

    def one_of(self, key: str, values: Collection[str]) -> BitMap:
        """Nodes whose label has one of the values; the set is kept if there are several.

        For the terms of templates: what is asked for seldom, or in many forms, costs less with
        `union`.
        """
        found = self._keys.get(key)
        if found is None or not values:
            return _NOTHING
        if len(values) == 1:
            return found.slots(next(iter(values)))
        wanted = frozenset(values)
        return found.selected(wanted, wanted.__contains__)

    def union(self, key: str, values: Iterable[str]) -> BitMap:
        """As `one_of`, made anew each time."""
        found = self._keys.get(key)
        if found is None:
            return _NOTHING
        sets = [found.slots(value) for value in values if value in found.values]
        if len(sets) < 2:
            return sets[0] if sets else _NOTHING
        nodes = sets[0] | sets[1]
        for more in sets[2:]:
            nodes |= more
        return nodes

    def compared(self, key: str, *, greater: bool, bound: int) -> BitMap:
        """Nodes whose label parses as an integer above (or below) the bound."""
        found = self._keys.get(key)
        if found is None:
            return _NOTHING
        return found.selected(
            (greater, bound), lambda value: _compares(value, greater=greater, bound=bound)
        )

    def values(self, key: str) -> KeysView[str]:
        """The values that some node carries."""
        found = self._keys.get(key)
        return {}.keys() if found is None else found.values.keys()
