"""`fleet`: the CPUs of the fleet, who loads whose snapshots, and what a drain would take."""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from sandbox_restore.cli.exit_codes import ExitCode
from sandbox_restore.cli.options import Context, Kubeconfig
from sandbox_restore.cli.output import (
    Document,
    DocumentOption,
    console,
    note,
    plain_table,
    say,
    say_document,
    say_table,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from sandbox_restore.model.node import NodeFacts
    from sandbox_restore.model.sandbox import StoredLineage
    from sandbox_restore.placement.reachable import Demand
    from sandbox_restore.report.drain import Confined, DemandOf, DrainCheck
    from sandbox_restore.report.matrix import Matrix
    from sandbox_restore.report.rollout import Rollout
    from sandbox_restore.settings import Settings

fleet = typer.Typer(
    name="fleet",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

EXAMPLES: Final = 5
"""Sandboxes named for each kind that a drain would take; `-o json` names more."""
MORE_EXAMPLES: Final = 1000


@fleet.callback(invoke_without_command=True)
def show(
    context: typer.Context,
    *,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show it again and again, until Ctrl-C.")
    ] = False,
    interval: Annotated[
        float, typer.Option(min=1, max=3600, help="With --watch: seconds between two looks.")
    ] = 5.0,
    kubeconfig: Kubeconfig = None,
    kube_context: Annotated[
        str | None, typer.Option("--context", metavar="NAME", help="A context of the kubeconfig.")
    ] = None,
    output: DocumentOption = Document.TEXT,
) -> None:
    """Shows the fleet's CPUs and what each guards.

    Which CPUs there are, who loads whose snapshots, what is in danger. Reads the nodes and the
    restores; with SPACE_SANDBOX_RESTORE_DATABASE_URL (or …_FILE) set, also how many snapshots
    each CPU guards. The compatibility list is that of the environment: give the command the
    operator's. Exit code 1: stored snapshots have no usable node.

    \b
    Examples:
      sandbox-restore fleet
      sandbox-restore fleet --watch
      sandbox-restore fleet -o json
    """
    if context.invoked_subcommand is not None:
        return
    from sandbox_restore.report import shape
    from sandbox_restore.settings import load_settings

    settings = load_settings(os.environ, needs_database=False)
    if watch and output is not Document.TEXT:
        note("--watch shows text only", kind="error")
        raise typer.Exit(ExitCode.USAGE)
    if watch:
        _watch(settings, kubeconfig=kubeconfig, context=kube_context, interval=interval)
    matrix, rollout = asyncio.run(_look(settings, kubeconfig=kubeconfig, context=kube_context))
    if output is Document.TEXT:
        say_fleet(matrix, rollout)
    else:
        say_document(shape.of_matrix(matrix, rollout), output)
    raise typer.Exit(ExitCode.FAILED if _in_danger(matrix) else ExitCode.OK)


def _in_danger(matrix: Matrix) -> bool:
    return any(row.snapshots and row.unloadable for row in matrix.lineages)


def _watch(
    settings: Settings, *, kubeconfig: Path | None, context: str | None, interval: float
) -> None:
    """The answer of a moment replaces the one before."""

    async def again() -> None:
        screen = console()
        while True:
            matrix, rollout = await _look(settings, kubeconfig=kubeconfig, context=context)
            screen.clear()
            say(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC, every {interval:g} s; Ctrl-C ends it")
            say("")
            say_fleet(matrix, rollout)
            sys.stdout.flush()
            await asyncio.sleep(interval)

    asyncio.run(again())


@fleet.command("drain-check")
def drain_check(
    nodes: Annotated[list[str], typer.Argument(metavar="NODE…", help="Nodes to be drained.")],
    *,
    suspended_first: Annotated[
        bool,
        typer.Option(
            "--suspended-first",
            help="What runs there will be suspended and stored before the drain: do not fail.",
        ),
    ] = False,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    output: DocumentOption = Document.TEXT,
) -> None:
    """Names what a drain would leave without a node.

    Which sandboxes could no node restore any more without these? For use before a drain: it
    changes nothing. Needs the database. Exit code 0: none; 1: some, and each is named with what
    to do first.

    \b
    Examples:
      sandbox-restore fleet drain-check node-7 node-8
      sandbox-restore fleet drain-check node-7 -o json
    """
    from sandbox_restore.report import shape
    from sandbox_restore.settings import load_settings

    settings = load_settings(os.environ)
    limit = EXAMPLES if output is Document.TEXT else MORE_EXAMPLES
    check, examples = asyncio.run(
        _check(settings, nodes, kubeconfig=kubeconfig, context=context, examples=limit)
    )
    if output is Document.TEXT:
        say_drain(check, examples)
    else:
        say_document(shape.of_drain(check, examples), output)
    well = check.restorable and (suspended_first or not check.running)
    raise typer.Exit(ExitCode.OK if well else ExitCode.FAILED)


# --- reading


async def _look(
    settings: Settings, *, kubeconfig: Path | None, context: str | None
) -> tuple[Matrix, Rollout | None]:
    from sandbox_restore.cli.cluster import cluster
    from sandbox_restore.errors import PermissionDeniedError
    from sandbox_restore.kube.client import NotFoundError
    from sandbox_restore.report.matrix import matrix_of
    from sandbox_restore.report.rollout import rollout_of

    async with cluster(
        kubeconfig=kubeconfig, context=context, namespaces=settings.namespaces
    ) as kube:
        found = (await kube.nodes()).items
        rollout = None
        try:
            rollout = rollout_of((await kube.restores()).items)
        except (PermissionDeniedError, NotFoundError) as error:
            note(f"restores not counted: {error}")
    matrix = matrix_of(
        found,
        settings.compatibility,
        await _stored(settings),
        cpu_label=settings.host_cpu_label,
        drain_marks=settings.drain_marks,
    )
    return matrix, rollout


async def _stored(settings: Settings) -> Sequence[StoredLineage] | None:
    from sandbox_restore.store.store import Store

    if not settings.dsn:
        return None
    async with await Store.open(settings.dsn, pool_size=1, command_timeout=60.0) as store:
        (await store.schema_state()).require_current()
        return await store.stored_lineages()


async def _check(
    settings: Settings,
    names: Sequence[str],
    *,
    kubeconfig: Path | None,
    context: str | None,
    examples: int,
) -> tuple[DrainCheck, dict[int, list[tuple[str, str]]]]:
    from sandbox_restore.cli.cluster import cluster
    from sandbox_restore.errors import ConfigurationError
    from sandbox_restore.report import drain
    from sandbox_restore.store.store import Store

    async with cluster(kubeconfig=kubeconfig, context=context) as kube:
        nodes: Sequence[NodeFacts] = (await kube.nodes()).items
    if unknown := sorted(set(names) - {node.name for node in nodes}):
        raise ConfigurationError([f"there is no node {name}" for name in unknown])
    async with await Store.open(settings.dsn, pool_size=1, command_timeout=60.0) as store:
        (await store.schema_state()).require_current()
        check = drain.drain_check(
            await store.pinned_to(names),
            await store.stored_kinds(drained=names),
            nodes,
            settings.compatibility,
            demand_of=_demands(settings),
            drained=names,
            cpu_label=settings.host_cpu_label,
            drain_marks=settings.drain_marks,
        )
        named = {
            i: await store.sandboxes_of(one.kind, drained=names, limit=examples)
            for i, one in enumerate(check.kinds)
        }
    return check, named


def _demands(settings: Settings) -> DemandOf:
    """What the pod template and a sandbox's row ask of a node together."""
    from sandbox_restore.cli.plan import pod_template
    from sandbox_restore.model.restore import RestoreSpec
    from sandbox_restore.model.sandbox import Sandbox
    from sandbox_restore.placement.pod import NodeSelectorConflictError, demand_of

    template = pod_template(settings)

    def asked(one: Confined) -> Demand | None:
        row = Sandbox(
            id="any", namespace="any", node_group=one.node_group, node_selector=one.node_selector
        )
        try:
            return demand_of(template, sandbox=row, spec=RestoreSpec(sandbox_id=row.id))
        except NodeSelectorConflictError:
            return None

    return asked


# --- text

_LIST: Final = 4
"""CPUs named in one cell."""


def say_fleet(matrix: Matrix, rollout: Rollout | None) -> None:
    """The CPUs, the matrix, what is in danger, and how far the gate reaches."""
    from sandbox_restore.report.nodes import NodeState
    from sandbox_restore.report.words import listed

    shown = (NodeState.SCHEDULABLE, NodeState.CORDONED, NodeState.DRAINING)
    right = ("nodes", *(s.value for s in shown), "other", "guards", "alone")
    table = plain_table("cpu", *right[:5], *(right[5:] if matrix.database else ()), right=right)
    for row in matrix.cpus:
        numbers = [row.nodes[state] for state in shown]
        cells: list[Any] = [row.nodes.total, *numbers, row.nodes.total - sum(numbers)]
        if matrix.database:
            cells += [row.guards, row.alone] if row.cpu else ["", ""]
        table.add_row(row.cpu or "(no usable label)", *(str(cell) for cell in cells))
    say_table(table)
    for row in matrix.cpus:
        if row.labels:
            say(f"labels that name no CPU: {listed(row.labels)}")
    say("")
    _say_matrix(matrix)
    if matrix.warnings:
        say("")
        for line in matrix.warnings:
            say(f"! {line}")
    if rollout is not None and rollout.restores:
        say("")
        say(rollout.words)
    if not matrix.database:
        say("")
        say("Snapshots are not counted: SPACE_SANDBOX_RESTORE_DATABASE_URL is not set.")


def _say_matrix(matrix: Matrix) -> None:
    """Capture CPUs down, and for each the CPUs that load it; nodes as usable/all."""
    numbers = ("snapshots", "sandboxes") if matrix.database else ()
    table = plain_table("captured on", *numbers, "usable", "loaders", right=(*numbers, "usable"))
    for row in matrix.lineages:
        loaders = ", ".join(row.loaders[:_LIST])
        if len(row.loaders) > _LIST:
            loaders += f" and {len(row.loaders) - _LIST} more"
        if not row.loaders:
            loaders = "none" if row.capture_cpu else "told at each restore"
        cells = [str(row.snapshots), str(row.sandboxes)] if matrix.database else []
        usable = f"{row.nodes.usable}/{row.nodes.total}" if row.capture_cpu else ""
        table.add_row(row.name, *cells, usable, loaders)
    say_table(table)


def say_drain(check: DrainCheck, examples: dict[int, list[tuple[str, str]]]) -> None:
    """What would be lost and what to do first, or that nothing would."""
    from sandbox_restore.report.words import counted, listed

    who = listed(check.nodes)
    if check.restorable:
        say(f"Without {who} every sandbox that can be restored now still can be.")
    elif check.lost == 1:
        say(f"Without {who}, 1 sandbox could not be restored:")
    else:
        say(f"Without {who}, up to {check.lost} sandboxes could not be restored:")
    for why in dict.fromkeys(one.why for one in check.states):
        group = [one for one in check.states if one.why is why]
        for one in group[:EXAMPLES]:
            say(f"  {one.row.namespace}/{one.row.sandbox_id}: {one.message}")
        if len(group) > EXAMPLES:
            say(f"  and {len(group) - EXAMPLES} more for the same reason (-o json names them)")
    for i, found in enumerate(check.kinds):
        named = examples.get(i, [])
        many = counted(found.kind.sandboxes, "sandbox")
        say(f"  {many} captured on {found.kind.capture_cpu}: {found.message}")
        for namespace, name in named:
            say(f"    {namespace}/{name}")
        if found.kind.sandboxes > len(named):
            say(f"    and {found.kind.sandboxes - len(named)} more (-o json names them)")
    if check.running:
        say(
            f"{counted(check.running, 'sandbox')} running there could be restored elsewhere: "
            "suspend them, and wait until their snapshots are in storage."
        )
    if check.already:
        say(
            f"{check.already} more have no usable node already, drained or not: see "
            "sandbox-restore fleet."
        )
    if check.unknown:
        say(
            f"{counted(check.unknown, 'sandbox')} not judged: the capture CPU of the newest "
            "snapshot is not recorded."
        )
