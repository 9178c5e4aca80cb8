"""A pooled connection that knows one way to ask: one statement, one column, one row."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import asyncpg

from sandbox_restore.errors import ConfigurationError, ConflictError
from sandbox_restore.store.edge import DRIVER_ERRORS, translated

Observer = Callable[[str, float], None]
"""Called with a statement's name and its seconds, for metrics."""

SESSION: Final = {
    "application_name": "sandbox-restore",
    # Times come back as text: one zone, so that equal times are equal text.
    "timezone": "UTC",
    # A lock is followed by a fresh read at this level only, whatever the database's default is.
    "default_transaction_isolation": "read committed",
    # A holder that hangs must not keep a sandbox's row locked for ever.
    "idle_in_transaction_session_timeout": "60s",
    # Compiling the sweep's statement takes longer than running it (bench/sweep.py).
    "jit": "off",
}
"""Sent with the start-up packet, so that it costs no statement."""


@dataclass(frozen=True, slots=True)
class Query:
    """One SQL statement and the name it has in metrics.

    Parameters and results are cast to built-in types, or the driver would ask the catalog for
    theirs with a statement of its own.
    """

    name: str
    sql: str


class Connection:
    """One connection for as long as its holder needs it."""

    __slots__ = ("_clock", "_failed", "_observe", "raw")

    def __init__(
        self, raw: Any, *, clock: Callable[[], float], observe: Observer | None = None
    ) -> None:
        self.raw = raw
        self._clock = clock
        self._observe = observe
        self._failed = False

    @translated
    async def one(self, query: Query, *args: object) -> Any:
        """The one value that the statement answers with; None when there is no row."""
        began = self._clock()
        self._failed = True
        try:
            value = await self.raw.fetchval(query.sql, *args)
            self._failed = False
            return value
        finally:
            if self._observe is not None:
                self._observe(query.name, self._clock() - began)

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """READ COMMITTED, whatever the database's default is; rolled back by any exception.

        ConflictError: a statement of the block failed and the block went on as if nothing were:
        the server would answer its COMMIT with a silent rollback.
        """
        transaction = await self._begin()
        try:
            yield
            if self._failed:
                raise ConflictError("database: a statement failed; nothing of the block was kept")
        except BaseException:
            # A connection that broke has rolled back already; the first error is the one to tell.
            with contextlib.suppress(*DRIVER_ERRORS):
                await transaction.rollback()
            raise
        await self._commit(transaction)

    @translated
    async def _begin(self) -> Any:
        transaction = self.raw.transaction(isolation="read_committed")
        await transaction.start()
        return transaction

    @translated
    async def _commit(self, transaction: Any) -> None:
        await transaction.commit()


Dsn = str | Callable[[], str]
"""The database URL, or what tells the one that is right now: asked at every new connection, so that
a rotated password needs no restart."""


def current(dsn: Dsn) -> str:
    """The URL to connect with now."""
    return dsn if isinstance(dsn, str) else dsn()


@translated
async def connect(
    dsn: Dsn, *, purpose: str, timeout: float, command_timeout: float | None = None
) -> Any:
    """A connection of the driver's own kind; both times in seconds.

    `purpose` shows in pg_stat_activity, behind the program's name. Raises ConfigurationError when
    the URL cannot be one, UnavailableError, PermissionDeniedError.
    """
    url = current(dsn)
    with readable(url):
        return await asyncpg.connect(
            url,
            timeout=timeout,
            command_timeout=command_timeout,
            server_settings={**SESSION, "application_name": f"sandbox-restore {purpose}"},
        )


@contextlib.contextmanager
def readable(dsn: str) -> Iterator[None]:
    """Raises ConfigurationError, which never quotes the URL, when `dsn` is no Postgres URL."""
    if not dsn.startswith(("postgresql://", "postgres://")):
        raise ConfigurationError(["database URL: it must begin with postgresql:// or postgres://"])
    try:
        yield
    except (ValueError, OverflowError):  # no port is above 65535
        # The driver quotes what it could not read, and that may be a part of the password.
        raise ConfigurationError(["database URL: host, port or options cannot be read"]) from None
