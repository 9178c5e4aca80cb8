"""Sets of nodes that were worked out for a question, and what changed since."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Final

from pyroaring import BitMap

_MAX_ANSWERS: Final = 256
_MAX_BEHIND: Final = 8
"""Changed nodes that are worth judging one by one; for more, the question is asked anew."""


class Answers:
    """The last answers, brought up to date node by node instead of thrown away.

    When many sandboxes wake at once they ask the same few questions, between few changes of nodes.
    """

    __slots__ = ("_changed", "_kept", "_version")

    def __init__(self) -> None:
        self._version = 0
        self._changed: deque[int] = deque(maxlen=_MAX_BEHIND)
        self._kept: OrderedDict[Hashable, tuple[int, BitMap, object]] = OrderedDict()

    def changed(self, slot: int) -> None:
        """The node at a slot is another than before, or gone."""
        self._version += 1
        self._changed.append(slot)

    def keep(self, question: Hashable, nodes: BitMap, *, holding: object) -> None:
        """Keeps an answer, which is from now on changed in place. `holding` is what must stay
        alive while the answer does, for the question names it by identity."""
        if len(self._kept) >= _MAX_ANSWERS:
            self._kept.popitem(last=False)
        self._kept[question] = self._version, nodes, holding

    def recall(self, question: Hashable) -> tuple[BitMap, list[int]] | None:
        """The answer and the slots that the caller must judge again; None: ask anew."""
        kept = self._kept.get(question)
        if kept is None:
            return None
        version, nodes, holding = kept
        behind = self._version - version
        if behind > len(self._changed):
            del self._kept[question]
            return None
        self._kept.move_to_end(question)
        if not behind:
            return nodes, []
        self._kept[question] = self._version, nodes, holding
        return nodes, list(self._changed)[-behind:]

    def clear(self) -> None:
        self._kept.clear()
