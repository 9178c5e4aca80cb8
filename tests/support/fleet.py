"""The fleet and the sandboxes of demo and cluster tests: four CPU models, made from a seed.

Nodes carry the host-CPU label that a node agent would write, and an annotation with the CPU that
they really have, which only the simulated nodes read: also an unlabelled node has a CPU.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import cycle, islice
from typing import Any

import asyncpg

from tests.support.simnode.captures import Capture
from tests.support.simnode.controls import REAL_CPU_ANNOTATION
from tests.support.simnode.matrix import Matrix, load_matrix
from tests.support.simnode.plan import HOST_CPU_LABEL
from tests.support.testbed.nodes import NodeSpec, Taint

TEST_TAINT = Taint("example.com/reserved", value="tests", effect="NoSchedule")
"""Taint of the fleet's tainted nodes; restore pods do not tolerate it."""

UNLABELLED_CPUS = ("intel-6-79-1", "intel-6-106-6")
"""What the unlabelled nodes really have, in turn: the two CPUs that refuse most."""


def matrix_fleet(
    *,
    nodes_per_cpu: int = 1,
    unlabelled: int = 2,
    cordoned: int = 0,
    tainted: int = 0,
    matrix: Matrix | None = None,
    unlabelled_cpus: Sequence[str] = UNLABELLED_CPUS,
    allocatable: Mapping[str, str | None] | None = None,
) -> list[NodeSpec]:
    """Return the nodes of a fleet with all CPUs of the matrix.

    `nodes_per_cpu` labelled ones that any pod may use; beside them `cordoned` and `tainted` ones,
    labelled too and spread over the CPUs, and `unlabelled` ones. `allocatable` as in NodeSpec.
    """
    facts = matrix or load_matrix()
    specs = [
        *(
            _node(f"{_short(facts, cpu)}-{number}", cpu=cpu)
            for cpu in facts.cpus
            for number in range(1, nodes_per_cpu + 1)
        ),
        *(
            _node(f"cordoned-{number}", cpu=cpu, unschedulable=True)
            for number, cpu in _numbered(facts.cpus, cordoned)
        ),
        *(
            _node(f"tainted-{number}", cpu=cpu, taints=(TEST_TAINT,))
            for number, cpu in _numbered(facts.cpus, tainted)
        ),
        *(
            NodeSpec(f"unlabelled-{number}", annotations={REAL_CPU_ANNOTATION: cpu})
            for number, cpu in _numbered(unlabelled_cpus, unlabelled)
        ),
    ]
    return [replace(spec, allocatable=allocatable or {}) for spec in specs]


def real_cpu(spec: NodeSpec) -> str:
    """Return the CPU that a node really has."""
    return spec.annotations[REAL_CPU_ANNOTATION]


def spread_captures(count: int, *, seed: int, matrix: Matrix | None = None) -> list[str]:
    """Return `count` capture CPUs: each CPU of the matrix equally often, in an order by `seed`."""
    cpus = list(islice(cycle((matrix or load_matrix()).cpus), count))
    random.Random(seed).shuffle(cpus)
    return cpus


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSeed:
    """A suspended sandbox with one full snapshot in storage."""

    id: str
    namespace: str
    snapshot_id: str
    capture_cpu: str
    captured_at: datetime
    storage_uri: str
    uploaded_by: str | None = None

    @property
    def restore_name(self) -> str:
        """Name of the SandboxRestore that `restore_manifest` makes."""
        return f"wake-{self.id}"


def sandbox_seeds(
    count: int,
    *,
    seed: int,
    namespace: str,
    prefix: str = "sb",
    uploaders: Iterable[NodeSpec] = (),
    matrix: Matrix | None = None,
) -> list[SandboxSeed]:
    """Return `count` sandboxes whose capture CPUs follow the seed.

    The same seed under another `prefix` gives other sandboxes with the same CPUs. With `uploaders`
    each snapshot was uploaded by one of these nodes that has its CPU.
    """
    of_cpu: dict[str, list[str]] = {}
    for node in uploaders:
        of_cpu.setdefault(real_cpu(node), []).append(node.name)
    day_ago = datetime.now(UTC).replace(microsecond=0) - timedelta(days=1)
    return [
        SandboxSeed(
            id=f"{prefix}-{number:03}",
            namespace=namespace,
            snapshot_id=f"{prefix}-{number:03}-full-1",
            capture_cpu=cpu,
            captured_at=day_ago + timedelta(seconds=number),
            storage_uri=f"s3://snapshots/{prefix}-{number:03}/full-1",
            uploaded_by=of_cpu[cpu][number % len(of_cpu[cpu])] if cpu in of_cpu else None,
        )
        for number, cpu in enumerate(spread_captures(count, seed=seed, matrix=matrix), start=1)
    ]


async def create_sandboxes(dsn: str, seeds: Sequence[SandboxSeed]) -> None:
    """Report the sandboxes and their snapshots as the platform does, by its SQL functions."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.executemany(
            "SELECT sandbox_restore.sandbox_created(sandbox_id => $1, namespace => $2)",
            [(seed.id, seed.namespace) for seed in seeds],
        )
        await connection.executemany(
            "SELECT sandbox_restore.snapshot_started(sandbox_id => $1, snapshot_id => $2,"
            " captured_at => $3, uploaded_by => $4, host_cpu => $5)",
            [
                (seed.id, seed.snapshot_id, seed.captured_at, seed.uploaded_by, seed.capture_cpu)
                for seed in seeds
            ],
        )
        await connection.executemany(
            "SELECT sandbox_restore.snapshot_ready(sandbox_id => $1, snapshot_id => $2,"
            " storage_uri => $3)",
            [(seed.id, seed.snapshot_id, seed.storage_uri) for seed in seeds],
        )
    finally:
        await connection.close()


def captures_of(seeds: Iterable[SandboxSeed]) -> dict[str, Capture]:
    """Return what runners read out of the sandboxes' snapshots."""
    return {seed.snapshot_id: Capture(cpu=seed.capture_cpu) for seed in seeds}


def restore_manifest(seed: SandboxSeed, **spec: object) -> dict[str, Any]:
    """Return the SandboxRestore that wakes a sandbox; `spec` adds to its spec."""
    return {
        "apiVersion": "space.pplx.net/v1alpha1",
        "kind": "SandboxRestore",
        "metadata": {"name": seed.restore_name, "namespace": seed.namespace},
        "spec": {"sandboxId": seed.id, **spec},
    }


def as_yaml_stream(manifests: Iterable[dict[str, Any]]) -> str:
    """Return objects as one text for `kubectl apply -f -`; JSON is YAML."""
    return "\n---\n".join(json.dumps(manifest) for manifest in manifests)


def _node(
    name: str, *, cpu: str, unschedulable: bool = False, taints: Sequence[Taint] = ()
) -> NodeSpec:
    return NodeSpec(
        name,
        labels={HOST_CPU_LABEL: cpu},
        annotations={REAL_CPU_ANNOTATION: cpu},
        unschedulable=unschedulable,
        taints=taints,
    )


def _short(matrix: Matrix, cpu: str) -> str:
    """Return a node name's beginning for a CPU, from the host that was measured."""
    return matrix.hosts[cpu].lower()


def _numbered(cpus: Sequence[str], count: int) -> Iterator[tuple[int, str]]:
    return enumerate(islice(cycle(cpus), count), start=1)
