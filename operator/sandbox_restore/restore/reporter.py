"""Writes status and Events of the restores of one sandbox: one write a change, none a pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta

import msgspec
import structlog
from msgspec import UNSET

from sandbox_restore.errors import ConflictError, PermissionDeniedError, RejectedError
from sandbox_restore.kube.objects import KubeObjects
from sandbox_restore.model.restore import PlacementStatus, Restore, RestoreStatus
from sandbox_restore.model.sandbox import Execution, SandboxView
from sandbox_restore.restore.news import News, event_body, news
from sandbox_restore.restore.placing import Placer, Placing
from sandbox_restore.restore.state import ClusterState
from sandbox_restore.restore.status import as_json, new_status
from sandbox_restore.restore.world import Said

PASSING = frozenset({"LoadingSnapshot", "Releasing"})
"""Reasons that a healthy restore passes through in a moment."""

SETTLE = timedelta(seconds=2)
"""How long a bound pod may take to load before its binding is worth a status write of its own."""

log = structlog.get_logger()


class Reporter:
    """Compares what is said with what the object says, and writes the difference."""

    def __init__(
        self,
        *,
        state: ClusterState,
        kube: KubeObjects,
        placer: Placer,
        instance: str,
        on_finished: Callable[[Restore, Said], None] = lambda _restore, _said: None,
        on_blocked: Callable[[str], None] = lambda _condition: None,
        on_would_change: Callable[[str, str], None] = lambda _change, _reason: None,
    ) -> None:
        self._state = state
        self._kube = kube
        self._placer = placer
        self._instance = instance
        self._on_finished = on_finished
        self._on_blocked = on_blocked
        self._on_would_change = on_would_change

    async def report(
        self,
        restores: Iterable[Restore],
        said: Mapping[str, Said],
        *,
        view: SandboxView | None,
        placings: Mapping[str, Placing],
        now: datetime,
    ) -> datetime | None:
        """Writes what has changed; returns when a write that was put off, or came second, falls
        due."""
        later: datetime | None = None
        for restore in restores:
            words = said.get(restore.uid)
            if words is None or restore.finished or restore.deleting:
                continue
            due = _put_off(restore, words, now)
            if due is not None:
                later = due if later is None else min(later, due)
                continue
            told = await self._report_one(restore, words, view, placings.get(restore.uid), now)
            if not told:
                later = now
        return later

    async def announce(self, restore: Restore, item: News, *, now: datetime) -> None:
        """Posts one Event; the same one twice is one."""
        body = event_body(restore, item, now=now, instance=self._instance)
        try:
            await self._kube.create_event(restore.namespace, body)
        except (RejectedError, PermissionDeniedError) as error:
            # A namespace that is going away takes no Events, nor does an API server that was not
            # told that we may post them; the status says the same and matters more.
            log.warning("event_refused", restore=restore.name, problem=str(error))

    async def _report_one(
        self,
        restore: Restore,
        said: Said,
        view: SandboxView | None,
        placing: Placing | None,
        now: datetime,
    ) -> bool:
        """False: the restore has changed since it was read, and what to say has to be asked
        again."""
        placement = self._placement(restore, said, view, placing, now)
        status = new_status(
            restore,
            said,
            attempts=view.attempts if view is not None else (),
            placement=placement,
            observed=placing.observed if placing is not None else None,
            now=now,
        )
        if view is None:
            status = _keep_attempts(status, restore)
        if status == restore.status:
            return True
        would_change = placing is not None and placing.would_change
        for item in news(restore, status, would_change=would_change):
            await self.announce(restore, item, now=now)
            if item.reason == "RedirectBlocked" and status.redirect is not UNSET:
                self._on_blocked(status.redirect.blocked_by)
            if item.change:
                self._on_would_change(item.change, item.because)
        try:
            after = await self._kube.apply_status(restore, as_json(status))
        except ConflictError:
            await self._reread(restore)
            return False
        if after is None:
            self._state.remove_restore(restore.namespace, restore.name, restore.uid)
            return True
        self._state.apply_restore(after)
        if said.succeeded is not None:
            self._on_finished(restore, said)
            log.info(
                "restore_finished",
                sandbox=restore.spec.sandbox_id,
                restore=restore.name,
                succeeded=said.succeeded,
                reason=said.reason,
                message=said.message,
            )
        return True

    async def _reread(self, restore: Restore) -> None:
        found = await self._kube.restore(restore.namespace, restore.name)
        if found is None or found.uid != restore.uid:
            self._state.remove_restore(restore.namespace, restore.name, restore.uid)
        if found is not None:
            self._state.apply_restore(found)

    def _placement(
        self,
        restore: Restore,
        said: Said,
        view: SandboxView | None,
        placing: Placing | None,
        now: datetime,
    ) -> PlacementStatus | None:
        """The decision behind the pod; after a restart in between it is taken again."""
        if placing is not None:
            return placing.placement
        pod = said.pod
        if pod is None or view is None or pod.name == restore.status.pod_name:
            return self._placer.held(restore)
        execution = _execution_of(view, restore, pod.name)
        if execution is None:
            return None
        return self._placer.describe(restore, execution, view, now=now)


def _execution_of(view: SandboxView, restore: Restore, pod_name: str) -> Execution | None:
    return next(
        (a for a in view.attempts if a.restore_uid == restore.uid and a.pod_name == pod_name), None
    )


def _keep_attempts(status: RestoreStatus, restore: Restore) -> RestoreStatus:
    """Without a view nothing is known of the attempts: what was said stays."""
    return msgspec.structs.replace(
        status, attempts=restore.status.attempts, failed_attempts=restore.status.failed_attempts
    )


def _put_off(restore: Restore, said: Said, now: datetime) -> datetime | None:
    """architecture.md, API writes: status at bind only if Ready takes longer than two seconds."""
    pod = said.pod
    if said.reason not in PASSING or pod is None or not restore.status.conditions:
        return None
    if restore.status.pod_name != pod.name:
        return None
    due = (pod.scheduled_at or now) + SETTLE
    return due if now < due else None
