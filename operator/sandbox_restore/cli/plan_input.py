"""What `plan` reads: a SandboxRestore, a list of nodes, the description of a snapshot.

Whatever is wrong with a file is told as one line that begins with its name and the place in it.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml
from msgspec import Struct

from sandbox_restore.errors import ConfigurationError
from sandbox_restore.kube.decode import node_from_body, node_from_json, restore_from_body
from sandbox_restore.model import names
from sandbox_restore.model.node import NodeFacts
from sandbox_restore.model.restore import Evacuation, Restore, RestoreSpec, Time
from sandbox_restore.model.sandbox import Snapshot
from sandbox_restore.placement.template import StrictLoader

STANDARD_INPUT: Final = "-"
_NODE_LISTS: Final = ("List", "NodeList")


class _NodeFile(Struct):
    """`kubectl get nodes -o json`, or one Node; the nodes themselves are read one by one."""

    kind: str = ""
    items: list[msgspec.Raw] | None = None


class SnapshotFile(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The description of a snapshot; everything in it may be left out."""

    id: str | None = None
    captured_at: Time | None = None
    uploaded_by: str | None = None
    host_cpu: str | None = None
    ancestor_cpus: list[str] = []
    storage_uri: str | None = None


def read_restore(name: str) -> Restore:
    """The SandboxRestore of a YAML or JSON file. Raises ConfigurationError."""
    body = _mapping(name, _yaml(name, _text(name)))
    seen = f"{body.get('apiVersion')} {body.get('kind')}"
    if seen != f"{names.API_VERSION} {names.KIND}":
        raise _wrong(name, "kind", f"{seen!r}; expected {names.API_VERSION} {names.KIND}")
    spec = body.get("spec")
    if isinstance(spec, dict):
        _known(name, "spec", spec, RestoreSpec)
        if isinstance(spec.get("evacuation"), dict):
            _known(name, "spec.evacuation", spec["evacuation"], Evacuation)
    try:
        return restore_from_body(body)
    except msgspec.ValidationError as error:
        raise _invalid(name, error) from None


def read_snapshot(name: str) -> SnapshotFile:
    """The description of a snapshot, YAML or JSON. Raises ConfigurationError."""
    body = _mapping(name, _yaml(name, _text(name)))
    _known(name, "", body, SnapshotFile)
    try:
        return msgspec.convert(body, SnapshotFile)
    except msgspec.ValidationError as error:
        raise _invalid(name, error) from None


def snapshot_of(
    described: SnapshotFile, *, restore: Restore, capture_cpu: str | None, name: str | None
) -> Snapshot:
    """The snapshot to plan for; `capture_cpu` stands in for what is described.

    Raises ConfigurationError where the restore names another snapshot than file `name`.
    """
    asked = restore.spec.snapshot_id
    wanted = asked if isinstance(asked, str) else None
    if name is not None and None not in (wanted, described.id) and wanted != described.id:
        raise _wrong(name, "id", f"{described.id!r}; the restore's spec.snapshotId is {wanted!r}")
    return Snapshot(
        id=described.id or wanted or "snapshot",
        sandbox_id=restore.spec.sandbox_id,
        captured_at=described.captured_at,
        uploaded_by=described.uploaded_by,
        host_cpu=capture_cpu if capture_cpu is not None else described.host_cpu,
        ancestor_cpus=tuple(described.ancestor_cpus),
        storage_uri=described.storage_uri,
    )


def read_nodes(name: str) -> list[NodeFacts]:
    """The nodes of `kubectl get nodes -o json` (or `-o yaml`). Raises ConfigurationError."""
    text = _text(name)
    found = list(_json_nodes(name, text) if text.lstrip()[:1] == "{" else _yaml_nodes(name, text))
    seen: dict[str, str] = {}
    for where, node in found:
        if not node.name:
            raise _wrong(name, f"{where}metadata.name", "missing; expected the node's name")
        if node.name in seen:
            raise _wrong(name, f"{where}metadata.name", f"{node.name!r} stands twice")
        seen[node.name] = where
    return [node for _, node in found]


def _json_nodes(name: str, text: str) -> Iterator[tuple[str, NodeFacts]]:
    """Each node with the path of what it is in; a large list is never in memory as a whole."""
    raw = text.encode("utf-8", "surrogatepass")
    try:
        document = msgspec.json.decode(raw, type=_NodeFile)
    except msgspec.ValidationError as error:
        raise _invalid(name, error) from None
    except msgspec.DecodeError as error:
        raise _not_json(name, text, error) from None
    if document.kind == "Node":
        yield "", _node(name, "", lambda: node_from_json(raw))
        return
    for i, item in enumerate(_items(name, document.kind, document.items)):
        where = f"items[{i}]."
        data = bytes(item)
        _check_kind(name, where, _kind_of(data))
        yield where, _node(name, where, lambda data=data: node_from_json(data))


