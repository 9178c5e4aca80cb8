"""helm, and the chart rendered with its defaults; no server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.helm import Helm, Object
from tests.support.testbed import ensure_helm


@pytest.fixture(scope="session")
def program() -> Path:
    """The path of helm."""
    return ensure_helm()


@pytest.fixture(scope="session")
def helm(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """helm without a server."""
    return Helm(program, home=tmp_path_factory.mktemp("helm"))


@pytest.fixture(scope="session")
def default(helm: Helm) -> list[Object]:
    """All objects that the defaults make."""
    return helm.objects()
