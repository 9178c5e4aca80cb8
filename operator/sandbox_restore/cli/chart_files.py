"""The files of the Helm chart that follow from something else, so that they cannot drift.

`python -m sandbox_restore.cli.chart_files [FOLDER]` writes them; `--check` only tells whether they
are what would be written. In values.yaml and values.schema.json the parts for the settings come
from the settings model; README.md comes from the comments of values.yaml; files/crd.yaml is the
CRD.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

import yaml

from sandbox_restore.model import crd
from sandbox_restore.settings import Settings, expects, section, variable
from sandbox_restore.settings_agent import AGENT
from sandbox_restore.settings_values import DURATION_FORMS, format_duration

FOLDER: Final = Path("charts") / "sandbox-restore"

NOT_VALUES: Final = {
    "database_url": "it comes from a Secret, by its file",
    "database_url_file": "the chart mounts the Secret",
    "pod_template_file": "the chart mounts the ConfigMap",
    "node_name": "each agent's pod names its own",
}
"""Settings that the chart decides itself, and why."""

_WIDTH: Final = 104
_ITEMS: Final = ("host_cpu_compatibility",)
"""Settings that are one text for the operator and a list in the values."""

_AMOUNT: Final = r"[0-9]+(\.[0-9]+)?"
_DURATION: Final = rf"({_AMOUNT}|({_AMOUNT}(ms|s|m|h|d))+)"
_LABEL: Final = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_NAME: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_KEY: Final = rf"({_NAME}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?"
_CPU: Final = r"[a-z0-9]+([-.][a-z0-9]+)*"

PATTERNS: Final = {
    "host_cpu_compatibility": rf" *{_CPU} *=> *{_CPU} *",
    "host_cpu_label": _KEY,
    "rollout_namespaces": _LABEL,
    "storage_uri_prefixes": r"[A-Za-z][A-Za-z0-9+.-]*://[^ ?#]*/",
    "namespaces": _LABEL,
    "drain_marks": _KEY,
    "lease_name": _NAME,
    "lease_namespace": rf"({_LABEL})?",
    "agent_value_suffix": rf"({_CPU})?",
    "agent_device_plugin_dir": r"/.*",
    "agent_cpuinfo_file": r"/.*",
}
"""What a text, or each item of a list, looks like. The operator judges it anew, and further."""

_CHOICES: Final = {
    "health_host": ("0.0.0.0", "::"),
}
"""All that a pod can use: no probe reaches a loopback address, and no value knows the pod's own."""

_MEANT: Final = {
    "lease_namespace": ("", "the release's namespace when empty"),
}
"""Defaults that differ from the operator's own because the chart knows better."""

_LOOKS: Final = {
    "health_host": "0.0.0.0, or :: in a cluster of IPv6 alone",
}
"""What values look like where less is right in a pod than for the operator."""

_FLOORS: Final = {"health_port": 1}
"""Least values that are greater than the operator's: probes need a port that is known."""


def fields(*, agent: bool) -> list[str]:
    """The settings that are values: the node agent's own, or all others."""
    return [
        field
        for field in Settings.model_fields
        if field not in NOT_VALUES and (section(field) == AGENT) is agent
    ]


def value_name(field: str) -> str:
    """The name of a setting among the values: `coldCacheWait` for `cold_cache_wait`."""
    first, *rest = field.split("_")
    return first + "".join(word.capitalize() for word in rest)


def default(field: str) -> Any:
    """The default of a setting, as it stands in the values."""
    if field in _MEANT:
        return _MEANT[field][0]
    found = Settings.model_fields[field].default
    if field in _ITEMS:
        return [item for item in str(found).split(",") if item]
    if isinstance(found, timedelta):
        return format_duration(found)
    if isinstance(found, tuple):
        return list(found)
    return str(found) if isinstance(found, Path) else found


def schema(field: str) -> dict[str, Any]:
    """What values.schema.json says of a setting."""
    return {"description": _text(field), "default": default(field), **_shape(field)}


def _shape(field: str) -> dict[str, Any]:
    annotation = Settings.model_fields[field].annotation
    pattern = f"^{PATTERNS[field]}$" if field in PATTERNS else None
    if field in _ITEMS or isinstance(default(field), list):
        shape: dict[str, Any] = {
            "type": "array",
            "items": {"type": "string", "pattern": pattern},
            "uniqueItems": True,
        }
        # Without items the operator's own default would hold.
        return shape | ({"minItems": 1} if default(field) else {})
    if annotation is bool:
        return {"type": "boolean"}
    if annotation is int:
        return {"type": "integer"} | _bounds(field)
    if field in _CHOICES:
        return {"type": "string", "enum": list(_CHOICES[field])}
    if get_origin(annotation) is Literal:
        return {"type": "string", "enum": list(get_args(annotation))}
    if annotation is timedelta:
        return {"type": "string", "pattern": f"^{_DURATION}$"}
    if timedelta in get_args(annotation):
        return {"type": "string", "pattern": f"^({_DURATION}|never)$"}
    if pattern is None:
        raise TypeError(f"{field}: PATTERNS does not say what its text looks like")
    return {"type": "string", "pattern": pattern}


def _bounds(field: str) -> dict[str, int]:
    """`minimum` and `maximum`, which pydantic keeps as separate marks."""
    marks = Settings.model_fields[field].metadata
    (least,) = (mark.ge for mark in marks if hasattr(mark, "ge"))
    (most,) = (mark.le for mark in marks if hasattr(mark, "le"))
    return {"minimum": _FLOORS.get(field, least), "maximum": most}


