"""A copy of the tree in which pages are walked."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.pages import LEFT_OUT, Printed, Step, missing, run_steps
from tests.support.testbed import ensure_built

ROOT = Path(__file__).parents[2]
NOT_COPIED = shutil.ignore_patterns(".*", "__pycache__", "site", "dist", "*.egg-info")
PASSED_ON = ("PATH", "HOME", "USER", "LANG", "SANDBOX_RESTORE_TEST_DATABASE_URL", "XDG_CACHE_HOME")
WALK_SECONDS = 280.0


@dataclass(frozen=True, slots=True)
class Clone:
    """A copy of the tree."""

    folder: Path

    def walk(self, steps: Sequence[Step]) -> None:
        """Run the steps in one shell; each ends with 0 and prints what the page shows."""
        environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        results = run_steps(
            steps, folder=self.folder, environment=environment, timeout_s=WALK_SECONDS
        )
        done = 0
        for step, printed in results:
            _check(step, printed)
            done += 1
        assert done == len(steps), f"the shell ended in: $ {steps[done].command}"


@pytest.fixture
def clone(tmp_path: Path) -> Iterator[Clone]:
    """The tree without what was made in it, and with the environment that runs this test."""
    ensure_built()
    folder = tmp_path / "clone"
    shutil.copytree(ROOT, folder, ignore=NOT_COPIED)
    installed = folder / ".venv"
    installed.mkdir()
    for entry in Path(sys.prefix).iterdir():
        if entry.name != ".installed":
            (installed / entry.name).symlink_to(entry)
    (installed / ".installed").touch()
    yield Clone(folder)
    subprocess.run(
        [sys.executable, "-m", "tests.support.playground", "stop"], cwd=folder, check=True
    )


def _check(step: Step, printed: Printed) -> None:
    told = "\n".join((f"$ {step.command}", *printed.lines))
    assert printed.code == 0, told
    line = missing(step.shown, printed.lines)
    assert line is None, f"not printed: {line!r}\n{told}"
    if step.shown and LEFT_OUT not in step.shown:
        assert len(printed.lines) == len(step.shown), f"the page shows less:\n{told}"
