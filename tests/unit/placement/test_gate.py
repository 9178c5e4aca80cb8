"""Section 5: the gate, observation and the staged rollout."""

from __future__ import annotations

import pytest

from sandbox_restore.placement.gate import Gate, GateSettings, gate_for, in_rollout


def gate(*, namespace: str = "team-a", sandbox_id: str = "sb-1", **parts: object) -> Gate:
    return gate_for(GateSettings(**parts), namespace=namespace, sandbox_id=sandbox_id)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("enabled", "observe", "expected"),
    [
        (False, False, Gate.OFF),
        (False, True, Gate.OBSERVE),
        (True, False, Gate.ON),
        (True, True, Gate.ON),
    ],
)
def test_enabled_and_observe(enabled: bool, observe: bool, expected: Gate) -> None:
    assert gate(enabled=enabled, observe=observe) is expected


def test_the_default_is_off() -> None:
    assert gate() is Gate.OFF


def test_outside_the_rollout_everything_is_as_with_the_gate_off() -> None:
    listed = frozenset({"team-b"})
    assert gate(enabled=True, namespaces=listed) is Gate.OFF
    assert gate(enabled=True, namespaces=listed, observe=True) is Gate.OBSERVE
    assert gate(enabled=True, namespaces=listed, namespace="team-b") is Gate.ON
    assert gate(enabled=True, percent=0) is Gate.OFF
    assert gate(enabled=True, percent=100) is Gate.ON


def test_the_rollout_narrows_a_gate_and_never_opens_one() -> None:
    assert gate(enabled=False, percent=100, namespaces=frozenset({"team-a"})) is Gate.OFF


def chosen(percent: int) -> set[str]:
    settings = GateSettings(enabled=True, percent=percent)
    ids = (f"sandbox-{i}" for i in range(5000))
    return {i for i in ids if in_rollout(settings, namespace="n", sandbox_id=i)}


def test_a_percentage_takes_about_that_share_and_raising_it_only_adds() -> None:
    ten, half = chosen(10), chosen(50)
    assert 400 < len(ten) < 600
    assert 2300 < len(half) < 2700
    assert ten < half
    assert len(chosen(1)) < 100


def test_the_choice_is_the_same_in_every_process() -> None:
    assert sorted(chosen(1))[:3] == ["sandbox-1020", "sandbox-1045", "sandbox-1579"]
