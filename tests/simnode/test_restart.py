"""Simulated nodes as a process that is killed and started again, and an API server that is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.simnode.conftest import DEADLINE_S, ICX_NEW, NODE_OF, Cluster, events, runner
from tests.simnode.pods import PodSpec
from tests.support.simnode import Event, SimNode, SimNodeProcess, write_captures
from tests.support.simnode.process import SimNodeError
from tests.support.simnode.remote import RemoteError
from tests.support.testbed import ControlPlane
from tests.support.waiting import until

HOME = NODE_OF[ICX_NEW]


@pytest.fixture
async def process(
    plane: ControlPlane, record: Path, tmp_path: Path
) -> AsyncIterator[SimNodeProcess]:
    write_captures(tmp_path / "captures.json", {"snap-1": ICX_NEW})
    running = SimNodeProcess(
        plane.kubeconfig,
        captures=tmp_path / "captures.json",
        record=record,
        log=tmp_path / "simnode.log",
    )
    async with running:
        yield running


async def test_a_running_vm_is_taken_over(
    process: SimNodeProcess, cluster: Cluster, record: Path
) -> None:
    cluster.create(PodSpec(name="a", node=HOME))
    await cluster.ready("a")
    await process.kill()
    await process.start()
    cluster.create(PodSpec(name="b", sandbox="sb-2", node=HOME))
    await cluster.ready("b")

    assert len(await process.call("live_vms")) == 2
    assert len(events(record, Event.VM_STARTED)) == 2
    cluster.delete("a")
    await cluster.ended("a")
    assert [end.pod for end in events(record, Event.VM_ENDED)] == ["a"]


async def test_a_vm_that_was_started_and_not_reported_is_not_started_twice(
    process: SimNodeProcess, cluster: Cluster, record: Path
) -> None:
    await process.call("hold", stage="ready")
    cluster.create(PodSpec(name="a", node=HOME))
    await until(
        lambda: events(record, Event.VM_STARTED), deadline_s=DEADLINE_S, what="the VM lives"
    )
    await process.kill()
    await process.start()
    await cluster.ready("a")

    assert len(events(record, Event.VM_STARTED)) == 1


async def test_a_load_that_a_kill_cut_off_is_done_again(
    process: SimNodeProcess, cluster: Cluster, record: Path
) -> None:
    await process.call("hold", stage="load")
    cluster.create(PodSpec(name="a", node=HOME))
    await cluster.started("a")
    await process.kill()
    assert events(record, Event.VM_STARTED) == []
    await process.start()

    await cluster.ready("a")


async def test_a_refusal_that_was_not_reported_is_reported_later(
    process: SimNodeProcess, cluster: Cluster, record: Path
) -> None:
    await process.call("hold", stage="report-end")
    await process.call("fail", message="exit status 1", sandbox="sb-1")
    cluster.create(PodSpec(name="a", node=HOME))
    await until(lambda: events(record, Event.LOAD_REFUSED), deadline_s=DEADLINE_S, what="a refusal")
    await process.kill()
    await process.start()
    pod = await cluster.ended("a")

    assert runner(pod)["state"]["terminated"]["message"] == "exit status 1"
    assert len(events(record, Event.LOAD_REFUSED)) == 1


async def test_a_pod_deleted_meanwhile_is_ended(
    process: SimNodeProcess, cluster: Cluster, record: Path
) -> None:
    cluster.create(PodSpec(name="a", node=HOME))
    cluster.create(PodSpec(name="b", sandbox="sb-2", node=HOME, fenced=False))
    await cluster.ready("a")
    await cluster.ready("b")
    await process.kill()
    cluster.delete("a")
    cluster.delete("b", grace_seconds=0)
    await process.start()

    await cluster.ended("a")
    await until(
        lambda: len(events(record, Event.VM_ENDED)) == 2, deadline_s=DEADLINE_S, what="VMs ended"
    )
    assert {end.reason for end in events(record, Event.VM_ENDED)} == {"pod deleted", "pod gone"}


async def test_only_one_process_writes_a_record(
    process: SimNodeProcess, plane: ControlPlane, record: Path, tmp_path: Path
) -> None:
    second = SimNodeProcess(
        plane.kubeconfig,
        captures=tmp_path / "captures.json",
        record=record,
        log=tmp_path / "second.log",
    )
    with pytest.raises(SimNodeError, match="written by another simulation"):
        await second.start()


async def test_what_happened_and_must_not_ends_the_process_with_an_error(
    process: SimNodeProcess, cluster: Cluster
) -> None:
    await process.call("acknowledge", sandbox="sb-1", version=2)
    cluster.create(PodSpec(name="a", node=HOME))
    await cluster.ready("a")

    assert len(process.violations()) == 1
    with pytest.raises(SimNodeError, match="older than acknowledged state"):
        await process.stop()


async def test_a_wrong_request_is_answered_with_its_error(process: SimNodeProcess) -> None:
    with pytest.raises(RemoteError, match="'nowhere' is not a valid Stage"):
        await process.call("hold", stage="nowhere")


async def test_an_api_server_that_restarts_is_found_again(
    plane: ControlPlane, nodes: SimNode, cluster: Cluster
) -> None:
    cluster.create(PodSpec(name="a", node=HOME))
    await cluster.ready("a")
    plane.stop_apiserver()
    nodes.end_vm("sb-1")
    plane.start_apiserver()
    await cluster.ended("a")
    cluster.create(PodSpec(name="b", node=HOME))

    await cluster.ready("b")
