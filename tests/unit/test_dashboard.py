"""The Grafana dashboard: metrics and labels there are, panels that explain themselves."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from tests.support.promql import problems, selectors, there_are

FILE = Path(__file__).parents[2] / "charts/sandbox-restore/files/dashboard.json"
BOARD: dict[str, Any] = json.loads(FILE.read_text())
ROWS = [panel for panel in BOARD["panels"] if panel["type"] == "row"]
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
QUERIES = [(panel["title"], query) for panel in PANELS for query in panel["targets"]]
UNSHOWN = {
    "sandbox_restore_steps_total",  # for debugging
    "sandbox_restore_index_warm",  # /readyz
    "sandbox_restore_node_history_read",  # alert
    "sandbox_restore_node_agent_label_ok",  # `state` says it with the reason
    "sandbox_restore_node_agent_cpu_info",  # `fleet_nodes` says it
    "sandbox_restore_node_agent_looks_total",  # for debugging
    "sandbox_restore_node_agent_build_info",  # one version for both
}
"""Metrics without a panel, and where they are seen."""


def plain(expression: str) -> str:
    """The query with Grafana's variables filled in."""
    for variable, value in (("$__rate_interval", "5m"), ("$namespace", ".*")):
        expression = expression.replace(variable, value)
    assert "$" not in expression
    return expression


@pytest.mark.parametrize(("title", "query"), QUERIES, ids=[title for title, _ in QUERIES])
def test_a_query_names_metrics_labels_and_values_that_there_are(
    title: str, query: dict[str, Any]
) -> None:
    used = re.findall(r"\{\{(\w+)\}\}", query["legendFormat"])
    assert problems(plain(query["expr"]), used) == []


@pytest.mark.parametrize(("title", "query"), QUERIES, ids=[title for title, _ in QUERIES])
def test_a_query_is_of_the_chosen_namespace_and_data_source(
    title: str, query: dict[str, Any]
) -> None:
    assert all(
        ("namespace", "=~", "$namespace") in one.matchers for one in selectors(query["expr"])
    )
    assert query["datasource"]["uid"] == "${datasource}"
    assert query["legendFormat"]


def test_the_rows_are_those_that_one_looks_for() -> None:
    assert [row["title"] for row in ROWS] == [
        "Restores",
        "Placement, and what the gate would change",
        "Rescue",
        "Fleet",
        "Operator health",
        "Node agent",
    ]


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_has_a_title_a_description_and_a_unit(panel: dict[str, Any]) -> None:
    assert panel["title"]
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["targets"]


def test_times_are_shown_as_times() -> None:
    def is_time(name: str) -> bool:
        return name.endswith(("_seconds", "_seconds_bucket"))

    for panel in PANELS:
        names = {one.name for query in panel["targets"] for one in selectors(query["expr"])}
        if any(map(is_time, names)):
            assert panel["fieldConfig"]["defaults"]["unit"] == "s", panel["title"]


def test_panels_have_their_own_place_and_number() -> None:
    numbers = [panel["id"] for panel in BOARD["panels"]]
    assert len(numbers) == len(set(numbers))
    for one, other in combinations([panel["gridPos"] for panel in BOARD["panels"]], 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in BOARD["panels"])


def test_every_metric_is_on_the_board_or_seen_elsewhere() -> None:
    asked = {one.name for _, query in QUERIES for one in selectors(query["expr"])}
    shown = {re.sub(r"_(bucket|sum|count)$", "", name) for name in asked}
    assert set(there_are()) - shown == UNSHOWN
