"""`classify`: the class of failure reports on standard input, one output line for each."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from typing import Final, TextIO

from sandbox_restore.restore.failure import Classification, FailureClass, classify

EXIT_OK: Final = 0
EXIT_BAD_LINE: Final = 2
"""A line could not be read; its output line says so, and all other lines are answered."""

_REPORT_KEYS: Final = frozenset({"code", "fault_message", "error"})
"""Keys that make a JSON line a report of its own, instead of one that holds a message."""


@dataclass(frozen=True, slots=True)
class _Answer:
    classification: Classification
    readable: bool = True


def classify_lines(stdin: TextIO, stdout: TextIO, *, output: str) -> int:
    """Answer every report on `stdin` with one line on `stdout`; the result is the exit code.

    JSON lines are one report each: `{"message": ...}`, or a report as a runner or Firecracker
    writes it. Everything else is one plain text, however many lines it has. `output` is "json"
    for objects with `class`, `component` and `why`, anything else for lines to read.
    """
    # A report may hold any bytes; what is no UTF-8 must not end in a traceback.
    if isinstance(stdin, io.TextIOWrapper):
        stdin.reconfigure(errors="replace")
    answers = _answers(stdin.read())
    for answer in answers:
        stdout.write(_line(answer, output=output, encoding=stdout.encoding or "utf-8") + "\n")
    return EXIT_OK if all(answer.readable for answer in answers) else EXIT_BAD_LINE


def _answers(text: str) -> list[_Answer]:
    # Only "\n" ends a line: JSON strings may hold the other separators as they are.
    lines = text.removesuffix("\n").split("\n")
    if _is_json_lines(lines, text):
        return [_answer(number, line) for number, line in enumerate(lines, start=1)]
    return [_Answer(classify(text))]


def _is_json_lines(lines: list[str], text: str) -> bool:
    """Whether the input holds a report a line: it begins like one, or most of its lines are."""
    spoken = [line for line in lines if line.strip()]
    objects = sum(isinstance(_parse(line), dict) for line in spoken)
    if not objects or (len(spoken) > 1 and isinstance(_parse(text), dict)):
        return False
    return spoken[0].lstrip("\ufeff \t").startswith("{") or 2 * objects >= len(spoken)


def _parse(text: str) -> object:
    try:
        value: object = json.loads(text.strip().lstrip("\ufeff"), strict=False)
    except (ValueError, RecursionError):
        return None
    return value


def _answer(number: int, line: str) -> _Answer:
    if not line.strip():
        return _Answer(classify(""))
    report = _parse(line)
    if not isinstance(report, dict):
        return _unreadable(number, "not a JSON object")
    message = report.get("message", "")
    if _REPORT_KEYS & report.keys():
        found = classify(line)
        if isinstance(message, str) or found.failure_class is not FailureClass.UNKNOWN:
            return _Answer(found)
    elif "message" in report and isinstance(message, str):
        return _Answer(classify(message))
    if "message" in report:
        return _unreadable(number, f'"message" is {_kind(message)}, not a string')
    return _unreadable(number, 'no "message"')


def _kind(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, dict):
        return "an object"
    return "a list" if isinstance(value, list) else "a number"


def _unreadable(number: int, problem: str) -> _Answer:
    why = f"line {number} is no report: {problem}"
    return _Answer(Classification(FailureClass.UNKNOWN, "", why, ""), readable=False)


def _line(answer: _Answer, *, output: str, encoding: str) -> str:
    found = answer.classification
    if output == "json":
        return json.dumps(
            {
                "class": found.failure_class.value,
                "component": found.component,
                "why": found.why,
            }
        )
    line = f"{found.failure_class.value:<16} {found.component or '-':<18} {found.why}"
    return line.encode(encoding, "backslashreplace").decode(encoding)
