"""The API client: raw requests in, bytes out, errors of this project (architecture.md).

Authentication, TLS and token refresh are kubernetes_asyncio's; its typed models are not used
(660 us a pod against 5 us for msgspec on raw bytes).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.request import getproxies

import aiohttp
import msgspec
from kubernetes_asyncio import config
from kubernetes_asyncio.client import ApiClient, Configuration
from kubernetes_asyncio.config.config_exception import ConfigException

from sandbox_restore import __version__
from sandbox_restore.errors import (
    ConfigurationError,
    ConflictError,
    PermissionDeniedError,
    RejectedError,
    SandboxRestoreError,
    UnavailableError,
)

JSON_PATCH = "application/json-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"

PAGE = 500
"""Objects a page of a chunked LIST (architecture.md: measured)."""


class NotFoundError(SandboxRestoreError):
    """The object, or the resource itself, is not there."""


class ExpiredError(SandboxRestoreError):
    """410 on a `continue` token: the list has to start again."""


class _Details(msgspec.Struct):
    causes: list[Any] = []


class _Status(msgspec.Struct):
    """metav1.Status as far as an error needs it."""

    message: str = ""
    reason: str = ""
    details: _Details | None = None

    @property
    def says_why(self) -> bool:
        """Something in the object, or a policy, is named as the cause."""
        return self.details is not None and bool(self.details.causes)


def in_cluster(*, kubeconfig: Path | None = None, context: str | None = None) -> bool:
    """Whether we are the service account of the pod that this runs in: nothing else is named."""
    named = kubeconfig is not None or context is not None or os.environ.get("KUBECONFIG")
    return not named and bool(os.environ.get("KUBERNETES_SERVICE_HOST"))


async def load_configuration(
    *, kubeconfig: Path | None = None, context: str | None = None
) -> Configuration:
    """Where the API server is and who we are: KUBECONFIG, else the pod's service account.

    `kubeconfig` and `context` stand in for what the environment says. Raises ConfigurationError
    with one line when nothing usable is there or readable.
    """
    found = Configuration()
    try:
        if in_cluster(kubeconfig=kubeconfig, context=context):
            config.load_incluster_config(  # type: ignore[no-untyped-call]
                client_configuration=found
            )
        else:
            await config.load_kube_config(
                config_file=None if kubeconfig is None else str(kubeconfig),
                context=context,
                client_configuration=found,
            )
    except (ConfigException, OSError) as error:
        raise ConfigurationError(
            [
                f"no usable Kubernetes credentials: {error}; set KUBECONFIG, or run in a pod with "
                "a service account"
            ]
        ) from error
    return found


def current_namespace(*, kubeconfig: Path | None = None, context: str | None = None) -> str | None:
    """The namespace of the kubeconfig's context, as kubectl takes it; None where there is none."""
    try:
        contexts, active = config.list_kube_config_contexts(
            config_file=None if kubeconfig is None else str(kubeconfig)
        )
    except (ConfigException, OSError):
        return None
    chosen = next((c for c in contexts if c["name"] == context), None) if context else active
    namespace = ((chosen or {}).get("context") or {}).get("namespace")
    return str(namespace) if namespace else None


