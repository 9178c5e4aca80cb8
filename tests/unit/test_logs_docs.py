"""docs/logs.md against the code: every event with its levels and keys, and no other."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import sandbox_restore
from sandbox_restore.logs import LEVELS
from tests.support.markdown import DOCS, tables, ticked

PACKAGE = Path(sandbox_restore.__file__).parent
PAGE = (DOCS / "logs.md").read_text()
METHODS = {**{level: level for level in LEVELS}, "exception": "error"}

SCOPE = ("sandbox", "namespace")
DECISION = "the decision"
"""Stands in the page for the keys of `explain.log_fields`, which it lists by themselves."""


@dataclass
class Event:
    """What the calls with one event name have in common."""

    levels: set[str] = field(default_factory=set)
    keys: set[str] = field(default_factory=set)
    places: list[str] = field(default_factory=list)


def calls() -> Iterator[tuple[str, ast.Call, str]]:
    """Every call of a logger: the method, the call, the place."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id == "log"
            ):
                yield node.func.attr, node, f"{path.relative_to(PACKAGE)}:{node.lineno}"


def keys_of(call: ast.Call) -> Iterator[str]:
    for keyword in call.keywords:
        if keyword.arg is not None:
            yield "exception" if keyword.arg == "exc_info" else keyword.arg
        else:
            yield from expanded(keyword.value)


def expanded(value: ast.expr) -> Iterator[str]:
    """The keys behind `**`."""
    match ast.unparse(value).split("(")[0]:
        case "_keys":
            assert isinstance(value, ast.Call)
            yield "sandbox"
            yield from keys_of(value)
        case "self._scope":
            yield from SCOPE
        case "placing.log_fields":
            yield DECISION
        case other:
            raise AssertionError(f"what keys does **{other} add?")


def events() -> dict[str, Event]:
    found: dict[str, Event] = defaultdict(Event)
    for method, call, place in calls():
        name = call.args[0]
        assert isinstance(name, ast.Constant), f"{place}: an event name is a constant"
        event = found[name.value]
        event.levels.add(METHODS[method])
        event.keys |= set(keys_of(call)) | ({"exception"} if method == "exception" else set())
        event.places.append(place)
    return found


def _decision_keys() -> set[str]:
    source = ast.parse((PACKAGE / "placement" / "explain.py").read_text())
    [function] = [
        node
        for node in ast.walk(source)
        if isinstance(node, ast.FunctionDef) and node.name == "log_fields"
    ]
    [told] = [node for node in ast.walk(function) if isinstance(node, ast.Dict) and node.keys]
    return {str(key.value) for key in told.keys if isinstance(key, ast.Constant)} | {"node"}


DECISION_KEYS = _decision_keys()


def listed() -> dict[str, list[str]]:
    rows = [row for head, rows in tables(PAGE) if head[0] == "event" for row in rows]
    names = [ticked(row[0])[0] for row in rows]
    assert len(names) == len(set(names))
    return dict(zip(names, rows, strict=True))


def shown_keys(cell: str) -> set[str]:
    return set(ticked(cell)) | ({DECISION} if DECISION in cell else set())


def test_the_page_lists_every_event_and_no_other() -> None:
    assert set(listed()) == set(events())


def test_the_page_tells_each_events_levels() -> None:
    assert {name: set(row[1].split(", ")) for name, row in listed().items()} == {
        name: event.levels for name, event in events().items()
    }


def test_the_page_tells_each_events_keys() -> None:
    assert {name: shown_keys(row[2]) for name, row in listed().items()} == {
        name: event.keys for name, event in events().items()
    }


def test_the_page_tells_what_each_event_means() -> None:
    assert [name for name, row in listed().items() if not row[3]] == []


def test_the_keys_of_a_decision_are_listed() -> None:
    [rows] = [rows for head, rows in tables(PAGE) if head[0] == "key of a decision"]
    assert {ticked(row[0])[0] for row in rows} == DECISION_KEYS


def test_an_event_name_is_words_in_lower_case() -> None:
    assert [
        name for name in events() if not name.replace("_", "").isalpha() or "_" not in name
    ] == []


def test_no_logger_goes_by_another_name() -> None:
    """The walk looks for `log`: a logger bound to another name would go unseen."""
    names = {
        ast.unparse(target)
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func) == "structlog.get_logger"
        for target in node.targets
    }
    assert names == {"log"}
