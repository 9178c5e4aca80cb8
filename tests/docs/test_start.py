"""docs/start.md as a newcomer walks it: on a copy of the tree, from the page's own blocks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.pages import LEFT_OUT, Step, missing, run_steps, steps_of
from tests.support.testbed import ensure_built

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "start.md"
NOT_COPIED = shutil.ignore_patterns(".*", "__pycache__", "site", "dist", "*.egg-info")
PASSED_ON = ("PATH", "HOME", "USER", "LANG", "SANDBOX_RESTORE_TEST_DATABASE_URL", "XDG_CACHE_HOME")


@pytest.fixture
def clone(tmp_path: Path) -> Iterator[Path]:
    """The tree without what was made in it, and with the environment that runs this test."""
    folder = tmp_path / "clone"
    shutil.copytree(ROOT, folder, ignore=NOT_COPIED)
    installed = folder / ".venv"
    installed.mkdir()
    for entry in Path(sys.prefix).iterdir():
        if entry.name != ".installed":
            (installed / entry.name).symlink_to(entry)
    (installed / ".installed").touch()
    yield folder
    subprocess.run(
        [sys.executable, "-m", "tests.support.playground", "stop"], cwd=folder, check=True
    )


def test_every_command_of_the_start_page_does_what_the_page_shows(clone: Path) -> None:
    ensure_built()
    steps = steps_of(PAGE.read_text())
    environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    done = 0
    for step, printed in run_steps(steps, folder=clone, environment=environment, timeout_s=280):
        assert printed.code == 0, _told(step, printed.lines)
        lines = printed.lines
        if step.shown and LEFT_OUT not in step.shown:
            assert len(lines) == len(step.shown), _told(step, lines)
        line = missing(step.shown, lines)
        assert line is None, f"not printed: {line!r}\n{_told(step, lines)}"
        done += 1
    assert done == len(steps), f"the shell ended in: $ {steps[done].command}"
    assert not (clone / ".cluster" / "playground").exists(), "the page cleans up what it made"


def _told(step: Step, lines: Sequence[str]) -> str:
    return "\n".join((f"$ {step.command}", *lines))
