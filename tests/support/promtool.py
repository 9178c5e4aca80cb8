"""promtool, built once for a user (tests/support/testbed/go/promtool)."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.support.testbed import ensure_module
from tests.support.testbed.gomodules import PROMTOOL


class Promtool:
    """Runs it; raises BuildError when it is not there and cannot be built."""

    def __init__(self, *, log: Callable[[str], None] = print) -> None:
        self._program = ensure_module(PROMTOOL, log=log) / "promtool"

    def check_rules(self, file: Path) -> str:
        """What it says against a file of rules, lint included; empty when all is well."""
        return self._run("check", "rules", "--lint=all", "--lint-fatal", str(file))

    def test_rules(self, file: Path) -> str:
        """What of a file of unit tests fails; empty when all hold."""
        return self._run("test", "rules", str(file))

    def _run(self, *arguments: str) -> str:
        done = subprocess.run(
            [str(self._program), *arguments], capture_output=True, text=True, check=False
        )
        if done.returncode == 0:
            return ""
        return f"exit code {done.returncode}\n{done.stdout}{done.stderr}"
