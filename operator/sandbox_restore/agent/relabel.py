"""Which running sandbox pods a change of the host-CPU label would end (section 13).

A kubelet checks the required affinity of its pods again when it restarts and ends those that no
longer match.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from sandbox_restore.model.names import NETWORK_SLOTS, SANDBOX_LABEL
from sandbox_restore.placement.match import PodRequirements, affinity_matches, selector_matches

_ENDED: Final = ("Succeeded", "Failed")


def pods_ended_by(
    pods: Iterable[Mapping[str, Any]],
    *,
    node_name: str,
    labels: Mapping[str, str],
    key: str,
    value: str | None,
) -> tuple[str, ...]:
    """The sandbox pods, `NAMESPACE/NAME` sorted, that match the node now and would not after.

    `labels` are the node's now; `value` None takes the label `key` off. A pod that does not match
    now is not made worse by the change. Pods as JSON gives them.
    """
    after = {name: text for name, text in labels.items() if name != key}
    if value is not None:
        after[key] = value
    ended = []
    for pod in pods:
        if not _is_running_sandbox(pod):
            continue
        asks = PodRequirements.of(pod)
        if _fits(asks, node_name, labels) and not _fits(asks, node_name, after):
            metadata = pod["metadata"]
            ended.append(f"{metadata.get('namespace', '')}/{metadata.get('name', '')}")
    return tuple(sorted(ended))


def _fits(asks: PodRequirements, node_name: str, labels: Mapping[str, str]) -> bool:
    """What the kubelet checks again: the selector and the required affinity, no taints."""
    return selector_matches(asks, labels) and affinity_matches(asks, name=node_name, labels=labels)


def _is_running_sandbox(pod: Mapping[str, Any]) -> bool:
    """Section 2: every sandbox pod requests a network slot; ours carry the sandbox label too."""
    if (pod.get("status") or {}).get("phase") in _ENDED:
        return False
    if SANDBOX_LABEL in ((pod.get("metadata") or {}).get("labels") or {}):
        return True
    spec = pod.get("spec") or {}
    return any(
        NETWORK_SLOTS in (resources.get(kind) or {})
        for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ()))
        for resources in (container.get("resources") or {},)
        for kind in ("requests", "limits")
    )
