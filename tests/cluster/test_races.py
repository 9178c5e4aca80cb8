"""Between the look and the write the cluster changes: on the real API server and scheduler.

The operators are the real reconciler, driven in this process: each of their requests waits at a
gate until the test lets it go. Everything else is as it is in life; the nodes are simulated.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from kubernetes_asyncio import config
from kubernetes_asyncio.client import Configuration

from sandbox_restore.errors import ConflictError, SandboxRestoreError
from sandbox_restore.store.store import Store
from tests.cluster.rows import left_stranded, row_of
from tests.cluster.test_cancel import ONLY_LOADERS, delete, pods_of, reason_of
from tests.support.demo.scene import OPERATOR, Scene
from tests.support.driven import DrivenOperator
from tests.support.fleet import SandboxSeed, sandbox_seeds
from tests.support.gates import Conductor, GatedClient, GatedStore, Line, delivered
from tests.support.waiting import until

PODS = "POST /api/v1/namespaces/"
HOSTNAME = "kubernetes.io/hostname"


@dataclass(kw_only=True)
class Race:
    """A sandbox, and operators that go on when they are told to."""

    scene: Scene
    seed: SandboxSeed
    conductor: Conductor
    operators: list[DrivenOperator] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)

    async def add(self, configuration: Configuration, store: Store) -> None:
        line = self.conductor.line(f"operator {len(self.lines) + 1}")
        self.lines.append(line)
        self.operators.append(
            DrivenOperator(
                store=GatedStore(store, line),
                client=GatedClient(configuration, line),
                clock=lambda: datetime.now(UTC),
                name=line.name,
                compatibility=self.scene.matrix.compatibility(),
            )
        )

    async def looks(self, number: int, *, news: bool = True) -> None:
        """A whole pass, or the rest of the one that waits at a gate."""
        line, operator = self.lines[number], self.operators[number]
        if line.idle:
            if news:
                self.conductor.start(line, operator.warm(), permits=1000)
                await self.conductor.settle()
            self.conductor.start(line, operator.look(self.seed.id), permits=1000)
        else:
            line.allow(1000, fine=True)
        await self.conductor.settle()

    async def comes_to(self, number: int, place: str) -> None:
        """A pass, as far as the request that begins so."""
        line, operator = self.lines[number], self.operators[number]
        if line.idle:
            self.conductor.start(line, operator.warm(), permits=1000)
            await self.conductor.settle()
            self.conductor.start(line, operator.look(self.seed.id), permits=0)
            await self.conductor.settle()
        for _ in range(60):
            if (line.parked or "").startswith(place):
                return
            line.allow(1, fine=True)
            await self.conductor.settle()
        raise AssertionError(f"{line.name} never came to {place}")

    async def is_killed(self, number: int) -> None:
        """Its request arrives later, if the test lets it."""
        await self.conductor.crash(self.lines[number], late=True)
        self.operators[number].restart()

    async def arrives(self) -> str:
        """The late request; what the API server thinks of it."""
        _, deliver = self.conductor.late.pop(0)
        try:
            await delivered(deliver)
        except SandboxRestoreError as error:
            return type(error).__name__
        return "done"

    async def until_over(self, number: int) -> str:
        """The operator looks again and again until its restore has ended; the reason."""

        async def over() -> bool:
            await self.looks(number)
            return await self.reason() not in ("", "Unknown")

        await until(over, deadline_s=60, what="the restore is over", interval_s=0.2)
        return reason_of(self.scene, self.seed)

    async def reason(self) -> str:
        for one in self.scene.restores(self.seed.namespace):
            for condition in one.get("status", {}).get("conditions", []):
                if condition["type"] == "Succeeded":
                    return str(condition["status"])
        return ""

    def pods(self) -> list[dict[str, Any]]:
        return pods_of(self.scene, self.seed)


async def _configuration(path: Path) -> Configuration:
    found = Configuration()
    await config.load_kube_config(config_file=str(path), client_configuration=found)
    return found


@pytest.fixture
async def race(scene: Scene, namespace: str) -> AsyncIterator[Race]:
    [seed] = sandbox_seeds(1, seed=9, namespace=namespace, prefix=f"{namespace}-sb")
    await scene.add_sandboxes([seed])
    told = Race(scene=scene, seed=seed, conductor=Conductor(tell=lambda _line: None))
    kubeconfig = scene.plane.kubeconfig_for(OPERATOR)
    async with await Store.open(scene.dsn) as first, await Store.open(scene.dsn) as second:
        for store in (first, second):
            await told.add(await _configuration(kubeconfig), store)
        yield told
        for line in told.lines:
            if not line.idle:
                await told.conductor.crash(line, late=False)
        for operator in told.operators:
            await operator.client.close()
    assert not scene.nodes.record.violations


async def test_a_pod_that_is_bound_between_the_look_and_the_deletion_is_not_deleted(
    scene: Scene, race: Race
) -> None:
    """The DELETE carries the version that was read: binding has moved it."""
    await scene.apply([race.seed], nodeSelector={"example.com/race": race.seed.namespace})
    await race.looks(0)
    await race.looks(0)
    [pod] = race.pods()
    assert not pod["spec"].get("schedulingGates")
    path = f"/apis/space.pplx.net/v1alpha1/namespaces/{race.seed.namespace}/sandboxrestores"
    name = race.seed.restore_name
    scene.plane.api().merge(f"{path}/{name}", {"spec": {"suspend": True}})
    await race.comes_to(0, "DELETE /api/v1/namespaces/")
    node = next(
        n.name
        for n in scene.fleet
        if n.labels.get("space.pplx.net/host-cpu") == race.seed.capture_cpu
        and not n.unschedulable
        and not n.taints
    )
    label = {"metadata": {"labels": {"example.com/race": race.seed.namespace}}}
    scene.plane.api().merge(f"/api/v1/nodes/{node}", label)
    await until(
        lambda: race.pods()[0]["spec"].get("nodeName"), deadline_s=60, what="the pod is bound"
    )
    await race.looks(0)
    [after] = race.pods()
    assert "deletionTimestamp" not in after["metadata"]
    assert len((await row_of(scene.dsn, race.seed.id)).active) == 1
    assert await race.until_over(0) == "SnapshotLoaded"


async def test_a_post_that_arrives_after_its_attempt_was_retired_makes_a_pod_that_never_runs(
    scene: Scene, race: Race
) -> None:
    await scene.apply([race.seed], **ONLY_LOADERS)
    await race.comes_to(0, PODS)
    await race.is_killed(0)
    await delete(scene, race.seed)
    await race.looks(1)
    assert (await row_of(scene.dsn, race.seed.id)).active == []
    assert await race.arrives() == "done"
    [pod] = race.pods()
    assert (pod["spec"].get("nodeName"), len(pod["spec"]["schedulingGates"])) == (None, 1)

    async def swept() -> bool:
        await race.looks(1)
        return not race.pods()

    await until(swept, deadline_s=60, what="the late pod is swept", interval_s=0.2)
    assert scene.nodes.live_vms(race.seed.id) == []


async def test_requests_on_the_pod_of_a_dead_operator_do_nothing_once_it_is_another_pod(
    scene: Scene, race: Race
) -> None:
    """The gate's removal tests the UID: the pod of that name is not the one that was read."""
    await scene.apply([race.seed], **ONLY_LOADERS)
    await race.comes_to(0, "PATCH /api/v1/namespaces/")
    await race.is_killed(0)
    [pod] = race.pods()
    meta = pod["metadata"]
    path = f"/api/v1/namespaces/{race.seed.namespace}/pods/{meta['name']}"
    # Somebody takes the first one away, fence and all, and puts his own there, gated as well.
    scene.plane.api().merge(path, {"metadata": {"finalizers": None}})
    scene.plane.api().delete(path, grace_seconds=0)
    await until(lambda: not race.pods(), deadline_s=60, what="the pod is gone")
    copy = {k: meta[k] for k in ("name", "namespace", "labels")}
    gated = {"name": "space.pplx.net/fence"}
    runner = {"name": "runner", "image": "example.invalid/runner"}
    scene.plane.api().post(
        f"/api/v1/namespaces/{race.seed.namespace}/pods",
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": copy,
            "spec": {"schedulingGates": [gated], "containers": [runner]},
        },
    )
    assert await race.arrives() == "ConflictError"
    [foreign] = race.pods()
    assert foreign["metadata"]["uid"] != meta["uid"]
    assert foreign["spec"]["schedulingGates"] == [gated]


