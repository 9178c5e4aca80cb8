"""From what has changed in a restore's status to its Events: one a change, none a pass. PURE."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from msgspec import UNSET

from sandbox_restore.model import names
from sandbox_restore.model.restore import Restore, RestoreStatus
from sandbox_restore.model.sandbox import Outcome
from sandbox_restore.redact import redact
from sandbox_restore.restore.failure import FailureClass
from sandbox_restore.restore.rerender import RERENDERED

NOTE_LIMIT = 1024
"""events.k8s.io: a note is at most 1 kB."""

DISRUPTIVE = (
    "RestoreFailed",
    "SnapshotLoadIncompatible",
    "PlacementHeld",
    "Stranded",
    "RedirectBlocked",
    "MarkerGivenUp",
    "CircuitOpen",
)
"""Events of type Warning: a person must act, or soon may have to."""

IN_ORDER = (
    "PlacementHeld",
    "CircuitOpen",
    "Stranded",
    "RedirectBlocked",
    "MarkerGivenUp",
    "RedirectedToStorage",
    "PlacementConstrained",
    "PlacementUnconstrained",
    "PlacementWouldChange",
    "PlacementRerendered",
    "SnapshotLoadIncompatible",
    "RestoreSucceeded",
    "RestoreFailed",
)
"""Events of one attempt as they come; kubectl lists Events by name."""
LAST = 999
"""Stands for the attempt in the Event about a restore's end."""


