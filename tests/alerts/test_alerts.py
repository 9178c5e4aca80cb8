"""Each alert, run by promtool on series that the real metrics have rendered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.alerts.cases import CASES, Act, Fires, Silent
from tests.alerts.installation import Installation
from tests.support.promtool import Promtool
from tests.support.scrapes import Scrapes
from tests.unit.test_alerts import ALERTS, FILE
from tests.unit.test_dashboard import QUERIES, plain

BEGINS = 10
"""Minute in which the trouble begins."""
GOES_ON = 5
"""Minutes that it goes on once the alert fires."""
CALM = 20
"""Minutes after its end in which the alert must be over."""
LONG = 180


def minutes(duration: str) -> int:
    return int(duration[:-1]) * {"m": 1, "h": 60}[duration[-1]]


def scraped(here: Installation, act: Act, *, begins: int, ends: int, last: int) -> Scrapes:
    scrapes = Scrapes()
    for minute in range(last + 1):
        if begins <= minute < ends:
            act(here, minute - begins)
        elif minute == ends:
            here.healthy()
        scrapes.take(here.targets)
    return scrapes


def unit_test(folder: Path, scrapes: Scrapes, wanted: list[dict[str, Any]]) -> Path:
    file = folder / "test.yaml"
    one = {
        "interval": "1m",
        "input_series": scrapes.input_series(),
        "alert_rule_test": wanted,
    }
    document = {"rule_files": [str(FILE)], "evaluation_interval": "1m", "tests": [one]}
    file.write_text(json.dumps(document))  # which is YAML too, and written faster
    return file


def at(minute: int, alert: str, *firing: dict[str, Any]) -> dict[str, Any]:
    return {"eval_time": f"{minute}m", "alertname": alert, "exp_alerts": list(firing)}


def test_promtool_finds_nothing_wrong_with_the_rules(promtool: Promtool) -> None:
    assert promtool.check_rules(FILE) == ""


def test_promtool_would_find_something(promtool: Promtool, tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text(FILE.read_text().replace("sum by (namespace)", "sum by namespace", 1))
    assert "parse error" in promtool.check_rules(broken)


def test_promtool_reads_every_query_of_the_dashboard(promtool: Promtool, tmp_path: Path) -> None:
    rules = [
        {"record": f"dashboard:query_{number}", "expr": plain(query["expr"])}
        for number, (_, query) in enumerate(QUERIES)
    ]
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert promtool.check_rules(file) == ""


@pytest.mark.parametrize("case", CASES.fires, ids=lambda case: f"{case.alert}: {case.what}")
def test_it_fires_when_it_must_not_before_and_not_after(
    promtool: Promtool, tmp_path: Path, case: Fires
) -> None:
    rule = ALERTS[case.alert]
    waits = minutes(rule["for"])
    fires = BEGINS + waits + case.window + 1
    ends = fires + GOES_ON
    scrapes = scraped(
        Installation(), case.act, begins=BEGINS, ends=ends, last=ends + CALM + case.window
    )
    firing = {
        "exp_labels": {**case.labels, **rule["labels"]},
        "exp_annotations": {**rule["annotations"], "summary": case.summary},
    }
    wanted = [
        at(BEGINS - 1, case.alert),
        at(BEGINS + waits - 1, case.alert),
        at(fires, case.alert, firing),
        at(ends + CALM + case.window, case.alert),
    ]
    assert promtool.test_rules(unit_test(tmp_path, scrapes, wanted)) == ""


@pytest.mark.parametrize("case", CASES.silent, ids=lambda case: f"{case.alert}: {case.what}")
def test_it_is_silent_when_it_must(promtool: Promtool, tmp_path: Path, case: Silent) -> None:
    scrapes = scraped(Installation(), case.act, begins=BEGINS, ends=LONG, last=LONG)
    wanted = [at(minute, case.alert) for minute in range(LONG)]
    assert promtool.test_rules(unit_test(tmp_path, scrapes, wanted)) == ""


def test_no_alert_fires_while_all_is_well(promtool: Promtool, tmp_path: Path) -> None:
    scrapes = scraped(Installation(), lambda _here, _minute: None, begins=0, ends=0, last=LONG)
    wanted = [at(minute, alert) for alert in ALERTS for minute in range(0, LONG, 5)]
    assert promtool.test_rules(unit_test(tmp_path, scrapes, wanted)) == ""


def test_every_alert_is_seen_to_fire_and_to_be_silent() -> None:
    assert {case.alert for case in CASES.fires} == set(ALERTS)
    assert {case.alert for case in CASES.silent} == set(ALERTS)
