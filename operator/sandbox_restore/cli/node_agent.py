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
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


@node_agent.callback(invoke_without_command=True)
def agent(
    context: typer.Context,
    *,
    once: Annotated[
        bool, typer.Option("--once", help="Write the label if need be, and end; no slots.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Tell what would be done first; write nothing.")
    ] = False,
    force_relabel: Annotated[
        bool,
        typer.Option(
            "--force-relabel", help="Change the label although sandboxes run that it excludes."
        ),
    ] = False,
    advertise_unlabelled_after: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="How long slots wait for a label, 0, or never; in place of the setting.",
        ),
    ] = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Publishes this node's CPU, then its slots.

    It keeps both true. Settings come from the environment: SPACE_SANDBOX_RESTORE_NODE_NAME is
    required, and SPACE_SANDBOX_RESTORE_NETWORK_SLOTS says how many slots. With --once or --dry-
    run, exit code 0: the label is right; 1: it is not (yet).

    \b
    Examples:
      SPACE_SANDBOX_RESTORE_NODE_NAME=node-1 sandbox-restore node-agent --dry-run
      sandbox-restore node-agent detect
    """
    if context.invoked_subcommand is not None:
        return
    import structlog

    from sandbox_restore.agent import app
    from sandbox_restore.logs import configure_logging
    from sandbox_restore.settings import PREFIX, load_settings

    environ = dict(os.environ)
    if advertise_unlabelled_after is not None:
        environ[f"{PREFIX}ADVERTISE_UNLABELLED_AFTER"] = advertise_unlabelled_after
    settings = load_settings(environ, needs_database=False)
    configure_logging(level=settings.log_level, form=settings.log_format)
    log = structlog.get_logger("sandbox_restore.cli")
    for warning in settings.warnings:
        log.warning("setting_questionable", problem=warning)
    if not (once or dry_run):
        raise typer.Exit(app.run(settings, force_relabel=force_relabel))
    look, right = app.once(settings, force_relabel=force_relabel, dry_run=dry_run)
    found = look.plan
    if output is Output.JSON:
        say_json(
            {
                "step": found.step.value,
                "reason": found.reason.value,
                "message": found.message,
                "value": look.seen.detection.value,
                "labelled": right,
            }
        )
    else:
        say(f"{'next step' if dry_run else 'ended before'}: {found.step.value}")
        say(f"{found.reason.value}: {found.message}")
    raise typer.Exit(ExitCode.OK if right else ExitCode.FAILED)


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
