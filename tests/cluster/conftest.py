"""One real control plane, Postgres and fleet for the cluster tests of a run."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.demo.scene import Scene, raised
from tests.support.fleet import matrix_fleet

_numbers = itertools.count(1)


class _Quiet:
    """A narrator that says nothing."""

    def doing(self, _text: str) -> None:
        return None


@pytest_asyncio.fixture(scope="session")
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    """Real parts, running; nodes: two a CPU, unlabelled, cordoned and tainted ones beside them."""
    fleet = matrix_fleet(nodes_per_cpu=2, unlabelled=3, cordoned=4, tainted=4)
    folder: Path = tmp_path_factory.mktemp("cluster")
    async with raised(fleet, folder=folder, narrator=_Quiet(), audit=True) as scene:  # type: ignore[arg-type]
        yield scene


@pytest_asyncio.fixture
async def namespace(scene: Scene) -> str:
    """A namespace of its own for each test."""
    name = f"test-{next(_numbers)}"
    await scene.add_namespace(name)
    return name
