"""A database password is fed in everywhere, and looked for in all that comes out."""

from __future__ import annotations

import io
import json
import traceback
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import structlog

from sandbox_restore.cli.main import main
from sandbox_restore.errors import SandboxRestoreError
from sandbox_restore.health import Health, serve
from sandbox_restore.logs import Form, configure_logging
from sandbox_restore.model.sandbox import Outcome, Source
from sandbox_restore.restore.news import News, event_body, news
from sandbox_restore.restore.status import as_json, new_status
from sandbox_restore.restore.world import Said
from sandbox_restore.settings import PREFIX, load_settings
from sandbox_restore.store import schema
from sandbox_restore.store.connection import connect
from sandbox_restore.store.store import Store
from tests.support.builders import NOW, execution, restore
from tests.unit.test_logs import put_back

SECRET = "Hunter2Zz"
GOOD = f"postgresql://operator:{SECRET}@127.0.0.1:1/space"
"""A right URL of a server that is not there."""
WRONG = (
    f"postgresql://operator:{SECRET}@127.0.0.1:port/space",
    f"postgresql://operator:{SECRET}@127.0.0.1:99999/space",
    f"postgresql://operator:a@127.0.0.1:1/{SECRET}#c@127.0.0.1:1/space",
    f"postgresql://operator:{SECRET}/b@127.0.0.1:1/space",
    f"postgresql://operator:a%{SECRET}@127.0.0.1:1/space",
    f"postgresql://operator:{SECRET}@[127.0.0.1/space",
    f"postgresql+asyncpg://operator:{SECRET}@127.0.0.1:1/space",
    f"mysql://operator:{SECRET}@127.0.0.1:1/space",
    f"operator:{SECRET}@127.0.0.1:1/space",
    f"host=127.0.0.1 port=1 user=operator password={SECRET}",
    f"postgresql://127.0.0.1:1/space?password={SECRET}&port=port",
    f"postgresql://127.0.0.1:1/space?sslmode={SECRET}",
    SECRET,
)
"""What people put there instead."""


def told(error: BaseException) -> str:
    """All that an error could be shown as, what it came from included."""
    lines = traceback.format_exception(error)
    return "\n".join([str(error), repr(error), *map(repr, error.args), *lines])


def shown(text: str) -> bool:
    """Whether the password, or most of it, is in the text."""
    return any(part.casefold() in text.casefold() for part in (SECRET, SECRET[:6], SECRET[-6:]))


def test_what_is_looked_for_would_be_found() -> None:
    assert shown(told(ValueError(GOOD)))


# --- settings


@pytest.mark.parametrize("url", [GOOD, *WRONG])
@pytest.mark.parametrize("name", ["DATABASE_URL", "DATABASE_URL_FILE", "DATABASE_URI", "DSN"])
def test_no_error_about_settings_shows_it(name: str, url: str) -> None:
    with pytest.raises(SandboxRestoreError) as caught:
        load_settings({PREFIX + name: url, PREFIX + "WORKERS": "many"})
    assert not shown(told(caught.value))


@pytest.mark.parametrize("url", WRONG)
def test_no_error_about_the_file_shows_it(url: str, tmp_path: Path) -> None:
    file = tmp_path / "url"
    file.write_text(f"{url}\n{url}\n")
    with pytest.raises(SandboxRestoreError) as caught:
        load_settings({PREFIX + "DATABASE_URL_FILE": str(file), PREFIX + "WORKERS": "many"})
    assert not shown(told(caught.value))


def test_settings_do_not_show_it() -> None:
    settings = load_settings({PREFIX + "DATABASE_URL": GOOD})
    assert SECRET in settings.dsn
    for text in (repr(settings), str(settings), settings.model_dump_json(), f"{vars(settings)}"):
        assert not shown(text)


# --- the store

OPENINGS: dict[str, Callable[[str], Awaitable[object]]] = {
    "store": lambda url: Store.open(url, connect_timeout=2.0),
    "listener": lambda url: connect(url, purpose="listener", timeout=2.0),
    "migrate": lambda url: schema.migrate(url),
    "state": lambda url: schema.schema_state(url),
}


@pytest.mark.parametrize("url", [GOOD, *WRONG])
@pytest.mark.parametrize("opening", OPENINGS)
async def test_no_error_of_the_database_shows_it(opening: str, url: str) -> None:
    with pytest.raises(SandboxRestoreError) as caught:
        await OPENINGS[opening](url)
    assert not shown(told(caught.value))


def test_a_store_does_not_show_it() -> None:
    store = Store(None, dsn=GOOD, command_timeout=1.0, observe=None, clock=lambda: 0.0)
    assert repr(store) == "Store(postgresql://operator@127.0.0.1:1/space)"


# --- logs

