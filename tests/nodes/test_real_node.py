"""Section 13 on a real kubelet: label before slots, and running sandboxes outlive its restarts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from sandbox_restore.model.names import NETWORK_SLOTS
from tests.nodes.bed import (
    CASCADE,
    CASCADE_FILE,
    ICE,
    PODS,
    SLOTS,
    SLOW,
    Bed,
    came_back,
    unlabelled_with_slots,
)
from tests.support.agentbed import REFUSED, allow_labels, history, refuse_labels
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(600)

Measured = Callable[[str], None]


async def test_a_new_node_never_shows_slots_before_its_label(bed: Bed, measured: Measured) -> None:
    token = bed.bind_agent_pod()
    async with history(bed.view) as seen, bed.agent(token):
        await bed.start(ready=False)
        await bed.settled()
    assert unlabelled_with_slots(seen) == []
    first = seen.times[0]
    measured("new node, from its registration: " + ", ".join(came_back(seen, first)))


@pytest.mark.parametrize("forget", [False, True], ids=["with checkpoint", "checkpoint lost"])
async def test_a_sandbox_outlives_a_kubelet_restart_and_the_slots_come_back(
    bed: Bed, measured: Measured, forget: bool
) -> None:
    await bed.start()
    token = bed.bind_agent_pod()
    async with history(bed.view) as seen, bed.agent(token) as agent:
        await bed.settled()
        process = await bed.run_sandbox()
        assert process
        await bed.restart_kubelet(forget_checkpoint=forget)
        await bed.registered(agent, times=2)
        await until(lambda: seen.states[-1][2] == SLOTS, deadline_s=SLOW, what="slots are told")
        assert bed.view.label == ICE
        assert (bed.phase(), bed.process()) == ("Running", process)
    assert unlabelled_with_slots(seen) == []
    how = "checkpoint lost" if forget else "with checkpoint"
    back = ", ".join(came_back(seen, bed.kubelet_started))
    measured(f"kubelet restarted, {how}, from its start: {back}; sandbox alive")


async def test_a_recreated_node_gets_its_label_and_then_its_slots(
    bed: Bed, measured: Measured
) -> None:
    await bed.start()
    token = bed.bind_agent_pod()
    async with history(bed.view) as seen, bed.agent(token):
        await bed.settled()
        uid = bed.real.get()["metadata"]["uid"]
        await asyncio.to_thread(bed.real.stop_kubelet)
        bed.view.delete()
        await asyncio.to_thread(bed.real.start_kubelet)
        started = time.monotonic()
        await until(
            lambda: bed.real.get().get("metadata", {}).get("uid", uid) != uid,
            deadline_s=SLOW,
            what="a new Node of that name",
        )
        await bed.settled()
        await until(lambda: seen.states[-1][2] == SLOTS, deadline_s=SLOW, what="slots are told")
    assert unlabelled_with_slots(seen) == []
    back = ", ".join(came_back(seen, started))
    measured(f"Node deleted and kubelet restarted, from its start: {back}")


async def test_a_machine_under_an_old_nodes_name_shows_no_slots_before_its_own_label(
    bed: Bed, measured: Measured
) -> None:
    """The old one went with its Node's status saying slots; the new one knows nothing of them."""
    await bed.start()
    token = bed.bind_agent_pod()
    agent = bed.agent(token)
    async with agent:
        await bed.settled()
        await asyncio.to_thread(bed.real.stop_kubelet)
        await agent.kill()
    assert (bed.view.label, bed.view.slots) == (ICE, SLOTS)
    bed.real.forget_plugins()
    async with history(bed.view) as seen, bed.agent(token, cpuinfo=CASCADE_FILE):
        await asyncio.to_thread(bed.real.start_kubelet)
        started = time.monotonic()
        await bed.settled(CASCADE)
    labelled = next(i for i, state in enumerate(seen.states) if state[1] == CASCADE)
    assert seen.states[labelled][2] == 0
    old = max((at for at, state in seen.since(started) if state[1] == ICE and state[2]), default=0)
    measured(
        "another machine under an old Node's name, from its kubelet's start: the old slots until"
        f" {old:.1f} s, " + ", ".join(came_back(seen, started))
    )


# A label that the API server refuses


async def test_with_never_no_slots_come_until_a_write_succeeds(bed: Bed) -> None:
    await bed.start()
    token = bed.bind_agent_pod()
    await refuse_labels(bed.view, token)
    async with (
        history(bed.view) as seen,
        bed.agent(token, advertise_unlabelled_after="never") as agent,
    ):
        await bed.view.until("LabelWriteFailed", deadline_s=SLOW)
        # Nor does a kubelet that asks anew get any.
        await bed.restart_kubelet()
        assert (bed.view.label, bed.view.slots) == (None, 0)
        assert bed.view.condition["status"] == "False"
        assert REFUSED in bed.view.condition["message"]
        metrics = await agent.text("/metrics")
        assert 'sandbox_restore_node_agent_state{reason="LabelWriteFailed"} 1.0' in metrics
        assert "sandbox_restore_node_agent_slots_advertised 0.0" in metrics
        await allow_labels(bed.view)
        await bed.settled()
        await bed.view.until("Published", deadline_s=SLOW)
    assert unlabelled_with_slots(seen) == []
    assert bed.view.events() == [("Warning", "LabelWriteFailed"), ("Normal", "Published")]


