"""For what nobody can prove (domain.md section 15): what is known, and what a person decides. PURE.

An execution is retired only when its pod is proven over. Where the proof was destroyed (a finalizer
stripped by hand, a node nobody can reach or name), a person who knows can say so.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from sandbox_restore.model.pod import PodFacts
from sandbox_restore.model.sandbox import (
    Execution,
    Outcome,
    Sandbox,
    SandboxState,
    SandboxView,
    Source,
)
from sandbox_restore.restore.liveness import (
    BoundPod,
    NodeSighting,
    Verdict,
    could_host,
    node_decides,
)
from sandbox_restore.restore.outcome import MESSAGE_LIMIT, retire_lost
from sandbox_restore.restore.world import Retire

WHY = "retired by hand: a person said that its pod is over, which nothing proves"


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What can be read of a sandbox's active execution."""

    sandbox: Sandbox
    execution: Execution
    pod: PodFacts | None
    sighting: NodeSighting | None
    verdict: Verdict

    @property
    def needless(self) -> str:
        """Why no word is taken: it is proven, or a person can end it by other means. Empty: one
        is."""
        node = self.sighting.node if self.sighting is not None else None
        if not self.verdict.may_be_alive:
            return "it is proven over: the operator retires it by itself"
        if self.pod is not None and not self.pod.bound:
            return (
                f"pod {self.pod.name} is not bound and may be any moment: delete it, and its "
                "execution is retired"
            )
        if self.pod is None or self.pod.terminal or node is None or not node.ready:
            return ""
        return (
            f"pod {self.pod.name} runs on node {node.name}, which is Ready: delete the pod, and "
            "its execution is retired once its kubelet has ended it"
        )

    @property
    def pod_name(self) -> str:
        """What has to be typed."""
        return self.execution.pod_name or ""

    def lines(self) -> list[str]:
        """What is known, for the person who decides."""
        one = self.execution
        by = (
            f"restore {one.restore_name}, attempt {one.attempt}" if one.restore_name else "platform"
        )
        loaded = "not loaded, as far as is known"
        if one.loaded_at is not None:
            loaded = f"loaded at {one.loaded_at:%Y-%m-%d %H:%M:%S} UTC"
        return [
            f"sandbox    {self.sandbox.id} in {self.sandbox.namespace}: {self.sandbox.state}, "
            f"pinned to {self.sandbox.pinned_node or 'no node'}"
            f"{', with local artifact marker' if self.sandbox.local_artifact_marker else ''}",
            f"execution  {one.id} ({by}), from {one.source}, begun "
            f"{one.created_at:%Y-%m-%d %H:%M:%S} UTC, {loaded}",
            f"pod        {self._pod_words()}",
            f"node       {self._node_words()}",
            f"judgement  {'may be alive' if self.verdict.may_be_alive else 'proven over'}: "
            f"{self.verdict.why}",
        ]

    def _pod_words(self) -> str:
        pod = self.pod
        if pod is None:
            return f"{self.pod_name}: there is no such object"
        end = pod.runner_end
        ended = f", runner ended with {end.exit_code} ({end.reason})" if end is not None else ""
        where = f"bound to {pod.node_name}" if pod.node_name else "unbound"
        return f"{pod.name}: {pod.phase}, {where}{', being deleted' if pod.deleting else ''}{ended}"

    def _node_words(self) -> str:
        sighting = self.sighting
        if sighting is None:
            return "not known"
        node = sighting.node
        if node is None:
            return f"{sighting.name}: there is no such object"
        same = self.execution.node_uid in (None, node.uid)
        return (
            f"{node.name}: {'Ready' if node.ready else 'not Ready'}"
            f"{'' if same else ', another Node of that name'}"
        )


def node_name_of(view: SandboxView, pod: PodFacts | None) -> str | None:
    """The node that decides, as far as it is known."""
    if pod is not None and pod.node_name is not None:
        return pod.node_name
    active = view.active
    return None if active is None else active.node_name or active.target_node


def known(
    view: SandboxView,
    pod: PodFacts | None,
    sighting: NodeSighting | None,
    *,
    now: datetime,
    gone_grace: timedelta,
    pod_grace_seconds: int,
) -> Known | None:
    """What is known of the active execution; None where there is none."""
    active = view.active
    if active is None:
        return None
    return Known(
        sandbox=view.sandbox,
        execution=active,
        pod=pod,
        sighting=sighting,
        verdict=_verdict(
            active,
            pod,
            sighting,
            now=now,
            gone_grace=gone_grace,
            pod_grace_seconds=pod_grace_seconds,
        ),
    )


def _verdict(
    active: Execution,
    pod: PodFacts | None,
    sighting: NodeSighting | None,
    *,
    now: datetime,
    gone_grace: timedelta,
    pod_grace_seconds: int,
) -> Verdict:
    if pod is not None:
        return could_host(pod, sighting, now=now, gone_grace=gone_grace, node_uid=active.node_uid)
    if active.loaded_at is None and active.source is not Source.PLATFORM:
        return Verdict(
            may_be_alive=True,
            why="there is no pod object: either none was made yet, and the operator will make it, "
            "or somebody removed it with its finalizer",
        )
    return node_decides(
        BoundPod(
            name=active.pod_name or "",
            node_name=active.node_name or "",
            node_uid=active.node_uid,
            scheduled_at=active.loaded_at,
            grace_seconds=pod_grace_seconds,
            ended_at=now,
        ),
        sighting,
        now=now,
        gone_grace=gone_grace,
    )


def forced_retirement(found: Known) -> Retire:
    """The retirement that a person decided on, as if the pod had ended without a word.

    What may have run is not forgotten: the row is pinned to where it ran, so that the next wake
    tries there first and section 10 guards what has been recorded since. A report of its suspend
    that comes later still counts (outcome `lost`), provided that the pod's UID is known: that of an
    execution that never loaded, and whose pod object is gone, is not.
    """
    one, row, pod = found.execution, found.sandbox, found.pod
    pod_uid = one.pod_uid or (None if pod is None else pod.uid)
    node = one.node_name or (None if pod is None else pod.node_name)
    if one.loaded_at is not None or one.source is Source.PLATFORM:
        return retire_lost(one, row, pod_uid=pod_uid, node=node, why=WHY)
    pin = row.pinned_node if one.source is Source.LOCAL else node or one.prior_pin
    return Retire(
        execution=one,
        outcome=Outcome.LOST,
        row_state=SandboxState.FAILED,
        pinned_node=pin,
        marker=row.local_artifact_marker and pin is not None,
        failure_message=WHY[:MESSAGE_LIMIT],
        pod_uid=pod_uid,
        node_name=node,
        why=WHY,
    )
