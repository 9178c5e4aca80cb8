"""What the demo checks before it calls its story true, without a cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from tests.support.demo.findings import Findings, StoryError, gather, is_finished
from tests.support.demo.narrator import COLUMNS, Narrator, cut, keep_first
from tests.support.fleet import SandboxSeed, restore_manifest, sandbox_seeds
from tests.support.simnode import Entry, Event, load_matrix

MATRIX = load_matrix()
ICX_OLD, BDX, CLX, ICX_NEW = MATRIX.cpus
SEED = replace(sandbox_seeds(1, seed=1, namespace="n")[0], capture_cpu=BDX)
EXCLUDED = [ICX_OLD, CLX]


def load(
    event: Event, *, cpu: str, label: str | None = None, excluded: list[str] | None = None
) -> Entry:
    """Return a load of SEED's snapshot on a node with this CPU, labelled so unless told.

    Its pod excluded the right CPUs unless told.
    """
    return Entry(
        seq=1,
        at=0.0,
        event=event,
        sandbox=SEED.id,
        source="storage",
        excluded=EXCLUDED if excluded is None else excluded,
        pod="pod",
        node="node",
        node_cpu=cpu,
        node_label=cpu if label is None else label,
    )


def restore(seed: SandboxSeed, *, succeeded: bool) -> dict[str, Any]:
    condition = {
        "type": "Succeeded",
        "status": "True" if succeeded else "False",
        "reason": "Because",
        "message": "in words",
    }
    return {**restore_manifest(seed), "status": {"conditions": [condition]}}


def findings(*loads: Entry, succeeded: bool) -> Findings:
    return gather([SEED], record=loads, restores=[restore(SEED, succeeded=succeeded)])


STARTED = load(Event.VM_STARTED, cpu=ICX_NEW)
REFUSED = load(Event.LOAD_REFUSED, cpu=CLX)
FREE = load(Event.LOAD_REFUSED, cpu=CLX, excluded=[])


def test_a_restore_that_loads_at_once_is_well_with_the_gate_on() -> None:
    found = findings(STARTED, succeeded=True)
    found.check_sound(MATRIX)
    found.check_gate_on(MATRIX)
    assert (found.running, found.refused_first, found.failed) == (1, [], [])


def test_a_refusal_on_an_unlabelled_node_is_allowed_with_the_gate_on() -> None:
    found = findings(load(Event.LOAD_REFUSED, cpu=CLX, label=""), succeeded=False)
    found.check_sound(MATRIX)
    found.check_gate_on(MATRIX)
    assert len(found.refusals_on_unlabelled) == len(found.failed) == 1


def test_gate_off_needs_refusals_and_no_exclusion() -> None:
    findings(FREE, succeeded=False).check_gate_off()
    with pytest.raises(StoryError, match="no restore was refused"):
        findings(STARTED, succeeded=True).check_gate_off()
    with pytest.raises(StoryError, match="excludes CPUs"):
        findings(REFUSED, succeeded=False).check_gate_off()


UNTRUE = {
    "a labelled node refused": (
        findings(REFUSED, STARTED, succeeded=True),
        "labelled intel-6-85-7, refused",
    ),
    "a CPU is missing among the excluded": (
        findings(load(Event.VM_STARTED, cpu=ICX_NEW, excluded=[CLX]), succeeded=True),
        "CPUs that cannot load",
    ),
    "it ran where its plan forbids": (
        findings(load(Event.VM_STARTED, cpu=ICX_NEW, label=CLX), succeeded=True),
        "whose CPU it excludes",
    ),
    "it came to a labelled node and failed": (
        findings(STARTED, succeeded=False),
        "did not succeed at once: Because: in words",
    ),
}


@pytest.mark.parametrize(("found", "words"), UNTRUE.values(), ids=UNTRUE.keys())
def test_what_the_gate_promises_is_checked(found: Findings, words: str) -> None:
    with pytest.raises(StoryError, match=words):
        found.check_gate_on(MATRIX)


UNSOUND = {
    "never on a node": (findings(succeeded=False), "never reached a node"),
    "Succeeded without a VM": (findings(REFUSED, succeeded=True), "does not run"),
    "a VM without Succeeded": (findings(STARTED, succeeded=False), "Succeeded=False"),
    "loaded against the matrix": (
        findings(load(Event.VM_STARTED, cpu=CLX), succeeded=True),
        "against the matrix",
    ),
}


@pytest.mark.parametrize(("found", "words"), UNSOUND.values(), ids=UNSOUND.keys())
def test_record_and_api_must_agree(found: Findings, words: str) -> None:
    with pytest.raises(StoryError, match=words):
        found.check_sound(MATRIX)


def test_a_restore_is_finished_when_it_is_decided() -> None:
    assert is_finished(restore(SEED, succeeded=False))
    assert not is_finished(restore_manifest(SEED))


def test_what_is_left_out_is_marked() -> None:
    assert cut("a" * 100, 100) == "a" * 100
    assert cut("a" * 101, 100) == "a" * 98 + " …"
    assert keep_first("1\n2\n3\n4\n5", lines=2, of="rows") == "1\n2\n… 3 more rows"
    assert keep_first("1\n2\n3", lines=2, of="rows") == "1\n2\n3"


def test_the_story_is_plain_text_in_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    narrator = Narrator()
    narrator.title("Title")
    narrator.act("Act")
    narrator.say("word " * 60)
    narrator.good("good " * 60)
    narrator.table(("a", "b"), [("1", "[red]2")])
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "[red]2" in printed
    assert max(len(line) for line in printed.splitlines()) <= COLUMNS


def literal(*, width: int, terminal: bool) -> str:
    """Return what becomes of a line of 150 characters that a command printed."""
    narrator = Narrator(Console(width=width, force_terminal=terminal, no_color=True))
    with narrator.console.capture() as captured:
        narrator.command("kubectl get sbr", "x" * 150)
    return captured.get()


def test_a_long_line_of_a_command_is_cut_only_where_it_would_be_wrapped() -> None:
    assert "x" * 98 + " …" in literal(width=100, terminal=True)
    assert "x" * 150 in literal(width=160, terminal=True)
    assert "x" * 150 in literal(width=100, terminal=False)
