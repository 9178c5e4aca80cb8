"""One real control plane for the node agent's tests; its kubelets are simulated."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.agentbed import AgentNode, install
from tests.support.testbed import ControlPlane, ensure_built

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def plane() -> Iterator[ControlPlane]:
    """No kwok: nodes live for as long as the tests, whatever their kubelets do."""
    with ControlPlane.start(ensure_built(), kwok=False, node_grace=3600) as plane:
        install(plane)
        yield plane


@pytest_asyncio.fixture
async def node(plane: ControlPlane, short_folder: Path) -> AsyncIterator[AgentNode]:
    """A name of its own for each test; neither Node nor kubelet is there yet."""
    node = AgentNode(plane, f"n{next(_numbers)}", short_folder)
    yield node
    await node.kubelet.stop()
