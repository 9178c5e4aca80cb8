"""`node-agent`: tells this node's CPU, publishes it, and then advertises the network slots."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sandbox_restore.cli.exit_codes import ExitCode
from sandbox_restore.cli.output import Output, OutputOption, note, say, say_json

if TYPE_CHECKING:
    from sandbox_restore.agent.detect import Detection

node_agent = typer.Typer(
    name="node-agent",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


@node_agent.callback()
def agent() -> None:
    """Publishes this node's host CPU, then advertises its network slots."""


@node_agent.command()
def detect(
    *,
    cpuinfo: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A saved cpuinfo file instead of this machine's."),
    ] = None,
    kernel_release: Annotated[
        str | None,
        typer.Option(metavar="RELEASE", help="What `uname -r` says where the file was saved."),
    ] = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Tells what would be published as this node's CPU, from which fields, or why nothing.

    Exit code 1: the CPU has no value. 2: not Linux, or the file cannot be read.

    \b
    Examples:
      sandbox-restore node-agent detect
      sandbox-restore node-agent detect --cpuinfo saved-cpuinfo.txt -o json
    """
    from sandbox_restore.agent.detect import Dimensions, Reason
    from sandbox_restore.agent.machine import detect_here
    from sandbox_restore.settings import load_settings

    settings = load_settings(os.environ, needs_database=False)
    found = detect_here(
        dimensions=Dimensions(
            hybrid=settings.agent_hybrid_cpus,
            kernel=settings.agent_kernel_in_value,
            suffix=settings.agent_value_suffix,
        ),
        path=cpuinfo or settings.agent_cpuinfo_file,
        kernel_release=kernel_release,
    )
    if output is Output.JSON:
        say_json({"value": found.value, "reason": found.text or None, "fields": dict(found.fields)})
    else:
        _tell(found)
    if found.value is not None:
        return
    unusable = found.reason in (Reason.NOT_LINUX, Reason.UNREADABLE)
    raise typer.Exit(ExitCode.USAGE if unusable else ExitCode.FAILED)


def _tell(found: Detection) -> None:
    """The value alone on a line, for scripts; what it comes from as notes beside it."""
    if found.value is not None:
        say(found.value)
    else:
        note(f"no value: {found.text}", kind="error")
    if found.fields:
        note("from " + ", ".join(f"{name}: {value}" for name, value in found.fields.items()))
