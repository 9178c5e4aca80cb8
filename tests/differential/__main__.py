"""`python -m tests.differential --pairs N --seed S`: exit code 1 when anything differs."""

from __future__ import annotations

import argparse
import sys

from tests.differential.run import compare
from tests.support.oracle import Oracle
from tests.support.testbed import BuildError


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.differential", description=__doc__)
    parser.add_argument("--pairs", type=int, default=5000, help="pairs of a pod and a fleet")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fleet", type=int, help="only this fleet, as a difference names it")
    given = parser.parse_args()
    try:
        with Oracle() as oracle:
            result = compare(oracle, pairs=given.pairs, seed=given.seed, only=given.fleet)
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for text in result.texts:
        print(text)
    print(result.line())
    return 0 if result.clean else 1


if __name__ == "__main__":
    sys.exit(main())
