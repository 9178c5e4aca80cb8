"""What the metrics show of what they are told."""

from __future__ import annotations

from prometheus_client import Gauge

from sandbox_restore.fleet.compatibility import Compatibility
from sandbox_restore.metrics import Metrics
from sandbox_restore.model.sandbox import StoredLineage

ICE, CASCADE, MILAN = "intel-6-106-6", "intel-6-85-7", "amd-25-1-1"


def shown(gauge: Gauge) -> dict[tuple[str, ...], float]:
    """The values by their labels' values."""
    [family] = gauge.collect()
    return {tuple(sample.labels.values()): sample.value for sample in family.samples}


def lineage(cpu: str | None, number: int, *ancestors: str) -> StoredLineage:
    return StoredLineage(
        capture_cpu=cpu, ancestor_cpus=ancestors, snapshots=number, sandboxes=number
    )


def has_loader(cpu: str, ancestors: tuple[str, ...]) -> bool:
    pairs, _ = Compatibility.parse(f"{CASCADE}=>{ICE}")
    return bool(pairs.loaders(cpu, ancestors, (ICE,)))


def test_a_snapshot_has_a_loader_for_its_cpu_and_for_each_ancestor_or_none() -> None:
    metrics = Metrics()
    metrics.set_rows(
        {"suspended": 3},
        [
            lineage(ICE, 5),
            lineage(CASCADE, 4),
            lineage(ICE, 2, CASCADE),
            lineage(ICE, 7, MILAN),
            lineage(MILAN, 1),
        ],
        has_loader=has_loader,
    )
    assert shown(metrics.snapshots) == {
        (ICE, "true"): 7,
        (ICE, "false"): 7,
        (CASCADE, "true"): 4,
        (MILAN, "false"): 1,
    }


def test_a_capture_cpu_that_names_none_counts_as_not_recorded() -> None:
    metrics = Metrics()
    for _ in range(2):
        metrics.set_rows(
            {},
            [lineage(None, 1), lineage("Intel 6", 2), lineage("unknown", 4)],
            has_loader=has_loader,
        )
    assert shown(metrics.snapshots) == {("", "unknown"): 7}


def test_what_a_sweep_did_not_find_is_gone() -> None:
    metrics = Metrics()
    metrics.set_stranded({(ICE, "PinnedNodeGone", ""): 2})
    metrics.set_refusals({(ICE, MILAN): 3})
    metrics.set_restores({("waiting", "ColdCache"): 1})
    assert shown(metrics.stranded) == {(ICE, "PinnedNodeGone", ""): 2}
    assert shown(metrics.refusals) == {(ICE, MILAN): 3}
    metrics.set_stranded({})
    metrics.set_refusals({})
    metrics.set_restores({("succeeded", "SnapshotLoaded"): 1})
    assert (shown(metrics.stranded), shown(metrics.refusals)) == ({}, {})
    assert shown(metrics.restores) == {("succeeded", "SnapshotLoaded"): 1}


def test_a_restore_that_ended_is_counted_and_timed() -> None:
    metrics = Metrics()
    metrics.restore_ended(succeeded=True, reason="SnapshotLoaded", seconds=3.0)
    metrics.restore_ended(succeeded=False, reason="Stranded", seconds=-1.0)
    value = metrics.registry.get_sample_value
    name = "sandbox_restore_restore_seconds_bucket"
    assert value(name, {"result": "succeeded", "le": "2.0"}) == 0
    assert value(name, {"result": "succeeded", "le": "5.0"}) == 1
    # The clocks of two machines may differ: a time below nothing is none.
    assert value("sandbox_restore_restore_seconds_sum", {"result": "failed"}) == 0
    finished = "sandbox_restore_restores_finished_total"
    assert value(finished, {"result": "failed", "reason": "Stranded"}) == 1
