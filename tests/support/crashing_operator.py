"""The real operator that kills itself (SIGKILL) right before or after one of its side effects.

`python -m tests.support.crashing_operator` reads lines `WHEN:EFFECT:N` from standard input. For
each it forks a child that runs the operator and is gone when EFFECT is about to happen (`before`)
or has happened (`after`) for the N-th time; the child's end is printed, and the next line makes its
successor. An empty line makes one that nothing kills; it ends with SIGTERM. Everything else is the
program as installed; forking saves its start, which is most of its life here.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

# What the operator imports only when it runs is imported here, once for all children.
import sandbox_restore.app
from sandbox_restore.cli.main import main
from sandbox_restore.kube.objects import KubeObjects
from sandbox_restore.store.locked import LockedSandbox
from sandbox_restore.store.store import Store

assert sandbox_restore.app


@dataclass(frozen=True, slots=True)
class Call:
    """A side effect that is one call; `event` narrows it to Events with that reason."""

    owner: type
    name: str
    event: str | None = None

    def means(self, args: tuple[Any, ...]) -> bool:
        return self.event is None or args[2]["reason"] == self.event


@dataclass(frozen=True, slots=True)
class Row:
    """A side effect that is a transaction: `before` all is written and nothing is committed."""

    name: str
    clear_pin: bool | None = None

    def means(self, more: dict[str, Any]) -> bool:
        return self.clear_pin is None or more["clear_pin"] is self.clear_pin


EFFECTS: dict[str, Call | Row] = {
    "begin-row": Row("begin_attempt", clear_pin=False),
    "create-pod": Call(KubeObjects, "create_pod"),
    "ungate": Call(KubeObjects, "ungate"),
    "loaded-row": Call(Store, "mark_loaded"),
    "release": Call(KubeObjects, "release"),
    "released-row": Call(Store, "mark_released"),
    "event": Call(KubeObjects, "create_event"),
    "status": Call(KubeObjects, "apply_status"),
    "retire-row": Row("retire"),
    "drop-finalizer": Call(KubeObjects, "drop_finalizer"),
    "delete-pod": Call(KubeObjects, "delete_pod"),
    "redirect-row": Row("begin_attempt", clear_pin=True),
    "redirect-event": Call(KubeObjects, "create_event", event="RedirectedToStorage"),
    "give-up-event": Call(KubeObjects, "create_event", event="MarkerGivenUp"),
    "give-up-row": Row("clear_marker"),
}
"""Every side effect of an attempt and of a redirect (docs/protocol.md)."""


class _Countdown:
    """Kills this process when it has been asked so many times."""

    def __init__(self, count: int) -> None:
        self._left = count

    def __call__(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def arm(when: str, effect: str, count: int) -> None:
    """This process will not outlive that moment."""
    found, die = EFFECTS[effect], _Countdown(count)
    if isinstance(found, Row):
        _arm_row(found, when, die)
    else:
        _arm_call(found, when, die)


def _arm_call(effect: Call, when: str, die: Callable[[], None]) -> None:
    original: Callable[..., Awaitable[Any]] = getattr(effect.owner, effect.name)

    async def dying(*args: Any, **more: Any) -> Any:
        mine = effect.means(args)
        if mine and when == "before":
            die()
        result = await original(*args, **more)
        if mine and when == "after":
            # One that was refused, such as a DELETE of a pod that has changed, has not happened.
            die()
        return result

    setattr(effect.owner, effect.name, dying)


def _arm_row(effect: Row, when: str, die: Callable[[], None]) -> None:
    write: Callable[..., Awaitable[Any]] = getattr(LockedSandbox, effect.name)
    lock = Store.locked
    written: set[int] = set()

    async def noting(self: LockedSandbox, *args: Any, **more: Any) -> Any:
        result = await write(self, *args, **more)
        if effect.means(more):
            written.add(id(self))
        return result

    @asynccontextmanager
    async def locked(self: Store, *args: Any, **more: Any) -> AsyncIterator[LockedSandbox]:
        mine = False
        async with lock(self, *args, **more) as held:
            yield held
            mine = id(held) in written
            written.discard(id(held))
            if mine and when == "before":
                die()
        if mine and when == "after":
            die()

    setattr(LockedSandbox, effect.name, noting)
    setattr(Store, "locked", locked)  # noqa: B010


def _child(line: str, number: int) -> None:
    """Runs the operator; never returns. What it prints goes where the parent's errors go."""
    os.dup2(2, 1)
    # A Lease of its own: that a successor waits for its forerunner's is tested elsewhere.
    os.environ["SPACE_SANDBOX_RESTORE_LEASE_NAME"] = f"crashing-{os.getppid()}-{number}"
    if line:
        moment, effect, count = line.split(":")
        arm(moment, effect, int(count))
    sys.exit(main(["run"]))


def _parent() -> None:
    for number, line in enumerate(iter(sys.stdin.readline, "")):
        child = os.fork()
        if child == 0:
            _child(line.strip(), number)
        signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))  # noqa: B023
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    _parent()
