"""Metrics and log lines of a real operator, as docs/metrics.md and docs/logs.md say."""

from __future__ import annotations

import json

from prometheus_client.parser import text_string_to_metric_families

from sandbox_restore.metrics import Metrics
from tests.cluster.test_cancel import settings
from tests.support.demo.scene import Scene
from tests.support.fleet import sandbox_seeds
from tests.support.waiting import until
from tests.unit.test_logs_docs import DECISION, DECISION_KEYS, SCOPE, events

ON_EVERY_LINE = {"timestamp", "level", "event", "logger", *SCOPE}


class Scraped:
    """One scrape of an operator."""

    def __init__(self, text: str) -> None:
        self.families = list(text_string_to_metric_families(text))

    def total(self, name: str, **labels: str) -> float:
        """Sum of the series of that name that have these labels."""
        return sum(
            sample.value
            for family in self.families
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )


async def test_a_run_in_observe_mode_is_told_by_the_metrics_and_the_logs(
    scene: Scene, namespace: str
) -> None:
    seeds = sandbox_seeds(3, seed=11, namespace=namespace, prefix=f"{namespace}-sb")
    await scene.add_sandboxes(seeds)
    observing = {
        **settings(scene),
        "host_cpu_placement_enabled": "false",
        "host_cpu_placement_observe": "true",
    }
    async with scene.operator(**observing) as process:
        await scene.apply(seeds)
        await scene.finished(seeds)

        async def counted() -> bool:
            # Rows are counted by the sweep, which comes once a second here.
            scraped = Scraped(await process.text("/metrics"))
            return scraped.total("sandbox_restore_sandboxes") >= len(seeds)

        await until(counted, deadline_s=30, what="the rows are counted")
        scraped = Scraped(await process.text("/metrics"))
        lines = [json.loads(line) for line in process.log().splitlines()]

    total = scraped.total
    assert total("sandbox_restore_gate_mode", mode="observe") == 1
    assert total("sandbox_restore_gate_mode") == 1
    assert total("sandbox_restore_rollout_percent") == 0
    assert total("sandbox_restore_leading") == 1
    assert total("sandbox_restore_database_up") == total("sandbox_restore_api_server_up") == 1
    # Restores that other tests have left behind are counted as well.
    finished = total("sandbox_restore_restores_finished_total")
    assert total("sandbox_restore_restore_seconds_count") == finished >= len(seeds)
    ended = sum(total("sandbox_restore_restores", phase=p) for p in ("succeeded", "failed"))
    assert ended >= len(seeds)
    begun = total("sandbox_restore_attempts_begun_total")
    assert begun == total("sandbox_restore_steps_total", step="BeginAttempt") >= len(seeds)
    assert total("sandbox_restore_attempts_begun_total", gate="on") == 0
    decisions = "sandbox_restore_placement_decisions_total"
    assert begun >= total(decisions, gate="off") >= len(seeds)
    assert total(decisions, gate="off") >= total(decisions, gate="observed") >= len(seeds)
    would = total("sandbox_restore_placement_would_change_total", change="constrain")
    assert 0 < would <= total(decisions, gate="observed", decision="Constrained")

    described = {one.name for one in Metrics().described}
    shown = {f.name + ("_total" if f.type == "counter" else "") for f in scraped.families}
    assert {name for name in shown if not name.endswith("_created")} == described

    ours = [line for line in lines if line["logger"].startswith("sandbox_restore")]
    known = events()
    assert {line["event"] for line in ours} <= set(known)
    for line in ours:
        event = known[line["event"]]
        keys = event.keys | (DECISION_KEYS if DECISION in event.keys else set())
        assert set(line) - ON_EVERY_LINE <= keys, line
        assert line["level"] in event.levels
    about = [line for line in ours if line.get("sandbox") in {seed.id for seed in seeds}]
    assert {line["namespace"] for line in about} == {namespace}
    assert {"attempt_begun", "pod_created", "restore_finished"} <= {line["event"] for line in about}
