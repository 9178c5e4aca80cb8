"""A stable order of nodes for each sandbox, of which the first few can be had without a scan.

The order is that of a two-level rendezvous hash. Node names fall into buckets by hash; a sandbox
visits the buckets in a permutation of its own, and the nodes of one bucket in the order of a hash
of sandbox and name. So each sandbox has one fixed order over all names that there could be: nodes
that come and go move only the sandboxes that pick them, every process agrees, and load spreads.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import Final

import xxhash
from pyroaring import BitMap

BUCKETS: Final = 4096
"""A power of two, so that every odd step visits each bucket once."""
_MASK: Final = BUCKETS - 1


def stable_hash(text: str, *, seed: int = 0) -> int:
    """64 bits that are the same in every process and version."""
    return xxhash.xxh64_intdigest(text.encode(), seed)


class Ring:
    """The nodes of the index by bucket."""

    __slots__ = ("_bucket_of", "_members", "_size")

    def __init__(self) -> None:
        self._members: dict[int, int | array[int]] = {}
        """The one slot of a bucket, or its several; side by side in memory, for a visit looks at
        each and would else wait for each."""
        self._bucket_of = array("H")
        self._size = 0

    def add(self, slot: int, name: str) -> None:
        bucket = stable_hash(name) & _MASK
        while len(self._bucket_of) <= slot:
            self._bucket_of.append(0)
        self._bucket_of[slot] = bucket
        members = self._members.get(bucket)
        if members is None:
            self._members[bucket] = slot
        elif isinstance(members, int):
            self._members[bucket] = array("I", (members, slot))
        else:
            members.append(slot)
        self._size += 1

    def discard(self, slot: int) -> None:
        bucket = self._bucket_of[slot]
        members = self._members[bucket]
        if isinstance(members, int):
            del self._members[bucket]
        else:
            members.remove(slot)
            if len(members) == 1:
                self._members[bucket] = members[0]
        self._size -= 1

    def first(
        self, candidates: BitMap, count: int, *, sandbox_id: str, name_of: Callable[[int], str]
    ) -> list[int]:
        """The first `count` of the candidates in the sandbox's order."""
        if count <= 0 or not candidates:
            return []
        seed = stable_hash(sandbox_id)
        start, step = seed & _MASK, (seed >> 32) & _MASK | 1
        # Few candidates: place each. Many: visit buckets until enough are found. The answers are
        # the same, and the numbers are where the costs were measured to be.
        if len(candidates) ** 2 <= 15_000 + self._size // 2:
            groups = self._placed(candidates, start=start, step=step)
        else:
            groups = self._visited(candidates, start=start, step=step)
        picked: list[int] = []
        for group in groups:
            if len(group) > 1:
                group.sort(key=lambda slot: _rank(name_of(slot), seed=seed))
            picked += group
            if len(picked) >= count:
                break
        return picked[:count]

    def _visited(self, candidates: BitMap, *, start: int, step: int) -> Iterator[list[int]]:
        """The candidates of each bucket that has some, bucket after bucket as visited."""
        members_of = self._members.get
        for visit in range(BUCKETS):
            members = members_of((start + visit * step) & _MASK)
            if members is None:
                continue
            if isinstance(members, int):
                if members in candidates:
                    yield [members]
            elif group := [slot for slot in members if slot in candidates]:
                yield group

    def _placed(self, candidates: BitMap, *, start: int, step: int) -> Iterator[list[int]]:
        """The same groups, from the visit at which the sandbox comes to each one's bucket."""
        inverse = pow(step, -1, BUCKETS)
        bucket_of = self._bucket_of
        # One number for visit and slot: sorting numbers is cheaper than sorting pairs.
        placed = sorted(
            [((bucket_of[slot] - start) * inverse & _MASK) << 32 | slot for slot in candidates]
        )
        group: list[int] = []
        visit = -1
        for number in placed:
            if number >> 32 != visit:
                if group:
                    yield group
                group, visit = [], number >> 32
            group.append(number & 0xFFFFFFFF)
        if group:
            yield group


def _rank(name: str, *, seed: int) -> tuple[int, str]:
    return stable_hash(name, seed=seed), name
