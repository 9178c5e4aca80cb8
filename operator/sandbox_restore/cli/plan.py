"""`plan`: the placement decision offline, from a SandboxRestore and a list of nodes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from sandbox_restore.cli.output import Document, DocumentOption, note, say_document

if TYPE_CHECKING:
    from sandbox_restore.cli.plan_input import SnapshotFile
    from sandbox_restore.fleet.compatibility import Compatibility
    from sandbox_restore.model.restore import Restore
    from sandbox_restore.placement.gate import Gate
    from sandbox_restore.placement.template import PodTemplate
    from sandbox_restore.settings import Settings


def plan(
    *,
    restore: Annotated[
        str, typer.Option("--filename", "-f", help="The SandboxRestore: YAML or JSON, - for stdin.")
    ],
    nodes: Annotated[
        str, typer.Option(help="What `kubectl get nodes -o json` printed, - for stdin.")
    ],
    snapshot: Annotated[
        str | None,
        typer.Option(
            help="The snapshot: YAML with id, capturedAt, uploadedBy, hostCpu, ancestorCpus,"
            " storageUri."
        ),
    ] = None,
    capture_cpu: Annotated[
        str | None,
        typer.Option(metavar="CPU", help="The capture CPU, in place of the snapshot's hostCpu."),
    ] = None,
    node_group: Annotated[
        str | None, typer.Option(metavar="GROUP", help="The sandbox's node group; none unless set.")
    ] = None,
    refused: Annotated[
        list[str] | None,
        typer.Option(metavar="NODE", help="A node that refused this capture; may be repeated."),
    ] = None,
    compatibility: Annotated[
        str | None,
        typer.Option(metavar="PAIRS", help="CAPTURE=>LOADER, …; in place of the setting."),
    ] = None,
    gate: Annotated[
        bool,
        typer.Option(
            "--gate/--no-gate", help="Placement by CPU on or off, whatever the settings are."
        ),
    ] = True,
    gate_as_set: Annotated[
        bool,
        typer.Option(
            "--gate-as-set", help="The gate, observe mode and rollout as the settings say."
        ),
    ] = False,
    output: DocumentOption = Document.TEXT,
) -> None:
    """Tells how a restore would be placed; offline.

    For a restore from storage, with no cluster and no database. The other settings (label key,
    hard pin, pod template, …) are those of the environment, as for `run`. What only a database
    knows is told by options.

    \b
    Examples:
      kubectl get nodes -o json > nodes.json
      sandbox-restore plan -f wake.yaml --nodes nodes.json --capture-cpu intel-6-106-6
      sandbox-restore plan -f wake.yaml --nodes nodes.json --snapshot snapshot.yaml -o yaml
    """
    from sandbox_restore.cli import plan_input, plan_output
    from sandbox_restore.errors import ConfigurationError
    from sandbox_restore.settings import load_settings

    if restore == nodes == plan_input.STANDARD_INPUT:
        raise ConfigurationError(["--filename and --nodes: only one of them can be -"])
    if gate_as_set and not gate:
        raise ConfigurationError(["--gate-as-set and --no-gate: only one of them can be given"])
    settings = load_settings(os.environ, needs_database=False)
    pairs = _compatibility(settings, compatibility)
    template = pod_template(settings)
    asked = plan_input.read_restore(restore)
    described: SnapshotFile = (
        plan_input.SnapshotFile() if snapshot is None else plan_input.read_snapshot(snapshot)
    )
    planned = plan_output.decided(
        settings,
        restore=asked,
        snapshot=plan_input.snapshot_of(
            described, restore=asked, capture_cpu=capture_cpu, name=snapshot
        ),
        nodes=plan_input.read_nodes(nodes),
        template=template,
        compatibility=pairs,
        node_group=node_group,
        refused=refused or (),
        gate=_gate(settings, asked, as_set=gate_as_set, on=gate),
    )
    if output is Document.TEXT:
        plan_output.say_text(planned)
    else:
        say_document(plan_output.document_of(planned), output)


def _gate(settings: Settings, restore: Restore, *, as_set: bool, on: bool) -> Gate:
    from sandbox_restore.placement.gate import Gate, gate_for

    if not as_set:
        return Gate.ON if on else Gate.OFF
    return gate_for(
        settings.gate, namespace=restore.namespace or "default", sandbox_id=restore.spec.sandbox_id
    )


def _compatibility(settings: Settings, given: str | None) -> Compatibility:
    from sandbox_restore.errors import ConfigurationError
    from sandbox_restore.fleet.compatibility import SETTING, Compatibility

    if given is None:
        return settings.compatibility
    try:
        parsed, warnings = Compatibility.parse(given)
    except ConfigurationError as error:
        raise ConfigurationError(
            [line.replace(SETTING, "--compatibility") for line in error.problems]
        ) from None
    for warning in warnings:
        note(warning.replace(SETTING, "--compatibility"), kind="warning")
    return parsed


def pod_template(settings: Settings) -> PodTemplate:
    """The pod template of the settings; what is odd about it is told, as `run` does."""
    from sandbox_restore.errors import ConfigurationError
    from sandbox_restore.placement.template import PodTemplate

    path = settings.pod_template_file
    if path is None:
        return PodTemplate.default()
    try:
        template = PodTemplate.parse(path.read_text("utf-8"), origin=str(path))
    except UnicodeDecodeError as error:
        raise ConfigurationError([f"{path}: no UTF-8 at byte {error.start + 1}"]) from None
    except OSError as error:
        raise ConfigurationError([f"{path}: cannot be read: {error.strerror}"]) from None
    for warning in template.warnings:
        note(warning, kind="warning")
    return template
