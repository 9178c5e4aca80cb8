"""How commands speak: text or JSON on standard output, one line per problem on standard error."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from typing import Annotated, Any

import typer

from sandbox_restore.cli.exit_codes import ExitCode, exit_code_of
from sandbox_restore.errors import ConfigurationError, SandboxRestoreError
from sandbox_restore.redact import redact


class Output(StrEnum):
    TEXT = "text"
    """For people."""
    JSON = "json"
    """For programs: one document, stable keys."""


OutputOption = Annotated[
    Output, typer.Option("--output", "-o", help="text for people, json for programs.")
]


def say(line: str) -> None:
    """One line of the answer."""
    sys.stdout.write(f"{line}\n")


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
