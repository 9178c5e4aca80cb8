"""A simulated API server in memory, for tests that must choose every interleaving themselves.

What the real one does is tested on the real one (tests/cluster). This one plays the part of its
rules that the restore protocol stands on: versions, preconditions, patches that test, finalizers,
scheduling gates, graceful deletion.
"""

from __future__ import annotations

from tests.support.simapi.objects import Change, SimApi
from tests.support.simapi.requests import SimClient

__all__ = ["Change", "SimApi", "SimClient"]
