"""From a plan to the pod that carries it out: gate, decision, rendering, and words.

Pure but for the last held decision of each restore, which is kept for its status.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sandbox_restore.errors import SandboxRestoreError
from sandbox_restore.fleet.compatibility import Compatibility
from sandbox_restore.fleet.evidence import capture_evidence
from sandbox_restore.fleet.index import FleetIndex
from sandbox_restore.model.pod import PodFacts
from sandbox_restore.model.restore import PlacementStatus, Restore
from sandbox_restore.model.sandbox import (
    Execution,
    LoadObservation,
    SandboxView,
    Snapshot,
    Source,
)
from sandbox_restore.placement.decision import (
    NodeRef,
    PlacementDecision,
    PlacementRequest,
    Reason,
    decide,
    loader_nodes,
)
from sandbox_restore.placement.explain import explanation, log_fields, message, placement_status
from sandbox_restore.placement.gate import Gate, GateSettings, gate_for
from sandbox_restore.placement.pod import (
    NodeSelectorConflictError,
    PodIdentity,
    RunnerPlan,
    apply_decision,
    base_pod,
    demand_of,
    local_only_pod,
    pod_name,
)
from sandbox_restore.placement.reachable import reachable
from sandbox_restore.placement.template import PodTemplate
from sandbox_restore.restore.breaker import Breaker
from sandbox_restore.restore.choose import LocalPlan, StoragePlan
from sandbox_restore.restore.failure import FailureClass
from sandbox_restore.restore.interest import Interest
from sandbox_restore.restore.pinned import Loaders, fresh_refusals
from sandbox_restore.restore.rerender import Rerender, Rerendering
from sandbox_restore.restore.world import Hold

KEPT = 10_000
"""Held decisions that are remembered for the status."""

LOCAL_MESSAGE = (
    "the pod can run only on node {node}, which holds the sandbox's state: "
    "there is nothing to decide"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placing:
    """One pod, with what was decided on it."""

    pod: dict[str, Any]
    placement: PlacementStatus
    observed: PlacementStatus | None = None
    """What the gate would have decided (section 5, observe)."""
    would_change: bool = False
    """Observed only: with the gate on, the pod would wait or look different."""
    log_fields: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacingConfig:
    """The settings that placement uses."""

    gate: GateSettings
    hard_pin: bool = False
    fallbacks: int = 3
    observation_ttl: timedelta = timedelta(hours=24)
    """How long a refusal keeps a node out of the sandbox's attempts (section 11)."""
    loosen_after: timedelta = timedelta(seconds=60)
    """How long a waiting pod must steadily have been stricter than it would be rendered now."""


class PlacementHeldError(SandboxRestoreError):
    """No pod may be made now: `Required`, and no loader is left (section 8)."""


