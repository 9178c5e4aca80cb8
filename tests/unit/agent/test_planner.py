"""Section 13: what the node agent does next, row by row, and what it never does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox_restore.agent.detect import Detection
from sandbox_restore.agent.detect import Reason as NoValue
from sandbox_restore.agent.planner import plan
from sandbox_restore.agent.state import (
    Condition,
    Kubelet,
    NodeSeen,
    Plan,
    Reason,
    Seen,
    Step,
    Waiting,
    Wishes,
)
from sandbox_restore.fleet import cpu
from sandbox_restore.model.names import HOST_CPU_LABEL

ICE, CASCADE = "intel-6-106-6", "intel-6-85-7"
KNOWN = Detection(value=ICE)
UNKNOWN = Detection(reason=NoValue.NO_PROCESSOR, text="no processor found")
WISHES = Wishes(key=HOST_CPU_LABEL, slots=8, patience=120.0)
OFFERED = Kubelet(slots=8, registered=True)
DONE = Waiting(uid="u1", since=0.0)


def node(label: str | None = ICE, **changed: Any) -> NodeSeen:
    labels = {"kubernetes.io/hostname": "n1"} | ({HOST_CPU_LABEL: label} if label else {})
    return NodeSeen(**{"name": "n1", "uid": "u1", "labels": labels, **changed})


def seen(label: str | None = ICE, **changed: Any) -> Seen:
    shown = changed.pop("slots_shown", 0)
    fields: dict[str, Any] = {"detection": KNOWN, "node": node(label, slots_shown=shown)}
    return Seen(**(fields | changed))


def decide(look: Seen, *, now: float = 0.0, waiting: Waiting | None = None, **wishes: Any) -> Plan:
    return plan(look, wishes=replace(WISHES, **wishes), waiting=waiting, now=now)


# Label, then slots


def test_a_new_node_is_labelled_before_its_slots_are_advertised() -> None:
    first = decide(seen(None))
    assert (first.step, first.label) == (Step.WRITE_LABEL, ICE)
    second = decide(seen(ICE), waiting=first.waiting)
    assert second.step is Step.ADVERTISE
    last = decide(seen(ICE, kubelet=OFFERED, slots_shown=8))
    assert (last.step, last.reason) == (Step.NONE, Reason.PUBLISHED)
    assert last.condition == Condition(
        status="True",
        reason="Published",
        message=f"{HOST_CPU_LABEL} is {ICE}; 8 slots advertised",
    )


def test_a_changed_cpu_takes_the_slots_away_then_labels_then_advertises() -> None:
    old = seen(CASCADE, kubelet=OFFERED, slots_shown=8)
    assert decide(old).step is Step.TAKE_SLOTS
    told = seen(CASCADE, kubelet=Kubelet(registered=True), slots_shown=8)
    waits = decide(told)
    assert (waits.step, waits.reason) == (Step.NONE, Reason.SLOTS_STILL_SHOWN)
    gone = seen(CASCADE, kubelet=Kubelet(registered=True))
    assert (decide(gone).step, decide(gone).label) == (Step.WRITE_LABEL, ICE)
    labelled = seen(ICE, kubelet=Kubelet(registered=True))
    assert decide(labelled).step is Step.ADVERTISE


@pytest.mark.parametrize(
    ("label", "other"),
    [
        (CASCADE, {}),
        (None, {}),
        (CASCADE, {"ended_pods": ("ns/p",)}),
        (None, {"detection": UNKNOWN}),
    ],
    ids=["another CPU", "no label", "held", "unknown"],
)
def test_slots_that_a_kubelet_shows_and_knows_nothing_of_are_taken_away(
    label: str | None, other: dict[str, Any]
) -> None:
    """Another machine left them in the Node's status; no kubelet would ever take them out."""
    left = seen(label, kubelet=Kubelet(), slots_shown=8, **other)
    assert decide(left).step is Step.TAKE_SLOTS
    told = replace(left, kubelet=Kubelet(registered=True))
    assert decide(told).step is Step.NONE
    assert decide(left, slots=0).step is not Step.TAKE_SLOTS, "they are somebody else's"


def test_a_label_that_somebody_took_off_is_treated_like_a_changed_one() -> None:
    assert decide(seen(None, kubelet=OFFERED, slots_shown=8)).step is Step.TAKE_SLOTS


def test_a_label_that_is_not_canonical_is_written_anew() -> None:
    assert decide(seen("Intel_6")).label == ICE


def test_another_number_of_slots_is_advertised_anew() -> None:
    few = Kubelet(slots=4, registered=True)
    assert decide(seen(ICE, kubelet=few, slots_shown=4)).step is Step.ADVERTISE


def test_without_slots_of_its_own_the_agent_keeps_the_label_alone() -> None:
    assert decide(seen(CASCADE, slots_shown=100), slots=0).step is Step.WRITE_LABEL
    kept = decide(seen(ICE, slots_shown=100), slots=0)
    assert (kept.step, kept.reason) == (Step.NONE, Reason.PUBLISHED)


