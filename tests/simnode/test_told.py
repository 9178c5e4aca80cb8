"""What tests tell the simulated nodes: holds, failures, lost nodes, suspends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.simnode.conftest import (
    DEADLINE_S,
    ICX_NEW,
    ICX_OLD,
    NODE_OF,
    Cluster,
    conditions,
    events,
    runner,
)
from tests.simnode.pods import PodSpec
from tests.support.simnode import (
    FAIL_ANNOTATION,
    HOLD_ANNOTATION,
    CapturesInMemory,
    Event,
    SimNode,
)
from tests.support.waiting import until

HOME = NODE_OF[ICX_NEW]


async def test_a_pod_held_before_the_load_goes_on_when_released(
    nodes: SimNode, cluster: Cluster
) -> None:
    nodes.hold("load", sandbox="sb-1")
    cluster.create(PodSpec(name="a", node=HOME))
    pod = await cluster.started("a")

    assert (runner(pod)["started"], runner(pod)["ready"]) == (True, False)
    assert conditions(pod)["Ready"] == "False"
    assert nodes.live_vms() == []
    nodes.release("load", sandbox="sb-1")
    await cluster.ready("a")


async def test_an_annotation_holds_a_pod_too(nodes: SimNode, cluster: Cluster) -> None:
    cluster.create(PodSpec(name="a", node=HOME, annotations={HOLD_ANNOTATION: "load"}))
    await cluster.started("a")
    cluster.annotate("a", **{HOLD_ANNOTATION: None})

    await cluster.ready("a")


async def test_a_hold_is_only_for_the_pods_it_names(nodes: SimNode, cluster: Cluster) -> None:
    nodes.hold("load", sandbox="sb-1")
    cluster.create(PodSpec(name="a", node=HOME))
    cluster.create(PodSpec(name="b", sandbox="sb-2", node=HOME))

    await cluster.ready("b")
    assert [vm.sandbox for vm in nodes.live_vms()] == ["sb-2"]
    assert len(nodes.live_vms("sb-2")) == 1
    assert nodes.live_vms("sb-1") == []


async def test_a_vm_lives_before_the_api_server_knows(nodes: SimNode, cluster: Cluster) -> None:
    nodes.hold("ready")
    cluster.create(PodSpec(name="a", node=HOME))
    await until(lambda: nodes.live_vms(), deadline_s=DEADLINE_S, what="the VM lives")

    pod = await cluster.started("a")
    assert conditions(pod)["Ready"] == "False"
    nodes.release()
    await cluster.ready("a")


@pytest.mark.parametrize("told_by", ["call", "annotation"])
async def test_a_load_fails_with_the_text_that_was_told(
    nodes: SimNode, cluster: Cluster, told_by: str
) -> None:
    text = "dial unix firecracker.sock: connect: connection refused"
    annotations = {FAIL_ANNOTATION: text} if told_by == "annotation" else {}
    if told_by == "call":
        nodes.fail(text, sandbox="sb-1")
    cluster.create(PodSpec(name="a", node=HOME, annotations=annotations))
    pod = await cluster.ended("a")

    assert runner(pod)["state"]["terminated"]["message"] == text
    nodes.mend()
    cluster.create(PodSpec(name="b", node=HOME))
    await cluster.ready("b")


async def test_a_node_without_contact_loads_and_says_nothing(
    nodes: SimNode, cluster: Cluster
) -> None:
    nodes.hold("load")
    cluster.create(PodSpec(name="a", node=HOME))
    await cluster.started("a")
    nodes.lose_contact(HOME)
    nodes.release()
    await until(lambda: nodes.live_vms(), deadline_s=DEADLINE_S, what="the VM lives")
    cluster.create(PodSpec(name="b", sandbox="sb-2", node=HOME))
    cluster.create(PodSpec(name="c", sandbox="sb-3", node=NODE_OF[ICX_OLD]))
    await cluster.ended("c")

    for name in ("a", "b"):
        pod = cluster.pod(name)
        assert pod is not None
        assert conditions(pod).get("Ready", "False") == "False"
    nodes.regain_contact(HOME)
    await cluster.ready("a")
    await cluster.ready("b")


async def test_a_vm_outlives_its_deletion_while_its_node_is_cut_off(
    nodes: SimNode, cluster: Cluster
) -> None:
    cluster.create(PodSpec(name="a", node=HOME))
    await cluster.ready("a")
    nodes.lose_contact(HOME)
    cluster.delete("a", grace_seconds=0)
    cluster.unfence("a")
    await cluster.gone("a")

    assert [vm.pod for vm in nodes.live_vms()] == ["a"]
    nodes.regain_contact(HOME)
    await until(lambda: not nodes.live_vms(), deadline_s=DEADLINE_S, what="the VM has ended")


async def test_two_live_vms_of_one_sandbox_do_not_go_unnoticed(
    nodes: SimNode, cluster: Cluster, captures: CapturesInMemory
) -> None:
    captures.put("snap-1", ICX_OLD)
    cluster.create(PodSpec(name="a", node=HOME))
    await cluster.ready("a")
    cluster.create(PodSpec(name="b", node=NODE_OF[ICX_OLD]))
    await cluster.ready("b")

    with pytest.raises(AssertionError, match="two live VMs of sandbox sb-1"):
        nodes.check()
    nodes.record.violations.clear()


async def test_a_machine_that_went_down_reports_when_it_is_back(
    nodes: SimNode, cluster: Cluster, record: Path
) -> None:
    cluster.create(PodSpec(name="a", node=HOME))
    await cluster.ready("a")
    nodes.hold("load", sandbox="sb-2")
    cluster.create(PodSpec(name="b", sandbox="sb-2", node=HOME))
    await cluster.started("b")
    nodes.crash_machine(HOME)

    assert nodes.live_vms() == []
    assert events(record, Event.VM_ENDED)[0].reason == "machine lost"
    pod = cluster.pod("a")
    assert pod is not None
    assert conditions(pod)["Ready"] == "True"
    nodes.regain_contact(HOME)
    for name in ("a", "b"):
        end = runner(await cluster.ended(name))["state"]["terminated"]
        assert (end["exitCode"], end["reason"]) == (255, "Unknown")


@pytest.mark.parametrize("keep", [False, True])
async def test_a_rejected_pod_is_failed_while_its_vm_lives(
    nodes: SimNode, cluster: Cluster, *, keep: bool
) -> None:
    made = cluster.create(PodSpec(name="a", node=HOME))
    await cluster.ready("a")
    await nodes.reject(made["metadata"]["uid"], keep_containers=keep)
    pod = await cluster.when("a", lambda s: s["phase"] == "Failed", what="was rejected")

    assert pod["status"]["reason"] == "NodeAffinity"
    assert len(nodes.live_vms()) == 1
    assert conditions(pod).get("Ready", "False") == "False"
    if keep:
        assert "running" in runner(pod)["state"]
    else:
        assert "containerStatuses" not in pod["status"]


async def test_the_vm_of_a_rejected_pod_ends_without_a_report_until_it_is_deleted(
    nodes: SimNode, cluster: Cluster
) -> None:
    made = cluster.create(PodSpec(name="a", node=HOME))
    await cluster.ready("a")
    await nodes.reject(made["metadata"]["uid"])
    nodes.finish_rejection(made["metadata"]["uid"])

    assert nodes.live_vms() == []
    pod = cluster.pod("a")
    assert pod is not None
    assert "containerStatuses" not in pod["status"]
    cluster.delete("a")
    assert runner(await cluster.ended("a"))["state"]["terminated"]["exitCode"] == 137


async def test_a_pod_can_be_rejected_before_it_starts(nodes: SimNode, cluster: Cluster) -> None:
    nodes.hold("start")
    made = cluster.create(PodSpec(name="a", node=HOME))
    await cluster.when("a", lambda s: "containerStatuses" in s, what="waits for its container")
    await nodes.reject(
        made["metadata"]["uid"], reason="UnexpectedAdmissionError", message="no device"
    )
    nodes.release()
    pod = await cluster.when("a", lambda s: s["phase"] == "Failed", what="was rejected")

    assert pod["status"]["reason"] == "UnexpectedAdmissionError"
    assert nodes.live_vms() == []


async def test_a_vm_that_ends_by_itself_is_reported(nodes: SimNode, cluster: Cluster) -> None:
    cluster.create(PodSpec(name="a", node=HOME))
    await cluster.ready("a")
    nodes.end_vm("sb-1", exit_code=3, message="guest panicked")
    pod = await cluster.ended("a")

    end = runner(pod)["state"]["terminated"]
    assert (end["exitCode"], end["message"]) == (3, "guest panicked")
    assert pod["status"]["phase"] == "Failed"


async def test_a_suspend_leaves_a_newer_snapshot_on_the_node(
    nodes: SimNode, cluster: Cluster, captures: CapturesInMemory, record: Path
) -> None:
    captures.put("snap-1", ICX_OLD)
    cluster.create(PodSpec(name="a", node=HOME))
    pod = await cluster.ready("a")
    made = nodes.suspend("sb-1")
    ended = await cluster.ended("a")

    assert (ended["status"]["phase"], runner(ended)["state"]["terminated"]["reason"]) == (
        "Succeeded",
        "Completed",
    )
    assert (made.node, made.pod_uid) == (HOME, pod["metadata"]["uid"])
    assert (made.version, made.capture_cpu, made.ancestors) == (2, ICX_NEW, (ICX_OLD,))
    cluster.create(PodSpec(name="b", node=HOME, snapshot=made.snapshot, source="local"))
    await cluster.ready("b")
    assert events(record, Event.VM_STARTED)[-1].version == 2


async def test_what_ran_on_another_cpu_before_must_suit_that_cpu_as_well(
    nodes: SimNode, cluster: Cluster, captures: CapturesInMemory
) -> None:
    # Captured on ICX_OLD and run on ICX_NEW: ICX_OLD loaded the first snapshot, and refuses this.
    captures.put("snap-1", ICX_OLD)
    cluster.create(PodSpec(name="a", node=HOME))
    await cluster.ready("a")
    made = nodes.suspend("sb-1")
    captures.put(made.snapshot, made.capture)
    await cluster.ended("a")
    cluster.create(PodSpec(name="b", node=NODE_OF[ICX_OLD], snapshot=made.snapshot))
    pod = await cluster.ended("b")

    message = json.loads(runner(pod)["state"]["terminated"]["message"])
    assert message["code"] == "cpu-incompatible"


async def test_state_that_was_acknowledged_must_not_be_lost(
    nodes: SimNode, cluster: Cluster
) -> None:
    nodes.acknowledge("sb-1", 2)
    cluster.create(PodSpec(name="a", node=HOME))
    await cluster.ready("a")

    with pytest.raises(AssertionError, match="older than acknowledged state"):
        nodes.check()
    nodes.record.violations.clear()
