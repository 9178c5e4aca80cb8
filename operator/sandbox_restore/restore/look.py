"""One look at one sandbox: what is open, what is said of it, what may be alive. PURE."""

from __future__ import annotations

from datetime import datetime, timedelta

from msgspec import UNSET

from sandbox_restore.model.pod import PodFacts
from sandbox_restore.model.restore import PlanStatus, Restore
from sandbox_restore.model.sandbox import (
    Execution,
    Outcome,
    SandboxState,
    SandboxView,
    Source,
)
from sandbox_restore.restore.liveness import Verdict, could_host
from sandbox_restore.restore.outcome import (
    final_failure,
)
from sandbox_restore.restore.redirect import Redirect
from sandbox_restore.restore.rescue import (
    redirect_of,
)
from sandbox_restore.restore.world import (
    Said,
    World,
    is_pod_of,
)


def started_at(restore: Restore) -> datetime:
    """When the restore's clock started."""
    start = restore.status.start_time
    return restore.created if start is UNSET else start


def deadline_at(restore: Restore, now: datetime) -> datetime | None:
    """When the restore must be over; None while suspended, whose time does not count.

    A pause that has just ended counts too, before the status tells its length.
    """
    if restore.spec.suspend:
        return None
    status = restore.status
    paused = timedelta(seconds=status.suspended_seconds)
    if status.suspended_at is not UNSET:
        paused += now - status.suspended_at
    return started_at(restore) + timedelta(seconds=restore.spec.active_deadline_seconds) + paused


