"""The fleet of demo and cluster tests."""

from __future__ import annotations

from collections import Counter

from tests.support.fleet import matrix_fleet, real_cpu, spread_captures
from tests.support.simnode import load_matrix
from tests.support.simnode.plan import HOST_CPU_LABEL


def test_each_cpu_has_its_nodes_and_each_node_a_cpu() -> None:
    fleet = matrix_fleet(nodes_per_cpu=3, unlabelled=2, cordoned=4, tainted=2)
    labels = Counter(
        spec.labels[HOST_CPU_LABEL]
        for spec in fleet
        if HOST_CPU_LABEL in spec.labels and not spec.unschedulable and not spec.taints
    )
    assert labels == dict.fromkeys(load_matrix().cpus, 3)
    assert len({spec.name for spec in fleet}) == len(fleet) == 12 + 2 + 4 + 2
    assert all(real_cpu(spec) in load_matrix().cpus for spec in fleet)
    assert sum(spec.unschedulable for spec in fleet) == 4
    assert sum(bool(spec.taints) for spec in fleet) == 2
    assert sum(HOST_CPU_LABEL not in spec.labels for spec in fleet) == 2


def test_captures_are_spread_evenly_and_follow_the_seed() -> None:
    captures = spread_captures(200, seed=7)
    assert Counter(captures) == dict.fromkeys(load_matrix().cpus, 50)
    assert captures == spread_captures(200, seed=7) != spread_captures(200, seed=8)
