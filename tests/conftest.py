"""How the tests are shared out when several processes run them, and what is told at the end.

`make test` starts two. Tests that share one costly part stay together, those of tests/cluster
excepted: they take longest, and each process has a control plane for them. The many small ones
fill the end.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.measured import measured_lines

_HERE = Path(__file__).parent
_FIRST = (
    "cluster",
    "nodes",
    "chart",
    "agent",
    "simnode",
    "machine",
    "differential",
    "docs",
    "testbed",
    "store",
    "alerts",
)
"""Folders with costly parts, in the order in which they are begun; tests/unit comes last."""
_LONGEST = ("test_crashes.py", "test_restores.py", "test_rerender.py")
"""Of tests/cluster, begun first."""


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """For Unix sockets, whose paths may have 107 bytes: `tmp_path` carries the test's name."""
    with tempfile.TemporaryDirectory(prefix="sr-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.hookimpl(tryfirst=True)  # before the hook that reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test its group, and put the groups in order."""
    for item in items:
        folder, _ = _place(item)
        if folder in _FIRST and folder != "cluster":
            item.add_marker(pytest.mark.xdist_group(folder))
    items.sort(key=_rank)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what the tests have measured."""
    if lines := list(measured_lines(terminalreporter.stats)):
        terminalreporter.section("measured on this machine")
        for line in lines:
            terminalreporter.line(line)


def _place(item: pytest.Item) -> tuple[str, str]:
    parts = item.path.relative_to(_HERE).parts
    return parts[0], parts[-1]


def _rank(item: pytest.Item) -> tuple[int, int]:
    folder, file = _place(item)
    at = _FIRST.index(folder) if folder in _FIRST else len(_FIRST)
    return at, _LONGEST.index(file) if file in _LONGEST else len(_LONGEST)
