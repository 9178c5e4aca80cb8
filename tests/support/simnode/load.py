"""What the restore runner does with its plan: loads the snapshot, or says why not. No I/O."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tests.support.simnode.captures import Capture
from tests.support.simnode.matrix import Matrix
from tests.support.simnode.plan import BadPlanError, Plan, read_plan

RunnerStyle = Literal["coded", "plain"]
"""How failures are told: `coded` as JSON of code and message, `plain` as Firecracker's text."""

MISSING_FILES = (
    "Load snapshot error: Failed to restore from snapshot: Failed to get snapshot state from file: "
    "Failed to open snapshot file: No such file or directory (os error 2)"
)
"""Firecracker's answer where the node does not have the snapshot's files."""

_LONGEST_MESSAGE = 4096
"""Characters of a termination message that a kubelet keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The snapshot was loaded."""

    plan: Plan
    capture: Capture


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The snapshot was not loaded."""

    code: str
    text: str
    plan: Plan | None = None
    capture: Capture | None = None
    """None when it did not come to a load."""

    def termination_message(self, style: RunnerStyle) -> str:
        """Return what the runner leaves as its last words."""
        if style == "plain" or not self.code:
            return self.text[:_LONGEST_MESSAGE]
        return json.dumps({"code": self.code, "message": self.text})[:_LONGEST_MESSAGE]


def load(
    pod: Mapping[str, Any],
    *,
    matrix: Matrix,
    node_cpu: str,
    stored: Callable[[str], Capture | None],
    local: Callable[[str], Capture | None],
    failure: str | None = None,
) -> Loaded | Refused:
    """Return what comes of a pod's plan on a node whose CPU really is `node_cpu`.

    `stored` finds a snapshot in storage, `local` among the files that the node holds. `failure` is
    a termination message that a test wants, word for word.
    """
    try:
        plan = read_plan(pod)
    except BadPlanError as error:
        return Refused(code="usage", text=str(error))
    found = (local if plan.source == "local" else stored)(plan.snapshot_id)
    if failure is not None:
        return Refused(code="", text=failure, plan=plan, capture=found)
    if found is None:
        text = MISSING_FILES
        if plan.source == "storage":
            text = f"storage has no snapshot {plan.snapshot_id} at {plan.storage_uri}"
        return Refused(code="missing", text=text, plan=plan)
    refusal = matrix.refusal(found.cpu, on=node_cpu, ancestors=found.ancestors)
    if refusal is not None:
        return Refused(code="cpu-incompatible", text=refusal, plan=plan, capture=found)
    return Loaded(plan=plan, capture=found)
