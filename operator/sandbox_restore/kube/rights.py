"""The operator's rights, request by request (docs/install/rbac.yaml).

`doctor` asks for each; a test compares the list with the roles that are installed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from sandbox_restore.kube.client import KubeClient
from sandbox_restore.model import names


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """One verb on one resource."""

    verb: str
    group: str
    resource: str
    subresource: str = ""
    name: str = ""
    namespaced: bool = True
    lease: bool = False
    """In the Lease's namespace only."""
    needed_for: str

    def __str__(self) -> str:
        resource = f"{self.resource}/{self.subresource}" if self.subresource else self.resource
        group = f".{self.group}" if self.group else ""
        name = f" {self.name}" if self.name else ""
        return f"{self.verb} {resource}{group}{name}"


def _rights(verbs: str, group: str, resource: str, needed_for: str, **more: Any) -> list[Right]:
    return [
        Right(verb=verb, group=group, resource=resource, needed_for=needed_for, **more)
        for verb in verbs.split()
    ]


OPERATOR: Final = (
    *_rights("get list watch", "", "nodes", "the index of the fleet's CPUs", namespaced=False),
    *_rights("get list watch", "", "pods", "following restore pods"),
    *_rights("create patch delete", "", "pods", "making, releasing and ending restore pods"),
    *_rights("get", "", "namespaces", "telling a namespace made anew", namespaced=False),
    *_rights("get list watch", names.GROUP, names.PLURAL, "the restores"),
    *_rights("delete", names.GROUP, names.PLURAL, "ttlSecondsAfterFinished"),
    *_rights("patch", names.GROUP, names.PLURAL, "saying what is done", subresource="status"),
    *_rights("create", "events.k8s.io", "events", "Events"),
    *_rights(
        "get",
        "apiextensions.k8s.io",
        "customresourcedefinitions",
        "telling a CRD that is older than the program",
        name=f"{names.PLURAL}.{names.GROUP}",
        namespaced=False,
    ),
    *_rights("get create update", "coordination.k8s.io", "leases", "the Lease", lease=True),
)


def asked(
    *, namespaces: Sequence[str], lease_namespace: str, lease_name: str
) -> Iterator[tuple[Right, str | None]]:
    """Each right as the operator's requests name it, and in which namespace; None: in all.

    A role may name the objects (`resourceNames`), and then grants nothing to who names none: the
    Lease, and with `namespaces` each of these.
    """
    served: tuple[str | None, ...] = tuple(namespaces) or (None,)
    for right in OPERATOR:
        if right.lease:
            # A create has no name that a role could be held against.
            name = "" if right.verb == "create" else lease_name
            yield replace(right, name=name), lease_namespace
        elif right.resource == "namespaces":
            # A Namespace is asked for in the namespace that it is.
            for namespace in served:
                yield replace(right, name=namespace or ""), namespace
        elif right.namespaced:
            for namespace in served:
                yield right, namespace
        else:
            yield right, None


async def is_allowed(
    client: KubeClient, right: Right, *, namespace: str | None, user: str | None
) -> bool:
    """Whether the caller, or `user` (a service account's full user name), has it.

    To ask for another user takes the right to create SubjectAccessReviews: PermissionDeniedError.
    """
    attributes = {
        "verb": right.verb,
        "group": right.group,
        "resource": right.resource,
        "subresource": right.subresource,
        "name": right.name,
        "namespace": namespace or "",
    }
    kind = "SelfSubjectAccessReview" if user is None else "SubjectAccessReview"
    spec: dict[str, Any] = {"resourceAttributes": {k: v for k, v in attributes.items() if v}}
    if user is not None:
        spec["user"] = user
        spec["groups"] = [
            "system:authenticated",
            "system:serviceaccounts",
            *([f"system:serviceaccounts:{user.split(':')[2]}"] if user.count(":") == 3 else []),
        ]
    raw = await client.request(
        "POST",
        f"/apis/authorization.k8s.io/v1/{kind.lower()}s",
        body={"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec},
    )
    return bool(msgspec.json.decode(raw)["status"].get("allowed"))
