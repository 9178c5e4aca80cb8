"""Reads tables of Markdown pages, for tests that hold a page against the code."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def tables(text: str) -> list[tuple[list[str], list[list[str]]]]:
    """Head and rows of each table, in order; an escaped bar is a bar in its cell."""
    found: list[tuple[list[str], list[list[str]]]] = []
    before: list[str] = []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            before.append(line)
            continue
        if len(before) > 1:
            head, _, *rows = (_cells(row) for row in before)
            found.append((head, rows))
        before = []
    return found


def _cells(row: str) -> list[str]:
    return [cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", row)[1:-1]]


def ticked(text: str) -> list[str]:
    """What stands between back ticks."""
    return re.findall(r"`([^`]*)`", text)


def sections(text: str, level: int) -> dict[str, str]:
    """What stands under each heading of that level, deeper headings included."""
    marks = "#" * level
    parts = re.split(rf"^{marks} (.+)$", text, flags=re.MULTILINE)
    return {
        title: re.split(rf"^#{{1,{level}}} ", body, flags=re.MULTILINE)[0]
        for title, body in zip(parts[1::2], parts[2::2], strict=True)
    }
