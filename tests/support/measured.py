"""What a run of the tests has measured: told by a test, printed at the run's end.

No test depends on these figures; they are of this machine and of its load.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

MEASURED = "measured"
"""Name of the property of a test's report that holds such a line; reports reach the process that
prints, whichever process ran the test."""


def measured_lines(stats: dict[str, list[Any]]) -> Iterator[str]:
    """The lines in the reports of a run."""
    for reports in stats.values():
        for report in reports:
            if getattr(report, "when", None) == "call":
                yield from (value for name, value in report.user_properties if name == MEASURED)
