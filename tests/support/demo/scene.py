"""The scene of the demo: real control plane, real Postgres, real operator, simulated nodes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg

from tests.support.demo.findings import Findings, StoryError, gather, is_finished
from tests.support.demo.narrator import Narrator
from tests.support.fleet import (
    SandboxSeed,
    as_yaml_stream,
    captures_of,
    create_sandboxes,
    restore_manifest,
)
from tests.support.operator_process import OperatorProcess
from tests.support.postgres import TestPostgres, open_postgres
from tests.support.simnode import CapturesInMemory, Matrix, SimNode, load_matrix, read_record
from tests.support.testbed import ControlPlane, NodeSpec, ensure_built, wait_until
from tests.support.waiting import NotInTimeError, until

RIGHTS = Path(__file__).parents[3] / "docs" / "install" / "rbac.yaml"
CRD = Path(__file__).parents[3] / "crds" / "space.pplx.net_sandboxrestores.yaml"
RESTORES = "/apis/space.pplx.net/v1alpha1/namespaces/{}/sandboxrestores"
FINISH_SECONDS = 240.0
"""How long the restores of one act may take; they take some seconds."""

OPERATOR = "operator"
"""The user that the operator is, on the API server and in the database."""
LEASE_NAMESPACE = "sandbox-restore-system"
DATABASE = "sandbox_restore_demo"
_PREFIX = "SPACE_SANDBOX_RESTORE_"


@dataclass(slots=True, kw_only=True)
class Scene:
    """All parts, running; `raised` is the way to one."""

    plane: ControlPlane
    postgres: TestPostgres
    dsn: str
    matrix: Matrix
    fleet: Sequence[NodeSpec]
    captures: CapturesInMemory
    nodes: SimNode
    folder: Path
    starts: int = field(default=0)
    """Operators started so far; each has a log of its own."""

    @contextlib.asynccontextmanager
    async def operator(self, **settings: str) -> AsyncIterator[OperatorProcess]:
        """Run the real operator for a while; settings are named without their common prefix."""
        async with self.operator_process(program=None, environment=None, **settings) as process:
            yield process

    def operator_process(
        self,
        *,
        program: Sequence[str] | None = None,
        environment: Mapping[str, str] | None = None,
        **settings: str,
    ) -> OperatorProcess:
        """Prepare the real operator, or a `program` in its place; it is not started yet."""
        self.starts += 1
        return OperatorProcess(
            self.plane.kubeconfig_for(OPERATOR),
            self.postgres.dsn_for(DATABASE, user=OPERATOR),
            env={
                **{f"{_PREFIX}{name.upper()}": value for name, value in settings.items()},
                **(environment or {}),
            },
            log_path=self.folder / f"operator-{self.starts}.log",
            program=program,
        )

    async def add_namespace(self, name: str) -> None:
        """Create a namespace in which pods can be created."""
        await self.kubectl("create", "namespace", name)
        path = f"/api/v1/namespaces/{name}/serviceaccounts"
        api = self.plane.api()
        await asyncio.to_thread(
            wait_until,
            lambda: any(api.items(path)),
            what=f"namespace {name} has a service account",
            timeout=30.0,
        )

    async def add_sandboxes(self, seeds: Sequence[SandboxSeed]) -> None:
        """Report suspended sandboxes as the platform does, and put their snapshots in storage."""
        await create_sandboxes(self.dsn, seeds)
        for snapshot_id, capture in captures_of(seeds).items():
            self.captures.put(snapshot_id, capture)

    async def report(self, function: str, **arguments: object) -> None:
        """Report something as the platform does, by one of its SQL functions."""
        named = ", ".join(f"{name} => ${place}" for place, name in enumerate(arguments, start=1))
        connection = await asyncpg.connect(self.dsn)
        try:
            sql = f"SELECT sandbox_restore.{function}({named})"
            await connection.execute(sql, *arguments.values())
        finally:
            await connection.close()

    async def pins(self, namespace: str) -> dict[str, str]:
        """Return the node that each pinned sandbox of a namespace is pinned to, by sandbox id."""
        connection = await asyncpg.connect(self.dsn)
        try:
            rows = await connection.fetch(
                "SELECT id, pinned_node FROM sandbox_restore.sandbox"
                " WHERE namespace = $1 AND pinned_node IS NOT NULL",
                namespace,
            )
        finally:
            await connection.close()
        return {row["id"]: row["pinned_node"] for row in rows}

    async def wake(self, seeds: Sequence[SandboxSeed], **spec: object) -> Findings:
        """Apply a SandboxRestore for each sandbox; return once each has succeeded or failed."""
        await self.apply(seeds, **spec)
        return await self.finished(seeds)

    async def apply(
        self, seeds: Sequence[SandboxSeed], *, suffix: str = "", **spec: object
    ) -> None:
        """Apply a SandboxRestore for each sandbox; `suffix` ends their names."""
        manifests = [restore_manifest(seed, **spec) for seed in seeds]
        for manifest in manifests:
            manifest["metadata"]["name"] += suffix
        await self.kubectl("apply", "-f", "-", stdin=as_yaml_stream(manifests))

    async def finished(
        self, seeds: Sequence[SandboxSeed], *, deadline_s: float = FINISH_SECONDS
    ) -> Findings:
        """Return once each restore of the namespace has succeeded or failed."""
        namespace = seeds[0].namespace
        try:
            await until(
                lambda: all(is_finished(one) for one in self.restores(namespace)),
                deadline_s=deadline_s,
                what="every restore has succeeded or failed",
                interval_s=0.5,
            )
        except NotInTimeError as error:
            waiting = [one for one in self.restores(namespace) if not is_finished(one)]
            names = ", ".join(one["metadata"]["name"] for one in waiting[:3])
            raise StoryError(f"{error}: {len(waiting)} have not, such as {names}") from error
        return self.findings(seeds)

    def findings(self, seeds: Sequence[SandboxSeed]) -> Findings:
        """Return what came of the restores of these sandboxes."""
        return gather(
            seeds,
            record=read_record(self.nodes.record.path),
            restores=self.restores(seeds[0].namespace),
        )

    def restores(self, namespace: str) -> list[dict[str, Any]]:
        """Return the SandboxRestores of a namespace."""
        return list(self.plane.api().items(RESTORES.format(namespace)))

    async def kubectl(self, *args: str, stdin: str | None = None) -> str:
        """Run kubectl as an administrator and return what it printed. Raises TestbedError."""
        done = await asyncio.to_thread(self.plane.kubectl, *args, stdin=stdin)
        return done.stdout

    async def install(self) -> None:
        """The custom resource, the database's schema, and the operator's rights on both servers."""
        await asyncio.gather(self.kubectl("apply", "-f", str(CRD)), self.prepare_database())
        await self.grant_rights()
        await self.kubectl(
            "wait", "--for=condition=Established", "crd/sandboxrestores.space.pplx.net"
        )

    async def grant_rights(self) -> None:
        """Give the operator the rights that the docs say it needs, and no others.

        The test bed's user stands in for the service account.
        """
        rights = RIGHTS.read_text()
        account = "{kind: ServiceAccount, name: sandbox-restore, namespace: sandbox-restore-system}"
        assert account in rights
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": LEASE_NAMESPACE}}
        await self.kubectl("apply", "-f", "-", stdin=json.dumps(namespace))
        await self.kubectl(
            "apply", "-f", "-", stdin=rights.replace(account, f"{{kind: User, name: {OPERATOR}}}")
        )

    async def prepare_database(self) -> None:
        """The database's schema, and the operator's user with the role that the schema has for it.

        Raises StoryError.
        """
        await self.migrate()
        await self.postgres.execute(f"DROP ROLE IF EXISTS {OPERATOR}")
        await self.postgres.execute(
            f"CREATE ROLE {OPERATOR} LOGIN IN ROLE sandbox_restore_operator"
        )

    async def migrate(self) -> None:
        """Bring the database's schema up to date with the real command. Raises StoryError."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "sandbox_restore.cli.main",
            "migrate",
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=_environment(self.dsn),
        )
        printed, _ = await process.communicate()
        if process.returncode:
            raise StoryError(f"sandbox-restore migrate failed: {printed.decode(errors='replace')}")


