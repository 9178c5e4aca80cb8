"""What a runner reads out of a snapshot: the CPU it was captured on, and how new its state is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """A snapshot as its files tell it."""

    cpu: str
    version: int = 1
    """Rises with each suspend of the sandbox: a lower version holds older state."""
    ancestors: tuple[str, ...] = ()
    """CPUs that the guest ran on before the one it was captured on."""


class Captures(Protocol):
    """Where snapshots are looked up; storage that any node can reach."""

    def find(self, snapshot_id: str) -> Capture | None:
        """Return the snapshot, or None when storage does not have it."""
        ...


class CapturesInMemory:
    """Snapshots that a test in the same process puts there."""

    def __init__(self, captures: Mapping[str, Capture | str] | None = None) -> None:
        self._known: dict[str, Capture] = {}
        for snapshot_id, capture in (captures or {}).items():
            self.put(snapshot_id, capture)

    def put(self, snapshot_id: str, capture: Capture | str) -> None:
        """Add a snapshot; a string is its capture CPU."""
        self._known[snapshot_id] = Capture(cpu=capture) if isinstance(capture, str) else capture

    def remove(self, snapshot_id: str) -> None:
        """Take a snapshot out of storage."""
        self._known.pop(snapshot_id, None)

    def find(self, snapshot_id: str) -> Capture | None:
        return self._known.get(snapshot_id)


class CapturesFile:
    """Snapshots in a JSON file, which is read again when it has changed.

    An object `snapshot id -> CPU label` or `snapshot id -> {"cpu", "version", "ancestors"}`. The
    file may be absent at first.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._known: dict[str, Capture] = {}

    def find(self, snapshot_id: str) -> Capture | None:
        self._refresh()
        return self._known.get(snapshot_id)

    def _refresh(self) -> None:
        try:
            stat = self._path.stat()
        except FileNotFoundError:
            return
        stamp = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        if stamp != self._stamp:
            # A file that is half written is read again by the next look-up: the stamp stays old.
            try:
                document: dict[str, Any] = json.loads(self._path.read_text())
            except ValueError:
                return
            self._known = {key: _capture(value) for key, value in document.items()}
            self._stamp = stamp


def write_captures(path: Path, captures: Mapping[str, Capture | str]) -> None:
    """Write a captures file in one step, so that no reader sees half of it."""
    document = {
        key: value
        if isinstance(value, str)
        else {"cpu": value.cpu, "version": value.version, "ancestors": list(value.ancestors)}
        for key, value in captures.items()
    }
    beside = path.with_name(path.name + ".new")
    beside.write_text(json.dumps(document, indent=1))
    beside.replace(path)


def _capture(value: Any) -> Capture:
    if isinstance(value, str):
        return Capture(cpu=value)
    return Capture(
        cpu=value["cpu"],
        version=value.get("version", 1),
        ancestors=tuple(value.get("ancestors", ())),
    )