async def test_of_two_operators_at_one_row_one_makes_the_pod(scene: Scene, race: Race) -> None:
    await scene.apply([race.seed], **ONLY_LOADERS)
    await race.comes_to(0, "lock")
    await race.comes_to(0, "commit")
    await race.comes_to(1, "lock")
    race.lines[1].allow(1000, fine=True)
    await race.looks(0)
    await race.looks(1)
    assert len(race.pods()) == 1
    assert len((await row_of(scene.dsn, race.seed.id)).executions) == 1
    assert await race.until_over(1) == "SnapshotLoaded"
    assert len(scene.nodes.live_vms(race.seed.id)) == 1


async def test_a_pod_that_appears_between_the_look_and_the_lock_holds_a_redirect_up(
    scene: Scene, race: Race
) -> None:
    """Pods are read from the API server once the row is locked: one that is not bound yet could
    be a moment later."""
    wrong = next(
        n.name
        for n in scene.fleet
        if n.labels.get("space.pplx.net/host-cpu") not in (None, race.seed.capture_cpu)
        and not any(
            (race.seed.capture_cpu, n.labels["space.pplx.net/host-cpu"]) == pair
            for pair in _pairs(scene)
        )
    )
    await left_stranded(scene, race.seed, node=wrong)
    await scene.apply([race.seed], suspend=True, **ONLY_LOADERS)
    await race.looks(0)
    path = f"/apis/space.pplx.net/v1alpha1/namespaces/{race.seed.namespace}/sandboxrestores"
    scene.plane.api().merge(f"{path}/{race.seed.restore_name}", {"spec": {"suspend": False}})
    await race.comes_to(0, "lock")
    late = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "left-over",
            "labels": {"space.pplx.net/sandbox": race.seed.id},
            "annotations": {"space.pplx.net/execution": f"{race.seed.id}-first"},
            "finalizers": ["space.pplx.net/fence"],
        },
        "spec": {
            "schedulingGates": [{"name": "space.pplx.net/fence"}],
            "containers": [{"name": "runner", "image": "example.invalid/runner"}],
        },
    }
    scene.plane.api().post(f"/api/v1/namespaces/{race.seed.namespace}/pods", late)
    await race.looks(0)
    row = await row_of(scene.dsn, race.seed.id)
    assert (row.pinned_node, row.active) == (wrong, [])
    assert await race.until_over(0) == "SnapshotLoaded"
    row = await row_of(scene.dsn, race.seed.id)
    assert [e["prior_pin"] for e in row.executions] == [None, wrong]
    assert {p["metadata"]["name"] for p in race.pods()} == {row.executions[-1]["pod_name"]}


