"""A short seeded run of the state machine; `make machine STEPS=10000` runs it for longer."""

from __future__ import annotations

import os

from hypothesis import Phase
from hypothesis.stateful import run_state_machine_as_test

from tests.machine.rules import machine_for
from tests.machine.running import rigged, settings_for
from tests.support.postgres import TestPostgres

EXAMPLES = int(os.environ.get("SANDBOX_RESTORE_MACHINE_EXAMPLES", "12"))


def test_no_interleaving_breaks_the_protocol(postgres: TestPostgres) -> None:
    with rigged(postgres) as rig:
        run_state_machine_as_test(
            machine_for(rig),
            settings=settings_for(examples=EXAMPLES, steps=40, phases=(Phase.generate,)),
        )
