"""`retire`: ends an execution that nobody can prove to be over (domain.md section 15)."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from sandbox_restore.cli.exit_codes import ExitCode
from sandbox_restore.cli.options import Context, Kubeconfig
from sandbox_restore.cli.output import note, say

if TYPE_CHECKING:
    from pathlib import Path

    from sandbox_restore.kube.objects import KubeObjects
    from sandbox_restore.model.sandbox import SandboxView
    from sandbox_restore.report.forced import Known
    from sandbox_restore.settings import Settings


def retire(
    sandbox: Annotated[str, typer.Argument(help="The id of a sandbox.")],
    *,
    force: Annotated[
        bool, typer.Option("--force", help="Retire it, on your word. Needs --pod.")
    ] = False,
    pod: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="With --force: the pod's name, as proof of what you mean."
        ),
    ] = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Ends an execution that nobody can prove over.

    Tells what is known of its pod; with --force, takes your word that it is over. The operator
    retires an execution by itself once its pod is proven over. Force it only when you know that
    the VM runs no more, on whatever node it was: with a second VM of the same sandbox, what the
    users did in one of them is lost. Exit code 1: nothing was retired.

    \b
    Examples:
      sandbox-restore retire 7f3a
      sandbox-restore retire 7f3a --force --pod wake-7f3a-1c2d-1
    """
    from sandbox_restore.errors import ConfigurationError
    from sandbox_restore.settings import load_settings

    if force and not pod:
        raise ConfigurationError(["--force needs --pod NAME, as `retire SANDBOX` shows it"])
    if pod and not force:
        raise ConfigurationError(["--pod is for --force only"])
    settings = load_settings(os.environ)
    raise typer.Exit(
        asyncio.run(
            _retire(sandbox, settings, pod_name=pod, kubeconfig=kubeconfig, context=context)
        )
    )


async def _retire(
    sandbox: str,
    settings: Settings,
    *,
    pod_name: str | None,
    kubeconfig: Path | None,
    context: str | None,
) -> ExitCode:
    from sandbox_restore.cli.cluster import cluster
    from sandbox_restore.fleet.cpu import label_cpu
    from sandbox_restore.report.forced import forced_retirement
    from sandbox_restore.store.store import Store

    async with (
        cluster(kubeconfig=kubeconfig, context=context) as kube,
        await Store.open(settings.dsn, pool_size=1) as store,
    ):
        (await store.schema_state()).require_current()
        if pod_name is None:
            found = await _known(kube, await store.view(sandbox), settings, sandbox=sandbox)
            if found is not None:
                _say(found)
            return ExitCode.FAILED
        async with store.locked(sandbox) as locked:
            found = await _known(kube, locked.view, settings, sandbox=sandbox)
            if found is None:
                return ExitCode.FAILED
            for line in found.lines():
                say(line)
            if found.pod_name != pod_name:
                note(f"its pod is {found.pod_name}, not {pod_name}: nothing retired", kind="error")
                return ExitCode.FAILED
            if found.needless:
                note(f"{found.needless}: nothing retired", kind="error")
                return ExitCode.FAILED
            step = forced_retirement(found)
            node = found.sighting.node if found.sighting is not None else None
            await locked.retire(
                execution_id=step.execution.id,
                outcome=step.outcome,
                row_state=step.row_state,
                pinned_node=step.pinned_node,
                marker=step.marker,
                now=datetime.now(UTC),
                failure_message=step.failure_message,
                pod_uid=step.pod_uid,
                node_name=step.node_name,
                node_uid=step.execution.node_uid or (None if node is None else node.uid),
                node_cpu=None
                if node is None
                else label_cpu(node.labels, key=settings.host_cpu_label),
            )
        say("")
        say(f"retired: execution {step.execution.id} of sandbox {sandbox}, on your word")
        say(
            f"the row is {step.row_state}, pinned to {step.pinned_node or 'no node'}; the next "
            "wake goes on from there"
        )
        if found.pod is not None:
            note(
                f"pod {found.pod.name} still exists: no attempt begins until it is gone or proven "
                "over"
            )
        return ExitCode.OK


async def _known(
    kube: KubeObjects, view: SandboxView | None, settings: Settings, *, sandbox: str
) -> Known | None:
    """Read now, and judged as the operator would, with this moment as the first sight."""
    from sandbox_restore.cli.plan import pod_template
    from sandbox_restore.report.forced import known, node_name_of
    from sandbox_restore.restore.liveness import NodeSighting

    if view is None:
        note(f"there is no sandbox {sandbox} in the database", kind="error")
        return None
    if view.active is None:
        note(f"sandbox {sandbox} has no active execution: there is nothing to retire", kind="error")
        return None
    name = view.active.pod_name
    pod = None if name is None else await kube.pod(view.sandbox.namespace, name)
    node = node_name_of(view, pod)
    sighting = None if node is None else NodeSighting(name=node, node=await kube.node(node))
    return known(
        view,
        pod,
        sighting,
        now=datetime.now(UTC),
        gone_grace=settings.node_gone_grace,
        pod_grace_seconds=pod_template(settings).grace_seconds,
    )


def _say(found: Known) -> None:
    for line in found.lines():
        say(line)
    say("")
    if found.needless:
        say(f"Nothing is retired: {found.needless}.")
        return
    if found.verdict.recheck_at is not None:
        say("An operator that runs decides by itself, about then. Force nothing that can wait.")
    if found.execution.loaded_at is None and found.pod is None:
        say("Its pod's UID is not known: a suspend of it that is reported later will not count.")
    say("Nothing is retired. When you know that its VM runs no more, whatever the above says:")
    say(f"  sandbox-restore retire {found.sandbox.id} --force --pod {found.pod_name}")
