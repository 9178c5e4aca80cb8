"""What the demo checks before it calls its story true, without a cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from rich.console import Console

from tests.support.demo.findings import Findings, StoryError, gather, is_finished
from tests.support.demo.narrator import COLUMNS, Narrator, cut, excerpt, keep_first
from tests.support.demo.rescue import CONDITIONS, Stranded, check_gate_off, check_gate_on
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


DESCRIBED = """\
Name:         wake-1
Namespace:    before
Status:
  Node Name:  n
  Redirect:
    Conditions:
      Met:     true
    Decision:  Redirect
  Start Time:  now
Events:
  Type    Reason
  ----    ------
  Normal  RestoreSucceeded
"""


def test_an_excerpt_keeps_its_sections_and_marks_what_is_left_out() -> None:
    assert excerpt(DESCRIBED, "Redirect", "Events").splitlines() == [
        "Name:         wake-1",
        "\N{HORIZONTAL ELLIPSIS}",
        "  Redirect:",
        "    Conditions:",
        "      Met:     true",
        "    Decision:  Redirect",
        "\N{HORIZONTAL ELLIPSIS}",
        "Events:",
        "  Type    Reason",
        "  ----    ------",
        "  Normal  RestoreSucceeded",
    ]


# --- the second act

MARKED = replace(SEED, id="marked")
LEFT = Stranded(seeds=[SEED, MARKED], pins={SEED.id: "node", MARKED.id: "node"}, marked=MARKED)
HOME = msgspec.structs.replace(FREE, source="local")
AWAY = msgspec.structs.replace(STARTED, node="elsewhere")


def wake(
    seed: SandboxSeed, reason: str, *, met: list[bool] | None = None, blocked_by: str = ""
) -> dict[str, Any]:
    """A wake as its restore tells of it; `met`: the seven conditions, where they were judged."""
    made = restore(seed, succeeded=reason == "SnapshotLoaded")
    made["status"]["conditions"][0]["reason"] = reason
    if met is not None:
        conditions = [{"met": one} for one in met]
        made["status"]["redirect"] = {"conditions": conditions, "blockedBy": blocked_by}
    return made


REDIRECTED = wake(SEED, "SnapshotLoaded", met=[True] * CONDITIONS)
STAYED = wake(MARKED, "Stranded", met=[True, True, True, False], blocked_by="NoLocalArtifact")


def wakes(*restores: dict[str, Any], loads: list[Entry]) -> Findings:
    return gather([SEED, MARKED], record=loads, restores=restores)


def of_marked(entry: Entry) -> Entry:
    return msgspec.structs.replace(entry, sandbox=MARKED.id)


def test_the_second_act_as_it_is_told() -> None:
    twice = [wake(SEED, "Stranded"), wake(MARKED, "Stranded")]
    check_gate_off(wakes(*twice, loads=[HOME, of_marked(HOME)]), LEFT)
    check_gate_on(wakes(REDIRECTED, STAYED, loads=[AWAY, of_marked(HOME)]), LEFT)
    assert LEFT.free == [SEED]


OTHERWISE = {
    "one came up without the gate": (
        check_gate_off,
        wakes(REDIRECTED, wake(MARKED, "Stranded"), loads=[AWAY, of_marked(HOME)]),
        "came to",
    ),
    "one was not redirected": (
        check_gate_on,
        wakes(wake(SEED, "Stranded"), STAYED, loads=[HOME, of_marked(HOME)]),
        "does not run: Stranded",
    ),
    "one runs with a condition that is not met": (
        check_gate_on,
        wakes(
            wake(SEED, "SnapshotLoaded", met=[True] * 6 + [False]),
            STAYED,
            loads=[AWAY, of_marked(HOME)],
        ),
        "has conditions",
    ),
    "one was loaded on the node it was pinned to": (
        check_gate_on,
        wakes(REDIRECTED, STAYED, loads=[STARTED, of_marked(HOME)]),
        "on node again",
    ),
    "the marked one left its node": (
        check_gate_on,
        wakes(REDIRECTED, wake(MARKED, "SnapshotLoaded"), loads=[AWAY, of_marked(AWAY)]),
        "is pinned to node",
    ),
    "the marked one is blocked by something else": (
        check_gate_on,
        wakes(
            REDIRECTED,
            wake(MARKED, "Stranded", met=[False], blocked_by="PinnedNodeCannotLoad"),
            loads=[AWAY, of_marked(HOME)],
        ),
        "is blocked by PinnedNodeCannotLoad",
    ),
}


@pytest.mark.parametrize(("check", "found", "words"), OTHERWISE.values(), ids=OTHERWISE.keys())
def test_what_the_second_act_tells_is_checked(check: Any, found: Findings, words: str) -> None:
    with pytest.raises(StoryError, match=words):
        check(found, LEFT)
