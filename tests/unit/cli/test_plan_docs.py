"""docs/placement.md: every example runs and prints what the page says."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox_restore.cli.main import main

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "placement.md").read_text(encoding="utf-8")
FOLDER = DOCS / "examples" / "placement"
LEFT_OUT = "…"

RULES = (
    "Names of CPUs",
    "Who loads what",
    "The gate",
    "Where the capture CPU is known from",
    "The base pod",
    "Reachable nodes",
    "The placement term",
    "The shortlist",
    "What is said",
)
"""Sections of rules that `plan` can show; the one before the base pod needs a database."""


def examples(text: str) -> Iterator[tuple[str, list[str]]]:
    """Each command of the console blocks, with the lines that it is said to print."""
    for block in re.findall(r"^```console\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE):
        for command in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            first, *said = command.rstrip("\n").split("\n")
            yield first, said


def as_said(printed: list[str], said: list[str]) -> bool:
    """Whether the lines are those of the page, where `…` stands for one line or more."""
    if not said:
        return not printed
    head, *rest = said
    if head != LEFT_OUT:
        return printed[:1] == [head] and as_said(printed[1:], rest)
    return any(as_said(printed[start:], rest) for start in range(1, len(printed) + 1))


EXAMPLES = tuple(examples(PAGE))


@pytest.mark.parametrize(("command", "said"), EXAMPLES, ids=[command for command, _ in EXAMPLES])
def test_an_example_prints_what_the_page_says(
    command: str,
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(FOLDER)
    for name in list(os.environ):
        if name.startswith("SPACE_SANDBOX_RESTORE_"):
            monkeypatch.delenv(name)
    words = shlex.split(command)
    while "=" in words[0]:
        monkeypatch.setenv(*words.pop(0).split("=", 1))
    assert words[0] == "sandbox-restore"
    main(words[1:])
    out, err = capsys.readouterr()
    printed = (err + out).splitlines()
    assert as_said(printed, said), "\n".join(printed)


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_has_an_example(rule: str) -> None:
    section = PAGE.split(f"\n## {rule}\n")[1].split("\n## ")[0]
    assert any(examples(section))


def test_every_file_of_the_folder_is_in_an_example() -> None:
    used = " ".join(command for command, _ in EXAMPLES)
    assert [file.name for file in FOLDER.iterdir() if file.name not in used] == []


def test_lines_are_left_out_only_where_the_page_says_so() -> None:
    assert as_said(["a", "b", "c"], ["a", LEFT_OUT])
    assert as_said(["a", "b", "c"], [LEFT_OUT, "b", LEFT_OUT])
    assert not as_said(["a", "b", "c"], ["a", "b"])
    assert not as_said(["a", "b"], ["a", "b", LEFT_OUT])
    assert not as_said(["a", "b", "c"], ["a", LEFT_OUT, "b"])
