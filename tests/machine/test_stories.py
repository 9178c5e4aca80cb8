"""Stories that the state machine, or thinking about it, has found: each is told again here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.machine.beginnings import begin
from tests.machine.ending import come_to_rest
from tests.machine.moves import moves
from tests.machine.running import opened
from tests.machine.story import RIGHT, Operator, Story
from tests.support.postgres import TestPostgres


@pytest.fixture
async def story(postgres: TestPostgres) -> AsyncIterator[Story]:
    async with opened(postgres, asyncio.get_running_loop()) as rig:
        yield Story(rig, gates=(True, True), odd=RIGHT)


async def looks(story: Story, operator: Operator) -> None:
    """It hears of everything and makes one pass."""
    story.tell(operator)
    await story.step("a pass", lambda: story.advance(operator, 1000))


async def moves_on(story: Story, what: str) -> None:
    """The world makes that move."""
    found = [m for m in moves(story.cluster) if m[0].startswith(what)]
    assert found, f"{what} cannot happen now: {[m[0] for m in moves(story.cluster)]}"
    await story.step(*found[0])


async def test_a_machine_that_registers_again_and_loses_contact_is_not_gone(story: Story) -> None:
    """A Node under another UID may stand for the same machine, its VM still running: that the old
    UID is absent for the grace period proves nothing while the new one does not speak."""
    await begin(story, "running")
    machine, one = story.cluster.machines["b"], story.operators[0]
    await story.step("b loses its Node object", lambda: story.cluster.delete_node(machine))
    await moves_on(story, "node b registers again")
    await looks(story, one)
    await story.step("b loses contact", lambda: story.cluster.lose_contact(machine))
    await moves_on(story, "node b is marked not Ready")
    story.pass_time(300)
    story.add_restore()
    await looks(story, one)
    assert story.view.active is not None, "its execution is retired while its VM runs"
    await story.step("b has contact again", lambda: story.cluster.find_contact(machine))
    await come_to_rest(story)
    assert len(story.cluster.live()) == 1


async def test_a_late_pod_under_the_name_of_one_that_is_gone_holds_nothing_up(
    story: Story,
) -> None:
    """It is swept although its execution is active: that one has recorded another UID."""
    await begin(story, "dead", writes=2)
    assert [what for what, _ in story.conductor.late] == ["POST /api/v1/namespaces/team-a/pods"]
    two = story.operators[1]
    for what in ("scheduler binds", "runner loads", "kubelet says"):
        await looks(story, two)
        await moves_on(story, what)
    await looks(story, two)
    [name] = story.api.pods
    await story.step("deleted by force", lambda: story.api.delete_pod(name, force=True))
    await moves_on(story, "kubelet ends")
    await story.step("the late POST", lambda: story.arrive(0))
    [late] = story.api.pods.values()
    assert late["spec"]["schedulingGates"]
    await looks(story, two)
    await looks(story, two)
    assert story.api.pods == {}
    assert story.view.active is not None
    story.add_restore()
    await come_to_rest(story)
