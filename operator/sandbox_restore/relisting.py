"""The safety nets under the watches: lists of our own after a gap and now and then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta

import structlog

from sandbox_restore.errors import SandboxRestoreError
from sandbox_restore.kube.objects import KubeObjects
from sandbox_restore.model import names
from sandbox_restore.restore.intake import Intake
from sandbox_restore.restore.state import ClusterState
from sandbox_restore.restore.views import ViewCache

log = structlog.get_logger()

AGAIN_SECONDS = 2.0
"""Between two tries of a list that a gap calls for."""


class Relisting:
    """Takes whole lists in, and has the sandboxes looked at that they concern."""

    def __init__(
        self,
        *,
        state: ClusterState,
        kube: KubeObjects,
        intake: Intake,
        views: ViewCache,
        clock: Callable[[], datetime],
    ) -> None:
        self._state = state
        self._kube = kube
        self._intake = intake
        self._views = views
        self._clock = clock
        self._gaps: asyncio.Queue[str] = asyncio.Queue()

    def gap(self, kind: str) -> None:
        """Kopf has listed anew: deletions meanwhile are told by nobody."""
        self._gaps.put_nowait(kind)

    async def mend_gaps(self) -> None:
        """For ever: each gap ends with a list of our own."""
        while True:
            kind = await self._gaps.get()
            log.info("watch_gap_found", kind=kind)
            while True:
                if await self._relisted(kind):
                    break
                await asyncio.sleep(AGAIN_SECONDS)

    async def relist_all(self) -> None:
        """Every kind once; what cannot be listed now is listed the next time."""
        for kind in ("nodes", "pods", names.PLURAL):
            await self._relisted(kind)

    def look_again(self, *, unfinished_for: timedelta) -> None:
        """The slow safety net: each restore that is unfinished for so long is looked at again."""
        before = self._clock() - unfinished_for
        waiting = {
            r.spec.sandbox_id
            for r in self._state.restores()
            if not r.finished and r.created < before
        }
        for sandbox_id in waiting:
            # An announcement may have been lost without a sign: the row is read again.
            self._views.drop(sandbox_id)
        self._intake.concerned(waiting, slow=True)

    async def _relisted(self, kind: str) -> bool:
        try:
            await self._relist(kind)
        except SandboxRestoreError as error:
            log.warning("relist_failed", kind=kind, problem=str(error))
            return False
        return True

    async def _relist(self, kind: str) -> None:
        if kind == "nodes":
            nodes = await self._kube.nodes()
            found = self._state.replace_nodes(nodes.items, self._clock(), version=nodes.version)
        elif kind == "pods":
            pods = await self._kube.pods()
            found = self._state.replace_pods(pods.items, version=pods.version)
        else:
            restores = await self._kube.restores()
            found = self._state.replace_restores(restores.items, version=restores.version)
        self._intake.concerned(found)
