"""Runs one measurement: `python -m bench NAME [options]`; each has its own `--help`."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import bench


def main(arguments: list[str]) -> int:
    """Imports only the measurement asked for: others need a cluster or a database."""
    known = sorted(m.name for m in pkgutil.iter_modules(bench.__path__) if m.name[0] != "_")
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"usage: python -m bench {{{','.join(known)}}} [options]")
        return 0 if arguments else 2
    name, *rest = arguments
    if name not in known:
        print(f"no measurement {name!r}; known: {', '.join(known)}", file=sys.stderr)
        return 2
    code = importlib.import_module(f"bench.{name}").main(rest)
    return int(code or 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
