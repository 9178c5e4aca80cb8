"""What a successful restore may cost (architecture.md, "Speed that the design must reach")."""

from __future__ import annotations

from bench.cost import run
from tests.support.demo.scene import Scene

RESTORES = 30


async def test_a_successful_restore_costs_at_most_eight_api_writes_and_six_statements(
    scene: Scene, namespace: str
) -> None:
    # Required keeps the unlabelled nodes out, which may refuse: every restore succeeds at once.
    cost = await run(scene, restores=RESTORES, namespace=namespace, hostCpuPolicy="Required")
    assert cost.restores == RESTORES
    # The counts are of real requests: each restore has made and released one pod.
    assert cost.api_writes["create pods"] == RESTORES
    assert cost.statements["begin_attempt"] == RESTORES
    assert cost.api_writes_per_restore <= 8, cost.api_writes
    assert cost.sql_per_restore <= 6, cost.statements
