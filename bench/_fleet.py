"""The fleet and the restores that `python -m bench decision` measures with, made from a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sandbox_restore.model import names
from sandbox_restore.model.node import NodeFacts, Taint
from sandbox_restore.model.sandbox import Snapshot
from sandbox_restore.placement.decision import PlacementRequest
from sandbox_restore.placement.gate import Gate
from sandbox_restore.placement.match import PodRequirements
from sandbox_restore.placement.reachable import Demand

NOW: Final = datetime(2026, 3, 1, tzinfo=UTC)
LABELS: Final = 28
"""Labels of a node besides ours and its host name; cloud nodes carry 20 to 40."""
GROUPS: Final = 8

TEMPLATE: Final[dict[str, Any]] = {
    "spec": {
        "nodeSelector": {"kubernetes.io/arch": "amd64"},
        "tolerations": [{"key": "sandboxes", "operator": "Exists", "effect": "NoSchedule"}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {
                            "matchExpressions": [
                                {"key": "pool", "operator": "In", "values": ["p0", "p1", "p2"]},
                                {"key": "disk", "operator": "NotIn", "values": ["hdd"]},
                            ]
                        }
                    ]
                }
            }
        },
    }
}

REQUIREMENTS: Final = PodRequirements.of(TEMPLATE)
"""Parsed once, as the operator parses its one template."""


def cpu_name(number: int) -> str:
    return f"intel-6-{number + 1}-{number % 7}"


def node_name(number: int) -> str:
    return f"ip-10-{number >> 16 & 255}-{number >> 8 & 255}-{number & 255}.region.compute.internal"


def make_node(number: int, *, cpus: int, dice: random.Random) -> NodeFacts:
    """A node as a cloud makes one: many labels, few taints, some cordoned or being deleted."""
    name = node_name(number)
    labels = {f"cloud.example.com/label-{i:02}": f"value-{number % (3 + i)}" for i in range(LABELS)}
    labels |= {
        "kubernetes.io/hostname": name,
        "kubernetes.io/arch": "amd64" if number % 10 else "arm64",
        "pool": f"p{number % 5}",
        "disk": "hdd" if number % 11 == 0 else "nvme",
        names.NODE_GROUP_LABEL: f"group-{number % GROUPS}",
    }
    if number % 29:
        labels[names.HOST_CPU_LABEL] = cpu_name(dice.randrange(cpus))
    if number % 97 == 0:
        labels[names.PLACEMENT_BLOCK_LABEL] = "draining"
    taints: tuple[Taint, ...] = (Taint("sandboxes", "", "NoSchedule"),)
    if number % 53 == 0:
        taints = (*taints, Taint("gpu", f"model-{number % 9}", "NoSchedule"))
    if number % 499 == 0:
        taints = (*taints, Taint("to-be-deleted", str(number), "NoSchedule"))
    return NodeFacts(
        name=name,
        uid=f"{dice.getrandbits(128):032x}",
        created=NOW - timedelta(days=1, seconds=number),
        labels=dict(sorted(labels.items())),  # as the API server sends them
        taints=taints,
        unschedulable=number % 41 == 0,
        deleting=number % 1009 == 0,
        ready=True,
        ready_since=NOW - timedelta(seconds=number),
        services_ready=number % 13 != 0,
        network_slots=number % 64,
        resource_version=number + 1,
    )


def fresh(facts: NodeFacts) -> NodeFacts:
    """The same node as another event would bring it: equal, and no object the same."""
    return replace(
        facts,
        name="".join(facts.name),
        uid=facts.uid[:16] + facts.uid[16:],
        labels={key[:3] + key[3:]: value[:1] + value[1:] for key, value in facts.labels.items()},
        taints=tuple(replace(taint) for taint in facts.taints),
        created=facts.created + timedelta(0),
        resource_version=facts.resource_version + 10**7,
    )


def changed(event: NodeFacts, number: int) -> NodeFacts:
    """One of the things that happen to nodes: cordon, taint, another CPU, services, a new label."""
    match number % 5:
        case 0:
            return replace(event, unschedulable=not event.unschedulable)
        case 1:
            return replace(event, taints=(Taint("maintenance", "", "NoSchedule"),))
        case 2:
            labels = {**event.labels, names.HOST_CPU_LABEL: cpu_name(number % 40)}
            return replace(event, labels=labels)
        case 3:
            return replace(event, services_ready=not event.services_ready)
    return replace(event, labels={**event.labels, "cloud.example.com/new": str(number % 3)})


def requests(count: int, *, cpus: int, nodes: int, hard_pin: bool) -> Iterator[PlacementRequest]:
    dice = random.Random(count)
    for number in range(count):
        selector = {"kubernetes.io/arch": "amd64"}
        if number % 3 == 0:
            selector["cloud.example.com/label-20"] = f"value-{number % 23}"
        yield PlacementRequest(
            sandbox_id=f"sandbox-{number}",
            snapshot=Snapshot(
                id=f"snapshot-{number}",
                sandbox_id=f"sandbox-{number}",
                host_cpu=cpu_name(dice.randrange(cpus)) if number % 4 else None,
                captured_at=NOW,
                uploaded_by=node_name(dice.randrange(nodes)),
            ),
            demand=Demand(
                requirements=REQUIREMENTS.with_selector(selector),
                node_group=f"group-{number % GROUPS}" if number % 2 else None,
            ),
            gate=Gate.ON,
            hard_pin=hard_pin,
        )
