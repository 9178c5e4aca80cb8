"""The reference page of the settings, generated from the settings model.

`python -m sandbox_restore.cli.settings_doc [FILE]` writes it; `--check` only tells whether the
file is what would be written.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Final

from sandbox_restore.errors import ConfigurationError
from sandbox_restore.settings import (
    PREFIX,
    Settings,
    expects,
    load_settings,
    section,
    shown_default,
    variable,
)
from sandbox_restore.settings_agent import AGENT

FILE: Final = Path("docs") / "configuration.md"

_EXAMPLE: Final = {
    "DATABASE_URL": "postgresql+asyncpg://operator:hunter2@db/space",
    "COLD_CACHE_WAIT": "soon",
    "HOST_CPU_COMPATIBILITY": "intel-6-106-6=>intel-6-85-7,intel-6-143-8",
    "REDIRECT_PER_MINUTE": "30",
    "LEASE_DURATION": "8s",
}

_INTRODUCTION: Final = """\
<!-- Generated from operator/sandbox_restore/settings.py and settings_agent.py by
     python -m sandbox_restore.cli.settings_doc; change it there. -->

# Settings

The operator and the node agent read their settings from the environment when they start, check all
of them, and never change them while they run. A wrong one ends the start with exit code 2, one line
for each problem, before any connection is opened.

- A variable that is empty counts as unset.
- A duration is a number with a unit (`500ms`, `30s`, `2m`, `1h`, `1d`), several of them (`1h30m`),
  or a plain number of seconds.
- A list is separated by commas, blanks around an item allowed; an empty item is a mistake.
- A variable that begins with `{prefix}` and is not on this page is a
  mistake too, with the nearest name as a hint. The variables that Kubernetes makes for a Service
  of such a name (`…_SERVICE_HOST`, `…_PORT_80_TCP` and their like) are let pass.
- Secrets are never printed: not in errors, not in logs.

What the mistakes in

```sh
{exports}
```

look like (`sandbox-restore run`):

```text
{errors}
```

## All settings

| variable | default |
|---|---|
{overview}
"""


def markdown() -> str:
    """The text of the page."""
    # The node agent's stand last: a subclass's fields follow those it inherits.
    fields = sorted(Settings.model_fields, key=lambda field: section(field) == AGENT)
    rows = "\n".join(f"| [`{variable(f)}`](#{_anchor(f)}) | {_default(f)} |" for f in fields)
    page = _INTRODUCTION.format(
        prefix=PREFIX,
        exports="\n".join(f"{PREFIX}{name}='{value}'" for name, value in _EXAMPLE.items()),
        errors="\n".join(f"error: {problem}" for problem in _example_problems()),
        overview=rows,
    )
    return page + "".join(_sections(fields))


def _sections(fields: list[str]) -> Iterator[str]:
    for title, members in groupby(fields, key=section):
        yield f"\n## {title}\n"
        for field in members:
            text = " ".join((Settings.model_fields[field].description or "").split())
            yield (
                f"\n### {variable(field)}\n\n{text}\n\n"
                f"Value: {expects(field)}. Default: {_default(field)}.\n"
            )


def _default(field: str) -> str:
    default = shown_default(field)
    return f"`{default}`" if default else "unset"


def _anchor(field: str) -> str:
    return variable(field).lower()


def _example_problems() -> list[str]:
    try:
        load_settings({PREFIX + name: value for name, value in _EXAMPLE.items()})
    except ConfigurationError as error:
        return error.problems
    raise AssertionError("the example of wrong settings is right")


def main(arguments: list[str]) -> int:
    """Writes the page, or with `--check` compares it: 1 when it is missing or differs."""
    check = "--check" in arguments
    paths = [Path(argument) for argument in arguments if argument != "--check"]
    path = paths[0] if paths else FILE
    text = markdown()
    if not check:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return 0
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return 0
    command = "python -m sandbox_restore.cli.settings_doc"
    sys.stderr.write(f"{path}: not what the settings say; run {command}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
