"""Rendered pods before kube-scheduler: the term keeps out what it should and loses no node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sandbox_restore.fleet.compatibility import Compatibility
from sandbox_restore.fleet.index import FleetIndex
from sandbox_restore.model import names
from sandbox_restore.model.restore import Evacuation, HostCpuPolicy, RestoreSpec
from sandbox_restore.model.sandbox import Sandbox, Snapshot, Source
from sandbox_restore.placement.decision import (
    NodeRef,
    PlacementDecision,
    PlacementRequest,
    decide,
)
from sandbox_restore.placement.gate import Gate
from sandbox_restore.placement.match import PodRequirements
from sandbox_restore.placement.pod import (
    NodeSelectorConflictError,
    PodIdentity,
    RunnerPlan,
    apply_decision,
    base_pod,
    demand_of,
)
from sandbox_restore.placement.reachable import reachable
from sandbox_restore.placement.template import PodTemplate
from tests.differential.compare import NOW, Names
from tests.differential.nasty import BAD_CPUS, COHORTS, CPUS, GROUPS, Json, Nasty

_IDENTITY = PodIdentity(
    name="wake-1",
    namespace="team-a",
    sandbox_id="sb-1",
    restore_name="wake-1",
    restore_uid="uid-1",
    attempt=1,
    execution_id="exec-1",
)
_PLAN = RunnerPlan(snapshot_id="snap-1", source=Source.STORAGE, storage_uri="s3://snapshots/1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """One restore: its base pod, the pod with what was decided, and the decision."""

    base: Json
    pod: Json
    decision: PlacementDecision
    request: PlacementRequest


def restore(nasty: Nasty, index: FleetIndex, node_names: Sequence[str]) -> Restore | None:
    """A restore of a nasty template on this fleet; None when no pod is to be made for it."""
    odd = 0.15 if nasty.chance(0.3) else 0.03
    spec = nasty.pod(node_names, odd=odd)["spec"]
    for part in ("nodeSelector", "affinity"):
        if nasty.chance(0.4):
            spec.pop(part, None)
    spec["containers"] = [{"name": names.RUNNER_CONTAINER, "image": "runner"}]
    template = PodTemplate(
        labels={}, annotations={}, spec=spec, requirements=PodRequirements.of({"spec": spec})
    )
    row = Sandbox(
        id="sb-1",
        namespace="team-a",
        node_group=nasty.one_of(GROUPS) if nasty.chance(0.4) else None,
        node_selector={"size": "10"} if nasty.chance(0.05) else {},
    )
    parts: dict[str, Any] = {}
    if nasty.chance(0.3):
        parts["evacuation"] = Evacuation(cohort=nasty.one_of(COHORTS))
    asked = RestoreSpec(sandbox_id="sb-1", **parts)
    try:
        demand = demand_of(template, sandbox=row, spec=asked)
    except NodeSelectorConflictError:
        return None
    source = nasty.one_of(node_names)
    request = PlacementRequest(
        sandbox_id=f"sb-{nasty.random.randint(0, 99)}",
        snapshot=Snapshot(
            id="snap-1",
            sandbox_id="sb-1",
            captured_at=NOW,
            uploaded_by=source,
            host_cpu=nasty.one_of(CPUS, BAD_CPUS),
            ancestor_cpus=(nasty.one_of(CPUS),) if nasty.chance(0.1) else (),
        ),
        demand=demand,
        gate=Gate.ON if nasty.chance(0.85) else Gate.OFF,
        policy=nasty.random.choice((HostCpuPolicy.AUTO, HostCpuPolicy.AUTO, *HostCpuPolicy)),
        hard_pin=nasty.chance(0.3),
        refused=_some_nodes(nasty, index, node_names),
        avoid=_some_nodes(nasty, index, node_names),
    )
    pairs = f"{CPUS[0]}=>{CPUS[1]}" if nasty.chance(0.3) else ""
    compatibility, _ = Compatibility.parse(pairs)
    decision = decide(request, index, compatibility, now=NOW)
    if decision.held:
        return None
    base = base_pod(template, identity=_IDENTITY, plan=_PLAN, sandbox=row, spec=asked)
    pod = apply_decision(base, decision)
    return Restore(base=base, pod=pod, decision=decision, request=request)


def _some_nodes(nasty: Nasty, index: FleetIndex, node_names: Sequence[str]) -> tuple[NodeRef, ...]:
    if nasty.chance(0.8):
        return ()
    found = (index.get(nasty.one_of(node_names)) for _ in range(nasty.random.randint(1, 2)))
    return tuple({NodeRef(node.name, node.uid) for node in found if node is not None})


def faults(made: Restore, index: FleetIndex, *, base: Names, passing: Names) -> list[str]:
    """What is wrong with what the plugins let pass: of the base pod, and of the rendered one."""
    return [*_base_faults(made, index, base), *_rendered_faults(made, index, base, passing)]


def _base_faults(made: Restore, index: FleetIndex, base: Names) -> list[str]:
    """Section 7: kube-scheduler itself keeps the base pod to group, cohort and block, and it
    passes the very nodes that we call reachable, those being deleted aside."""
    demand, answer = made.request.demand, []
    for node in index:
        if node.name not in base:
            continue
        if demand.node_group not in (None, node.labels.get(names.NODE_GROUP_LABEL)):
            answer.append(f"base pod: {node.name} is outside node group {demand.node_group}")
        if demand.cohort not in (None, node.labels.get(names.COHORT_LABEL)):
            answer.append(f"base pod: {node.name} is outside cohort {demand.cohort}")
        if names.PLACEMENT_BLOCK_LABEL in node.labels:
            answer.append(f"base pod: {node.name} is under a placement block")
    ours = frozenset(index.names(reachable(demand, index)))
    theirs = frozenset(name for name in base if not _record(index, name).deleting)
    if ours != theirs:
        answer.append(f"base pod: reachable {_listed(ours)}, the plugins pass {_listed(theirs)}")
    return answer


def _rendered_faults(made: Restore, index: FleetIndex, base: Names, passing: Names) -> list[str]:
    """Sections 8, 9 and 11: exactly the nodes of the base pod that may take the restore."""
    decision = made.decision
    rendered = decision.rendered
    may = set()
    for name in base - set(rendered.node_exclusions):
        cpu = _record(index, name).labels.get(index.cpu_label)
        if decision.term is not None:
            if decision.term.operator == "NotIn" and cpu in decision.excluded:
                continue
            if decision.term.operator == "In" and cpu not in decision.known_loaders:
                continue
        may.add(name)
    if rendered.shortlist:
        may &= set(rendered.shortlist)
    answer = []
    if lost := may - passing:
        answer.append(f"rendered pod: loses {_listed(lost)}, which may take the restore")
    if gained := passing - may:
        answer.append(f"rendered pod: passes {_listed(gained)}, which may not take it")
    if missing := set(rendered.shortlist) - passing:
        answer.append(f"rendered pod: does not pass {_listed(missing)} of its own shortlist")
    return answer


def _record(index: FleetIndex, name: str) -> Any:
    record = index.get(name)
    if record is None:
        raise LookupError(name)
    return record


def _listed(found: set[str] | frozenset[str]) -> str:
    return ", ".join(sorted(found)) or "nothing"
