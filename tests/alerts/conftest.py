"""promtool, built once."""

from __future__ import annotations

import pytest

from tests.support.promtool import Promtool


@pytest.fixture(scope="session")
def promtool() -> Promtool:
    return Promtool()