class Change(StrEnum):
    """What the gate would have done with an attempt that is only observed (section 5)."""

    CONSTRAIN = "constrain"
    """The pod would carry the placement term."""
    HOLD = "hold"
    """No pod would be made yet."""
    REDIRECT = "redirect"
    """The restore would come from storage."""
    OTHER = "other"
    """Another shortlist, or nodes kept off that have refused the snapshot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """One Event to post: its reason, its note, and what makes it one and not another."""

    reason: str
    note: str
    identity: str
    attempt: int = 0
    """The attempt that it is about; Events are listed in this order."""
    change: str = ""
    """Of `PlacementWouldChange`: a `Change`."""
    because: str = ""
    """Of `PlacementWouldChange`: the reason of what would have been decided."""


def news(restore: Restore, status: RestoreStatus, *, would_change: bool = False) -> list[News]:
    """What has changed between the status that the restore has and the new one.

    `would_change`: the pod that was made would look different, or wait, with the gate on.
    """
    old = restore.status
    found: list[News] = []
    found += _rerender_news(restore, status)
    found += _placement_news(restore, status)
    if would_change and status.observed is not UNSET:
        found.append(
            News(
                reason="PlacementWouldChange",
                note=f"pod {status.pod_name}: {status.observed.message}",
                identity=status.pod_name,
                attempt=_attempt_of(status),
                change=_change(status.observed.decision),
                because=status.observed.reason,
            )
        )
    known = {(a.attempt, a.outcome) for a in old.attempts}
    for attempt in status.attempts:
        if (
            attempt.failure_class == FailureClass.CPU_INCOMPATIBLE.value
            and attempt.outcome == Outcome.FAILED.value
            and (attempt.attempt, attempt.outcome) not in known
        ):
            found.append(
                News(
                    reason="SnapshotLoadIncompatible",
                    note=f"node {attempt.node} ({attempt.cpu or 'no host-CPU label'}) refused the "
                    f"snapshot: {attempt.message}",
                    identity=f"attempt-{attempt.attempt}",
                    attempt=attempt.attempt,
                )
            )
    done = next(c for c in status.conditions if c.type == "Succeeded")
    found += _rescue_news(restore, status)
    found += _observed_news(restore, status)
    before = restore.condition("Succeeded")
    if done.reason == "CircuitOpen" and (before is None or before.reason != done.reason):
        found.append(
            News(
                reason="CircuitOpen",
                note=done.message,
                identity=f"circuit-{len(status.attempts)}",
                attempt=len(status.attempts),
            )
        )
    if done.status != "Unknown" and not restore.finished:
        reason = "RestoreSucceeded" if done.status == "True" else "RestoreFailed"
        note = f"{done.reason}: {done.message}"
        found.append(News(reason=reason, note=note, identity="finished", attempt=LAST))
    return found


def _change(decision: str) -> Change:
    return {"Constrained": Change.CONSTRAIN, "Held": Change.HOLD}.get(decision, Change.OTHER)


def _observed_news(restore: Restore, status: RestoreStatus) -> list[News]:
    """Section 5, observe: the gate would have redirected this attempt."""
    old, new = restore.status.redirect, status.redirect
    if new is UNSET or new.decision != "WouldRedirect":
        return []
    if old is not UNSET and old.decision == new.decision:
        return []
    return [
        News(
            reason="PlacementWouldChange",
            note=f"with the gate on it would be restored from storage: {new.conditions[0].message}",
            identity=f"redirect-{len(status.attempts)}",
            attempt=len(status.attempts),
            change=Change.REDIRECT,
            because=new.conditions[0].reason,
        )
    ]


def _rescue_news(restore: Restore, status: RestoreStatus) -> list[News]:
    """`Stranded`, `RedirectBlocked` and `RedirectedToStorage`, once for each change.

    One that is stranded stays so when it is known better why: its node has now refused it too.
    """
    attempts = len(status.attempts)
    found: list[News] = []
    for kind, state, reason in (
        ("Stranded", "True", "Stranded"),
        ("Redirected", "False", "RedirectBlocked"),
        ("Redirected", "True", "RedirectedToStorage"),
    ):
        before = restore.condition(kind)
        after = next((c for c in status.conditions if c.type == kind), None)
        if after is None or after.status != state:
            continue
        why = "" if before is None or reason == "Stranded" else before.reason
        same = before is not None and before.status == state and why in ("", after.reason)
        if not same:
            identity = f"{after.reason}-{attempts}"
            found.append(
                News(reason=reason, note=after.message, identity=identity, attempt=attempts)
            )
    return found


def _rerender_news(restore: Restore, status: RestoreStatus) -> list[News]:
    """Attempts whose pod was taken back because it would be rendered otherwise (section 8)."""
    known = {(a.attempt, a.outcome) for a in restore.status.attempts}
    return [
        News(
            reason="PlacementRerendered",
            note=f"pod {attempt.pod} was not scheduled yet and is {attempt.message}",
            identity=attempt.pod,
            attempt=attempt.attempt,
        )
        for attempt in status.attempts
        if attempt.outcome == Outcome.SUPERSEDED.value
        and attempt.message.startswith(RERENDERED)
        and (attempt.attempt, attempt.outcome) not in known
    ]


def _placement_news(restore: Restore, status: RestoreStatus) -> list[News]:
    old = restore.status
    if status.placement is UNSET:
        return []
    decision = status.placement.decision
    if decision == "Held":
        before = restore.condition("Succeeded")
        after = next(c for c in status.conditions if c.type == "Succeeded")
        if before is not None and before.reason == after.reason:
            return []
        return [
            News(
                reason="PlacementHeld",
                note=status.placement.message,
                identity=f"{after.reason}-{status.placement.message}",
            )
        ]
    if not status.pod_name or status.pod_name == old.pod_name:
        return []
    reason = "PlacementConstrained" if decision == "Constrained" else "PlacementUnconstrained"
    return [
        News(
            reason=reason,
            note=f"pod {status.pod_name}: {status.placement.message}",
            identity=status.pod_name,
            attempt=_attempt_of(status),
        )
    ]


def _attempt_of(status: RestoreStatus) -> int:
    """The attempt that the newest pod was made for."""
    return next((a.attempt for a in status.attempts if a.pod == status.pod_name), 0)


def event_body(restore: Restore, item: News, *, now: datetime, instance: str) -> dict[str, Any]:
    """An events.k8s.io/v1 Event whose name is a function of what it tells.

    So that posting it again, by this process or another, changes nothing; and names sort as the
    Events came, because kubectl lists them so.
    """
    said = f"{restore.uid}/{item.reason}/{item.identity}".encode()
    rank = IN_ORDER.index(item.reason) if item.reason in IN_ORDER else len(IN_ORDER)
    suffix = f"{item.attempt:03}{rank:x}{hashlib.sha256(said).hexdigest()[:16]}"
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": f"{restore.name[:230]}.{suffix}", "namespace": restore.namespace},
        "eventTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "reportingController": f"{names.GROUP}/sandbox-restore",
        "reportingInstance": instance[:128],
        "action": "Restore",
        "reason": item.reason,
        "type": "Warning" if item.reason in DISRUPTIVE else "Normal",
        "note": redact(item.note).encode()[:NOTE_LIMIT].decode(errors="ignore"),
        "regarding": {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "name": restore.name,
            "namespace": restore.namespace,
            "uid": restore.uid,
            "resourceVersion": restore.resource_version,
        },
    }