class KubeClient:
    """One connection pool to one API server."""

    def __init__(
        self, configuration: Configuration, *, timeout: float = 15.0, connections: int = 64
    ) -> None:
        configuration.connection_pool_maxsize = connections
        self._api = ApiClient(configuration)
        self._api.user_agent = f"sandbox-restore/{__version__}"
        if not getproxies():
            _without_environment(self._api)
        self._timeout = timeout
        self.server = str(configuration.host)
        self.writes: int = 0
        """Write requests sent, whatever their answer."""
        self.on_write: Callable[[str, str], None] = lambda _verb, _resource: None

    async def close(self) -> None:
        """Ends the connections."""
        await self._api.close()

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
        """Sends one request and returns the body of a 2xx answer.

        Raises NotFoundError (404), ConflictError (409, and 422 of a failed patch test),
        ExpiredError (410), PermissionDeniedError (401, 403), RejectedError (other 4xx),
        UnavailableError (429, 5xx, no answer).
        """
        headers = {"Accept": "application/json", "Content-Type": content_type or "application/json"}
        if method != "GET":
            self.writes += 1
            self.on_write(method, path)
        try:
            async with asyncio.timeout(timeout or self._timeout):
                response = await self._api.call_api(
                    path,
                    method,
                    {},
                    list((query or {}).items()),
                    headers,
                    body=body,
                    auth_settings=["BearerToken"],
                    _preload_content=False,
                )
                raw: bytes = await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise UnavailableError(
                f"API server {self.server} does not answer ({method} {path}): "
                f"{error or type(error).__name__}"
            ) from error
        if 200 <= response.status < 300:
            return raw
        raise _error(response.status, raw, f"{method} {path}", patch=content_type == JSON_PATCH)

    async def stirs(
        self, path: str, *, query: Mapping[str, str], seconds: int
    ) -> AsyncIterator[None]:
        """Yields whenever a watch on `path` says something, what it says unread; first at once.

        Ends after about `seconds`, or when the server ends it. For whoever reads the object anew
        anyway: a watch without a resource version begins with the state there is, so that nothing
        is lost between two of them. Errors as for `request`.
        """
        params = {**query, "watch": "true", "timeoutSeconds": str(seconds)}
        try:
            async with asyncio.timeout(self._timeout):
                response = await self._api.call_api(
                    path,
                    "GET",
                    {},
                    list(params.items()),
                    {"Accept": "application/json"},
                    auth_settings=["BearerToken"],
                    _preload_content=False,
                )
            try:
                if response.status != 200:
                    raw = await response.read()
                    raise _error(response.status, raw, f"GET {path}", patch=False)
                # The server ends it in time; the limit is for a connection that has died unseen.
                async with asyncio.timeout(seconds + self._timeout):
                    async for _ in response.content.iter_any():
                        yield
            finally:
                response.close()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise UnavailableError(
                f"API server {self.server} does not answer (watch of {path}): "
                f"{error or type(error).__name__}"
            ) from error

    async def pages(
        self, path: str, *, query: Mapping[str, str] | None = None
    ) -> AsyncIterator[bytes]:
        """The pages of one consistent chunked LIST, newest data.

        Raises ExpiredError when the list took too long and must start again.
        """
        token = ""
        while True:
            params = {"limit": str(PAGE), **(query or {})}
            if token:
                params["continue"] = token
            raw = await self.request("GET", path, query=params, timeout=60.0)
            yield raw
            token = _continue_of(raw)
            if not token:
                return


def _without_environment(api: ApiClient) -> None:
    """With `trust_env` aiohttp looks for a .netrc in a thread at every request (a tenth of this
    process's CPU, measured); it is of use only where the environment names a proxy."""
    rest = api.rest_client
    connector = rest.pool_manager.connector
    rest.pool_manager.detach()
    rest.pool_manager = aiohttp.ClientSession(connector=connector, read_bufsize=2**21)


class _ListMeta(msgspec.Struct):
    continue_: str = msgspec.field(default="", name="continue")


class _Listed(msgspec.Struct):
    metadata: _ListMeta


_listed = msgspec.json.Decoder(_Listed).decode


def _continue_of(raw: bytes) -> str:
    return _listed(raw).metadata.continue_


def _error(status: int, raw: bytes, what: str, *, patch: bool) -> SandboxRestoreError:
    try:
        told = msgspec.json.decode(raw, type=_Status)
    except msgspec.DecodeError:
        told = _Status(message=raw[:200].decode(errors="replace"))
    words = f"{what}: {status} {told.reason}: {told.message}"
    if status == 404:
        return NotFoundError(words)
    if status == 410:
        return ExpiredError(words)
    # The API server answers a failed `test` of a JSON patch with 422 and no cause; one with a cause
    # is an object that is not valid, or an admission policy's no.
    if status == 409 or (status == 422 and patch and not told.says_why):
        return ConflictError(words)
    if status == 401 or (status == 403 and _wants_rights(told.message)):
        return PermissionDeniedError(words)
    if status == 429 or status >= 500:
        return UnavailableError(words)
    return RejectedError(words)


def _wants_rights(message: str) -> bool:
    """RBAC names the user and what it cannot do; any other 403 is an admission plugin's no
    (quota, LimitRange, Pod Security, a policy, a namespace that is going away)."""
    return 'User "' in message and " cannot " in message
