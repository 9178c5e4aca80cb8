"""`python -m tests.machine --steps 10000`: the state machine for as long as you like.

Every run with the same seed does the same. With `--mutant NAME` one rule of the protocol is broken
on purpose first, to see what comes of it.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from contextlib import ExitStack

import structlog
from hypothesis import Phase, seed
from hypothesis.stateful import run_state_machine_as_test

from tests.machine.cluster import ViolationError
from tests.machine.mutants import MUTANTS, applied
from tests.machine.rules import machine_for
from tests.machine.running import rigged, settings_for
from tests.machine.story import Rig
from tests.support.postgres import open_postgres

STEPS_AN_EXAMPLE = 80
BATCH = 8
"""Examples between two looks at the count of steps."""


def main() -> int:
    """Exit code 1: a violation was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.machine")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shrink", action="store_true", help="look for the shortest story")
    parser.add_argument("--mutant", choices=sorted(MUTANTS), help="break this rule first")
    given = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with ExitStack() as stack:
        postgres = stack.enter_context(open_postgres())
        rig = stack.enter_context(rigged(postgres))
        with applied(MUTANTS[given.mutant][0]() if given.mutant else []):
            return run(rig, steps=given.steps, start=given.seed, shrink=given.shrink)


def batch(rig: Rig, number: int, phases: tuple[Phase, ...]) -> None:
    """The examples of one seed. Raises what the first bad one raises."""
    run_state_machine_as_test(
        seed(number)(machine_for(rig)),
        settings=settings_for(
            examples=BATCH, steps=STEPS_AN_EXAMPLE, phases=phases, derandomize=False
        ),
    )


def run(rig: Rig, *, steps: int, start: int, shrink: bool) -> int:
    """Batches of examples with seeds that follow each other, until there were enough steps."""
    phases = (Phase.generate, Phase.shrink) if shrink else (Phase.generate,)
    began, number = time.monotonic(), start
    while rig.steps < steps:
        try:
            batch(rig, number, phases)
        except ViolationError as error:
            print("\n".join(getattr(error, "__notes__", ())))
            print(f"seed {number}: {error}")
            return 1
        number += 1
        print(
            f"{rig.steps} steps, {rig.examples} examples, {time.monotonic() - began:.0f} s",
            flush=True,
        )
    for what, times in sorted(rig.seen.items()):
        print(f"{times:7}  {what}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
