"""Pages whose console blocks are run: each command in order, in one shell, and what it prints.

A block ```console holds commands (`$ …`) and what they print. `python -m tests.support.pages PAGE`
runs a page and writes what was printed into it; the test of a page compares instead.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

_BLOCK = re.compile(r"(?<=^```console\n)(.*?)(?=^```$)", re.DOTALL | re.MULTILINE)
_MARK = "@@ended"
LEFT_OUT = "…"
"""A line of the page that stands for lines which are not shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One command of a page, and the lines that the page shows below it."""

    command: str
    shown: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """What a command really printed, and its exit code."""

    lines: Sequence[str]
    code: int


def steps_of(page: str) -> list[Step]:
    """Return the commands of a page in order."""
    return [step for block in _BLOCK.findall(page) for step in _steps(block)]


def run_steps(
    steps: Sequence[Step], *, folder: Path, environment: Mapping[str, str], timeout_s: float
) -> Iterator[tuple[Step, Printed]]:
    """Run the commands in one shell in a folder, until the first that fails.

    What the shell left running is ended. Raises subprocess.TimeoutExpired.
    """
    lines = ["exec 2>&1 < /dev/null"]
    for step in steps:
        lines += [step.command, "code=$?", f"printf '\\n{_MARK} %d\\n' $code"]
        lines += ["[ $code = 0 ] || exit $code"]
    shell = subprocess.Popen(
        ["bash", "--norc", "-c", "\n".join(lines)],
        cwd=folder,
        env=dict(environment),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = shell.communicate(timeout=timeout_s)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGTERM)
        shell.wait()
    parts = re.split(rf"\n{_MARK} (\d+)\n", output)
    for step, text, code in zip(steps, parts[::2], parts[1::2], strict=False):
        yield step, Printed(lines=text.rstrip("\n").splitlines(), code=int(code))


def missing(shown: Sequence[str], printed: Sequence[str]) -> str | None:
    """Return the first line of the page that was not printed, in this order and of this shape."""
    rest = iter([shape(line) for line in printed])
    for line in shown:
        if line.strip() != LEFT_OUT and shape(line) not in rest:
            return line
    return None


def shape(line: str) -> str:
    """Return a line without what differs from run to run: times, ages, ids, ports, widths."""
    for pattern, word in _DIFFERS:
        line = pattern.sub(word, line)
    return " ".join(line.split())


_DIFFERS = [
    (re.compile(pattern), word)
    for pattern, word in (
        (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z| UTC)?", "TIME"),
        (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UID"),
        (r"\b[0-9a-f]{10}(?=-\d+\b)", "HASH"),
        (r"\b(\d+[dhms])+\b", "AGE"),
        (r"127\.0\.0\.1:\d+", "ADDRESS"),
        (r"Resource Version:\s+\d+", "Resource Version: N"),
        (r"\b\S+ leads\b", "SOMEBODY leads"),
        (r"-{3,}|─{3,}", "RULE"),
    )
]


def _steps(block: str) -> Iterator[Step]:
    command: str | None = None
    shown: list[str] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            if command is not None:
                yield Step(command=command, shown=shown)
            command, shown = line[2:], []
        elif command is None:
            raise ValueError(f"a console block begins with {line!r}, which is no command")
        else:
            shown.append(line)
    if command is not None:
        yield Step(command=command, shown=shown)


def _rewrite(page: str, results: Iterator[tuple[Step, Printed]]) -> str:
    """Return the page with what was printed; a command whose output it leaves out keeps that."""

    def block(match: re.Match[str]) -> str:
        lines: list[str] = []
        for step in _steps(match[1]):
            done = next(results, None)
            if done is None or done[1].code:
                said = "nothing" if done is None else "\n".join(done[1].lines)
                raise SystemExit(f"$ {step.command}\n{said}")
            printed = done[1].lines
            keeps = any(line.strip() == LEFT_OUT for line in step.shown) or step.shown == []
            lines += [f"$ {step.command}", *(step.shown if keeps else printed)]
            print(f"$ {step.command}", *printed, sep="\n", flush=True)
        return "".join(f"{line}".rstrip() + "\n" for line in lines)

    return _BLOCK.sub(block, page)


def main() -> int:
    """Run a page here and write what was printed into it."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.pages", description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("--before", type=Path, help="a file of commands to run first, one a line")
    arguments = parser.parse_args()
    path: Path = arguments.page
    page = path.read_text()
    before = arguments.before.read_text().splitlines() if arguments.before else ()
    steps = [*(Step(command=line, shown=()) for line in before), *steps_of(page)]
    results = run_steps(steps, folder=Path.cwd(), environment=os.environ, timeout_s=600)
    path.write_text(_rewrite(page, islice(results, len(before), None)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
