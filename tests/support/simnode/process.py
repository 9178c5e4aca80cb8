"""Simulated nodes in a process of their own, which a test can kill and start again."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.simnode.record import check_record
from tests.support.simnode.remote import Remote

START_SECONDS = 30.0
"""How long the process may take to start; it takes under a second on idle cores."""

_ROOT = Path(__file__).parents[3]


class SimNodeError(Exception):
    """The process did not start, or ended with an error; the text has its last lines."""


class SimNodeProcess:
    """`python -m tests.support.simnode`; an asynchronous context manager.

    It ends with this process, whatever ends that.
    """

    def __init__(
        self,
        kubeconfig: Path,
        *,
        captures: Path,
        record: Path,
        log: Path,
        load_seconds: float = 0.05,
        style: str = "coded",
    ) -> None:
        """Prepare; `log` gets what the process prints, over all its starts."""
        self.record = record
        self.log = log
        self._command = [
            *(sys.executable, "-m", "tests.support.simnode"),
            *("--kubeconfig", str(kubeconfig)),
            *("--captures", str(captures)),
            *("--record", str(record)),
            *("--load-seconds", str(load_seconds)),
            *("--style", style),
            "--end-with-stdin",
        ]
        self._process: asyncio.subprocess.Process | None = None
        self._remote: Remote | None = None

    async def __aenter__(self) -> SimNodeProcess:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            await self.kill()
        else:
            await self.stop()

    async def start(self) -> None:
        """Start it; returns once it has taken over all nodes and pods. Raises SimNodeError."""
        assert self._process is None, "it runs already"
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                cwd=_ROOT,
            )
        assert self._process.stdout is not None
        try:
            line = await asyncio.wait_for(self._process.stdout.readline(), START_SECONDS)
            self._remote = Remote(json.loads(line)["control"])
        except (TimeoutError, ValueError) as error:
            await self.kill()
            raise SimNodeError(f"simulated nodes did not start:\n{self._tail()}") from error

    async def stop(self) -> None:
        """End it with SIGTERM.

        Raises SimNodeError when something happened meanwhile that must never happen.
        """
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            process.terminate()
        code = await process.wait()
        if code:
            raise SimNodeError(f"simulated nodes ended with code {code}:\n{self._tail()}")

    async def kill(self) -> None:
        """End it with SIGKILL; `start` takes over where it stopped."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()

    async def call(self, verb: str, **arguments: object) -> Any:
        """Call a method of SimNode by name; see `simulation.VERBS`. Raises RemoteError."""
        assert self._remote is not None, "it was never started"
        return await self._remote.call(verb, **arguments)

    def violations(self) -> list[str]:
        """Return what must never happen and happened so far, by the record."""
        return check_record(self.record) if self.record.exists() else []

    def _tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-8:])
