"""Step 1 of section 14: an execution is active, and the plan comes from its pod. PURE."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from sandbox_restore.model.names import FENCE
from sandbox_restore.model.pod import PodFacts
from sandbox_restore.model.restore import Restore
from sandbox_restore.model.sandbox import (
    Execution,
    ExecutionState,
    Outcome,
    SandboxState,
    Source,
)
from sandbox_restore.restore.liveness import BoundPod, Verdict, node_decides
from sandbox_restore.restore.look import Look, suspended
from sandbox_restore.restore.outcome import (
    final_failure,
    rerender_not_before,
    retire_ended,
    retire_lost,
    retire_unstarted,
)
from sandbox_restore.restore.rerender import RERENDERED
from sandbox_restore.restore.world import (
    CreatePod,
    DeletePod,
    MarkLoaded,
    MarkReleased,
    Release,
    Retire,
    Said,
    Step,
    Ungate,
    is_made_for,
)


class Active:
    """What to do while an execution is active."""

    def __init__(self, look: Look) -> None:
        self.look = look

    def step(self, execution: Execution) -> Step | None:
        restore = next((r for r in self.look.open if r.uid == execution.restore_uid), None)
        pod = self.look.world.pod_of(execution)
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
            self.look.row.state is SandboxState.RUNNING
            and execution.loaded_at is not None
            and (execution.released_at is not None or execution.source is Source.PLATFORM)
            and pod is not None
            and pod.ready
            and not pod.deleting
        )
        for other in self.look.open:
            if other is restore:
                continue
            if up:
                self.look.said[other.uid] = self.look.succeeded(
                    execution, "FollowedPod", "the sandbox is up, restored by another's pod"
                )
            elif other.spec.suspend:
                self.look.said[other.uid] = suspended()
            elif restore is None:
                self.look.said[other.uid] = self._previous(execution, pod, other)
            else:
                self.look.said[other.uid] = self.look.waiting(
                    other,
                    "SandboxBusy",
                    f"restore {restore.name} is restoring this sandbox (pod {execution.pod_name})",
                    redirect=self.look.blocked_by(other, active=execution),
                )

    def _previous(self, execution: Execution, pod: PodFacts | None, restore: Restore) -> Said:
        if execution.source is Source.PLATFORM:
            return self.look.waiting(
                restore,
                "SandboxBusy",
                f"the platform runs this sandbox in pod {execution.pod_name}",
            )
        why = (
            self.look.verdict(pod, execution).why
            if pod is not None
            else f"pod {execution.pod_name}"
        )
        return self.look.waiting(
            restore,
            "PreviousPodMayBeAlive",
            f"an earlier attempt is not proven over: {why}",
            redirect=self.look.blocked_by(restore, active=execution),
        )

    def _without_pod(self, execution: Execution, restore: Restore | None) -> Step | None:
        if execution.loaded_at is not None or execution.source is Source.PLATFORM:
            return self._gone(execution)
        if restore is None:
            return self._retire_unstarted(execution, restore, Outcome.CANCELLED, "cancelled")
        if restore.spec.suspend:
            self.look.said[restore.uid] = suspended()
            return self._retire_unstarted(execution, restore, Outcome.SUPERSEDED, "suspended")
        self.look.say_working(
            restore, execution, None, "CreatingPod", "the restore pod is being made"
        )
        return CreatePod(restore=restore, execution=execution)

    def _gone(self, execution: Execution) -> Step | None:
        """A released pod's object is gone: the report that its kubelet had left in it is proof,
        else its node decides (section 15)."""
        other = self.look.another_alive(None)
        if other is not None:
            self.look.hold_all("PreviousPodMayBeAlive", other)
            return None
        last = self.look.world.ended_pods.get(execution.pod_name or "")
        if last is not None and last.uid == execution.pod_uid:
            return retire_lost(
                execution,
                self.look.row,
                pod_uid=last.uid,
                node=last.node_name,
                why=f"pod {last.name} is gone; its kubelet had reported the runner terminated",
            )
        gone_at = self.look.world.gone_since.get(execution.pod_name or "", self.look.world.now)
        verdict = node_decides(
            BoundPod(
                name=execution.pod_name or "",
                node_name=execution.node_name or "",
                node_uid=execution.node_uid,
                scheduled_at=execution.loaded_at,
                grace_seconds=self.look.world.config.pod_grace_seconds,
                ended_at=gone_at,
            ),
            self.look.world.sightings.get(execution.node_name or ""),
            now=self.look.world.now,
            gone_grace=self.look.world.config.gone_grace,
        )
        if verdict.may_be_alive:
            if verdict.recheck_at is not None:
                self.look.rechecks.append(verdict.recheck_at)
            self.look.hold_all("PreviousPodMayBeAlive", verdict)
            return None
        return retire_lost(
            execution,
            self.look.row,
            pod_uid=execution.pod_uid,
            node=execution.node_name,
            why=f"pod {execution.pod_name} is gone: {verdict.why}",
        )

    def _retire_unstarted(
        self,
        execution: Execution,
        restore: Restore | None,
        outcome: Outcome,
        why: str,
        pod: PodFacts | None = None,
    ) -> Retire | None:
        other = self.look.another_alive(pod)
        if other is not None:
            self.look.hold_all("PreviousPodMayBeAlive", other)
            return None
        return retire_unstarted(
            execution,
            self.look.row,
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
            self.look.say_working(restore, execution, None, "PodNameTaken", why)
        return self._retire_unstarted(execution, restore, Outcome.FAILED, why)

    def _unbound(self, execution: Execution, restore: Restore | None, pod: PodFacts) -> Step | None:
        if pod.deleting:
            return self._deleted_unbound(execution, restore, pod)
        if restore is None:
            return DeletePod(pod=pod, why="its restore is over")
        if restore.spec.suspend:
            self.look.said[restore.uid] = suspended()
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
        self.look.say_working(restore, execution, pod, "PodDeleted", why)
        changed = self.look.world.rerender_for(restore, execution, pod)
        if changed is not None:
            why = f"{RERENDERED}: {changed.why}"
        return self._retire_unstarted(execution, restore, Outcome.SUPERSEDED, why, pod)

    def _rerender(self, execution: Execution, restore: Restore, pod: PodFacts) -> DeletePod | None:
        """Section 8, known limits: takes the pod back when it would be rendered otherwise now."""
        changed = self.look.world.rerender_for(restore, execution, pod)
        if changed is None:
            return None
        rested = rerender_not_before(
            execution,
            self.look.attempts(restore),
            base=self.look.world.config.backoff_base,
            cap=self.look.world.config.backoff_max,
        )
        due = max(changed.due_at, rested)
        if self.look.world.now >= due:
            return DeletePod(pod=pod, why=f"{RERENDERED}: {changed.why}")
        self.look.rechecks.append(due)
        return None

    def _unscheduled(self, execution: Execution, restore: Restore, pod: PodFacts) -> Ungate | None:
        """What an unbound pod waits for; our own gate is taken off."""
        if pod.gates:
            self.look.say_working(restore, execution, pod, "Scheduling", f"pod {pod.name} was made")
            if FENCE in pod.gates:
                return Ungate(pod=pod, execution=execution)
            gates = ", ".join(pod.gates)
            self.look.say_working(
                restore,
                execution,
                pod,
                "SchedulingGated",
                f"pod {pod.name} is held by gate {gates}",
            )
            return None
        reason = "Unschedulable" if pod.unschedulable_message else "Scheduling"
        words = pod.unschedulable_message or f"pod {pod.name} waits for kube-scheduler"
        self.look.say_working(restore, execution, pod, reason, words)
        return None

    def _bound(self, execution: Execution, restore: Restore | None, pod: PodFacts) -> Step | None:
        verdict = self.look.verdict(pod, execution)
        if execution.loaded_at is None and pod.ready:
            # A fact to be recorded before anything is done about it, whatever has become of the
            # restore or the node: a suspend that is reported later names this pod.
            if restore is not None:
                self._say_bound(restore, execution, pod, verdict)
            return MarkLoaded(execution=execution, pod=pod)
        if not verdict.may_be_alive:
            other = self.look.another_alive(pod)
            if other is not None:
                self.look.hold_all("PreviousPodMayBeAlive", other)
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

    def _over(
        self, execution: Execution, restore: Restore | None, pod: PodFacts, verdict: Verdict
    ) -> Step:
        why = f"pod {pod.name} on node {pod.node_name} is over: {verdict.why}"
        retire = retire_ended(
            execution, self.look.row, pod, row_state=SandboxState.RESTORING, why=why
        )
        if execution.loaded_at is not None:
            return retire
        if restore is not None:
            words = retire.failure_message or why
            self.look.say_working(restore, execution, pod, "AttemptFailed", words)
        return retire if self._goes_on(restore, retire) else _with_failed_row(retire)

    def _goes_on(self, restore: Restore | None, retire: Retire) -> bool:
        """Whether another attempt follows: the restore is open and its limits leave one."""
        if restore is None:
            return False
        ended = _as_retired(retire, self.look.world.now)
        attempts = [ended if a.id == ended.id else a for a in self.look.attempts(restore)]
        return final_failure(restore, attempts) is None

    def _say_bound(
        self, restore: Restore, execution: Execution, pod: PodFacts, verdict: Verdict
    ) -> None:
        if pod.terminal:
            self.look.say_working(restore, execution, pod, "PreviousPodMayBeAlive", verdict.why)
            return
        if execution.released_at is not None:
            self.look.said[restore.uid] = self.look.succeeded(
                execution, "SnapshotLoaded", "the snapshot is loaded and the sandbox runs"
            )
            return
        loaded = execution.loaded_at is not None
        self.look.say_working(
            restore,
            execution,
            pod,
            "Releasing" if loaded else "LoadingSnapshot",
            f"pod {pod.name} on node {pod.node_name} "
            + ("has loaded the snapshot" if loaded else "loads the snapshot"),
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
