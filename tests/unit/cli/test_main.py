"""The command line: exit codes that scripts can rely on, one line per problem, no traceback."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sandbox_restore import __version__, app
from sandbox_restore.cli import main as cli
from sandbox_restore.cli import output
from sandbox_restore.cli.exit_codes import MEANING, ExitCode, exit_code_of
from sandbox_restore.cli.main import main
from sandbox_restore.errors import (
    ConfigurationError,
    ConflictError,
    LeaseLostError,
    PermissionDeniedError,
    RejectedError,
    SandboxRestoreError,
    SchemaError,
    UnavailableError,
)
from sandbox_restore.settings import Settings
from sandbox_restore.store import schema

ROOT = Path(__file__).parents[3]
URL = "postgresql://operator:hunter2@127.0.0.1:1/space"
CURRENT = schema.SchemaState(current="0002", head="0002", status=schema.SchemaStatus.CURRENT)
BEHIND = schema.SchemaState(current="0001", head="0002", status=schema.SchemaStatus.BEHIND)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of ours but a database URL."""
    for name in list(os.environ):
        if name.startswith("SPACE_SANDBOX_RESTORE_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("SPACE_SANDBOX_RESTORE_DATABASE_URL", URL)


def call(
    *arguments: str, stdin: bytes = b"", **environ: str | None
) -> subprocess.CompletedProcess[bytes]:
    """The command in a process of its own; an environ of None takes a variable out."""
    names = {f"SPACE_SANDBOX_RESTORE_{name}": value for name, value in environ.items()}
    everything = {**os.environ, "PYTHONPATH": str(ROOT / "operator"), **names}
    return subprocess.run(
        [sys.executable, "-m", "sandbox_restore.cli.main", *arguments],
        input=stdin,
        capture_output=True,
        env={name: value for name, value in everything.items() if value is not None},
        timeout=60,
        check=False,
    )


# Usage


def test_help_lists_the_commands_and_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for command in (
        *("run", "migrate", "why", "fleet", "plan", "doctor", "classify", "retire"),
        *("node-agent", "version"),
    ):
        assert re.search(rf"^  {command}\s", text, re.MULTILINE)
    for code, meaning in MEANING.items():
        assert f"{code.value:<5}{meaning}" in text


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_there_is_completion_for_every_common_shell(shell: str) -> None:
    variable = "_SANDBOX_RESTORE_COMPLETE"
    ran = subprocess.run(
        [sys.executable, "-m", "sandbox_restore.cli.main"],
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "operator"), variable: f"source_{shell}"},
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0
    assert b"sandbox-restore" in ran.stdout
    assert variable.encode() in ran.stdout


def test_every_exit_code_has_a_meaning() -> None:
    assert set(MEANING) == set(ExitCode)


