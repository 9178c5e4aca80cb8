"""What becomes of a pinned sandbox's wake: stay, redirect, evacuate, give up or wait (sections 10,
11 and 14). PURE."""

from __future__ import annotations

from msgspec import UNSET

from sandbox_restore.model.restore import Restore
from sandbox_restore.model.sandbox import Execution, Outcome, SandboxView, Source
from sandbox_restore.restore.blocked import Reason
from sandbox_restore.restore.choose import newest_captured
from sandbox_restore.restore.failure import FailureClass
from sandbox_restore.restore.giveup import Evidence, give_up
from sandbox_restore.restore.liveness import Verdict
from sandbox_restore.restore.pinned import Loaders, pinned_node
from sandbox_restore.restore.redirect import (
    Condition,
    Facts,
    Name,
    Redirect,
    evaluate,
    full_snapshots,
    storage_copy,
)
from sandbox_restore.restore.world import World


def redirect_of(
    world: World,
    view: SandboxView,
    restore: Restore,
    *,
    active: Execution | None = None,
    alive: Verdict | None = None,
    by_cpu: bool = True,
) -> Redirect | None:
    """The seven conditions for this restore's local-only plan; None: the row is not pinned.

    `by_cpu` False: nothing about a CPU is read, and condition 1 is not met (an evacuation does not
    need it, and asks with the gate off as well).
    """
    row, config = view.sandbox, world.config
    if row.pinned_node is None:
        return None
    fulls = full_snapshots(view)
    named = None if restore.spec.snapshot_id is UNSET else restore.spec.snapshot_id
    copy = storage_copy(fulls, named, prefixes=config.storage_uri_prefixes)
    meant = copy or next((s for s in fulls if s.id == named), None) or newest_captured(fulls)
    loaders = world.loaders_for(restore, meant) if by_cpu else Loaders(warm=False)
    return evaluate(
        Facts(
            row=row,
            fulls=fulls,
            snapshot=copy,
            pinned=pinned_node(
                world.sightings.get(row.pinned_node),
                name=row.pinned_node,
                snapshot=meant,
                loaders=loaders,
                view=view,
                own=tuple(a for a in view.attempts if a.restore_uid == restore.uid),
                now=world.now,
                gone_grace=config.gone_grace,
                observation_ttl=config.observation_ttl,
                cpu_label=config.cpu_label,
            ),
            loaders=loaders,
            active=active,
            alive=alive,
        )
    )


def evacuation_blocker(found: Redirect) -> Condition | None:
    """Section 14: an evacuation of a pinned row needs conditions 2 to 7 and a storage copy."""
    if found.snapshot is None:
        return Condition(
            name=Name.COVERS_ACTIVITY,
            met=False,
            reason=Reason.NO_STORAGE_COPY,
            message="no ready full snapshot is in storage",
        )
    return next((c for c in found.conditions[1:] if not c.met), None)


def marker_to_give_up(world: World, view: SandboxView) -> Evidence | None:
    """Section 10, give-ups, for the row's pinned node as it was read."""
    return give_up(
        view,
        world.sightings.get(view.sandbox.pinned_node or ""),
        now=world.now,
        gone_grace=world.config.gone_grace,
        drain_marks=world.config.drain_marks,
    )


def ended_stranded(found: Redirect | None, refused: Execution) -> str:
    """Why a restore ends stranded; with the gate off (None) no condition was judged."""
    words = (
        found.words
        if found is not None
        else f"the sandbox is pinned to node {refused.target_node}, which cannot load it, and "
        "host-CPU placement is off for this restore"
    )
    return f"{words}; attempt {refused.attempt} there was refused"


def refused_here(view: SandboxView, restore: Restore) -> Execution | None:
    """Section 11: this restore's local-only attempt that its node refused; there is one try."""
    return next(
        (
            a
            for a in reversed(view.attempts)
            if a.restore_uid == restore.uid
            and a.source is Source.LOCAL
            and a.outcome is Outcome.FAILED
            and a.failure_class == FailureClass.CPU_INCOMPATIBLE.value
            and a.target_node == view.sandbox.pinned_node
        ),
        None,
    )
