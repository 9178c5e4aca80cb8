"""Section 5: golden pods written by hand, and the proof that the gate is one."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

import pytest

from sandbox_restore.fleet import compatibility, cpu, evidence
from sandbox_restore.fleet.compatibility import Compatibility
from sandbox_restore.fleet.index import FleetIndex
from sandbox_restore.fleet.record import NodeRecord
from sandbox_restore.model.sandbox import Source
from sandbox_restore.placement import decision, shortlist, term
from sandbox_restore.placement.gate import Gate
from sandbox_restore.placement.pod import (
    RunnerPlan,
    apply_decision,
    canonical_bytes,
    demand_of,
    local_only_pod,
)
from tests.unit.fleet.nodes import AMD, INTEL_A, INTEL_B, fleet, node
from tests.unit.placement.asks import (
    IDENTITY,
    decided,
    golden,
    rendered,
    request,
    sandbox,
    spec,
    template,
)

SELECTED = {"labels": {"kubernetes.io/arch": "amd64"}}


def mixed() -> FleetIndex:
    return fleet(
        node("source", INTEL_A, **SELECTED),
        node("amd-1", AMD, **SELECTED),
        node("plain-1", **SELECTED),
        node("other-arch", INTEL_B),
        node("no-services", INTEL_A, services=False, **SELECTED),
        node("cordoned", INTEL_A, unschedulable=True, **SELECTED),
    )


def ask(gate: Gate, *, hard_pin: bool) -> Any:
    demand = demand_of(template(), sandbox=sandbox(), spec=spec())
    asked = request(gate=gate, hard_pin=hard_pin)
    return type(asked)(
        **{name: getattr(asked, name) for name in asked.__slots__} | {"demand": demand}
    )


def plain_pod(gate: Gate) -> bytes:
    return canonical_bytes(apply_decision(rendered(), decided(ask(gate, hard_pin=False), mixed())))


def group_pod(gate: Gate) -> bytes:
    row = sandbox(node_group="gold", node_selector={"tenant": "acme"})
    asked = spec(cohort="blue", selector={"zone": "a"})
    pod = rendered(template("template_affinity.yaml"), row=row, asked=asked)
    found = decided(request(gate=gate, group="gold", cohort="blue"), mixed())
    return canonical_bytes(apply_decision(pod, found))


def local_pod(_gate: Gate) -> bytes:
    return canonical_bytes(
        local_only_pod(
            template(),
            identity=IDENTITY,
            plan=RunnerPlan(
                snapshot_id="snap-1", source=Source.LOCAL, storage_uri="s3://snapshots/snap-1"
            ),
            sandbox=sandbox(),
            spec=spec(),
            node="node-7",
        )
    )


def pinned_pod(gate: Gate) -> bytes:
    return canonical_bytes(apply_decision(rendered(), decided(ask(gate, hard_pin=True), mixed())))


GATE_OFF = {
    "gate_off_plain.yaml": plain_pod,
    "gate_off_group_affinity.yaml": group_pod,
    "local_only.yaml": local_pod,
    "gate_off_shortlist.yaml": pinned_pod,
}


@pytest.mark.parametrize("name", GATE_OFF)
@pytest.mark.parametrize("gate", [Gate.OFF, Gate.OBSERVE])
def test_with_the_gate_off_the_pod_is_byte_for_byte_the_golden_one(name: str, gate: Gate) -> None:
    assert GATE_OFF[name](gate) == canonical_bytes(golden(name))


def test_a_local_only_pod_is_the_same_with_the_gate_on() -> None:
    assert local_pod(Gate.ON) == canonical_bytes(golden("local_only.yaml"))


def test_sandbox_pod_restore_host_cpu_shortlist() -> None:
    expected = canonical_bytes(golden("sandbox_pod_restore_host_cpu_shortlist.yaml"))
    assert pinned_pod(Gate.ON) == expected


def test_sandbox_pod_restore_host_cpu_storage_only() -> None:
    expected = canonical_bytes(golden("sandbox_pod_restore_host_cpu_storage_only.yaml"))
    assert plain_pod(Gate.ON) == expected


# --- no CPU function is called with the gate off

CPU_MODULES: tuple[ModuleType, ...] = (cpu, evidence, compatibility)
CPU_PARTS: dict[Any, tuple[str, ...]] = {
    Compatibility: ("can_load", "loaders", "known_loaders", "split", "parse"),
    FleetIndex: ("published", "with_cpu", "unusable_labels", "counts"),
    decision: ("_by_cpu", "loader_nodes", "verdict", "capture_evidence"),
    term: ("placement_term", "read_back"),
    shortlist: ("_allowed", "_with_compatible"),
}


def raise_everywhere(monkeypatch: pytest.MonkeyPatch) -> int:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("a CPU function was called with the gate off")

    patched = 0
    for module in CPU_MODULES:
        for name, part in inspect.getmembers(module, callable):
            if not inspect.isclass(part) and part.__module__ == module.__name__:
                monkeypatch.setattr(module, name, fail)
                patched += 1
    for owner, names in CPU_PARTS.items():
        for name in names:
            monkeypatch.setattr(owner, name, fail)
            patched += 1
    monkeypatch.setattr(NodeRecord, "cpu", property(fail))
    monkeypatch.setattr(term, "CpuTerm", fail)
    return patched


@pytest.mark.parametrize("name", GATE_OFF)
def test_with_the_gate_off_no_cpu_function_is_called(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even the index is filled while they raise: reading labels into it asks nothing of a CPU."""
    compatible = Compatibility()
    assert raise_everywhere(monkeypatch) > 20
    monkeypatch.setattr(Compatibility, "parse", lambda _text: (compatible, []))
    assert GATE_OFF[name](Gate.OFF) == canonical_bytes(golden(name))


def test_those_functions_are_called_with_the_gate_on(monkeypatch: pytest.MonkeyPatch) -> None:
    compatible = Compatibility()
    raise_everywhere(monkeypatch)
    monkeypatch.setattr(Compatibility, "parse", lambda _text: (compatible, []))
    with pytest.raises(AssertionError, match="gate off"):
        plain_pod(Gate.ON)
