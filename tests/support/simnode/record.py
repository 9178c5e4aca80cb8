"""The record: an append-only file of what really ran where, and what it proves.

The simulated nodes write it before they tell the API server anything, so it is the truth that the
operator's deeds are held against, and what the nodes themselves go by after a restart.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import msgspec

from tests.support.simnode.captures import Capture


class Event(StrEnum):
    """What a line of the record tells."""

    SIMULATION_STARTED = "simulation-started"
    """The simulated nodes started (again)."""
    VM_STARTED = "vm-started"
    """A snapshot was loaded: from here on a VM lives."""
    VM_ENDED = "vm-ended"
    """The VM is gone."""
    LOAD_REFUSED = "load-refused"
    """Firecracker did not load the snapshot, or the runner did not ask it to; no VM lived."""
    VM_SUSPENDED = "vm-suspended"
    """A VM was captured; `snapshot` and `version` are the new ones. Its vm-ended follows."""
    STATE_ACKNOWLEDGED = "state-acknowledged"
    """The platform promised not to lose state of this `version`."""
    FILES_DROPPED = "files-dropped"
    """A node lost the files of its snapshots."""


class Entry(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One line of the record."""

    seq: int
    """Rises by one with each line, also across restarts."""
    at: float
    """Seconds since 1970 of the machine's clock; `seq` gives the order."""
    event: Event
    sandbox: str = ""
    snapshot: str = ""
    version: int = 0
    namespace: str = ""
    pod: str = ""
    pod_uid: str = ""
    restore: str = ""
    restore_uid: str = ""
    execution: str = ""
    attempt: int = 0
    source: str = ""
    node: str = ""
    node_cpu: str = ""
    """The CPU that the node really has."""
    node_label: str = ""
    """The node's host-CPU label at that moment; empty when it has none."""
    excluded: list[str] = []
    """CPUs that the pod's own required terms keep it off, on load and refusal."""
    capture_cpu: str = ""
    ancestors: list[str] = []
    code: str = ""
    """Class of the failure, of a refused load."""
    message: str = ""
    """Termination message of the container."""
    exit_code: int = 0
    reason: str = ""
    """Why a VM ended."""


@dataclass(slots=True)
class History:
    """What follows from the entries so far; `apply` them in order."""

    live: dict[str, dict[str, Entry]] = field(default_factory=dict)
    """Sandbox -> pod UID -> the start of a VM that still lives."""
    started: dict[str, Entry] = field(default_factory=dict)
    """Pod UID -> the start of its VM, living or not."""
    ended: dict[str, Entry] = field(default_factory=dict)
    """Pod UID -> the end of its VM, or the refused load."""
    files: dict[str, set[str]] = field(default_factory=dict)
    """Node -> snapshots whose files it holds."""
    made: dict[str, Capture] = field(default_factory=dict)
    """Snapshots that suspends made."""
    acknowledged: dict[str, int] = field(default_factory=dict)
    """Sandbox -> newest version that the platform acknowledged."""
    seq: int = 0

    def apply(self, entry: Entry) -> list[str]:
        """Take in one entry; return what must never happen and happened with it."""
        self.seq = entry.seq
        match entry.event:
            case Event.VM_STARTED:
                return self._start(entry)
            case Event.VM_ENDED:
                return self._end(entry)
            case Event.LOAD_REFUSED:
                self.ended[entry.pod_uid] = entry
                if entry.capture_cpu:
                    # It came to a load, so the files are there; a plan that was wrong brings none.
                    self.files.setdefault(entry.node, set()).add(entry.snapshot)
            case Event.VM_SUSPENDED:
                self.files.setdefault(entry.node, set()).add(entry.snapshot)
                self.made[entry.snapshot] = Capture(
                    cpu=entry.capture_cpu, version=entry.version, ancestors=tuple(entry.ancestors)
                )
            case Event.STATE_ACKNOWLEDGED:
                newest = max(self.acknowledged.get(entry.sandbox, 0), entry.version)
                self.acknowledged[entry.sandbox] = newest
            case Event.FILES_DROPPED:
                self.files.pop(entry.node, None)
            case Event.SIMULATION_STARTED:
                pass
        return []

    def lives(self, pod_uid: str) -> bool:
        """Tell whether the VM of that pod lives."""
        return pod_uid in self.started and pod_uid not in self.ended

    def vms_on(self, node: str) -> list[Entry]:
        """Return the starts of the VMs that live on a node."""
        return [vm for vms in self.live.values() for vm in vms.values() if vm.node == node]

    def _start(self, entry: Entry) -> list[str]:
        found = []
        vms = self.live.setdefault(entry.sandbox, {})
        if vms:
            others = ", ".join(f"{vm.pod} on {vm.node}" for vm in vms.values())
            found.append(
                f"line {entry.seq}: two live VMs of sandbox {entry.sandbox}: "
                f"{entry.pod} on {entry.node} beside {others}"
            )
        if entry.pod_uid in self.started:
            found.append(f"line {entry.seq}: pod {entry.pod} ({entry.pod_uid}) started two VMs")
        newest = self.acknowledged.get(entry.sandbox, 0)
        if entry.version < newest:
            found.append(
                f"line {entry.seq}: sandbox {entry.sandbox} was restored from snapshot "
                f"{entry.snapshot} (version {entry.version}), older than acknowledged state "
                f"(version {newest})"
            )
        vms[entry.pod_uid] = entry
        self.started[entry.pod_uid] = entry
        self.files.setdefault(entry.node, set()).add(entry.snapshot)
        return found

    def _end(self, entry: Entry) -> list[str]:
        self.ended[entry.pod_uid] = entry
        if self.live.get(entry.sandbox, {}).pop(entry.pod_uid, None) is None:
            return [f"line {entry.seq}: the VM of pod {entry.pod} ended and did not live"]
        return []