def _text(field: str) -> str:
    words = " ".join((Settings.model_fields[field].description or "").split())
    looks = _LOOKS.get(field) or expects(field).replace(f", {DURATION_FORMS}", "")
    if field in _ITEMS or isinstance(default(field), list):
        looks = looks.replace("comma-separated", "a list of").replace("(empty: ", "(none: ")
    if field in _MEANT:
        looks = f"{looks}; {_MEANT[field][1]}"
    return f"{words} Value: {looks}. `{variable(field)}`"


# The files


def values_yaml(text: str) -> str:
    """values.yaml with its parts for the settings made anew."""
    for agent, title, indent in (
        (False, "settings of the operator", "  "),
        (True, "settings of the node agent", "    "),
    ):
        begin, end = f"{indent}# BEGIN {title}\n", f"{indent}# END\n"
        before, found, rest = text.partition(begin)
        if not found or end not in rest:
            raise ValueError(f'values.yaml has no part "{title}" between BEGIN and END')
        block = "".join(_value_lines(field, indent) for field in fields(agent=agent))
        text = f"{before}{begin}{block}{rest[rest.index(end) :]}"
    return text


def _value_lines(field: str, indent: str) -> str:
    comment = textwrap.fill(
        f"-- {_text(field)}",
        width=_WIDTH,
        initial_indent=f"{indent}# ",
        subsequent_indent=f"{indent}# ",
        break_on_hyphens=False,
        break_long_words=False,
    )
    return f"{comment}\n{indent}{value_name(field)}: {json.dumps(default(field))}\n"


def schema_json(text: str) -> str:
    """values.schema.json with its parts for the settings made anew, in its one layout."""
    whole = json.loads(text)
    top = whole["properties"]
    top["settings"] = _settings_schema(agent=False)
    top["nodeAgent"]["properties"]["settings"] = _settings_schema(agent=True)
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def _settings_schema(*, agent: bool) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {value_name(field): schema(field) for field in fields(agent=agent)},
    }


_README: Final = """\
<!-- Generated from values.yaml by python -m sandbox_restore.cli.chart_files; change it there. -->

# sandbox-restore

Installs the operator (two replicas, one of which acts), the node agent on every node, the
CustomResourceDefinition, the rights of both and of your users, network policies and, where they are
wanted, what Prometheus and Grafana need. How to install, upgrade and uninstall it:
[docs/install.md](../../docs/install.md).

Needs Kubernetes 1.32 or later and PostgreSQL 15 or later. A value that is not below, or is of
another form, is refused before anything is changed.

## Values

| value | default | |
|---|---|---|
"""


def readme(values: str) -> str:
    """The chart's README: every documented value with its default."""
    rows = (
        f"| `{path}` | {_cell(value)} | {text.replace('|', '/')} |\n"
        for path, value, text in documented(values)
    )
    return _README + "".join(rows)


def documented(values: str) -> Iterator[tuple[str, Any, str]]:
    """Each value that has a comment: its path, its default, the comment.

    Raises ValueError for one that has none, and holds none that has.
    """
    root = yaml.compose(values, Loader=yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)
    yield from _documented(root, "", lines=values.splitlines())


def _documented(
    node: yaml.MappingNode, path: str, *, lines: list[str]
) -> Iterator[tuple[str, Any, str]]:
    for key, value in node.value:
        where = f"{path}.{key.value}" if path else str(key.value)
        text = _comment_above(key.start_mark.line, lines=lines)
        if text is not None:
            yield where, yaml.safe_load(yaml.serialize(value)), text
        elif isinstance(value, yaml.MappingNode) and value.value:
            yield from _documented(value, where, lines=lines)
        else:
            raise ValueError(f"values.yaml: {where} has no comment that begins with --")


def _comment_above(line: int, *, lines: list[str]) -> str | None:
    comment: list[str] = []
    for above in reversed(lines[:line]):
        found = re.fullmatch(r" *# ?(.*)", above)
        if not found:
            return None
        comment.insert(0, found[1])
        if found[1].startswith("-- "):
            return " ".join(comment).removeprefix("-- ")
    return None


def _cell(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return "see values.yaml" if len(text) > 60 else f"`{text}`"


def crd_copy() -> str:
    """The CRD as the chart holds it: Helm reads no file outside a chart."""
    return crd.as_yaml()


def wanted(folder: Path) -> dict[Path, str]:
    """Each file, and the text that it should have."""
    values, rules = folder / "values.yaml", folder / "values.schema.json"
    text = values_yaml(values.read_text(encoding="utf-8"))
    return {
        values: text,
        rules: schema_json(rules.read_text(encoding="utf-8")),
        folder / "README.md": readme(text),
        folder / "files" / "crd.yaml": crd_copy(),
    }


def main(arguments: list[str]) -> int:
    """Writes the files, or with `--check` compares them: 1 when one is missing or differs."""
    check = "--check" in arguments
    folders = [Path(argument) for argument in arguments if argument != "--check"]
    code = 0
    for path, text in wanted(folders[0] if folders else FOLDER).items():
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        if check:
            command = "python -m sandbox_restore.cli.chart_files"
            sys.stderr.write(f"{path}: not what it is made from says; run {command}\n")
            code = 1
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
