"""What a simulated node reports of a restore pod, on a real API server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.simnode.conftest import (
    BDX,
    CLX,
    DEADLINE_S,
    ICX_NEW,
    ICX_OLD,
    NODE_OF,
    Cluster,
    conditions,
    events,
    runner,
)
from tests.simnode.pods import FENCE, PodSpec
from tests.support.simnode import CapturesInMemory, Event, SimNode, load_matrix
from tests.support.simnode.load import MISSING_FILES
from tests.support.waiting import until


async def test_a_load_that_succeeds_makes_the_pod_ready(
    nodes: SimNode, cluster: Cluster, record: Path
) -> None:
    cluster.create(PodSpec(name="a", node=NODE_OF[ICX_NEW]))
    pod = await cluster.ready("a")

    assert pod["status"]["phase"] == "Running"
    assert runner(pod)["ready"]
    assert runner(pod)["started"]
    assert runner(pod)["containerID"].startswith("simulated://")
    assert pod["status"]["podIP"].startswith("10.")
    assert conditions(pod) == dict.fromkeys(
        ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"),
        "True",
    )
    (started,) = events(record, Event.VM_STARTED)
    assert (started.sandbox, started.snapshot, started.version) == ("sb-1", "snap-1", 1)
    assert (started.pod_uid, started.node) == (pod["metadata"]["uid"], NODE_OF[ICX_NEW])
    assert (started.node_cpu, started.node_label, started.capture_cpu) == (ICX_NEW,) * 3
    assert (started.restore_uid, started.execution) == ("uid-1", "exec-a")


@pytest.mark.parametrize(
    ("capture", "on", "words"),
    [
        (ICX_NEW, ICX_OLD, "Failed to set all KVM MSRs"),
        (ICX_NEW, BDX, "Failed to set KVM vcpu xcrs"),
        (BDX, CLX, "Could not set TSC scaling within the snapshot"),
    ],
)
async def test_a_node_refuses_what_its_cpu_cannot_load(
    nodes: SimNode,
    cluster: Cluster,
    record: Path,
    captures: CapturesInMemory,
    capture: str,
    on: str,
    words: str,
) -> None:
    captures.put("snap-1", capture)
    cluster.create(PodSpec(name="a", node=NODE_OF[on]))
    pod = await cluster.ended("a")

    end = runner(pod)["state"]["terminated"]
    assert (end["exitCode"], end["reason"], pod["status"]["phase"]) == (1, "Error", "Failed")
    message = json.loads(end["message"])
    assert message["code"] == "cpu-incompatible"
    assert message["message"].startswith("Load snapshot error: Failed to restore from snapshot:")
    assert words in message["message"]
    assert conditions(pod)["Ready"] == conditions(pod)["ContainersReady"] == "False"
    (refused,) = events(record, Event.LOAD_REFUSED)
    assert (refused.code, refused.node_cpu, refused.capture_cpu) == (
        "cpu-incompatible",
        on,
        capture,
    )
    assert events(record, Event.VM_STARTED) == []


async def test_an_unlabelled_node_has_a_cpu_all_the_same(
    nodes: SimNode, cluster: Cluster, record: Path
) -> None:
    cluster.create(PodSpec(name="a", node="unlabelled-1"))
    await cluster.ended("a")

    (refused,) = events(record, Event.LOAD_REFUSED)
    assert (refused.node_cpu, refused.node_label) == (BDX, "")


async def test_the_scheduler_and_the_kubelet_work_on_one_pod(
    nodes: SimNode, cluster: Cluster
) -> None:
    cluster.create(PodSpec(name="a"))
    pod = await cluster.when("a", lambda s: s["phase"] in ("Running", "Failed"), what="was placed")

    assert pod["spec"]["nodeName"]
    assert conditions(pod)["PodScheduled"] == "True"


@pytest.mark.parametrize("text", ["{}", "not json", '{"version": 2}'])
async def test_a_plan_that_cannot_be_read_is_a_usage_failure(
    nodes: SimNode, cluster: Cluster, text: str
) -> None:
    cluster.create(PodSpec(name="a", node=NODE_OF[BDX], plan=text))
    pod = await cluster.ended("a")

    assert json.loads(runner(pod)["state"]["terminated"]["message"])["code"] == "usage"


async def test_a_local_plan_needs_files_on_the_node(nodes: SimNode, cluster: Cluster) -> None:
    cluster.create(PodSpec(name="a", node=NODE_OF[ICX_NEW], source="local"))
    pod = await cluster.ended("a")

    message = json.loads(runner(pod)["state"]["terminated"]["message"])
    assert message == {"code": "missing", "message": MISSING_FILES}


async def test_a_node_keeps_the_files_of_what_it_loaded(nodes: SimNode, cluster: Cluster) -> None:
    cluster.create(PodSpec(name="a", node=NODE_OF[ICX_NEW]))
    await cluster.ready("a")
    cluster.delete("a")
    await cluster.ended("a")
    cluster.create(PodSpec(name="b", node=NODE_OF[ICX_NEW], source="local"))

    await cluster.ready("b")


async def test_a_snapshot_that_storage_does_not_have_is_missing(
    nodes: SimNode, cluster: Cluster
) -> None:
    cluster.create(PodSpec(name="a", node=NODE_OF[ICX_NEW], snapshot="other"))
    pod = await cluster.ended("a")

    message = json.loads(runner(pod)["state"]["terminated"]["message"])
    assert message["code"] == "missing"
    assert "other" in message["message"]


async def test_deleting_a_running_pod_ends_its_vm_before_the_pod_goes(
    nodes: SimNode, cluster: Cluster, record: Path
) -> None:
    cluster.create(PodSpec(name="a", node=NODE_OF[ICX_NEW]))
    await cluster.ready("a")
    cluster.delete("a")
    pod = await cluster.ended("a")

    end = runner(pod)["state"]["terminated"]
    assert (end["exitCode"], pod["status"]["phase"]) == (143, "Failed")
    (ended,) = events(record, Event.VM_ENDED)
    assert ended.reason == "pod deleted"
    pod = await cluster.when(
        "a", lambda s: s["phase"] == "Failed", what="stays while the finalizer is on it"
    )
    assert pod["metadata"]["finalizers"] == [FENCE]
    cluster.unfence("a")
    await cluster.gone("a")


async def test_a_pod_without_finalizers_is_removed_by_its_kubelet(
    nodes: SimNode, cluster: Cluster, record: Path
) -> None:
    cluster.create(PodSpec(name="a", node=NODE_OF[ICX_NEW], fenced=False))
    await cluster.ready("a")
    cluster.delete("a")

    await cluster.gone("a")
    assert len(events(record, Event.VM_ENDED)) == 1


async def test_a_pod_deleted_before_its_container_started_has_no_report(
    nodes: SimNode, cluster: Cluster, record: Path
) -> None:
    nodes.hold("start", sandbox="sb-1")
    cluster.create(PodSpec(name="a", node=NODE_OF[ICX_NEW]))
    await cluster.when("a", lambda s: "containerStatuses" in s, what="waits for its container")
    cluster.delete("a")
    pod = await cluster.ended("a")

    end = runner(pod)["state"]["terminated"]
    assert (end["reason"], end["exitCode"]) == ("ContainerStatusUnknown", 137)
    assert pod["status"]["phase"] == "Failed"
    assert events(record, Event.VM_STARTED) == []


async def test_a_pod_deleted_during_the_load_starts_no_vm(
    nodes: SimNode, cluster: Cluster, record: Path
) -> None:
    nodes.hold("load", sandbox="sb-1")
    cluster.create(PodSpec(name="a", node=NODE_OF[ICX_NEW]))
    await cluster.started("a")
    cluster.delete("a")
    pod = await cluster.ended("a")

    assert runner(pod)["state"]["terminated"]["exitCode"] == 143
    assert events(record, Event.VM_STARTED) == []


async def test_a_force_deleted_pod_loses_its_vm_soon_after(
    nodes: SimNode, cluster: Cluster, record: Path
) -> None:
    nodes.hold("end")
    cluster.create(PodSpec(name="a", node=NODE_OF[ICX_NEW], fenced=False))
    await cluster.ready("a")
    cluster.delete("a", grace_seconds=0)
    await cluster.gone("a")

    assert len(nodes.live_vms()) == 1
    nodes.release()
    await until(lambda: not nodes.live_vms(), deadline_s=DEADLINE_S, what="the VM has ended")
    assert events(record, Event.VM_ENDED)[0].reason == "pod gone"


async def test_a_pod_that_others_call_failed_is_ended_by_its_kubelet(
    nodes: SimNode, cluster: Cluster, record: Path
) -> None:
    cluster.create(PodSpec(name="a", node=NODE_OF[ICX_NEW]))
    await cluster.ready("a")
    cluster.api.merge(
        f"{cluster.path('a')}/status", {"status": {"phase": "Failed", "reason": "Evicted"}}
    )
    pod = await cluster.ended("a")

    assert (pod["status"]["phase"], pod["status"]["reason"]) == ("Failed", "Evicted")
    assert events(record, Event.VM_ENDED)[0].reason == "pod terminal"


async def test_two_hundred_pods_at_once(
    nodes: SimNode, cluster: Cluster, captures: CapturesInMemory, record: Path
) -> None:
    matrix = load_matrix()
    for number in range(200):
        captures.put(f"snap-{number}", matrix.cpus[number % 4])
    for number in range(200):
        node = NODE_OF[matrix.cpus[number // 50]]
        cluster.create(
            PodSpec(name=f"p{number}", sandbox=f"sb-{number}", snapshot=f"snap-{number}", node=node)
        )
    for number in range(200):
        capture, on = matrix.cpus[number % 4], matrix.cpus[number // 50]
        if matrix.can_load(capture, on=on):
            await cluster.ready(f"p{number}")
        else:
            await cluster.ended(f"p{number}")

    loads = sum(matrix.can_load(a, on=b) for a in matrix.cpus for b in matrix.cpus)
    assert len(events(record, Event.VM_STARTED)) + len(events(record, Event.LOAD_REFUSED)) == 200
    assert 200 * loads / 16 - 8 <= len(nodes.live_vms()) <= 200 * loads / 16 + 8
    assert nodes.api_writes == 600
