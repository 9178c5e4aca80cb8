"""Node labels as sets of nodes: which slots carry a key, and which carry a value of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, KeysView
from typing import Final

from pyroaring import BitMap

_INT64: Final = range(-(2**63), 2**63)
_DECIMAL: Final = re.compile(r"[+-]?[0-9]+")
_MAX_RANGES: Final = 16
_NOTHING: Final = BitMap()


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


class _Key:
    """The values of one label key.

    A value that only one node carries (a host name, say) is kept as a bare slot number: one
    bitmap for each would cost more than all else that is kept of the node.
    """

    __slots__ = ("present", "ranges", "shared", "values")

    def __init__(self) -> None:
        self.present = BitMap()
        self.values: dict[str, BitMap | int] = {}
        self.shared: dict[str, str] = {}
        """One string object for each value that several nodes carry."""
        self.ranges: dict[tuple[bool, int], BitMap] = {}
        """Kept answers of `compared`, by (greater, bound)."""

    def add(self, value: str, slot: int) -> bool:
        """True when no other node carries the value."""
        self.present.add(slot)
        if self.ranges:
            self._update_ranges(value, slot, present=True)
        held = self.values.get(value)
        if held is None:
            self.values[value] = slot
            return True
        if isinstance(held, int):
            self.values[value] = BitMap((held, slot))
            self.shared[value] = value
        else:
            held.add(slot)
        return False

    def discard(self, value: str, slot: int) -> bool:
        """True when no other node carries the value."""
        self.present.discard(slot)
        if self.ranges:
            self._update_ranges(value, slot, present=False)
        held = self.values.get(value)
        if held is None or isinstance(held, int):
            self.values.pop(value, None)
            return True
        held.discard(slot)
        if len(held) == 1:
            self.values[value] = held.min()
            self.shared.pop(value, None)
        return False

    def slots(self, value: str) -> BitMap:
        held = self.values.get(value)
        if held is None:
            return _NOTHING
        return BitMap((held,)) if isinstance(held, int) else held

    def compared(self, *, greater: bool, bound: int) -> BitMap:
        kept = self.ranges.get((greater, bound))
        if kept is None:
            kept = BitMap()
            for value, held in self.values.items():
                if _compares(value, greater=greater, bound=bound):
                    kept.update((held,) if isinstance(held, int) else held)
            if len(self.ranges) >= _MAX_RANGES:
                self.ranges.pop(next(iter(self.ranges)))
            self.ranges[greater, bound] = kept
        return kept

    def _update_ranges(self, value: str, slot: int, *, present: bool) -> None:
        for (greater, bound), kept in self.ranges.items():
            if _compares(value, greater=greater, bound=bound):
                if present:
                    kept.add(slot)
                else:
                    kept.discard(slot)


def _compares(value: str, *, greater: bool, bound: int) -> bool:
    number = parse_int64(value)
    return number is not None and (number > bound if greater else number < bound)


class LabelIndex:
    """Sets of slots by label. The sets returned are the index's own: they are not to be changed,
    and are good until the next change."""

    __slots__ = ("_keys",)

    def __init__(self) -> None:
        self._keys: dict[str, _Key] = {}

    def place(
        self, keys: tuple[str, ...], values: tuple[str, ...], slot: int
    ) -> tuple[tuple[str, ...], list[str]]:
        """Takes in all labels of a new node. Returns the values to keep, which are the strings
        that other nodes already share, and the keys whose value no other node carries."""
        index = self._keys
        kept: list[str] = []
        first: list[str] = []
        for key, value in zip(keys, values, strict=True):
            found = index.get(key)
            if found is None:
                found = index[key] = _Key()
            if found.add(value, slot):
                first.append(key)
            kept.append(found.shared.get(value, value))
        return tuple(kept), first

    def add(self, key: str, value: str, slot: int) -> tuple[str, bool]:
        """The node now carries the label. Returns the string to keep for the value, and whether
        no other node carries it."""
        found = self._keys.get(key)
        if found is None:
            found = self._keys[key] = _Key()
        first = found.add(value, slot)
        return found.shared.get(value, value), first

    def discard(self, key: str, value: str, slot: int) -> bool:
        """The node no longer carries the label; True when it was the only one with that value."""
        found = self._keys[key]
        last = found.discard(value, slot)
        if not found.present:
            del self._keys[key]
        return last

    def having(self, key: str) -> BitMap:
        """Nodes with the label, whatever its value."""
        found = self._keys.get(key)
        return _NOTHING if found is None else found.present

    def equal(self, key: str, value: str) -> BitMap:
        """Nodes with exactly that label."""
        found = self._keys.get(key)
        return _NOTHING if found is None else found.slots(value)

    def one_of(self, key: str, values: Iterable[str]) -> BitMap:
        """Nodes whose label has one of the values."""
        found = self._keys.get(key)
        if found is None:
            return _NOTHING
        sets = [found.slots(value) for value in values if value in found.values]
        if not sets:
            return _NOTHING
        if len(sets) == 1:
            return sets[0]
        union = sets[0] | sets[1]
        for more in sets[2:]:
            union |= more
        return union

    def compared(self, key: str, *, greater: bool, bound: int) -> BitMap:
        """Nodes whose label parses as an integer above (or below) the bound."""
        found = self._keys.get(key)
        return _NOTHING if found is None else found.compared(greater=greater, bound=bound)

    def values(self, key: str) -> KeysView[str]:
        """The values that some node carries."""
        found = self._keys.get(key)
        return {}.keys() if found is None else found.values.keys()
