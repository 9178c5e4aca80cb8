"""`python -m bench decision`: the same answers by three means, under the keys that are promised."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import pytest

from bench import decision
from bench._beside import plugin_times, scan_times
from bench._fleet import NOW, make_node, requests
from sandbox_restore.fleet.compatibility import Compatibility
from sandbox_restore.fleet.index import FleetIndex
from sandbox_restore.placement import reachable
from tests.support.oracle import Oracle

NODES, CPUS = 300, 6


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    with Oracle() as asked:
        yield asked


@pytest.mark.timeout(1800)
def test_one_object_a_fleet_size_with_the_promised_keys(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decision, "SIZES", (50, 100, 200))
    assert decision.main(["--nodes", "200", "--cpus", "6", "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["nodes"] for one in found] == [50, 100, 200]
    for one in found:
        assert one["decision_p99_us"] >= one["decision_p50_us"] > 0
        assert min(one["explanation_p99_us"], one["scan_p50_us"], one["plugins_p50_us"]) > 0
        assert one["bytes_per_node"] > 0


@pytest.mark.timeout(1800)
def test_a_figure_for_another_answer_is_refused(
    oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(1)
    index = FleetIndex()
    index.replace((make_node(n, cpus=CPUS, dice=dice) for n in range(NODES)), now=NOW)
    asked = list(requests(5, cpus=CPUS, nodes=NODES, hard_pin=False))
    assert len(scan_times(asked, index, Compatibility())) == 5
    assert len(plugin_times(asked, index, Compatibility(), oracle=oracle)) == 5
    monkeypatch.setattr(reachable, "_select", lambda _pod, _fleet, _nodes: None)
    with pytest.raises(SystemExit, match="the scan found"):
        scan_times(asked, index, Compatibility())
    with pytest.raises(SystemExit, match="other nodes"):
        plugin_times(asked, index, Compatibility(), oracle=oracle)
