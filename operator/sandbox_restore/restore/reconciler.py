"""The level-triggered reconciler: reads anew, asks the planner, applies the difference.

One key is one sandbox. Every write to the row is decided again under the row's lock with pods read
from the API server after the lock is held (section 15); every API write is gated, UID-tested or
both, so that a late one does nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

import structlog

from sandbox_restore.errors import (
    ConflictError,
    PermissionDeniedError,
    RejectedError,
    SandboxRestoreError,
    UnavailableError,
)
from sandbox_restore.kube.client import NotFoundError
from sandbox_restore.kube.objects import KubeObjects
from sandbox_restore.model.pod import PodFacts
from sandbox_restore.model.restore import Restore
from sandbox_restore.model.sandbox import (
    LoadResult,
    Outcome,
    SandboxState,
    SandboxView,
)
from sandbox_restore.placement.pod import NodeSelectorConflictError
from sandbox_restore.restore.breaker import Breaker
from sandbox_restore.restore.budget import RedirectBudget
from sandbox_restore.restore.outcome import retire_unstarted
from sandbox_restore.restore.placing import PlacementHeldError, Placer, Placing
from sandbox_restore.restore.planner import plan
from sandbox_restore.restore.reader import WorldReader
from sandbox_restore.restore.reporter import Reporter
from sandbox_restore.restore.rows import RowWriter
from sandbox_restore.restore.state import ClusterState
from sandbox_restore.restore.views import ViewCache
from sandbox_restore.restore.world import (
    CONFIRMED_STEPS,
    ROW_STEPS,
    BeginAttempt,
    CreatePod,
    DeletePod,
    DeleteRestore,
    DropFinalizer,
    MarkLoaded,
    MarkReleased,
    Plan,
    Release,
    Retire,
    Said,
    Step,
    Ungate,
    World,
    is_pod_of,
)
from sandbox_restore.store.locked import LockedSandbox
from sandbox_restore.store.store import Store

STEPS_A_PASS = 12
"""More steps than any path of one attempt has; a pass that needs more comes back later."""

log = structlog.get_logger()


class Reconciler:
    """Carries plans out, one sandbox at a time per key."""

    def __init__(
        self,
        *,
        state: ClusterState,
        store: Store,
        kube: KubeObjects,
        placer: Placer,
        reporter: Reporter,
        views: ViewCache,
        reader: WorldReader,
        budget: RedirectBudget,
        breaker: Breaker,
        clock: Callable[[], datetime],
        requeue: Callable[[str, float], None],
        on_step: Callable[[Step], None] = lambda _step: None,
        on_placed: Callable[[Placing], None] = lambda _placing: None,
    ) -> None:
        self._state = state
        self._store = store
        self._kube = kube
        self._placer = placer
        self._reporter = reporter
        self._views = views
        self._reader = reader
        self._rows = RowWriter(
            state=state,
            kube=kube,
            placer=placer,
            reporter=reporter,
            views=views,
            budget=budget,
            breaker=breaker,
            clock=clock,
        )
        self._clock = clock
        self._requeue = requeue
        self._on_step = on_step
        self._on_placed = on_placed

    async def reconcile(self, sandbox_id: str) -> None:
        """One pass. Raises this project's errors; the queue comes back with backoff."""
        try:
            await self._pass(sandbox_id)
        except UnavailableError as error:
            await self._say_unavailable(sandbox_id, error)
            raise

    async def _pass(self, sandbox_id: str) -> None:
        decided = Plan(step=None, said={})
        placings: dict[str, Placing] = {}
        if self._is_new(sandbox_id):
            await self._first_look(sandbox_id)
        for _ in range(STEPS_A_PASS):
            world = await self._reader.cached(sandbox_id)
            decided = plan(world)
            step = decided.step
            if step is None:
                break
            outcome = await self._carry_out(step, world, placings)
            if outcome is not None:
                decided = outcome
                break
        else:
            self._requeue(sandbox_id, 0.0)
        self._note_what_it_waits_for(sandbox_id, decided)
        await self._report(sandbox_id, self._rows.with_redirects(decided, sandbox_id), placings)

    def _note_what_it_waits_for(self, sandbox_id: str, decided: Plan) -> None:
        """At once after the decision: a node's change from now on must find it."""
        view = self._views.peek(sandbox_id)
        if _waits_for_nodes(decided) or _pod_is_missing(view, self._state):
            self._state.waiting_for_nodes.add(sandbox_id)
        else:
            self._state.waiting_for_nodes.discard(sandbox_id)
        interest = None
        for restore in self._state.restores_of(sandbox_id):
            said = decided.said.get(restore.uid)
            if said is not None and said.reason in WAITS_FOR_PLACEMENT and view is not None:
                interest = self._placer.interest_of(restore, view)
                break
        self._state.interests.put(sandbox_id, interest)

    async def _report(self, sandbox_id: str, decided: Plan, placings: dict[str, Placing]) -> None:
        view = self._views.peek(sandbox_id)
        now = self._clock()
        later = await self._reporter.report(
            self._state.restores_of(sandbox_id), decided.said, view=view, placings=placings, now=now
        )
        times = [t for t in (decided.recheck_at, later) if t is not None]
        if times:
            self._requeue(sandbox_id, max(0.0, (min(times) - now).total_seconds()))

    async def _say_unavailable(self, sandbox_id: str, error: UnavailableError) -> None:
        """The database does not answer: said on each open restore, when the API server does."""
        said = {
            r.uid: Said(succeeded=None, reason="Unavailable", message=str(error))
            for r in self._state.restores_of(sandbox_id)
            if not r.finished and not r.deleting
        }
        try:
            await self._reporter.report(
                self._state.restores_of(sandbox_id),
                said,
                view=None,
                placings={},
                now=self._clock(),
            )
        except SandboxRestoreError:
            log.debug("status_not_written", sandbox=sandbox_id)

    # --- steps

    async def _carry_out(
        self, step: Step, world: World, placings: dict[str, Placing]
    ) -> Plan | None:
        """Does the step. None: look again; a plan: this pass ends with what it says."""
        if isinstance(step, ROW_STEPS):
            return await self._under_lock(step, world)
        if isinstance(step, CONFIRMED_STEPS):
            confirmed = plan(await self._reader.fresh(world))
            if confirmed.step is None or not _same(step, confirmed.step):
                return self._again(world.sandbox_id, confirmed)
            step = confirmed.step
        self._on_step(step)
        try:
            await self._write(step, world, placings)
        except (ConflictError, NotFoundError):
            await self._refresh_pod(step, world)
            return self._again(world.sandbox_id, replace(plan(world), step=None))
        return None

    def _again(self, sandbox_id: str, decided: Plan) -> Plan:
        """What was decided on was stale: end the pass with fresh words and come back at once."""
        if decided.step is not None:
            self._requeue(sandbox_id, 0.02)
        else:
            self._requeue(sandbox_id, 0.2)
        return decided

    async def _refresh_pod(self, step: Step, world: World) -> None:
        pod = getattr(step, "pod", None)
        if isinstance(pod, PodFacts):
            now = await self._kube.pod(pod.namespace, pod.name)
            if now is not None:
                self._state.apply_pod(now)
            else:
                self._state.remove_pod(pod.namespace, pod.name, pod.uid)
        elif isinstance(step, CreatePod) and world.view is not None:
            name = step.execution.pod_name or ""
            taken = await self._kube.pod(world.view.sandbox.namespace, name)
            if taken is not None:
                self._state.apply_pod(taken)

    async def _write(self, step: Step, world: World, placings: dict[str, Placing]) -> None:
        """The API writes."""
        match step:
            case CreatePod():
                await self._create_pod(step, world, placings)
            case Ungate():
                self._state.apply_pod(await self._kube.ungate(step.pod))
                log.info("pod_ungated", **_keys(world, pod=step.pod.name))
            case Release():
                self._state.apply_pod(await self._kube.release(step.pod))
                log.info("pod_released", **_keys(world, pod=step.pod.name))
            case MarkLoaded():
                await self._mark_loaded(step, world)
            case MarkReleased():
                uids = self._reader.uids(world.sandbox_id)
                view = await self._store.mark_released(
                    world.sandbox_id,
                    step.execution.id,
                    pod_uid=step.pod.uid,
                    now=self._clock(),
                    restore_uids=uids,
                )
                if view is not None:
                    self._views.put(view, uids)
            case DeletePod():
                await self._delete_pod(step, world)
            case DropFinalizer():
                after = await self._kube.drop_finalizer(step.pod)
                if after.deleting and not after.finalizers:
                    self._state.remove_pod(after.namespace, after.name, after.uid)
                else:
                    self._state.apply_pod(after)
                log.info("pod_unfenced", **_keys(world, pod=step.pod.name, why=step.why))
            case DeleteRestore():
                await self._kube.delete_restore(step.restore)
                gone = step.restore
                self._state.remove_restore(gone.namespace, gone.name, gone.uid)
                log.info("restore_expired", **_keys(world, restore=step.restore.name))
            case _:
                raise AssertionError(f"no API write for {type(step).__name__}")

    async def _mark_loaded(self, step: MarkLoaded, world: World) -> None:
        """A pod that was Ready has loaded: a fact, so that one statement under the row's lock
        records it, if the execution is still active."""
        assert step.pod.node_name is not None
        uids = self._reader.uids(world.sandbox_id)
        node_uid, node_cpu = self._rows.identity(await self._kube.node(step.pod.node_name))
        view = await self._store.mark_loaded(
            world.sandbox_id,
            step.execution.id,
            pod_uid=step.pod.uid,
            node_name=step.pod.node_name,
            node_uid=node_uid,
            node_cpu=node_cpu,
            now=self._clock(),
            restore_uids=uids,
        )
        if view is not None:
            self._views.put(view, uids)
        self._rows.observe(
            world.view,
            step.execution,
            LoadResult.LOADED,
            node_name=step.pod.node_name,
            node_uid=node_uid,
            node_cpu=node_cpu,
        )
        log.info("snapshot_loaded", **_keys(world, pod=step.pod.name, node=step.pod.node_name))

    async def _delete_pod(self, step: DeletePod, world: World) -> None:
        await self._kube.delete_pod(step.pod)
        now = await self._kube.pod(step.pod.namespace, step.pod.name)
        if now is None:
            self._state.remove_pod(step.pod.namespace, step.pod.name, step.pod.uid)
        else:
            self._state.apply_pod(now)
        log.info("pod_deleted", **_keys(world, pod=step.pod.name, why=step.why))

    async def _create_pod(
        self, step: CreatePod, world: World, placings: dict[str, Placing]
    ) -> None:
        """POST of the one pod, gated and fenced; a pod of that name that names this execution is
        taken as ours. A refusal for good fails the attempt with the API server's reason."""
        assert world.view is not None
        try:
            placing = self._placer.place(
                step.restore, step.execution, world.view, now=self._clock()
            )
            pod = await self._kube.create_pod(placing.pod)
        except (RejectedError, NodeSelectorConflictError) as error:
            await self._give_up(
                step, world, Outcome.FAILED, f"the restore pod was refused: {error}"
            )
            return
        except PlacementHeldError as error:
            # No loader is left since the attempt began: it ends uncounted, and the next one waits.
            await self._give_up(step, world, Outcome.SUPERSEDED, str(error))
            return
        except PermissionDeniedError as error:
            await self._say_not_permitted(step.restore, error)
            raise
        placings[step.restore.uid] = placing
        self._on_placed(placing)
        self._state.apply_pod(pod)
        log.info(
            "pod_created",
            **_keys(world, pod=pod.name, restore=step.restore.name),
            **placing.log_fields,
        )

    async def _say_not_permitted(self, restore: Restore, error: PermissionDeniedError) -> None:
        said = Said(succeeded=None, reason="NotPermitted", message=str(error))
        await self._reporter.report(
            [restore], {restore.uid: said}, view=None, placings={}, now=self._clock()
        )

    async def _give_up(self, step: CreatePod, world: World, outcome: Outcome, why: str) -> None:
        """This pod will never be: the attempt ends, once it is certain that nothing was made."""
        async with self._store.locked(
            world.sandbox_id, restore_uids=self._reader.uids(world.sandbox_id)
        ) as locked:
            view = locked.view
            live = await self._reader.live(world.sandbox_id, view)
            if view is None or view.active is None or view.active.id != step.execution.id:
                return
            if live.pod_of(view.active) is not None:
                return
            retire = retire_unstarted(
                view.active,
                view.sandbox,
                outcome=outcome,
                row_state=SandboxState.RESTORING,
                why=why,
            )
            await self._rows.retire(locked, retire, live)
        self._keep(locked)

    # --- steps under the row's lock

    def _is_new(self, sandbox_id: str) -> bool:
        """A restore that nothing was said of yet, of a sandbox that was not read yet."""
        restores = self._state.restores_of(sandbox_id)
        return self._views.peek(sandbox_id) is None and any(
            not r.status.conditions and not r.deleting for r in restores
        )

    async def _first_look(self, sandbox_id: str) -> None:
        """A new restore nearly always begins an attempt: its row is locked at the first look, so
        that it is read once and not twice."""
        uids = self._reader.uids(sandbox_id)
        async with self._store.locked(sandbox_id, restore_uids=uids) as locked:
            if locked.view is None:
                return
            live = await self._reader.live(sandbox_id, locked.view)
            step = plan(live).step
            if isinstance(step, BeginAttempt):
                await self._reader.reread(step.restore)
                live = replace(live, restores=tuple(self._state.restores_of(sandbox_id)))
                step = plan(live).step
            if isinstance(step, BeginAttempt):
                self._on_step(step)
                await self._rows.write(locked, step, live)
        self._keep(locked, uids)

    async def _under_lock(self, step: Step, world: World) -> Plan | None:
        uids = self._reader.uids(world.sandbox_id)
        async with self._store.locked(world.sandbox_id, restore_uids=uids) as locked:
            if isinstance(step, BeginAttempt):
                await self._reader.reread(step.restore)
            live = await self._reader.live(world.sandbox_id, locked.view)
            again = plan(live)
            if not _same(step, again.step):
                if locked.view is not None:
                    self._views.put(locked.view, uids)
                return self._again(world.sandbox_id, again)
            assert again.step is not None
            self._on_step(again.step)
            before = locked.view
            await self._rows.write(locked, again.step, live)
            changed = locked.view != before
        self._keep(locked, uids)
        if changed:
            return None
        # The database saw nothing to do (its clock, a rule of its own): not at once again.
        self._requeue(world.sandbox_id, 1.0)
        return replace(again, step=None)

    def _keep(self, locked: LockedSandbox, uids: tuple[str, ...] | None = None) -> None:
        """After the commit: what the write returned is the row as it is."""
        if locked.view is not None:
            self._views.put(locked.view, uids or self._reader.uids(locked.sandbox_id))


