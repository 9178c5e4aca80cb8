"""docs/security.md names tests as its proof: each of them exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "security.md").read_text()


def test_every_test_that_is_named_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    there = {
        node.name
        for path in TESTS.rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert named - there == set()


def test_every_threat_has_one() -> None:
    rows = PAGE.split("\n## Threats\n")[1].split("\n## ")[0]
    threats = [line for line in rows.splitlines() if line.startswith("| ")][1:]
    assert len(threats) >= 20
    assert [row for row in threats if "`test_" not in row] == []