class Look:
    """One pass over one sandbox: its view, the restores to serve, and what is said so far."""

    def __init__(self, world: World, view: SandboxView) -> None:
        self.world = world
        self.view = view
        self.row = view.sandbox
        self.said: dict[str, Said] = {}
        self.open: list[Restore] = []
        self.rechecks: list[datetime] = []
        """When time alone calls for another look, whether or not a restore waits for it."""

    def sort_out(self) -> None:
        for restore in self.world.restores:
            if restore.finished or restore.deleting:
                continue
            if restore.namespace != self.row.namespace or not self._owns(restore):
                self.said[restore.uid] = not_found(self.world, restore)
                continue
            ended = self._ended(restore)
            if ended is not None:
                self.said[restore.uid] = ended
            else:
                self.open.append(restore)
        self.open.sort(key=self._turn)

    def _owns(self, restore: Restore) -> bool:
        """A re-created namespace of the same name owns nothing (section 15)."""
        wanted = self.row.namespace_uid
        lives_in = self.world.namespace_uids.get(restore.uid, self.world.namespace_uid)
        return wanted is None or lives_in in (None, wanted)

    def _turn(self, restore: Restore) -> tuple[bool, datetime, str]:
        """Section 14, two restores of one sandbox: the one at work first, then the older."""
        newest = self.view.newest
        at_work = (
            newest is not None
            and newest.restore_uid == restore.uid
            and (newest.active or self.row.state is SandboxState.RESTORING)
        )
        return (not at_work, restore.created, restore.uid)

    def attempts(self, restore: Restore) -> list[Execution]:
        return [a for a in self.view.attempts if a.restore_uid == restore.uid]

    def _ended(self, restore: Restore) -> Said | None:
        """Whether the restore's end is decided by what has happened or by the clock."""
        attempts = self.attempts(restore)
        last = attempts[-1] if attempts else None
        if last is not None and last.released_at is not None:
            words = "the snapshot is loaded and the sandbox runs"
            return self.succeeded(
                last, "SnapshotLoaded", words if last.active else "the sandbox has ended since"
            )
        if last is not None and not last.active:
            if last.outcome is Outcome.SUSPENDED:
                return self.succeeded(last, "SandboxSuspended", "the sandbox was suspended")
            if last.loaded_at is not None:
                return Said(
                    succeeded=False,
                    reason="SandboxLost",
                    message=f"the snapshot was loaded and the pod ended: {last.failure_message}",
                )
            failure = final_failure(restore, attempts)
            if failure is not None:
                return Said(succeeded=False, reason=failure[0], message=failure[1])
        if last is not None and last.active and self._is_up(last):
            return None
        due = deadline_at(restore, self.world.now)
        if due is not None and self.world.now >= due:
            before = restore.condition("Succeeded")
            state = f"; before that: {before.reason}: {before.message}" if before else ""
            return Said(
                succeeded=False,
                reason="DeadlineExceeded",
                message=f"not up within {restore.spec.active_deadline_seconds} s{state}"[:2048],
            )
        return None

    def _is_up(self, execution: Execution) -> bool:
        """Loaded, or about to be recorded so: no deadline takes a sandbox back that is up."""
        pod = self.world.pod_of(execution)
        return (
            pod is not None and not pod.terminal and (pod.ready or execution.loaded_at is not None)
        )

    def verdict(self, pod: PodFacts, execution: Execution | None = None) -> Verdict:
        verdict = could_host(
            pod,
            self.world.sightings.get(pod.node_name or ""),
            now=self.world.now,
            gone_grace=self.world.config.gone_grace,
            node_uid=execution.node_uid if execution is not None else None,
            seen_terminal=self.world.seen_terminal.get(pod.uid),
        )
        if verdict.recheck_at is not None:
            self.rechecks.append(verdict.recheck_at)
        return verdict

    def another_alive(self, pod: PodFacts | None) -> Verdict | None:
        """Section 15: no execution is retired while any pod of the sandbox could be alive."""
        verdicts = (self.verdict(p) for p in self.world.pods if p is not pod)
        return next((v for v in verdicts if v.may_be_alive), None)

    def hold_all(self, reason: str, verdict: Verdict) -> None:
        for restore in self.open:
            self.said[restore.uid] = self.waiting(
                restore, reason, verdict.why, recheck_at=verdict.recheck_at
            )

    def blocked_by(
        self,
        restore: Restore,
        *,
        active: Execution | None = None,
        alive: Verdict | None = None,
    ) -> Redirect | None:
        """The conditions of a pinned sandbox whose plan has to wait for an earlier pod."""
        if not self.world.gate_for(restore):
            return None
        if active is not None:
            pods = ((p, active if is_pod_of(p, active) else None) for p in self.world.pods)
            verdicts = (self.verdict(pod, execution) for pod, execution in pods)
            alive = next((v for v in verdicts if v.may_be_alive), None)
        return redirect_of(self.world, self.view, restore, active=active, alive=alive)

    def waiting(
        self,
        restore: Restore,
        reason: str,
        message: str,
        *,
        recheck_at: datetime | None = None,
        redirect: Redirect | None = None,
    ) -> Said:
        times = [t for t in (recheck_at, deadline_at(restore, self.world.now)) if t is not None]
        return Said(
            succeeded=None,
            reason=reason,
            message=message,
            recheck_at=min(times, default=None),
            planned=False,
            placed=(False, reason, message),
            redirect=redirect,
        )

    def say_working(
        self,
        restore: Restore,
        execution: Execution,
        pod: PodFacts | None,
        reason: str,
        message: str,
    ) -> None:
        verdict = self.verdict(pod, execution) if pod is not None and pod.bound else None
        times = [
            t
            for t in (
                deadline_at(restore, self.world.now),
                verdict.recheck_at if verdict is not None else None,
            )
            if t is not None
        ]
        bound = pod is not None and pod.bound
        self.said[restore.uid] = Said(
            succeeded=None,
            reason=reason,
            message=message,
            plan=self._plan_status(execution),
            pod=pod,
            placed=(
                (True, "Bound", f"pod {pod.name} on node {pod.node_name}")
                if bound and pod is not None
                else (False, reason, message)
            ),
            planned=True,
            recheck_at=min(times, default=None),
            redirect=self._why_local(restore, execution),
            observed=not execution.gate,
        )

    def succeeded(self, execution: Execution, reason: str, words: str) -> Said:
        pod = self.world.pod_of(execution)
        return Said(
            succeeded=True,
            reason=reason,
            message=f"{words} (node {execution.node_name}, pod {execution.pod_name})",
            plan=self._plan_status(execution),
            pod=pod,
            placed=(True, "Bound", f"pod {execution.pod_name} on node {execution.node_name}"),
            planned=True,
        )

    def _plan_status(self, execution: Execution) -> PlanStatus:
        snapshot = next((s for s in self.view.snapshots if s.id == execution.snapshot_id), None)
        captured = snapshot.captured_at if snapshot is not None else None
        local = execution.source is Source.LOCAL
        named = (
            "named in spec.snapshotId" if self._names(execution) else "the newest ready snapshot"
        )
        if execution.source is Source.STORAGE and execution.prior_pin is not None:
            named += f", instead of what node {execution.prior_pin} holds"
        return PlanStatus(
            source="pod" if execution.source is Source.PLATFORM else execution.source.value,
            snapshot_id=execution.snapshot_id or "",
            captured_at=UNSET if captured is None else captured,
            node=execution.target_node or "",
            origin=f"the sandbox is pinned to node {execution.target_node}" if local else named,
        )

    def _names(self, execution: Execution) -> bool:
        return any(
            r.uid == execution.restore_uid and r.spec.snapshot_id is not UNSET
            for r in self.world.restores
        )

    def _why_local(self, restore: Restore, execution: Execution) -> Redirect | None:
        """Why a local-only attempt was not redirected: judged as if it had not begun.

        With the gate off it is what the gate would do, where that is asked for (section 5).
        """
        if execution.source is not Source.LOCAL:
            return None
        if not execution.gate and not self.world.observes(restore):
            return None
        return redirect_of(self.world, self.view, restore)


def not_found(world: World, restore: Restore) -> Said:
    """The same words for a missing row and for a row of another namespace (section 16)."""
    return Said(
        succeeded=False,
        reason="SandboxNotFound",
        message=f"no sandbox {world.sandbox_id} in namespace {restore.namespace}",
        planned=False,
    )


def suspended() -> Said:
    return Said(
        succeeded=None,
        reason="Suspended",
        message="spec.suspend is true: no new attempt begins and the deadline clock stands still",
        placed=(False, "Suspended", "spec.suspend is true"),
    )
