"""The condition that the agent writes on its Node, and what it reads there."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from sandbox_restore.agent.reading import CONDITION, condition_body, cut, node_seen
from sandbox_restore.agent.state import Condition

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


def condition(status: str, reason: str = "Published") -> Condition:
    return Condition(status=status, reason=reason, message="words")


@pytest.mark.parametrize(
    ("before", "moves"),
    [
        (None, True),
        (condition("True"), True),
        (condition("False", "LabelWriteFailed"), False),
        (condition("False", "CpuUnknown"), False),
    ],
)
def test_the_transition_time_moves_only_with_the_status(
    before: Condition | None, moves: bool
) -> None:
    body = condition_body(condition("False", "CpuUnknown"), before=before, now=NOW)
    assert ("lastTransitionTime" in body) is moves
    assert body["lastHeartbeatTime"] == "2026-03-01T12:00:00Z"
    assert (body["type"], body["reason"]) == (CONDITION, "CpuUnknown")


@pytest.mark.parametrize(("slots", "shown"), [(None, 0), ("0", 0), ("4", 4), ("1k", 1)])
def test_slots_in_any_form_are_not_none(slots: str | None, shown: int) -> None:
    allocatable = {} if slots is None else {"space.pplx.net/network-slots": slots}
    body: dict[str, Any] = {
        "metadata": {"name": "n1", "uid": "u1"},
        "status": {"allocatable": allocatable},
    }
    assert node_seen(body).slots_shown == shown


def test_a_message_is_one_line_of_at_most_1024_bytes() -> None:
    assert cut("a\n b\t c") == "a b c"
    long = cut("ä" * 2000)
    assert len(long.encode()) <= 1024
    assert long.endswith("…")
