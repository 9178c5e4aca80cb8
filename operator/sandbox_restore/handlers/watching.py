"""How Kopf is run here: what is switched off, what is watched, and how its watches are observed."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Collection
from typing import Any

import aiohttp
import kopf
from kubernetes_asyncio.client import Configuration

from sandbox_restore.model import names
from sandbox_restore.restore.watches import WatchLog


class _NoDiffBase(kopf.DiffBaseStorage):
    """No annotations on anybody's objects, and the deep copies of each event saved (measured)."""

    def build(self, **_: Any) -> Any:
        return {}

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        return None


class _NoProgress(kopf.ProgressStorage):
    """`on.event` handlers have no progress to store."""

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        return None

    def purge(self, **_: Any) -> None:
        return None

    def touch(self, **_: Any) -> None:
        return None

    def clear(self, *, essence: Any, **_: Any) -> Any:
        return essence


def kopf_settings() -> kopf.OperatorSettings:
    """Kopf reduced to three watches (architecture.md: what was measured, and what follows)."""
    settings = kopf.OperatorSettings()
    settings.scanning.disabled = True
    settings.posting.enabled = False
    settings.persistence.diffbase_storage = _NoDiffBase()
    settings.persistence.progress_storage = _NoProgress()
    settings.watching.chunk_size = 500
    # Each watch is asked for anew at least this often, so that its age can be told: bookmarks
    # are seen by Kopf alone.
    settings.watching.server_timeout = 60
    settings.watching.label_selectors["", "v1", "pods"] = names.SANDBOX_LABEL
    return settings


def session_factory(configuration: Configuration, watch_log: WatchLog) -> Callable[[], Any]:
    """A login for Kopf: a session of its own that tells the watch log of each list and watch."""

    async def log_in() -> kopf.AiohttpSession:
        # Refreshes the token first where the credentials are of the kind that expire.
        token = await configuration.get_api_key_with_prefix("BearerToken")
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=_tls(configuration)),
            headers={"Authorization": token} if token else {},
            trace_configs=[_trace(watch_log)],
            read_bufsize=2**21,
        )
        return kopf.AiohttpSession(server=str(configuration.host), aiohttp_session=session)

    return log_in


def _tls(configuration: Configuration) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, keyfile=configuration.key_file)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    # As kubernetes_asyncio does: API servers' own CAs rarely pass OpenSSL's strict X.509 checks.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def _trace(watch_log: WatchLog) -> aiohttp.TraceConfig:
    trace = aiohttp.TraceConfig()

    async def on_end(
        _session: aiohttp.ClientSession, _context: Any, params: aiohttp.TraceRequestEndParams
    ) -> None:
        if params.response.status == 200:
            watch_log.answered(params.url.path, dict(params.url.query))

    trace.on_request_end.append(on_end)
    return trace


async def watch(
    registry: kopf.OperatorRegistry,
    *,
    namespaces: Collection[str],
    ready: asyncio.Event,
) -> None:
    """Runs Kopf until it is cancelled or one of its watches fails for good."""
    await kopf.operator(
        registry=registry,
        settings=kopf_settings(),
        standalone=True,
        clusterwide=not namespaces,
        namespaces=list(namespaces),
        ready_flag=ready,
    )
