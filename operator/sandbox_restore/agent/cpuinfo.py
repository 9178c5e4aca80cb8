"""/proc/cpuinfo as text becomes the fields of each core; nothing is judged here but its layout."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,6}")
_S390_CORE: Final = re.compile(r"processor [0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """One logical processor: its number and its fields, blanks around names and values removed."""

    number: int
    fields: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuInfo:
    """What a cpuinfo file says."""

    cores: tuple[Core, ...] = ()
    problem: str = ""
    """Why the text cannot be what a kernel wrote; empty when it can."""
    other_layout: bool = False
    """There is no core, but what there is comes from another architecture's kernel (s390x)."""


@dataclass(slots=True)
class _Block:
    """The lines of one core while they are read."""

    number: str
    fields: dict[str, str] = field(default_factory=dict)


def parse(text: str) -> CpuInfo:
    """Every core of a cpuinfo file; text of any kind is accepted, and most of it has no core.

    A core begins with the line `processor : N` and ends at an empty line or at the next core.
    Lines outside a core (the board's name on ARM, the timebase on ppc64) belong to none. Two cores
    of one number, or two values of one field, are nothing that a kernel writes.
    """
    cores: dict[int, Core] = {}
    other_layout = False
    for block in _blocks(text):
        if isinstance(block, str):
            return CpuInfo(problem=block)
        if block is None:
            other_layout = True
            continue
        if not _NUMBER.fullmatch(block.number):
            return CpuInfo(problem=f"{block.number[:40]!r} is not the number of a processor")
        number = int(block.number)
        if number in cores:
            return CpuInfo(problem=f"processor {number} is there twice")
        cores[number] = Core(number=number, fields=block.fields)
    return CpuInfo(cores=tuple(cores.values()), other_layout=other_layout and not cores)


def _blocks(text: str) -> Iterator[_Block | str | None]:
    """The cores; None for a line of another architecture's layout, a text for a contradiction."""
    block: _Block | None = None
    # Only newlines end a line: a form feed in a model name is no new line.
    for line in text.split("\n"):
        name, colon, value = line.partition(":")
        name, value = name.strip(), value.strip()
        if name == "processor" and colon:
            if block is not None:
                yield block
            block = _Block(number=value)
        elif not line.strip():
            if block is not None:
                yield block
            block = None
        elif block is not None and colon:
            if block.fields.setdefault(name, value) != value:
                yield f"processor {block.number[:40]} has two values of {name[:40]!r}"
        elif colon and (_S390_CORE.fullmatch(name) or name in ("vendor_id", "CPU implementer")):
            yield None
    if block is not None:
        yield block
