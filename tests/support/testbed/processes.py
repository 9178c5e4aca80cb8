"""The programs of a control plane as processes: started, watched, ended in order."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.testbed import ending
from tests.support.testbed.errors import ComponentDiedError, TestbedError

LOG_TAIL_LINES = 8
"""How many of a program's last log lines an error message shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """A program with its arguments.

    `rank` is its place in the order of ending: a program of a lower rank is gone before one of a
    higher rank is told to end. Some argument must name a file below the control plane's folder, by
    which its process is known again.
    """

    name: str
    rank: int
    command: Sequence[str]


class Processes:
    """The running programs of one control plane.

    A small helper process, started first, ends them all and removes the folder when this process
    goes without having done so, whatever ended it (SIGKILL too).
    """

    def __init__(self, root: Path, *, remove_root: bool) -> None:
        """Watch over programs whose files lie in `root`, which is removed at the end if so told."""
        self.root = root
        self._running: dict[str, tuple[Component, subprocess.Popen[bytes]]] = {}
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", ending.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
            text=True,
        )
        if remove_root:
            self._tell(f"remove {root}")

    def log(self, name: str) -> Path:
        """Return the path of the log of component `name`: both of its output streams."""
        return self.root / f"{name}.log"

    @property
    def names(self) -> list[str]:
        """The programs that were started and not stopped."""
        return list(self._running)

    def pid(self, name: str) -> int:
        """Return the process id of a started program."""
        return self._running[name][1].pid

    def start(self, component: Component) -> None:
        """Start a program; its log is appended to. It outlives a Ctrl-C at the terminal.

        Raises TestbedError when there is no such program.
        """
        with self.log(component.name).open("ab") as log:
            try:
                process = subprocess.Popen(
                    component.command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    cwd=self.root,
                    env=self._environment(),
                )
            except OSError as error:
                raise TestbedError(
                    f"{component.name} cannot be started: {error}; remove its folder and build "
                    "again: python -m tests.support.testbed build"
                ) from error
        self._running[component.name] = (component, process)
        self._tell(f"+ {self._line(self._ending(component.name))}")

    def check(self) -> None:
        """Raise ComponentDiedError when a started program has ended by itself."""
        for component, process in self._running.values():
            code = process.poll()
            if code is not None:
                raise ComponentDiedError(self._obituary(component, code))

    def stop(self, name: str) -> None:
        """End one program and wait for its end."""
        self._end([name])

    def stop_all(self) -> None:
        """End every program in the order of the ranks, and the helper process."""
        self._end(list(self._running))
        self._close_guard()

    def release(self) -> list[ending.Ending]:
        """Leave the programs running when this process ends; return what is needed to end them."""
        left = [self._ending(name) for name in self._running]
        self._tell("leave")
        self._close_guard()
        return left

    def _end(self, names: Sequence[str]) -> None:
        """End the named programs; forget them once they are gone."""
        popens = {process.pid: process for _, process in self._running.values()}
        endings = {name: self._ending(name) for name in names}
        ending.end_all(endings.values(), reap=lambda pid: _reap(popens[pid]))
        for name, ended in endings.items():
            _reap(popens[ended.pid])
            self._tell(f"- {self._line(ended)}")
            del self._running[name]

    def _ending(self, name: str) -> ending.Ending:
        component, process = self._running[name]
        return ending.Ending(rank=component.rank, pid=process.pid, marker=str(self.root))

    @staticmethod
    def _line(one: ending.Ending) -> str:
        return f"{one.rank} {one.pid} {one.marker}"

    def _tell(self, line: str) -> None:
        """Send a line to the helper; without one, the programs still end with `stop_all`."""
        if self._guard.stdin:
            with contextlib.suppress(BrokenPipeError):
                self._guard.stdin.write(line + "\n")
                self._guard.stdin.flush()

    def _close_guard(self) -> None:
        """Close the helper's input, upon which it does what is left to do and ends."""
        if self._guard.stdin:
            with contextlib.suppress(BrokenPipeError):
                self._guard.stdin.close()
        self._guard.wait()

    def _environment(self) -> Mapping[str, str]:
        """Return the programs' environment: nothing of the user's settings reaches them."""
        return {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(self.root)}

    def _obituary(self, component: Component, code: int) -> str:
        """Return the message for a program that ended by itself."""
        log = self.log(component.name)
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        tail = "\n  ".join(lines[-LOG_TAIL_LINES:])
        how = f"exit code {code}" if code >= 0 else f"signal {-code}"
        return f"{component.name} ended by itself ({how}); its last lines:\n  {tail}"


def _reap(process: subprocess.Popen[bytes]) -> None:
    """Collect the process if it has ended."""
    process.poll()
