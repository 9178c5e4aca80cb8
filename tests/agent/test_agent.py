"""Section 13 on a real API server, with the agent's own token; the kubelet is simulated."""

from __future__ import annotations

import json

import pytest
from kubernetes_asyncio.client import Configuration
from kubernetes_asyncio.config import load_kube_config

from sandbox_restore.errors import ConflictError, SandboxRestoreError
from sandbox_restore.kube.client import KubeClient
from sandbox_restore.kube.node import KubeNode
from sandbox_restore.model.names import HOST_CPU_LABEL, NETWORK_SLOTS
from tests.support.agentbed import REFUSED, AgentNode, allow_labels, history, refuse_labels
from tests.support.testbed import ControlPlane
from tests.support.waiting import until

ICE, CASCADE = "intel-6-106-6", "intel-6-85-7"
ICE_FILE, CASCADE_FILE = "intel-ice-lake.txt", "intel-cascade-lake.txt"


@pytest.fixture
async def token(node: AgentNode) -> str:
    """The Node is there, and the agent's pod on it."""
    node.create()
    return node.bind_agent_pod()


# Label, then slots


async def test_a_new_node_never_shows_slots_before_its_label(node: AgentNode) -> None:
    token = node.bind_agent_pod()
    async with history(node) as seen, node.kubelet, node.agent(token, cpuinfo=ICE_FILE):
        node.create()
        await node.settled(ICE)
    assert seen.states
    assert [state for state in seen.states if state[2] and state[1] != ICE] == []
    assert node.condition["status"] == "True"
    assert node.events() == [("Normal", "Published")]


async def test_a_changed_cpu_shows_no_slots_until_the_new_label_is_there(
    node: AgentNode, token: str
) -> None:
    async with node.kubelet:
        async with node.agent(token, cpuinfo=ICE_FILE):
            await node.settled(ICE)
        async with history(node) as seen, node.agent(token, cpuinfo=CASCADE_FILE):
            await node.settled(CASCADE)
        after = [state for state in seen.states if state[1] == CASCADE]
        assert after[0][2] == 0, "the label came before the slots"
        first_gone = next(i for i, state in enumerate(seen.states) if state[2] == 0)
        assert [s for s in seen.states[first_gone:] if s[2] and s[1] != CASCADE] == []


async def test_an_edited_label_is_repaired_without_slots_meanwhile(
    node: AgentNode, token: str
) -> None:
    async with history(node) as seen, node.kubelet, node.agent(token, cpuinfo=ICE_FILE):
        for edited in (CASCADE, None, "unknown"):
            await node.settled(ICE)
            node.set_label(edited)
            await until(
                lambda: node.label == ICE,
                deadline_s=30,
                what=f"{edited} is repaired",
                detail=lambda: (node.label, node.slots, node.condition),
            )
        await node.settled(ICE)
    for before, after in zip(seen.states, seen.states[1:], strict=False):
        if after[1] == ICE and before[1] != ICE:
            assert before[2] == 0, "the label was written while the Node showed slots"


async def test_after_a_kubelet_restart_the_slots_come_back(node: AgentNode, token: str) -> None:
    async with node.kubelet, node.agent(token, cpuinfo=ICE_FILE):
        await node.settled(ICE)
        await node.kubelet.restart()
        await until(
            lambda: len(node.kubelet.registrations) == 2 and node.slots == 4,
            deadline_s=30,
            what="the slots are back",
        )
        assert node.label == ICE


async def test_a_recreated_node_gets_its_label_and_then_its_slots(
    node: AgentNode, token: str
) -> None:
    async with node.kubelet, node.agent(token, cpuinfo=ICE_FILE):
        await node.settled(ICE)
        await node.kubelet.stop()
        node.delete()
        async with history(node) as seen:
            node.create()
            await node.kubelet.start()
            await node.settled(ICE)
        assert [state for state in seen.states if state[2] and state[1] != ICE] == []


async def test_the_slots_outlive_an_api_server_outage(
    plane: ControlPlane, node: AgentNode, token: str
) -> None:
    async with node.kubelet, node.agent(token, cpuinfo=ICE_FILE) as agent:
        await node.settled(ICE)
        plane.stop_apiserver()
        try:

            async def unready() -> bool:
                return await agent.probe("/readyz") == 503

            # A look during the outage: the kubelet's restart makes the agent look.
            await node.kubelet.restart()
            await until(unready, deadline_s=30, what="the agent says that it cannot see its Node")
            assert len(node.kubelet.registrations) == 1, "nothing is advertised unseen"
        finally:
            plane.start_apiserver()
        node.set_label(CASCADE)
        await node.settled(ICE, deadline_s=60)
        assert agent.running


