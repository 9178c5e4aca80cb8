"""Settings of the node agent (section 13): part of the one settings model, in their own file."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final

from pydantic import BeforeValidator, PlainSerializer, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from sandbox_restore import settings_values as values
from sandbox_restore.fleet import cpu
from sandbox_restore.model.names import NETWORK_SLOTS
from sandbox_restore.settings_fields import duration, setting
from sandbox_restore.settings_values import DURATION_FORMS, Duration

AGENT: Final = "Node agent"
NEVER: Final = "never"
_LONGEST_WAIT: Final = timedelta(days=1)

LONGEST_PLUGIN_DIR: Final = 107 - len(f"/{NETWORK_SLOTS}.sock")
"""In bytes: Linux takes 107 for the whole path of a Unix socket (unix(7), sun_path), and the
agent's own is named after the resource."""


def patience(value: object) -> timedelta | None:
    """A duration up to a day, or None for `never`."""
    if value is None or (isinstance(value, str) and value.strip().lower() == NEVER):
        return None
    span = values.parse_duration(value)
    if span > _LONGEST_WAIT:
        raise ValueError("longer than a day")
    return span


def format_patience(span: timedelta | None) -> str:
    """What `patience` reads back."""
    return NEVER if span is None else values.format_duration(span)


Patience = Annotated[
    timedelta | None,
    BeforeValidator(patience),
    PlainSerializer(format_patience, return_type=str, when_used="json"),
]


class AgentSettings(BaseSettings):
    """What `sandbox-restore node-agent` reads; the operator lets these variables pass."""

    model_config = SettingsConfigDict(use_attribute_docstrings=True)

    node_name: str = setting("", section=AGENT, expects="the name of a Node object")
    """The Node that this agent speaks for: in a pod `fieldRef: spec.nodeName`. Nothing else may be
    written with the token of that pod."""

    network_slots: int = setting(
        0, section=AGENT, expects="a whole number from 0 to 10000", ge=0, le=10_000
    )
    """How many sandboxes this node takes: the devices that are advertised as
    `space.pplx.net/network-slots`. `0`: the agent keeps the label and advertises nothing; the
    slots then come from elsewhere, without the promise that the label is there first."""

    advertise_unlabelled_after: Patience = setting(
        values.parse_duration("2m"),
        section=AGENT,
        expects=f"a duration up to 1d, {DURATION_FORMS}, or never",
    )
    """How long the slots wait for a label that cannot be written, or for a CPU that cannot be
    told. Then they are advertised and the node reads as unlabelled, which is eligible for every
    restore. `0` does not wait, `never` keeps the node out. A label that names another CPU is waited
    for without end."""

    agent_hybrid_cpus: bool = setting(default=False, section=AGENT, expects="true or false")
    """Where cores differ, publishes their sorted set as one value, joined by dots, instead of
    refusing: for machines whose microVMs may run on any core. Two such machines then count as
    equal."""

    agent_kernel_in_value: bool = setting(default=False, section=AGENT, expects="true or false")
    """Puts the host kernel's major.minor into the value (`intel-6-106-6-k6.1`), for fleets in which
    equal CPUs under another kernel refuse each other's snapshots. Turning it on renames every CPU
    of the fleet: snapshots keep the old names, which nothing publishes any more, and need pairs in
    `SPACE_SANDBOX_RESTORE_HOST_CPU_COMPATIBILITY`."""

    agent_value_suffix: str = setting(
        "", section=AGENT, expects="lower-case letters and digits in groups joined by - or ."
    )
    """An ending of a fleet's own (`-fw3`), such as a generation of firmware. Changing it renames
    every CPU of the nodes that have it, as with the kernel."""

    agent_check_pods: bool = setting(default=True, section=AGENT, expects="true or false")
    """Before the label changes, looks for sandbox pods on the node whose required terms exclude the
    new value: a kubelet would end them at its next restart, so the change is held until they are
    gone. `false` changes the label at once and makes the right to list pods unnecessary."""

    agent_device_plugin_dir: Path = setting(
        Path("/var/lib/kubelet/device-plugins"),
        section=AGENT,
        expects=f"the path of a folder, at most {LONGEST_PLUGIN_DIR} bytes long",
    )
    """The kubelet's folder of device plugins, with its `kubelet.sock`; the agent's own socket is
    made there."""

    agent_cpuinfo_file: Path = setting(
        Path("/proc/cpuinfo"), section=AGENT, expects="the path of a readable file"
    )
    """What the CPU is told from. Another file is for test beds, where one machine plays several
    nodes."""

    agent_recheck_interval: Duration = duration("5m", section=AGENT, at_least="1s", at_most="1h")
    """How often the Node is read again without an event of its watch: the safety net for one that
    was lost. Each agent of the fleet sends this one request."""

    agent_retry_max: Duration = duration("30s", section=AGENT, at_least="100ms", at_most="1h")
    """Longest wait between two tries of what failed. The waits double from half a second and
    carry jitter, so that a fleet does not return to an API server all at once."""

    @field_validator("node_name")
    @classmethod
    def _node_name(cls, value: str) -> str:
        return values.object_name(value) if value else value

    @field_validator("agent_device_plugin_dir")
    @classmethod
    def _room_for_the_socket(cls, value: Path) -> Path:
        if (length := len(os.fsencode(value))) > LONGEST_PLUGIN_DIR:
            raise ValueError(f"{length} bytes: too long for a socket in it")
        return value

    @field_validator("agent_value_suffix")
    @classmethod
    def _suffix(cls, value: str) -> str:
        if value and (why := cpu.why_unusable(value)):
            raise ValueError(why)
        return value
