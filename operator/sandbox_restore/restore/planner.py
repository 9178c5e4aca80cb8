"""The planner: one view in, the next step and what to say of each restore out (section 14). PURE.

It never asks what woke it, and orders at most one step: the caller carries it out, looks again,
and asks again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from msgspec import UNSET

from sandbox_restore.model.names import FENCE
from sandbox_restore.model.pod import PodFacts
from sandbox_restore.model.restore import HostCpuPolicy, PlanStatus, Restore
from sandbox_restore.model.sandbox import (
    Execution,
    ExecutionState,
    Outcome,
    SandboxState,
    SandboxView,
    Source,
)
from sandbox_restore.restore.choose import LocalPlan, NoPlan, StoragePlan, choose
from sandbox_restore.restore.liveness import BoundPod, Verdict, could_host, node_decides
from sandbox_restore.restore.outcome import (
    final_failure,
    next_attempt_at,
    rerender_not_before,
    retire_ended,
    retire_lost,
    retire_unstarted,
)
from sandbox_restore.restore.redirect import Redirect
from sandbox_restore.restore.rerender import RERENDERED
from sandbox_restore.restore.rescue import (
    ended_stranded,
    evacuation_blocker,
    marker_to_give_up,
    redirect_of,
    refused_here,
)
from sandbox_restore.restore.world import (
    BeginAttempt,
    CreatePod,
    DeletePod,
    DeleteRestore,
    DropFinalizer,
    FailRow,
    GiveUpMarker,
    MarkLoaded,
    MarkReleased,
    Plan,
    Release,
    Retire,
    Said,
    Step,
    Ungate,
    World,
    execution_of,
    is_made_for,
    is_pod_of,
)


def plan(world: World) -> Plan:
    """The next step for one sandbox, and what to say of each of its restores."""
    if world.view is None:
        said = {r.uid: _not_found(world, r) for r in world.restores if not r.finished}
        return _with_ttl(world, None, said)
    planner = _Planner(world, world.view)
    step = planner.run()
    return _with_ttl(world, step, planner.said, planner.rechecks)


def _with_ttl(
    world: World, step: Step | None, said: dict[str, Said], rechecks: Iterable[datetime] = ()
) -> Plan:
    """A finished restore is deleted when its time to live is over (api.md)."""
    due_times = [*rechecks, *(s.recheck_at for s in said.values() if s.recheck_at is not None)]
    # A time that has passed without a step waits for news, not for itself.
    rechecks = [t for t in due_times if t > world.now]
    for restore in world.restores:
        done = restore.status.completion_time
        if not restore.finished or restore.deleting or done is UNSET:
            continue
        due = done + timedelta(seconds=restore.spec.ttl_seconds_after_finished)
        if due > world.now:
            rechecks.append(due)
        elif step is None:
            step = DeleteRestore(restore=restore)
    return Plan(step=step, said=said, recheck_at=min(rechecks, default=None))


def _not_found(world: World, restore: Restore) -> Said:
    """The same words for a missing row and for a row of another namespace (section 16)."""
    return Said(
        succeeded=False,
        reason="SandboxNotFound",
        message=f"no sandbox {world.sandbox_id} in namespace {restore.namespace}",
        planned=False,
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


class _Planner:
    """One pass over one sandbox. Holds the view and what has been said so far."""

    def __init__(self, world: World, view: SandboxView) -> None:
        self.world = world
        self.view = view
        self.row = view.sandbox
        self.said: dict[str, Said] = {}
        self.open: list[Restore] = []
        self.rechecks: list[datetime] = []
        """When time alone calls for another look, whether or not a restore waits for it."""

    def run(self) -> Step | None:
        self._sort_out()
        active = self.view.active
        # Asked for first or not, it also says what there is to say of each restore.
        ordered = self._active(active) if active is not None else self._idle()
        return self._left_over_pods() or ordered

    # --- which restores are still to be served

    def _sort_out(self) -> None:
        for restore in self.world.restores:
            if restore.finished or restore.deleting:
                continue
            if restore.namespace != self.row.namespace or not self._owns(restore):
                self.said[restore.uid] = _not_found(self.world, restore)
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

    def _attempts(self, restore: Restore) -> list[Execution]:
        return [a for a in self.view.attempts if a.restore_uid == restore.uid]

    def _ended(self, restore: Restore) -> Said | None:
        """Whether the restore's end is decided by what has happened or by the clock."""
        attempts = self._attempts(restore)
        last = attempts[-1] if attempts else None
        if last is not None and last.released_at is not None:
            words = "the snapshot is loaded and the sandbox runs"
            return self._succeeded(
                last, "SnapshotLoaded", words if last.active else "the sandbox has ended since"
            )
        if last is not None and not last.active:
            if last.outcome is Outcome.SUSPENDED:
                return self._succeeded(last, "SandboxSuspended", "the sandbox was suspended")
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

    def _succeeded(self, execution: Execution, reason: str, words: str) -> Said:
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

    # --- pods that belong to no active execution

    def _left_over_pods(self) -> Step | None:
        active = self.view.active
        for pod in self.world.pods:
            if active is not None and is_pod_of(pod, active):
                continue
            step = self._left_over(pod)
            if step is not None:
                return step
        return None

    def _left_over(self, pod: PodFacts) -> Step | None:
        """Section 15: a gated pod whose execution is not active goes, finalizer and all; a fence
        outlives its execution only until this look; a released pod goes once it is terminal."""
        fenced = FENCE in pod.finalizers
        if execution_of(pod) is None and not fenced:
            return None
        verdict = self._verdict(pod)
        if not pod.bound and not pod.deleting:
            return DeletePod(pod=pod, why="its execution is not active")
        if fenced and not verdict.may_be_alive:
            return DropFinalizer(pod=pod, why="its execution is not active")
        if fenced and not pod.deleting:
            return DeletePod(pod=pod, why="its execution is not active")
        if not fenced and not pod.owner_uids and pod.terminal and not pod.deleting:
            return DeletePod(pod=pod, why="released, its execution is retired and it has ended")
        return None

    def _verdict(self, pod: PodFacts, execution: Execution | None = None) -> Verdict:
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

    # --- step 1 of section 14: an active execution, plan from its pod

    def _active(self, execution: Execution) -> Step | None:
        restore = next((r for r in self.open if r.uid == execution.restore_uid), None)
        pod = self.world.pod_of(execution)
        self._say_followers(execution, pod, restore)
        if pod is None:
            return self._without_pod(execution, restore)
        if execution.source is not Source.PLATFORM and not is_made_for(pod, execution):
            return self._foreign_pod(execution, restore, pod)
        if not pod.bound:
            return self._unbound(execution, restore, pod)
        return self._bound(execution, restore, pod)

    def _say_followers(
        self, execution: Execution, pod: PodFacts | None, restore: Restore | None
    ) -> None:
        """The other restores follow the pod that runs, or wait."""
        up = (
            self.row.state is SandboxState.RUNNING
            and execution.loaded_at is not None
            and (execution.released_at is not None or execution.source is Source.PLATFORM)
            and pod is not None
            and pod.ready
            and not pod.deleting
        )
        for other in self.open:
            if other is restore:
                continue
            if up:
                self.said[other.uid] = self._succeeded(
                    execution, "FollowedPod", "the sandbox is up, restored by another's pod"
                )
            elif other.spec.suspend:
                self.said[other.uid] = _suspended()
            elif restore is None:
                self.said[other.uid] = self._previous(execution, pod, other)
            else:
                self.said[other.uid] = self._waiting(
                    other,
                    "SandboxBusy",
                    f"restore {restore.name} is restoring this sandbox (pod {execution.pod_name})",
                    redirect=self._blocked_by(other, active=execution),
                )

    def _previous(self, execution: Execution, pod: PodFacts | None, restore: Restore) -> Said:
        if execution.source is Source.PLATFORM:
            return self._waiting(
                restore,
                "SandboxBusy",
                f"the platform runs this sandbox in pod {execution.pod_name}",
            )
        why = self._verdict(pod, execution).why if pod is not None else f"pod {execution.pod_name}"
        return self._waiting(
            restore,
            "PreviousPodMayBeAlive",
            f"an earlier attempt is not proven over: {why}",
            redirect=self._blocked_by(restore, active=execution),
        )

    def _without_pod(self, execution: Execution, restore: Restore | None) -> Step | None:
        if execution.loaded_at is not None or execution.source is Source.PLATFORM:
            return self._gone(execution)
        if restore is None:
            return self._retire_unstarted(execution, restore, Outcome.CANCELLED, "cancelled")
        if restore.spec.suspend:
            self.said[restore.uid] = _suspended()
            return self._retire_unstarted(execution, restore, Outcome.SUPERSEDED, "suspended")
        self._say_working(restore, execution, None, "CreatingPod", "the restore pod is being made")
        return CreatePod(restore=restore, execution=execution)

    def _gone(self, execution: Execution) -> Step | None:
        """A released pod's object is gone: the report that its kubelet had left in it is proof,
        else its node decides (section 15)."""
        other = self._another_alive(None)
        if other is not None:
            self._hold_all("PreviousPodMayBeAlive", other)
            return None
        last = self.world.ended_pods.get(execution.pod_name or "")
        if last is not None and last.uid == execution.pod_uid:
            return retire_lost(
                execution,
                self.row,
                pod_uid=last.uid,
                node=last.node_name,
                why=f"pod {last.name} is gone; its kubelet had reported the runner terminated",
            )
        gone_at = self.world.gone_since.get(execution.pod_name or "", self.world.now)
        verdict = node_decides(
            BoundPod(
                name=execution.pod_name or "",
                node_name=execution.node_name or "",
                node_uid=execution.node_uid,
                scheduled_at=execution.loaded_at,
                grace_seconds=self.world.config.pod_grace_seconds,
                ended_at=gone_at,
            ),
            self.world.sightings.get(execution.node_name or ""),
            now=self.world.now,
            gone_grace=self.world.config.gone_grace,
        )
        if verdict.may_be_alive:
            if verdict.recheck_at is not None:
                self.rechecks.append(verdict.recheck_at)
            self._hold_all("PreviousPodMayBeAlive", verdict)
            return None
        return retire_lost(
            execution,
            self.row,
            pod_uid=execution.pod_uid,
            node=execution.node_name,
            why=f"pod {execution.pod_name} is gone: {verdict.why}",
        )

    def _hold_all(self, reason: str, verdict: Verdict) -> None:
        for restore in self.open:
            self.said[restore.uid] = self._waiting(
                restore, reason, verdict.why, recheck_at=verdict.recheck_at
            )

    def _retire_unstarted(
        self,
        execution: Execution,
        restore: Restore | None,
        outcome: Outcome,
        why: str,
        pod: PodFacts | None = None,
    ) -> Retire | None:
        other = self._another_alive(pod)
        if other is not None:
            self._hold_all("PreviousPodMayBeAlive", other)
            return None
        return retire_unstarted(
            execution,
            self.row,
            outcome=outcome,
            row_state=SandboxState.FAILED if restore is None else SandboxState.RESTORING,
            why=why,
            pod_uid=pod.uid if pod is not None else None,
        )

    def _foreign_pod(
        self, execution: Execution, restore: Restore | None, pod: PodFacts
    ) -> Step | None:
        why = f"a pod named {pod.name} exists that this operator did not make for this attempt"
        if restore is not None:
            self._say_working(restore, execution, None, "PodNameTaken", why)
        return self._retire_unstarted(execution, restore, Outcome.FAILED, why)

    def _unbound(self, execution: Execution, restore: Restore | None, pod: PodFacts) -> Step | None:
        if pod.deleting:
            return self._deleted_unbound(execution, restore, pod)
        if restore is None:
            return DeletePod(pod=pod, why="its restore is over")
        if restore.spec.suspend:
            self.said[restore.uid] = _suspended()
            return DeletePod(pod=pod, why="its restore is suspended")
        step = self._unscheduled(execution, restore, pod)
        return self._rerender(execution, restore, pod) or step

    def _deleted_unbound(
        self, execution: Execution, restore: Restore | None, pod: PodFacts
    ) -> Step | None:
        """Section 15: a pod found being deleted unbound ends its attempt."""
        why = f"pod {pod.name} was deleted unbound"
        if restore is None:
            return self._retire_unstarted(execution, restore, Outcome.CANCELLED, why, pod)
        self._say_working(restore, execution, pod, "PodDeleted", why)
        changed = self.world.rerender_for(restore, execution, pod)
        if changed is not None:
            why = f"{RERENDERED}: {changed.why}"
        return self._retire_unstarted(execution, restore, Outcome.SUPERSEDED, why, pod)

    def _rerender(self, execution: Execution, restore: Restore, pod: PodFacts) -> DeletePod | None:
        """Section 8, known limits: takes the pod back when it would be rendered otherwise now."""
        changed = self.world.rerender_for(restore, execution, pod)
        if changed is None:
            return None
        rested = rerender_not_before(
            execution,
            self._attempts(restore),
            base=self.world.config.backoff_base,
            cap=self.world.config.backoff_max,
        )
        due = max(changed.due_at, rested)
        if self.world.now >= due:
            return DeletePod(pod=pod, why=f"{RERENDERED}: {changed.why}")
        self.rechecks.append(due)
        return None

    def _unscheduled(self, execution: Execution, restore: Restore, pod: PodFacts) -> Ungate | None:
        """What an unbound pod waits for; our own gate is taken off."""
        if pod.gates:
            self._say_working(restore, execution, pod, "Scheduling", f"pod {pod.name} was made")
            if FENCE in pod.gates:
                return Ungate(pod=pod, execution=execution)
            gates = ", ".join(pod.gates)
            self._say_working(
                restore,
                execution,
                pod,
                "SchedulingGated",
                f"pod {pod.name} is held by gate {gates}",
            )
            return None
        reason = "Unschedulable" if pod.unschedulable_message else "Scheduling"
        words = pod.unschedulable_message or f"pod {pod.name} waits for kube-scheduler"
        self._say_working(restore, execution, pod, reason, words)
        return None

    def _bound(self, execution: Execution, restore: Restore | None, pod: PodFacts) -> Step | None:
        verdict = self._verdict(pod, execution)
        if execution.loaded_at is None and pod.ready:
            # A fact to be recorded before anything is done about it, whatever has become of the
            # restore or the node: a suspend that is reported later names this pod.
            if restore is not None:
                self._say_bound(restore, execution, pod, verdict)
            return MarkLoaded(execution=execution, pod=pod)
        if not verdict.may_be_alive:
            other = self._another_alive(pod)
            if other is not None:
                self._hold_all("PreviousPodMayBeAlive", other)
                return None
            return self._over(execution, restore, pod, verdict)
        released = execution.released_at is not None
        if restore is None and not released and execution.source is not Source.PLATFORM:
            if not pod.deleting:
                return DeletePod(pod=pod, why="its restore is over")
            return None
        if restore is not None:
            self._say_bound(restore, execution, pod, verdict)
        if pod.terminal:
            return None
        if execution.loaded_at is None:
            return None
        if not released and execution.source is not Source.PLATFORM:
            if pod.owner_uids or FENCE in pod.finalizers:
                return Release(execution=execution, pod=pod)
            return MarkReleased(execution=execution, pod=pod)
        return None

    def _another_alive(self, pod: PodFacts | None) -> Verdict | None:
        """Section 15: no execution is retired while any pod of the sandbox could be alive."""
        verdicts = (self._verdict(p) for p in self.world.pods if p is not pod)
        return next((v for v in verdicts if v.may_be_alive), None)

    def _over(
        self, execution: Execution, restore: Restore | None, pod: PodFacts, verdict: Verdict
    ) -> Step:
        why = f"pod {pod.name} on node {pod.node_name} is over: {verdict.why}"
        retire = retire_ended(execution, self.row, pod, row_state=SandboxState.RESTORING, why=why)
        if execution.loaded_at is not None:
            return retire
        if restore is not None:
            words = retire.failure_message or why
            self._say_working(restore, execution, pod, "AttemptFailed", words)
        return retire if self._goes_on(restore, retire) else _with_failed_row(retire)

    def _goes_on(self, restore: Restore | None, retire: Retire) -> bool:
        """Whether another attempt follows: the restore is open and its limits leave one."""
        if restore is None:
            return False
        ended = _as_retired(retire, self.world.now)
        attempts = [ended if a.id == ended.id else a for a in self._attempts(restore)]
        return final_failure(restore, attempts) is None

    def _say_bound(
        self, restore: Restore, execution: Execution, pod: PodFacts, verdict: Verdict
    ) -> None:
        if pod.terminal:
            self._say_working(restore, execution, pod, "PreviousPodMayBeAlive", verdict.why)
            return
        if execution.released_at is not None:
            self.said[restore.uid] = self._succeeded(
                execution, "SnapshotLoaded", "the snapshot is loaded and the sandbox runs"
            )
            return
        loaded = execution.loaded_at is not None
        self._say_working(
            restore,
            execution,
            pod,
            "Releasing" if loaded else "LoadingSnapshot",
            f"pod {pod.name} on node {pod.node_name} "
            + ("has loaded the snapshot" if loaded else "loads the snapshot"),
        )

    # --- no active execution

    def _idle(self) -> Step | None:
        newest = self.view.newest
        waiting = [r for r in self.open if not r.spec.suspend]
        for restore in self.open:
            if restore.spec.suspend:
                self.said[restore.uid] = _suspended()
        if self.row.state is SandboxState.RESTORING and (
            newest is None or newest.restore_uid not in {r.uid for r in self.open}
        ):
            return FailRow()
        if not waiting:
            return None
        acting, others = waiting[0], waiting[1:]
        for other in others:
            self.said[other.uid] = self._waiting(
                other, "SandboxBusy", f"restore {acting.name} of this sandbox comes first"
            )
        return self._next_attempt(acting)

    def _next_attempt(self, restore: Restore) -> Step | None:
        if self.row.state is SandboxState.RUNNING:
            self.said[restore.uid] = self._waiting(
                restore,
                "SandboxRunning",
                "the platform says that the sandbox runs, in no execution known here",
            )
            return None
        for pod in self.world.pods:
            verdict = self._verdict(pod)
            if verdict.may_be_alive:
                self.said[restore.uid] = self._waiting(
                    restore,
                    "PreviousPodMayBeAlive",
                    verdict.why,
                    recheck_at=verdict.recheck_at,
                    redirect=self._blocked_by(restore, alive=verdict),
                )
                return None
        choice = choose(
            self.view, restore, storage_uri_prefixes=self.world.config.storage_uri_prefixes
        )
        if isinstance(choice, NoPlan):
            self.said[restore.uid] = self._no_plan(restore, choice)
            return None
        if isinstance(choice, LocalPlan):
            return self._pinned(restore, choice)
        return self._begin(restore, choice)

    def _pinned(self, restore: Restore, local: LocalPlan) -> Step | None:
        """Step 2 of section 14, which section 10 may turn into a storage plan."""
        if restore.spec.evacuation is not UNSET:
            return self._evacuate(restore, local)
        if not self.world.gate_for(restore):
            return self._local(restore, local, None)
        evidence = marker_to_give_up(self.world, self.view)
        if evidence is not None:
            return GiveUpMarker(restore=restore, evidence=evidence)
        found = redirect_of(self.world, self.view, restore)
        assert found is not None
        if found.allowed:
            return self._redirect(restore, found)
        if found.pinned.recheck_at is not None:
            # A pod for an absent node could not be bound either, and would hold a redirect up.
            self.said[restore.uid] = self._waiting(
                restore,
                found.pinned.reason,
                found.words,
                recheck_at=found.pinned.recheck_at,
                redirect=found,
            )
            return None
        return self._local(restore, local, found)

    def _redirect(self, restore: Restore, found: Redirect) -> Step | None:
        assert found.snapshot is not None
        attempts = self._attempts(restore)
        # After a storage attempt of its own it is the next try of the same load, which backoffLimit
        # bounds: only what would have stayed local is a redirect that the fleet has to bear.
        is_retry = bool(attempts) and attempts[-1].source is Source.STORAGE
        allowed_at = None if is_retry else self.world.redirect_wait()
        if allowed_at is not None:
            self.said[restore.uid] = self._waiting(
                restore,
                "RedirectRateLimited",
                f"{found.pinned.message}; its redirect to the storage copy waits for the fleet's "
                "rate limit (SPACE_SANDBOX_RESTORE_REDIRECTS_PER_MINUTE)",
                recheck_at=allowed_at,
                redirect=found,
            )
            return None
        choice = StoragePlan(
            snapshot=found.snapshot, origin=f"redirected to storage: {found.pinned.message}"
        )
        return self._begin(
            restore, choice, clear_pin=True, redirect=found, rate_limited=not is_retry
        )

    def _blocked_by(
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
            verdicts = (self._verdict(pod, execution) for pod, execution in pods)
            alive = next((v for v in verdicts if v.may_be_alive), None)
        return redirect_of(self.world, self.view, restore, active=active, alive=alive)

    def _evacuate(self, restore: Restore, local: LocalPlan) -> Step | None:
        """Section 14: a storage plan confined to the target cohort, when it can lose nothing."""
        found = redirect_of(self.world, self.view, restore, by_cpu=False)
        assert found is not None
        blocker = evacuation_blocker(found)
        if blocker is None and found.snapshot is not None:
            origin = f"evacuated from node {local.node}"
            choice = StoragePlan(snapshot=found.snapshot, origin=origin)
            return self._begin(restore, choice, clear_pin=True)
        assert blocker is not None
        self.said[restore.uid] = Said(
            succeeded=False,
            reason="EvacuationBlocked",
            message=f"the sandbox is pinned to node {local.node} and may not leave it: "
            f"{blocker.with_advice}",
            planned=False,
        )
        return None

    def _local(self, restore: Restore, local: LocalPlan, found: Redirect | None) -> Step | None:
        """The plan stays on its node: section 11 says how often, section 14 whether at all."""
        required = restore.spec.host_cpu_policy is HostCpuPolicy.REQUIRED
        if found is not None and found.stranded and required:
            self.said[restore.uid] = self._waiting(restore, "Stranded", found.words, redirect=found)
            return None
        refused = refused_here(self.view, restore)
        if refused is None:
            return self._begin(restore, local, redirect=found)
        self.said[restore.uid] = Said(
            succeeded=False,
            reason="Stranded",
            message=ended_stranded(found, refused),
            redirect=found,
        )
        return None

    def _no_plan(self, restore: Restore, choice: NoPlan) -> Said:
        if choice.final:
            return Said(
                succeeded=False, reason=choice.reason, message=choice.message, planned=False
            )
        return self._waiting(restore, choice.reason, choice.message)

    def _begin(
        self,
        restore: Restore,
        choice: StoragePlan | LocalPlan,
        *,
        clear_pin: bool = False,
        redirect: Redirect | None = None,
        rate_limited: bool = False,
    ) -> Step | None:
        attempts = self._attempts(restore)
        due = next_attempt_at(
            attempts,
            restore.uid,
            base=self.world.config.backoff_base,
            cap=self.world.config.backoff_max,
        )
        if due is not None and self.world.now < due:
            last = attempts[-1]
            self.said[restore.uid] = self._waiting(
                restore,
                "Retrying",
                f"attempt {last.attempt} failed: {last.failure_message}",
                recheck_at=due,
                redirect=redirect,
            )
            return None
        hold = self.world.hold_for(restore, choice)
        if hold is not None:
            self.said[restore.uid] = (
                Said(succeeded=False, reason=hold.reason, message=hold.message, planned=False)
                if hold.final
                else self._waiting(
                    restore,
                    hold.reason,
                    hold.message,
                    recheck_at=hold.recheck_at,
                    redirect=redirect,
                )
            )
            return None
        self.said[restore.uid] = self._waiting(
            restore, "Planning", choice.origin, redirect=redirect
        )
        local = isinstance(choice, LocalPlan)
        gate = self.world.gate_for(restore)
        snapshot = choice.snapshot
        return BeginAttempt(
            restore=restore,
            attempt=(attempts[-1].attempt if attempts else 0) + 1,
            source=Source.LOCAL if local else Source.STORAGE,
            snapshot=snapshot,
            target_node=choice.node if isinstance(choice, LocalPlan) else None,
            gate=gate,
            clear_pin=clear_pin,
            redirect=redirect if clear_pin else None,
            rate_limited=rate_limited,
            capture_cpu=self.world.capture_for(snapshot) if gate and snapshot else None,
        )

    # --- words

    def _waiting(
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

    def _say_working(
        self,
        restore: Restore,
        execution: Execution,
        pod: PodFacts | None,
        reason: str,
        message: str,
    ) -> None:
        verdict = self._verdict(pod, execution) if pod is not None and pod.bound else None
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

    def _why_local(self, restore: Restore, execution: Execution) -> Redirect | None:
        """Why a local-only attempt was not redirected: judged as if it had not begun.

        With the gate off it is what the gate would do, where that is asked for (section 5).
        """
        if execution.source is not Source.LOCAL:
            return None
        if not execution.gate and not self.world.observes(restore):
            return None
        return redirect_of(self.world, self.view, restore)


def _suspended() -> Said:
    return Said(
        succeeded=None,
        reason="Suspended",
        message="spec.suspend is true: no new attempt begins and the deadline clock stands still",
        placed=(False, "Suspended", "spec.suspend is true"),
    )


def _as_retired(retire: Retire, now: datetime) -> Execution:
    """The execution as it will read once the step is carried out."""
    return replace(
        retire.execution,
        state=ExecutionState.RETIRED,
        outcome=retire.outcome,
        failure_class=retire.failure_class,
        failure_message=retire.failure_message,
        node_name=retire.node_name or retire.execution.node_name,
        retired_at=now,
    )


def _with_failed_row(retire: Retire) -> Retire:
    return replace(retire, row_state=SandboxState.FAILED)
