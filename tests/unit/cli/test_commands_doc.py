"""docs/commands.md names every command, option-bearing or not, and every exit code."""

from __future__ import annotations

import re
from pathlib import Path

from typer.main import get_command

from sandbox_restore.cli.exit_codes import MEANING
from sandbox_restore.cli.main import app

PAGE = (Path(__file__).parents[3] / "docs" / "commands.md").read_text()


def test_every_command_is_in_the_table_and_no_other() -> None:
    named = set(re.findall(r"^\| \[?`([a-z-]+)", PAGE, re.MULTILINE))
    assert named == set(get_command(app).commands)  # type: ignore[attr-defined]


def test_every_exit_code_is_told_in_the_words_of_the_help() -> None:
    for code, meaning in MEANING.items():
        [row] = re.findall(rf"^\| {code.value} \| (.*) \|$", PAGE, re.MULTILINE)
        assert row.replace("`", "") == meaning
