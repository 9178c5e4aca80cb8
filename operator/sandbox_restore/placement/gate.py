"""Whether placement by CPU applies to a restore (domain.md section 5)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sandbox_restore.fleet.ring import stable_hash


class Gate(StrEnum):
    """What the gate says of one restore."""

    OFF = "Off"
    """Everything is as it would be without the feature."""
    OBSERVE = "Observe"
    """As off; the decision is computed beside it and only reported."""
    ON = "On"


@dataclass(frozen=True, slots=True, kw_only=True)
class GateSettings:
    """The settings behind the gate."""

    enabled: bool = False
    observe: bool = False
    namespaces: frozenset[str] = frozenset()
    """Staged rollout: the namespaces it applies to; empty = all."""
    percent: int = 100
    """Staged rollout: the share of sandboxes it applies to."""


def gate_for(settings: GateSettings, *, namespace: str, sandbox_id: str) -> Gate:
    """Section 5: on, observed only, or off. Evaluated when an attempt begins, then kept.

    A restore outside the staged rollout is treated as with the gate off, so observation applies
    to it too.
    """
    if settings.enabled and in_rollout(settings, namespace=namespace, sandbox_id=sandbox_id):
        return Gate.ON
    return Gate.OBSERVE if settings.observe else Gate.OFF


def in_rollout(settings: GateSettings, *, namespace: str, sandbox_id: str) -> bool:
    """Section 5, staged rollout: namespace listed, and hash(sandbox id) mod 100 < percent.

    The hash is of the id alone: raising the percentage only ever adds sandboxes.
    """
    if settings.namespaces and namespace not in settings.namespaces:
        return False
    return stable_hash(sandbox_id) % 100 < settings.percent
