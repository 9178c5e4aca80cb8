"""Where news comes in: facts go to the one writer of the state, concerned keys onto the queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

import msgspec
import structlog

from sandbox_restore.kube import decode
from sandbox_restore.model import names
from sandbox_restore.restore.queue import KeyedQueue
from sandbox_restore.restore.state import ClusterState

log = structlog.get_logger()


class Intake:
    """Takes watch events as parsed bodies; decides nothing."""

    def __init__(
        self,
        *,
        state: ClusterState,
        queue: KeyedQueue,
        clock: Callable[[], datetime],
        heard: Callable[[str], None] = lambda _kind: None,
    ) -> None:
        self._heard = heard
        self._state = state
        self._queue = queue
        self._clock = clock

    def node(self, *, deleted: bool, body: Mapping[str, Any]) -> None:
        """A Node has appeared, changed or gone."""
        self._heard("nodes")
        facts = decode.node_from_body(body)
        if deleted:
            self.concerned(self._state.remove_node(facts.name, facts.uid, self._clock()))
        else:
            self.concerned(self._state.apply_node(facts, self._clock()))

    def pod(self, *, deleted: bool, body: Mapping[str, Any]) -> None:
        """A restore pod has appeared, changed or gone."""
        self._heard("pods")
        facts = decode.pod_from_body(body)
        if deleted:
            self.concerned(
                self._state.remove_pod(facts.namespace, facts.name, facts.uid, last=facts)
            )
        else:
            self.concerned(self._state.apply_pod(facts))

    def restore(self, *, deleted: bool, body: Mapping[str, Any]) -> None:
        """A SandboxRestore has appeared, changed or gone."""
        self._heard(names.PLURAL)
        try:
            record = decode.restore_from_body(body)
        except msgspec.ValidationError as error:
            # Only an object that an older CRD let in; the current schema refuses it on its next
            # write, and one broken object must not stop the watch for all.
            meta = body.get("metadata", {})
            log.error(
                "restore_unreadable",
                namespace=meta.get("namespace"),
                restore=meta.get("name"),
                problem=str(error),
            )
            return
        if deleted:
            found = self._state.remove_restore(record.namespace, record.name, record.uid)
            self.concerned(found or {record.spec.sandbox_id})
        else:
            self.concerned(self._state.apply_restore(record))

    def concerned(self, sandboxes: Iterable[str], *, slow: bool = False) -> None:
        """Puts sandboxes on the queue."""
        for sandbox_id in sandboxes:
            self._queue.add(sandbox_id, slow=slow)
