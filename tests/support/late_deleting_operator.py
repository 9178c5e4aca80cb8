"""The real operator whose DELETE of an unbound pod is late: it is sent once the pod is bound.

`python -m tests.support.late_deleting_operator run`: whatever made the operator delete the pod, it
has been bound meanwhile. Everything else is the program as installed.
"""

from __future__ import annotations

import sys

from sandbox_restore.cli.main import main
from sandbox_restore.kube.objects import KubeObjects
from sandbox_restore.model.pod import PodFacts
from tests.support.waiting import until

HELD = "late-deleting: waits until the pod is bound: "
"""Begins the line that the log gets when a DELETE is held back; the pod's name follows."""

_delete_pod = KubeObjects.delete_pod


async def _delete_once_bound(self: KubeObjects, pod: PodFacts) -> None:
    if not pod.bound:
        print(HELD + pod.name, flush=True)

        async def bound() -> bool:
            now = await self.pod(pod.namespace, pod.name)
            return now is not None and now.bound

        await until(bound, deadline_s=60, what=f"pod {pod.name} is bound")
    await _delete_pod(self, pod)


if __name__ == "__main__":
    KubeObjects.delete_pod = _delete_once_bound  # type: ignore[method-assign]
    sys.exit(main())
