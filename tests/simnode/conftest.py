"""A control plane with one node of each CPU, and simulated nodes that act for them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.simnode.pods import PodSpec, manifest
from tests.support.fleet import matrix_fleet
from tests.support.simnode import CapturesInMemory, Event, SimNode, load_matrix, read_record
from tests.support.simnode.record import Entry
from tests.support.testbed import Api, ApiError, ControlPlane, ensure_built
from tests.support.waiting import until

ICX_OLD, BDX, CLX, ICX_NEW = load_matrix().cpus
NODE_OF = {
    ICX_OLD: "icx-8370c-d4sv3-1",
    BDX: "bdx-e5-2673v4-1",
    CLX: "clx-8272cl-d4sv4-1",
    ICX_NEW: "icx-8370c-d4sv5-1",
}
DEADLINE_S = 20.0


@dataclass(slots=True)
class Cluster:
    """What the tests do with the API server; pods are made and found by name."""

    api: Api
    made: list[str] = field(default_factory=list)

    def create(self, spec: PodSpec) -> dict[str, Any]:
        """Create a pod and return it."""
        self.made.append(spec.name)
        made: dict[str, Any] = self.api.post("/api/v1/namespaces/default/pods", manifest(spec))
        return made

    def pod(self, name: str) -> dict[str, Any] | None:
        """Return the pod, None when it is gone."""
        try:
            found: dict[str, Any] = self.api.get(self.path(name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        return found

    def delete(self, name: str, *, grace_seconds: int | None = None) -> None:
        self.api.delete(self.path(name), grace_seconds=grace_seconds)

    def unfence(self, name: str) -> None:
        """Take the finalizers off, as the operator does when it is done."""
        self.api.merge(self.path(name), {"metadata": {"finalizers": None}})

    def annotate(self, name: str, **annotations: str | None) -> None:
        self.api.merge(self.path(name), {"metadata": {"annotations": annotations}})

    def path(self, name: str) -> str:
        return f"/api/v1/namespaces/default/pods/{name}"

    async def when(
        self, name: str, holds: Callable[[dict[str, Any]], bool], *, what: str
    ) -> dict[str, Any]:
        """Wait until something holds for the pod's status; return the pod."""

        def probe() -> dict[str, Any] | None:
            pod = self.pod(name)
            return pod if pod is not None and holds(pod.get("status", {})) else None

        return await until(
            probe, deadline_s=DEADLINE_S, what=f"{name} {what}", detail=lambda: self.pod(name)
        )

    async def ready(self, name: str) -> dict[str, Any]:
        return await self.when(name, _is_ready, what="is Ready")

    async def ended(self, name: str) -> dict[str, Any]:
        return await self.when(name, lambda s: bool(_state(s, "terminated")), what="has ended")

    async def started(self, name: str) -> dict[str, Any]:
        return await self.when(name, lambda s: bool(_state(s, "running")), what="has started")

    async def gone(self, name: str) -> None:
        await until(lambda: self.pod(name) is None, deadline_s=DEADLINE_S, what=f"{name} is gone")

    def clear(self) -> None:
        """Remove all pods that were made."""
        for name in self.made:
            if self.pod(name) is not None:
                self.api.delete(self.path(name), grace_seconds=0)
            if self.pod(name) is not None:
                self.unfence(name)
        self.made.clear()


def runner(pod: dict[str, Any]) -> dict[str, Any]:
    """Return the runner's container status."""
    status: dict[str, Any] = pod["status"]["containerStatuses"][0]
    return status


def conditions(pod: dict[str, Any]) -> dict[str, str]:
    """Return the status of each condition by type."""
    return {one["type"]: one["status"] for one in pod["status"].get("conditions", ())}


def events(record: Path, *kinds: Event) -> list[Entry]:
    """Return the entries of the record of these kinds."""
    return [entry for entry in read_record(record) if entry.event in kinds]


def _is_ready(status: dict[str, Any]) -> bool:
    return any(
        one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions", ())
    )


def _state(status: dict[str, Any], kind: str) -> Any:
    return next((one["state"].get(kind) for one in status.get("containerStatuses", ())), None)


@pytest.fixture(scope="session")
def plane() -> Iterator[ControlPlane]:
    with ControlPlane.start(ensure_built()) as running:
        running.add_nodes(matrix_fleet(unlabelled=1))
        running.wait_nodes_ready()
        yield running


@pytest.fixture
def cluster(plane: ControlPlane) -> Iterator[Cluster]:
    found = Cluster(plane.api())
    yield found
    found.clear()


@pytest.fixture
def captures() -> CapturesInMemory:
    return CapturesInMemory({"snap-1": ICX_NEW})


@pytest.fixture
def record(tmp_path: Path) -> Path:
    return tmp_path / "record.jsonl"


@pytest.fixture
async def nodes(
    plane: ControlPlane, captures: CapturesInMemory, record: Path
) -> AsyncIterator[SimNode]:
    simulation = SimNode(
        plane.kubeconfig,
        matrix=load_matrix(),
        captures=captures,
        record=record,
        load_seconds=0.01,
    )
    async with simulation:
        yield simulation