# What can happen afterwards


def test_after_a_kubelet_restart_the_slots_come_back_when_the_label_is_there() -> None:
    restarted = Kubelet()
    assert decide(seen(ICE, kubelet=restarted)).step is Step.ADVERTISE
    assert decide(seen(None, kubelet=restarted)).step is Step.WRITE_LABEL


def test_a_kubelet_that_does_not_take_the_registration_is_told_in_the_condition() -> None:
    found = decide(seen(ICE, kubelet=Kubelet(problem="no such socket")))
    assert (found.step, found.reason) == (Step.ADVERTISE, Reason.KUBELET_UNREACHABLE)
    assert found.condition is not None
    assert "no such socket" in found.condition.message


def test_without_a_node_object_no_slots_are_offered() -> None:
    absent = seen(node=None, kubelet=OFFERED)
    assert (decide(absent).step, decide(absent).reason) == (Step.TAKE_SLOTS, Reason.NODE_ABSENT)
    going = seen(node=node(deleting=True), kubelet=OFFERED)
    assert decide(going).step is Step.TAKE_SLOTS


def test_a_recreated_node_waits_anew() -> None:
    failed = seen(node=node(None, uid="u2"), write_failed="403")
    found = decide(failed, waiting=Waiting(uid="u1", since=0.0), now=500.0)
    assert found.reason is Reason.LABEL_WRITE_FAILED
    assert found.waiting == Waiting(uid="u2", since=500.0)


def test_while_the_api_server_is_away_nothing_changes() -> None:
    for kubelet in (OFFERED, Kubelet()):
        away = seen(node=None, node_unread="no answer", kubelet=kubelet)
        found = decide(away, waiting=DONE, now=1e6)
        assert (found.step, found.reason) == (Step.NONE, Reason.NODE_UNREAD)
        assert found.waiting == DONE


# A label that cannot be written


def test_a_failed_write_is_tried_again_without_slots() -> None:
    found = decide(seen(None, write_failed="403 refused"), waiting=DONE, now=119.0)
    assert (found.step, found.label) == (Step.WRITE_LABEL, ICE)
    assert found.reason is Reason.LABEL_WRITE_FAILED
    assert found.look_again == 1.0
    assert found.condition is not None
    assert "403 refused" in found.condition.message


def test_after_the_wait_the_slots_are_advertised_unlabelled() -> None:
    failing = seen(None, write_failed="403 refused")
    found = decide(failing, waiting=DONE, now=120.0)
    assert (found.step, found.reason) == (Step.ADVERTISE, Reason.ADVERTISED_UNLABELLED)
    assert found.warn
    assert found.event
    after = decide(replace(failing, kubelet=OFFERED), waiting=found.waiting, now=121.0)
    assert (after.step, after.label) == (Step.WRITE_LABEL, ICE)
    assert after.reason is Reason.ADVERTISED_UNLABELLED


def test_never_means_no_slots_until_a_write_succeeds() -> None:
    failing = seen(None, write_failed="403 refused")
    found = decide(failing, waiting=DONE, now=1e9, patience=None)
    assert (found.step, found.reason) == (Step.WRITE_LABEL, Reason.LABEL_WRITE_FAILED)
    assert found.look_again is None


def test_zero_tries_once_and_does_not_wait() -> None:
    assert decide(seen(None), patience=0.0).step is Step.WRITE_LABEL
    assert decide(seen(None, write_failed="403"), patience=0.0).step is Step.ADVERTISE


def test_a_label_of_another_cpu_is_never_waited_out() -> None:
    failing = seen(CASCADE, write_failed="403 refused")
    found = decide(failing, waiting=DONE, now=1e9)
    assert (found.step, found.reason) == (Step.WRITE_LABEL, Reason.LABEL_WRITE_FAILED)


def test_a_placeholder_on_the_node_reads_as_unlabelled() -> None:
    failing = seen("unknown", write_failed="403 refused")
    assert decide(failing, waiting=DONE, now=120.0).step is Step.ADVERTISE


# A CPU that cannot be told


def test_an_unknown_cpu_writes_no_label_and_waits() -> None:
    found = decide(seen(None, detection=UNKNOWN))
    assert (found.step, found.reason) == (Step.NONE, Reason.CPU_UNKNOWN)
    assert found.look_again == 120.0
    assert found.condition is not None
    assert "no processor found" in found.condition.message
    later = decide(seen(None, detection=UNKNOWN), waiting=found.waiting, now=120.0)
    assert (later.step, later.reason) == (Step.ADVERTISE, Reason.ADVERTISED_UNLABELLED)
    settled = decide(
        seen(None, detection=UNKNOWN, kubelet=OFFERED), waiting=found.waiting, now=121.0
    )
    assert settled.step is Step.NONE


