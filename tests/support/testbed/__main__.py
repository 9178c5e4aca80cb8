"""`python -m tests.support.testbed build|helm|start|stop|env`."""

import argparse
import functools
import shlex
import sys
from pathlib import Path

from tests.support.testbed import background
from tests.support.testbed.build import ensure_built, ensure_helm
from tests.support.testbed.errors import TestbedError

COMMAND = "python -m tests.support.testbed"


def main() -> int:
    """Run one command and return its exit code: 0, 1 after an error line, 130 after Ctrl-C."""
    arguments = _parser().parse_args()
    # Progress goes to standard error: what is printed by `start` and `env` is for `eval`.
    log = functools.partial(print, file=sys.stderr, flush=True)
    try:
        match arguments.command:
            case "build":
                programs = ensure_built(log=log)
                print(programs.kubectl.parent)
                print(programs.kwok.parent)
            case "helm":
                print(ensure_helm(log=log))
            case "start":
                running = background.start(root=arguments.root, log=log)
                print(_export(running))
                log(f"kubectl is {running.kubectl}; stop it with: {COMMAND} stop")
            case "stop":
                log("stopped" if background.stop() else "no control plane was running")
            case _:
                print(_export(background.running()))
    except TestbedError as error:
        log(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        log("interrupted")
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=COMMAND, description="A Kubernetes on this machine.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("build", help="build the programs once and print their folders")
    commands.add_parser("helm", help="build helm once and print its path")
    start = commands.add_parser("start", help="start a control plane that stays; print KUBECONFIG")
    start.add_argument("--root", type=Path, help="folder for its files, empty or new")
    commands.add_parser("stop", help="end it and remove its folder")
    commands.add_parser("env", help="print KUBECONFIG of the one that runs")
    return parser


def _export(running: background.Running) -> str:
    """Return the line that a shell evaluates."""
    return f"export KUBECONFIG={shlex.quote(running.kubeconfig)}"


if __name__ == "__main__":
    sys.exit(main())
