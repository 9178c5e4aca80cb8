"""Which CPU loads which snapshot, and what Firecracker says when one does not: measured facts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

MATRIX_FILE = Path(__file__).parents[2] / "fixtures" / "load-matrix.yaml"
"""The matrix that tests and demo use; its head says where the facts come from."""

UNLISTED_REFUSAL = "Failed to set all KVM MSRs for this vCPU. Only a partial write was done."
"""What a pair is refused with that nobody measured."""

_VCPU_CONTEXT = "Failed to restore vCPUs: Failed to run action on vcpu: "
_BUILD_CONTEXT = (
    "Load snapshot error: Failed to restore from snapshot: Failed to build microVM from snapshot: "
)


@dataclass(frozen=True, slots=True)
class Matrix:
    """Who loads whose snapshots, by host-CPU label; one-way, and never chained."""

    hosts: Mapping[str, str]
    """Label of each CPU -> the host that was measured."""
    loads: Mapping[str, frozenset[str]]
    """Capture CPU -> the CPUs that load it."""
    refusals: Mapping[tuple[str, str], str]
    """(capture CPU, CPU it was loaded on) -> the innermost error text."""

    @property
    def cpus(self) -> tuple[str, ...]:
        """The CPUs in the order of the file."""
        return tuple(self.hosts)

    def can_load(self, capture_cpu: str, *, on: str, ancestors: Iterable[str] = ()) -> bool:
        """Tell whether a host with CPU `on` loads a snapshot captured on `capture_cpu`.

        A snapshot whose guest ran on other CPUs before (`ancestors`) must suit each of them.
        """
        return self.refusal(capture_cpu, on=on, ancestors=ancestors) is None

    def refusal(self, capture_cpu: str, *, on: str, ancestors: Iterable[str] = ()) -> str | None:
        """Return Firecracker's whole answer to a load that fails, None for one that succeeds."""
        for cpu in (capture_cpu, *ancestors):
            if on != cpu and on not in self.loads.get(cpu, frozenset()):
                return _whole_answer(self.refusals.get((cpu, on), UNLISTED_REFUSAL))
        return None

    def compatibility(self) -> str:
        """Return the pairs as the operator's compatibility list: `capture=>loader,...`."""
        return ",".join(
            f"{capture}=>{loader}"
            for capture in self.cpus
            for loader in self.cpus
            if loader != capture and loader in self.loads[capture]
        )


def _whole_answer(innermost: str) -> str:
    """Return an error text inside the wording that Firecracker puts around it."""
    context = "" if innermost.startswith("Could not set TSC") else _VCPU_CONTEXT
    return f"{_BUILD_CONTEXT}{context}{innermost}"


def load_matrix(path: Path = MATRIX_FILE) -> Matrix:
    """Read a matrix file.

    Raises ValueError when a pair is neither in `loads` nor in `refuses`, or is in both.
    """
    document: dict[str, Any] = yaml.safe_load(path.read_text())
    label = {cpu["host"]: cpu["label"] for cpu in document["cpus"]}
    loads = {
        label[capture]: frozenset(label[host] for host in hosts)
        for capture, hosts in document["loads"].items()
    }
    refusals = {
        (label[entry["capture"]], label[entry["loaded_on"]]): entry["error"]
        for entry in document["refuses"]
    }
    for capture in label.values():
        for on in label.values():
            if (on in loads[capture]) == ((capture, on) in refusals):
                raise ValueError(f"{path.name}: {capture} on {on} must either load or be refused")
    return Matrix({name: host for host, name in label.items()}, loads, refusals)
