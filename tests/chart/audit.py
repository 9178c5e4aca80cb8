"""What a user asked of the API server, from its audit log, against what RBAC grants."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.testbed import Api

_RBAC = "/apis/rbac.authorization.k8s.io/v1"


class Right(NamedTuple):
    """One verb on one resource, `pods` or `nodes/status`, of one API group."""

    verb: str
    resource: str
    group: str


def asked(log: Path, *, user: str) -> set[Right]:
    """What the user asked for, whatever came of it."""
    return {_right(event["objectRef"], event["verb"]) for event in _events(log, user=user)}


def refused(log: Path, *, user: str) -> list[str]:
    """The user's requests that were refused for want of rights, or by a policy."""
    return [
        f"{event['verb']} {event['requestURI']}: {event['responseStatus'].get('message', '')}"
        for event in _events(log, user=user)
        if event.get("responseStatus", {}).get("code") in (401, 403)
    ]


def _events(log: Path, *, user: str) -> Iterator[dict[str, Any]]:
    """Each request of the user about an object or a list of them."""
    with log.open(encoding="utf-8") as lines:
        for line in lines:
            # The last line may still be in the making.
            if not line.endswith("\n"):
                return
            event = json.loads(line)
            if event["user"]["username"] == user and "objectRef" in event:
                yield event


def _right(about: dict[str, Any], verb: str) -> Right:
    parts = (about["resource"], about.get("subresource"))
    return Right(verb, "/".join(part for part in parts if part), about.get("apiGroup", ""))


def granted(api: Api, *, account: str, namespace: str) -> set[Right]:
    """Every right that any binding on the server gives to a service account by its name."""
    subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    found: set[Right] = set()
    for binding in [
        *api.items(f"{_RBAC}/clusterrolebindings"),
        *api.items(f"{_RBAC}/rolebindings"),
    ]:
        if subject in (binding.get("subjects") or ()):
            found |= set(_rights(_role(api, binding)["rules"]))
    return found


def _role(api: Api, binding: dict[str, Any]) -> dict[str, Any]:
    reference = binding["roleRef"]
    if reference["kind"] == "ClusterRole":
        path = f"{_RBAC}/clusterroles/{reference['name']}"
    else:
        namespace = binding["metadata"]["namespace"]
        path = f"{_RBAC}/namespaces/{namespace}/roles/{reference['name']}"
    role: dict[str, Any] = api.get(path)
    return role


def _rights(rules: Iterable[dict[str, Any]]) -> Iterator[Right]:
    for rule in rules:
        for verb in rule["verbs"]:
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    yield Right(verb, resource, group)
