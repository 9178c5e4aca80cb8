"""The requests that the operator makes, by object (section 15: POST, UID-tested patches)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import msgspec
import structlog

from sandbox_restore.errors import ConflictError
from sandbox_restore.kube import decode
from sandbox_restore.kube.client import (
    APPLY_PATCH,
    JSON_PATCH,
    ExpiredError,
    KubeClient,
    NotFoundError,
)
from sandbox_restore.model import names
from sandbox_restore.model.node import NodeFacts
from sandbox_restore.model.pod import PodFacts
from sandbox_restore.model.restore import Restore

T = TypeVar("T")

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Listed(Generic[T]):
    """The objects of one consistent list, and the resource version that it shows."""

    items: list[T]
    version: int


NODES = "/api/v1/nodes"
PODS = "/api/v1/pods"
CRD = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{names.PLURAL}.{names.GROUP}"
CRD_FILE = f"crds/{names.GROUP}_{names.PLURAL}.yaml"
"""Where the CRD stands in this project."""
RESTORES = f"/apis/{names.GROUP}/{names.VERSION}/{names.PLURAL}"


def _pods(namespace: str) -> str:
    return f"/api/v1/namespaces/{quote(namespace)}/pods"


def _restores(namespace: str) -> str:
    return f"/apis/{names.GROUP}/{names.VERSION}/namespaces/{quote(namespace)}/{names.PLURAL}"


class KubeObjects:
    """Typed requests over one client; `namespaces` narrows the lists, empty = all."""

    def __init__(self, client: KubeClient, *, namespaces: tuple[str, ...] = ()) -> None:
        self.client = client
        self._namespaces = namespaces

    # --- lists

    async def ask_for_restores(self) -> None:
        """Asks for one SandboxRestore where they are served; NotFoundError without the CRD."""
        path = _restores(self._namespaces[0]) if self._namespaces else RESTORES
        await self.client.request("GET", path, query={"limit": "1"})

    async def nodes(self) -> Listed[NodeFacts]:
        """All nodes, from one consistent chunked list."""
        return await self._whole(NODES, _nodes)

    async def pods(self) -> Listed[PodFacts]:
        """All pods that carry the sandbox label, in every namespace that is served."""
        paths = [_pods(n) for n in self._namespaces] or [PODS]
        return _joined(
            [await self._whole(path, _pods_of, selector=names.SANDBOX_LABEL) for path in paths]
        )

    async def sandbox_pods(self, namespace: str, sandbox_id: str) -> Listed[PodFacts]:
        """The pods of one sandbox in its namespace, read now."""
        selector = f"{names.SANDBOX_LABEL}={sandbox_id}"
        return await self._whole(_pods(namespace), _pods_of, selector=selector)

    async def restores(self) -> Listed[Restore]:
        """All SandboxRestores, in every namespace that is served."""
        paths = [_restores(n) for n in self._namespaces] or [RESTORES]
        return _joined([await self._whole(path, _restores_of) for path in paths])

    async def _whole(
        self, path: str, items_of: Callable[[bytes], list[T]], *, selector: str = ""
    ) -> Listed[T]:
        """A list from first page to last; starts again when its token expired (410)."""
        query = {"labelSelector": selector} if selector else None
        for _ in range(5):
            found: list[T] = []
            version = 0
            try:
                async for raw in self.client.pages(path, query=query):
                    found += items_of(raw)
                    version = decode.list_version(raw)
            except ExpiredError:
                continue
            return Listed(found, version)
        raise ExpiredError(f"GET {path}: the list expired five times while it was read")

    # --- single reads; None when there is no such object

    async def node(self, name: str) -> NodeFacts | None:
        raw = await self._get(f"{NODES}/{quote(name)}")
        return None if raw is None else decode.node_from_json(raw)

    async def pod(self, namespace: str, name: str) -> PodFacts | None:
        raw = await self._get(f"{_pods(namespace)}/{quote(name)}")
        return None if raw is None else decode.pod_from_json(raw)

    async def restore(self, namespace: str, name: str) -> Restore | None:
        raw = await self._get(f"{_restores(namespace)}/{quote(name)}")
        return None if raw is None else decode.restore_from_json(raw)

    async def namespace_uid(self, name: str) -> str | None:
        raw = await self._get(f"/api/v1/namespaces/{quote(name)}")
        return None if raw is None else str(msgspec.json.decode(raw)["metadata"]["uid"])

    async def _get(self, path: str) -> bytes | None:
        try:
            return await self.client.request("GET", path)
        except NotFoundError:
            return None

    # --- pods

    async def create_pod(self, pod: dict[str, Any]) -> PodFacts:
        """POST. ConflictError when the name is taken."""
        raw = await self.client.request("POST", _pods(pod["metadata"]["namespace"]), body=pod)
        return decode.pod_from_json(raw)

    async def ungate(self, pod: PodFacts) -> PodFacts:
        """Removes the fence gate, by a patch that tests the UID and what it removes."""
        at = pod.gates.index(names.FENCE)
        return await self._patch_pod(
            pod,
            [
                {
                    "op": "test",
                    "path": f"/spec/schedulingGates/{at}/name",
                    "value": names.FENCE,
                },
                {"op": "remove", "path": f"/spec/schedulingGates/{at}"},
            ],
        )

    async def release(self, pod: PodFacts) -> PodFacts:
        """Removes owner and fence finalizer in one patch: the pod outlives its restore."""
        operations: list[dict[str, Any]] = []
        if pod.owner_uids:
            operations.append({"op": "remove", "path": "/metadata/ownerReferences"})
        operations += _without_fence(pod)
        return await self._patch_pod(pod, operations)

    async def drop_finalizer(self, pod: PodFacts) -> PodFacts:
        """Removes the fence finalizer and leaves the owner."""
        return await self._patch_pod(pod, _without_fence(pod))

    async def _patch_pod(self, pod: PodFacts, operations: list[dict[str, Any]]) -> PodFacts:
        guard = {"op": "test", "path": "/metadata/uid", "value": pod.uid}
        raw = await self.client.request(
            "PATCH",
            f"{_pods(pod.namespace)}/{quote(pod.name)}",
            body=[guard, *operations],
            content_type=JSON_PATCH,
        )
        return decode.pod_from_json(raw)

    async def delete_pod(self, pod: PodFacts) -> None:
        """DELETE with UID and resourceVersion as preconditions.

        ConflictError when the pod has changed meanwhile (it may have been bound); a pod that is
        gone already is no error.
        """
        await self._delete(
            f"{_pods(pod.namespace)}/{quote(pod.name)}", pod.uid, pod.resource_version
        )

    async def _delete(self, path: str, uid: str, resource_version: str | None) -> None:
        conditions = {"uid": uid}
        if resource_version is not None:
            conditions["resourceVersion"] = resource_version
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": conditions}
        try:
            await self.client.request("DELETE", path, body=options)
        except NotFoundError:
            return

    # --- restores and events

    async def delete_restore(self, restore: Restore) -> None:
        """DELETE with the UID as precondition, dependants in the background."""
        await self._delete(
            f"{_restores(restore.namespace)}/{quote(restore.name)}", restore.uid, None
        )

    async def apply_status(self, restore: Restore, status: dict[str, Any]) -> Restore | None:
        """Server-side apply of the whole status; None when the restore is gone.

        ConflictError when it has changed since it was read, or is another one of the same name: a
        status that comes late must not take back what was said since.
        """
        body = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {
                "name": restore.name,
                "namespace": restore.namespace,
                "uid": restore.uid,
                "resourceVersion": restore.resource_version,
            },
            "status": status,
        }
        try:
            raw = await self.client.request(
                "PATCH",
                f"{_restores(restore.namespace)}/{quote(restore.name)}/status",
                query={"fieldManager": names.FIELD_MANAGER, "force": "true"},
                body=body,
                content_type=APPLY_PATCH,
            )
        except NotFoundError:
            return None
        return decode.restore_from_json(raw)

    async def create_event(self, namespace: str, event: dict[str, Any]) -> None:
        """POST of an events.k8s.io/v1 Event; one of that name already there is no error."""
        try:
            await self.client.request(
                "POST",
                f"/apis/events.k8s.io/v1/namespaces/{quote(namespace)}/events",
                body=event,
            )
        except (ConflictError, NotFoundError):
            return


def _without_fence(pod: PodFacts) -> list[dict[str, Any]]:
    if names.FENCE not in pod.finalizers:
        return []
    at = pod.finalizers.index(names.FENCE)
    return [
        {"op": "test", "path": f"/metadata/finalizers/{at}", "value": names.FENCE},
        {"op": "remove", "path": f"/metadata/finalizers/{at}"},
    ]


def _nodes(raw: bytes) -> list[NodeFacts]:
    return [decode.node_facts(node) for node in decode.node_list(raw).items]


def _pods_of(raw: bytes) -> list[PodFacts]:
    return [decode.pod_facts(pod) for pod in decode.pod_list(raw).items]


def _restores_of(raw: bytes) -> list[Restore]:
    """One that an older CRD let in is left out and told: it must not stop the list of all."""
    found = []
    for item in decode.restore_list(raw).items:
        try:
            found.append(decode.restore_from_json(bytes(item)))
        except msgspec.ValidationError as error:
            log.error("restore_unreadable", problem=str(error))
    return found


def _joined(lists: list[Listed[T]]) -> Listed[T]:
    """Lists of several namespaces: no younger than the oldest of them."""
    return Listed(
        [item for listed in lists for item in listed.items],
        min((listed.version for listed in lists), default=0),
    )
