"""How an attempt ended and what that does to the row (domain.md sections 11 and 15). PURE."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from datetime import datetime, timedelta

from sandbox_restore.model.pod import PodFacts
from sandbox_restore.model.restore import Restore
from sandbox_restore.model.sandbox import Execution, Outcome, Sandbox, SandboxState, Source
from sandbox_restore.restore.failure import FailureClass, classify_end
from sandbox_restore.restore.world import Retire

MESSAGE_LIMIT = 1024
"""Characters of a failure text that are kept."""


def retire_ended(
    execution: Execution, row: Sandbox, pod: PodFacts, *, row_state: SandboxState, why: str
) -> Retire:
    """The pod is over, with proof: outcome, class and pin by section 15's table."""
    if execution.loaded_at is not None or execution.source is Source.PLATFORM:
        return retire_lost(execution, row, pod_uid=pod.uid, node=pod.node_name, why=why)
    end = pod.runner_end
    said = classify_end(
        pod_reason=pod.reason,
        disruption_target=pod.disruption_target,
        termination_message=end.message if end is not None and end.is_report else None,
    )
    failure = str(said.failure_class)
    started = pod.runner_started or (end is not None and not end.is_report)
    word = end is not None and end.is_report and _own_word(end.message, said.failure_class)
    # Without the runner's word the VM may have run, and a suspend of it may still be reported:
    # `lost` keeps the execution open to that report.
    outcome = Outcome.LOST if started and not word else Outcome.FAILED
    pin = execution.prior_pin
    if execution.source is Source.LOCAL:
        pin = row.pinned_node
    elif outcome is Outcome.LOST or said.failure_class is FailureClass.CPU_INCOMPATIBLE:
        pin = pod.node_name
    return Retire(
        execution=execution,
        outcome=outcome,
        row_state=row_state,
        pinned_node=pin,
        marker=row.local_artifact_marker and pin is not None,
        failure_class=failure,
        failure_message=_text(pod, said.why),
        pod_uid=pod.uid,
        node_name=pod.node_name,
        why=why,
    )


def retire_lost(
    execution: Execution, row: Sandbox, *, pod_uid: str | None, node: str | None, why: str
) -> Retire:
    """A loaded sandbox's pod ended without a suspend: row suspended, pin and marker kept."""
    return Retire(
        execution=execution,
        outcome=Outcome.LOST,
        row_state=SandboxState.SUSPENDED,
        pinned_node=row.pinned_node,
        marker=row.local_artifact_marker,
        pod_uid=pod_uid,
        node_name=node,
        failure_message=why[:MESSAGE_LIMIT],
        why=why,
    )


def retire_unstarted(
    execution: Execution,
    row: Sandbox,
    *,
    outcome: Outcome,
    row_state: SandboxState,
    why: str,
    pod_uid: str | None = None,
) -> Retire:
    """The pod was never bound, or never made: the pin goes back to what it was."""
    pin = row.pinned_node if execution.source is Source.LOCAL else execution.prior_pin
    return Retire(
        execution=execution,
        outcome=outcome,
        row_state=row_state,
        pinned_node=pin,
        marker=row.local_artifact_marker and pin is not None,
        failure_class=FailureClass.UNKNOWN.value if outcome is Outcome.FAILED else None,
        failure_message=why[:MESSAGE_LIMIT],
        pod_uid=pod_uid,
        why=why,
    )


def _own_word(message: str, failure: FailureClass) -> bool:
    """Section 15, "without the runner's word": a report we can read, or one in the contract's form.

    A plain text that names no known failure is no word: nothing says that the load had failed
    rather than the VM ended after it.
    """
    if failure not in (FailureClass.UNKNOWN, FailureClass.DISRUPTED):
        return True
    try:
        report = json.loads(message)
    except ValueError:
        return False
    return isinstance(report, dict) and str(report.get("code")) in set(FailureClass)


