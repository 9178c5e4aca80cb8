"""Why a redirect is blocked, one word each, and what a person can do about it. PURE.

docs/stranded-restores.md has a section for each reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class Reason(StrEnum):
    """Why one of the seven conditions is not met; users grep for these words."""

    PINNED_NODE_CAN_LOAD = "PinnedNodeCanLoad"
    PINNED_NODE_CPU_UNKNOWN = "PinnedNodeCpuUnknown"
    CAPTURE_CPU_UNKNOWN = "CaptureCpuUnknown"
    PINNED_NODE_ABSENT = "PinnedNodeAbsent"
    COLD_CACHE = "ColdCache"
    NO_STORAGE_COPY = "NoStorageCopy"
    NO_REACHABLE_LOADER = "NoReachableLoader"
    PLAN_FROM_POD = "PlanFromPod"
    PREVIOUS_POD_MAY_BE_ALIVE = "PreviousPodMayBeAlive"
    LOCAL_ARTIFACT_MARKER = "LocalArtifactMarker"
    SNAPSHOT_BEHIND_ACTIVITY = "SnapshotBehindActivity"
    NEWER_SNAPSHOT_UPLOADING = "NewerSnapshotUploading"
    NEWER_SNAPSHOT_FAILED = "NewerSnapshotFailed"
    CAPTURED_SINCE_RESTORE_BEGAN = "CapturedSinceRestoreBegan"


ADVICE: Final[Mapping[Reason, str]] = {
    Reason.PINNED_NODE_CAN_LOAD: "nothing: the node's label says that it can load the snapshot",
    Reason.PINNED_NODE_CPU_UNKNOWN: "label the node with its host CPU",
    Reason.CAPTURE_CPU_UNKNOWN: "report the snapshot's host_cpu (snapshot_ready may be called "
    "again), or label the node that uploaded it",
    Reason.PINNED_NODE_ABSENT: "wait for the node or for that time",
    Reason.COLD_CACHE: "wait: the operator has not read all nodes yet",
    Reason.NO_STORAGE_COPY: "upload a full snapshot from that node",
    Reason.NO_REACHABLE_LOADER: "make a node with such a CPU reachable (join, uncordon, untaint)",
    Reason.PLAN_FROM_POD: "wait: it goes on once that attempt is over",
    Reason.PREVIOUS_POD_MAY_BE_ALIVE: "wait for proof that the pod is over; for a machine that is "
    "dead for good, taint its Node node.kubernetes.io/out-of-service or delete it",
    Reason.LOCAL_ARTIFACT_MARKER: "upload what the node holds (a full snapshot of the last "
    "suspend clears the marker); if it may be lost, have the platform report node_state_lost",
    Reason.SNAPSHOT_BEHIND_ACTIVITY: "upload a newer full snapshot from the node; to go back to "
    "the older state, report node_state_lost and name the snapshot in spec.snapshotId",
    Reason.NEWER_SNAPSHOT_UPLOADING: "wake the sandbox again when the upload is ready",
    Reason.NEWER_SNAPSHOT_FAILED: "upload it again; to go back to the older state, report "
    "node_state_lost and name the older snapshot in spec.snapshotId",
    Reason.CAPTURED_SINCE_RESTORE_BEGAN: "find what ran this sandbox beside its restore and end "
    "it, let this restore end, then wake the sandbox again",
}
"""What a person can do, for each reason."""
