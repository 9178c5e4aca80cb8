"""What is told of a stranded, a redirected and an ended restore: once, in order, with advice."""

from __future__ import annotations

from typing import Any

import msgspec

from sandbox_restore.model.restore import PlanStatus, Restore, RestoreStatus
from sandbox_restore.model.sandbox import Execution, Outcome, SandboxState, Source
from sandbox_restore.restore import pinned as p
from sandbox_restore.restore import redirect as r
from sandbox_restore.restore.blocked import ADVICE, Reason
from sandbox_restore.restore.liveness import Verdict
from sandbox_restore.restore.news import DISRUPTIVE, IN_ORDER, News, event_body, news
from sandbox_restore.restore.status import new_status
from sandbox_restore.restore.world import Said
from tests.support.builders import NOW, SANDBOX, ago, bound, execution, pod, restore, snapshot

ABLE = p.Loaders(warm=True, capture_cpu="cpu-1", known=frozenset({"cpu-1"}), able=1, reachable=9)
REFUSED = p.PinnedNode(
    cannot_load=True, reason="PinnedNodeRefused", message="pinned node n1 refused snapshot s1"
)


def found(**fields: Any) -> r.Redirect:
    """The seven conditions of a row that a refused restore left on n1."""
    row = {"state": SandboxState.FAILED, "pinned_node": "n1", **fields.pop("row", {})}
    given: dict[str, Any] = {"pinned": REFUSED, "loaders": ABLE, "snapshot": snapshot(), **fields}
    sandbox = r.Sandbox(id=SANDBOX, namespace="team-a", **row)
    return r.evaluate(r.Facts(row=sandbox, fulls=(snapshot(),), **given))


MARKED = {"row": {"local_artifact_marker": True}}


def said(reason: str = "Planning", succeeded: bool | None = None, **fields: Any) -> Said:
    return Said(succeeded=succeeded, reason=reason, message="why", **fields)


def told(asked: Restore, words: Said, *attempts: Execution) -> RestoreStatus:
    return new_status(asked, words, attempts=attempts, placement=None, observed=None, now=NOW)


def after(asked: Restore, status: RestoreStatus) -> Restore:
    return msgspec.structs.replace(asked, status=status)


def condition(status: RestoreStatus, kind: str) -> tuple[str, str, str] | None:
    one = next((c for c in status.conditions if c.type == kind), None)
    return None if one is None else (one.status, one.reason, one.message)


def refused_locally(**fields: Any) -> Execution:
    return execution(
        source=Source.LOCAL, outcome=Outcome.FAILED, failure_class="cpu-incompatible",
        failure_message="Failed to set all KVM MSRs", node_name="n1", target_node="n1", **fields,
    )  # fmt: skip


def redirected(uid: str = "e1", **fields: Any) -> Execution:
    return execution(uid, prior_pin="n1", **fields)


# --- stranded


def test_what_strands_and_what_blocks_are_told_apart_and_each_once() -> None:
    status = told(restore(), said(redirect=found(**MARKED)))
    assert condition(status, "Stranded") == (
        "True",
        "PinnedNodeRefused",
        "pinned node n1 refused snapshot s1, and the sandbox may not leave that node",
    )
    assert condition(status, "Redirected") == (
        "False",
        "LocalArtifactMarker",
        "node n1 may hold state that exists nowhere else "
        "(condition 4 of 7, NoLocalArtifact). What to do: " + ADVICE[Reason.LOCAL_ARTIFACT_MARKER],
    )


def test_with_the_gate_off_a_stranded_restore_names_the_setting_that_helps() -> None:
    status = told(restore(), said("Stranded", False), refused_locally())
    got = condition(status, "Stranded")
    assert got is not None
    assert got[:2] == ("True", "PinnedNodeCannotLoad")
    assert "SPACE_SANDBOX_RESTORE_HOST_CPU_PLACEMENT_ENABLED" in got[2]
    assert condition(status, "Redirected") is None


def test_a_stranded_restore_is_one_event_though_it_is_known_better_why_later() -> None:
    by_label = p.PinnedNode(cannot_load=True, reason="PinnedNodeCpuIncompatible", message="cpu-2")
    asked = restore()
    first = told(asked, said(redirect=found(pinned=by_label, **MARKED)))
    assert [n.reason for n in news(asked, first)] == ["Stranded", "RedirectBlocked"]
    asked = after(asked, first)
    second = told(asked, said(redirect=found(**MARKED)))
    assert condition(second, "Stranded") != condition(first, "Stranded")
    assert news(asked, second) == []


def test_another_blocker_is_another_event() -> None:
    asked = restore()
    asked = after(asked, told(asked, said(redirect=found(**MARKED))))
    behind = {"row": {"last_command_at": ago(10)}}
    status = told(asked, said(redirect=found(**behind)))
    [item] = news(asked, status)
    assert item.reason == "RedirectBlocked"
    assert "the last command was recorded" in item.note


def test_a_pinned_node_that_can_load_after_all_ends_the_stranding() -> None:
    asked = restore()
    asked = after(asked, told(asked, said(redirect=found(**MARKED))))
    can = p.PinnedNode(cannot_load=False, reason=Reason.PINNED_NODE_CAN_LOAD, message="can")
    status = told(asked, said(redirect=found(pinned=can, **MARKED)))
    assert condition(status, "Stranded") == ("False", "PinnedNodeCanLoad", "can")


