"""`/healthz`, `/readyz` and `/metrics`: what they say is measured, not assumed (architecture.md).

Healthy: the event loop runs and nothing that only a restart mends is broken. Ready: standing by
with both servers answering, or leading with a warm index, watches heard of lately and the
database answering.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from aiohttp import web

from sandbox_restore.redact import redact

WATCH_STALE_AFTER = 150.0
"""Seconds: a watch is asked for anew every 60 s, so two were missed."""


class Probed(Protocol):
    """What the server asks of whoever is probed."""

    @property
    def phase(self) -> str: ...
    @property
    def fatal(self) -> str | None: ...
    @property
    def ages(self) -> Callable[[], dict[str, float | None]]: ...
    @property
    def refresh(self) -> Callable[[], None]: ...
    def problems(self) -> list[str]: ...


@dataclass(slots=True, kw_only=True)
class Health:
    """What the probes look at; the composition root keeps it."""

    phase: str = "starting"
    """starting, standby, warming, leading, stopping."""
    fatal: str | None = None
    """Something that only a restart mends."""
    ages: Callable[[], dict[str, float | None]] = dict
    index_warm: Callable[[], bool] = lambda: False
    lease_held: Callable[[], bool] = lambda: False
    database: Callable[[], str | None] = lambda: "not connected yet"
    """None while the database answers, else what is wrong."""
    api_server: Callable[[], str | None] = lambda: "not connected yet"
    refresh: Callable[[], None] = field(default=lambda: None)
    """Brings gauges up to date before they are scraped."""

    def problems(self) -> list[str]:
        """Why this process is not ready; empty when it is."""
        found = [w for w in (self.fatal, self.database(), self.api_server()) if w is not None]
        if self.phase == "standby":
            return found
        if self.phase != "leading":
            return [*found, f"phase is {self.phase}"]
        if not self.lease_held():
            found.append("the Lease is not held")
        if not self.index_warm():
            found.append("the fleet index is not complete")
        for kind, age in self.ages().items():
            if age is None:
                found.append(f"the watch of {kind} has not begun")
            elif age > WATCH_STALE_AFTER:
                found.append(f"the watch of {kind} was last heard of {age:.0f} s ago")
        return found


async def serve(
    health: Probed, *, host: str, port: int, metrics: Callable[[], bytes]
) -> tuple[int, Callable[[], Awaitable[None]]]:
    """Starts the server; returns its port (chosen free for 0) and what stops it.

    Raises OSError when the address cannot be had.
    """

    async def healthz(_request: web.Request) -> web.Response:
        if health.fatal is not None:
            return web.Response(status=500, text=f"{redact(health.fatal)}\n")
        return web.Response(text="ok\n")

    async def readyz(_request: web.Request) -> web.Response:
        problems = [redact(problem) for problem in health.problems()]
        return web.json_response(
            {
                "phase": health.phase,
                "ready": not problems,
                "problems": problems,
                "watchAgeSeconds": health.ages(),
            },
            status=503 if problems else 200,
        )

    async def scrape(_request: web.Request) -> web.Response:
        health.refresh()
        return web.Response(body=metrics(), content_type="text/plain", charset="utf-8")

    app = web.Application()
    app.add_routes(
        [web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", scrape)]
    )
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, host, port)
    await site.start()
    return int(runner.addresses[0][1]), runner.cleanup
