"""Every Kopf handler at a glance: parse, hand over, return."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import kopf

from sandbox_restore.model import names
from sandbox_restore.restore.intake import Intake


def build_registry(
    intake: Intake, *, login: Callable[[], Awaitable[kopf.AiohttpSession]]
) -> kopf.OperatorRegistry:
    """The handlers of this operator; `on.event` only (architecture.md: measured)."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    async def log_in(**_: Any) -> kopf.AiohttpSession:
        return await login()

    @kopf.on.event("", "v1", "nodes", registry=registry)
    async def node_event(event: kopf.RawEvent, **_: Any) -> None:
        intake.node(deleted=event["type"] == "DELETED", body=event["object"])

    @kopf.on.event("", "v1", "pods", registry=registry)
    async def pod_event(event: kopf.RawEvent, **_: Any) -> None:
        intake.pod(deleted=event["type"] == "DELETED", body=event["object"])

    @kopf.on.event(names.GROUP, names.VERSION, names.PLURAL, registry=registry)
    async def restore_event(event: kopf.RawEvent, **_: Any) -> None:
        intake.restore(deleted=event["type"] == "DELETED", body=event["object"])

    return registry
