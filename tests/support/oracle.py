"""Asks kube-scheduler's own filter plugins which nodes a pod passes.

The program behind it is tests/support/testbed/go/oracle; it is built once for a user.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import IO, Any, Self

from tests.support.testbed import ensure_module
from tests.support.testbed.gomodules import ORACLE

Json = dict[str, Any]

_PODS_A_LINE = 256


class OracleError(Exception):
    """The program ended, or could not read what it was asked."""


class Oracle:
    """NodeAffinity (with nodeSelector), TaintToleration and NodeUnschedulable of kube-scheduler.

    Raises BuildError when the program is not there and cannot be built.
    """

    def __init__(self, *, log: Callable[[str], None] = print) -> None:
        program = ensure_module(ORACLE, log=log) / "oracle"
        self._process = subprocess.Popen(
            [str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.nanoseconds = 0
        """What the plugins have taken so far, without reading and writing JSON."""

    def keep(self, nodes: Sequence[Json]) -> None:
        """The fleet that is meant from now on."""
        self._ask({"nodes": list(nodes)})

    def passes(self, pods: Sequence[Json]) -> list[frozenset[str]]:
        """For each pod the names of the nodes that no plugin rejects."""
        answer: list[frozenset[str]] = []
        for start in range(0, len(pods), _PODS_A_LINE):
            told = self._ask({"pods": list(pods[start : start + _PODS_A_LINE])})
            answer += map(frozenset, told["passes"])
        return answer

    def why(self, pod: Json, nodes: Sequence[Json]) -> dict[str, str]:
        """The reason for each node that is rejected; keeps these nodes."""
        reasons: dict[str, str] = self._ask({"nodes": list(nodes), "pods": [pod], "why": True})[
            "why"
        ][0]
        return reasons

    def _ask(self, question: Json) -> Json:
        given, told = self._pipes()
        try:
            given.write(json.dumps(question, separators=(",", ":")) + "\n")
            given.flush()
        except BrokenPipeError:
            raise OracleError(f"the oracle has ended (code {self._process.wait()})") from None
        line = told.readline()
        if not line:
            raise OracleError(f"the oracle has ended (code {self._process.wait()})")
        answer: Json = json.loads(line)
        if answer.get("error"):
            raise OracleError(answer["error"])
        self.nanoseconds += answer["nanoseconds"]
        return answer

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        given, told = self._process.stdin, self._process.stdout
        if given is None or told is None or given.closed:
            raise OracleError("the oracle is closed")
        return given, told

    def close(self) -> None:
        """Ends the program."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.wait(timeout=10)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
