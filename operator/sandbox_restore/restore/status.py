"""From what is said of a restore to its status (api.md). PURE."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from sandbox_restore.model.restore import (
    AttemptStatus,
    Condition,
    PlacementStatus,
    RedirectCondition,
    RedirectStatus,
    Restore,
    RestoreStatus,
)
from sandbox_restore.model.sandbox import Execution, Source
from sandbox_restore.redact import redact
from sandbox_restore.restore.outcome import failed_attempts
from sandbox_restore.restore.redirect import Redirect
from sandbox_restore.restore.world import Said

ORDER = ("Planned", "Placed", "Succeeded", "Stranded", "Redirected")
"""The fixed order of conditions."""

KEPT_ATTEMPTS = 20


def new_status(
    restore: Restore,
    said: Said,
    *,
    attempts: Iterable[Execution],
    placement: PlacementStatus | None,
    observed: PlacementStatus | None,
    now: datetime,
) -> RestoreStatus:
    """The status that says it; times move only where what they time has changed."""
    old = restore.status
    own = [a for a in attempts if a.restore_uid == restore.uid]
    pod_name, node_name = _where(restore, said, own)
    return RestoreStatus(
        observed_generation=restore.generation,
        conditions=_conditions(restore, said, own, now),
        plan=said.plan if said.plan is not None else old.plan,
        placement=placement if placement is not None else old.placement,
        redirect=_redirect(said, old.redirect),
        observed=observed if observed is not None else old.observed,
        attempts=[_attempt(a) for a in own[-KEPT_ATTEMPTS:]],
        failed_attempts=len(failed_attempts(own, restore.uid)),
        pod_name=pod_name,
        node_name=node_name,
        start_time=_start_time(restore, now),
        completion_time=now.replace(microsecond=0) if said.succeeded is not None else UNSET,
        **_pause(restore, now),
    )


def _where(restore: Restore, said: Said, own: list[Execution]) -> tuple[str, str]:
    """Pod and node of the newest attempt, also of one that was over before it was seen bound."""
    if said.pod is not None:
        return said.pod.name, said.pod.node_name or ""
    pod_name = restore.status.pod_name
    bound = own[-1].node_name if own and own[-1].pod_name == pod_name else None
    return pod_name, bound or restore.status.node_name


def _start_time(restore: Restore, now: datetime) -> Any:
    old = restore.status.start_time
    return old if old is not UNSET else restore.created


def _pause(restore: Restore, now: datetime) -> dict[str, Any]:
    """The deadline clock stands still while suspended: since when, and how long before."""
    old = restore.status
    since, before = old.suspended_at, old.suspended_seconds
    if restore.spec.suspend:
        return {
            "suspended_at": _suspended_since(restore, now) if since is UNSET else since,
            "suspended_seconds": before,
        }
    if since is not UNSET:
        before += int((now - since).total_seconds())
    return {"suspended_at": UNSET, "suspended_seconds": before}


def _suspended_since(restore: Restore, now: datetime) -> datetime:
    """One that was created suspended has been so since then, whenever it is first looked at."""
    return restore.created if not restore.status.conditions else now.replace(microsecond=0)


def _redirect(said: Said, old: RedirectStatus | UnsetType) -> RedirectStatus | UnsetType:
    found = said.redirect
    if found is None:
        return old
    blocker = found.blocker
    decision = "Redirect" if found.allowed else "Stay"
    return RedirectStatus(
        decision=f"Would{decision}" if said.observed else decision,
        conditions=[
            RedirectCondition(name=c.name.value, met=c.met, reason=c.reason, message=c.message)
            for c in found.conditions
        ],
        blocked_by=blocker.name.value if blocker is not None else "",
    )


def _rescue_conditions(
    restore: Restore, said: Said, own: list[Execution]
) -> dict[str, tuple[str, str, str]]:
    """`Stranded` and `Redirected`, where they apply (api.md)."""
    found = said.redirect if not said.observed else None
    last = own[-1] if own else None
    moved = last is not None and is_redirected(last) and restore.spec.evacuation is UNSET
    left_again = found is not None and found.stranded and last is not None and not last.active
    if last is not None and moved and not left_again:
        words = _redirected_words(restore, last, found)
        wanted = {"Redirected": ("True", "RedirectedToStorage", words)}
        if restore.condition("Stranded") is not None:
            wanted["Stranded"] = ("False", "RedirectedToStorage", words)
        return wanted
    if found is not None and found.stranded:
        blocker = found.blocker
        assert blocker is not None
        stays = f"{found.pinned.message}, and the sandbox may not leave that node"
        return {
            "Stranded": ("True", found.pinned.reason, stays),
            "Redirected": ("False", blocker.reason, blocker.with_advice),
        }
    if found is not None and restore.condition("Stranded") is not None:
        return {"Stranded": ("False", found.pinned.reason, found.words)}
    if said.reason == "Stranded":
        words = (
            "each wake of this sandbox ends so until host-CPU placement is on for it "
            "(SPACE_SANDBOX_RESTORE_HOST_CPU_PLACEMENT_ENABLED): then it may come from storage"
        )
        return {"Stranded": ("True", "PinnedNodeCannotLoad", words)}
    return {}


def _redirected_words(restore: Restore, last: Execution, found: Redirect | None) -> str:
    """What a redirected attempt does and why; the why is known only when it begins, and kept."""
    words = (
        f"attempt {last.attempt} restores snapshot {last.snapshot_id} from storage instead of what "
        f"node {last.prior_pin} holds"
    )
    before = restore.condition("Redirected")
    if before is not None and before.message.startswith(words):
        return before.message
    return f"{words}: {found.pinned.message}" if found is not None else words


def is_redirected(execution: Execution) -> bool:
    """A storage attempt of a row that was pinned: the pin was cleared for it."""
    return execution.source is Source.STORAGE and execution.prior_pin is not None


def _conditions(
    restore: Restore, said: Said, own: list[Execution], now: datetime
) -> list[Condition]:
    found = {c.type: c for c in restore.status.conditions}
    succeeded = {True: "True", False: "False", None: "Unknown"}[said.succeeded]
    wanted: dict[str, tuple[str, str, str]] = {
        "Succeeded": (succeeded, said.reason, said.message),
    }
    if said.planned is not None:
        source = said.plan.source if said.plan is not None else ""
        wanted["Planned"] = (
            (
                "True",
                {"local": "LocalOnlyPlan", "pod": "FollowsPod"}.get(source, "StoragePlan"),
                _plan_words(said),
            )
            if said.planned
            else ("False", said.reason, said.message)
        )
    wanted |= _rescue_conditions(restore, said, own)
    placed = said.placed
    if placed is None and own and own[-1].node_name is not None:
        placed = (True, "Bound", f"pod {own[-1].pod_name} on node {own[-1].node_name}")
    if placed is not None:
        is_placed, reason, message = placed
        wanted["Placed"] = ("True" if is_placed else "False", reason, message)
    for kind, (status, reason, message) in wanted.items():
        old = found.get(kind)
        moved = old is None or old.status != status
        found[kind] = Condition(
            type=kind,
            status=status,
            observed_generation=restore.generation,
            last_transition_time=(
                now.replace(microsecond=0) if moved or old is None else old.last_transition_time
            ),
            reason=reason,
            # Errors of servers and words of runners are in it: no secret gets out that way.
            message=redact(message)[:32768],
        )
    return [found[k] for k in ORDER if k in found]


def _plan_words(said: Said) -> str:
    plan = said.plan
    if plan is None:
        return said.message
    named = f"snapshot {plan.snapshot_id}" if plan.snapshot_id else ""
    if plan.source == "local":
        return f"restores what node {plan.node} holds, only there{named and f' ({named})'}"
    if plan.source == "pod":
        return "follows the pod in which the platform runs the sandbox"
    return f"restores {named} from storage"


def _attempt(execution: Execution) -> AttemptStatus:
    ended = execution.retired_at
    return AttemptStatus(
        attempt=execution.attempt,
        pod=execution.pod_name or "",
        node=execution.node_name or "",
        cpu=execution.node_cpu or "",
        source=execution.source.value,
        outcome=execution.outcome.value if execution.outcome is not None else _progress(execution),
        failure_class=execution.failure_class or "",
        message=redact(execution.failure_message or ""),
        started_at=execution.created_at.replace(microsecond=0),
        ended_at=ended.replace(microsecond=0) if ended is not None else UNSET,
    )


def _progress(execution: Execution) -> str:
    return "loaded" if execution.loaded_at is not None else "active"


def as_json(status: RestoreStatus) -> dict[str, Any]:
    """The status as the API server takes it."""
    built: dict[str, Any] = msgspec.to_builtins(status)
    return built