class RecordInUseError(Exception):
    """Another process simulates nodes with this record."""


class Record:
    """The record of running simulated nodes; one process at a time writes it, line by line."""

    def __init__(self, path: Path) -> None:
        """Open or continue the record at `path`.

        Raises RecordInUseError while another process has it open.
        """
        self.path = path
        self.history = History()
        self.violations: list[str] = []
        self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._fd)
            raise RecordInUseError(f"{path} is written by another simulation") from error
        for entry in read_record(path):
            self.violations += self.history.apply(entry)
        if _ends_mid_line(path):
            os.write(self._fd, b"\n")

    def append(self, event: Event, **fields: object) -> Entry:
        """Write one line; it is in the file when this returns."""
        entry = msgspec.convert(
            {"seq": self.history.seq + 1, "at": round(time.time(), 6), "event": event}
            | {msgspec_name(key): value for key, value in fields.items()},
            Entry,
        )
        os.write(self._fd, msgspec.json.encode(entry) + b"\n")
        self.violations += self.history.apply(entry)
        return entry

    def close(self) -> None:
        """Give the record free for another process."""
        os.close(self._fd)


def read_record(path: Path) -> Iterator[Entry]:
    """Yield the entries of a record; a line that was cut off by a crash is left out."""
    decoder = msgspec.json.Decoder(Entry)
    for line in path.read_bytes().splitlines():
        try:
            yield decoder.decode(line)
        except msgspec.DecodeError:
            continue


def check_record(
    path: Path, *, check_older: bool = True, named_by_user: Collection[str] = ()
) -> list[str]:
    """Return all that must never happen and happened, a line each; empty when all was well.

    Two live VMs of one sandbox at any time; two VMs in one pod; with `check_older` also a load of
    a snapshot older than acknowledged state, unless the user named it (`named_by_user`).
    """
    history = History()
    found: list[str] = []
    before = 0
    for entry in read_record(path):
        if entry.seq != before + 1:
            found.append(f"line {entry.seq} follows line {before}: the record has a gap")
        before = entry.seq
        excused = not check_older or entry.snapshot in named_by_user
        found += [
            line for line in history.apply(entry) if not (excused and "older than ackn" in line)
        ]
    return found


def msgspec_name(attribute: str) -> str:
    """Return the name in the file of an attribute of Entry."""
    return Entry.__struct_encode_fields__[Entry.__struct_fields__.index(attribute)]


def _ends_mid_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(0, os.SEEK_END)
        if file.tell() == 0:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"