async def test_a_node_that_exists_late_is_waited_for(node: AgentNode) -> None:
    token = node.bind_agent_pod()
    async with node.agent(token, cpuinfo=ICE_FILE):
        node.create()
        await until(lambda: node.label == ICE, deadline_s=30, what="the label")
        await node.until("KubeletUnreachable")
        async with node.kubelet:
            await node.settled(ICE)
            await node.until("Published")


async def test_when_the_agent_goes_the_slots_go_and_the_label_stays(
    node: AgentNode, token: str
) -> None:
    async with node.kubelet:
        async with node.agent(token, cpuinfo=ICE_FILE):
            await node.settled(ICE)
        await node.settled(ICE, slots=0)


# A label that cannot be written


async def test_with_never_no_slots_come_until_the_label_can_be_written(
    node: AgentNode, token: str
) -> None:
    await refuse_labels(node, token)
    agent = node.agent(token, cpuinfo=ICE_FILE, advertise_unlabelled_after="never")
    async with history(node) as seen, node.kubelet, agent:
        await node.until("LabelWriteFailed")
        assert REFUSED in node.condition["message"]
        assert node.kubelet.registrations == []
        await allow_labels(node)
        await node.settled(ICE)
        await node.until("Published")
    assert [state for state in seen.states if state[2] and state[1] != ICE] == []
    assert ("Warning", "LabelWriteFailed") in node.events()


async def test_after_the_time_the_slots_come_unlabelled_and_everybody_is_told(
    node: AgentNode, token: str
) -> None:
    await refuse_labels(node, token)
    agent = node.agent(token, cpuinfo=ICE_FILE, advertise_unlabelled_after="1s")
    async with node.kubelet, agent:
        await node.until("AdvertisedUnlabelled")
        await until(lambda: node.slots == 4, deadline_s=10, what="the slots")
        assert node.label is None
        assert node.condition["status"] == "False"
        assert ("Warning", "AdvertisedUnlabelled") in node.events()
        metrics = await agent.text("/metrics")
        assert 'sandbox_restore_node_agent_state{reason="AdvertisedUnlabelled"} 1.0' in metrics
        assert "sandbox_restore_node_agent_label_ok 0.0" in metrics
        await allow_labels(node)
        await node.settled(ICE)
        await node.until("Published")


async def test_a_cpu_that_cannot_be_told_is_treated_the_same(node: AgentNode, token: str) -> None:
    agent = node.agent(token, cpuinfo="arm-hybrid.txt", advertise_unlabelled_after="1s")
    async with node.kubelet, agent:
        await node.until("AdvertisedUnlabelled")
        await until(lambda: node.slots == 4, deadline_s=10, what="the slots")
        assert node.label is None
        assert "cores of more than one kind" in node.condition["message"]


# Sandboxes that a new label would end


def sandbox_pod(node: AgentNode, **term: object) -> dict[str, object]:
    expression = {"key": HOST_CPU_LABEL, **term}
    terms = [{"matchExpressions": [expression]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    resources = {"limits": {NETWORK_SLOTS: "1"}}
    return {
        "metadata": {"name": f"sandbox-{node.name}"},
        "spec": {
            "nodeName": node.name,
            "affinity": {"nodeAffinity": required},
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "runner", "image": "none", "resources": resources}],
        },
    }


async def test_a_label_that_would_end_a_sandbox_is_held_until_it_is_gone(
    node: AgentNode, token: str
) -> None:
    node.set_label(CASCADE)
    pods = "/api/v1/namespaces/default/pods"
    node.admin.post(pods, sandbox_pod(node, operator="NotIn", values=[ICE]))
    agent = node.agent(token, cpuinfo=ICE_FILE, agent_recheck_interval="1s")
    async with node.kubelet, agent:
        await node.until("RelabelHeld")
        assert f"default/sandbox-{node.name}" in node.condition["message"]
        assert node.label == CASCADE
        assert node.slots == 0
        assert ("Warning", "RelabelHeld") in node.events()
        assert "relabel_held_pods 1.0" in await agent.text("/metrics")
        node.admin.delete(f"{pods}/sandbox-{node.name}", grace_seconds=0)
        await node.settled(ICE)


