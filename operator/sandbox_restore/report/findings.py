"""What `doctor` finds, judged from what was read. PURE."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from sandbox_restore.fleet import cpu as cpus
from sandbox_restore.fleet.compatibility import Compatibility
from sandbox_restore.model.node import NodeFacts
from sandbox_restore.model.restore import Restore
from sandbox_restore.report.matrix import Matrix
from sandbox_restore.report.words import ago, counted, listed, span

SEEN_WITHIN = timedelta(seconds=30)
"""An operator that serves a restore has looked at it by then."""


class Level(StrEnum):
    OK = "ok"
    NOTE = "note"
    """Worth knowing; nothing has to be done."""
    WARNING = "warning"
    """Works, and not as it should."""
    PROBLEM = "problem"
    """Does not work."""
    SKIPPED = "skipped"
    """Could not be looked at, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the answer."""

    level: Level
    about: str
    """What was looked at, in one or two words."""
    message: str
    fix: str = ""
    """What to do; empty where nothing has to be done."""


def of_lease(lease: Mapping[str, Any] | None, *, where: str, now: datetime) -> Finding:
    """Whether some operator leads; `lease` is the object, None where there is none."""
    if lease is None:
        return Finding(
            level=Level.PROBLEM,
            about="operator",
            message=f"there is no Lease {where}: no operator has ever led here",
            fix="start one (sandbox-restore run), or correct SPACE_SANDBOX_RESTORE_LEASE_NAMESPACE "
            "and …_LEASE_NAME to the operator's",
        )
    spec = lease.get("spec") or {}
    holder = spec.get("holderIdentity")
    renewed = _time(spec.get("renewTime"))
    if not holder or renewed is None:
        return Finding(
            level=Level.PROBLEM,
            about="operator",
            message=f"nobody holds Lease {where}: no operator leads",
            fix="start one, or look why those that run do not get ready (their /readyz says it)",
        )
    if now - renewed > 2 * timedelta(seconds=int(spec.get("leaseDurationSeconds") or 15)):
        return Finding(
            level=Level.PROBLEM,
            about="operator",
            message=f"{holder} holds Lease {where} and renewed it last {ago(renewed, now)}: it is "
            "gone, and no other has taken over",
            fix="start an operator; look at the log of the one that went",
        )
    return Finding(
        level=Level.OK, about="operator", message=f"{holder} leads, renewed {ago(renewed, now)}"
    )


def of_labels(nodes: Sequence[NodeFacts], *, cpu_label: str) -> Iterator[Finding]:
    """Whether nodes say which CPU they have."""
    if not nodes:
        yield Finding(level=Level.PROBLEM, about="nodes", message="the cluster has no nodes")
        return
    usable = [n for n in nodes if cpus.usable(n.labels.get(cpu_label)) is not None]
    without = sorted(n.name for n in nodes if cpu_label not in n.labels)
    wrong = {
        n.name: n.labels[cpu_label]
        for n in nodes
        if cpu_label in n.labels and cpus.usable(n.labels[cpu_label]) is None
    }
    published = {n.labels[cpu_label] for n in usable}
    level = Level.OK if usable else Level.PROBLEM
    yield Finding(
        level=level,
        about="nodes",
        message=f"{len(usable)} of {counted(len(nodes), 'node')} publish "
        f"{counted(len(published), 'CPU')} in label {cpu_label}",
        fix=""
        if usable
        else "run the node agent (docs/node-agent.md): without labels no restore is constrained",
    )
    if without and usable:
        yield Finding(
            level=Level.WARNING,
            about="nodes",
            message=f"{counted(len(without), 'node')} without the label: {listed(without)}; any "
            "restore may land there",
            fix="run the node agent on them, or label them by hand",
        )
    for name, value in sorted(wrong.items())[:5]:
        yield Finding(
            level=Level.WARNING,
            about="nodes",
            message=f"node {name}: label value {value!r} names no CPU "
            f"({cpus.why_unusable(value)}); it reads as unlabelled",
            fix="correct it, or let the node agent write it",
        )
    slots = sorted(n.name for n in nodes if n.network_slots and cpu_label not in n.labels)
    if slots:
        yield Finding(
            level=Level.WARNING,
            about="slots",
            message=f"{listed(slots)} offer network slots and have no label: they take restores "
            "that they may not be able to load",
            fix="let the node agent advertise the slots: it writes the label first",
        )


def of_compatibility(compatibility: Compatibility, published: set[str]) -> Iterator[Finding]:
    """Pairs whose CPUs no node has: spelled wrongly, or of nodes that come later."""
    named = {
        *compatibility.pairs,
        *(cpu for cpus_ in compatibility.pairs.values() for cpu in cpus_),
    }
    if not named:
        return
    absent = sorted(named - published)
    yield Finding(
        level=Level.NOTE if absent else Level.OK,
        about="pairs",
        message=f"the compatibility list names {counted(len(named), 'CPU')}"
        + (
            f"; no node publishes {listed(absent, limit=5)}"
            if absent
            else ", all of them published"
        ),
        fix="check the spelling" if absent else "",
    )


def of_matrix(matrix: Matrix) -> Iterator[Finding]:
    """Whether what is stored can be loaded."""
    if not matrix.database:
        return
    told = False
    for row in matrix.lineages:
        if row.unloadable:
            told = True
            yield Finding(level=Level.PROBLEM, about="snapshots", message=row.warning)
        elif row.danger is not None:
            told = True
            yield Finding(level=Level.WARNING, about="snapshots", message=row.warning)
    if not told:
        total = sum(row.snapshots or 0 for row in matrix.lineages)
        yield Finding(
            level=Level.OK,
            about="snapshots",
            message=f"{counted(total, 'stored snapshot')}, each with more than one usable node",
        )


def of_restores(
    restores: Sequence[Restore], *, namespaces: Sequence[str], now: datetime
) -> Iterator[Finding]:
    """Whether somebody looks at the restores, and what stands out among them."""
    served = [r for r in restores if not namespaces or r.namespace in namespaces]
    unseen = sorted(
        (
            r
            for r in served
            if not r.status.conditions and not r.deleting and now - r.created > SEEN_WITHIN
        ),
        key=lambda r: r.created,
    )
    if unseen:
        names = [f"{r.namespace}/{r.name}" for r in unseen]
        yield Finding(
            level=Level.PROBLEM,
            about="restores",
            message=f"nobody has looked at {listed(names)} for {span(now - unseen[0].created)}",
            fix="is the operator up, ready and serving that namespace?",
        )
    stranded = [
        r for r in served if (c := r.condition("Stranded")) is not None and c.status == "True"
    ]
    if stranded:
        names = [f"{r.namespace}/{r.name}" for r in stranded]
        yield Finding(
            level=Level.WARNING,
            about="restores",
            message=f"{counted(len(stranded), 'restore')} stranded: {listed(names)}",
            fix="sandbox-restore why NAME tells what blocks each",
        )
    if not unseen and not stranded:
        waiting = sum(not r.finished for r in served)
        yield Finding(
            level=Level.OK,
            about="restores",
            message=f"{counted(len(served), 'restore')}, {waiting} unfinished, none stranded",
        )


def _time(text: object) -> datetime | None:
    if not isinstance(text, str):
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None
