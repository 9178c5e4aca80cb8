"""Section 9: the stable order of nodes for each sandbox."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap

from sandbox_restore.fleet.ring import Ring, stable_hash


def ring_of(names: list[str]) -> Ring:
    ring = Ring()
    for slot, name in enumerate(names):
        ring.add(slot, name)
    return ring


def first(
    names: list[str], count: int, *, sandbox: str, among: set[str] | None = None
) -> list[str]:
    ring = ring_of(names)
    slots = BitMap([i for i, name in enumerate(names) if among is None or name in among])
    return [
        names[slot]
        for slot in ring.first(slots, count, sandbox_id=sandbox, name_of=lambda s: names[s])
    ]


def test_the_hash_is_the_same_everywhere() -> None:
    assert stable_hash("sandbox-1") == 0x0D2A040A3DC9ADA3
    assert stable_hash("a") == 0xD24EC4F1A98C6E5B


NAMES = [f"node-{i}" for i in range(400)]


def test_the_order_is_the_same_in_every_process_and_version() -> None:
    """Another order would send every retry of a pinned restore to other nodes."""
    assert first(NAMES, 4, sandbox="sandbox-1") == ["node-395", "node-41", "node-0", "node-159"]
    assert first(NAMES[:7], 3, sandbox="sandbox-1") == ["node-0", "node-3", "node-5"]


@settings(max_examples=60, deadline=None)
@given(
    chosen=st.lists(st.sampled_from(NAMES), min_size=1, max_size=60, unique=True),
    sandbox=st.text("abc123", min_size=1, max_size=6),
    count=st.integers(0, 10),
    crowd=st.integers(0, 340),
)
def test_few_and_many_candidates_are_ordered_alike(
    chosen: list[str], sandbox: str, count: int, crowd: int
) -> None:
    """The order depends on neither the slots, nor how many other nodes or candidates there are."""
    alone = first(chosen, count, sandbox=sandbox)
    others = [name for name in NAMES if name not in chosen][:crowd]
    crowded = first([*others, *reversed(chosen)], count, sandbox=sandbox, among=set(chosen))
    assert crowded == alone
    assert len(alone) == min(count, len(chosen))


def test_a_node_that_leaves_moves_only_those_that_picked_it() -> None:
    sandboxes = [f"sb-{i}" for i in range(100)]
    ring = ring_of(NAMES)
    everyone = BitMap(range(len(NAMES)))

    def picks(candidates: BitMap) -> dict[str, list[int]]:
        return {
            s: ring.first(candidates, 3, sandbox_id=s, name_of=NAMES.__getitem__) for s in sandboxes
        }

    before, after = picks(everyone), picks(everyone - BitMap([17]))
    for sandbox in sandboxes:
        assert [slot for slot in before[sandbox] if slot != 17] == [
            slot for slot in after[sandbox] if slot in before[sandbox]
        ]
        assert before[sandbox] == after[sandbox] or 17 in before[sandbox]


def test_load_spreads() -> None:
    ring = ring_of(NAMES)
    everyone = BitMap(range(len(NAMES)))
    taken: Counter[int] = Counter()
    for i in range(20_000):
        taken.update(ring.first(everyone, 1, sandbox_id=f"sandbox-{i}", name_of=NAMES.__getitem__))
    mean = 20_000 / len(NAMES)
    assert len(taken) == len(NAMES)
    assert max(taken.values()) < 3 * mean


def test_a_removed_node_is_not_visited() -> None:
    ring = ring_of(NAMES[:3])
    ring.discard(1)
    found = ring.first(BitMap([0, 2]), 5, sandbox_id="s", name_of=NAMES.__getitem__)
    assert sorted(found) == [0, 2]