def _pairs(scene: Scene) -> list[tuple[str, str]]:
    items = scene.matrix.compatibility().split(",")
    return [(a.strip(), b.strip()) for a, _, b in (item.partition("=>") for item in items)]


async def test_a_status_decided_on_an_older_version_is_refused_and_decided_again(
    scene: Scene, race: Race
) -> None:
    """Two operators say something of one restore; who comes second reads first."""
    scene.nodes.fail("Failed to open snapshot file: No such file", sandbox=race.seed.id)
    await scene.apply([race.seed], suspend=True)
    await race.comes_to(0, "PATCH /apis/space.pplx.net/")
    path = f"/apis/space.pplx.net/v1alpha1/namespaces/{race.seed.namespace}/sandboxrestores"
    change = {"spec": {"backoffLimit": 1, "suspend": False}}
    scene.plane.api().merge(f"{path}/{race.seed.restore_name}", change)

    async def ended() -> bool:
        await race.looks(1)
        return await race.reason() == "False"

    await until(ended, deadline_s=60, what="it ends with its first failure", interval_s=0.2)
    assert reason_of(scene, race.seed) == "BackoffLimitExceeded"
    await race.looks(0)
    assert reason_of(scene, race.seed) == "BackoffLimitExceeded"
    [stale] = race.operators[1].state.restores_of(race.seed.id)
    scene.plane.api().merge(f"{path}/{race.seed.restore_name}", {"spec": {"backoffLimit": 9}})
    race.lines[1].allow(1, fine=True)
    with pytest.raises(ConflictError):
        await race.operators[1].kube.apply_status(stale, {"conditions": []})
