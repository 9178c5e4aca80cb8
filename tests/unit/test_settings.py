"""Settings: what each variable accepts; every problem is told, at once, without secrets."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from sandbox_restore.cli import settings_doc
from sandbox_restore.errors import ConfigurationError
from sandbox_restore.settings import (
    PREFIX,
    Settings,
    expects,
    load_settings,
    section,
    shown_default,
    variable,
)
from sandbox_restore.settings_values import format_duration, parse_duration

URL = "postgresql://operator:hunter2@db:5432/space"
DOC = Path(__file__).parents[2] / settings_doc.FILE
NOWHERE = Path("/nonexistent/namespace")


def load(**given_values: str) -> Settings:
    """The settings of an environment with these and, unless given, a database URL."""
    if "DATABASE_URL_FILE" not in given_values:
        given_values = {"DATABASE_URL": URL} | given_values
    environ = {PREFIX + name: value for name, value in given_values.items()}
    return load_settings(environ, namespace_file=NOWHERE)


def problems(**given_values: str) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        load(**given_values)
    return caught.value.problems


def problem(**given_values: str) -> str:
    (line,) = problems(**given_values)
    return line


# Defaults and names


def test_the_gate_is_off_by_default() -> None:
    assert load().host_cpu_placement_enabled is False
    assert load().host_cpu_placement_observe is False
    assert load().source_node_hard_pin is False


def test_the_variables_given_by_the_domain_are_read() -> None:
    environ = {
        "SPACE_SANDBOX_RESTORE_DATABASE_URL": URL,
        "SPACE_SANDBOX_RESTORE_HOST_CPU_PLACEMENT_ENABLED": "true",
        "SPACE_SANDBOX_RESTORE_HOST_CPU_PLACEMENT_OBSERVE": "true",
        "SPACE_SANDBOX_RESTORE_HOST_CPU_COMPATIBILITY": "intel-6-106-6 => intel-6-143-8",
        "SPACE_SANDBOX_RESTORE_SOURCE_NODE_HARD_PIN": "true",
    }
    found = load_settings(environ, namespace_file=NOWHERE)
    assert found.host_cpu_placement_enabled
    assert found.host_cpu_placement_observe
    assert found.source_node_hard_pin
    assert found.compatibility.can_load("intel-6-143-8", capture="intel-6-106-6")
    assert not found.compatibility.can_load("intel-6-106-6", capture="intel-6-143-8")


def test_the_process_environment_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable("workers"), "77")
    assert load().workers == 8
    assert Settings().workers == 8


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError):
        load().workers = 9  # type: ignore[misc]


def test_an_empty_variable_counts_as_unset() -> None:
    found = load(WORKERS="", HOST_CPU_COMPATIBILITY="", DRAIN_MARKS="", POD_TEMPLATE_FILE="")
    assert found == load()


@pytest.mark.parametrize("field", list(Settings.model_fields))
def test_every_setting_is_documented(field: str) -> None:
    text = Settings.model_fields[field].description or ""
    assert text.endswith((".", "`."))
    assert expects(field)
    assert section(field)


@pytest.mark.parametrize("field", [f for f in Settings.model_fields if shown_default(f)])
def test_every_shown_default_reads_back_as_the_default(field: str) -> None:
    shown = {field.upper(): shown_default(field)}
    assert getattr(load(**shown), field) == getattr(load(), field)


# Durations


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("2m", 120),
        ("500ms", 0.5),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("1d", 86400),
        ("30", 30),
        ("0.25", 0.25),
        ("0", 0),
        ("0s", 0),
        (" 5s ", 5),
    ],
)
def test_a_duration_has_units_or_is_in_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text",
    ["", "soon", "-5s", "5 s", "5sec", "s", "1m-", "1e3", "٣s", "inf", "nan", "9" * 400 + "d"],
)
def test_anything_else_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)


@settings(deadline=None)
@given(st.integers(0, 10**12).map(lambda ms: timedelta(milliseconds=ms)))
def test_a_shown_duration_reads_back_as_the_same(span: timedelta) -> None:
    assert parse_duration(format_duration(span)) == span


def test_the_cold_cache_may_be_not_waited_for_at_all() -> None:
    assert load(COLD_CACHE_WAIT="0").cold_cache_wait == timedelta()


# One line per problem


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("HOST_CPU_PLACEMENT_ENABLED", "maybe", "expected true or false"),
        ("WORKERS", "many", "expected a whole number from 1 to 256"),
        ("WORKERS", "0", "expected a whole number from 1 to 256"),
        ("WORKERS", "1.5", "expected a whole number from 1 to 256"),
        ("ROLLOUT_PERCENT", "101", "expected a whole number from 0 to 100"),
        ("COLD_CACHE_WAIT", "soon", "not a duration; expected a duration from 0s to 10m"),
        ("COLD_CACHE_WAIT", "11m", "expected a duration from 0s to 10m"),
        ("NODE_GONE_GRACE", "0", "expected a duration from 1s to 24h"),
        ("LEASE_DURATION", "15.5s", "a Lease counts whole seconds"),
        ("HOST_CPU_LABEL", "a b", '"a b" is not a label name'),
        ("AGENT_DEVICE_PLUGIN_DIR", "/" + "d" * 73, "74 bytes: too long for a socket in it"),
        ("HOST_CPU_LABEL", "Upper.com/cpu", '"Upper.com" is not a domain'),
        ("HOST_CPU_LABEL", "a/b/c", '"a/b" is not a domain'),
        ("ROLLOUT_NAMESPACES", "a,B", 'item 2, "B": not a namespace name'),
        ("ROLLOUT_NAMESPACES", "a,,b", "item 2 is empty (stray comma)"),
        ("DRAIN_MARKS", "a,", "item 2 is empty (stray comma)"),
        ("STORAGE_URI_PREFIXES", "s3://bucket", 'not SCHEME://… ending with "/"'),
        ("STORAGE_URI_PREFIXES", "s3://bucket/../", 'has a "." or ".." in its path'),
        ("HEALTH_PORT", "65536", "expected a port from 1 to 65535, or 0"),
        ("HEALTH_HOST", "localhost", "expected an IP address"),
        ("LOG_LEVEL", "loud", "expected debug, info, warning or error"),
        ("LOG_FORMAT", "xml", "expected auto, json or console"),
        ("LEASE_NAME", "Lease", "not an object name"),
        ("LEASE_NAMESPACE", "a.b", "not a namespace name"),
    ],
)
def test_a_wrong_value_is_told_with_its_name_what_was_seen_and_what_to_do(
    name: str, value: str, words: str
) -> None:
    line = problem(**{name: value})
    assert line.startswith(f'SPACE_SANDBOX_RESTORE_{name}="{value}": ')
    assert words in line
    assert "correct it or unset it" in line


def test_all_problems_are_told_at_once() -> None:
    lines = problems(
        WORKERS="many",
        WORKRES="4",
        HOST_CPU_COMPATIBILITY="a=>,b",
        POD_TEMPLATE_FILE="/nonexistent/template.yaml",
        LEASE_DURATION="4s",
        RETRY_BACKOFF_BASE="5m",
    )
    names = [line.removeprefix(PREFIX).split(":")[0].split("=")[0] for line in lines]
    assert names == [
        "WORKRES",
        "WORKERS",
        "LEASE_RENEW_INTERVAL",
        "RETRY_BACKOFF_BASE",
        "POD_TEMPLATE_FILE",
        "HOST_CPU_COMPATIBILITY",
        "HOST_CPU_COMPATIBILITY",
    ]
    assert not [line for line in lines if "\n" in line]


def test_a_value_with_line_breaks_stays_on_one_line_and_is_cut() -> None:
    line = problem(WORKERS="1\n2\x1b[31m" + "3" * 500)
    assert line.isprintable()
    assert len(line) < 300


def test_a_rule_over_two_settings_is_not_asked_when_one_is_wrong_by_itself() -> None:
    assert problem(LEASE_DURATION="soon", LEASE_RENEW_INTERVAL="4m").startswith(
        variable("lease_duration")
    )


# Unknown names


def test_a_misspelt_name_is_refused_with_the_nearest_one() -> None:
    line = problem(REDIRECT_PER_MINUTE="5")
    assert line == (
        "SPACE_SANDBOX_RESTORE_REDIRECT_PER_MINUTE: no such setting;"
        " did you mean SPACE_SANDBOX_RESTORE_REDIRECTS_PER_MINUTE?"
    )


def test_a_name_in_lower_case_is_misspelt() -> None:
    environ = {variable("database_url"): URL, variable("workers").lower(): "4"}
    with pytest.raises(ConfigurationError, match="did you mean SPACE_SANDBOX_RESTORE_WORKERS"):
        load_settings(environ, namespace_file=NOWHERE)


def test_the_value_of_an_unknown_name_is_not_shown() -> None:
    assert "hunter2" not in problem(DATABASE_PASSWORD="hunter2")


@pytest.mark.parametrize(
    "name",
    [
        "SERVICE_HOST",
        "SERVICE_PORT",
        "SERVICE_PORT_HTTP",
        "PORT",
        "PORT_80_TCP",
        "PORT_80_TCP_ADDR",
    ],
)
def test_what_kubernetes_sets_for_a_service_is_nobodys_mistake(name: str) -> None:
    assert load(**{name: "tcp://10.0.0.1:80", f"METRICS_{name}": "10.0.0.1"})


def test_variables_of_others_are_not_ours() -> None:
    assert load_settings({variable("database_url"): URL, "SPACE_WORKERS": "x", "PATH": "/bin"})


# The database


def test_the_database_url_is_needed_once() -> None:
    with pytest.raises(ConfigurationError, match="DATABASE_URL: not set"):
        load_settings({})
    assert "both set; set exactly one" in problem(DATABASE_URL_FILE="/x", DATABASE_URL=URL)


def test_a_command_without_a_database_needs_no_url() -> None:
    assert load_settings({}, needs_database=False).dsn == ""


def test_the_url_may_stand_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "url"
    file.write_text(URL + "\n")
    assert load(DATABASE_URL_FILE=str(file)).dsn == URL


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read (No such file or directory)"),
        (b"", "the file is empty"),
        (b"\xff\xfe", "not UTF-8"),
        (b"mysql://u:hunter2@h/d", "another scheme than postgresql://"),
    ],
)
def test_a_file_without_a_url_is_told(tmp_path: Path, content: bytes | None, words: str) -> None:
    file = tmp_path / "url"
    if content is not None:
        file.write_bytes(content)
    line = problem(DATABASE_URL_FILE=str(file))
    assert words in line
    assert str(file) in line
    assert "hunter2" not in line


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("postgresql+asyncpg://u:hunter2@h/d", 'drop the driver name: begin with "postgresql://"'),
        ("mysql://u:hunter2@h/d", "another scheme than postgresql://"),
        ("postgresql://u:hunter2/x@h:5432/d", "does not parse"),
        ("postgresql://u:hunter2@h:port/d", "does not parse"),
        ("hunter2", "not a URL"),
    ],
)
def test_a_wrong_database_url_is_told_without_its_password(url: str, words: str) -> None:
    line = problem(DATABASE_URL=url)
    assert line.startswith("SPACE_SANDBOX_RESTORE_DATABASE_URL (value not shown): ")
    assert words in line
    assert "hunter2" not in line


def test_a_url_in_the_variable_for_a_file_is_not_shown() -> None:
    line = problem(DATABASE_URL_FILE=URL)
    assert "looks like a URL" in line
    assert "hunter2" not in line


@pytest.mark.parametrize("url", [URL, "postgres://h/d", "postgresql:///d?host=/run/pg&user=u"])
def test_a_url_as_libpq_reads_it_is_accepted(url: str) -> None:
    assert load(DATABASE_URL=url).dsn == url


def test_the_database_url_is_never_printed() -> None:
    found = load()
    assert "hunter2" not in repr(found) + str(found) + found.model_dump_json()


# The Lease's namespace


def test_the_lease_lives_in_the_namespace_of_the_pod(tmp_path: Path) -> None:
    file = tmp_path / "namespace"
    file.write_text("space-system\n")
    environ = {variable("database_url"): URL}
    assert load_settings(environ, namespace_file=file).lease_namespace == "space-system"
    environ[variable("lease_namespace")] = "elsewhere"
    assert load_settings(environ, namespace_file=file).lease_namespace == "elsewhere"


def test_outside_a_pod_the_lease_has_a_namespace_of_its_own() -> None:
    assert load().lease_namespace == "sandbox-restore-system"


# Rules over several settings


def test_one_failed_renewal_must_not_lose_the_lease() -> None:
    assert load(LEASE_DURATION="10s", LEASE_RENEW_INTERVAL="5s")
    line = problem(LEASE_DURATION="10s", LEASE_RENEW_INTERVAL="5.1s")
    assert "5s100ms is more than half of SPACE_SANDBOX_RESTORE_LEASE_DURATION (10s)" in line


def test_the_backoff_begins_below_its_end() -> None:
    assert load(RETRY_BACKOFF_BASE="1m", RETRY_BACKOFF_MAX="1m")
    assert "is more than" in problem(RETRY_BACKOFF_BASE="61s", RETRY_BACKOFF_MAX="1m")


def test_the_node_history_is_kept_for_as_long_as_a_cpu_is_held() -> None:
    assert load(NODE_HISTORY_TTL="2h", PUBLISHED_HOLD="2h")
    line = problem(NODE_HISTORY_TTL="2h", PUBLISHED_HOLD="3h")
    assert "NODE_HISTORY_TTL: 2h is less than SPACE_SANDBOX_RESTORE_PUBLISHED_HOLD (3h)" in line


@pytest.mark.parametrize("label", ["placement-block", "node-group", "cohort"])
def test_the_cpu_label_is_none_that_means_something_else(label: str) -> None:
    assert "another meaning" in problem(HOST_CPU_LABEL=f"space.pplx.net/{label}")


def test_a_rollout_outside_the_namespaces_served_is_a_contradiction() -> None:
    assert load(NAMESPACES="a,b", ROLLOUT_NAMESPACES="b", HOST_CPU_PLACEMENT_ENABLED="1")
    assert "c not among" in problem(NAMESPACES="a,b", ROLLOUT_NAMESPACES="b,c")


def test_the_template_must_be_readable(tmp_path: Path) -> None:
    template = tmp_path / "pod.yaml"
    assert "cannot be read" in problem(POD_TEMPLATE_FILE=str(template))
    template.write_text("spec: {}\n")
    assert load(POD_TEMPLATE_FILE=str(template)).pod_template_file == template


def test_problems_of_the_compatibility_list_are_among_the_others() -> None:
    lines = problems(
        HOST_CPU_COMPATIBILITY="intel-6-106-6,amd-25-17-1=>amd-25-1-1,x=>", WORKERS="0"
    )
    assert len(lines) == 3
    assert sum(line.startswith(variable("host_cpu_compatibility")) for line in lines) == 2


# Warnings


@pytest.mark.parametrize(
    ("given_values", "words"),
    [
        (
            {"HOST_CPU_PLACEMENT_ENABLED": "1", "HOST_CPU_PLACEMENT_OBSERVE": "1"},
            "OBSERVE has no effect: the gate is on for every restore",
        ),
        ({"ROLLOUT_PERCENT": "10"}, "have no effect while"),
        ({"ROLLOUT_NAMESPACES": "a"}, "have no effect while"),
        ({"NODE_GONE_GRACE": "10s"}, "10s is short"),
        ({"HOST_CPU_COMPATIBILITY": "intel-6-106-6=>intel-6-106-6"}, "always loads"),
    ],
)
def test_what_is_allowed_and_probably_not_meant_is_a_warning(
    given_values: dict[str, str], words: str
) -> None:
    (warning,) = load(**given_values).warnings
    assert words in warning


def test_observing_beside_a_gate_that_is_on_for_some_is_meant() -> None:
    gate: dict[str, Any] = {"HOST_CPU_PLACEMENT_ENABLED": "1", "HOST_CPU_PLACEMENT_OBSERVE": "1"}
    assert load(**gate, ROLLOUT_PERCENT="10").warnings == ()
    assert load().warnings == ()


# The page


def test_the_page_is_what_the_settings_say() -> None:
    text = settings_doc.markdown()
    assert DOC.read_text() == text, "run python -m sandbox_restore.cli.settings_doc"


def test_check_tells_a_page_that_drifted(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    assert settings_doc.main(["--check", str(page)]) == 1
    assert settings_doc.main([str(page)]) == 0
    assert settings_doc.main(["--check", str(page)]) == 0
    page.write_text(page.read_text().replace("30s", "31s"))
    assert settings_doc.main(["--check", str(page)]) == 1
