"""`python -m tests.support.simnode`: simulated nodes as a process."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import signal
import sys
from pathlib import Path

from tests.support.simnode.captures import CapturesFile
from tests.support.simnode.matrix import MATRIX_FILE, load_matrix
from tests.support.simnode.record import RecordInUseError
from tests.support.simnode.remote import serve
from tests.support.simnode.simulation import SimNode

VIOLATED = 3
"""Exit code when something happened that must never happen; standard error says what."""


def main() -> int:
    """Act for simulated nodes until SIGTERM or SIGINT, or the end of standard input if so told."""
    arguments = _parser().parse_args()
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    logging.getLogger("simnode").setLevel(logging.INFO)
    try:
        return asyncio.run(_run(arguments))
    except RecordInUseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


async def _run(arguments: argparse.Namespace) -> int:
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    if arguments.end_with_stdin:
        await loop.connect_read_pipe(lambda: _EndOfInput(ending), sys.stdin)
    nodes = SimNode(
        arguments.kubeconfig,
        matrix=load_matrix(arguments.matrix),
        captures=CapturesFile(arguments.captures),
        record=arguments.record,
        load_seconds=arguments.load_seconds,
        style=arguments.style,
    )
    await nodes.start()
    server, port = await serve(nodes)
    # The one line on standard output: whoever started this process waits for it.
    print(json.dumps({"simulation": "nodes and restore runners; no VM runs", "control": port}))
    sys.stdout.flush()
    await ending.wait()
    await server.cleanup()
    await nodes.stop()
    try:
        nodes.check()
    except AssertionError as error:
        print(f"error: {error}", file=sys.stderr)
        return VIOLATED
    return 0


class _EndOfInput(asyncio.Protocol):
    """Sets an event when the other side of a pipe is gone."""

    def __init__(self, ending: asyncio.Event) -> None:
        self._ending = ending

    def connection_lost(self, exc: Exception | None) -> None:
        self._ending.set()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.simnode",
        description="Plays kubelet and restore runner for simulated nodes. No VM runs.",
    )
    add = parser.add_argument
    add("--kubeconfig", type=Path, required=True)
    add("--captures", type=Path, required=True, help="JSON: snapshot id -> CPU it was captured on")
    add("--record", type=Path, required=True, help="what ran where; continued where it ends")
    add("--matrix", type=Path, default=MATRIX_FILE, help="YAML: which CPU loads which snapshot")
    add("--load-seconds", type=float, default=0.05, help="how long a load takes")
    add("--style", choices=("coded", "plain"), default="coded", help="how failures are told")
    add("--end-with-stdin", action="store_true", help="end when standard input is closed")
    return parser


if __name__ == "__main__":
    sys.exit(main())
