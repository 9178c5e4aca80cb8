"""The real operator that kills itself (SIGKILL) right before or after one of its side effects.

`python -m tests.support.crashing_operator run` with CRASH_AT=`WHEN:EFFECT:N`: at the N-th time that
EFFECT is about to happen (`before`) or has happened (`after`), the process is gone. Everything else
is the program as installed.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from sandbox_restore.cli.main import main
from sandbox_restore.kube.objects import KubeObjects
from sandbox_restore.restore.reconciler import Reconciler
from sandbox_restore.store.store import Store

EFFECTS: dict[str, tuple[type, str]] = {
    "begin-retire-or-loaded-row": (Reconciler, "_under_lock"),
    "create-pod": (KubeObjects, "create_pod"),
    "ungate": (KubeObjects, "ungate"),
    "release": (KubeObjects, "release"),
    "released-row": (Store, "mark_released"),
    "status": (KubeObjects, "apply_status"),
    "event": (KubeObjects, "create_event"),
    "delete-pod": (KubeObjects, "delete_pod"),
    "drop-finalizer": (KubeObjects, "drop_finalizer"),
}
"""Every side effect of an attempt; `_under_lock` is one transaction, committed when it returns."""


def _arm(when: str, effect: str, count: int) -> None:
    owner, name = EFFECTS[effect]
    original: Callable[..., Awaitable[Any]] = getattr(owner, name)
    calls = 0

    def die_at_the_last() -> None:
        nonlocal calls
        calls += 1
        if calls == count:
            os.kill(os.getpid(), signal.SIGKILL)

    async def dying(*args: Any, **kwargs: Any) -> Any:
        if when == "before":
            die_at_the_last()
        result = await original(*args, **kwargs)
        if when == "after":
            # One that was refused, such as a DELETE of a pod that has changed, has not happened.
            die_at_the_last()
        return result

    setattr(owner, name, dying)


if __name__ == "__main__":
    moment, which, number = os.environ["SPACE_SANDBOX_CRASH_AT"].split(":")
    _arm(moment, which, int(number))
    sys.exit(main())
