"""promtool, built once for a user (tests/support/testbed/go/promtool).

`python -m tests.support.promtool` builds it and prints its folder.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.support.testbed import BuildError, ensure_module
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


def main() -> int:
    """Build it; 1 after an error line."""
    try:
        print(ensure_module(PROMTOOL, log=functools.partial(print, file=sys.stderr, flush=True)))
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
