"""A control plane that stays when the command that started it ends."""

import contextlib
import fcntl
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.support.testbed.build import ensure_built
from tests.support.testbed.controlplane import ControlPlane
from tests.support.testbed.ending import Ending, end_all, is_alive
from tests.support.testbed.errors import TestbedError

STATE_FOLDER = Path(__file__).parents[3] / ".cluster"
"""Where the working tree remembers its control plane; ignored by git."""

Log = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A control plane in the background: where it is, a kubectl for it, and how to end it."""

    root: str
    kubeconfig: str
    server: str
    kubectl: str
    endings: list[Ending]


def start(*, root: Path | None = None, log: Log = print) -> Running:
    """Start a control plane in the background, or return the one that runs.

    `root` is its folder, by default one below STATE_FOLDER. What is left of one that has died in
    part is ended first. Errors as for `ensure_built` and `ControlPlane.start`.
    """
    with _lock():
        found = _read()
        if found and all(is_alive(ending) for ending in found.endings):
            log(f"a control plane runs already: {found.server}, in {found.root}")
            return found
        if found:
            _end(found)
        programs = ensure_built(log=log)
        plane = ControlPlane.start(programs, root=root or _new_folder())
        running = Running(
            root=str(plane.root),
            kubeconfig=str(plane.kubeconfig),
            server=plane.server,
            kubectl=str(programs.kubectl),
            endings=plane.detach(),
        )
        _state_file().write_text(json.dumps(asdict(running), indent=2) + "\n")
        log(f"a control plane runs: {running.server}, in {running.root}")
        return running


def stop() -> bool:
    """End the control plane in the background and remove its folder; False when none was there."""
    with _lock():
        found = _read()
        if not found:
            return False
        _end(found)
        return True


def running() -> Running:
    """Return the control plane in the background; raises TestbedError when none runs."""
    found = _read()
    if not found or not all(is_alive(ending) for ending in found.endings):
        raise TestbedError(
            "no control plane runs; start one with: python -m tests.support.testbed start"
        )
    return found


def _end(found: Running) -> None:
    """End what still runs of a control plane, and forget it."""
    end_all(found.endings)
    shutil.rmtree(found.root, ignore_errors=True)
    _state_file().unlink(missing_ok=True)


def _new_folder() -> Path:
    """Return the default folder, without what a start that was killed may have left in it."""
    folder = STATE_FOLDER / "control-plane"
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def _state_file() -> Path:
    return STATE_FOLDER / "state.json"


def _read() -> Running | None:
    """Return what the state file tells, None when there is none."""
    try:
        told = json.loads(_state_file().read_text())
        endings = [Ending(**ending) for ending in told.pop("endings")]
        return Running(**told, endings=endings)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise TestbedError(
            f"{_state_file()} cannot be read ({error}); end the control plane's processes by hand "
            f"and remove {STATE_FOLDER}"
        ) from error


@contextlib.contextmanager
def _lock() -> Iterator[None]:
    """Let one command at a time start or stop."""
    STATE_FOLDER.mkdir(exist_ok=True)
    with (STATE_FOLDER / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