@pytest.mark.parametrize(
    "command",
    [
        *("run", "migrate", "why", "fleet", "fleet drain-check", "plan", "doctor", "classify"),
        *("retire", "node-agent", "node-agent detect"),
    ],
)
def test_the_help_of_a_command_has_an_example(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command.split(), "-h"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"Examples?:\n +(kubectl|sandbox-restore|SPACE_SANDBOX_RESTORE_)", text)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["verzion"], "Did you mean 'version'"),
        (["version", "-o", "yaml"], "'yaml' is not one of"),
        (["migrate", "--chek"], "--chek"),
        (["version", "more"], "more"),
    ],
)
def test_wrong_usage_ends_with_2_and_a_hint(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == ExitCode.USAGE
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err


def test_kubectl_shows_its_own_name_for_the_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/local/bin/kubectl-sandbox_restore"])
    assert main(["-h"]) == 0
    assert "Usage: kubectl sandbox-restore" in capsys.readouterr().out


# version


def test_version_tells_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    assert capsys.readouterr().out == f"sandbox-restore {__version__}\n"
    assert main(["version", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"version": __version__}


def test_version_and_classify_need_no_settings_and_load_no_framework() -> None:
    program = (
        "import sys; from sandbox_restore.cli.main import main; main(['version']);"
        " main(['classify']);"
        " print(*sorted({'kopf', 'asyncpg', 'kubernetes_asyncio', 'structlog'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        input="connection refused",
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "operator"), "SPACE_SANDBOX_RESTORE_X": "y"},
        timeout=60,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == ""


# classify


def test_classify_tells_a_class_for_bytes_of_any_kind() -> None:
    done = call("classify", "-o", "json", stdin=b"Failed to set all KVM MSRs \xff\xfe")
    assert done.returncode == 0
    assert set(json.loads(done.stdout)) == {"class", "component", "why"}


# run


@pytest.mark.parametrize("command", ["run", "migrate"])
def test_wrong_settings_end_with_2_and_one_line_per_problem(command: str) -> None:
    done = call(command, WORKERS="many", WORKRES="4", DATABASE_URL="mysql://u:hunter2@h/d")
    assert done.returncode == ExitCode.USAGE
    assert done.stdout == b""
    lines = done.stderr.decode().splitlines()
    assert len(lines) == 3
    assert all(line.startswith("error: SPACE_SANDBOX_RESTORE_") for line in lines)
    assert "hunter2" not in done.stderr.decode()


def test_run_without_a_database_url_ends_with_2() -> None:
    done = call("run", DATABASE_URL=None)
    assert done.returncode == ExitCode.USAGE
    assert done.stderr.decode().count("\n") == 1


def test_run_hands_the_settings_over_and_ends_with_the_operators_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Settings] = []

    def run(settings: Settings) -> int:
        seen.append(settings)
        return 6

    monkeypatch.setattr(app, "run", run)
    monkeypatch.setattr("sandbox_restore.logs.configure_logging", lambda **_: None)
    monkeypatch.setenv("SPACE_SANDBOX_RESTORE_WORKERS", "3")
    assert main(["run"]) == 6
    assert [one.workers for one in seen] == [3]


