"""The fleet index: what it answers, what it announces, and that late events change nothing."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap

from sandbox_restore.fleet.index import FleetIndex
from sandbox_restore.fleet.record import Aspect
from sandbox_restore.model import names
from sandbox_restore.model.node import NodeFacts, Taint
from sandbox_restore.placement.match import Toleration, Tolerations
from tests.unit.fleet.nodes import AMD, ARM, INTEL_A, INTEL_B, LONG_AGO, NOW, fleet, node

MINUTE = timedelta(minutes=1)


# --- reading


def test_an_index_is_warm_only_after_an_authoritative_list() -> None:
    index = FleetIndex()
    index.apply(node("n1", AMD), now=NOW)
    assert not index.warm
    index.replace([node("n1", AMD)], now=NOW)
    assert index.warm


def test_an_empty_list_is_an_answer_too() -> None:
    index = fleet()
    assert index.warm
    assert len(index) == 0


def test_a_record_keeps_what_was_told() -> None:
    facts = node(
        "n1",
        AMD,
        labels={"b": "2", "a": "1"},
        taints=[("k", "v", "NoSchedule")],
        unschedulable=True,
        network_slots=3,
    )
    record = fleet(facts).get("n1")
    assert record is not None
    for name in (
        "name",
        "uid",
        "created",
        "labels",
        "taints",
        "unschedulable",
        "deleting",
        "ready",
        "ready_since",
        "services_ready",
        "network_slots",
    ):
        assert getattr(record, name) == getattr(facts, name), name
    assert record.cpu == AMD
    assert not record.out_of_service


def test_out_of_service_is_a_taint_whatever_its_effect() -> None:
    record = fleet(node("n1", taints=[(names.OUT_OF_SERVICE_TAINT, "x", "NoExecute")])).get("n1")
    assert record is not None
    assert record.out_of_service


def test_published_are_the_usable_labels_of_nodes_in_any_state() -> None:
    index = fleet(
        node("n1", INTEL_B, unschedulable=True),
        node("n2", AMD, deleting=True, ready=False),
        node("n3", AMD, blocked=True, services=False),
        node("n4", "Not-Canonical"),
        node("n5", "unknown"),
        node("n6"),
    )
    assert index.published() == (AMD, INTEL_B)
    assert index.unusable_labels() == {"Not-Canonical": ("n4",), "unknown": ("n5",)}


def test_a_non_canonical_host_cpu_label_reads_as_unlabeled() -> None:
    index = fleet(node("n1", "Intel-6-106-6"), node("n2", INTEL_A))
    record = index.get("n1")
    assert record is not None
    assert record.cpu is None
    assert record.host_cpu_label == "Intel-6-106-6"
    assert index.published() == (INTEL_A,)
    assert index.counts()[None].nodes == 1


def test_the_label_key_is_a_setting() -> None:
    index = fleet(node("n1", INTEL_A, labels={"example.com/cpu": AMD}), cpu_label="example.com/cpu")
    assert index.published() == (AMD,)


def test_counts_per_cpu_and_state() -> None:
    index = fleet(
        node("n1", AMD, unschedulable=True),
        node("n2", AMD, taints=[("k", "", "NoSchedule")], services=False),
        node("n3", AMD, taints=[("k", "", "PreferNoSchedule")], ready=False, network_slots=8),
        node("n4", blocked=True, deleting=True, network_slots=0),
    )
    amd, unlabelled = index.counts()[AMD], index.counts()[None]
    assert (amd.with_slots, unlabelled.with_slots) == (3, 0)
    assert (amd.nodes, amd.ready, amd.cordoned, amd.tainted, amd.services_ready) == (3, 2, 1, 1, 2)
    assert (unlabelled.nodes, unlabelled.blocked, unlabelled.deleting) == (1, 1, 1)


def test_kept_sets_take_in_new_nodes() -> None:
    """A set that was asked for once follows every change, common values included."""
    x = [node(f"n{i}", labels={"x": str(i % 2)}) for i in range(6)]
    index = fleet(*x[:4])
    both, above = ["0", "1"], {"greater": True, "bound": 0}
    assert len(index.labels.one_of("x", both)) == 4
    assert len(index.labels.compared("x", **above)) == 2  # type: ignore[arg-type]
    for facts in x[4:]:
        index.apply(facts, now=NOW)
    assert index.names(index.labels.one_of("x", both)) == tuple(n.name for n in x)
    assert index.names(index.labels.compared("x", **above)) == ("n1", "n3", "n5")  # type: ignore[arg-type]
    index.apply(node("n1", labels={"x": "2"}), now=NOW)
    assert index.names(index.labels.one_of("x", both)) == ("n0", "n2", "n3", "n4", "n5")
    assert index.names(index.labels.union("x", ["1", "2", "9"])) == ("n1", "n3", "n5")
    assert index.labels.one_of("x", []) == index.labels.union("gone", both)


def test_few_sets_are_kept_and_the_oldest_go_first() -> None:
    index = fleet(*(node(f"n{i}", labels={"x": str(i)}) for i in range(200)))
    for i in range(199):
        found = index.labels.one_of("x", [str(i), str(i + 1)])
        assert index.names(found) == tuple(sorted([f"n{i}", f"n{i + 1}"]))
    assert index.names(index.labels.one_of("x", ["0", "1"])) == ("n0", "n1")


# --- published for a while longer (section 12)


def test_a_cpu_stays_published_for_the_hold_after_its_last_node() -> None:
    index = fleet(node("n1", AMD), node("n2", INTEL_A), published_hold=MINUTE)
    index.remove("n1", now=NOW)
    assert index.published() == (INTEL_A,)
    assert index.published(now=NOW + MINUTE / 2) == (AMD, INTEL_A)
    assert index.published(now=NOW + MINUTE) == (INTEL_A,)


def test_a_cpu_that_came_back_is_published_without_the_hold() -> None:
    index = fleet(node("n1", AMD), published_hold=MINUTE)
    index.remove("n1", now=NOW)
    index.apply(node("n2", AMD), now=NOW)
    assert index.published(now=NOW + 2 * MINUTE) == (AMD,)


def test_the_history_tells_which_cpus_left_before_the_start() -> None:
    index = fleet(node("n1", INTEL_A), published_hold=MINUTE)
    index.remember_left({AMD: NOW, INTEL_A: NOW, "Not-Canonical": NOW})
    assert index.published(now=NOW) == (AMD, INTEL_A)
    assert index.published(now=NOW + MINUTE) == (INTEL_A,)


def test_the_hold_of_each_cpu_ends_by_itself() -> None:
    index = fleet(node("n1", AMD), node("n2", ARM), node("n3", INTEL_A), published_hold=MINUTE)
    index.remove("n1", now=NOW)
    index.remove("n2", now=NOW + MINUTE / 2)
    seen = [index.published(now=NOW + i * MINUTE / 4) for i in range(8)]
    assert [AMD in published for published in seen] == [True] * 4 + [False] * 4
    assert [ARM in published for published in seen] == [True] * 6 + [False] * 2


def test_a_cpu_that_comes_is_published_at_once_while_another_is_held() -> None:
    index = fleet(node("n1", AMD), node("n2", INTEL_A), published_hold=MINUTE)
    index.remove("n1", now=NOW)
    assert index.published(now=NOW) == (AMD, INTEL_A)
    index.apply(node("n3", ARM), now=NOW)
    assert index.published(now=NOW) == (AMD, ARM, INTEL_A)
    index.remove("n3", now=NOW + MINUTE / 2)
    index.remember_left({INTEL_B: NOW})
    assert index.published(now=NOW + MINUTE / 2) == (AMD, ARM, INTEL_A, INTEL_B)
    assert index.published(now=NOW + MINUTE) == (ARM, INTEL_A)


def test_without_a_hold_a_cpu_leaves_with_its_last_node() -> None:
    index = fleet(node("n1", AMD))
    index.apply(node("n1"), now=NOW)
    assert index.published(now=NOW) == ()


# --- announcing


def changed(before: NodeFacts, **parts: object) -> Aspect:
    index = fleet(before)
    change = index.apply(replace(before, **parts), now=NOW)  # type: ignore[arg-type]
    return Aspect(0) if change is None else change.what


BASE = node("n1", AMD, group="g")


@pytest.mark.parametrize(
    ("parts", "what", "matters"),
    [
        ({}, Aspect(0), False),
        ({"resource_version": 7}, Aspect(0), False),
        ({"unschedulable": True}, Aspect.CORDON, True),
        ({"deleting": True}, Aspect.DELETING, True),
        ({"services_ready": False}, Aspect.SERVICES, True),
        ({"taints": (Taint("k", "", "NoSchedule"),)}, Aspect.TAINTS, True),
        ({"labels": {**BASE.labels, "x": "y"}}, Aspect.LABELS, True),
        (
            {"labels": {**BASE.labels, names.HOST_CPU_LABEL: INTEL_A}},
            Aspect.LABELS | Aspect.HOST_CPU,
            True,
        ),
        ({"labels": {}}, Aspect.LABELS | Aspect.HOST_CPU, True),
        ({"ready": False, "ready_since": None}, Aspect.READY, False),
        ({"network_slots": 0}, Aspect.SLOTS, False),
        ({"uid": "another"}, Aspect.REPLACED, True),
    ],
)
def test_a_change_is_announced_by_its_aspects(
    parts: dict[str, object], what: Aspect, matters: bool
) -> None:
    assert changed(BASE, **parts) == what
    index = fleet(BASE)
    version = index.version
    change = index.apply(replace(BASE, **parts), now=NOW)  # type: ignore[arg-type]
    assert (change is not None and change.matters) is matters
    assert (index.version > version) is matters


def test_added_and_removed_nodes_are_announced() -> None:
    index = fleet()
    added = index.apply(BASE, now=NOW)
    assert added is not None
    assert added.what & Aspect.ADDED
    assert (added.name, added.before, added.cpu_values_changed) == ("n1", None, True)
    removed = index.remove("n1", now=NOW)
    assert removed is not None
    assert removed.what & Aspect.REMOVED
    assert (removed.name, removed.after, removed.cpu_values_changed) == ("n1", None, True)


def test_only_the_first_and_the_last_node_of_a_cpu_change_the_published() -> None:
    index = fleet(node("n1", AMD), node("n2", AMD))
    seen = [
        index.remove("n1", now=NOW),
        index.apply(node("n2", INTEL_A), now=NOW),
        index.apply(node("n3", INTEL_A), now=NOW),
        index.apply(replace(node("n3", INTEL_A), unschedulable=True), now=NOW),
    ]
    assert [c is not None and c.cpu_values_changed for c in seen] == [False, True, False, False]


def test_a_node_that_turns_into_a_new_cpu_changes_the_published() -> None:
    """With the same label keys or others, while another node keeps the old CPU."""
    for extra in ({}, {"x": "y"}):
        index = fleet(node("n1", AMD), node("n2", AMD))
        change = index.apply(node("n1", INTEL_A, labels=extra), now=NOW)
        assert change is not None
        assert change.cpu_values_changed
        assert index.published() == (AMD, INTEL_A)
        back = index.apply(node("n1", AMD), now=NOW)
        assert back is not None
        assert back.cpu_values_changed
        assert index.published() == (AMD,)


def test_a_replacement_list_tells_what_changed() -> None:
    index = fleet(node("n1", AMD), node("n2", AMD), node("n3", AMD))
    changes = index.replace([node("n1", AMD), node("n2", INTEL_A), node("n4")], now=NOW)
    assert {(c.name, bool(c.what & Aspect.REMOVED)) for c in changes} == {
        ("n2", False),
        ("n3", True),
        ("n4", False),
    }
    assert {record.name for record in index} == {"n1", "n2", "n4"}


# --- late events


def test_an_event_older_than_what_is_known_changes_nothing() -> None:
    index = fleet(node("n1", AMD, resource_version=9))
    assert index.apply(node("n1", INTEL_A, resource_version=8), now=NOW) is None
    assert index.published() == (AMD,)


def test_a_node_that_was_seen_to_go_does_not_come_back() -> None:
    index = fleet(node("n1", AMD))
    index.remove("n1", "uid-of-n1", now=NOW)
    assert index.apply(node("n1", AMD), now=NOW) is None
    assert len(index) == 0


def test_a_node_that_only_a_list_left_out_comes_back_with_its_next_event() -> None:
    """The list may have been older than the node; without versions nothing tells."""
    index = fleet(node("n1", AMD))
    index.replace([], now=NOW)
    assert index.absent_since("n1", "uid-of-n1", now=NOW + MINUTE) == NOW
    assert index.apply(node("n1", AMD), now=NOW + MINUTE) is not None
    assert index.absent_since("n1", "uid-of-n1", now=NOW + MINUTE) is None
    index.remove("n1", "uid-of-n1", now=NOW + 2 * MINUTE)
    assert index.absent_since("n1", None, now=NOW + 3 * MINUTE) == NOW + 2 * MINUTE
    assert index.apply(node("n1", AMD), now=NOW + 3 * MINUTE) is None


def test_a_deletion_that_follows_a_list_without_the_node_is_certain() -> None:
    index = fleet(node("n1", AMD))
    index.replace([], now=NOW)
    assert index.remove("n1", "uid-of-n1", now=NOW + MINUTE) is None
    assert index.apply(node("n1", AMD), now=NOW + MINUTE) is None
    assert index.absent_since("n1", "uid-of-n1", now=NOW + 2 * MINUTE) == NOW


def test_a_list_does_not_bring_back_a_node_whose_deletion_was_told() -> None:
    index = fleet(node("n1", AMD))
    index.remove("n1", "uid-of-n1", now=NOW)
    index.replace([node("n1", AMD)], now=NOW)
    assert len(index) == 0


def test_a_node_that_a_later_list_does_not_show_does_not_come_back() -> None:
    index = FleetIndex()
    index.replace([], now=NOW, version=100)
    assert index.apply(node("n1", AMD, resource_version=100), now=NOW) is None
    assert index.apply(node("n2", AMD, resource_version=101), now=NOW) is not None


def test_a_list_brings_back_what_an_earlier_one_left_out() -> None:
    index = FleetIndex()
    index.replace([], now=NOW, version=100)
    index.replace([node("n1", AMD, resource_version=99)], now=NOW, version=110)
    assert index.get("n1") is not None


def test_a_list_does_not_undo_what_events_have_shown_since() -> None:
    index = FleetIndex()
    index.apply(node("new", AMD, resource_version=120), now=NOW)
    index.apply(node("old", AMD, resource_version=90), now=NOW)
    index.apply(node("moved", INTEL_A, resource_version=130), now=NOW)
    index.replace([node("moved", AMD, resource_version=99)], now=NOW, version=100)
    assert {record.name for record in index} == {"new", "moved"}
    moved = index.get("moved")
    assert moved is not None
    assert moved.cpu == INTEL_A


def test_the_removal_of_another_uid_leaves_the_node() -> None:
    index = fleet(node("n1", AMD, uid="new"))
    assert index.remove("n1", "old", now=NOW) is None
    assert index.get("n1") is not None
    assert index.apply(node("n1", INTEL_A, uid="old"), now=NOW) is None


def test_without_versions_the_younger_of_two_uids_wins() -> None:
    index = fleet(node("n1", AMD, uid="new", created=NOW))
    assert index.apply(node("n1", INTEL_A, uid="old", created=LONG_AGO), now=NOW) is None


# --- absence


def test_a_present_node_is_not_absent() -> None:
    index = fleet(node("n1"))
    assert index.absent_since("n1", None, now=NOW) is None
    assert index.absent_since("n1", "uid-of-n1", now=NOW) is None


def test_a_node_is_absent_since_it_was_seen_to_go() -> None:
    index = fleet(node("n1"))
    index.remove("n1", now=NOW)
    index.remove("n1", "uid-of-n1", now=NOW + MINUTE)
    for uid in (None, "uid-of-n1"):
        assert index.absent_since("n1", uid, now=NOW + MINUTE) == NOW


def test_another_uid_under_the_name_is_absent_since_it_was_replaced() -> None:
    index = fleet(node("n1", uid="old"))
    index.apply(node("n1", uid="new", created=NOW), now=NOW)
    assert index.absent_since("n1", "old", now=NOW + MINUTE) == NOW
    assert index.absent_since("n1", "new", now=NOW + MINUTE) is None
    assert index.absent_since("n1", None, now=NOW + MINUTE) is None


def test_nothing_is_known_absent_before_the_index_is_warm() -> None:
    index = FleetIndex()
    assert index.absent_since("n1", None, now=NOW) is None
    index.replace([], now=NOW)
    assert index.absent_since("n1", None, now=NOW + MINUTE) == NOW
    assert index.absent_since("n1", "uid", now=NOW + MINUTE) == NOW


def test_forgotten_absences_are_never_dated_too_early() -> None:
    index = fleet(*(node(f"n{i}") for i in range(4)), max_tombstones=2)
    for i in range(4):
        index.remove(f"n{i}", now=NOW + i * MINUTE)
    later = NOW + 10 * MINUTE
    assert index.absent_since("n3", None, now=later) == NOW + 3 * MINUTE
    assert index.absent_since("n0", None, now=later) == NOW + MINUTE
    assert index.absent_since("n0", "uid-of-n0", now=later) == NOW + MINUTE


# --- the sets agree with a plain dictionary, whatever happens

TOLERATED = Tolerations((Toleration(key="ok", operator="Exists"),))
EVERYTHING = Tolerations((Toleration(operator="Exists"),))

NODE_NAMES = st.sampled_from(["n1", "n2", "n3", "n4", "n5"])
CPUS = st.sampled_from([None, AMD, INTEL_A, "unknown", "Bad"])
TAINTS = st.sampled_from(
    [
        (),
        (("ok", "", "NoSchedule"),),
        (("bad", "v", "NoExecute"),),
        (("bad", "", "PreferNoSchedule"),),
        (("ok", "", "NoExecute"), ("bad", "", "NoSchedule")),
    ]
)
NODES = st.builds(
    node,
    NODE_NAMES,
    CPUS,
    group=st.sampled_from([None, "g", "h"]),
    blocked=st.booleans(),
    taints=TAINTS,
    labels=st.dictionaries(st.sampled_from("xy"), st.sampled_from(["1", "2", "-3"])),
    services=st.booleans(),
    unschedulable=st.booleans(),
    deleting=st.booleans(),
    network_slots=st.integers(0, 2),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("apply"), NODES),
        st.tuples(st.just("remove"), NODE_NAMES),
        st.tuples(st.just("replace"), st.lists(NODES, max_size=5, unique_by=lambda n: n.name)),
        st.tuples(st.just("ask"), st.none()),
    ),
    max_size=25,
)


@settings(max_examples=300, deadline=None)
@given(steps=STEPS)
def test_the_sets_follow_every_change(steps: list[tuple[str, object]]) -> None:
    index = FleetIndex()
    truth: dict[str, NodeFacts] = {}
    for count, (step, what) in enumerate(steps):
        now = NOW + count * MINUTE
        if isinstance(what, NodeFacts):
            facts = replace(what, uid=f"{what.name}-{count}", created=now)
            truth[facts.name] = facts
            index.apply(facts, now=now)
        elif step == "remove":
            truth.pop(str(what), None)
            index.remove(str(what), now=now)
        elif isinstance(what, list):
            listed = [replace(n, uid=f"{n.name}-{count}", created=now) for n in what]
            truth = {n.name: n for n in listed}
            index.replace(listed, now=now)
        check(index, truth, now=now)


def open_to(tolerations: Tolerations, node: Any) -> bool:
    return not (
        node.deleting
        or names.PLACEMENT_BLOCK_LABEL in node.labels
        or (node.unschedulable and not tolerations.cordon)
        or not tolerations.all_of(node.taints)
    )


def check(index: FleetIndex, truth: dict[str, NodeFacts], *, now: datetime) -> None:
    def where(rule: object) -> set[str]:
        return {name for name, facts in truth.items() if rule(facts)}  # type: ignore[operator]

    assert {record.name for record in index} == set(truth)
    for name, facts in truth.items():
        record = index.get(name)
        assert record is not None
        assert (record.uid, record.labels) == (facts.uid, facts.labels)
        assert index.at(record.slot) is record
    sets = {
        "all": (index.all, lambda _n: True),
        "cordoned": (index.cordoned, lambda n: n.unschedulable),
        "deleting": (index.deleting, lambda n: n.deleting),
        "services": (index.services_ready, lambda n: n.services_ready),
        "slots": (index.without_slots, lambda n: n.network_slots <= 0),
        "cpu": (index.with_cpu(AMD), lambda n: n.labels.get(names.HOST_CPU_LABEL) == AMD),
        "x": (index.labels.having("x"), lambda n: "x" in n.labels),
        "x=1": (index.labels.equal("x", "1"), lambda n: n.labels.get("x") == "1"),
        "x>1": (
            index.labels.compared("x", greater=True, bound=1),
            lambda n: int(n.labels.get("x", "0")) > 1,
        ),
        "x<1": (
            index.labels.compared("x", greater=False, bound=1),
            lambda n: "x" in n.labels and int(n.labels["x"]) < 1,
        ),
    }
    for tolerance in (Tolerations(), TOLERATED, EVERYTHING):
        kept = index.standing(tolerance)
        if kept is None:
            kept = index.keep(
                tolerance,
                BitMap([n.slot for n in index if open_to(tolerance, n)]),
                judge=lambda n, t=tolerance: open_to(t, n),
                aspects=Aspect.CORDON | Aspect.DELETING | Aspect.TAINTS,
                label_keys=frozenset({names.PLACEMENT_BLOCK_LABEL}),
            )
        sets[f"open to {tolerance}"] = (kept, lambda n, t=tolerance: open_to(t, n))
        sets[f"untolerated by {tolerance}"] = (
            index.tainted(lambda taints, t=tolerance: not t.all_of(taints)),
            lambda n, t=tolerance: not t.all_of(n.taints),
        )
    for what, (nodes, rule) in sets.items():
        assert set(index.names(nodes)) == where(rule), what
    assert index.published() == tuple(
        sorted({str(n.labels.get(names.HOST_CPU_LABEL)) for n in truth.values()} & {AMD, INTEL_A})
    )
