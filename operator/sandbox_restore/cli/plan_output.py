"""Decides for `plan` and shows the decision: in words and a table, or as one document."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
from rich.table import Table

from sandbox_restore.cli.output import as_yaml, say, say_table
from sandbox_restore.errors import ConfigurationError
from sandbox_restore.fleet.compatibility import Compatibility
from sandbox_restore.fleet.index import FleetIndex
from sandbox_restore.model.node import NodeFacts
from sandbox_restore.model.restore import Restore
from sandbox_restore.model.sandbox import Sandbox, Snapshot, Source
from sandbox_restore.placement.decision import (
    NodeRef,
    PlacementDecision,
    PlacementRequest,
    decide,
)
from sandbox_restore.placement.explain import (
    Explanation,
    blocked_loaders,
    explanation,
    message,
    named,
    placement_status,
)
from sandbox_restore.placement.gate import Gate
from sandbox_restore.placement.pod import (
    PodIdentity,
    RunnerPlan,
    apply_decision,
    base_pod,
    demand_of,
    pod_name,
)
from sandbox_restore.placement.template import PodTemplate
from sandbox_restore.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A decision with all that is shown of it."""

    restore: Restore
    decision: PlacementDecision
    explained: Explanation
    would: Explanation | None
    """Observed only: of what the gate would have decided."""
    pod: Mapping[str, Any] | None
    """None while the placement is held."""

    @property
    def placement(self) -> dict[str, Any]:
        """What the rendered pod says of the node it wants."""
        spec = {} if self.pod is None else self.pod["spec"]
        return {part: spec[part] for part in ("nodeSelector", "affinity") if spec.get(part)}


def decided(
    settings: Settings,
    *,
    restore: Restore,
    snapshot: Snapshot,
    nodes: Sequence[NodeFacts],
    template: PodTemplate,
    compatibility: Compatibility,
    node_group: str | None,
    refused: Sequence[str],
    gate: Gate,
) -> Planned:
    """The decision as the operator would take it with this fleet and an empty history."""
    now = datetime.now(UTC)
    fleet = FleetIndex(cpu_label=settings.host_cpu_label)
    fleet.replace(nodes, now=now)
    row = Sandbox(
        id=restore.spec.sandbox_id,
        namespace=restore.namespace or "default",
        node_group=node_group,
    )
    request = PlacementRequest(
        sandbox_id=row.id,
        snapshot=snapshot,
        demand=demand_of(template, sandbox=row, spec=restore.spec),
        gate=gate,
        policy=restore.spec.host_cpu_policy,
        hard_pin=settings.source_node_hard_pin,
        fallbacks=settings.shortlist_fallbacks,
        refused=_refused(refused, fleet),
    )
    decision = decide(request, fleet, compatibility, now=now)
    pod = None
    if not decision.held:
        base = base_pod(
            template,
            identity=_identity(restore, row),
            plan=RunnerPlan(
                snapshot_id=snapshot.id, source=Source.STORAGE, storage_uri=snapshot.storage_uri
            ),
            sandbox=row,
            spec=restore.spec,
        )
        pod = apply_decision(base, decision)
    return Planned(
        restore=restore,
        decision=decision,
        explained=explanation(decision, request, fleet),
        would=None if decision.would is None else explanation(decision.would, request, fleet),
        pod=pod,
    )


def _refused(refused: Sequence[str], fleet: FleetIndex) -> tuple[NodeRef, ...]:
    problems, answer = [], []
    for name in refused:
        node = fleet.get(name)
        if node is None:
            problems.append(f"--refused: {name!r} is none of the nodes given")
        else:
            answer.append(NodeRef(name, node.uid))
    if problems:
        raise ConfigurationError(problems)
    return tuple(answer)


def _identity(restore: Restore, row: Sandbox) -> PodIdentity:
    return PodIdentity(
        name=pod_name(restore.name or "restore", restore.uid, 1),
        namespace=row.namespace,
        sandbox_id=row.id,
        restore_name=restore.name,
        restore_uid=restore.uid,
        attempt=1,
        execution_id="planned",
    )


# --- one document


def document_of(planned: Planned) -> dict[str, Any]:
    """The whole answer with stable keys; `placement` is what `status.placement` would show."""
    decision, explained = planned.decision, planned.explained
    return {
        "restore": _name(planned.restore),
        "placement": msgspec.to_builtins(placement_status(decision, explained)),
        "observed": None
        if planned.would is None or decision.would is None
        else msgspec.to_builtins(placement_status(decision.would, planned.would)),
        "filters": [
            {
                "filter": str(gap.filter),
                "removed": gap.nodes,
                "loaders": gap.loaders,
                "loaderNames": list(gap.loader_names),
            }
            for gap in explained.removed
        ],
        "knownLoaders": list(decision.known_loaders),
        "unlabelled": explained.unlabelled,
        "shortlist": list(decision.rendered.shortlist),
        "nodeExclusions": list(decision.rendered.node_exclusions),
        "pod": None if planned.pod is None else planned.placement,
    }


# --- text


def say_text(planned: Planned) -> None:
    """The decision in words, the counts as a table, the rendered affinity as YAML."""
    decision, explained = planned.decision, planned.explained
    say(f"{_name(planned.restore)}: {decision.outcome} ({decision.reason})")
    say("")
    say(message(decision, explained))
    if decision.would is not None and planned.would is not None:
        say(message(decision.would, planned.would))
    for line in blocked_loaders(explained):
        say(f"- {line}")
    say("")
    _say_counts(planned)
    if decision.evidence is not None:
        say("")
        _say_cpus(decision)
    if decision.rendered.shortlist:
        say(f"shortlist  {', '.join(decision.rendered.shortlist)}")
    if decision.rendered.node_exclusions:
        say(f"not on     {', '.join(decision.rendered.node_exclusions)}")
    say("")
    if planned.pod is None:
        say("No pod is made while the placement is held.")
    elif planned.placement:
        say("The pod:")
        sys.stdout.write(as_yaml(planned.placement))
    else:
        say("The pod requires nothing of its node.")


def _say_counts(planned: Planned) -> None:
    """How many nodes each rule left over, in the order in which the rules are applied."""
    explained = planned.explained
    by_cpu = planned.decision.evidence is not None
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("filter", no_wrap=True)
    table.add_column("removed", justify="right")
    table.add_column("left", justify="right")
    if by_cpu:
        table.add_column("of them with a loader", overflow="fold")
    left = explained.nodes
    table.add_row("(all nodes)", "", str(left), *([""] if by_cpu else []))
    for gap in explained.removed:
        left -= gap.nodes
        cells = [str(gap.filter), str(gap.nodes) if gap.nodes else "-", str(left)]
        if by_cpu:
            names = f": {named(gap.loader_names, gap.loaders)}" if gap.loaders else ""
            cells.append(f"{gap.loaders}{names}" if gap.loaders else "-")
        table.add_row(*cells)
    say_table(table)


def _say_cpus(decision: PlacementDecision) -> None:
    """Loaders and excluded CPUs of the fleet, and loaders that the fleet has not."""
    say(f"loaders    {', '.join(decision.loaders) or 'none in the fleet'}")
    absent = [cpu for cpu in decision.known_loaders if cpu not in decision.loaders]
    if absent:
        say(f"absent     {', '.join(absent)}")
    say(f"excluded   {', '.join(decision.excluded) or 'none'}")


def _name(restore: Restore) -> str:
    return f"{restore.namespace or 'default'}/{restore.name or '(no name)'}"
