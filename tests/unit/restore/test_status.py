"""What is said of a rescue: conditions, the seven in the status, and one Event a change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from sandbox_restore.model.restore import (
    Evacuation,
    PlacementStatus,
    Restore,
    RestoreStatus,
)
from sandbox_restore.model.sandbox import Execution, Outcome, Source
from sandbox_restore.restore import redirect as r
from sandbox_restore.restore.news import news
from sandbox_restore.restore.status import new_status
from sandbox_restore.restore.world import Said
from tests.support.builders import NOW, execution, restore
from tests.unit.restore.test_redirect import facts


def judged(*broken: r.Name) -> r.Redirect:
    return r.evaluate(facts(*broken))


def said(redirect: r.Redirect | None, **fields: Any) -> Said:
    given = {"succeeded": None, "reason": "LoadingSnapshot", "message": "loads", **fields}
    return Said(redirect=redirect, **given)


def status_of(
    one: Restore, words: Said, *attempts: Execution, placement: PlacementStatus | None = None
) -> RestoreStatus:
    return new_status(
        one, words, attempts=attempts, placement=placement, observed=placement, now=NOW
    )


def after(one: Restore, status: RestoreStatus) -> Restore:
    return msgspec.structs.replace(one, status=status)


def condition(status: RestoreStatus, kind: str) -> tuple[str, str] | None:
    return next(((c.status, c.reason) for c in status.conditions if c.type == kind), None)


def reasons(one: Restore, status: RestoreStatus, **more: Any) -> list[str]:
    return [item.reason for item in news(one, status, **more)]


LOCAL = execution(source=Source.LOCAL, target_node="n1", gate=True)
REDIRECTED = execution("e2", attempt=2, source=Source.STORAGE, prior_pin="n1", gate=True)


def test_a_blocked_redirect_is_told_by_two_conditions_and_two_events_once() -> None:
    one = restore()
    blocked = said(judged(r.Name.NO_LOCAL_ARTIFACT))
    status = status_of(one, blocked, LOCAL)
    assert condition(status, "Stranded") == ("True", "PinnedNodeRefused")
    assert condition(status, "Redirected") == ("False", "LocalArtifactMarker")
    assert status.redirect.decision == "Stay"
    assert status.redirect.blocked_by == "NoLocalArtifact"
    assert [c.met for c in status.redirect.conditions] == [True] * 3 + [False] + [True] * 3
    assert reasons(one, status) == ["Stranded", "RedirectBlocked"]
    told = after(one, status)
    assert reasons(told, status_of(told, blocked, LOCAL)) == []


def test_another_blocking_reason_is_another_event() -> None:
    one = restore()
    told = after(one, status_of(one, said(judged(r.Name.NO_LOCAL_ARTIFACT)), LOCAL))
    status = status_of(told, said(judged(r.Name.COVERS_ACTIVITY)), LOCAL)
    assert reasons(told, status) == ["RedirectBlocked"]
    assert condition(status, "Redirected") == ("False", "SnapshotBehindActivity")


def test_a_redirect_ends_stranded_and_is_told_once() -> None:
    one = restore()
    told = after(one, status_of(one, said(judged(r.Name.NO_NEWER_SNAPSHOT)), LOCAL))
    status = status_of(told, said(judged()), LOCAL, REDIRECTED)
    assert condition(status, "Redirected") == ("True", "RedirectedToStorage")
    assert condition(status, "Stranded") == ("False", "RedirectedToStorage")
    assert status.redirect.decision == "Redirect"
    assert reasons(told, status) == ["RedirectedToStorage"]
    again = after(told, status)
    assert reasons(again, status_of(again, said(None), LOCAL, REDIRECTED)) == []
    # The conditions that let it through stay in the status.
    assert status_of(again, said(None), LOCAL, REDIRECTED).redirect == status.redirect


def test_a_pinned_sandbox_whose_node_can_load_is_not_stranded() -> None:
    one = restore()
    status = status_of(one, said(judged(r.Name.PINNED_NODE_CANNOT_LOAD)), LOCAL)
    assert condition(status, "Stranded") is None
    assert condition(status, "Redirected") is None
    assert len(status.redirect.conditions) == 7
    assert reasons(one, status) == []


def test_an_evacuation_is_no_redirect() -> None:
    one = restore(evacuation=Evacuation(cohort="blue"))
    status = status_of(one, said(None), REDIRECTED)
    assert condition(status, "Redirected") is None


def test_what_the_gate_would_do_is_told_and_strands_nobody() -> None:
    one = restore()
    off = replace(LOCAL, gate=False)
    status = status_of(one, said(judged(), observed=True), off)
    assert status.redirect.decision == "WouldRedirect"
    assert (condition(status, "Stranded"), condition(status, "Redirected")) == (None, None)
    assert [(n.reason, n.change, n.because) for n in news(one, status)] == [
        ("PlacementWouldChange", "redirect", "PinnedNodeRefused")
    ]
    told = after(one, status)
    assert reasons(told, status_of(told, said(judged(), observed=True), off)) == []
    stays = status_of(one, said(judged(r.Name.NO_LOCAL_ARTIFACT), observed=True), off)
    assert stays.redirect.decision == "WouldStay"
    assert reasons(one, stays) == []


def test_a_pod_that_would_look_different_with_the_gate_on_is_told_in_one_event() -> None:
    one = restore()
    placed = PlacementStatus(
        decision="Constrained", reason="LoaderReachable", message="needs intel-6-106-6"
    )
    status = status_of(one, said(None), REDIRECTED, placement=placed)
    [told] = [n for n in news(one, status, would_change=True) if n.change]
    assert (told.reason, told.change, told.because) == (
        "PlacementWouldChange",
        "constrain",
        "LoaderReachable",
    )
    assert "PlacementWouldChange" not in reasons(one, status)


def test_a_restore_that_ended_stranded_says_so_with_the_gate_off_too() -> None:
    one = restore()
    refused = execution(source=Source.LOCAL, outcome=Outcome.FAILED)
    words = said(None, succeeded=False, reason="Stranded", message="pinned to n1")
    status = status_of(one, words, refused)
    assert condition(status, "Stranded") == ("True", "PinnedNodeCannotLoad")
    assert reasons(one, status) == ["Stranded", "RestoreFailed"]