@contextlib.asynccontextmanager
async def raised(
    fleet: Sequence[NodeSpec],
    *,
    folder: Path,
    narrator: Narrator,
    audit: bool = False,
    load_seconds: float = 0.1,
    installed: bool = True,
) -> AsyncIterator[Scene]:
    """Start all parts; at the end nothing of them is left.

    `audit` is that of ControlPlane; `load_seconds` is how long a simulated load takes. Without
    `installed` the API server has neither custom resource nor rights: the caller brings them.
    """
    matrix, captures = load_matrix(), CapturesInMemory()
    async with contextlib.AsyncExitStack() as stack:
        narrator.doing("starting etcd, kube-apiserver, scheduler, controller manager")
        # Not in threads: a Ctrl-C meanwhile would lose what is being started.
        plane = stack.enter_context(ControlPlane.start(ensure_built(), audit=audit))
        narrator.doing("starting Postgres")
        postgres = stack.enter_context(open_postgres())
        dsn = await postgres.create_database(DATABASE)
        narrator.doing("adding the simulated nodes, the custom resource and the schema")
        plane.add_nodes(fleet)
        nodes = SimNode(
            plane.kubeconfig,
            matrix=matrix,
            captures=captures,
            record=folder / "record.jsonl",
            load_seconds=load_seconds,
        )
        scene = Scene(
            plane=plane,
            postgres=postgres,
            dsn=dsn,
            matrix=matrix,
            fleet=fleet,
            captures=captures,
            nodes=await stack.enter_async_context(nodes),
            folder=folder,
        )
        await asyncio.gather(
            scene.install() if installed else scene.prepare_database(),
            asyncio.to_thread(plane.wait_nodes_ready),
        )
        yield scene


def _environment(dsn: str) -> Mapping[str, str]:
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "PYTHONPATH": str(CRD.parents[1] / "operator"),
        f"{_PREFIX}DATABASE_URL": dsn,
    }