def _yaml_nodes(name: str, text: str) -> Iterator[tuple[str, NodeFacts]]:
    body = _mapping(name, _yaml(name, text))
    if body.get("kind") == "Node":
        yield "", _node(name, "", lambda: node_from_body(body))
        return
    for i, item in enumerate(_items(name, body.get("kind"), body.get("items"))):
        where = f"items[{i}]."
        _check_kind(name, where, item.get("kind") if isinstance(item, dict) else None)
        yield where, _node(name, where, lambda item=item: node_from_body(item))


def _items(name: str, kind: object, items: object) -> list[Any]:
    if kind not in _NODE_LISTS:
        raise _wrong(name, "kind", f"{kind!r}; expected what `kubectl get nodes -o json` prints")
    if not isinstance(items, list):
        raise _wrong(name, "items", f"{'missing' if items is None else 'no list'}; expected nodes")
    return items


def _check_kind(name: str, where: str, kind: object) -> None:
    if kind not in (None, "", "Node"):
        raise _wrong(name, f"{where}kind", f"{kind!r}; expected Node")


class _Kind(Struct):
    kind: str = ""


def _kind_of(data: bytes) -> str:
    try:
        return msgspec.json.decode(data, type=_Kind).kind
    except msgspec.ValidationError:
        return ""  # The decoder of nodes tells what is wrong.


def _node(name: str, where: str, decode: Any) -> NodeFacts:
    try:
        facts: NodeFacts = decode()
    except msgspec.ValidationError as error:
        raise _invalid(name, error, within=where) from None
    return facts


# --- files


def _text(name: str) -> str:
    """The file's text; `-` is standard input."""
    try:
        if name == STANDARD_INPUT:
            return sys.stdin.read()
        return Path(name).read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigurationError([f"{name}: no UTF-8 at byte {error.start + 1}"]) from None
    except OSError as error:
        raise ConfigurationError([f"{name}: cannot be read: {error.strerror}"]) from None


class _Loader(StrictLoader):
    """YAML as Kubernetes reads it: a key stands once, and a time is a string."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in known if tag != "tag:yaml.org,2002:timestamp"]
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _yaml(name: str, text: str) -> object:
    """The one document of a YAML (or JSON) text."""
    try:
        documents = [d for d in yaml.load_all(text, Loader=_Loader) if d is not None]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        raise ConfigurationError([f"{name}: {where}not YAML: {problem}"]) from None
    if len(documents) != 1:
        raise ConfigurationError([f"{name}: {len(documents)} documents; expected one"])
    return documents[0]


def _mapping(name: str, document: object) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise ConfigurationError([f"{name}: {type(document).__name__}; expected a mapping"])
    return document


def _known(name: str, path: str, given: Collection[str], kind: type[Struct]) -> None:
    """Raises ConfigurationError for a field that there is not: it would be read as not given."""
    fields = [field.encode_name for field in msgspec.structs.fields(kind)]
    for key in given:
        if key in fields:
            continue
        near = difflib.get_close_matches(str(key), fields, n=1)
        hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(fields)}"
        raise _wrong(name, f"{path}.{key}".lstrip("."), f"no such field; {hint}")


def _wrong(name: str, path: str, problem: str) -> ConfigurationError:
    return ConfigurationError([f"{name}: {path}: {problem}"])


def _invalid(name: str, error: msgspec.ValidationError, *, within: str = "") -> ConfigurationError:
    """`Expected `int`, got `str` - at `$.spec.x`` as `FILE: spec.x: expected int, got str`."""
    problem, _, place = str(error).partition(" - at ")
    path = place.strip("`").removeprefix("$").removeprefix(".")
    problem = problem.replace("`", "")
    where = f"{within}{path}".rstrip(".")
    said = f"{problem[:1].lower()}{problem[1:]}"
    return ConfigurationError([f"{name}: {where}: {said}" if where else f"{name}: {said}"])


def _not_json(name: str, text: str, error: msgspec.DecodeError) -> ConfigurationError:
    """Where a text stops being JSON, as line and column."""
    problem, _, byte = str(error).partition(" (byte ")
    digits = byte.rstrip(")")
    where = ""
    if digits.isdigit():
        before = text.encode("utf-8", "surrogatepass")[: int(digits)]
        line_start = before.rfind(b"\n") + 1
        column = len(before[line_start:].decode("utf-8", "replace")) + 1
        where = f"line {before.count(chr(10).encode()) + 1}, column {column}: "
    elif "truncated" in problem:
        where = f"line {text.count(chr(10)) + 1}: "
    return ConfigurationError([f"{name}: {where}not JSON: {problem}"])
