"""Steps 2 to 4 of section 14: no execution is active. PURE."""

from __future__ import annotations

from msgspec import UNSET

from sandbox_restore.model.restore import HostCpuPolicy, Restore
from sandbox_restore.model.sandbox import (
    SandboxState,
    Source,
)
from sandbox_restore.restore.choose import LocalPlan, NoPlan, StoragePlan, choose
from sandbox_restore.restore.look import Look, suspended
from sandbox_restore.restore.outcome import (
    next_attempt_at,
)
from sandbox_restore.restore.redirect import Redirect
from sandbox_restore.restore.rescue import (
    ended_stranded,
    evacuation_blocker,
    marker_to_give_up,
    redirect_of,
    refused_here,
)
from sandbox_restore.restore.world import (
    BeginAttempt,
    FailRow,
    GiveUpMarker,
    Said,
    Step,
)


class Idle:
    """What to do while no execution is active."""

    def __init__(self, look: Look) -> None:
        self.look = look

    def step(self) -> Step | None:
        newest = self.look.view.newest
        waiting = [r for r in self.look.open if not r.spec.suspend]
        for restore in self.look.open:
            if restore.spec.suspend:
                self.look.said[restore.uid] = suspended()
        if self.look.row.state is SandboxState.RESTORING and (
            newest is None or newest.restore_uid not in {r.uid for r in self.look.open}
        ):
            return FailRow()
        if not waiting:
            return None
        acting, others = waiting[0], waiting[1:]
        for other in others:
            self.look.said[other.uid] = self.look.waiting(
                other, "SandboxBusy", f"restore {acting.name} of this sandbox comes first"
            )
        return self._next_attempt(acting)

    def _next_attempt(self, restore: Restore) -> Step | None:
        if self.look.row.state is SandboxState.RUNNING:
            self.look.said[restore.uid] = self.look.waiting(
                restore,
                "SandboxRunning",
                "the platform says that the sandbox runs, in no execution known here",
            )
            return None
        for pod in self.look.world.pods:
            verdict = self.look.verdict(pod)
            if verdict.may_be_alive:
                self.look.said[restore.uid] = self.look.waiting(
                    restore,
                    "PreviousPodMayBeAlive",
                    verdict.why,
                    recheck_at=verdict.recheck_at,
                    redirect=self.look.blocked_by(restore, alive=verdict),
                )
                return None
        choice = choose(
            self.look.view,
            restore,
            storage_uri_prefixes=self.look.world.config.storage_uri_prefixes,
        )
        if isinstance(choice, NoPlan):
            self.look.said[restore.uid] = self._no_plan(restore, choice)
            return None
        if isinstance(choice, LocalPlan):
            return self._pinned(restore, choice)
        return self._begin(restore, choice)

    def _pinned(self, restore: Restore, local: LocalPlan) -> Step | None:
        """Step 2 of section 14, which section 10 may turn into a storage plan."""
        if restore.spec.evacuation is not UNSET:
            return self._evacuate(restore, local)
        if not self.look.world.gate_for(restore):
            return self._local(restore, local, None)
        evidence = marker_to_give_up(self.look.world, self.look.view)
        if evidence is not None:
            return GiveUpMarker(restore=restore, evidence=evidence)
        found = redirect_of(self.look.world, self.look.view, restore)
        assert found is not None
        if found.allowed:
            return self._redirect(restore, found)
        if found.pinned.recheck_at is not None:
            # A pod for an absent node could not be bound either, and would hold a redirect up.
            self.look.said[restore.uid] = self.look.waiting(
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
        attempts = self.look.attempts(restore)
        # After a storage attempt of its own it is the next try of the same load, which backoffLimit
        # bounds: only what would have stayed local is a redirect that the fleet has to bear.
        is_retry = bool(attempts) and attempts[-1].source is Source.STORAGE
        allowed_at = None if is_retry else self.look.world.redirect_wait()
        if allowed_at is not None:
            self.look.said[restore.uid] = self.look.waiting(
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

    def _evacuate(self, restore: Restore, local: LocalPlan) -> Step | None:
        """Section 14: a storage plan confined to the target cohort, when it can lose nothing."""
        found = redirect_of(self.look.world, self.look.view, restore, by_cpu=False)
        assert found is not None
        blocker = evacuation_blocker(found)
        if blocker is None and found.snapshot is not None:
            origin = f"evacuated from node {local.node}"
            choice = StoragePlan(snapshot=found.snapshot, origin=origin)
            return self._begin(restore, choice, clear_pin=True)
        assert blocker is not None
        self.look.said[restore.uid] = Said(
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
            self.look.said[restore.uid] = self.look.waiting(
                restore, "Stranded", found.words, redirect=found
            )
            return None
        refused = refused_here(self.look.view, restore)
        if refused is None:
            return self._begin(restore, local, redirect=found)
        self.look.said[restore.uid] = Said(
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
        return self.look.waiting(restore, choice.reason, choice.message)

    def _begin(
        self,
        restore: Restore,
        choice: StoragePlan | LocalPlan,
        *,
        clear_pin: bool = False,
        redirect: Redirect | None = None,
        rate_limited: bool = False,
    ) -> Step | None:
        attempts = self.look.attempts(restore)
        due = next_attempt_at(
            attempts,
            restore.uid,
            base=self.look.world.config.backoff_base,
            cap=self.look.world.config.backoff_max,
        )
        if due is not None and self.look.world.now < due:
            last = attempts[-1]
            self.look.said[restore.uid] = self.look.waiting(
                restore,
                "Retrying",
                f"attempt {last.attempt} failed: {last.failure_message}",
                recheck_at=due,
                redirect=redirect,
            )
            return None
        hold = self.look.world.hold_for(restore, choice)
        if hold is not None:
            self.look.said[restore.uid] = (
                Said(succeeded=False, reason=hold.reason, message=hold.message, planned=False)
                if hold.final
                else self.look.waiting(
                    restore,
                    hold.reason,
                    hold.message,
                    recheck_at=hold.recheck_at,
                    redirect=redirect,
                )
            )
            return None
        self.look.said[restore.uid] = self.look.waiting(
            restore, "Planning", choice.origin, redirect=redirect
        )
        local = isinstance(choice, LocalPlan)
        gate = self.look.world.gate_for(restore)
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
            capture_cpu=self.look.world.capture_for(snapshot) if gate and snapshot else None,
        )
