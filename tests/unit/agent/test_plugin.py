"""The device plugin, against a simulated kubelet (see tests/support/fakekubelet.py)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from sandbox_restore.agent.deviceplugin import generate
from sandbox_restore.agent.deviceplugin.plugin import DevicePlugin
from sandbox_restore.agent.state import Kubelet
from sandbox_restore.errors import UnavailableError
from sandbox_restore.model.names import NETWORK_SLOTS
from sandbox_restore.settings_agent import LONGEST_PLUGIN_DIR
from tests.support.fakekubelet import FakeKubelet
from tests.support.waiting import until


class Rig:
    """A plugin and the kubelet it talks to."""

    def __init__(self, folder: Path) -> None:
        self.changes = 0
        self.kubelet = FakeKubelet(folder)
        self.plugin = DevicePlugin(
            folder=folder, resource=NETWORK_SLOTS, devices=5, changed=self._changed
        )

    def _changed(self) -> None:
        self.changes += 1

    async def sees(self, devices: int) -> None:
        await until(
            lambda: self.kubelet.lists and self.kubelet.lists[-1] == devices,
            deadline_s=10,
            what=f"the kubelet sees {devices} devices",
            detail=lambda: self.kubelet.lists,
        )


@pytest_asyncio.fixture
async def rig(short_folder: Path) -> AsyncIterator[Rig]:
    """In a folder with the longest path that the settings take."""
    folder = short_folder / "k".ljust(LONGEST_PLUGIN_DIR - len(str(short_folder)) - 1, "k")
    folder.mkdir()
    rig = Rig(folder)
    follower = asyncio.create_task(rig.plugin.follow_kubelet())
    yield rig
    follower.cancel()
    await rig.plugin.stop()
    await rig.kubelet.stop()


async def test_nothing_is_registered_before_slots_are_offered(rig: Rig) -> None:
    await rig.kubelet.start()
    assert rig.kubelet.registrations == []
    assert rig.plugin.state == Kubelet()
    await rig.plugin.offer(3)
    await rig.sees(3)
    request = rig.kubelet.registrations[0]
    assert (request.version, request.resource_name) == ("v1beta1", "space.pplx.net/network-slots")
    assert rig.plugin.state == Kubelet(slots=3, registered=True)


async def test_slots_are_taken_away_and_given_back_over_one_registration(rig: Rig) -> None:
    await rig.kubelet.start()
    await rig.plugin.offer(3)
    await rig.plugin.offer(0)
    await rig.sees(0)
    assert rig.plugin.state == Kubelet(slots=0, registered=True)
    await rig.plugin.offer(5)
    await rig.sees(5)
    assert len(rig.kubelet.registrations) == 1


async def test_slots_that_are_not_offered_stay_in_the_capacity(rig: Rig) -> None:
    """A kubelet that lost its checkpoint would end the pods that hold one (docs/adr/0001)."""
    await rig.kubelet.start()
    for offered in (5, 0, 3):
        await rig.plugin.offer(offered)
        await rig.sees(offered)
    assert set(rig.kubelet.capacities) == {5}


async def test_a_kubelet_that_knows_nothing_is_told_that_there_are_no_slots(rig: Rig) -> None:
    await rig.kubelet.start()
    await rig.plugin.offer(0)
    await rig.sees(0)
    assert rig.plugin.state == Kubelet(slots=0, registered=True)


async def test_each_container_gets_an_answer(rig: Rig) -> None:
    await rig.kubelet.start()
    await rig.plugin.offer(3)
    assert await rig.kubelet.allocate(["slot-0"], ["slot-1", "slot-2"]) == 2


async def test_after_a_kubelet_restart_nothing_is_offered_until_asked_for(rig: Rig) -> None:
    await rig.kubelet.start()
    await rig.plugin.offer(3)
    await rig.kubelet.restart()
    await until(lambda: rig.changes, deadline_s=10, what="the restart is told")
    assert rig.plugin.state == Kubelet()
    assert len(rig.kubelet.registrations) == 1
    await rig.plugin.offer(3)
    await rig.sees(3)
    assert len(rig.kubelet.registrations) == 2


async def test_a_kubelet_that_comes_is_told_though_none_was_there(rig: Rig) -> None:
    with pytest.raises(UnavailableError, match="no kubelet"):
        await rig.plugin.offer(3)
    assert "no kubelet" in rig.plugin.state.problem
    await rig.kubelet.start()
    await until(lambda: rig.changes, deadline_s=10, what="the kubelet's start is told")
    await rig.plugin.offer(3)
    assert rig.plugin.state == Kubelet(slots=3, registered=True)


async def test_a_removed_socket_is_noticed(rig: Rig) -> None:
    await rig.kubelet.start()
    await rig.plugin.offer(3)
    (rig.kubelet.folder / rig.kubelet.registrations[0].endpoint).unlink()
    await until(lambda: rig.changes, deadline_s=10, what="the removed socket is told")
    assert not rig.plugin.state.registered


async def test_a_kubelet_that_listens_no_more_is_noticed_though_its_socket_stays(rig: Rig) -> None:
    await rig.kubelet.start()
    await rig.plugin.offer(3)
    await rig.kubelet.hang_up()
    await until(lambda: rig.changes, deadline_s=10, what="it is told")
    assert rig.plugin.state == Kubelet()
    await rig.plugin.offer(3)
    assert len(rig.kubelet.registrations) == 2


async def test_a_refused_registration_is_told_in_the_kubelets_words(rig: Rig) -> None:
    await rig.kubelet.start()
    rig.kubelet.refuse = "requested device plugin version is not supported"
    with pytest.raises(UnavailableError, match="version is not supported"):
        await rig.plugin.offer(3)
    assert rig.plugin.state.slots == 0
    rig.kubelet.refuse = ""
    await rig.plugin.offer(3)
    assert rig.plugin.state == Kubelet(slots=3, registered=True)


async def test_a_kubelet_that_asks_for_no_devices_is_no_registration(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sandbox_restore.agent.deviceplugin import plugin

    monkeypatch.setattr(plugin, "REGISTER_SECONDS", 0.3)
    await rig.kubelet.start()
    rig.kubelet.deaf = True
    with pytest.raises(UnavailableError, match="did not ask"):
        await rig.plugin.offer(3)
    assert not rig.plugin.state.registered


async def test_a_plugin_that_goes_leaves_no_slots(rig: Rig) -> None:
    await rig.kubelet.start()
    await rig.plugin.offer(3)
    await rig.plugin.stop()
    await rig.sees(0)
    assert rig.changes == 0


def test_the_messages_are_what_the_protocol_file_says() -> None:
    assert generate.main(["--check"]) == 0
