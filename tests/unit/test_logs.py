"""Logs: one form for ours and the libraries', no secrets, no traceback for a told error."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from sandbox_restore.errors import UnavailableError
from sandbox_restore.logs import LEVELS, Form, configure_logging
from sandbox_restore.redact import HIDDEN, names_a_secret, redact

Configure = Callable[..., io.StringIO]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@contextmanager
def put_back() -> Iterator[None]:
    """Leaves logging as it was before."""
    root, ours = logging.getLogger(), logging.getLogger("sandbox_restore")
    handlers, levels = list(root.handlers), (root.level, ours.level)
    try:
        yield
    finally:
        structlog.reset_defaults()
        logging.captureWarnings(capture=False)
        root.handlers[:] = handlers
        root.setLevel(levels[0])
        ours.setLevel(levels[1])


@pytest.fixture
def configure() -> Iterator[Configure]:
    """Sets logging up on a stream of its own."""

    def start(
        *, form: Form = "json", level: str = "info", stream: io.StringIO | None = None
    ) -> io.StringIO:
        out = stream or io.StringIO()
        configure_logging(level=level, form=form, stream=out)
        return out

    with put_back():
        yield start


def log() -> Any:
    return structlog.get_logger("sandbox_restore.tests")


def lines(out: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def line(out: io.StringIO) -> dict[str, Any]:
    (only,) = lines(out)
    return only


# Form


def test_a_line_is_one_json_object_with_time_level_event_and_fields(configure: Configure) -> None:
    out = configure()
    log().info("restore_planned", namespace="team-a", restore="wake-1", attempt=2)
    found = line(out)
    assert list(found)[:3] == ["timestamp", "level", "event"]
    assert datetime.fromisoformat(found.pop("timestamp")).tzinfo is not None
    assert found == {
        "level": "info",
        "event": "restore_planned",
        "logger": "sandbox_restore.tests",
        "namespace": "team-a",
        "restore": "wake-1",
        "attempt": 2,
    }


@pytest.mark.parametrize(
    ("form", "stream", "is_json"),
    [
        ("auto", io.StringIO(), True),
        ("auto", Terminal(), False),
        ("json", Terminal(), True),
        ("console", io.StringIO(), False),
    ],
)
def test_the_form_follows_the_setting_or_the_terminal(
    configure: Configure, form: Form, stream: io.StringIO, is_json: bool
) -> None:
    configure(form=form, stream=stream)
    log().info("restore_planned", restore="wake-1")
    assert stream.getvalue().startswith("{") is is_json
    assert "restore_planned" in stream.getvalue()


def test_colours_are_for_terminals_only(configure: Configure) -> None:
    plain, terminal = configure(form="console"), Terminal()
    log().info("restore_planned")
    configure(form="console", stream=terminal)
    log().info("restore_planned")
    assert "\x1b[" not in plain.getvalue()
    assert "\x1b[" in terminal.getvalue()


def test_the_last_call_holds(configure: Configure) -> None:
    first, second = configure(), configure()
    log().info("restore_planned")
    assert first.getvalue() == ""
    assert line(second)["event"] == "restore_planned"


def test_fields_bound_for_a_task_are_on_every_line(configure: Configure) -> None:
    out = configure()
    with structlog.contextvars.bound_contextvars(restore="wake-1"):
        log().info("restore_planned")
        logging.getLogger("kopf").warning("something")
    assert [one["restore"] for one in lines(out)] == ["wake-1", "wake-1"]


# The libraries


def test_the_libraries_log_in_the_same_form(configure: Configure) -> None:
    out = configure()
    logging.getLogger("aiohttp.access").warning("GET %s", "/healthz")
    found = line(out)
    assert found["event"] == "GET /healthz"
    assert found["logger"] == "aiohttp.access"
    assert found["level"] == "warning"


def test_kopf_names_the_object_in_fields_like_ours(configure: Configure) -> None:
    out = configure()
    reference = {"kind": "Pod", "namespace": "team-a", "name": "wake-1", "uid": "u"}
    logging.getLogger("kopf.objects").warning("Handler failed.", extra={"k8s_ref": reference})
    found = line(out)
    assert (found["kind"], found["namespace"], found["name"]) == ("Pod", "team-a", "wake-1")


@pytest.mark.parametrize(
    ("level", "ours", "theirs"),
    [
        ("debug", "debug", "info"),
        ("info", "info", "warning"),
        ("warning", "warning", "error"),
        ("error", "error", "error"),
    ],
)
def test_the_libraries_stay_one_level_quieter(
    configure: Configure, level: str, ours: str, theirs: str
) -> None:
    out = configure(level=level)
    for name in LEVELS:
        log().log(LEVELS[name], "ours")
        logging.getLogger("kopf").log(LEVELS[name], "theirs")
    found = [(one["event"], one["level"]) for one in lines(out)]
    names = list(LEVELS)
    wanted = {("ours", name) for name in names[names.index(ours) :]}
    wanted |= {("theirs", name) for name in names[names.index(theirs) :]}
    assert set(found) == wanted


def test_python_warnings_are_log_lines(configure: Configure) -> None:
    out = configure()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(capture=True)
        warnings.warn("old", stacklevel=1)
    assert line(out)["logger"] == "py.warnings"


# Errors


def test_our_own_errors_are_told_in_one_line_without_a_traceback(configure: Configure) -> None:
    out = configure()
    try:
        raise UnavailableError("database: cannot be reached")
    except UnavailableError:
        log().exception("sweep_failed")
    found = line(out)
    assert found["error"] == "database: cannot be reached"
    assert found["error_type"] == "UnavailableError"
    assert "exception" not in found


def test_other_errors_keep_their_traceback_in_the_same_line(configure: Configure) -> None:
    out = configure()
    try:
        raise RuntimeError("a bug")
    except RuntimeError:
        log().exception("sweep_failed")
    assert "Traceback" in line(out)["exception"]
    assert "RuntimeError: a bug" in line(out)["exception"]


@pytest.mark.parametrize("form", ["json", "console"])
def test_local_variables_are_not_in_a_traceback(configure: Configure, form: Form) -> None:
    out = configure(form=form)
    hidden = "".join(["local", "-", "value"])
    try:
        raise RuntimeError(f"a bug of {len(hidden)} letters")
    except RuntimeError:
        log().exception("sweep_failed")
    assert "a bug of 11 letters" in out.getvalue()
    assert hidden not in out.getvalue()


# Values


class Colour(StrEnum):
    BLUE = "blue"


class Wordless:
    def __str__(self) -> str:
        raise ValueError("no words")


def test_values_become_plain_ones(configure: Configure) -> None:
    out = configure()
    log().info(
        "restore_planned",
        kind=Colour.BLUE,
        at=datetime(2026, 3, 1, tzinfo=UTC),
        wait=timedelta(seconds=1.5),
        cpus=frozenset({"b", "a"}),
        nested={"list": [1, (2, None)]},
        absent=None,
        wordless=Wordless(),
    )
    found = line(out)
    assert found["kind"] == "blue"
    assert found["at"] == "2026-03-01T00:00:00+00:00"
    assert found["wait"] == 1.5
    assert found["cpus"] == ["a", "b"]
    assert found["nested"] == {"list": [1, [2, None]]}
    assert "absent" not in found
    assert found["wordless"] == "<Wordless without words: ValueError>"


def test_a_value_that_contains_itself_does_not_hang(configure: Configure) -> None:
    out = configure()
    loop: list[Any] = []
    loop.append(loop)
    log().info("restore_planned", loop=loop)
    assert line(out)["event"] == "restore_planned"


def test_terminal_sequences_and_broken_text_are_escaped(configure: Configure) -> None:
    out = configure(form="console")
    logging.getLogger("kopf").warning("a\x1b[31mb\udcffc")
    assert "\x1b" not in out.getvalue()
    out.getvalue().encode()


@settings(deadline=None, max_examples=40)
@given(
    st.dictionaries(
        st.text(max_size=20),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.datetimes(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=5), inner),
            max_leaves=10,
        ),
    )
)
def test_any_value_makes_one_line_that_can_be_read(fields: dict[str, Any]) -> None:
    out = io.StringIO()
    with put_back():
        configure_logging(level="info", form="json", stream=out)
        log().info("restore_planned", **{f"x{key}": value for key, value in fields.items()})
    assert line(out)["event"] == "restore_planned"


# Secrets


@pytest.mark.parametrize("form", ["json", "console"])
def test_no_secret_gets_into_a_line_by_any_way(configure: Configure, form: Form) -> None:
    out = configure(form=form)
    url = "postgresql://operator:hunter2@db/space"
    log().info(
        f"connecting to {url}",
        url=url,
        dsn="hunter2",
        password="hunter2",
        nested={"url": [url], "token": "hunter2"},
        typed=SecretStr("hunter2"),
        thing=RuntimeError(url),
    )
    logging.getLogger("asyncpg").warning("cannot connect to %s", url)
    try:
        raise RuntimeError("no way") from ValueError(url)
    except RuntimeError:
        log().exception("sweep_failed")
        logging.getLogger("asyncio").exception("Task failed")
    try:
        raise UnavailableError(f"cannot reach {url}")
    except UnavailableError:
        log().exception("sweep_failed")
    assert "hunter2" not in out.getvalue()
    assert "operator:***@db/space" in out.getvalue()


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("postgresql://u:hunter2@h/d", "postgresql://u:***@h/d"),
        ("postgresql://u:hunter2@ss/w@h/d", "postgresql://u:***@h/d"),
        ("postgresql://:hunter2@h", "postgresql://:***@h"),
        ("host=h password=hunter2 user=u", "host=h password=*** user=u"),
        ("host=h password='hunter2 x' user=u", "host=h password='***' user=u"),
        ('{"password": "hunter2", "a": 1}', '{"password": "***", "a": 1}'),
        ("{'sslpassword': 'hunter2'}", "{'sslpassword': '***'}"),
        ("?sslmode=require&password=hunter2&x=1", "?sslmode=require&password=***&x=1"),
        ("Authorization: Bearer hunter2.x", "Authorization: Bearer ***"),
        ("Authorization: Basic aHVudGVyMg==", "Authorization: Basic ***"),
        ("sent bearer hunter2hunter2", "sent bearer ***"),
        ("eyJhbGciOi.eyJzdWIiOi.c2lnbmF0dXJl", "***"),
        ("API_KEY=hunter2", "API_KEY=***"),
        ("token=hunter2", "token=***"),
        ("token: hunter2hunter2hunter2", "token: ***"),
        ("password: hunter2", "password: ***"),
        ("aws_secret_access_key = hunter2", "aws_secret_access_key = ***"),
        ("-----BEGIN RSA PRIVATE KEY-----\nhunter2\n-----END RSA PRIVATE KEY-----", "***"),
        ("-----BEGIN PRIVATE KEY-----\nhunter2", "***"),
    ],
)
def test_what_has_the_form_of_a_secret_is_hidden(text: str, left: str) -> None:
    assert redact(text) == left
    assert redact(left) == left


@pytest.mark.parametrize(
    "text",
    [
        "",
        "postgresql://operator@db/space",
        "https://10.0.0.1:6443/api/v1/nodes?limit=500",
        'password authentication failed for user "operator"',
        "1 of 4 published CPUs can load intel-6-106-6; 12 of 40 reachable nodes have it",
        "a basic sandbox of 2 vCPUs",
        "continue token expired",
        "no usable Kubernetes credentials: Invalid kube-config file",
        "invalid bearer token: expired",
        'the Secret "db": not found',
    ],
)
def test_ordinary_words_stay(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize("key", ["password", "db_password", "token", "dsn", "DATABASE_URL", "pwd"])
def test_a_field_whose_name_says_secret_is_hidden_whatever_it_holds(
    configure: Configure, key: str
) -> None:
    out = configure()
    log().info("restore_planned", **{key: "plain words"})
    assert names_a_secret(key)
    assert line(out)[key] == HIDDEN


@pytest.mark.timeout(20)
@pytest.mark.parametrize("unit", ["a", "token", "p://a:", "eyJaaaaa.", "-----BEGIN ", "password='"])
def test_a_long_line_costs_no_more_than_its_length(unit: str) -> None:
    assert redact(unit * (200_000 // len(unit)))
