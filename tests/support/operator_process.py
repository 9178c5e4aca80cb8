"""The real operator as a process: started, waited for, stopped, killed."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import aiohttp

from tests.support.testbed.ports import LOOPBACK, free_ports
from tests.support.waiting import until

READY_SECONDS = 60.0
STOP_SECONDS = 30.0
"""How long the operator may take to get ready and to end, in seconds."""

_ROOT = Path(__file__).parents[2]
_PREFIX = "SPACE_SANDBOX_RESTORE_"
_TAIL_LINES = 15


class OperatorError(AssertionError):
    """The operator did not do as expected; the text has its last log lines."""


class OperatorProcess:
    """`sandbox-restore run`; an asynchronous context manager that starts, waits and stops.

    Its environment is that of a bare shell and what `env` adds, so that settings of the person who
    runs the tests do not reach it. `start` may be called again after `stop` or `kill`.
    """

    def __init__(
        self,
        kubeconfig: Path,
        dsn: str,
        *,
        env: Mapping[str, str] | None = None,
        log_path: Path | None = None,
        program: Sequence[str] | None = None,
        arguments: Sequence[str] = ("run",),
    ) -> None:
        """Prepare. `log_path` gets all that it prints, over all its starts.

        `program` stands in for the installed one, with the same arguments.
        """
        self._arguments = list(arguments)
        self._program = list(program) if program is not None else _command()
        self.health_port = free_ports(1)[0]
        if log_path is None:
            handle, name = tempfile.mkstemp(prefix="operator-", suffix=".log")
            os.close(handle)
            log_path = Path(name)
        self.log_path = log_path
        self.environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(log_path.parent),
            "PYTHONPATH": f"{_ROOT / 'operator'}{os.pathsep}{_ROOT}",
            "KUBECONFIG": str(kubeconfig),
            f"{_PREFIX}DATABASE_URL": dsn,
            f"{_PREFIX}HEALTH_HOST": LOOPBACK,
            f"{_PREFIX}HEALTH_PORT": str(self.health_port),
            f"{_PREFIX}LOG_FORMAT": "json",
            **(env or {}),
        }
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> OperatorProcess:
        await self.start()
        try:
            await self.wait_ready()
        except BaseException:
            await self.kill()
            raise
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
        """Start the process; `wait_ready` says when it works."""
        assert self._process is None, "it runs already"
        with self.log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._program,
                *self._arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment,
                cwd=self.log_path.parent,
            )

    async def wait_ready(self, *, deadline_s: float = READY_SECONDS) -> None:
        """Wait until `/readyz` answers 200; raises OperatorError when the process ends before."""

        async def answers() -> bool:
            if self._process is None or self._process.returncode is not None:
                raise OperatorError(f"the operator ended before it was ready:\n{self.tail()}")
            return await self.probe("/readyz") == 200

        await until(answers, deadline_s=deadline_s, what="the operator is ready", detail=self.tail)

    async def probe(self, path: str) -> int:
        """Return the HTTP status that a path of the health port answers; 0 when none does."""
        url = f"http://{LOOPBACK}:{self.health_port}{path}"
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session,
                session.get(url) as answer,
            ):
                return answer.status
        except (aiohttp.ClientError, TimeoutError):
            return 0

    async def text(self, path: str) -> str:
        """Return what a path of the health port answers."""
        url = f"http://{LOOPBACK}:{self.health_port}{path}"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return await answer.text()

    async def wait(self, *, deadline_s: float = STOP_SECONDS) -> int:
        """Wait until the process has ended by itself; return its exit code."""
        assert self._process is not None, "it does not run"
        try:
            code = await asyncio.wait_for(self._process.wait(), deadline_s)
        except TimeoutError as error:
            raise OperatorError(
                f"the operator did not end within {deadline_s:g} s:\n{self.tail()}"
            ) from error
        self._process = None
        return code

    async def stop(self) -> int:
        """End it with SIGTERM and return its exit code; one that does not end is killed.

        Raises OperatorError when it had to be killed or its exit code is not 0.
        """
        if self._process is None:
            return 0
        if self._process.returncode is None:
            self._process.terminate()
        try:
            code = await self.wait()
        except OperatorError:
            await self.kill()
            raise
        if code != 0:
            raise OperatorError(f"the operator ended with code {code}:\n{self.tail()}")
        return code

    async def kill(self) -> None:
        """End it with SIGKILL, as a crash would."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    def log(self) -> str:
        """Return all that it has printed."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def tail(self) -> str:
        """Return the last lines that it has printed."""
        return "\n".join(self.log().splitlines()[-_TAIL_LINES:])


def _command() -> list[str]:
    """Return the installed program, or the same from the source root where nothing is installed."""
    program = Path(sys.executable).parent / "sandbox-restore"
    if program.exists():
        return [str(program)]
    return [sys.executable, "-m", "sandbox_restore.cli.main"]
