"""What observe mode and a staged gate change or leave out (domain.md section 5). PURE."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from msgspec import UNSET

from sandbox_restore.model.restore import Restore
from sandbox_restore.report.words import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """Counts over the SandboxRestores that are there, finished ones included."""

    restores: int
    """Those with a placement decision."""
    gate_on: int
    """Decided with the gate on."""
    gate_off: int
    """Outside it: the gate is off, or they are left out by namespace or percentage."""
    would_change: int
    """Observed, and the gate would have constrained the pod."""
    would_hold: int
    """Observed, and the gate would have held it."""
    would_redirect: int
    """Observed, and the gate would have redirected it to storage."""

    @property
    def words(self) -> str:
        many = counted(self.restores, "restore")
        text = f"{many}: {self.gate_on} with the gate on, {self.gate_off} without"
        if self.would_change or self.would_hold or self.would_redirect:
            text += (
                f"; observed: it would have constrained {self.would_change}, held "
                f"{self.would_hold}, redirected {self.would_redirect}"
            )
        return text


def rollout_of(restores: Iterable[Restore]) -> Rollout:
    """Count what the statuses say."""
    on = off = change = hold = redirect = 0
    for restore in restores:
        status = restore.status
        if status.placement is not UNSET:
            on += status.placement.gate
            off += not status.placement.gate
        if status.observed is not UNSET:
            change += status.observed.decision == "Constrained"
            hold += status.observed.decision == "Held"
        if status.redirect is not UNSET:
            redirect += status.redirect.decision == "WouldRedirect"
    return Rollout(
        restores=on + off,
        gate_on=on,
        gate_off=off,
        would_change=change,
        would_hold=hold,
        would_redirect=redirect,
    )