async def test_force_relabel_changes_the_label_at_once(node: AgentNode, token: str) -> None:
    node.set_label(CASCADE)
    node.admin.post(
        "/api/v1/namespaces/default/pods", sandbox_pod(node, operator="NotIn", values=[ICE])
    )
    agent = node.agent(token, cpuinfo=ICE_FILE, arguments=("--force-relabel",))
    async with node.kubelet, agent:
        await node.settled(ICE)


# Writes


async def test_a_label_that_changed_meanwhile_is_not_written_over(
    node: AgentNode, token: str
) -> None:
    configuration = Configuration()
    await load_kube_config(str(node.plane.kubeconfig), client_configuration=configuration)
    client = KubeClient(configuration)
    try:
        kube, uid = KubeNode(client, name=node.name), node.get()["metadata"]["uid"]
        node.set_label(CASCADE)
        for stale in (
            {"uid": uid, "before": "amd-25-1-1"},
            {"uid": "another", "before": CASCADE},
        ):
            with pytest.raises(ConflictError):
                await kube.write_label(HOST_CPU_LABEL, ICE, any_label=True, **stale)
        body = {"type": "T", "status": "True", "reason": "R", "message": ""}
        with pytest.raises(SandboxRestoreError):
            await kube.write_condition(body, uid="another")
        assert node.label == CASCADE
        await kube.write_label(HOST_CPU_LABEL, ICE, uid=uid, before=CASCADE, any_label=True)
        await kube.write_label(HOST_CPU_LABEL, None, uid=uid, before=ICE, any_label=True)
        assert node.label is None
    finally:
        await client.close()


# One look


async def one(
    node: AgentNode, token: str, *arguments: str, **settings: str
) -> tuple[int, dict[str, object]]:
    """Run `node-agent ARGUMENTS -o json` to its end; its exit code and document."""
    process = node.agent(
        token, cpuinfo=ICE_FILE, arguments=(*arguments, "-o", "json"), log_level="error", **settings
    )
    await process.start()
    code = await process.wait(deadline_s=30)
    text = process.log()
    process.log_path.unlink()
    return code, json.loads(text)


async def test_once_writes_the_label_and_ends_without_slots(node: AgentNode, token: str) -> None:
    async with node.kubelet:
        code, document = await one(node, token, "--once")
        assert (code, document["labelled"], node.label) == (0, True, ICE)
        assert node.kubelet.registrations == []
        node.set_label(CASCADE)
        await node.kubelet._heard(4)
        code, document = await one(node, token, "--once")
        assert (code, document["reason"], node.label) == (1, "SlotsStillShown", CASCADE)


async def test_dry_run_tells_the_step_and_writes_nothing(node: AgentNode, token: str) -> None:
    code, document = await one(node, token, "--dry-run")
    assert (code, document["step"], document["value"]) == (1, "write-label", ICE)
    assert (node.label, node.condition, node.events()) == (None, {}, [])


async def test_without_slots_of_its_own_it_keeps_the_label_alone(
    node: AgentNode, token: str
) -> None:
    async with node.agent(token, cpuinfo=ICE_FILE, network_slots="0"):
        await node.until("Published")
        assert node.label == ICE


async def test_the_rest_of_the_node_is_left_as_it_was(node: AgentNode, token: str) -> None:
    node.plane.wait_nodes_ready(names=[node.name])
    before = node.get()
    async with node.agent(token, cpuinfo=ICE_FILE, network_slots="0"):
        await node.until("Published")
    after = node.get()
    labels = {k: v for k, v in after["metadata"]["labels"].items() if k != HOST_CPU_LABEL}
    assert labels == before["metadata"]["labels"]
    assert after["spec"] == before["spec"]
    types = {c["type"] for c in before["status"]["conditions"]}
    kept = [c for c in after["status"]["conditions"] if c["type"] in types]
    assert kept == before["status"]["conditions"]


async def test_it_says_what_is_wrong_and_ends(node: AgentNode) -> None:
    process = node.agent("nobody", cpuinfo=ICE_FILE, node_name="")
    await process.start()
    assert await process.wait(deadline_s=30) == 2
    assert "SPACE_SANDBOX_RESTORE_NODE_NAME" in process.log()
    assert "Traceback" not in process.log()
