"""The requests of the operator's client, answered by the simulated API server."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import msgspec

from sandbox_restore.errors import ConflictError
from sandbox_restore.kube.client import NotFoundError
from sandbox_restore.model import names
from tests.support.simapi.objects import Json, SimApi

Deliver = Callable[[], bytes | Awaitable[bytes]]
"""Lets a request take effect, and returns its answer; may raise this project's errors."""
Carry = Callable[[str, str, Deliver], Awaitable[bytes]]
"""Carries a request (method, path) to the server: at once, later, twice, never."""

_RESTORES = f"/apis/{names.GROUP}/{names.VERSION}"
_PATH = re.compile(
    rf"(?:/api/v1|{_RESTORES}|/apis/events.k8s.io/v1)(?:/namespaces/(?P<namespace>[^/]+))?"
    rf"(?:/(?P<kind>nodes|pods|events|{names.PLURAL}))?(?:/(?P<name>[^/]+))?(?P<status>/status)?$"
)


async def at_once(_method: str, _path: str, deliver: Deliver) -> bytes:
    """A network that is never late."""
    answer = deliver()
    return answer if isinstance(answer, bytes) else await answer


class SimClient:
    """Stands in for `KubeClient`: the same requests, the same errors."""

    server = "simulated"

    def __init__(self, api: SimApi, *, carry: Carry = at_once) -> None:
        self._api = api
        self._carry = carry

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str | None = None,
        timeout: float | None = None,
    ) -> bytes:
        """As `KubeClient.request`."""
        sent = msgspec.json.encode(body)

        def deliver() -> bytes:
            return msgspec.json.encode(
                self._answer(method, path, dict(query or {}), msgspec.json.decode(sent))
            )

        return await self._carry(method, path, deliver)

    async def pages(
        self, path: str, *, query: Mapping[str, str] | None = None
    ) -> AsyncIterator[bytes]:
        """As `KubeClient.pages`: one page."""
        yield await self.request("GET", path, query=query)

    def _answer(self, method: str, path: str, query: dict[str, str], body: Any) -> Json:
        found = _PATH.match(path)
        assert found is not None, f"no such path is played: {path}"
        api, kind, name = self._api, found["kind"], found["name"]
        if kind is None:
            return self._namespace(found["namespace"])
        kind = "restores" if kind == names.PLURAL else kind
        match method, kind:
            case "GET", _ if name is None:
                return self._list(kind, query)
            case "GET", _:
                return api.get(kind, name)
            case "POST", "events":
                api.post_event(body)
                return {}
            case "POST", _:
                return api.create(kind, body)
            case "PATCH", "pods":
                return api.patch_pod(name, body)
            case "PATCH", "restores" if found["status"]:
                return api.apply_status(name, body["metadata"], body["status"])
            case "DELETE", "pods":
                wanted = body["preconditions"]
                api.delete_pod(name, uid=wanted["uid"], version=wanted.get("resourceVersion"))
                return {}
            case "DELETE", "restores":
                if api.get(kind, name)["metadata"]["uid"] != body["preconditions"]["uid"]:
                    raise ConflictError(f"restore {name}: another UID")
                api.remove(kind, name)
                return {}
        raise AssertionError(f"{method} {path} is not played")

    def _namespace(self, name: str) -> Json:
        if name != self._api.namespace:
            raise NotFoundError(f"no namespace {name}")
        return {"metadata": {"name": name, "uid": self._api.namespace_uid}}

    def _list(self, kind: str, query: dict[str, str]) -> Json:
        selector = query.get("labelSelector", "")
        key, has_value, value = selector.partition("=")
        items = self._api.list(kind, labels={key: value} if has_value else None)
        if key and not has_value:
            items = [i for i in items if key in i["metadata"].get("labels", {})]
        return {"metadata": {"resourceVersion": str(self._api.version)}, "items": items}
