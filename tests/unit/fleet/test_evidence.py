"""Section 6: the evidence ladder."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from sandbox_restore.fleet.evidence import Evidence, capture_evidence
from sandbox_restore.fleet.history import NodeHistory
from sandbox_restore.model.sandbox import Snapshot
from tests.unit.fleet.nodes import AMD, ARM, INTEL_A, INTEL_B, NOW, fleet, history, node, span

SECOND = timedelta(seconds=1)


def snapshot(**parts: object) -> Snapshot:
    return Snapshot(
        **{
            "id": "snap",
            "sandbox_id": "sb",
            "captured_at": NOW,
            "uploaded_by": "n1",
            **parts,
        }  # type: ignore[arg-type]
    )


def test_a_recorded_cpu_wins_over_the_label() -> None:
    found = capture_evidence(snapshot(host_cpu=INTEL_A), fleet=fleet(node("n1", AMD)))
    assert (found.kind, found.cpu, found.node) == (Evidence.RECORDED, INTEL_A, None)
    assert found.notes == ()


def test_restore_requirement_falls_back_to_the_capturing_nodes_label() -> None:
    found = capture_evidence(snapshot(), fleet=fleet(node("n1", AMD)))
    assert (found.kind, found.cpu, found.node) == (Evidence.UPLOADER_LABEL, AMD, "n1")


@pytest.mark.parametrize("recorded", ["Intel-6-106-6", "unknown", "", "vendorunknown-0-0"])
def test_an_unusable_recorded_cpu_counts_as_not_recorded_and_says_so(recorded: str) -> None:
    found = capture_evidence(snapshot(host_cpu=recorded), fleet=fleet(node("n1", AMD)))
    assert (found.kind, found.cpu) == (Evidence.UPLOADER_LABEL, AMD)
    assert repr(recorded) in found.notes[0]
    assert "not recorded" in found.notes[0]


@pytest.mark.parametrize(
    ("created", "counts"),
    [
        (NOW - timedelta(days=1), True),
        (NOW - SECOND, True),
        (NOW - SECOND + timedelta(microseconds=1), False),
        (NOW, False),
        (NOW + SECOND, False),
    ],
)
def test_the_uploading_node_must_be_a_second_older(created: datetime, counts: bool) -> None:
    found = capture_evidence(snapshot(), fleet=fleet(node("n1", AMD, created=created)))
    assert (found.kind is Evidence.UPLOADER_LABEL) is counts
    assert bool(found.notes) is not counts


def test_a_capture_time_within_the_second_counts_from_the_whole_second() -> None:
    at = NOW + timedelta(milliseconds=999)
    found = capture_evidence(snapshot(captured_at=at), fleet=fleet(node("n1", AMD, created=NOW)))
    assert found.kind is Evidence.UNKNOWN


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        (node("n2", AMD), "not in the fleet"),
        (node("n1"), "no usable host-CPU label"),
        (node("n1", "AMD-25"), "no usable host-CPU label"),
        (node("n1", "unknown"), "no usable host-CPU label"),
    ],
)
def test_without_a_usable_label_the_capture_cpu_is_unknown(facts: object, says: str) -> None:
    found = capture_evidence(snapshot(), fleet=fleet(facts))  # type: ignore[arg-type]
    assert (found.kind, found.cpu) == (Evidence.UNKNOWN, None)
    assert says in found.notes[-1]


def test_without_a_capture_time_the_label_proves_nothing() -> None:
    found = capture_evidence(snapshot(captured_at=None), fleet=fleet(node("n1", AMD)))
    assert found.kind is Evidence.UNKNOWN


LATER = NOW + timedelta(hours=1)


def test_the_history_is_asked_after_the_label_and_for_the_capture_time() -> None:
    spans = (
        span("n1", INTEL_B, last=NOW, uid="old"),
        span("n1", ARM, first=NOW + SECOND, last=NOW + 9 * SECOND),
    )
    live = fleet(node("n1", AMD), history=history(*spans), now=LATER)
    assert capture_evidence(snapshot(), fleet=live).kind is Evidence.UPLOADER_LABEL
    replaced = node("n1", AMD, created=NOW + SECOND, uid="newest")
    for now_there in (
        fleet(replaced, history=history(*spans), now=LATER),
        fleet(history=history(*spans)),
    ):
        found = capture_evidence(snapshot(), fleet=now_there)
        assert (found.kind, found.cpu, found.node) == (Evidence.UPLOADER_HISTORY, INTEL_B, "n1")
        assert len(found.notes) == 1


def test_a_node_whose_label_is_missing_now_is_known_by_its_history() -> None:
    known = history(span("n1", INTEL_B))
    found = capture_evidence(snapshot(), fleet=fleet(node("n1"), history=known))
    assert (found.kind, found.cpu) == (Evidence.UPLOADER_HISTORY, INTEL_B)


def test_the_label_comes_before_a_history_that_says_otherwise_and_says_so() -> None:
    known = history(span("n1", INTEL_B))
    live = fleet(node("n1", AMD), history=known, now=LATER)
    found = capture_evidence(snapshot(), fleet=live)
    assert (found.kind, found.cpu) == (Evidence.UPLOADER_LABEL, AMD)
    assert found.notes == (
        "the label of node n1 has changed since the capture, when it was intel-6-143-8",
    )


@pytest.mark.parametrize(
    ("known", "says"),
    [
        (NodeHistory(), "has not been read yet"),
        (history(), "no record of what node n1 carried at 2026-03-01T12:00:00+00:00"),
        (history(span("n1", AMD, last=NOW - SECOND)), "no record"),
        (history(span("n1", AMD), known_after=NOW), "no record"),
        (history(span("n1", AMD), span("n1", ARM, uid="b")), f"seen with {AMD} and {ARM} at"),
        (history(span("n1", "unknown")), ""),
    ],
)
def test_a_history_that_does_not_know_is_no_evidence_and_says_why(
    known: NodeHistory, says: str
) -> None:
    found = capture_evidence(snapshot(), fleet=fleet(history=known))
    assert (found.kind, found.cpu) == (Evidence.UNKNOWN, None)
    assert says in found.notes[-1]


def test_without_a_capture_time_or_an_uploader_the_history_proves_nothing() -> None:
    known = history(span("n1", AMD))
    for parts in ({"captured_at": None}, {"uploaded_by": None}):
        found = capture_evidence(snapshot(**parts), fleet=fleet(history=known))
        assert found.kind is Evidence.UNKNOWN


def test_ancestors_are_kept_once_and_unusable_ones_are_told() -> None:
    found = capture_evidence(
        snapshot(host_cpu=INTEL_A, ancestor_cpus=(INTEL_B, "none", INTEL_B)), fleet=fleet()
    )
    assert found.ancestors == (INTEL_B,)
    assert "'none'" in found.notes[0]