LEAKS = (
    f"cannot connect to {GOOD}",
    f"cannot connect to {GOOD!r} (timeout)",
    f"dsn=postgresql://operator:x@{SECRET}@db/space failed",
    f"connection string host=db password={SECRET} refused",
    f"connection string host=db password='{SECRET} z' refused",
    f'{{"password": "{SECRET}"}}',
    f"PGPASSWORD={SECRET} psql",
    f"Authorization: Bearer {SECRET}",
    f"GET https://bucket/object?X-Amz-Security-Token={SECRET}&x=1",
)
"""Words of libraries and servers that hold it."""


@pytest.fixture
def logged() -> Iterator[Callable[[Form], io.StringIO]]:
    def start(form: Form) -> io.StringIO:
        out = io.StringIO()
        configure_logging(level="debug", form=form, stream=out)
        return out

    with put_back():
        yield start


@pytest.mark.parametrize("form", ["json", "console"])
@pytest.mark.parametrize("leak", LEAKS)
def test_no_log_line_shows_it(logged: Callable[[Form], io.StringIO], form: Form, leak: str) -> None:
    out = logged(form)
    log = structlog.get_logger("sandbox_restore.tests")
    log.warning("reconcile_failed", problem=leak, deeper={"a": [leak]}, dsn=SECRET)
    try:
        raise RuntimeError(leak) from ValueError(leak)
    except RuntimeError as error:
        log.error("task_crashed", exc_info=error)
        log.warning("relist_failed", problem=error)
    assert "reconcile_failed" in out.getvalue()
    assert not shown(out.getvalue())


# --- status, Events, probes


@pytest.mark.parametrize("leak", LEAKS)
def test_no_status_and_no_event_shows_it(leak: str) -> None:
    one = restore()
    failed = execution(
        source=Source.LOCAL,
        outcome=Outcome.FAILED,
        failure_class="cpu-incompatible",
        failure_message=leak,
        node_name="n1",
    )
    said = Said(
        succeeded=False,
        reason="Unavailable",
        message=leak,
        planned=False,
        placed=(False, "Unschedulable", leak),
    )
    status = new_status(one, said, attempts=[failed], placement=None, observed=None, now=NOW)
    found = news(one, status)
    assert {item.reason for item in found} == {"SnapshotLoadIncompatible", "RestoreFailed"}
    raw = [News(reason="MarkerGivenUp", note=leak, identity="x")]
    bodies = [event_body(one, item, now=NOW, instance="i") for item in (*found, *raw)]
    assert not shown(json.dumps([as_json(status), bodies], default=str))


def test_a_status_that_was_redacted_is_not_written_again() -> None:
    one = restore()
    said = Said(succeeded=None, reason="Unavailable", message=LEAKS[0])
    first = new_status(one, said, attempts=[], placement=None, observed=None, now=NOW)
    again = restore(status={name: getattr(first, name) for name in first.__struct_fields__})
    assert new_status(again, said, attempts=[], placement=None, observed=None, now=NOW) == first


@pytest.mark.parametrize("leak", LEAKS)
async def test_no_probe_shows_it(leak: str) -> None:
    health = Health(database=lambda: leak, api_server=lambda: leak, fatal=leak)
    port, close = await serve(health, host="127.0.0.1", port=0, metrics=lambda: b"")
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
            for path in ("/healthz", "/readyz"):
                async with session.get(path) as answer:
                    text = await answer.text()
                    assert text
                    assert not shown(text)
    finally:
        await close()


# --- the command line

COMMANDS = (
    "run",
    "migrate",
    "migrate --check",
    "migrate --check -o json",
    "doctor",
    "doctor -o json",
    "fleet",
    "fleet -o yaml",
    "fleet drain-check n1",
    "why wake-1 -n team-a",
    "why wake-1 -n team-a -o json",
    "retire sb-1",
)
"""With two servers that are not there."""


@pytest.mark.parametrize("url", [GOOD, *WRONG])
@pytest.mark.parametrize("line", COMMANDS)
def test_no_command_shows_it(
    line: str,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps(KUBECONFIG))
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    monkeypatch.setenv(PREFIX + "DATABASE_URL", url)
    monkeypatch.setenv(PREFIX + "LOG_LEVEL", "debug")
    with put_back():
        code = main(line.split())
    out, err = capfd.readouterr()
    assert code != 0
    assert out or err
    assert not shown(out + err)


KUBECONFIG: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "x",
    "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
    "clusters": [{"name": "x", "cluster": {"server": "https://127.0.0.1:1"}}],
    "users": [{"name": "x", "user": {"token": SECRET}}],
}
"""A server that is not there, and a token that must not be shown either."""


@pytest.mark.parametrize("leak", LEAKS)
def test_a_fault_of_a_command_does_not_show_it(
    leak: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError(leak)

    monkeypatch.setattr(schema, "schema_state", fail)
    monkeypatch.setenv(PREFIX + "DATABASE_URL", GOOD)
    for level in ("debug", "info"):
        monkeypatch.setenv(PREFIX + "LOG_LEVEL", level)
        assert main(["migrate", "--check"]) != 0
    out, err = capfd.readouterr()
    assert "RuntimeError" in err
    assert not shown(out + err)
