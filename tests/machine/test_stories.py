"""Each story comes to a good end; and with the rule broken that it is about, it does not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.machine.mutants import MUTANTS, applied
from tests.machine.running import opened
from tests.machine.stories import STORIES, Tell
from tests.machine.story import RIGHT, Rig, Story
from tests.support.postgres import TestPostgres


@pytest.fixture(scope="session")
async def rig(postgres: TestPostgres) -> AsyncIterator[Rig]:
    async with opened(postgres, asyncio.get_running_loop()) as rig:
        yield rig


@pytest.mark.parametrize("tell", STORIES, ids=lambda tell: tell.__name__)
async def test_a_story_comes_to_a_good_end(rig: Rig, tell: Tell) -> None:
    await tell(Story(rig, gates=(True, True), odd=RIGHT))


@pytest.mark.parametrize("mutant", MUTANTS)
async def test_a_broken_rule_is_found(rig: Rig, mutant: str) -> None:
    patches, tell = MUTANTS[mutant]
    story = Story(rig, gates=(True, True), odd=RIGHT)
    with applied(patches()), pytest.raises(AssertionError):
        await tell(story)
