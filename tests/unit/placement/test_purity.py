"""The decision core is pure: no framework, no API, no database, no clock."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import sandbox_restore

PACKAGE = Path(sandbox_restore.__file__).parent
MODULES = sorted(
    path for folder in ("fleet", "placement") for path in (PACKAGE / folder).glob("*.py")
)
FORBIDDEN = (
    "kopf",
    "kubernetes_asyncio",
    "asyncpg",
    "structlog",
    "aiohttp",
    "sqlalchemy",
    "prometheus_client",
    "pydantic",
)
CLOCKS = re.compile(r"\b(datetime\.(now|utcnow)|time\.(time|monotonic)|asyncio|random)\b")


def test_importing_the_core_loads_no_framework() -> None:
    names = [".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in MODULES]
    code = f"import importlib, sys\nfor n in {names!r}: importlib.import_module(n)\n"
    code += f"print([n for n in {FORBIDDEN!r} if n in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(PACKAGE.parent)},
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_module_reads_no_clock(path: Path) -> None:
    assert not CLOCKS.search(path.read_text("utf-8"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_fleet_knows_nothing_of_placement(path: Path) -> None:
    if path.parent.name == "fleet":
        assert "sandbox_restore.placement" not in path.read_text("utf-8")
