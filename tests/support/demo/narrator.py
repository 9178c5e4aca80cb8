"""Tells the story in the terminal; readable without colours and in the log of a CI run."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

COLUMNS = 100
"""Widest line of the story, but for a terminal that is wider and a line that needs it."""


class Narrator:
    """One terminal, or one log."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or _console()

    def title(self, text: str) -> None:
        """Begin the story."""
        self.console.print()
        self.console.rule(Text(text, style="bold"), characters="=")

    def act(self, text: str) -> None:
        """Begin an act."""
        self.console.print()
        self.console.rule(Text(text, style="bold cyan"), align="left", characters="-")
        self.console.print()

    def say(self, text: str, *, style: str = "") -> None:
        """Tell something in a sentence or two."""
        self._wrapped(text, style=style)

    def point(self, text: str, *, style: str = "") -> None:
        """Tell one of several things."""
        self._wrapped(text, first="  * ", rest="    ", style=style)

    def aside(self, text: str) -> None:
        """Tell more about the point before."""
        self._wrapped(text, first="    ", rest="    ")

    def good(self, text: str) -> None:
        """Tell something that was checked and is as it should be."""
        self.point(text, style="green")

    def bad(self, text: str) -> None:
        """Tell something that users suffer from."""
        self.point(text, style="yellow")

    def failed(self, text: str) -> None:
        """Tell why the story cannot go on."""
        self.console.print()
        for line in text.splitlines():
            self._wrapped(line, style="bold red")

    def doing(self, text: str) -> None:
        """Tell what is being waited for."""
        self.console.print(Text(f"  ... {text}", style="dim"))

    def table(self, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Show rows under their heads."""
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for head in heads:
            table.add_column(head, no_wrap=True)
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        self.console.print(table)

    def command(self, command: str, output: str) -> None:
        """Show a command and what it printed, word for word but for what `cut` marks."""
        self.console.print()
        self.console.print(Text(f"$ {command}", style="bold"), soft_wrap=True)
        for line in output.rstrip().splitlines():
            # A log has no width; a terminal that is too narrow would wrap tables beyond reading.
            shown = cut(line, self.console.width) if self.console.is_terminal else line
            self.console.print(Text(shown), soft_wrap=True)

    def quote(self, text: str) -> None:
        """Show somebody else's words."""
        self._wrapped(f'"{text}"', first="    ", rest="    ", style="italic")

    def gap(self) -> None:
        self.console.print()

    def _wrapped(self, text: str, *, first: str = "", rest: str = "", style: str = "") -> None:
        """Print a text in lines of at most COLUMNS; a word that is longer has a line of its own."""
        for line in textwrap.wrap(
            text,
            COLUMNS,
            initial_indent=first,
            subsequent_indent=rest,
            break_long_words=False,
            break_on_hyphens=False,
        ):
            self.console.print(Text(line, style=style), soft_wrap=True)


def cut(line: str, width: int) -> str:
    """Return a line that fits, marked where its end is left out."""
    return line if len(line) <= width else line[: width - 2] + " \N{HORIZONTAL ELLIPSIS}"


def keep_first(text: str, *, lines: int, of: str) -> str:
    """Return the head of a text and a line that tells how much was left out."""
    every = text.rstrip().splitlines()
    if len(every) <= lines + 1:
        return text
    left_out = len(every) - lines
    return "\n".join([*every[:lines], f"\N{HORIZONTAL ELLIPSIS} {left_out} more {of}"])


def excerpt(described: str, *sections: str) -> str:
    """Return these sections of what `kubectl describe` printed, and its first line.

    Sections are named by their headings, at any depth; what is left out between is marked.
    """
    lines = described.rstrip().splitlines()
    kept: list[str] = []
    depth: int | None = None
    for number, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        if depth is not None and indent <= depth:
            depth = None
        if depth is None and line.strip().removesuffix(":") in sections:
            depth = indent
        if number == 0 or depth is not None:
            kept.append(line)
        elif kept[-1] != _LEFT_OUT:
            kept.append(_LEFT_OUT)
    return "\n".join(kept)


_LEFT_OUT = "\N{HORIZONTAL ELLIPSIS}"


def _console() -> Console:
    """Return a console as wide as its terminal; what is no terminal counts as COLUMNS wide."""
    console = Console(highlight=False)
    if not console.is_terminal or console.width < COLUMNS:
        console.width = COLUMNS
    return console
