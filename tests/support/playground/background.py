"""Starts the playground as a process that stays, and ends it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from tests.support.playground.parts import ENV_FILE, FOLDER, LOG_FILE
from tests.support.testbed import TestbedError, ensure_built, wait_until
from tests.support.testbed.ending import Ending, end_all, is_alive

START_SECONDS = 120.0
STOP_SECONDS = 60.0
"""How long the parts may take to start and to end; on idle cores they take some seconds."""

_ROOT = Path(__file__).parents[3]
_MARKER = "tests.support.playground"


def start() -> None:
    """Start the playground, or leave the one that runs alone. Raises TestbedError."""
    # Progress of a build goes to this terminal, not to the log of the process that stays.
    ensure_built(log=lambda line: print(line, file=sys.stderr, flush=True))
    with _lock():
        if (found := _read()) is not None and is_alive(found) and ENV_FILE.exists():
            return
        _end(found)
        FOLDER.mkdir(parents=True)
        with LOG_FILE.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", _MARKER, "serve"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=_ROOT,
                start_new_session=True,
            )
        started = Ending(rank=0, pid=process.pid, marker=_MARKER)
        _state_file().write_text(json.dumps(asdict(started)) + "\n")
        try:
            wait_until(
                lambda: ENV_FILE.exists() or process.poll() is not None,
                what="the playground runs",
                timeout=START_SECONDS,
            )
            if process.poll() is not None:
                raise TestbedError(f"the playground did not start:\n{_tail()}")
        except BaseException:
            _end(started)
            raise


def stop() -> bool:
    """End the playground and remove its files; False when none was there."""
    with _lock():
        found = _read()
        _end(found)
        return found is not None


def shown(path: Path) -> str:
    """Return a path as one types it in the working tree."""
    return str(path.relative_to(_ROOT))


def _end(found: Ending | None) -> None:
    if found is not None and is_alive(found):
        end_all([found], patience=STOP_SECONDS)
    shutil.rmtree(FOLDER, ignore_errors=True)
    _state_file().unlink(missing_ok=True)


def _read() -> Ending | None:
    """Return the process that was left running, None when none was."""
    try:
        return Ending(**json.loads(_state_file().read_text()))
    except FileNotFoundError:
        return None


def _tail() -> str:
    return "\n".join(LOG_FILE.read_text(errors="replace").splitlines()[-8:])


def _state_file() -> Path:
    return FOLDER.with_name("playground.json")


@contextlib.contextmanager
def _lock() -> Iterator[None]:
    """Let one command at a time start or stop."""
    FOLDER.parent.mkdir(exist_ok=True)
    with FOLDER.with_name("playground.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