def _text(pod: PodFacts, why: str) -> str:
    """What is kept of a failure: the runner's own words, else Kubernetes', else the class's."""
    end = pod.runner_end
    words = _said(end.message) if end is not None else ""
    words = words or pod.message or pod.reason
    if not words and end is not None:
        words = f"{why} (exit code {end.exit_code})"
    return (words or why)[:MESSAGE_LIMIT]


def _said(message: str) -> str:
    """The text of a report: `message` of one in the contract's form, else all of it."""
    try:
        report = json.loads(message)
    except ValueError:
        return message.strip()
    told = report.get("message") if isinstance(report, dict) else None
    return (told if isinstance(told, str) else message).strip()


# --- counting attempts


def counts(attempt: Execution) -> bool:
    """Whether an attempt counts in `backoffLimit` (section 11: superseded and disrupted do not)."""
    return attempt.outcome in (Outcome.FAILED, Outcome.LOST) and (
        attempt.failure_class != FailureClass.DISRUPTED.value
    )


def failed_attempts(attempts: Iterable[Execution], restore_uid: str) -> list[Execution]:
    """The restore's attempts that count, oldest first."""
    return [a for a in attempts if a.restore_uid == restore_uid and not a.active and counts(a)]


def final_failure(restore: Restore, attempts: Iterable[Execution]) -> tuple[str, str] | None:
    """Reason and message when no attempt is left (sections 11 and 14); None: go on."""
    failed = failed_attempts(attempts, restore.uid)
    if not failed:
        return None
    last = failed[-1]
    where = f" on node {last.node_name}" if last.node_name else ""
    last_words = f"attempt {last.attempt}{where}: {last.failure_message or last.outcome}"
    if last.failure_class == FailureClass.USAGE.value:
        return "RunnerUsageError", f"the runner asked wrongly, a retry asks the same; {last_words}"
    unreadable = [a for a in failed if a.failure_class == FailureClass.UNREADABLE.value]
    if len(unreadable) > 1:
        return "SnapshotUnreadable", f"two attempts could not read the snapshot; {last_words}"
    if len(failed) >= restore.spec.backoff_limit:
        return (
            "BackoffLimitExceeded",
            f"{len(failed)} of {restore.spec.backoff_limit} attempts failed; {last_words}",
        )
    return None


def next_attempt_at(
    attempts: Iterable[Execution], restore_uid: str, *, base: timedelta, cap: timedelta
) -> datetime | None:
    """When the next attempt may begin: exponential backoff with jitter.

    The jitter is a hash of the failed execution, so that every look gives the same time.
    Superseded attempts wait for nothing; disrupted ones are backed off like failed ones.
    """
    ended = [
        a
        for a in attempts
        if a.restore_uid == restore_uid
        and a.retired_at is not None
        and a.outcome in (Outcome.FAILED, Outcome.LOST)
    ]
    if not ended:
        return None
    last = ended[-1]
    assert last.retired_at is not None
    return last.retired_at + _backoff(last, len(ended), base=base, cap=cap)


def rerender_not_before(
    execution: Execution, attempts: Iterable[Execution], *, base: timedelta, cap: timedelta
) -> datetime:
    """From when on the pod of an active attempt may be taken back to be rendered again.

    At once, after an attempt that ended otherwise. One that has replaced a superseded attempt
    stands for a time, longer with each in a row, so that a fleet that never comes to rest, or two
    operators that do not agree, are no storm of pods.
    """
    in_a_row = 0
    for attempt in attempts:
        if attempt.restore_uid == execution.restore_uid and attempt.attempt < execution.attempt:
            in_a_row = in_a_row + 1 if attempt.outcome is Outcome.SUPERSEDED else 0
    if not in_a_row:
        return execution.created_at
    return execution.created_at + _backoff(execution, in_a_row, base=base, cap=cap)


def _backoff(last: Execution, count: int, *, base: timedelta, cap: timedelta) -> timedelta:
    ceiling = min(cap, base * float(2 ** min(count - 1, 20)))
    digest = hashlib.sha256(last.id.encode()).digest()
    jitter = 0.5 + int.from_bytes(digest[:4], "big") / 2**33
    return ceiling * jitter
