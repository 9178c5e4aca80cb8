"""Which CPU may load what another captured: the configured pairs (domain.md section 4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from sandbox_restore.errors import ConfigurationError
from sandbox_restore.fleet import cpu as cpus

SETTING: Final = "SPACE_SANDBOX_RESTORE_HOST_CPU_COMPATIBILITY"

_ARROW: Final = "=>"
_BLANKS: Final = " \t\r\n"
_MAX_SPLITS: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The CPUs of a fleet as one snapshot sees them; each part sorted."""

    loaders: tuple[str, ...] = ()
    """Published CPUs that can load it."""
    excluded: tuple[str, ...] = ()
    """Published CPUs that cannot."""
    known: tuple[str, ...] = ()
    """Every CPU that can by the rules of section 4, in the fleet or not."""


@dataclass(frozen=True, slots=True)
class Compatibility:
    """The configured pairs: capture CPU to the other CPUs that may load its snapshots.

    Pairs are one-way and never chained. That a CPU loads what it captured needs no pair.
    """

    pairs: Mapping[str, frozenset[str]] = field(default_factory=dict)
    _splits: dict[tuple[str, tuple[str, ...]], tuple[tuple[str, ...], Split]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """The last answer of `split` for each lineage, with the published CPUs that it was for."""

    @classmethod
    def parse(cls, text: str) -> tuple[Compatibility, list[str]]:
        """Section 4: the list as configured, and warnings about items that say nothing new.

        Raises ConfigurationError with every problem, each with the item and its position
        (counted from 1).
        """
        problems: list[str] = []
        warnings: list[str] = []
        pairs: dict[str, set[str]] = {}
        items = text.split(",") if text.strip(_BLANKS) else []
        for position, item in enumerate(items, start=1):
            where = f"{SETTING}: item {position} {item.strip(_BLANKS)!r}"
            found = _item_problems(item)
            if found:
                problems.extend(f"{where}: {problem}" for problem in found)
                continue
            capture, loader = (side.strip(_BLANKS) for side in item.split(_ARROW))
            if capture == loader:
                warnings.append(f"{where}: a CPU always loads what it captured; not needed")
            elif loader in pairs.setdefault(capture, set()):
                warnings.append(f"{where}: repeats an earlier item")
            else:
                pairs[capture].add(loader)
        if problems:
            raise ConfigurationError(problems)
        return cls({capture: frozenset(loaders) for capture, loaders in pairs.items()}), warnings

    def can_load(self, cpu: str, *, capture: str, ancestors: Iterable[str] = ()) -> bool:
        """Sections 4 and lineage: `cpu` loads the capture CPU's snapshots and each ancestor's.

        A value that is not usable (section 3) equals nothing, itself included.
        """
        if cpus.usable(cpu) is None:
            return False
        return all(
            cpus.usable(origin) is not None
            and (cpu == origin or cpu in self.pairs.get(origin, frozenset()))
            for origin in (capture, *ancestors)
        )

    def loaders(
        self, capture: str, ancestors: Iterable[str], candidates: Iterable[str]
    ) -> tuple[str, ...]:
        """Those of `candidates` on which the snapshot may be loaded, sorted."""
        known = self.known_loaders(capture, ancestors)
        return tuple(sorted({cpu for cpu in candidates if cpu in known}))

    def split(
        self, published: tuple[str, ...], *, capture: str, ancestors: tuple[str, ...]
    ) -> Split:
        """Section 8: the published CPUs by whether they can load the snapshot.

        Remembered: a fleet has few lineages, and its published CPUs seldom change.
        """
        lineage = (capture, ancestors)
        kept = self._splits.get(lineage)
        if kept is not None and kept[0] == published:
            return kept[1]
        known = self.known_loaders(capture, ancestors)
        found = Split(
            loaders=tuple(sorted(cpu for cpu in published if cpu in known)),
            excluded=tuple(sorted(cpu for cpu in published if cpu not in known)),
            known=tuple(sorted(known)),
        )
        if len(self._splits) >= _MAX_SPLITS:
            self._splits.clear()
        self._splits[lineage] = published, found
        return found

    def known_loaders(self, capture: str, ancestors: Iterable[str] = ()) -> frozenset[str]:
        """Every CPU that the rules of section 4 name as a loader, in the fleet or not."""
        able: frozenset[str] | None = None
        for origin in (capture, *ancestors):
            if cpus.usable(origin) is None:
                return frozenset()
            named = self.pairs.get(origin, frozenset()) | {origin}
            able = named if able is None else able & named
        return frozenset(cpu for cpu in able or () if cpus.usable(cpu) is not None)


def _item_problems(item: str) -> list[str]:
    """What is wrong with one comma-separated item; empty when it is a pair."""
    text = item.strip(_BLANKS)
    if not text:
        return ["empty item: a stray comma?"]
    sides = [side.strip(_BLANKS) for side in text.split(_ARROW)]
    if len(sides) == 1:
        return [f"no {_ARROW!r}: expected capture{_ARROW}loader"]
    if len(sides) > 2:
        return [f"more than one {_ARROW!r}: pairs are not chained, list each one"]
    problems = []
    for name, side in zip(("capture", "loader"), sides, strict=True):
        if not side:
            problems.append(f"the {name} side is empty")
        elif why := cpus.why_unusable(side):
            problems.append(f"the {name} side {side!r} is not usable: {why}")
    return problems or _cross_problems(sides[0], sides[1])


def _cross_problems(capture: str, loader: str) -> list[str]:
    """Section 4 [beyond]: no pair between known architectures or known vendors."""
    if not (cpus.vendor(capture) and cpus.vendor(loader)):
        return []
    if cpus.architecture(capture) != cpus.architecture(loader):
        return [
            f"{cpus.architecture(capture)} and {cpus.architecture(loader)} are different"
            " architectures: the state of one cannot be loaded on the other"
        ]
    if cpus.vendor(capture) != cpus.vendor(loader):
        return [
            f"{cpus.vendor(capture)} and {cpus.vendor(loader)} are different vendors: the"
            " registers of one cannot be set on the other"
        ]
    return []