class Placer:
    """Decides and renders, from the fleet as it is now."""

    def __init__(
        self,
        *,
        fleet: FleetIndex,
        template: PodTemplate,
        compatibility: Compatibility,
        config: PlacingConfig,
        breaker: Breaker,
        may_wait_for_cache: Callable[[], bool] = lambda: False,
    ) -> None:
        self._fleet = fleet
        self._template = template
        self._compatibility = compatibility
        self._config = config
        self._breaker = breaker
        self._may_wait = may_wait_for_cache
        self._held: OrderedDict[str, PlacementStatus] = OrderedDict()
        self._rerendering = Rerendering(fleet, template.spec, loosen_after=config.loosen_after)

    # --- before an attempt

    def gate_for(self, restore: Restore) -> bool:
        """Section 5: the gate of an attempt that begins now; kept in its execution."""
        return self._gate(restore) is Gate.ON

    def observes(self, restore: Restore) -> bool:
        """Section 5: what the gate would do is told, and nothing of it is done."""
        return self._gate(restore) is Gate.OBSERVE

    def _gate(self, restore: Restore) -> Gate:
        return gate_for(
            self._config.gate,
            namespace=restore.namespace,
            sandbox_id=restore.spec.sandbox_id,
        )

    def hold_for(
        self,
        restore: Restore,
        choice: StoragePlan | LocalPlan,
        view: SandboxView | None,
        now: datetime,
    ) -> Hold | None:
        """Whether the attempt must wait (section 8), or can never have a pod (section 7)."""
        self._held.pop(restore.uid, None)
        if view is None:
            return None
        try:
            demand_of(self._template, sandbox=view.sandbox, spec=restore.spec)
        except NodeSelectorConflictError as error:
            return Hold(reason=error.reason, message=str(error), final=True)
        if isinstance(choice, LocalPlan):
            return None
        request = self._request(restore, choice.snapshot, view, self._gate(restore), now)
        decision = decide(request, self._fleet, self._compatibility, now=now)
        if not decision.held:
            return self._circuit(decision, now)
        explained = explanation(decision, request, self._fleet)
        self._remember(restore.uid, placement_status(decision, explained))
        return Hold(reason=str(decision.reason), message=message(decision, explained))

    def _circuit(self, decision: PlacementDecision, now: datetime) -> Hold | None:
        """Section 11: no attempt is burned on loaders that all refuse; `Ignore` overrides it."""
        if decision.gate is not Gate.ON or decision.reason is Reason.POLICY_IGNORE:
            return None
        found = self._breaker.verdict(decision.capture_cpu, decision.loaders, now=now)
        if found is None:
            return None
        return Hold(reason="CircuitOpen", message=found.words, recheck_at=found.until)

    def _remember(self, uid: str, status: PlacementStatus) -> None:
        self._held[uid] = status
        while len(self._held) > KEPT:
            self._held.popitem(last=False)

    def held(self, restore: Restore) -> PlacementStatus | None:
        """The decision that holds the restore back now, if one does."""
        return self._held.get(restore.uid)

    def capture_for(self, snapshot: Snapshot) -> str | None:
        """Section 6: the snapshot's capture CPU, as far as is known."""
        if not self._fleet.warm:
            return None
        return capture_evidence(snapshot, fleet=self._fleet).cpu

    def loaders_for(
        self, restore: Restore, snapshot: Snapshot | None, view: SandboxView | None, now: datetime
    ) -> Loaders:
        """Section 10, condition 1: the nodes that can load a snapshot, for this restore."""
        if not self._fleet.warm or view is None:
            return Loaders(warm=False)
        if snapshot is None:
            return Loaders(warm=True)
        try:
            request = self._request(restore, snapshot, view, Gate.ON, now)
        except NodeSelectorConflictError:
            # Nothing is reachable: `hold_for` says so and ends the restore.
            return Loaders(warm=True)
        evidence = capture_evidence(snapshot, fleet=self._fleet)
        nodes = reachable(request.demand, self._fleet)
        if evidence.cpu is None:
            return Loaders(warm=True, reachable=len(nodes))
        known = self._compatibility.known_loaders(evidence.cpu, evidence.ancestors)
        able = loader_nodes(nodes, self._fleet, loaders=known, refused=request.refused)
        return Loaders(
            warm=True,
            capture_cpu=evidence.cpu,
            known=known,
            able=len(able),
            reachable=len(nodes),
        )

    def interest_of(self, restore: Restore, view: SandboxView) -> Interest | None:
        """The nodes that can change what was decided on a restore that waits; None: no node can.

        The pod of an attempt is only looked at again with the gate on, and from storage.
        """
        active = view.active
        if active is not None and not (active.gate and active.source is Source.STORAGE):
            return None
        try:
            demand = demand_of(self._template, sandbox=view.sandbox, spec=restore.spec)
        except NodeSelectorConflictError:
            return None
        named = {
            view.sandbox.pinned_node,
            *(s.uploaded_by for s in view.snapshots),
            *(a.node_name for a in view.attempts),
            *(o.node_name for o in view.refusals),
        }
        return Interest(
            demand=demand,
            named=frozenset(name for name in named if name is not None),
            services=self._config.hard_pin,
        )

    # --- the pod of an attempt

    def pod_name(self, restore: Restore, attempt: int) -> str:
        """Section 15: a function of restore and attempt."""
        return pod_name(restore.name, restore.uid, attempt)

    def place(
        self, restore: Restore, execution: Execution, view: SandboxView, *, now: datetime
    ) -> Placing:
        """Decides on, and renders, the pod of an active execution.

        Raises NodeSelectorConflictError or PlacementHeldError when the row, the template or the
        fleet have changed since it began.
        """
        identity = PodIdentity(
            name=execution.pod_name or self.pod_name(restore, execution.attempt),
            namespace=restore.namespace,
            sandbox_id=restore.spec.sandbox_id,
            restore_name=restore.name,
            restore_uid=restore.uid,
            attempt=execution.attempt,
            execution_id=execution.id,
        )
        snapshot = _snapshot(execution, view)
        row, spec = view.sandbox, restore.spec
        if execution.source is Source.LOCAL:
            plan = RunnerPlan(snapshot_id=execution.snapshot_id, source=Source.LOCAL)
            node = execution.target_node or ""
            pod = local_only_pod(
                self._template, identity=identity, plan=plan, sandbox=row, spec=spec, node=node
            )
            status = self._local_status(execution, snapshot)
            return Placing(pod=pod, placement=status, log_fields={"node": node})
        plan = RunnerPlan(
            snapshot_id=execution.snapshot_id,
            source=Source.STORAGE,
            storage_uri=snapshot.storage_uri if snapshot is not None else None,
        )
        pod = base_pod(self._template, identity=identity, plan=plan, sandbox=row, spec=spec)
        return self._decided(pod, restore, execution, view, snapshot, now)

    def _decided(
        self,
        pod: dict[str, Any],
        restore: Restore,
        execution: Execution,
        view: SandboxView,
        snapshot: Snapshot | None,
        now: datetime,
    ) -> Placing:
        decision, request = self._decide(restore, execution, view, snapshot, now)
        explained = explanation(decision, request, self._fleet)
        if decision.held:
            raise PlacementHeldError(message(decision, explained))
        observed = None
        if decision.would is not None:
            would = decision.would
            observed = placement_status(would, explanation(would, request, self._fleet))
        return Placing(
            pod=apply_decision(pod, decision),
            placement=placement_status(decision, explained),
            observed=observed,
            would_change=decision.would_change,
            log_fields=log_fields(decision, explained),
        )

    def _decide(
        self,
        restore: Restore,
        execution: Execution,
        view: SandboxView,
        snapshot: Snapshot | None,
        now: datetime,
    ) -> tuple[PlacementDecision, PlacementRequest]:
        gate = Gate.ON if execution.gate else Gate.OFF
        if gate is Gate.OFF and self._config.gate.observe:
            gate = Gate.OBSERVE
        known = snapshot or Snapshot(id=execution.snapshot_id or "", sandbox_id=view.sandbox.id)
        request = self._request(restore, known, view, gate, now)
        return decide(request, self._fleet, self._compatibility, now=now), request

    def rerender_for(
        self,
        restore: Restore,
        execution: Execution,
        pod: PodFacts,
        view: SandboxView | None,
        now: datetime,
    ) -> Rerender | None:
        """Section 8, known limits: whether an unbound pod is to be rendered again, and when.

        Behind the gate that its execution keeps. While kube-scheduler makes room for the pod on a
        node, it is left alone.
        """
        by_cpu = execution.gate and execution.source is Source.STORAGE
        if view is None or not by_cpu or pod.nominated_node is not None:
            return None
        try:
            decision, request = self._decide(
                restore, execution, view, _snapshot(execution, view), now
            )
        except NodeSelectorConflictError:
            return None
        return self._rerendering.judge(pod, decision, request.demand, now=now)

    def describe(
        self, restore: Restore, execution: Execution, view: SandboxView, *, now: datetime
    ) -> PlacementStatus:
        """The decision on a pod that was made by a process that died before it could tell.

        Taken anew from the fleet as it is now, and says so.
        """
        if execution.source is Source.LOCAL:
            return self._local_status(execution, _snapshot(execution, view))
        decision, request = self._decide(restore, execution, view, _snapshot(execution, view), now)
        return placement_status(decision, explanation(decision, request, self._fleet))

    def _local_status(self, execution: Execution, snapshot: Snapshot | None) -> PlacementStatus:
        """Section 14: a local-only pod has no choice, so nothing is decided on its placement.

        With the gate on it is said what CPU the snapshot was captured on, for people.
        """
        evidence = None
        if execution.gate and snapshot is not None:
            evidence = capture_evidence(snapshot, fleet=self._fleet)
        return PlacementStatus(
            capture_cpu=(evidence.cpu or "") if evidence is not None else "",
            evidence=str(evidence.kind) if evidence is not None else "",
            decision="Unconstrained",
            reason="LocalOnly",
            gate=execution.gate,
            message=LOCAL_MESSAGE.format(node=execution.target_node),
        )

    def _request(
        self,
        restore: Restore,
        snapshot: Snapshot,
        view: SandboxView,
        gate: Gate,
        now: datetime,
    ) -> PlacementRequest:
        failed = [a for a in reversed(view.attempts) if a.snapshot_id == snapshot.id]
        refusals = fresh_refusals(view, since=now - self._config.observation_ttl)
        return PlacementRequest(
            sandbox_id=view.sandbox.id,
            snapshot=snapshot,
            demand=demand_of(self._template, sandbox=view.sandbox, spec=restore.spec),
            gate=gate,
            policy=restore.spec.host_cpu_policy,
            hard_pin=self._config.hard_pin,
            fallbacks=self._config.fallbacks,
            may_wait_for_cache=self._may_wait(),
            refused=_refusers(refusals, snapshot),
            avoid=_nodes(failed, FailureClass.HOST, FailureClass.UNREADABLE),
        )


def _snapshot(execution: Execution, view: SandboxView) -> Snapshot | None:
    return next((s for s in view.snapshots if s.id == execution.snapshot_id), None)


def _refusers(refusals: Iterable[LoadObservation], snapshot: Snapshot) -> tuple[NodeRef, ...]:
    """Section 11: the nodes that refused this snapshot, or another of this sandbox captured on the
    same CPU, newest first."""
    found = {
        NodeRef(o.node_name, o.node_uid): None
        for o in refusals
        if o.node_uid is not None
        and (
            o.snapshot_id == snapshot.id
            or (o.capture_cpu is not None and o.capture_cpu == snapshot.host_cpu)
        )
    }
    return tuple(found)


def _nodes(attempts: Iterable[Execution], *classes: FailureClass) -> tuple[NodeRef, ...]:
    """Section 11: the nodes on which attempts at this snapshot failed so, newest first."""
    wanted = {c.value for c in classes}
    return tuple(
        NodeRef(a.node_name, a.node_uid)
        for a in attempts
        if a.failure_class in wanted and a.node_name is not None and a.node_uid is not None
    )
