"""A real kubelet and containerd, joined to a real control plane; skipped where that cannot be."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.agentbed import install
from tests.support.realnode import RealNode, why_not
from tests.support.testbed import ControlPlane, ensure_built

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def plane() -> Iterator[ControlPlane]:
    """A control plane for real nodes, with the agent's rights and policy."""
    if reason := why_not():
        pytest.skip(reason)
    with ControlPlane.start(ensure_built(), kwok=False) as plane:
        install(plane)
        yield plane


@pytest.fixture
def nodes(plane: ControlPlane) -> Iterator[Callable[[], RealNode]]:
    """Makes nodes, not started yet; they are stopped and their objects deleted at the end."""
    made: list[RealNode] = []

    def make() -> RealNode:
        folder = Path(tempfile.mkdtemp(prefix="rn", dir="/tmp"))
        made.append(RealNode(plane, f"real-{next(_numbers)}", folder=folder))
        return made[-1]

    yield make
    for node in made:
        node.stop()
        if node.get():
            plane.api().delete(node.path)
        node.remove()


@pytest.fixture
def node(nodes: Callable[[], RealNode]) -> RealNode:
    """A node of its own for each test, not started yet."""
    return nodes()
