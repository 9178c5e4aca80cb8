"""One operator after another, each killed at a moment of the test's choice, and one that is not."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

from tests.support.operator_process import OperatorError, OperatorProcess

KILLED_SECONDS = 60.0
"""How long an operator may take to come to the moment of its death; it takes some seconds."""


class Operators:
    """Children of one process (`tests.support.crashing_operator`), so that each starts at once."""

    def __init__(self, prepared: OperatorProcess) -> None:
        """`prepared` tells where they run; it is not started itself."""
        self._of = prepared
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        with self._of.log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.support.crashing_operator"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=self._of.environment,
                cwd=self._of.log_path.parent,
                start_new_session=True,
            )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        process.stdin.close()
        if error is not None:
            process.terminate()
        await asyncio.wait_for(process.wait(), KILLED_SECONDS)

    async def killed(self, point: str) -> None:
        """Runs one that dies there (`before:create-pod:2`). Raises OperatorError if it does not."""
        await self._begin(point)
        code = await self._ended(f"dies {point}")
        if code != -signal.SIGKILL:
            raise OperatorError(f"{point}: it ended with code {code}:\n{self._of.tail()}")

    @asynccontextmanager
    async def spared(self) -> AsyncIterator[None]:
        """One that lives as long as the block."""
        await self._begin("")
        try:
            yield
        finally:
            assert self._process is not None
            self._process.terminate()
            await self._ended("stops")

    async def _begin(self, line: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        await self._process.stdin.drain()

    async def _ended(self, what: str) -> int:
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            line = await asyncio.wait_for(self._process.stdout.readline(), KILLED_SECONDS)
        except TimeoutError as error:
            self._process.terminate()
            raise OperatorError(f"no operator {what}:\n{self._of.tail()}") from error
        if not line:
            raise OperatorError(f"the operators have ended:\n{self._of.tail()}")
        return int(line)
