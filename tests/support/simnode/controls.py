"""What a test tells the simulated nodes to do: hold, fail, lose contact. Nothing is random.

The same holds can be put on a pod with the annotation `sim.space.pplx.net/hold`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tests.support.simnode.plan import SANDBOX_LABEL

PREFIX = "sim.space.pplx.net"
REAL_CPU_ANNOTATION = f"{PREFIX}/real-cpu"
"""On a Node: the CPU that it really has, whatever its label says."""
HOLD_ANNOTATION = f"{PREFIX}/hold"
"""On a pod: comma-separated stages (Stage) that it does not pass while the annotation is there."""
FAIL_ANNOTATION = f"{PREFIX}/fail"
"""On a pod: the termination message with which its load fails."""


class Stage(StrEnum):
    """A place in a pod's life where it can be held. Each is named after what does not happen."""

    START = "start"
    """Bound and reported as ContainerCreating; the container does not start."""
    LOAD = "load"
    """The container runs; the snapshot is not loaded."""
    READY = "ready"
    """The VM lives; the API server is not told."""
    END = "end"
    """The pod is to end; its VM goes on."""
    REPORT_END = "report-end"
    """The container has ended, or never started; the API server is not told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Which:
    """The pods that a rule is for; what is empty does not matter."""

    sandbox: str = ""
    node: str = ""
    pod: str = ""
    """Name or UID."""

    def matches(self, pod: Mapping[str, Any]) -> bool:
        """Tell whether the rule is for this pod."""
        metadata = pod["metadata"]
        return (
            self.sandbox in ("", (metadata.get("labels") or {}).get(SANDBOX_LABEL))
            and self.node in ("", pod["spec"].get("nodeName"))
            and self.pod in ("", metadata["name"], metadata["uid"])
        )


class Controls:
    """The rules in force; `on_change` is called when one is taken back."""

    def __init__(self, *, on_change: Callable[[], None] = lambda: None) -> None:
        self._holds: set[tuple[Stage, Which]] = set()
        self._failures: dict[Which, str] = {}
        self._silent: set[str] = set()
        self._on_change = on_change

    def hold(self, stage: Stage, which: Which) -> None:
        """Let no such pod pass the stage until `release`."""
        self._holds.add((stage, which))

    def release(self, stage: Stage | None = None, which: Which | None = None) -> None:
        """Take holds back: those given for this stage and these pods; all where not told."""
        self._holds = {
            (held, rule)
            for held, rule in self._holds
            if (stage is not None and held is not stage) or (which is not None and rule != which)
        }
        self._on_change()

    def fail(self, which: Which, message: str) -> None:
        """Let loads of such pods fail with this termination message, until `mend`."""
        self._failures[which] = message

    def mend(self, which: Which | None = None) -> None:
        """Take back what `fail` was told for these pods; all of it where not told."""
        if which is None:
            self._failures.clear()
        else:
            self._failures.pop(which, None)

    def lose_contact(self, node: str) -> None:
        """Cut a node off from the API server: VMs and loads go on, nothing is seen or reported."""
        self._silent.add(node)

    def regain_contact(self, node: str) -> None:
        """Let the node reach the API server again."""
        self._silent.discard(node)
        self._on_change()

    def in_contact(self, node: str) -> bool:
        return node not in self._silent

    def is_held(self, stage: Stage, pod: Mapping[str, Any]) -> bool:
        """Tell whether a rule or the pod's own annotation keeps the pod before this stage."""
        annotated = _annotations(pod).get(HOLD_ANNOTATION, "")
        return stage in annotated.replace(" ", "").split(",") or any(
            held is stage and which.matches(pod) for held, which in self._holds
        )

    def failure(self, pod: Mapping[str, Any]) -> str | None:
        """Return the termination message with which the pod's load is to fail."""
        annotated: str | None = _annotations(pod).get(FAIL_ANNOTATION)
        told = (text for which, text in self._failures.items() if which.matches(pod))
        return annotated or next(told, None)


def _annotations(pod: Mapping[str, Any]) -> dict[str, str]:
    return pod["metadata"].get("annotations") or {}
