"""The CustomResourceDefinition, generated from the records in `model.restore`.

`python -m sandbox_restore.model.crd [FILE]` writes it; `--check` only tells whether the file is
what would be written. What the records cannot say (rules over several fields or over time,
columns, names) stands here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from sandbox_restore.model import names
from sandbox_restore.model.restore import RestoreSpec, RestoreStatus

NAME: Final = f"{names.PLURAL}.{names.GROUP}"
FILE: Final = Path("crds") / f"{names.GROUP}_{names.PLURAL}.yaml"
HEADER: Final = (
    "# Generated from operator/sandbox_restore/model/restore.py by\n"
    "# python -m sandbox_restore.model.crd; change it there.\n"
)

Schema = dict[str, Any]

_KEPT: Final = (
    "type",
    "format",
    "enum",
    "pattern",
    "minLength",
    "maxLength",
    "minimum",
    "maximum",
    "minItems",
    "maxItems",
    "maxProperties",
    "default",
)
_NESTED: Final = ("$ref", "title", "description", "properties", "required", "items")

_LABEL_KEY: Final = (
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
)


def _quoted(text: str) -> str:
    """A CEL raw string: backslashes of a regular expression stay as they are."""
    return f"r'{text}'"


def _immutable(field: str, *, optional: bool = True) -> Schema:
    """The rule that a field keeps the value it was created with.

    It is guarded on the parent: a rule on an optional field itself is not asked when the field
    is absent on either side, so that removing and adding it again would evade it.
    """
    same = f"self.{field} == oldSelf.{field}"
    guard = f"has(self.{field}) == has(oldSelf.{field})"
    return {
        "rule": f"{guard} && (!has(self.{field}) || {same})" if optional else same,
        "message": f"{field} is immutable; make a new {names.KIND} instead",
        "reason": "FieldValueForbidden",
        "fieldPath": f".{field}",
    }


SPEC_RULES: Final = (
    _immutable("sandboxId", optional=False),
    _immutable("snapshotId"),
    _immutable("hostCpuPolicy"),
    _immutable("evacuation"),
    {
        "rule": (
            "!has(self.evacuation) || !has(self.nodeSelector)"
            f" || !('{names.COHORT_LABEL}' in self.nodeSelector)"
        ),
        "message": (
            f"evacuation already names the cohort; take {names.COHORT_LABEL} out of nodeSelector"
        ),
        "reason": "FieldValueForbidden",
        "fieldPath": ".nodeSelector",
    },
)
_IS_LABEL_KEY: Final = f"k.matches({_quoted(_LABEL_KEY)}) && k.indexOf('/') <= 253"
_NOT_A_LABEL_KEY: Final = (
    "is not a label key: it takes a name of at most 63 letters, digits, -, _ and . that begins and"
    " ends with a letter or digit, after a DNS domain and a slash if it has one"
)
SELECTOR_RULES: Final = (
    {
        # No key is reserved: a selector can only narrow, and narrowing harms nobody but the
        # restore that asks for it.
        "rule": f"self.all(k, {_IS_LABEL_KEY})",
        "message": f"a key {_NOT_A_LABEL_KEY}",
        "messageExpression": (
            f"'\"' + self.filter(k, !({_IS_LABEL_KEY}))[0] + '\" {_NOT_A_LABEL_KEY}'"
        ),
    },
)

_SUCCEEDED: Final = '.status.conditions[?(@.type=="Succeeded")]'


def _column(name: str, path: str, *, kind: str = "string", wide: bool = False, text: str) -> Schema:
    """One column of `kubectl get`; a wide one shows only with `-o wide`."""
    column: Schema = {"name": name, "type": kind, "description": text, "jsonPath": path}
    return column | {"priority": 1} if wide else column


COLUMNS: Final = (
    _column("Succeeded", f"{_SUCCEEDED}.status", text="Whether the sandbox was restored."),
    _column("Reason", f"{_SUCCEEDED}.reason", text="Where it stands, one word."),
    _column("Sandbox", ".spec.sandboxId", text="The sandbox."),
    _column("Capture-CPU", ".status.placement.captureCpu", text="CPU of the capture."),
    _column("Source", ".status.plan.source", text="Where the state comes from."),
    _column("Node", ".status.nodeName", text="Node of the newest attempt."),
    _column("Age", ".metadata.creationTimestamp", kind="date", text="Since when it is there."),
    _column("Decision", ".status.placement.decision", wide=True, text="Placement decision."),
    _column(
        "Attempts",
        ".status.attempts[-1:].attempt",
        kind="integer",
        wide=True,
        text="Number of the newest attempt.",
    ),
    _column(
        "Redirect",
        '.status.conditions[?(@.type=="Redirected")].reason',
        wide=True,
        text="Whether a stranded restore was redirected to storage, or what blocks it.",
    ),
    _column("Snapshot", ".status.plan.snapshotId", wide=True, text="The snapshot chosen."),
    _column("Pod", ".status.podName", wide=True, text="Pod of the newest attempt."),
)


def definition() -> Schema:
    """The whole CustomResourceDefinition."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": NAME},
        "spec": {
            "group": names.GROUP,
            "names": {
                "kind": names.KIND,
                "listKind": f"{names.KIND}List",
                "plural": names.PLURAL,
                "singular": names.KIND.lower(),
                "shortNames": ["sbr"],
                "categories": ["space"],
            },
            "scope": "Namespaced",
            "versions": [
                {
                    "name": names.VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [dict(column) for column in COLUMNS],
                    "selectableFields": [{"jsonPath": ".spec.sandboxId"}],
                    "schema": {"openAPIV3Schema": object_schema()},
                }
            ],
        },
    }


