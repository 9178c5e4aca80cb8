"""How commands speak: text or JSON on standard output, one line per problem on standard error."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Collection
from enum import StrEnum
from typing import Annotated, Any, Final

import typer
import yaml
from rich.console import Console
from rich.table import Table

from sandbox_restore.cli.exit_codes import ExitCode, exit_code_of
from sandbox_restore.errors import ConfigurationError, SandboxRestoreError
from sandbox_restore.redact import printable, redact

WIDTH: Final = 100
"""Columns of an answer that goes to no terminal."""


class Output(StrEnum):
    TEXT = "text"
    """For people."""
    JSON = "json"
    """For programs: one document, stable keys."""


OutputOption = Annotated[
    Output, typer.Option("--output", "-o", help="text for people, json for programs.")
]


class Document(StrEnum):
    """The forms of an answer that is read by people and by programs alike."""

    TEXT = "text"
    """For people."""
    JSON = "json"
    """For programs: one document, stable keys."""
    YAML = "yaml"
    """The same document as YAML."""


DocumentOption = Annotated[
    Document, typer.Option("--output", "-o", help="text for people; json or yaml for programs.")
]


class _Dumper(yaml.SafeDumper):
    """Writes a part that stands twice twice, and not as a reference to the first."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def as_yaml(document: object) -> str:
    """The document as YAML, keys in their order."""
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=WIDTH)


def say_document(document: Any, form: Document) -> None:
    """The whole answer as one JSON or YAML document."""
    if form is Document.YAML:
        sys.stdout.write(as_yaml(document))
    else:
        say_json(document)


def console() -> Console:
    """Where tables and wrapped text go: as wide as the terminal, without colour in a pipe."""
    return Console(
        file=sys.stdout,
        width=None if sys.stdout.isatty() else WIDTH,
        highlight=False,
        markup=False,
        emoji=False,
    )


def say_table(table: Table) -> None:
    """A table, without blanks at the ends of its lines."""
    terminal = console()
    with terminal.capture() as captured:
        terminal.print(table)
    for line in captured.get().splitlines():
        say(line.rstrip())


def fill(text: str, *, indent: str = "") -> str:
    """A sentence broken into lines as wide as the terminal, each after the indent."""
    return textwrap.fill(
        text,
        console().width,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def plain_table(*columns: str, right: Collection[str] = ()) -> Table:
    """Columns as kubectl shows them: no lines, three blanks apart."""
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for name in columns:
        number = name in right
        table.add_column(
            name, justify="right" if number else "left", overflow="fold", no_wrap=number
        )
    return table


def say(line: str) -> None:
    """One line of the answer; what others have said in it cannot steer a terminal."""
    sys.stdout.write(f"{printable(line)}\n")


def say_json(document: Any) -> None:
    """The whole answer as one JSON document."""
    sys.stdout.write(json.dumps(document, ensure_ascii=False, indent=2) + "\n")


def note(line: str, *, kind: str = "note") -> None:
    """One line beside the answer, on standard error."""
    sys.stderr.write(f"{kind}: {redact(' '.join(line.split()))}\n")


def report(error: SandboxRestoreError) -> ExitCode:
    """Tells what went wrong, one line per problem and never a traceback; the code to end with."""
    problems = error.problems if isinstance(error, ConfigurationError) else [str(error)]
    for problem in problems:
        note(problem, kind="error")
    return exit_code_of(error)
