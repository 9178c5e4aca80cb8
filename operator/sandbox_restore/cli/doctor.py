"""`doctor`: is this installation well? One line per finding."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sandbox_restore.cli.exit_codes import ExitCode
from sandbox_restore.cli.options import Context, Kubeconfig
from sandbox_restore.cli.output import (
    Document,
    DocumentOption,
    plain_table,
    say,
    say_document,
    say_table,
)
from sandbox_restore.errors import ConfigurationError, SandboxRestoreError
from sandbox_restore.redact import redact

if TYPE_CHECKING:
    from pathlib import Path

    from sandbox_restore.kube.objects import KubeObjects
    from sandbox_restore.report.findings import Finding
    from sandbox_restore.settings import Settings


def doctor(
    *,
    service_account: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="NAMESPACE/NAME",
            help="Check this service account's rights instead of yours: the operator's.",
        ),
    ] = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    output: DocumentOption = Document.TEXT,
) -> None:
    """Checks an installation; one line per finding.

    Settings, API server, rights, operator, database, labels, stored snapshots. Give it the
    operator's settings. It changes nothing. Without --as the rights checked are those of whoever
    runs it: in a pod, its service account's. Exit code 0: no problem (warnings do not count); 1:
    at least one.

    \b
    Examples:
      sandbox-restore doctor --as sandbox-restore-system/sandbox-restore
      kubectl exec -n sandbox-restore-system deploy/sandbox-restore -- sandbox-restore doctor
    """
    from sandbox_restore.report.findings import Level

    found = asyncio.run(_examined(service_account, kubeconfig=kubeconfig, context=context))
    problems = sum(one.level is Level.PROBLEM for one in found)
    if output is Document.TEXT:
        _say(found)
    else:
        say_document(
            {
                "healthy": not problems,
                "findings": [
                    {
                        "level": one.level.value,
                        "about": one.about,
                        "message": redact(one.message),
                        "fix": one.fix or None,
                    }
                    for one in found
                ],
            },
            output,
        )
    raise typer.Exit(ExitCode.FAILED if problems else ExitCode.OK)


def _say(found: list[Finding]) -> None:
    from sandbox_restore.report.findings import Level
    from sandbox_restore.report.words import counted

    table = plain_table("", "", "")
    table.show_header = False
    for one in found:
        text = one.message if not one.fix else f"{one.message}. What to do: {one.fix}"
        table.add_row(one.level.value, one.about, redact(text))
    say_table(table)
    problems = sum(one.level is Level.PROBLEM for one in found)
    warnings = sum(one.level is Level.WARNING for one in found)
    say("")
    say(f"{counted(problems, 'problem')}, {counted(warnings, 'warning')}")


async def _examined(
    service_account: str | None, *, kubeconfig: Path | None, context: str | None
) -> list[Finding]:
    from sandbox_restore.kube.client import in_cluster
    from sandbox_restore.report.findings import Finding, Level
    from sandbox_restore.settings import load_settings

    user = _user(service_account)
    try:
        settings = load_settings(os.environ, needs_database=False)
    except ConfigurationError as error:
        return [
            Finding(level=Level.PROBLEM, about="settings", message=line) for line in error.problems
        ]
    found = list(_settings(settings))
    operators = user is not None or in_cluster(kubeconfig=kubeconfig, context=context)
    examination = _Examination(settings, user=user, operators=operators)
    async with AsyncExitStack() as stack:
        try:
            from sandbox_restore.cli.cluster import cluster

            kube = await stack.enter_async_context(
                cluster(kubeconfig=kubeconfig, context=context, namespaces=settings.namespaces)
            )
            await kube.client.request("GET", "/version")
        except SandboxRestoreError as error:
            lines = error.problems if isinstance(error, ConfigurationError) else [str(error)]
            found += [Finding(level=Level.PROBLEM, about="api server", message=x) for x in lines]
            return [*found, *[one async for one in examination.database()]]
        found.append(
            Finding(level=Level.OK, about="api server", message=f"{kube.client.server} answers")
        )
        found += [one async for one in examination.cluster(kube)]
        found += [one async for one in examination.database()]
        found += examination.stored()
    return found


def _user(service_account: str | None) -> str | None:
    if service_account is None:
        return None
    namespace, slash, name = service_account.partition("/")
    if not (namespace and slash and name):
        raise ConfigurationError([f"--as {service_account!r}: expected NAMESPACE/NAME"])
    return f"system:serviceaccount:{namespace}:{name}"


def _settings(settings: Settings) -> Iterator[Finding]:
    from sandbox_restore.cli.plan import pod_template
    from sandbox_restore.report.findings import Finding, Level

    for warning in settings.warnings:
        yield Finding(level=Level.WARNING, about="settings", message=warning)
    try:
        pod_template(settings)
    except ConfigurationError as error:
        for line in error.problems:
            yield Finding(level=Level.PROBLEM, about="pod template", message=line)
    gate = "on" if settings.host_cpu_placement_enabled else "off"
    if not settings.host_cpu_placement_enabled and settings.host_cpu_placement_observe:
        gate = "off, observed"
    yield Finding(
        level=Level.OK, about="settings", message=f"valid; placement by host CPU is {gate}"
    )


class _Examination:
    """What was read on the way, for the findings that need several of it."""

    def __init__(self, settings: Settings, *, user: str | None, operators: bool) -> None:
        self.settings = settings
        self.user = user
        self.operators = operators
        """The account whose rights are checked is meant to be the operator's."""
        self._nodes: Any = None
        self._lineages: Any = None

    async def cluster(self, kube: KubeObjects) -> AsyncIterator[Finding]:
        from sandbox_restore.fleet import cpu as cpus
        from sandbox_restore.report import findings

        settings = self.settings
        now = datetime.now(UTC)
        async for one in self._crd(kube):
            yield one
        async for one in self._rights(kube):
            yield one
        async for one in self._lease(kube):
            yield one
        try:
            self._nodes = (await kube.nodes()).items
        except SandboxRestoreError as error:
            yield _skipped("nodes", error)
        else:
            for one in findings.of_labels(self._nodes, cpu_label=settings.host_cpu_label):
                yield one
            labels = (n.labels.get(settings.host_cpu_label) for n in self._nodes)
            published = {cpu for label in labels if (cpu := cpus.usable(label)) is not None}
            for one in findings.of_compatibility(settings.compatibility, published):
                yield one
        try:
            restores = (await kube.restores()).items
        except SandboxRestoreError as error:
            yield _skipped("restores", error)
        else:
            for one in findings.of_restores(restores, namespaces=settings.namespaces, now=now):
                yield one

    async def _crd(self, kube: KubeObjects) -> AsyncIterator[Finding]:
        import msgspec

        from sandbox_restore.kube.client import NotFoundError
        from sandbox_restore.kube.objects import CRD, CRD_FILE
        from sandbox_restore.model.crd import absent_fields
        from sandbox_restore.report.findings import Finding, Level

        try:
            absent = absent_fields(msgspec.json.decode(await kube.client.request("GET", CRD)))
        except NotFoundError:
            yield Finding(
                level=Level.PROBLEM,
                about="crd",
                message="the API server does not know SandboxRestores",
                fix=f"kubectl apply --server-side -f {CRD_FILE}",
            )
            return
        except SandboxRestoreError as error:
            yield _skipped("crd", error)
            return
        if absent:
            yield Finding(
                level=Level.PROBLEM,
                about="crd",
                message=f"older than this program: it lacks {', '.join(absent[:5])}",
                fix=f"kubectl apply --server-side -f {CRD_FILE}",
            )
        else:
            yield Finding(
                level=Level.OK, about="crd", message="installed, with every field that is written"
            )

    async def _rights(self, kube: KubeObjects) -> AsyncIterator[Finding]:
        from sandbox_restore.kube.rights import asked, is_allowed
        from sandbox_restore.report.findings import Finding, Level

        settings = self.settings
        missing: list[str] = []
        for right, namespace in asked(
            namespaces=settings.namespaces,
            lease_namespace=settings.lease_namespace,
            lease_name=settings.lease_name,
        ):
            try:
                allowed = await is_allowed(kube.client, right, namespace=namespace, user=self.user)
            except SandboxRestoreError as error:
                yield _skipped("rights", error)
                return
            if not allowed:
                where = f" in namespace {namespace}" if namespace and right.namespaced else ""
                missing.append(f"{right}{where} (for {right.needed_for})")
        who = self.user or "this account"
        for line in missing:
            yield Finding(
                level=Level.PROBLEM if self.operators else Level.NOTE,
                about="rights",
                message=f"{who} may not {line}",
                fix="grant it: docs/install/rbac.yaml"
                if self.operators
                else "only the operator needs it: --as NAMESPACE/NAME checks its rights",
            )
        if not missing:
            yield Finding(
                level=Level.OK, about="rights", message=f"{who} has all that the operator needs"
            )

    async def _lease(self, kube: KubeObjects) -> AsyncIterator[Finding]:
        import msgspec

        from sandbox_restore.kube.client import NotFoundError
        from sandbox_restore.report import findings

        namespace, name = self.settings.lease_namespace, self.settings.lease_name
        path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}"
        lease = None
        try:
            lease = msgspec.json.decode(await kube.client.request("GET", path))
        except NotFoundError:
            pass
        except SandboxRestoreError as error:
            yield _skipped("operator", error)
            return
        yield findings.of_lease(lease, where=f"{namespace}/{name}", now=datetime.now(UTC))

    async def database(self) -> AsyncIterator[Finding]:
        from sandbox_restore.report.findings import Finding, Level
        from sandbox_restore.store.store import Store

        if not self.settings.dsn:
            yield Finding(
                level=Level.SKIPPED,
                about="database",
                message="SPACE_SANDBOX_RESTORE_DATABASE_URL (or …_FILE) is not set",
            )
            return
        try:
            async with await Store.open(self.settings.dsn, pool_size=1) as store:
                state = await store.schema_state()
                state.require_current()
                self._lineages = await store.stored_lineages()
                counts = await store.counts()
        except SandboxRestoreError as error:
            lines = error.problems if isinstance(error, ConfigurationError) else [str(error)]
            for line in lines:
                yield Finding(level=Level.PROBLEM, about="database", message=line)
            return
        yield Finding(
            level=Level.OK,
            about="database",
            message=f"answers; schema at revision {state.current}; "
            f"{sum(counts.sandboxes.values())} sandboxes",
        )

    def stored(self) -> list[Finding]:
        """Whether what is stored has a node: needs both servers."""
        from sandbox_restore.report import findings
        from sandbox_restore.report.matrix import matrix_of

        if self._nodes is None or self._lineages is None:
            return []
        matrix = matrix_of(
            self._nodes,
            self.settings.compatibility,
            self._lineages,
            cpu_label=self.settings.host_cpu_label,
            drain_marks=self.settings.drain_marks,
        )
        return list(findings.of_matrix(matrix))


def _skipped(about: str, error: SandboxRestoreError) -> Finding:
    from sandbox_restore.report.findings import Finding, Level

    return Finding(level=Level.SKIPPED, about=about, message=str(error))
