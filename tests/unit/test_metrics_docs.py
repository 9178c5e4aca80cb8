"""docs/metrics.md against the registries: every metric with its type and labels, and no other."""

from __future__ import annotations

from typing import get_args

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sandbox_restore.agent.metrics import AgentMetrics
from sandbox_restore.agent.state import Reason as AgentReason
from sandbox_restore.fleet.index import CpuCount
from sandbox_restore.metric_set import Described
from sandbox_restore.metrics import GATE_MODES, NODE_STATES, Metrics, gate_mode
from sandbox_restore.model.sandbox import Outcome, SandboxState, Source
from sandbox_restore.placement.decision import Outcome as Decision
from sandbox_restore.placement.decision import Reason as DecisionReason
from sandbox_restore.placement.gate import GateSettings
from sandbox_restore.restore.blocked import Reason as Blocked
from sandbox_restore.restore.failure import FailureClass
from sandbox_restore.restore.news import Change
from sandbox_restore.restore.phase import Phase
from sandbox_restore.restore.redirect import Name
from sandbox_restore.restore.stranded import Why
from sandbox_restore.restore.watches import KINDS
from sandbox_restore.restore.world import Step
from tests.support.markdown import DOCS, sections, tables, ticked

PAGE = (DOCS / "metrics.md").read_text()
OPERATOR, AGENT = sections(PAGE, 2)["Operator"], sections(PAGE, 2)["Node agent"]


def listed(text: str) -> dict[str, list[str]]:
    """The rows of the tables of metrics, by the metric's name."""
    rows = [row for head, rows in tables(text) if head[0] == "metric" for row in rows]
    names = [ticked(row[0])[0] for row in rows]
    assert len(names) == len(set(names))
    return dict(zip(names, rows, strict=True))


def values(section: str, label: str) -> set[str]:
    """What the page says that a label can be."""
    text = sections(PAGE, 3).get(section, AGENT)
    (cell,) = [
        row[1]
        for head, rows in tables(text)
        if head[0] == "label"
        for row in rows
        if row[0] == label
    ]
    return set(ticked(cell))


@pytest.mark.parametrize(
    ("text", "described"),
    [(OPERATOR, Metrics().described), (AGENT, AgentMetrics().described)],
    ids=["operator", "agent"],
)
def test_the_page_lists_every_metric_with_its_type_and_labels_and_no_other(
    text: str, described: list[Described]
) -> None:
    shown = {name: (row[1], ticked(row[2])) for name, row in listed(text).items()}
    assert shown == {one.name: (one.kind, list(one.labels)) for one in described}


@pytest.mark.parametrize("metrics", [Metrics(), AgentMetrics()], ids=["operator", "agent"])
def test_what_is_described_is_what_is_scraped(metrics: Metrics | AgentMetrics) -> None:
    families = text_string_to_metric_families(metrics.text().decode())
    scraped = {f.name + ("_total" if f.type == "counter" else ""): f.type for f in families}
    created = {name for name in scraped if name.endswith("_created")}
    assert {name: kind for name, kind in scraped.items() if name not in created} == {
        one.name: one.kind for one in metrics.described
    }


def test_every_row_says_what_the_metric_means() -> None:
    assert [name for name, row in listed(PAGE).items() if not row[3]] == []


@pytest.mark.parametrize(
    ("section", "label", "there_are"),
    [
        ("Restores", "`phase`", set(Phase)),
        ("Restores", "`source`", set(Source) - {Source.PLATFORM}),
        ("Restores", "`outcome`", set(Outcome)),
        ("Restores", "`class`", set(FailureClass) - {FailureClass.NONE}),
        ("Restores", "`step`", {step.__name__ for step in get_args(Step)}),
        ("Placement", "`decision`", set(Decision)),
        ("Placement", "`change`", set(Change)),
        ("Placement", "`mode`", set(GATE_MODES)),
        ("Rescue", "`reason`", set(Why)),
        ("Rescue", "`condition`", set(Name)),
        (
            "Rescue",
            "`blocked_by`",
            {Blocked.NO_STORAGE_COPY, Blocked.CAPTURE_CPU_UNKNOWN, Blocked.LOCAL_ARTIFACT_MARKER},
        ),
        ("Fleet and database rows", "`state` of `fleet_nodes`", set(NODE_STATES)),
        ("Fleet and database rows", "`state` of `sandboxes`", set(SandboxState)),
        ("Process", "`watch`", set(KINDS)),
        ("Node agent", "`reason`", set(AgentReason)),
    ],
)
def test_the_values_of_a_label_are_those_there_are(
    section: str, label: str, there_are: set[str]
) -> None:
    shown = values(section, label) - {"blocked"}
    assert shown - {"redirected"} == {str(one) for one in there_are} - {"blocked"}


def test_the_reasons_of_decisions_are_those_there_are() -> None:
    shown = values("Placement", "`reason`") - {"redirect"}
    assert shown == {str(reason) for reason in DecisionReason} | {"LocalOnly"}


def test_every_count_of_nodes_is_a_state_of_the_metric() -> None:
    assert set(NODE_STATES.values()) == set(CpuCount.__slots__)


@pytest.mark.parametrize(
    ("settings", "mode", "percent"),
    [
        (GateSettings(), "off", 0),
        (GateSettings(observe=True), "observe", 0),
        (GateSettings(enabled=True), "on", 100),
        (GateSettings(enabled=True, percent=10), "staged", 10),
        (GateSettings(enabled=True, namespaces=frozenset({"team-a"})), "staged", 100),
        (GateSettings(enabled=True, observe=True, percent=0), "staged", 0),
    ],
)
def test_one_mode_of_the_gate_is_shown(settings: GateSettings, mode: str, percent: int) -> None:
    metrics = Metrics()
    metrics.set_gate(settings)
    shown = {
        sample.labels["mode"]: sample.value
        for family in metrics.gate_mode.collect()
        for sample in family.samples
    }
    assert gate_mode(settings) == mode
    assert shown == {one: float(one == mode) for one in GATE_MODES}
    assert metrics.registry.get_sample_value("sandbox_restore_rollout_percent") == percent