def test_run_logs_what_is_probably_not_meant(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(app, "run", lambda _settings: 0)
    monkeypatch.setattr("sandbox_restore.logs.configure_logging", lambda **_: None)
    monkeypatch.setenv("SPACE_SANDBOX_RESTORE_NODE_GONE_GRACE", "10s")
    assert main(["run"]) == 0
    assert "10s is short" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigurationError(["one", "two"]), 2),
        (UnavailableError("database: cannot be reached"), 3),
        (PermissionDeniedError("database: permission denied"), 3),
        (UnavailableError("API server https://10.0.0.1 does not answer"), 4),
        (PermissionDeniedError("GET /api/v1/nodes: 403 Forbidden"), 4),
        (RejectedError("POST /api/v1: 422 Invalid"), 4),
        (SchemaError("database: schema is behind"), 5),
        (LeaseLostError("the Lease is lost"), 6),
        (RejectedError("database: a value cannot be sent"), 1),
        (ConflictError("somebody else came first"), 1),
    ],
)
def test_each_error_ends_with_its_code_and_its_words(
    error: SandboxRestoreError,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(_settings: Settings) -> int:
        raise error

    monkeypatch.setattr(app, "run", run)
    monkeypatch.setattr("sandbox_restore.logs.configure_logging", lambda **_: None)
    assert main(["run"]) == code == exit_code_of(error)
    problems = error.problems if isinstance(error, ConfigurationError) else [str(error)]
    assert capsys.readouterr().err.splitlines() == [f"error: {line}" for line in problems]


def test_an_error_of_several_lines_is_told_in_one_and_without_secrets(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(_settings: Settings) -> int:
        raise UnavailableError(f"database: {URL}\n  cannot be reached")

    monkeypatch.setattr(app, "run", run)
    monkeypatch.setattr("sandbox_restore.logs.configure_logging", lambda **_: None)
    assert main(["run"]) == ExitCode.DATABASE
    assert capsys.readouterr().err == (
        "error: database: postgresql://operator:***@127.0.0.1:1/space cannot be reached\n"
    )


# migrate


def test_migrate_without_a_database_ends_with_3_and_one_line() -> None:
    for arguments in (["migrate"], ["migrate", "--check"]):
        done = call(*arguments)
        assert done.returncode == ExitCode.DATABASE
        assert done.stdout == b""
        text = done.stderr.decode()
        assert text.startswith("error: database: ")
        assert text.count("\n") == 1
        assert "hunter2" not in text


def stand_in(
    monkeypatch: pytest.MonkeyPatch, state: schema.SchemaState, *, applied: list[str]
) -> list[str]:
    """A database in that state; the list says what was done to it."""
    done: list[str] = []

    async def migrate(dsn: str, *, notify: schema.Notify) -> list[str]:
        done.append(dsn)
        notify("role sandbox_operator: not created")
        return applied

    async def schema_state(dsn: str) -> schema.SchemaState:
        return state

    monkeypatch.setattr(schema, "migrate", migrate)
    monkeypatch.setattr(schema, "schema_state", schema_state)
    return done


def test_migrate_tells_what_it_applied(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert stand_in(monkeypatch, CURRENT, applied=["0001", "0002"]) == []
    assert main(["migrate"]) == 0
    out, err = capsys.readouterr()
    assert out == "applied 0001\napplied 0002\nschema is up to date (revision 0002)\n"
    assert err == "note: role sandbox_operator: not created\n"


def test_migrate_as_json_is_one_document(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(monkeypatch, CURRENT, applied=["0002"])
    assert main(["migrate", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "status": "current",
        "current": "0002",
        "head": "0002",
        "applied": ["0002"],
        "notes": ["role sandbox_operator: not created"],
    }


def test_check_changes_nothing_and_ends_with_5_when_the_schema_is_behind(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    touched = stand_in(monkeypatch, BEHIND, applied=[])
    assert main(["migrate", "--check"]) == ExitCode.SCHEMA
    out, err = capsys.readouterr()
    assert touched == []
    assert out == ""
    assert "schema is at revision 0001, this program needs 0002" in err
    assert main(["migrate", "--check", "-o", "json"]) == ExitCode.SCHEMA
    assert json.loads(capsys.readouterr().out)["status"] == "behind"


def test_check_ends_with_0_when_the_schema_is_current(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert stand_in(monkeypatch, CURRENT, applied=[]) == []
    assert main(["migrate", "--check"]) == 0
    assert capsys.readouterr().out == "schema is up to date (revision 0002)\n"


# Faults of this program


def test_a_fault_is_told_in_lines_and_with_its_place_only_on_request(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> None:
        raise ZeroDivisionError(f"while reading {URL}")

    monkeypatch.setattr(cli, "_program", broken)
    assert main(["version"]) == ExitCode.INTERNAL
    err = capsys.readouterr().err
    assert err.startswith("error: ZeroDivisionError: while reading postgresql://operator:***@")
    assert "Traceback" not in err
    monkeypatch.setenv("SPACE_SANDBOX_RESTORE_LOG_LEVEL", "debug")
    assert main(["version"]) == ExitCode.INTERNAL
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "hunter2" not in err


def test_a_reader_that_went_away_is_no_traceback() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "sandbox_restore.cli.main", "version"],
            stdout=closed,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT / "operator")},
            timeout=60,
            check=False,
        )
    assert done.returncode == ExitCode.FAILED
    assert done.stderr == b""


def test_what_a_runner_said_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    output.say("Load snapshot error: \x1b[2J\x1b]0;owned\x07 failed")
    assert capsys.readouterr().out == ("Load snapshot error: \\x1b[2J\\x1b]0;owned\\x07 failed\n")