def _same(step: Step, other: Step | None) -> bool:
    """Whether a fresh look orders the same thing to the same object."""
    if type(step) is not type(other):
        return False
    match step, other:
        case (BeginAttempt(), BeginAttempt()):
            return step.restore.uid == other.restore.uid
        case (Retire(), Retire()):
            return step.execution.id == other.execution.id
        case (
            (DeletePod() | DropFinalizer() | Ungate()),
            (DeletePod() | DropFinalizer() | Ungate()),
        ):
            return step.pod.uid == other.pod.uid
        case _:
            return True


WAITS_FOR_NODES = frozenset({"PreviousPodMayBeAlive"})
"""Reasons that any change of a node may end."""
WAITS_FOR_PLACEMENT = frozenset(
    {
        "PlacementHeld",
        "CaptureCpuUnknown",
        "CircuitOpen",
        "ColdCache",
        "PinnedNodeAbsent",
        "Scheduling",
        "SchedulingGated",
        "Stranded",
        "Unschedulable",
    }
)
"""Reasons that a node's change may end or, of a pod that waits, one after which it would be
rendered otherwise: only the changes that can alter the decision."""


def _waits_for_nodes(decided: Plan) -> bool:
    return any(said.reason in WAITS_FOR_NODES for said in decided.said.values())


def _pod_is_missing(view: SandboxView | None, state: ClusterState) -> bool:
    """The active execution's recorded pod is gone: its node is what news can come from."""
    active = view.active if view is not None else None
    if active is None or active.pod_uid is None:
        return False
    return not any(is_pod_of(p, active) for p in state.pods_of(active.sandbox_id))


def _keys(world: World, **more: object) -> dict[str, object]:
    return {"sandbox": world.sandbox_id, **more}
