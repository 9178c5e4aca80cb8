"""`why`: explains one restore."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from sandbox_restore.cli.exit_codes import ExitCode
from sandbox_restore.cli.options import Context, Kubeconfig, Namespace
from sandbox_restore.cli.output import (
    Document,
    DocumentOption,
    fill,
    note,
    plain_table,
    say,
    say_document,
    say_table,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from sandbox_restore.report.why import Answer
    from sandbox_restore.settings import Settings


def why(
    name: Annotated[str, typer.Argument(help="A SandboxRestore: NAME, or NAMESPACE/NAME.")],
    *,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    output: DocumentOption = Document.TEXT,
) -> None:
    """Explains one restore, and what would help it.

    What was asked, what was decided, on what evidence, which nodes each rule removed. Reads the
    restore, its pod and the nodes; what your account may not read is left out and said. No
    database is needed. Exit code 0: it has succeeded or is under way; 1: it failed, waits, or
    there is none of that name.

    \b
    Examples:
      sandbox-restore why wake-7f3a -n team-a
      kubectl sandbox-restore why team-a/wake-7f3a -o json
    """
    from sandbox_restore.report import shape
    from sandbox_restore.report.why import State
    from sandbox_restore.settings import load_settings

    settings = load_settings(os.environ, needs_database=False)
    answer = asyncio.run(
        _asked(name, settings, namespace=namespace, kubeconfig=kubeconfig, context=context)
    )
    if answer is None:
        raise typer.Exit(ExitCode.FAILED)
    if output is Document.TEXT:
        say_answer(answer)
    else:
        say_document(shape.of_answer(answer), output)
    well = answer.state in (State.SUCCEEDED, State.WORKING)
    raise typer.Exit(ExitCode.OK if well else ExitCode.FAILED)


async def _asked(
    name: str,
    settings: Settings,
    *,
    namespace: str | None,
    kubeconfig: Path | None,
    context: str | None,
) -> Answer | None:
    from sandbox_restore.cli.cluster import cluster, namespace_of, split_name
    from sandbox_restore.errors import PermissionDeniedError
    from sandbox_restore.report.why import Fleet, why

    name, namespace = split_name(name, namespace)
    where = namespace_of(namespace, kubeconfig=kubeconfig, context=context)
    async with cluster(kubeconfig=kubeconfig, context=context) as kube:
        restore = await kube.restore(where, name)
        if restore is None:
            note(f"there is no SandboxRestore {name} in namespace {where}", kind="error")
            note(f"kubectl get sbr -n {where} lists them; -n names another namespace")
            return None
        unread: list[str] = []
        pod = fleet = None
        try:
            if restore.status.pod_name:
                pod = await kube.pod(where, restore.status.pod_name)
        except PermissionDeniedError:
            unread.append("the restore pod: you may not get pods here")
        try:
            fleet = Fleet(
                nodes=(await kube.nodes()).items,
                cpu_label=settings.host_cpu_label,
                drain_marks=settings.drain_marks,
            )
        except PermissionDeniedError:
            unread.append("the nodes as they are now: you may not list nodes")
        return why(restore, pod=pod, fleet=fleet, now=datetime.now(UTC), unread=unread)


# --- text


def say_answer(answer: Answer) -> None:
    """What is known, most important first."""
    from sandbox_restore.report.words import ago

    restore = answer.restore
    since = "" if answer.since is None else f", {ago(answer.since, datetime.now(UTC))}"
    say(f"{restore.namespace}/{restore.name}: {answer.state} ({answer.reason}{since})")
    _say_lines("", (answer.message,))
    _say_lines("Asked", answer.asked)
    _say_lines("Decided", answer.decided)
    _say_filters(answer)
    _say_lines("Evidence", answer.evidence)
    _say_redirect(answer)
    _say_attempts(answer)
    _say_lines("Now", answer.now)
    _say_lines("What helps", answer.helps)
    _say_lines("Look further", answer.commands, wrap=False)
    _say_lines("Not read", answer.unread)


def _say_lines(title: str, lines: Sequence[str], *, wrap: bool = True) -> None:
    if not any(lines):
        return
    if title:
        say("")
        say(title)
    for line in lines:
        say(fill(line, indent="  ") if wrap else f"  {line}")


def _say_filters(answer: Answer) -> None:
    """How many nodes each rule left over, in the order in which the rules are applied."""
    from msgspec import UNSET

    placement = answer.restore.status.placement
    if placement is UNSET or not placement.removed:
        return
    table = plain_table("  filter", "removed", "left", right=("removed", "left"))
    left = placement.nodes
    table.add_row("  (all nodes)", "", str(left))
    for gap in placement.removed:
        left -= gap.removed
        table.add_row(f"  {gap.filter}", str(gap.removed), str(left))
    say_table(table)


def _say_redirect(answer: Answer) -> None:
    from msgspec import UNSET

    redirect = answer.restore.status.redirect
    if redirect is UNSET or not redirect.conditions:
        return
    say("")
    say("Redirect to storage: all seven must hold")
    table = plain_table("", "", "", "")
    table.show_header = False
    for number, one in enumerate(redirect.conditions, start=1):
        table.add_row(f"  {number}", "yes" if one.met else "NO", one.name, one.message)
    say_table(table)


def _say_attempts(answer: Answer) -> None:
    attempts = answer.restore.status.attempts
    if not attempts:
        return
    say("")
    say("Attempts")
    table = plain_table("", "", "", "")
    table.show_header = False
    before = ""
    for one in attempts:
        how = f"{one.outcome} ({one.failure_class})" if one.failure_class else one.outcome
        where = f"{one.node} ({one.cpu})" if one.cpu else one.node or "no node"
        told = "the same" if one.message and one.message == before else one.message
        table.add_row(f"  {one.attempt}", how, where, told)
        before = one.message
    say_table(table)
