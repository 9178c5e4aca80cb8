"""The alerts: metrics and labels that there are, all that a person needs, a page each."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.markdown import DOCS, sections, tables
from tests.support.promql import problems

ROOT = Path(__file__).parents[2]
FILE = ROOT / "charts/sandbox-restore/files/alerts.yaml"
ALERTS: dict[str, dict[str, Any]] = {
    rule["alert"]: rule
    for group in yaml.safe_load(FILE.read_text())["groups"]
    for rule in group["rules"]
}
RUNBOOKS = DOCS / "runbooks"


def texts(rule: dict[str, Any]) -> str:
    return " ".join(rule["annotations"].values())


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_names_metrics_labels_and_values_that_there_are(name: str) -> None:
    rule = ALERTS[name]
    assert problems(rule["expr"], re.findall(r"\$labels\.(\w+)", texts(rule))) == []


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ("sandbox_restore_strandet > 0", "no metric sandbox_restore_strandet"),
        ("sandbox_restore_restore_seconds > 0", "no metric sandbox_restore_restore_seconds"),
        ('sandbox_restore_stranded{cpu="a"}', "sandbox_restore_stranded has no label cpu"),
        ("sum by (cpu) (sandbox_restore_stranded)", "no label cpu"),
        (
            'sandbox_restore_gate_mode{mode="full"}',
            "sandbox_restore_gate_mode: mode is never full",
        ),
        ("up == 0", "no metric of ours"),
    ],
)
def test_what_is_not_there_is_told(expression: str, told: str) -> None:
    assert problems(expression) == [told]


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_says_how_bad_what_and_where_to_read_on(name: str) -> None:
    rule = ALERTS[name]
    assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"] == {"severity": rule["labels"]["severity"]}
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    assert rule["annotations"]["runbook_url"] == f"docs/runbooks/{name}.md"
    # Templates stand in the summary only, which the unit tests of tests/alerts spell out.
    assert "{{" not in rule["annotations"]["description"]


@pytest.mark.parametrize("name", ALERTS)
def test_a_runbook_says_what_it_means_what_it_costs_how_to_look_and_what_to_do(name: str) -> None:
    page = (ROOT / ALERTS[name]["annotations"]["runbook_url"]).read_text()
    assert page.startswith(f"# {name}\n")
    found = sections(page, 2)
    assert list(found) == ["Meaning", "Impact", "Diagnosis", "Mitigation"]
    assert "```sh\n" in found["Diagnosis"]
    assert [title for title, text in found.items() if not text.strip()] == []


def test_every_runbook_has_its_alert_and_the_list_has_all_with_their_severity() -> None:
    pages = {path.stem for path in RUNBOOKS.glob("*.md")} - {"README"}
    assert pages == set(ALERTS)
    [(_, rows)] = tables((RUNBOOKS / "README.md").read_text())
    shown = {re.sub(r"\[(\w+)\]\(\1\.md\)", r"\1", row[0]): row[1] for row in rows}
    assert shown == {name: rule["labels"]["severity"] for name, rule in ALERTS.items()}


def test_the_links_of_the_runbooks_lead_somewhere() -> None:
    for page in RUNBOOKS.glob("*.md"):
        for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            assert (RUNBOOKS / link).exists(), f"{page.name}: {link}"


def test_nothing_in_the_file_is_a_template_of_the_charts() -> None:
    found = re.findall(r"\{\{(.*?)\}\}", FILE.read_text())
    assert [
        text for text in found if not re.match(r" \$(labels\.\w+|value)( \| \w+)? ", text)
    ] == []