def test_an_unknown_cpu_takes_a_label_off_that_nobody_vouches_for() -> None:
    slots = decide(seen(CASCADE, detection=UNKNOWN, kubelet=OFFERED, slots_shown=8))
    assert slots.step is Step.TAKE_SLOTS
    off = decide(seen(CASCADE, detection=UNKNOWN))
    assert (off.step, off.label) == (Step.WRITE_LABEL, None)


def test_an_unknown_cpu_lets_a_label_stand_that_reads_as_none() -> None:
    assert decide(seen("Intel_6", detection=UNKNOWN)).reason is Reason.CPU_UNKNOWN


# Sandboxes that a new label would end


def test_a_label_that_would_end_sandboxes_is_held_without_slots() -> None:
    held = seen(CASCADE, kubelet=OFFERED, ended_pods=("team-a/wake-1",))
    found = decide(held, waiting=DONE, now=1e9)
    assert (found.step, found.reason) == (Step.TAKE_SLOTS, Reason.RELABEL_HELD)
    found = decide(replace(held, kubelet=Kubelet()), waiting=DONE, now=1e9)
    assert (found.step, found.reason) == (Step.NONE, Reason.RELABEL_HELD)
    assert found.condition is not None
    assert "team-a/wake-1" in found.condition.message
    assert decide(replace(held, kubelet=Kubelet(), ended_pods=())).step is Step.WRITE_LABEL


def test_a_first_label_is_held_too() -> None:
    found = decide(seen(None, ended_pods=("team-a/wake-1",)), waiting=DONE, now=1e9)
    assert (found.step, found.reason) == (Step.NONE, Reason.RELABEL_HELD)


def test_force_relabel_does_not_hold() -> None:
    held = seen(CASCADE, ended_pods=("team-a/wake-1",))
    assert decide(held, force_relabel=True).step is Step.WRITE_LABEL
    unread = seen(CASCADE, ended_pods=None, pods_unread="403")
    assert decide(unread, force_relabel=True).step is Step.WRITE_LABEL


def test_pods_that_cannot_be_listed_hold_the_label_like_a_failed_write() -> None:
    unread = seen(None, ended_pods=None, pods_unread="403 pods")
    found = decide(unread, waiting=DONE, now=1.0)
    assert (found.step, found.reason) == (Step.NONE, Reason.PODS_UNKNOWN)
    assert decide(unread, waiting=DONE, now=120.0).step is Step.ADVERTISE
    wrong = seen(CASCADE, ended_pods=None, pods_unread="403 pods")
    assert decide(wrong, waiting=DONE, now=1e9).step is Step.NONE


def test_a_long_list_of_pods_is_cut() -> None:
    found = decide(seen(None, ended_pods=tuple(f"ns/p{i}" for i in range(300))))
    assert "and 295 more" in found.message
    assert len(found.message) < 1024


# Whatever is seen

LABELS = st.sampled_from([None, ICE, CASCADE, "Intel_6", "unknown", ""])
SLOTS = st.sampled_from([0, 4, 8])
PROBLEMS = st.sampled_from(["", "403 refused"])


@st.composite
def looks(draw: st.DrawFn) -> Seen:
    there = draw(st.booleans())
    return Seen(
        detection=draw(st.sampled_from([KNOWN, UNKNOWN])),
        node=node(draw(LABELS), slots_shown=draw(SLOTS), deleting=draw(st.booleans()))
        if there
        else None,
        node_unread="" if there else draw(PROBLEMS),
        kubelet=Kubelet(slots=draw(SLOTS), registered=draw(st.booleans()), problem=draw(PROBLEMS)),
        ended_pods=draw(st.sampled_from([None, (), ("ns/p",)])),
        pods_unread="403 pods",
        write_failed=draw(PROBLEMS),
    )


@given(
    looks(),
    st.sampled_from([None, 0.0, 120.0]),
    st.booleans(),
    st.one_of(st.none(), st.builds(Waiting, uid=st.sampled_from(["u1", "u2"]), since=st.just(0.0))),
    st.floats(0, 1000),
)
def test_what_never_happens(
    look: Seen, patience: float | None, force: bool, waiting: Waiting | None, now: float
) -> None:
    wishes = replace(WISHES, patience=patience, force_relabel=force)
    found = plan(look, wishes=wishes, waiting=waiting, now=now)
    label = look.node.labels.get(HOST_CPU_LABEL) if look.node else None
    reads = cpu.usable(label)
    if found.step is Step.ADVERTISE:
        assert look.node is not None
        assert not look.node.deleting
        assert reads in (None, look.detection.value)
        if reads is None:
            assert patience is not None
            assert waiting is not None or patience == 0
    if found.step is Step.WRITE_LABEL:
        assert look.node is not None
        assert found.label == look.detection.value
        assert found.label != label
        assert force or look.ended_pods == ()
        if reads is not None:
            assert look.kubelet.slots == 0
            assert look.node.slots_shown == 0
    if found.step is Step.NONE and look.kubelet.slots and look.node:
        # Slots that stay need a right label, or the end of the wait for one.
        assert reads == look.detection.value or found.reason is Reason.ADVERTISED_UNLABELLED
    assert found.message
