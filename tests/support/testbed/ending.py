"""Ends processes by id, in order; run as a script it does so once its parent is gone.

Only the standard library and no import of this package: the script must start fast and in any
folder.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

PATIENCE_SECONDS = 10.0
"""How long a process may take to end after SIGTERM before it gets SIGKILL."""


@dataclass(frozen=True, slots=True, order=True)
class Ending:
    """A process to end. Those of a lower `rank` are gone before one of a higher rank is told.

    `pid` leads a session of its own; `marker` is a part of its command line, by which it is told
    from a later process that got the same id.
    """

    rank: int
    pid: int
    marker: str


def is_alive(ending: Ending) -> bool:
    """Tell whether the process still runs and is the one that was meant (a zombie does not run)."""
    if Path("/proc/self/stat").exists():
        folder = Path(f"/proc/{ending.pid}")
        try:
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            command = (folder / "cmdline").read_text()
        except (OSError, IndexError):
            return False
        # A process on its way out has lost its command line but may still hold its ports.
        return state not in "XZ" and (ending.marker in command or not command)
    shown = subprocess.run(
        ["ps", "-ww", "-o", "stat=,args=", "-p", str(ending.pid)],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    return bool(shown) and not shown.startswith("Z") and ending.marker in shown


def end_all(
    endings: Iterable[Ending],
    *,
    patience: float = PATIENCE_SECONDS,
    reap: Callable[[int], None] = lambda pid: None,
) -> None:
    """End the processes rank by rank: SIGTERM, wait for their end, SIGKILL after `patience`.

    `patience` is seconds. `reap` is called with the id of each process that is waited for, so that
    a parent can collect it.
    """
    remaining = sorted(endings)
    while remaining:
        rank = remaining[0].rank
        told = [ending for ending in remaining if ending.rank == rank]
        remaining = remaining[len(told) :]
        for number, wait in ((signal.SIGTERM, patience), (signal.SIGKILL, patience)):
            for ending in told:
                _send(ending, number)
            told = _wait(told, seconds=wait, reap=reap)
            if not told:
                break


def _send(ending: Ending, number: signal.Signals) -> None:
    """Send a signal to the process, if it is still there."""
    if is_alive(ending):
        try:
            os.kill(ending.pid, number)
        except ProcessLookupError:
            return


def _wait(endings: list[Ending], *, seconds: float, reap: Callable[[int], None]) -> list[Ending]:
    """Wait until the processes are gone; return those that are there after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        for ending in endings:
            reap(ending.pid)
        endings = [ending for ending in endings if is_alive(ending)]
        if not endings or time.monotonic() >= deadline:
            return endings
        time.sleep(0.01)


@dataclass(slots=True)
class Watch:
    """What the script has been told so far."""

    endings: set[Ending] = field(default_factory=set)
    folders: set[str] = field(default_factory=set)

    def obey(self, line: str) -> bool:
        """Take one line of the parent; return False when the script is to leave all as it is.

        Lines: `+ RANK PID MARKER`, `- RANK PID MARKER`, `remove FOLDER`, `leave`.
        """
        verb, _, rest = line.strip().partition(" ")
        if verb == "leave":
            return False
        if verb == "remove":
            self.folders.add(rest)
            return True
        rank, pid, marker = rest.split(" ", 2)
        ending = Ending(rank=int(rank), pid=int(pid), marker=marker)
        if verb == "+":
            self.endings.add(ending)
        else:
            self.endings.discard(ending)
        return True


def main() -> None:
    """Read lines from the parent until it is gone, then end what it left and remove its folders."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    watch = Watch()
    for line in sys.stdin:
        if not watch.obey(line):
            return
    end_all(watch.endings)
    for folder in watch.folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
