"""A metric that a page tells people to watch is one of docs/metrics.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
METRIC = re.compile(r"`(sandbox_restore_\w+)")
KNOWN = set(METRIC.findall((DOCS / "metrics.md").read_text()))
NO_METRICS = {"sandbox_restore_operator", "sandbox_restore_platform", "sandbox_restore_playground"}


@pytest.mark.parametrize("page", ["rollout.md", "troubleshooting.md", "stranded-restores.md"])
def test_every_metric_on_a_page_exists(page: str) -> None:
    named = set(METRIC.findall((DOCS / page).read_text())) - NO_METRICS
    assert named - KNOWN == set()
    assert named or page == "troubleshooting.md"
