"""The command `sandbox-restore`: the registry of its commands, and how each of them ends.

A command is a function in a module of its own (short ones stand here) and one line in the
registry below. What a command needs is imported inside it, so that `version` and `classify` load
neither Kopf nor a database driver.
"""

from __future__ import annotations

import asyncio
import os
import sys
import traceback
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Final

import typer

from sandbox_restore import __version__
from sandbox_restore.cli.doctor import doctor
from sandbox_restore.cli.exit_codes import MEANING, ExitCode
from sandbox_restore.cli.fleet import fleet
from sandbox_restore.cli.node_agent import node_agent
from sandbox_restore.cli.output import Output, OutputOption, note, report, say, say_json
from sandbox_restore.cli.plan import plan
from sandbox_restore.cli.retire import retire
from sandbox_restore.cli.why import why
from sandbox_restore.errors import SandboxRestoreError
from sandbox_restore.redact import redact

HELP: Final = """Places Firecracker snapshot restores on hosts whose CPU can load them.

Settings come from the environment, SPACE_SANDBOX_RESTORE_…; see docs/configuration.md.
"""
EPILOG: Final = "\b\nExit codes:\n" + "\n".join(
    f"  {code.value:<5}{meaning}" for code, meaning in MEANING.items()
)

app = typer.Typer(
    name="sandbox-restore",
    help=HELP,
    epilog=EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def run() -> None:
    """Runs the operator until it is told to stop.

    Wrong settings end it at once with exit code 2, one line per problem, before anything is
    touched.

    \b
    Example:
      SPACE_SANDBOX_RESTORE_DATABASE_URL_FILE=/etc/sandbox-restore/url sandbox-restore run
    """
    import structlog

    from sandbox_restore.logs import configure_logging
    from sandbox_restore.settings import load_settings

    settings = load_settings(os.environ)
    configure_logging(level=settings.log_level, form=settings.log_format)
    log = structlog.get_logger("sandbox_restore.cli")
    for warning in settings.warnings:
        log.warning("setting_questionable", problem=warning)
    try:
        from sandbox_restore import app as operator_app

        code = operator_app.run(settings)
    except SandboxRestoreError:
        raise
    except Exception:
        log.exception("operator_crashed")
        code = ExitCode.INTERNAL
    raise typer.Exit(code)


def migrate(
    *,
    check: Annotated[
        bool, typer.Option("--check", help="Only tell where the schema stands; change nothing.")
    ] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Brings the database schema up to date.

    With --check: exit code 0 when it is up to date, 5 when it is missing, behind or ahead.

    \b
    Examples:
      sandbox-restore migrate
      sandbox-restore migrate --check -o json
    """
    from sandbox_restore.settings import load_settings
    from sandbox_restore.store import schema

    dsn = load_settings(os.environ).dsn
    notes: list[str] = []
    applied = [] if check else asyncio.run(schema.migrate(dsn, notify=notes.append))
    state = asyncio.run(schema.schema_state(dsn))
    if output is Output.JSON:
        say_json(
            {
                "status": state.status.value,
                "current": state.current,
                "head": state.head,
                "applied": applied,
                "notes": [redact(line) for line in notes],
            }
        )
    else:
        for line in notes:
            note(line)
        for revision in applied:
            say(f"applied {revision}")
    if state.status is not schema.SchemaStatus.CURRENT:
        state.require_current()
    if output is Output.TEXT:
        say(f"schema is up to date (revision {state.current})")


def classify(*, output: OutputOption = Output.TEXT) -> None:
    """Tells the class of a runner's failure text.

    It is read from standard input.

    \b
    Example:
      kubectl logs wake-7f3a-1 | sandbox-restore classify
    """
    from sandbox_restore.cli.classify import classify_lines

    if isinstance(sys.stdin, TextIOWrapper):
        # A runner may print any bytes, and a class can be told all the same.
        sys.stdin.reconfigure(encoding="utf-8", errors="replace")
    raise typer.Exit(classify_lines(sys.stdin, sys.stdout, output=output.value))


def version(*, output: OutputOption = Output.TEXT) -> None:
    """Tells the version of this program."""
    if output is Output.JSON:
        say_json({"version": __version__})
    else:
        say(f"sandbox-restore {__version__}")


for _command in (run, migrate, why, plan, doctor, classify, retire, version):
    app.command()(_command)
app.add_typer(fleet)
app.add_typer(node_agent)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; errors are told in lines, not tracebacks."""
    try:
        code = _run_command(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # Nobody reads on (`| head`). The flush at the end of the process must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FAILED
    except SandboxRestoreError as error:
        return report(error)
    except Exception as error:
        note(f"{type(error).__name__}: {error} (a fault of this program)", kind="error")
        if os.environ.get("SPACE_SANDBOX_RESTORE_LOG_LEVEL", "").lower() == "debug":
            sys.stderr.write(redact(traceback.format_exc()))
        else:
            note("SPACE_SANDBOX_RESTORE_LOG_LEVEL=debug shows where")
        return ExitCode.INTERNAL
    return code


def _run_command(arguments: Sequence[str] | None) -> int:
    """One command; typer ends every one with SystemExit."""
    try:
        app(args=None if arguments is None else list(arguments), prog_name=_program())
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else ExitCode.FAILED
    return ExitCode.OK


def _program() -> str:
    """The name to show: kubectl finds the same program as its plugin."""
    called = Path(sys.argv[0]).name
    return "kubectl sandbox-restore" if called.startswith("kubectl-") else "sandbox-restore"


if __name__ == "__main__":
    sys.exit(main())
