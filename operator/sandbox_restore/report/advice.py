"""What a person can do about a restore, by the reason it gives. PURE.

The reasons of a blocked redirect have theirs in `restore.blocked`; docs/troubleshooting.md tells
more of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import UNSET

from sandbox_restore.model.restore import Restore
from sandbox_restore.restore.blocked import ADVICE as BLOCKED
from sandbox_restore.restore.blocked import Reason as Blocked

ADVICE: Final[Mapping[str, str]] = {
    "AttemptFailed": "nothing yet: the next attempt begins once this one's end is proven",
    "BackoffLimitExceeded": "look at the attempts; mend what they name, then apply a new "
    "SandboxRestore (or raise spec.backoffLimit before this one ends, next time)",
    "ChangeNotSeenYet": "wait some seconds; sandbox-restore doctor tells whether an operator runs",
    "CircuitOpen": "compare the hosts that refused it: firmware, kernel, Firecracker; correct the "
    "compatibility list if it names a pair that does not hold",
    "ColdCache": "wait: the operator has not read all nodes yet",
    "CreatingPod": "nothing: the pod is being made. If it stays so, a quota or a policy may refuse "
    "it: see the operator's log",
    "DeadlineExceeded": "mend what it waited for, then apply a new SandboxRestore with a longer "
    "spec.activeDeadlineSeconds if need be",
    "EvacuationBlocked": "mend the condition that it names, then apply the evacuation again",
    "LoadingSnapshot": "nothing: the runner is loading the snapshot",
    "NotSeenYet": "sandbox-restore doctor tells whether an operator runs and serves this namespace",
    "NotPermitted": "give the operator the right that it names: docs/install/rbac.yaml",
    "PinnedNodeAbsent": BLOCKED[Blocked.PINNED_NODE_ABSENT],
    "PlacementHeld": "make a node with the needed CPU reachable, or set hostCpuPolicy Auto in a "
    "new SandboxRestore to take the risk of another CPU",
    "CaptureCpuUnknown": BLOCKED[Blocked.CAPTURE_CPU_UNKNOWN],
    "PodDeleted": "somebody deleted the pod; nothing to do: the next attempt follows",
    "PodNameTaken": "a pod that is not the operator's has this name: delete or rename it",
    "PreviousPodMayBeAlive": BLOCKED[Blocked.PREVIOUS_POD_MAY_BE_ALIVE]
    + "; what nobody can prove, sandbox-restore retire can be told",
    "RedirectRateLimited": "wait its turn, or raise SPACE_SANDBOX_RESTORE_REDIRECTS_PER_MINUTE",
    "RunnerUsageError": "the runner image asks Firecracker wrongly: compare it with "
    "docs/runner-contract.md",
    "SandboxBusy": "wait: it follows when the sandbox comes up, and goes on when that restore ends",
    "SandboxLost": "its pod ended and nobody reported a suspend: apply a new SandboxRestore",
    "SandboxNotFound": "check spec.sandboxId and the namespace: a sandbox belongs to one namespace",
    "SandboxRunning": "nothing while it runs. If it does not, the platform's row is stale: have it "
    "report what became of the sandbox",
    "SchedulingGated": "nothing: the operator opens the gate once the pod is recorded",
    "SnapshotUnavailable": "check what was looked for: see the sandbox's snapshots in the database",
    "SnapshotUnreadable": "the file is damaged, or this Firecracker cannot read its format: "
    "restore an older snapshot by naming it in spec.snapshotId",
    "NewerSnapshotFailed": BLOCKED[Blocked.NEWER_SNAPSHOT_FAILED],
    "SnapshotBehindActivity": "to go back to the older state, name the snapshot in spec.snapshotId "
    "of a new SandboxRestore",
    "Suspended": "set spec.suspend to false to go on",
    "Unavailable": "look at what does not answer; the operator goes on by itself once it does",
    "WaitingForSnapshot": "wait for the upload; if its node is gone, have the platform report it "
    "failed",
}
"""By the reason of condition `Succeeded`."""


def advice_for(restore: Restore, reason: str) -> Iterator[str]:
    """What would help, nearest first."""
    redirect = restore.status.redirect
    if redirect is not UNSET and redirect.blocked_by:
        blocker = next((c for c in redirect.conditions if c.name == redirect.blocked_by), None)
        if blocker is not None and blocker.reason in set(Blocked):
            yield f"{redirect.blocked_by}: {BLOCKED[Blocked(blocker.reason)]}"
    if reason in ADVICE:
        yield ADVICE[reason]