def object_schema() -> Schema:
    """The schema of one SandboxRestore."""
    spec = structural(RestoreSpec)
    spec["x-kubernetes-validations"] = [dict(rule) for rule in SPEC_RULES]
    spec["properties"]["nodeSelector"]["x-kubernetes-validations"] = [
        dict(rule) for rule in SELECTOR_RULES
    ]
    status = structural(RestoreStatus)
    _drop_defaults(status)
    status["properties"]["conditions"] |= {
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
    }
    return {
        "description": "Restores one sandbox from a full snapshot, on a host that can load it.",
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": status,
        },
    }


def structural(record: type[msgspec.Struct]) -> Schema:
    """A record's JSON schema in the form that Kubernetes accepts: all inline, all typed.

    Raises TypeError when the record uses something that a structural schema cannot say, or has a
    field without a description.
    """
    (root,), defs = msgspec.json.schema_components([record])
    return _structural(root, defs=defs, path=record.__name__)


def _structural(node: Mapping[str, Any], *, defs: Mapping[str, Any], path: str) -> Schema:
    if "$ref" in node:
        # What is said at the place of use outranks what is said of the type.
        used = {key: value for key, value in node.items() if key != "$ref"}
        node = dict(defs[node["$ref"].rpartition("/")[2]]) | used
    if "enum" in node and "type" not in node:
        node = dict(node) | {"type": "string"}
    mapped = isinstance(node.get("additionalProperties"), dict)
    known = {*_KEPT, *_NESTED} | ({"additionalProperties"} if mapped else set())
    if strange := set(node) - known:
        raise TypeError(f"{path}: a structural schema cannot say {', '.join(sorted(strange))}")
    if "type" not in node:
        raise TypeError(f"{path}: no single type")
    out: Schema = {}
    if description := node.get("description"):
        out["description"] = " ".join(description.split())
    out |= {key: node[key] for key in _KEPT if key in node}
    if node["type"] == "integer":
        out["format"] = "int64"
    if mapped:
        out["additionalProperties"] = _structural(
            node["additionalProperties"], defs=defs, path=f"{path}{{}}"
        )
    if "items" in node:
        out["items"] = _structural(node["items"], defs=defs, path=f"{path}[]")
        out["x-kubernetes-list-type"] = "atomic"
    if node.get("required"):
        out["required"] = list(node["required"])
    if "properties" in node:
        out["properties"] = {
            name: _described(_structural(field, defs=defs, path=f"{path}.{name}"), f"{path}.{name}")
            for name, field in node["properties"].items()
        }
    return out


def _described(field: Schema, path: str) -> Schema:
    if "description" not in field:
        raise TypeError(f"{path}: no description, so that kubectl explain has nothing to say")
    return field


def _drop_defaults(node: Schema) -> None:
    """The operator leaves out what is at its default; a server that fills it in adds only noise."""
    node.pop("default", None)
    for field in node.get("properties", {}).values():
        _drop_defaults(field)
    if "items" in node:
        _drop_defaults(node["items"])


def absent_fields(served: Mapping[str, Any]) -> tuple[str, ...]:
    """Fields of ours that a CustomResourceDefinition read from a server does not know.

    A server prunes what its schema lacks without a word, so that an older definition would lose
    parts of the status. Empty: the definition serves this program. `v1alpha1` alone, not served:
    that version is missing.
    """
    versions = served.get("spec", {}).get("versions", [])
    found = [v for v in versions if v.get("name") == names.VERSION and v.get("served")]
    if not found:
        return (names.VERSION,)
    schema = found[0].get("schema", {}).get("openAPIV3Schema", {})
    known = set(_paths(schema, ""))
    return tuple(path for path in _paths(object_schema(), "") if path not in known)


def _paths(node: Mapping[str, Any], path: str) -> Iterator[str]:
    for name, field in node.get("properties", {}).items():
        yield f"{path}.{name}"
        yield from _paths(field, f"{path}.{name}")
    if "items" in node:
        yield from _paths(node["items"], f"{path}[]")


class _Dumper(yaml.SafeDumper):
    """Writes what occurs twice twice: anchors help nobody who reads the file."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def as_yaml() -> str:
    """The text of the CRD file."""
    text: str = yaml.dump(
        definition(), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100
    )
    return HEADER + text


def main(arguments: list[str]) -> int:
    """Writes the file, or with `--check` compares it: 1 when it is missing or differs."""
    check = "--check" in arguments
    paths = [Path(argument) for argument in arguments if argument != "--check"]
    path = paths[0] if paths else FILE
    text = as_yaml()
    if not check:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return 0
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return 0
    sys.stderr.write(f"{path}: not what the models say; run python -m sandbox_restore.model.crd\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