async def test_by_default_the_slots_come_after_the_time_out_and_all_is_told(bed: Bed) -> None:
    """The default waits for two minutes; the test for less."""
    await bed.start()
    token = bed.bind_agent_pod()
    await refuse_labels(bed.view, token)
    async with (
        history(bed.view) as seen,
        bed.agent(token, advertise_unlabelled_after="3s") as agent,
    ):
        await bed.view.until("AdvertisedUnlabelled", deadline_s=SLOW)
        await until(lambda: bed.view.slots == SLOTS, deadline_s=SLOW, what="the slots")
        assert (bed.view.label, bed.view.condition["status"]) == (None, "False")
        assert REFUSED in bed.view.condition["message"]
        metrics = await agent.text("/metrics")
        assert 'sandbox_restore_node_agent_state{reason="AdvertisedUnlabelled"} 1.0' in metrics
        assert "sandbox_restore_node_agent_label_ok 0.0" in metrics
        assert await bed.run_sandbox()
        await allow_labels(bed.view)
        await bed.settled()
        await bed.view.until("Published", deadline_s=SLOW)
        assert bed.process()
    assert bed.view.events() == [
        ("Warning", "LabelWriteFailed"),
        ("Warning", "AdvertisedUnlabelled"),
        ("Normal", "Published"),
    ]
    shown = [(label, slots) for _, label, slots in seen.states]
    assert list(dict.fromkeys(shown))[:3] == [(None, 0), (None, SLOTS), (ICE, SLOTS)]


# A change of the label


async def test_a_relabel_takes_the_slots_away_and_leaves_the_sandbox_alone(bed: Bed) -> None:
    await bed.start()
    token = bed.bind_agent_pod()
    async with bed.agent(token):
        await bed.settled()
        process = await bed.run_sandbox()
    async with history(bed.view) as seen, bed.agent(token, cpuinfo=CASCADE_FILE):
        await bed.settled(CASCADE)
        assert (bed.phase(), bed.process()) == ("Running", process)
        await bed.restart_kubelet()
        await bed.settled(CASCADE)
        assert (bed.phase(), bed.process()) == ("Running", process)
    labelled = next(i for i, state in enumerate(seen.states) if state[1] == CASCADE)
    assert seen.states[labelled][2] == 0


async def test_a_sandbox_that_holds_a_relabel_outlives_kubelet_restarts(bed: Bed) -> None:
    """For as long as it runs there are no slots, and the kubelet must not mistake that."""
    await bed.start()
    token = bed.bind_agent_pod()
    async with bed.agent(token):
        await bed.settled()
        process = await bed.run_sandbox(bed.sandbox_pod(excluding=CASCADE))
    async with bed.agent(token, cpuinfo=CASCADE_FILE):
        await bed.view.until("RelabelHeld", deadline_s=SLOW)
        for _ in range(2):
            await bed.restart_kubelet()
            await until(lambda: bed.view.slots == 0, deadline_s=SLOW, what="no slots")
            assert (bed.phase(), bed.process()) == ("Running", process)
        assert bed.view.label == ICE
        bed.view.admin.delete(f"{PODS}/{bed.sandbox}")
        await bed.settled(CASCADE)


async def test_slots_patched_to_zero_end_a_sandbox_at_a_restart(bed: Bed) -> None:
    """Why the slots come from a device plugin; and that these tests would see a sandbox end."""
    await bed.start()
    status = f"{bed.view.path}/status"
    bed.view.admin.merge(status, {"status": {"capacity": {NETWORK_SLOTS: "4"}}})
    await until(lambda: bed.view.slots == 4, deadline_s=SLOW, what="the patched slots")
    await bed.run_sandbox()
    bed.view.admin.merge(status, {"status": {"capacity": {NETWORK_SLOTS: "0"}}})
    await until(lambda: bed.view.slots == 0, deadline_s=SLOW, what="no slots")
    await bed.restart_kubelet()
    await until(lambda: bed.process() == 0, deadline_s=SLOW, what="the sandbox is ended")


async def test_a_sandbox_outlives_the_agent_and_a_kubelet_restart_without_it(bed: Bed) -> None:
    await bed.start()
    token = bed.bind_agent_pod()
    async with bed.agent(token):
        await bed.settled()
        process = await bed.run_sandbox()
    await bed.restart_kubelet()
    assert (bed.phase(), bed.process()) == ("Running", process)
    async with bed.agent(token):
        await bed.settled()
        assert (bed.phase(), bed.process()) == ("Running", process)
