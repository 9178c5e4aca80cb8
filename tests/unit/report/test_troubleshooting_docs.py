"""docs/troubleshooting.md against the code: every reason that a restore can show is there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox_restore import restore
from sandbox_restore.cli.exit_codes import ExitCode
from sandbox_restore.errors import SchemaError
from sandbox_restore.placement.pod import NodeSelectorConflictError
from sandbox_restore.report.advice import ADVICE
from sandbox_restore.restore.blocked import Reason as Blocked
from sandbox_restore.store import schema

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "troubleshooting.md").read_text()

RULES = Path(restore.__path__[0])
ABOUT_OTHERS = {
    *("blocked", "failure", "pinned", "redirect", "rerender", "rescue", "status", "stranded"),
    *("news", "reporter"),
}
"""Modules whose words are of other conditions or Events, or the runner's."""
NO_REASONS = {
    *("True", "False", "Unknown", "Succeeded", "Bound"),
    *("LocalOnly", "Unconstrained", "MarkerGivenUp"),
}
"""Words of the same form that are no reason of condition `Succeeded`."""


def section(heading: str) -> str:
    return PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def told(text: str) -> set[str]:
    """The reasons that a part of the page tells of: its headings, and the first cells of rows."""
    return set(re.findall(r"^(?:### |\| \[?)`([A-Z]\w+)`", text, re.MULTILINE))


def written(path: Path) -> Iterator[str]:
    """Every string of a module that has the form of a reason."""
    for node in ast.walk(ast.parse(path.read_text())):
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and re.fullmatch(r"[A-Z][a-z]+([A-Z][a-z]+)*", text):
            yield text


def shown_by_the_code() -> set[str]:
    modules = [path for path in RULES.glob("*.py") if path.stem not in ABOUT_OTHERS]
    found = {word for path in modules for word in written(path)}
    return (found - NO_REASONS) | set(ADVICE) | {NodeSelectorConflictError.reason}


def test_every_reason_that_a_restore_can_show_is_on_the_page_and_no_other() -> None:
    on_the_page = (
        told(section("It waits")) | told(section("It works")) | told(section("It has ended"))
    )
    assert on_the_page == shown_by_the_code()


def test_every_reason_that_blocks_a_redirect_leads_to_its_section() -> None:
    part = section("Why a redirect is blocked")
    links = dict(re.findall(r"^\| \[`(\w+)`\]\(stranded-restores\.md#(\w+)\)", part, re.MULTILINE))
    assert links == {str(reason): str(reason).lower() for reason in Blocked}


def test_a_reason_that_waits_says_what_to_do_or_where_it_is_told() -> None:
    for text in section("It waits").split("\n### ")[1:]:
        assert "**Do:**" in text or "stranded-restores.md#" in text, text.splitlines()[0]


def test_every_exit_code_of_a_start_that_fails_is_told() -> None:
    part = section("The operator or an agent does not start")
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", part, re.MULTILINE)}
    not_of_a_start = {ExitCode.OK, ExitCode.FAILED, ExitCode.INTERRUPTED}
    assert codes == {int(code) for code in ExitCode if code not in not_of_a_start}


def test_what_upgrade_says_of_versions_is_what_the_program_says() -> None:
    page = (DOCS / "upgrade.md").read_text()
    for revisions in ([], [schema.known_revisions()[0]], ["9999"]):
        with pytest.raises(SchemaError) as raised:
            schema.judge(revisions).require_current()
        words = re.sub(
            r"(?<=revision )\w+|(?<=needs )\w+|(?<=program's )\w+", "…", str(raised.value)
        )
        assert words.removeprefix("database: ") in page
