"""Settings of the operator: read from the environment once, checked as a whole, then frozen.

`load_settings` is the only way in. It opens no connection, and it reports every problem at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from functools import cached_property
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import PrivateAttr, SecretStr, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from sandbox_restore import settings_checks as checks
from sandbox_restore import settings_values as values
from sandbox_restore.errors import ConfigurationError
from sandbox_restore.fleet.compatibility import Compatibility
from sandbox_restore.model import names
from sandbox_restore.placement.gate import GateSettings
from sandbox_restore.settings_agent import AgentSettings
from sandbox_restore.settings_fields import duration as _duration
from sandbox_restore.settings_fields import setting as _setting
from sandbox_restore.settings_values import (
    Duration,
    LabelKeys,
    Namespaces,
    UriPrefixes,
)

PREFIX: Final = "SPACE_SANDBOX_RESTORE_"
DEFAULT_LEASE_NAMESPACE: Final = "sandbox-restore-system"
NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

CPU: Final = "Placement by host CPU"
PODS: Final = "Restore pods"
DATABASE: Final = "Database"
RESCUE: Final = "Lost nodes, failures and redirects"
WORK: Final = "Work and pace"
LEASE: Final = "Leader lease"
SERVING: Final = "Probes, metrics and logs"


class Settings(AgentSettings):
    """All settings; each one's variable is `SPACE_SANDBOX_RESTORE_` and its name in capitals."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        hide_input_in_errors=True,
    )

    host_cpu_placement_enabled: bool = _setting(default=False, section=CPU, expects="true or false")
    """The gate: keeps restores off hosts whose CPU cannot load the snapshot, and lets stranded
    restores be redirected to storage. Off, every pod is byte for byte what it would be without
    the feature. Limit: kept off are the CPUs that nodes publish. A CPU that no node has published
    yet and a node without a usable label stay eligible, and may refuse the snapshot: it is tried
    elsewhere then. `hostCpuPolicy: Required` of a restore keeps it off both. Where no reachable
    node can load the snapshot, or its capture CPU is not known, nothing is kept off. Turn it on
    step by step: docs/rollout.md."""

    host_cpu_placement_observe: bool = _setting(default=False, section=CPU, expects="true or false")
    """Where the gate is off: computes each decision and reports it (status, Event, metrics, log)
    without changing a pod. It costs the work of the decision. Best switched on for some days
    before the gate."""

    host_cpu_compatibility: str = _setting(
        "", section=CPU, expects="comma-separated pairs CAPTURE=>LOADER of canonical CPUs"
    )
    """Pairs of CPUs, `capture=>loader`: a snapshot captured on the first may be loaded on the
    second, such as `intel-6-106-6=>intel-6-85-7`. One-way and never chained: `a=>b,b=>c` does not
    give `a=>c`. A CPU always loads what it captured. A pair across vendors or architectures, or
    one that cannot be read, ends the start. Add what you have measured (docs/rollout.md): a wrong
    pair sends restores to hosts that refuse them; a missing pair only costs choice."""

    host_cpu_label: str = _setting(
        names.HOST_CPU_LABEL, section=CPU, expects="a label key such as example.com/host-cpu"
    )
    """Key of the node label that tells the host CPU. The node agent must write the same key."""

    rollout_namespaces: Namespaces = _setting(
        (), section=CPU, expects="comma-separated namespace names (empty: all)"
    )
    """Narrows a gate that is on to restores in these namespaces. Evaluated when an attempt begins
    and kept for that attempt."""

    rollout_percent: int = _setting(
        100, section=CPU, expects="a whole number from 0 to 100", ge=0, le=100
    )
    """Narrows a gate that is on to this share of the sandboxes, in percent, chosen by a stable hash
    of the sandbox id: raising it only adds sandboxes."""

    cold_cache_wait: Duration = _duration("30s", section=CPU, at_least="0s", at_most="10m")
    """How long a decision waits for the node index to be complete. Then the pod goes
    unconstrained, reason `ColdCache`; `0` never waits. Longer delays restores after a restart of
    the operator; shorter lets some of them go unconstrained."""

    published_hold: Duration = _duration("24h", section=CPU, at_least="0s", at_most="90d")
    """How long a CPU counts as published after its last node left, so that a node that returns is
    excluded from its first moment, also after a restart of the operator. `0` switches it off.
    Longer costs only longer lists of excluded CPUs."""

    node_history_ttl: Duration = _duration("90d", section=CPU, at_least="1h", at_most="3650d")
    """How long the operator's record of a node that left is kept: which CPU it carried, from when
    to when. It tells the capture CPU of older snapshots that do not record theirs. Longer only
    costs rows, one for each node that ever was. Not below
    `SPACE_SANDBOX_RESTORE_PUBLISHED_HOLD`."""

    loosen_after: Duration = _duration("60s", section=CPU, at_least="0s", at_most="1h")
    """How long a restore pod that waits to be scheduled must steadily have been stricter than it
    would be rendered now, above all because the last reachable loader has left, before it is
    replaced by a less strict one. Longer than your fleet needs to replace a node, a short gap does
    not send restores to hosts that may refuse them; shorter lets them start sooner."""

    source_node_hard_pin: bool = _setting(default=False, section=PODS, expects="true or false")
    """Confines a restore from storage to a shortlist: the node that uploaded the snapshot, which
    may still hold its files, and some fallback nodes. Faster loads against less choice for the
    scheduler."""

    shortlist_fallbacks: int = _setting(
        3, section=PODS, expects="a whole number from 0 to 20", ge=0, le=20
    )
    """How many fallback nodes a shortlist holds beside the source node. Acts only with
    `SPACE_SANDBOX_RESTORE_SOURCE_NODE_HARD_PIN`. Few means waiting when they are full; many means
    less use of what the source node holds."""

    pod_template_file: Path | None = _setting(
        None, section=PODS, expects="the path of a readable YAML file"
    )
    """The administrator's template of the restore pod. Unset: the one in the package."""

    storage_uri_prefixes: UriPrefixes = _setting(
        (),
        section=PODS,
        expects='comma-separated prefixes SCHEME://… that end with "/" (empty: any)',
    )
    """A snapshot whose storage URI begins with none of these counts as not in storage, so that a
    wrong row cannot send the runner elsewhere."""

    namespaces: Namespaces = _setting(
        (), section=PODS, expects="comma-separated namespace names (empty: all)"
    )
    """Namespaces whose SandboxRestores are served. With a list, rights in those namespaces are
    enough; nodes are read for the whole cluster all the same."""

    database_url: SecretStr = _setting(
        SecretStr(""), section=DATABASE, expects="a URL postgresql://USER:PASSWORD@HOST:PORT/NAME"
    )
    """Where the shared schema is. Set this or `SPACE_SANDBOX_RESTORE_DATABASE_URL_FILE`, one of
    the two. Never logged or printed."""

    database_url_file: Path | None = _setting(
        None, section=DATABASE, expects="the path of a readable file that holds the URL"
    )
    """A file that holds the database URL, such as one key of a mounted Secret. Read again at every
    new connection, so that a rotated password needs no restart: connections that are open stay
    until the server ends them or they have been idle for five minutes."""

    node_gone_grace: Duration = _duration("5m", section=RESCUE, at_least="1s", at_most="24h")
    """How long a Node object must have been absent before its pods are taken for dead and its
    pinned sandboxes may move. A node whose object was deleted may still run its VMs: below the time
    that your platform needs to power a lost machine off, two VMs of one sandbox can run."""

    drain_marks: LabelKeys = _setting(
        (
            f"{names.GROUP}/draining",
            "ToBeDeletedByClusterAutoscaler",
            "karpenter.sh/disrupted",
        ),
        section=RESCUE,
        expects="comma-separated keys of taints or labels",
    )
    """A node with one of these taints or labels is being drained away: a row that a stuck restore
    left pinned there loses its local artifact marker. A cordon alone is no drain."""

    observation_ttl: Duration = _duration("24h", section=RESCUE, at_least="1m", at_most="90d")
    """How long a node that refused a snapshot as CPU-incompatible is avoided; older observations
    of loads are deleted. Longer wastes fewer attempts; shorter notices sooner that a firmware
    update has mended the node."""

    circuit_window: Duration = _duration("10m", section=RESCUE, at_least="0s", at_most="24h")
    """When, within this time, every CPU that is said to load the snapshots of one capture CPU has
    refused one, attempts from that capture CPU are held back until a refusal is this old or a load
    succeeds. `0s` switches this off."""

    redirects_per_minute: int = _setting(
        60, section=RESCUE, expects="a whole number from 0 to 10000", ge=0, le=10_000
    )
    """Stranded restores that may switch to storage in one minute, for the whole fleet, so that
    labels that flap are no storm on the object store. The next attempt of a restore whose own
    attempt from storage was refused is not counted. `0` stops redirects."""

    retry_backoff_base: Duration = _duration("2s", section=RESCUE, at_least="100ms", at_most="10m")
    """Wait before the attempt that follows a failed one; it doubles with each further one."""

    retry_backoff_max: Duration = _duration("1m", section=RESCUE, at_least="100ms", at_most="1h")
    """Longest wait between two attempts. Not below the base."""

    workers: int = _setting(8, section=WORK, expects="a whole number from 1 to 256", ge=1, le=256)
    """Restores reconciled at the same time; at most one worker acts on one restore. Each may
    hold one database connection: stay below what the database allows."""

    resync_interval: Duration = _duration("30s", section=WORK, at_least="1s", at_most="1h")
    """How often a waiting restore is looked at again without an event. Shorter asks the
    database more often; it is the safety net for a lost notification, not the usual way."""

    sweep_interval: Duration = _duration("1m", section=WORK, at_least="1s", at_most="1h")
    """How often one query looks for stranded sandboxes and executions whose restore is gone."""

    relist_interval: Duration = _duration("10m", section=WORK, at_least="10s", at_most="24h")
    """How often the node index is replaced from a full list, against events that a watch lost.
    Each list of a large fleet costs the API server some hundred megabytes of answers."""

    lease_name: str = _setting("sandbox-restore", section=LEASE, expects="an object name")
    """Name of the Lease that lets one operator of several act. The Lease saves work; correctness
    does not rest on it."""

    lease_namespace: str = _setting(
        DEFAULT_LEASE_NAMESPACE, section=LEASE, expects="a namespace name"
    )
    """Namespace of the Lease. Unset inside a pod: that pod's namespace."""

    lease_duration: Duration = _duration("15s", section=LEASE, at_least="2s", at_most="10m")
    """How long a Lease is good after its last renewal; whole seconds. Longer delays the take-over
    from a dead operator; shorter loses the Lease to a slow API server."""

    lease_renew_interval: Duration = _duration("5s", section=LEASE, at_least="200ms", at_most="5m")
    """How often the Lease is renewed; at most half its duration, so that one failed renewal is
    survived."""

    health_host: str = _setting(
        "0.0.0.0", section=SERVING, expects="an IP address such as 0.0.0.0, :: or 127.0.0.1"
    )
    """Address on which `/healthz`, `/readyz` and `/metrics` are served. `::` takes IPv6 alone; a
    loopback address is reached by no kubelet and no Prometheus."""

    health_port: int = _setting(
        8080, section=SERVING, expects="a port from 1 to 65535, or 0", ge=0, le=65_535
    )
    """Port of probes and metrics; `0` takes a free one and logs it."""

    log_level: Literal["debug", "info", "warning", "error"] = _setting(
        "info", section=SERVING, expects="debug, info, warning or error"
    )
    """Lowest level that is logged. The libraries below stay one level quieter than the operator."""

    log_format: Literal["auto", "json", "console"] = _setting(
        "auto", section=SERVING, expects="auto, json or console"
    )
    """One JSON object a line, or lines for people; `auto` is console on a terminal and JSON
    otherwise."""

    _warnings: tuple[str, ...] = PrivateAttr(default=())

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        # The environment is handed in by load_settings, so that a test or a caller decides it.
        return (init_settings,)

    @field_validator("host_cpu_label")
    @classmethod
    def _host_cpu_label(cls, value: str) -> str:
        return values.label_key(value)

    @field_validator("lease_namespace")
    @classmethod
    def _lease_namespace(cls, value: str) -> str:
        return values.namespace_name(value)

    @field_validator("health_host")
    @classmethod
    def _health_host(cls, value: str) -> str:
        return str(ip_address(value.strip()))

    @field_validator("lease_name")
    @classmethod
    def _lease_name(cls, value: str) -> str:
        return values.object_name(value)

    @field_validator("database_url")
    @classmethod
    def _database_url(cls, value: SecretStr) -> SecretStr:
        if value.get_secret_value():
            values.database_url(value.get_secret_value())
        return value

    @field_validator("lease_duration")
    @classmethod
    def _lease_duration(cls, value: timedelta) -> timedelta:
        if value.microseconds:
            raise ValueError("a Lease counts whole seconds")
        return value

    @field_validator("log_level", "log_format", mode="before")
    @classmethod
    def _lower_case(cls, value: object) -> object:
        return value.strip().lower() if isinstance(value, str) else value

    @property
    def dsn(self) -> str:
        """The database URL itself; empty when the command needs none."""
        return self.database_url.get_secret_value()

    def current_dsn(self) -> str:
        """The database URL as it is now: read anew from the file, where it is in one.

        While the file cannot be read, or holds no URL, it is the one of the start.
        """
        if self.database_url_file is None:
            return self.dsn
        text, _ = checks.read_database_url(
            str(self.database_url_file), variable=variable("database_url_file")
        )
        try:
            return self.dsn if text is None else values.database_url(text)
        except ValueError:
            return self.dsn

    @cached_property
    def compatibility(self) -> Compatibility:
        """The compatibility list, parsed."""
        parsed, _ = Compatibility.parse(self.host_cpu_compatibility)
        return parsed

    @property
    def gate(self) -> GateSettings:
        """What decides for which restores placement by host CPU is on (domain.md section 5)."""
        return GateSettings(
            enabled=self.host_cpu_placement_enabled,
            observe=self.host_cpu_placement_observe,
            namespaces=frozenset(self.rollout_namespaces),
            percent=self.rollout_percent,
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """One line for each thing that is allowed and probably not meant; to be logged at start."""
        return self._warnings


def variable(field: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + field.upper()


def load_settings(
    environ: Mapping[str, str],
    *,
    needs_database: bool = True,
    namespace_file: Path = NAMESPACE_FILE,
) -> Settings:
    """The settings of this environment; an empty variable counts as unset.

    Raises ConfigurationError with one line per problem, all at once. `needs_database=False` lets
    a command that asks no database run without its URL. `namespace_file` is where a pod finds the
    name of its own namespace.
    """
    ours = {name: text for name, text in environ.items() if name.upper().startswith(PREFIX)}
    known = {variable(field): field for field in Settings.model_fields}
    problems = checks.unknown_variables(ours, known=known)
    source = EnvSettingsSource(Settings)
    source.env_vars = {name.lower(): text for name, text in ours.items() if name in known and text}
    given = source()
    problems += _find_database_url(given, needed=needs_database)
    if "lease_namespace" not in given and (own := checks.read_namespace(namespace_file)):
        given["lease_namespace"] = own
    settings, lines = _validate(given)
    problems += lines.values()
    problems += checks.problems_between(settings, wrong=lines)
    compatibility_warnings: list[str] = []
    if settings.host_cpu_compatibility:
        try:
            _, compatibility_warnings = Compatibility.parse(settings.host_cpu_compatibility)
        except ConfigurationError as error:
            problems += error.problems
    if problems:
        raise ConfigurationError(problems)
    settings._warnings = (*compatibility_warnings, *checks.warnings_about(settings))
    return settings


def _find_database_url(given: dict[str, Any], *, needed: bool) -> list[str]:
    """Puts the URL of the file into `given`; the lines say why there is no single URL."""
    url, file = variable("database_url"), variable("database_url_file")
    if "database_url" in given and "database_url_file" in given:
        # Neither is looked at: which of them is meant is the question to settle first.
        del given["database_url"], given["database_url_file"]
        return [f"{url} and {file} are both set; set exactly one of them"]
    if "database_url_file" in given:
        text, problem = checks.read_database_url(given["database_url_file"], variable=file)
        if problem:
            del given["database_url_file"]
            return [problem]
        given["database_url"] = text
    elif "database_url" not in given and needed:
        return [f"{url}: not set; set it, or {file}, to the database with the shared schema"]
    return []


def _validate(given: dict[str, Any]) -> tuple[Settings, dict[str, str]]:
    """The settings with wrong values left at their defaults, and a line for each of those."""
    try:
        return Settings(**given), {}
    except ValidationError as error:
        lines: dict[str, str] = {}
        for detail in error.errors(include_url=False):
            field = str(detail["loc"][0])
            reason = detail.get("ctx", {}).get("error")
            lines.setdefault(field, _line(field, given=given, reason=reason))
    sound = {field: value for field, value in given.items() if field not in lines}
    return Settings(**sound), lines


def _line(field: str, *, given: Mapping[str, Any], reason: object) -> str:
    """What is wrong with one variable, what was expected, what to do."""
    name = variable(field)
    because = f"{reason}; " if reason else ""
    if field == "database_url":
        file = given.get("database_url_file")
        origin = f" (from the file {checks.quoted(file)})" if file else ""
        return f"{name}{origin} (value not shown): {because}expected {expects(field)}"
    default = shown_default(field)
    unset = f"unset it for the default ({default})" if default else "unset it"
    return (
        f"{name}={checks.quoted(str(given[field]))}: {because}expected {expects(field)};"
        f" correct it or {unset}"
    )


def expects(field: str) -> str:
    """What a value of this setting must look like, in words."""
    return _extra(field, "expects")


def section(field: str) -> str:
    """The section of the reference page that the setting belongs to."""
    return _extra(field, "section")


def shown_default(field: str) -> str:
    """The default as one would write it into the variable; empty when there is none."""
    default = Settings.model_fields[field].default
    return "" if default is None else values.shown(default)


def _extra(field: str, key: str) -> str:
    extra = Settings.model_fields[field].json_schema_extra
    return str(extra[key]) if isinstance(extra, dict) else ""
