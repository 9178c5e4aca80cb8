"""The golden file of the chart: what its defaults make, the custom resource left out.

`python -m tests.chart.snapshot` writes it anew; what changed is then read in the diff.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from tests.support.helm import Helm
from tests.support.testbed import ensure_helm

GOLDEN = Path(__file__).parents[1] / "golden" / "chart_default.yaml"
_SOURCE = re.compile(r"^# Source: sandbox-restore/(\S+)$", re.MULTILINE)


def snapshot(helm: Helm) -> str:
    """Return the text that the golden file should have.

    The custom resource has tests of its own, and no place among what a person reads.
    """
    documents = helm.template().split("---\n")
    kept = [d for d in documents if d.strip() and _source(d) != "templates/crd.yaml"]
    return "---\n" + "---\n".join(kept)


def _source(document: str) -> str:
    found = _SOURCE.search(document)
    return found[1] if found else ""


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as home:
        GOLDEN.write_text(snapshot(Helm(ensure_helm(), home=Path(home))), encoding="utf-8")
