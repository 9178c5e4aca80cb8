"""A real kubelet and containerd, joined to a real control plane; skipped where that cannot be."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio

from tests.nodes.bed import Bed
from tests.support.agentbed import install
from tests.support.demo.scene import DATABASE, Scene
from tests.support.measured import MEASURED
from tests.support.postgres import open_postgres
from tests.support.realnode import ApiService, RealNode, why_not
from tests.support.simnode import CapturesInMemory, SimNode, load_matrix
from tests.support.testbed import ControlPlane, ensure_built

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def plane() -> Iterator[ControlPlane]:
    """A control plane for real nodes, with the agent's rights and policy.

    Nodes that are simulated beside them have no heartbeats, and stay for as long as the tests.
    """
    if reason := why_not():
        pytest.skip(reason)
    with ControlPlane.start(ensure_built(), kwok=False, node_grace=3600) as plane:
        install(plane)
        with ApiService(plane):
            yield plane


@pytest_asyncio.fixture(scope="session")
async def scene(
    plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Scene]:
    """The operator's surroundings on that control plane; its simulated runners are not started."""
    folder, captures = tmp_path_factory.mktemp("scene"), CapturesInMemory()
    matrix = load_matrix()
    with open_postgres() as postgres:
        scene = Scene(
            plane=plane,
            postgres=postgres,
            dsn=await postgres.create_database(DATABASE),
            matrix=matrix,
            fleet=(),
            captures=captures,
            nodes=SimNode(
                plane.kubeconfig, matrix=matrix, captures=captures, record=folder / "record.jsonl"
            ),
            folder=folder,
        )
        await scene.install()
        yield scene


@pytest.fixture
def measured(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Takes a line for the end of the test run: how long something took here."""
    return lambda line: record_property(MEASURED, line)


@pytest.fixture
def nodes(plane: ControlPlane) -> Iterator[Callable[..., RealNode]]:
    """Makes nodes, not started yet; they are stopped and their objects deleted at the end."""
    made: list[RealNode] = []

    def make(*, images: Sequence[Path] = ()) -> RealNode:
        folder = Path(tempfile.mkdtemp(prefix="rn", dir="/tmp"))
        name = f"real-{next(_numbers)}"
        made.append(RealNode(plane, name, folder=folder, images=images))
        return made[-1]

    yield make
    for node in made:
        node.stop()
        if node.get():
            plane.api().delete(node.path)
        node.remove()


@pytest.fixture
def node(nodes: Callable[..., RealNode]) -> RealNode:
    """A node of its own for each test, not started yet."""
    return nodes()


@pytest.fixture
def bed(node: RealNode, tmp_path: Path) -> Bed:
    """That node with what tests do on it."""
    return Bed(node, tmp_path)
