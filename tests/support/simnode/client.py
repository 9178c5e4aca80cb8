"""The simulated nodes' way to the API server: list, watch, status patch, delete.

As few requests as a kubelet makes, over connections that are kept open.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import aiohttp
import msgspec
import yaml

Object = dict[str, Any]

_WATCH_SECONDS = 300
_PAGE = 500
_LONGEST_LINE = 2**22
"""Bytes of the longest watch event that is taken; a pod may be 1.5 MiB."""

METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
METADATA_LIST_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


class ApiAnswerError(Exception):
    """The API server answered with an error; `status` is the HTTP status."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(f"{status} {words}")
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Where the API server is and how to log in."""

    server: str
    tls: ssl.SSLContext
    headers: Mapping[str, str]


def read_kubeconfig(path: Path) -> Access:
    """Return the access of the current context of a kubeconfig file (token or certificate)."""
    config: Object = yaml.safe_load(path.read_text())
    context = _named(config["contexts"], config["current-context"])["context"]
    cluster = _named(config["clusters"], context["cluster"])["cluster"]
    user = _named(config["users"], context["user"])["user"]
    authority = cluster.get("certificate-authority-data")
    tls = ssl.create_default_context(
        cafile=cluster.get("certificate-authority"),
        cadata=base64.b64decode(authority).decode() if authority else None,
    )
    if "client-certificate" in user:
        tls.load_cert_chain(user["client-certificate"], user["client-key"])
    headers = {"Authorization": f"Bearer {user['token']}"} if "token" in user else {}
    return Access(server=cluster["server"], tls=tls, headers=headers)


class Client:
    """Requests to one API server; an asynchronous context manager."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._session: aiohttp.ClientSession | None = None
        self.writes = 0
        """Requests that changed something, answered or not."""

    async def __aenter__(self) -> Client:
        connector = aiohttp.TCPConnector(ssl=self._access.tls, limit=32, keepalive_timeout=60)
        self._session = aiohttp.ClientSession(
            base_url=self._access.server,
            connector=connector,
            headers=self._access.headers,
            read_bufsize=_LONGEST_LINE,
            timeout=aiohttp.ClientTimeout(total=30),
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def list(
        self, path: str, *, query: Mapping[str, str], metadata_only: bool = False
    ) -> tuple[list[Object], str]:
        """Return all objects of a list and the resource version to watch from."""
        found: list[Object] = []
        token = ""
        while True:
            parameters = {**query, "limit": str(_PAGE)} | ({"continue": token} if token else {})
            accept = METADATA_LIST_ONLY if metadata_only else "application/json"
            page = await self._request("GET", path, query=parameters, accept=accept)
            found += page.get("items") or ()
            token = page["metadata"].get("continue", "")
            if not token:
                return found, page["metadata"]["resourceVersion"]

    async def watch(
        self, path: str, *, query: Mapping[str, str], version: str, metadata_only: bool = False
    ) -> AsyncIterator[tuple[str, Object]]:
        """Yield (type, object) of each change after `version` until the server ends the watch.

        Raises ApiAnswerError, also for an error sent as an event (410: list again).
        """
        parameters = {
            **query,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(_WATCH_SECONDS),
        }
        decoder = msgspec.json.Decoder()
        async with self._open().get(
            path,
            params=parameters,
            headers={"Accept": METADATA_ONLY if metadata_only else "application/json"},
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
        ) as answer:
            if answer.status >= 400:
                raise ApiAnswerError(answer.status, (await answer.text())[:300])
            while line := await answer.content.readline():
                event = decoder.decode(line)
                if event["type"] == "ERROR":
                    status = event["object"]
                    raise ApiAnswerError(status.get("code", 500), status.get("message", ""))
                yield event["type"], event["object"]

    async def patch_status(self, pod: Object, patch: Object) -> Object:
        """Patch a pod's status as a kubelet does; return the pod as it is then."""
        self.writes += 1
        return await self._request(
            "PATCH",
            f"{_pod_path(pod)}/status",
            body=patch,
            content_type="application/strategic-merge-patch+json",
        )

    async def finish(self, pod: Object) -> None:
        """Delete a pod at once, if it is still the one meant: what a kubelet does at the end."""
        self.writes += 1
        await self._request(
            "DELETE",
            _pod_path(pod),
            body={"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}},
            content_type="application/json",
        )

    async def _request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = "",
        accept: str = "application/json",
    ) -> Object:
        headers = {"Accept": accept} | ({"Content-Type": content_type} if content_type else {})
        data = msgspec.json.encode(body) if body is not None else None
        async with self._open().request(
            method, path, params=query, data=data, headers=headers
        ) as answer:
            raw = await answer.read()
            if answer.status >= 400:
                raise ApiAnswerError(answer.status, raw.decode(errors="replace")[:300])
            decoded: Object = msgspec.json.decode(raw)
            return decoded

    def _open(self) -> aiohttp.ClientSession:
        assert self._session is not None, "used outside of its context"
        return self._session


ABSENCE = (aiohttp.ClientError, asyncio.TimeoutError, OSError)
"""What a request raises while the API server is not there."""


def _pod_path(pod: Object) -> str:
    metadata = pod["metadata"]
    return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"


def _named(entries: list[Object], name: str) -> Object:
    return next(entry for entry in entries if entry["name"] == name)
