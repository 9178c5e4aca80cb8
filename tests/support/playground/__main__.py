"""`python -m tests.support.playground start|stop`."""

from __future__ import annotations

import argparse
import asyncio
import sys

from tests.support.playground import background, parts
from tests.support.testbed import TestbedError


def main() -> int:
    """Run one command and return its exit code: 0, or 1 after an error line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.playground", description="A place to try the operator in."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("start", help="start it in the background; it stays")
    commands.add_parser("stop", help="end it and remove its files")
    commands.add_parser("serve", help="what start leaves running")
    try:
        match parser.parse_args().command:
            case "start":
                background.start()
                print(f"The playground runs. Now: source {background.shown(parts.ENV_FILE)}")
            case "stop":
                print("stopped" if background.stop() else "no playground was running")
            case _:
                asyncio.run(parts.serve())
    except TestbedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
