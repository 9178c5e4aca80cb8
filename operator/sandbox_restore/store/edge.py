"""The one place where a driver's exception becomes an error of this project, in one clear line."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Final, ParamSpec, TypeVar
from urllib.parse import urlsplit

import asyncpg

from sandbox_restore.errors import (
    ConfigurationError,
    ConflictError,
    PermissionDeniedError,
    RejectedError,
    SandboxRestoreError,
    SchemaError,
    UnavailableError,
)

P = ParamSpec("P")
R = TypeVar("R")

DRIVER_ERRORS: Final = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)

# SQLSTATEs, or their first two characters.
_PERMISSION: Final = frozenset({"42501", "28000", "28P01"})
_SCHEMA: Final = frozenset({"3D000", "3F000", "42P01", "42703", "42883", "42704"})
_CONFLICT: Final = frozenset({"23505", "23P01", "40001", "40P01", "55P03", "55000", "P0002"})
_UNAVAILABLE: Final = frozenset({"25006", "25P03", "08", "53", "57", "58"})


def translated(call: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
    """Makes every exception of the driver that leaves `call` one of this project's."""

    @wraps(call)
    async def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return await call(*args, **kwargs)
        except DRIVER_ERRORS as error:
            # The cause is dropped: a driver's traceback may hold the connection's arguments.
            raise translate(error) from None

    return run


def translate(error: BaseException) -> SandboxRestoreError:
    """The project's error for one of the driver's; its text holds no URL and no password."""
    if isinstance(error, asyncpg.PostgresError):
        return _from_server(error)
    if isinstance(error, asyncpg.ClientConfigurationError):
        return ConfigurationError(["database URL: it cannot be read"])
    if isinstance(error, ValueError):  # what the driver raises when it cannot encode an argument
        return RejectedError(f"database: a value cannot be sent: {_one_line(error)}")
    if isinstance(error, TimeoutError):
        return UnavailableError("database: no answer in time")
    return UnavailableError(f"database: cannot be reached: {_one_line(error)}")


def _from_server(error: asyncpg.PostgresError) -> SandboxRestoreError:
    state = error.sqlstate or ""
    hint = getattr(error, "hint", None)
    # The detail is left out: for a constraint it shows the whole row.
    text = f"database: {_one_line(error)}" + (f" ({_squeeze(hint)})" if hint else "")
    if state in _SCHEMA:
        return SchemaError(f"{text}; run `sandbox-restore migrate`")
    if state in _PERMISSION:
        return PermissionDeniedError(text)
    if state in _CONFLICT:
        return ConflictError(text)
    if state in _UNAVAILABLE or state[:2] in _UNAVAILABLE:
        return UnavailableError(text)
    return RejectedError(f"{text} [{state}]")


def _one_line(error: BaseException) -> str:
    return _squeeze(str(error).strip().partition("\n")[0]) or type(error).__name__


def _squeeze(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def redact(dsn: str) -> str:
    """The database URL with everything secret left out: user, hosts and database only."""
    try:
        parts = urlsplit(dsn)
        user = parts.username
    except ValueError:
        return "postgresql://…"
    if parts.scheme not in ("postgresql", "postgres"):
        return "postgresql://…"
    hosts = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{user + '@' if user else ''}{hosts}{parts.path}"
