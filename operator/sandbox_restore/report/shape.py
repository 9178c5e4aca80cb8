"""The answers as documents for programs: plain values with stable keys. PURE."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from sandbox_restore.report.drain import DrainCheck
from sandbox_restore.report.matrix import Matrix
from sandbox_restore.report.rollout import Rollout
from sandbox_restore.report.why import Answer


def of_answer(answer: Answer) -> dict[str, Any]:
    """`why`, with the parts of the status that it tells."""
    status = answer.restore.status
    parts = {"plan": status.plan, "placement": status.placement, "redirect": status.redirect}
    return {
        "namespace": answer.restore.namespace,
        "name": answer.restore.name,
        "sandbox": answer.restore.spec.sandbox_id,
        "state": answer.state.value,
        "reason": answer.reason,
        "message": answer.message,
        "asked": list(answer.asked),
        "decided": list(answer.decided),
        "evidence": list(answer.evidence),
        "now": list(answer.now),
        "helps": list(answer.helps),
        "commands": list(answer.commands),
        "unread": list(answer.unread),
        **{
            name: None if part is UNSET else msgspec.to_builtins(part)
            for name, part in parts.items()
        },
        "attempts": msgspec.to_builtins(status.attempts),
    }


def of_matrix(matrix: Matrix, rollout: Rollout | None) -> dict[str, Any]:
    """`fleet`."""
    return {
        "cpus": [
            {
                "cpu": row.cpu or None,
                "nodes": row.nodes.total,
                "states": row.nodes.counts,
                "loads": list(row.loads),
                "guards": row.guards if matrix.database else None,
                "alone": row.alone if matrix.database else None,
                "unusableLabels": list(row.labels),
            }
            for row in matrix.cpus
        ],
        "captures": [
            {
                "captureCpu": row.capture_cpu or None,
                "ancestors": list(row.ancestors),
                "snapshots": row.snapshots,
                "sandboxes": row.sandboxes,
                "knownLoaders": list(row.known_loaders),
                "loaders": list(row.loaders),
                "nodes": row.nodes.counts,
                "danger": None if row.danger is None else row.danger.value,
            }
            for row in matrix.lineages
        ],
        "rollout": None
        if rollout is None
        else {
            "restores": rollout.restores,
            "gateOn": rollout.gate_on,
            "gateOff": rollout.gate_off,
            "wouldChange": rollout.would_change,
            "wouldHold": rollout.would_hold,
            "wouldRedirect": rollout.would_redirect,
        },
        "warnings": list(matrix.warnings),
    }


def of_drain(check: DrainCheck, examples: dict[int, list[tuple[str, str]]]) -> dict[str, Any]:
    """`fleet drain-check`; `examples`: namespace and id of sandboxes, by place in `kinds`."""
    return {
        "nodes": list(check.nodes),
        "safe": check.restorable and not check.running,
        "restorable": check.restorable,
        "lost": check.lost,
        "running": check.running,
        "already": check.already,
        "unknown": check.unknown,
        "states": [
            {
                "namespace": one.row.namespace,
                "sandbox": one.row.sandbox_id,
                "node": one.row.pinned_node,
                "why": one.why.value,
                "message": one.message,
            }
            for one in check.states
        ],
        "snapshots": [
            {
                "captureCpu": one.kind.capture_cpu,
                "needed": list(one.needed),
                "nodeGroup": one.kind.node_group,
                "nodeSelector": dict(one.kind.node_selector),
                "sandboxes": one.kind.sandboxes,
                "examples": [f"{namespace}/{name}" for namespace, name in examples.get(i, ())],
                "message": one.message,
            }
            for i, one in enumerate(check.kinds)
        ],
    }
