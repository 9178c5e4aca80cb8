"""What came of the restores of one act, from the nodes' record and the API; nothing is assumed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support.fleet import SandboxSeed
from tests.support.simnode import Entry, Event, Matrix


class StoryError(Exception):
    """The story did not come out as told; the text says what was seen instead."""


@dataclass(slots=True, kw_only=True)
class Sandbox:
    """One sandbox of an act: what its nodes did, and what its restore says."""

    seed: SandboxSeed
    loads: list[Entry] = field(default_factory=list)
    """Loads in their order: started VMs and refusals."""
    restore: Mapping[str, Any] = field(default_factory=dict)
    """The SandboxRestore object."""

    @property
    def refusals(self) -> list[Entry]:
        return [load for load in self.loads if load.event is Event.LOAD_REFUSED]

    @property
    def runs(self) -> bool:
        return any(load.event is Event.VM_STARTED for load in self.loads)

    @property
    def succeeded(self) -> bool:
        return _succeeded(self.restore).get("status") == "True"

    @property
    def reason(self) -> str:
        return str(_succeeded(self.restore).get("reason", ""))

    @property
    def message(self) -> str:
        return str(_succeeded(self.restore).get("message", ""))

    @property
    def from_storage(self) -> list[Entry]:
        """Loads by storage plans; a local-only plan has no choice of a node."""
        return [load for load in self.loads if load.source == "storage"]

    @property
    def placement(self) -> str:
        """What the restore says of its placement."""
        placement = self.restore.get("status", {}).get("placement", {})
        return f"{placement.get('decision')}, {placement.get('reason')}"


@dataclass(frozen=True, slots=True)
class Findings:
    """All sandboxes of an act."""

    sandboxes: Sequence[Sandbox]

    @property
    def running(self) -> int:
        return sum(one.runs for one in self.sandboxes)

    @property
    def refused_first(self) -> list[Sandbox]:
        """Those whose first load was refused."""
        return [one for one in self.sandboxes if one.loads[:1] == one.refusals[:1] != []]

    @property
    def failed(self) -> list[Sandbox]:
        return [one for one in self.sandboxes if not one.succeeded]

    @property
    def refusals(self) -> list[Entry]:
        return [load for one in self.sandboxes for load in one.refusals]

    @property
    def refusals_on_labelled(self) -> list[Entry]:
        return [load for load in self.refusals if load.node_label]

    @property
    def refusals_on_unlabelled(self) -> list[Entry]:
        return [load for load in self.refusals if not load.node_label]

    def first_loads(self) -> Counter[str]:
        """Where first loads happened: number by CPU label, empty for unlabelled nodes."""
        return Counter(one.loads[0].node_label for one in self.sandboxes if one.loads)

    def check_sound(self, matrix: Matrix) -> None:
        """Check what holds in every act. Raises StoryError."""
        for one in self.sandboxes:
            _demand(bool(one.loads), f"{one.seed.restore_name} never reached a node: {one.reason}")
            _demand(
                one.runs == one.succeeded,
                f"{one.seed.restore_name} says Succeeded={one.succeeded} ({one.reason}), and its "
                f"VM {'runs' if one.runs else 'does not run'}",
            )
            for load in one.loads:
                fits = matrix.can_load(one.seed.capture_cpu, on=load.node_cpu)
                _demand(
                    fits == (load.event is Event.VM_STARTED),
                    f"{load.pod} on {load.node}: {load.event}, against the matrix: {load.message}",
                )

    def check_gate_off(self) -> None:
        """Check what is told of today's placement. Raises StoryError."""
        _demand(bool(self.refused_first), "no restore was refused, with the gate off")
        _demand(
            bool(self.refusals_on_labelled),
            "no labelled node refused a restore, with the gate off",
        )
        for one in self.sandboxes:
            for load in one.loads:
                _demand(not load.excluded, f"{load.pod} excludes CPUs, with the gate off")

    def check_gate_on(self, matrix: Matrix) -> None:
        """Check what is told of the feature. Raises StoryError."""
        for load in self.refusals_on_labelled:
            raise StoryError(
                f"{load.node}, labelled {load.node_label}, refused {load.pod} with the gate on"
            )
        for one in self.sandboxes:
            capture, name = one.seed.capture_cpu, one.seed.restore_name
            expected = sorted(cpu for cpu in matrix.cpus if not matrix.can_load(capture, on=cpu))
            for load in one.from_storage:
                _demand(
                    load.excluded == expected,
                    f"{load.pod} excludes {load.excluded}, and CPUs that cannot load "
                    f"{capture} are {expected} ({one.placement})",
                )
                _demand(
                    load.node_label not in load.excluded,
                    f"{load.pod} ran on {load.node}, whose CPU it excludes",
                )
            if one.loads[0].node_label:
                _demand(
                    one.succeeded and len(one.loads) == 1,
                    f"{name} came first to the labelled node {one.loads[0].node} and did not "
                    f"succeed at once: {one.reason}: {one.message}",
                )


def gather(
    seeds: Iterable[SandboxSeed], *, record: Iterable[Entry], restores: Iterable[Mapping[str, Any]]
) -> Findings:
    """Return what the record and the API say of these sandboxes."""
    found = {seed.id: Sandbox(seed=seed) for seed in seeds}
    for entry in record:
        if entry.sandbox in found and entry.event in (Event.VM_STARTED, Event.LOAD_REFUSED):
            found[entry.sandbox].loads.append(entry)
    for restore in restores:
        one = found.get(restore["spec"]["sandboxId"])
        if one is not None:
            one.restore = restore
    return Findings(list(found.values()))


def is_finished(restore: Mapping[str, Any]) -> bool:
    """Tell whether a SandboxRestore has succeeded or failed."""
    return _succeeded(restore).get("status") in ("True", "False")


def _succeeded(restore: Mapping[str, Any]) -> Mapping[str, Any]:
    conditions = restore.get("status", {}).get("conditions", ())
    return next((one for one in conditions if one["type"] == "Succeeded"), {})


def _demand(holds: bool, otherwise: str) -> None:
    if not holds:
        raise StoryError(otherwise)
