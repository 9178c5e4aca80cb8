"""Lets a test tell simulated nodes in another process what to do: HTTP on loopback."""

from __future__ import annotations

import logging
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from tests.support.simnode.simulation import VERBS, SimNode, call

LOOPBACK = "127.0.0.1"

log = logging.getLogger("simnode")


class RemoteError(Exception):
    """The simulated nodes could not do what they were told; the text says why."""


async def serve(nodes: SimNode) -> tuple[web.AppRunner, int]:
    """Answer `POST /<verb>` with keyword arguments as JSON; return the server and its port."""

    async def answer(request: web.Request) -> web.Response:
        try:
            result = await call(nodes, request.match_info["verb"], await request.json())
        except Exception as error:
            log.exception("control request failed")
            return web.Response(status=400, text=f"{type(error).__name__}: {error}")
        return web.Response(body=msgspec.json.encode(result), content_type="application/json")

    application = web.Application()
    application.router.add_post("/{verb}", answer)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, LOOPBACK, 0)
    await site.start()
    port: int = runner.addresses[0][1]
    return runner, port


class Remote:
    """Calls the methods of SimNode that VERBS lists, by keyword, in the process at `port`."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def call(self, verb: str, **arguments: object) -> Any:
        """Return the method's result as JSON has it.

        Raises RemoteError when it raised, or the process is not there.
        """
        assert verb in VERBS, verb
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.post(f"http://{LOOPBACK}:{self._port}/{verb}", json=arguments) as answer,
            ):
                raw = await answer.read()
        except aiohttp.ClientError as error:
            raise RemoteError(f"{verb}: no answer: {error!r}") from error
        if answer.status != 200:
            raise RemoteError(f"{verb}: {raw.decode(errors='replace')}")
        return msgspec.json.decode(raw)
