"""Section 12: which CPU each Node carried, from when to when."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from sandbox_restore.fleet.history import FLAP_WINDOW, FLAPS, NodeHistory
from sandbox_restore.fleet.index import FleetIndex
from sandbox_restore.fleet.left import MAX_LEFT
from sandbox_restore.model.sandbox import NodeCpuSpan
from tests.unit.fleet.nodes import AMD, ARM, INTEL_A, INTEL_B, NOW, fleet, history, node, span

SECOND = timedelta(seconds=1)
MICRO = timedelta(microseconds=1)


def at(seconds: float) -> datetime:
    return NOW + seconds * SECOND


def watched(*nodes: object, known: NodeHistory | None = None) -> tuple[FleetIndex, NodeHistory]:
    """An index that took in these nodes at second 0, and its history, empty before unless given."""
    known = history() if known is None else known
    index = FleetIndex(history=known)
    index.replace(nodes, now=at(0))  # type: ignore[arg-type]
    return index, known


def told(known: NodeHistory, name: str, *seconds: float) -> list[str | None]:
    return [known.carried(name, at(second)).cpu for second in seconds]


def written(known: NodeHistory) -> list[NodeCpuSpan]:
    return known.unwritten(1000)


# --- what a time reads as


def test_a_span_holds_from_first_to_last_seen_both_included() -> None:
    known = history(span("n1", AMD, first=at(0), last=at(10)))
    assert told(known, "n1", 0, 5, 10) == [AMD] * 3
    assert known.carried("n1", at(0) - MICRO).cpu is None
    assert known.carried("n1", at(10) + MICRO).cpu is None
    assert told(known, "n2", 5) == [None]


@pytest.mark.parametrize("uid", ["same", "other"])
@pytest.mark.parametrize("cpu", [AMD, ARM])
def test_a_time_between_two_spans_is_not_known_whatever_they_say(uid: str, cpu: str) -> None:
    known = history(
        span("n1", AMD, uid="same", first=at(0), last=at(10)),
        span("n1", cpu, uid=uid, first=at(20), last=at(30)),
    )
    assert told(known, "n1", 10, 15, 20) == [AMD, None, cpu]


def test_where_two_nodes_of_one_name_overlap_only_one_cpu_is_an_answer() -> None:
    known = history(
        span("n1", AMD, uid="a", first=at(0), last=at(20)),
        span("n1", ARM, uid="b", first=at(10), last=at(30)),
        span("n2", AMD, uid="a", first=at(0), last=at(20)),
        span("n2", AMD, uid="b", first=at(10), last=at(30)),
    )
    assert told(known, "n1", 9, 10, 15, 20, 21) == [AMD, None, None, None, ARM]
    assert told(known, "n2", 9, 15, 21) == [AMD] * 3


def test_at_the_moment_of_a_change_both_hold_so_neither_is_told() -> None:
    known = history(
        span("n1", AMD, first=at(0), last=at(10)), span("n1", ARM, first=at(10), last=at(20))
    )
    assert told(known, "n1", 10) == [None]


def test_a_span_that_goes_on_holds_up_to_the_last_news_of_the_fleet() -> None:
    index, known = watched(node("n1", AMD), node("n2", AMD))
    assert told(known, "n1", -1, 0, 1) == [None, AMD, None]
    index.apply(node("n2", AMD), now=at(60))
    assert told(known, "n1", 0, 60, 61) == [AMD, AMD, None]


def test_nothing_is_told_or_handed_out_before_the_older_spans_are_read() -> None:
    index, known = watched(node("n1", AMD), known=NodeHistory())
    known.extend_all()
    assert "not been read" in known.carried("n1", at(0)).why
    assert (written(known), known.extended(9)) == ([], [])
    known.load([], known_after=at(-9))
    assert told(known, "n1", 0) == [AMD]
    assert [one.node_name for one in written(known)] == ["n1"]
    assert len(index) == 1


# --- what the index tells


def test_a_label_that_names_no_cpu_begins_no_span() -> None:
    _, known = watched(node("n1"), node("n2", "unknown"), node("n3", "Intel-6"), node("n4", AMD))
    assert [one.node_name for one in written(known)] == ["n4"]


def test_a_deletion_ends_the_span() -> None:
    index, known = watched(node("n1", AMD))
    index.remove("n1", "uid-of-n1", now=at(10))
    assert told(known, "n1", 0, 10, 11) == [AMD, AMD, None]
    assert written(known) == [span("n1", AMD, first=at(0), last=at(10))]


def test_a_label_that_changed_ends_the_span_with_the_news_before() -> None:
    """It may have changed at any time since."""
    index, known = watched(node("n1", AMD), node("n2", AMD))
    index.apply(node("n2", AMD, ready=False), now=at(7))
    index.apply(node("n1", ARM), now=at(10))
    assert told(known, "n1", 7, 8, 9, 10) == [AMD, None, None, ARM]
    index.apply(node("n1"), now=at(20))
    assert told(known, "n1", 10, 11) == [ARM, None]


def test_another_node_of_the_name_ends_the_span_at_its_creation() -> None:
    index, known = watched(node("n1", AMD), node("n2", AMD))
    index.apply(node("n2", AMD, ready=False), now=at(9))
    index.apply(node("n1", AMD, uid="new", created=at(5)), now=at(10))
    assert told(known, "n1", 5, 6, 9, 10) == [AMD, None, None, AMD]


def test_a_deletion_that_was_told_late_ends_at_the_creation_of_the_next() -> None:
    index, known = watched(node("n1", AMD))
    index.remove("n1", "uid-of-n1", now=at(10))
    index.apply(node("n1", ARM, uid="new", created=at(5)), now=at(10))
    assert told(known, "n1", 5, 6, 10) == [AMD, None, ARM]
    assert [one.last_seen_at for one in written(known)] == [at(5), at(10)]


def test_what_a_list_does_not_hold_any_more_was_last_seen_before_it() -> None:
    index, known = watched(node("n1", AMD), node("n2", AMD))
    index.apply(node("n2", AMD, ready=False), now=at(4))
    index.replace([node("n2", ARM)], now=at(10))
    assert told(known, "n1", 4, 5) == [AMD, None]
    assert told(known, "n2", 4, 5, 9, 10) == [AMD, None, None, ARM]


def test_a_label_that_comes_back_is_one_span_and_one_row() -> None:
    index, known = watched(node("n1", AMD))
    first = written(known)
    index.apply(node("n1"), now=at(10))
    index.apply(node("n1", AMD), now=at(20))
    index.apply(node("n1", AMD, ready=False), now=at(30))
    assert told(known, "n1", 5, 15, 25) == [AMD] * 3
    assert written(known) == [span("n1", AMD, first=at(0), last=at(30))]
    assert first[0].first_seen_at == at(0)


def test_another_cpu_in_between_makes_two_spans() -> None:
    index, known = watched(node("n1", AMD))
    for second, cpu in ((10, ARM), (20, AMD)):
        index.apply(node("n1", cpu), now=at(second))
    assert [one.host_cpu for one in known.spans("n1")] == [AMD, ARM, AMD]
    assert told(known, "n1", 15, 20) == [None, AMD]


def test_two_labels_of_one_node_never_begin_at_the_same_time() -> None:
    """A row is known by its Node and its beginning; a clock may stand still or be set back."""
    index, known = watched(node("n1", AMD))
    index.apply(node("n1", ARM), now=at(0))
    index.apply(node("n1", INTEL_A), now=at(-50))
    rows = written(known)
    assert [one.host_cpu for one in rows] == [AMD, ARM, INTEL_A]
    assert [one.first_seen_at for one in rows] == [at(0), at(0) + MICRO, at(0) + 2 * MICRO]
    assert all(one.first_seen_at <= one.last_seen_at for one in rows)
    known.give_back(rows)
    assert (written(known), known.waiting) == (rows, 0)


# --- across restarts


@pytest.mark.parametrize("late", [False, True])
def test_a_node_that_is_still_there_after_a_restart_goes_on_in_its_span(late: bool) -> None:
    spans = [span("n1", AMD, first=at(-100), last=at(-50)), span("n2", AMD, last=at(-50))]
    known = NodeHistory() if late else history(*spans)
    _, known = watched(node("n1", AMD), node("n2", ARM), known=known)
    if late:
        known.load(spans, known_after=at(-999))
    assert told(known, "n1", -100, -20, 0) == [AMD] * 3
    assert told(known, "n2", -50, -20, 0) == [AMD, None, ARM]
    assert sorted((s.node_name, s.host_cpu, s.first_seen_at) for s in written(known)) == [
        ("n1", AMD, at(-100)),
        ("n2", ARM, at(0)),
    ]


@pytest.mark.parametrize("late", [False, True])
def test_another_node_of_the_name_does_not(late: bool) -> None:
    spans = [span("n1", AMD, first=at(-100), last=at(-50), uid="old")]
    known = NodeHistory() if late else history(*spans)
    _, known = watched(node("n1", AMD, created=at(-30)), known=known)
    if late:
        known.load(spans, known_after=at(-999))
    assert told(known, "n1", -50, -20, 0) == [AMD, None, AMD]


def test_what_was_seen_before_a_late_reading_stays_apart() -> None:
    index, known = watched(node("n1", AMD), known=NodeHistory())
    index.apply(node("n1", ARM), now=at(10))
    index.apply(node("n1", AMD), now=at(20))
    known.load([span("n1", AMD, first=at(-100), last=at(-50))], known_after=at(-999))
    assert told(known, "n1", -75, -25, 0, 10, 20) == [AMD, None, AMD, ARM, AMD]


# --- since when


def test_since_when_is_answered_for_what_is_there_and_for_what_was() -> None:
    index, known = watched(node("n1", AMD), node("n2", ARM))
    index.remove("n2", "uid-of-n2", now=at(10))
    assert known.since("n1") == span("n1", AMD, first=at(0), last=at(10))
    assert known.since("n2") == span("n2", ARM, first=at(0), last=at(10))
    assert known.since("n3") is None


def test_cpus_without_a_node_are_told_with_the_time_they_left() -> None:
    index = fleet(node("n1", AMD), node("n2", ARM), published_hold=60 * SECOND)
    index.remove("n1", now=at(0))
    index.remember_left({INTEL_A: at(-30), ARM: at(-30), INTEL_B: at(-60)})
    assert index.left(now=at(0)) == {AMD: at(0), INTEL_A: at(-30)}
    assert index.left(now=at(59)) == {AMD: at(0)}
    assert index.left(now=at(60)) == {}


def test_of_too_many_cpus_that_left_those_that_left_last_are_held() -> None:
    index = fleet(node("n1", AMD), published_hold=3600 * SECOND)
    index.remember_left({f"cpu-{i}": at(i) for i in range(MAX_LEFT + 5)})
    index.remove("n1", now=at(MAX_LEFT + 9))
    held = index.left(now=at(MAX_LEFT + 9))
    assert len(held) == MAX_LEFT
    assert set(held) == {AMD, *(f"cpu-{i}" for i in range(6, MAX_LEFT + 5))}


# --- what is to be written


def test_what_began_or_ended_is_handed_out_once() -> None:
    index, known = watched(node("n1", AMD), node("n2", AMD))
    assert known.waiting == 2
    assert len(known.unwritten(1)) == 1
    assert len(written(known)) == 1
    assert (written(known), known.waiting) == ([], 0)
    index.apply(node("n1", AMD, ready=False), now=at(5))
    assert written(known) == []
    index.remove("n1", "uid-of-n1", now=at(9))
    assert written(known) == [span("n1", AMD, first=at(0), last=at(9))]


def test_open_spans_are_extended_to_when_they_were_last_known_in_turn() -> None:
    index, known = watched(*(node(f"n{i}", AMD) for i in range(5)))
    written(known)
    assert known.extended(9) == []
    known.extend_all()
    index.apply(node("n0", AMD, ready=False), now=at(30))
    index.remove("n1", "uid-of-n1", now=at(30))
    turns = [known.extended(2), known.extended(2), known.extended(2), known.extended(2)]
    assert sorted(one.node_name for turn in turns for one in turn) == ["n0", "n2", "n3", "n4"]
    assert {one.last_seen_at for turn in turns for one in turn} == {at(30)}


def test_what_could_not_be_written_is_handed_out_again_as_it_is_by_then() -> None:
    index, known = watched(node("n1", AMD), node("n2", AMD), node("n3", AMD))
    index.apply(node("n3"), now=at(5))
    batch = written(known)
    index.remove("n1", "uid-of-n1", now=at(10))
    index.apply(node("n3", AMD), now=at(20))
    known.give_back(batch)
    assert sorted((s.node_name, s.last_seen_at) for s in written(known)) == [
        ("n1", at(10)),
        ("n2", at(20)),
        ("n3", at(20)),
    ]
    assert known.waiting == 0


# --- bounds


def test_the_spans_that_ended_first_are_forgotten_and_never_answered_wrongly() -> None:
    known = history(max_past=20)
    index = FleetIndex(history=known)
    index.replace([node("n", AMD)], now=at(0))
    for i in range(1, 200):
        cpu = ARM if i % 2 else AMD
        index.apply(node("n", cpu, uid=f"u{i}", created=at(10 * i)), now=at(10 * i))
    assert known.size <= 20 + 2 + 1
    answers = told(known, "n", *(10 * i for i in range(200)))
    assert set(answers[:175]) == {None}
    assert answers[-1] == ARM


def test_spans_that_overlapped_a_forgotten_one_are_not_answered_from() -> None:
    spans = [span("n", ARM, first=at(0), last=at(10), uid="a")]
    spans += [span("n", AMD, first=at(5), last=at(100 + i), uid=f"b{i}") for i in range(20)]
    known = history(*spans, max_past=18)
    assert told(known, "n", 7, 10, 11) == [None, None, None]
    assert told(known, "n", 103) == [AMD]


def test_ends_that_find_no_database_for_too_long_are_given_up_oldest_first() -> None:
    known = history(max_unwritten=3)
    index = FleetIndex(history=known)
    index.replace([node(f"n{i}", AMD) for i in range(5)] + [node("stays", AMD)], now=at(0))
    for i in range(5):
        index.remove(f"n{i}", f"uid-of-n{i}", now=at(i))
    assert known.given_up == 2
    assert [one.node_name for one in written(known)] == ["n2", "n3", "n4", "stays"]


def test_a_label_that_flaps_is_not_recorded_until_it_has_settled() -> None:
    index, known = watched(node("n1", AMD))
    for i in range(1, 100):
        index.apply(node("n1", ARM if i % 2 else AMD), now=at(i))
    rows = {(s.host_cpu, s.first_seen_at) for s in written(known)}
    assert len(rows) == FLAPS
    assert told(known, "n1", 50) == [None]
    known.settle(now=at(99) + FLAP_WINDOW - MICRO)
    assert written(known) == []
    known.settle(now=at(99) + FLAP_WINDOW)
    assert [(s.host_cpu, s.first_seen_at) for s in written(known)] == [(ARM, at(99))]
    assert told(known, "n1", 50, 98, 99) == [None, None, ARM]


def test_a_node_that_flapped_and_left_is_not_recorded_any_more() -> None:
    index, known = watched(node("n1", AMD))
    for i in range(1, 20):
        index.apply(node("n1", ARM if i % 2 else AMD), now=at(i))
    written(known)
    index.remove("n1", "uid-of-n1", now=at(20))
    known.settle(now=at(20) + FLAP_WINDOW)
    assert written(known) == []


def test_after_a_flapping_phase_no_span_goes_on_from_before_it() -> None:
    """Labels were seen meanwhile that no span tells of; after a restart as well."""
    index, known = watched(node("n1", AMD))
    for i in range(1, 21):
        index.apply(node("n1", ARM if i % 2 else AMD), now=at(i))
    rows = written(known)
    index.apply(node("n1", rows[-1].host_cpu), now=at(3600))
    assert told(known, "n1", 15, 3599, 3600) == [None, None, rows[-1].host_cpu]
    again = history(*rows)
    FleetIndex(history=again).replace([node("n1", rows[-1].host_cpu)], now=at(3600))
    assert told(again, "n1", 15, 3599, 3600) == [None, None, rows[-1].host_cpu]
