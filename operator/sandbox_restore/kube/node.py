"""The requests of the node agent: its own Node, the pods on it, Events about it (section 13)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Final
from urllib.parse import quote

import msgspec

from sandbox_restore.errors import ConflictError
from sandbox_restore.kube.client import (
    JSON_PATCH,
    STRATEGIC_PATCH,
    ExpiredError,
    KubeClient,
    NotFoundError,
)
from sandbox_restore.kube.objects import NODES, PODS

EVENTS: Final = "/apis/events.k8s.io/v1/namespaces/default/events"
"""Events about objects without a namespace go to `default`."""


class KubeNode:
    """One Node, by name. Each write names the UID it is meant for; errors as for the client."""

    def __init__(self, client: KubeClient, *, name: str) -> None:
        self.client = client
        self.name = name
        self._path = f"{NODES}/{quote(name)}"

    async def read(self) -> dict[str, Any] | None:
        """The Node now, as JSON gives it; None when there is none."""
        try:
            raw = await self.client.request("GET", self._path)
        except NotFoundError:
            return None
        found: dict[str, Any] = msgspec.json.decode(raw)
        return found

    def stirs(self, *, seconds: int) -> AsyncIterator[None]:
        """Whenever the Node changes; see `KubeClient.stirs`."""
        query = {"fieldSelector": f"metadata.name={self.name}"}
        return self.client.stirs(NODES, query=query, seconds=seconds)

    async def write_label(
        self, key: str, value: str | None, *, uid: str, before: str | None, any_label: bool
    ) -> None:
        """Sets the label, or takes it off for None, if the Node and its label are still these.

        `any_label`: the Node has labels at all. ConflictError when something has changed.
        """
        path = f"/metadata/labels/{key.replace('~', '~0').replace('/', '~1')}"
        patch: list[dict[str, Any]] = [{"op": "test", "path": "/metadata/uid", "value": uid}]
        if before is not None:
            patch.append({"op": "test", "path": path, "value": before})
        elif not any_label:
            patch.append({"op": "add", "path": "/metadata/labels", "value": {}})
        if value is None:
            patch.append({"op": "remove", "path": path})
        else:
            patch.append({"op": "add", "path": path, "value": value})
        await self.client.request("PATCH", self._path, body=patch, content_type=JSON_PATCH)

    async def write_condition(self, condition: Mapping[str, Any], *, uid: str) -> None:
        """Sets one condition of the Node's status by its type, and touches no other.

        The UID in the patch makes the API server refuse it for another Node of that name.
        """
        body = {"metadata": {"uid": uid}, "status": {"conditions": [dict(condition)]}}
        await self.client.request(
            "PATCH", f"{self._path}/status", body=body, content_type=STRATEGIC_PATCH
        )

    async def pods(self) -> list[dict[str, Any]]:
        """All pods bound to this node, in every namespace."""
        query = {"fieldSelector": f"spec.nodeName={self.name}"}
        for _ in range(5):
            try:
                return [
                    item
                    async for raw in self.client.pages(PODS, query=query)
                    for item in msgspec.json.decode(raw)["items"]
                ]
            except ExpiredError:
                continue
        raise ExpiredError(f"GET {PODS}: the list expired five times while it was read")

    async def create_event(self, event: Mapping[str, Any]) -> None:
        """POST of an events.k8s.io/v1 Event; one of that name already there is no error."""
        try:
            await self.client.request("POST", EVENTS, body=dict(event))
        except ConflictError:
            return