def test_a_redirect_that_ended_on_a_refusing_node_can_be_stranded_again() -> None:
    attempt = redirected(outcome=Outcome.FAILED, node_name="n2")
    again = found(loaders=p.Loaders(warm=True, capture_cpu="cpu-1", known=frozenset({"cpu-1"})))
    status = told(restore(), said(redirect=again), attempt)
    got = condition(status, "Redirected")
    assert got is not None
    assert got[:2] == ("False", "NoReachableLoader")


# --- redirected


def test_a_redirect_tells_why_and_keeps_it_when_the_row_is_not_pinned_any_more() -> None:
    words = (
        "attempt 1 restores snapshot s1 from storage instead of what node n1 holds: "
        "pinned node n1 refused snapshot s1"
    )
    asked = restore()
    first = told(asked, said(redirect=found()), redirected())
    assert condition(first, "Redirected") == ("True", "RedirectedToStorage", words)
    assert [n.reason for n in news(asked, first)] == ["RedirectedToStorage"]
    asked = after(asked, first)
    second = told(asked, said("SnapshotLoaded", True), redirected())
    assert condition(second, "Redirected") == condition(first, "Redirected")
    assert [n.reason for n in news(asked, second)] == ["RestoreSucceeded"]


def test_a_second_redirect_of_the_same_restore_has_its_own_words() -> None:
    asked = restore()
    first = redirected()
    asked = after(asked, told(asked, said(redirect=found()), first))
    ended = redirected(outcome=Outcome.FAILED, node_name="n2")
    second = execution("e2", attempt=2, prior_pin="n2")
    got = condition(told(asked, said(), ended, second), "Redirected")
    assert got is not None
    assert got[2].startswith("attempt 2 restores snapshot s1 from storage instead of what node n2")


# --- where it ran


def test_an_attempt_that_was_over_before_it_was_seen_bound_still_names_its_node() -> None:
    asked = restore()
    waits = said("Scheduling", placed=(False, "Scheduling", "waits for kube-scheduler"), pod=pod())
    asked = after(asked, told(asked, waits, execution()))
    status = told(asked, said("Stranded", False), refused_locally())
    assert (status.pod_name, status.node_name) == ("wake-r1-1", "n1")
    assert condition(status, "Placed") == ("True", "Bound", "pod wake-r1-1 on node n1")


def test_a_pod_that_never_found_a_node_says_so_to_the_end() -> None:
    asked = restore()
    waits = said("Unschedulable", placed=(False, "Unschedulable", "no node"), pod=pod())
    asked = after(asked, told(asked, waits, execution()))
    status = told(asked, said("DeadlineExceeded", False), execution(outcome=Outcome.CANCELLED))
    assert status.node_name == ""
    assert condition(status, "Placed") == ("False", "Unschedulable", "no node")


def test_the_plan_says_where_the_state_comes_from() -> None:
    for source, reason, words in (
        ("storage", "StoragePlan", "restores snapshot s1 from storage"),
        ("local", "LocalOnlyPlan", "restores what node n1 holds, only there (snapshot s1)"),
        ("pod", "FollowsPod", "follows the pod in which the platform runs the sandbox"),
    ):
        plan = PlanStatus(source=source, snapshot_id="s1", node="n1")
        status = told(restore(), said(plan=plan, planned=True, pod=pod(**bound())))
        assert condition(status, "Planned") == ("True", reason, words)


# --- Events


def test_names_of_events_sort_as_the_events_came() -> None:
    asked = restore()
    came = [
        News(reason="Stranded", note="", identity="a"),
        News(reason="RedirectBlocked", note="", identity="a"),
        News(reason="PlacementUnconstrained", note="", identity="p1", attempt=1),
        News(reason="SnapshotLoadIncompatible", note="", identity="attempt-1", attempt=1),
        News(reason="PlacementConstrained", note="", identity="p2", attempt=2),
        News(reason="SnapshotLoadIncompatible", note="", identity="attempt-2", attempt=2),
        News(reason="PlacementConstrained", note="", identity="p10", attempt=10),
        News(reason="RestoreFailed", note="", identity="finished", attempt=999),
    ]
    names = [event_body(asked, item, now=NOW, instance="i")["metadata"]["name"] for item in came]
    assert names == sorted(names)
    assert len(set(names)) == len(came)
    assert set(DISRUPTIVE) < set(IN_ORDER)


def test_an_event_about_the_end_of_a_very_long_name_is_still_a_name() -> None:
    asked = msgspec.structs.replace(restore(), name="w" * 253)
    item = News(reason="RestoreFailed", note="", identity="finished", attempt=999)
    assert len(event_body(asked, item, now=NOW, instance="i")["metadata"]["name"]) <= 253


# --- advice


def test_there_is_advice_for_every_reason_that_blocks() -> None:
    assert set(ADVICE) == set(Reason)


def test_what_may_be_alive_is_told_with_its_own_words() -> None:
    alive = Verdict(may_be_alive=True, why="pod p on node n1 has not ended")
    got = found(alive=alive).blocker
    assert got is not None
    assert got.message == "pod p on node n1 has not ended"
    assert got.reason == Reason.PREVIOUS_POD_MAY_BE_ALIVE
