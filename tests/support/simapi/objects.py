"""Objects, versions and the rules by which they change."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sandbox_restore.errors import ConflictError, RejectedError
from sandbox_restore.kube.client import NotFoundError

Json = dict[str, Any]

TERMINAL = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Change:
    """One watch event: the object as it then was; `deleted` is its end."""

    kind: str
    deleted: bool
    body: Json


class SimApi:
    """Nodes, the pods and SandboxRestores of one namespace, and Events.

    `clock` gives the time of every stamp. Bodies that are handed out are copies.
    """

    def __init__(self, *, namespace: str, clock: Callable[[], datetime]) -> None:
        self.namespace = namespace
        self.namespace_uid = f"{namespace}-uid"
        self.version = 100
        self.nodes: dict[str, Json] = {}
        self.pods: dict[str, Json] = {}
        self.restores: dict[str, Json] = {}
        self.events: dict[str, Json] = {}
        self.changes: list[Change] = []
        """All that a watch from the beginning would have told, in order."""
        self._clock = clock
        self._uids = 0

    def kind(self, kind: str) -> dict[str, Json]:
        """The objects of a kind by name."""
        return {"nodes": self.nodes, "pods": self.pods, "restores": self.restores}[kind]

    def get(self, kind: str, name: str) -> Json:
        """A copy. Raises NotFoundError."""
        found = self.kind(kind).get(name)
        if found is None:
            raise NotFoundError(f"no {kind} {name}")
        return copy.deepcopy(found)

    def list(self, kind: str, *, labels: dict[str, str] | None = None) -> list[Json]:
        """Copies, by name."""
        return [
            copy.deepcopy(body)
            for _, body in sorted(self.kind(kind).items())
            if all(
                body["metadata"].get("labels", {}).get(k) == v for k, v in (labels or {}).items()
            )
        ]

    def create(self, kind: str, body: Json) -> Json:
        """Adds an object, with a UID if it has none. Raises ConflictError: its name is taken."""
        name = body["metadata"]["name"]
        if name in self.kind(kind):
            raise ConflictError(f"{kind} {name} already exists")
        made = copy.deepcopy(body)
        self._uids += 1
        made["metadata"] = {
            "uid": f"{name}-uid-{self._uids}",
            **made["metadata"],
            "creationTimestamp": self.stamp(),
            "generation": 1,
        }
        self.kind(kind)[name] = made
        self._changed(kind, made)
        return copy.deepcopy(made)

    def update(self, kind: str, name: str, change: Callable[[Json], None]) -> Json:
        """Changes an object in place; what comes out unchanged gets no new version."""
        body = self.kind(kind)[name]
        before = copy.deepcopy(body)
        change(body)
        if body != before:
            self._changed(kind, body)
        return copy.deepcopy(body)

    def remove(self, kind: str, name: str) -> None:
        """Takes an object away, whatever it carries."""
        body = self.kind(kind).pop(name)
        self.version += 1
        body["metadata"]["resourceVersion"] = str(self.version)
        self.changes.append(Change(kind, True, copy.deepcopy(body)))

    def stamp(self, after: timedelta = timedelta(0)) -> str:
        """Now, as the API server writes it: whole seconds."""
        return (self._clock() + after).strftime("%Y-%m-%dT%H:%M:%SZ")

    def _changed(self, kind: str, body: Json) -> None:
        self.version += 1
        body["metadata"]["resourceVersion"] = str(self.version)
        self.changes.append(Change(kind, False, copy.deepcopy(body)))

    # --- pods

    def delete_pod(
        self, name: str, *, uid: str | None = None, version: str | None = None, force: bool = False
    ) -> None:
        """DELETE: at once where there is nothing to end and no finalizer; else marked.

        Raises NotFoundError; ConflictError when a precondition does not hold.
        """
        body = self.get("pods", name)
        meta = body["metadata"]
        if uid not in (None, meta["uid"]) or version not in (None, meta["resourceVersion"]):
            raise ConflictError(f"pod {name}: the precondition does not hold")
        at_once = force or not bound(body) or body["status"].get("phase") in TERMINAL
        grace = 0 if at_once else body["spec"].get("terminationGracePeriodSeconds", 30)

        def mark(pod: Json) -> None:
            known = pod["metadata"].get("deletionGracePeriodSeconds")
            if known is not None and known <= grace:
                return
            pod["metadata"]["deletionTimestamp"] = self.stamp(timedelta(seconds=grace))
            pod["metadata"]["deletionGracePeriodSeconds"] = grace

        self.update("pods", name, mark)
        self._remove_if_done(name)

    def _remove_if_done(self, name: str) -> None:
        meta = self.pods[name]["metadata"]
        if meta.get("deletionGracePeriodSeconds") == 0 and not meta.get("finalizers"):
            self.remove("pods", name)

    def patch_pod(self, name: str, operations: list[Json]) -> Json:
        """A JSON patch of `test` and `remove`. Raises ConflictError when a test fails."""
        patched = self.get("pods", name)
        for operation in operations:
            _apply(patched, operation)
        _drop_empty(patched)

        def put(pod: Json) -> None:
            pod.clear()
            pod.update(patched)

        after = self.update("pods", name, put)
        self._remove_if_done(name)
        return after

    def bind(self, name: str, node: str) -> bool:
        """What kube-scheduler asks for. False: refused (gated, bound, or being deleted)."""
        body = self.pods[name]
        refused = (
            body["spec"].get("schedulingGates")
            or bound(body)
            or "deletionTimestamp" in body["metadata"]
        )
        if refused:
            return False

        def put(pod: Json) -> None:
            pod["spec"]["nodeName"] = node
            set_condition(pod, "PodScheduled", "True", at=self.stamp())

        self.update("pods", name, put)
        return True

    # --- SandboxRestores

    def apply_status(self, name: str, wanted: Json, status: Json) -> Json:
        """Server-side apply by the one manager of the status: all of it is replaced.

        Raises ConflictError when UID or version are not those of `wanted`, where it names them.
        """
        meta = self.get("restores", name)["metadata"]
        if any((wanted.get(key) or meta[key]) != meta[key] for key in ("uid", "resourceVersion")):
            raise ConflictError(f"restore {name}: the precondition does not hold")

        def put(restore: Json) -> None:
            restore["status"] = copy.deepcopy(status)

        return self.update("restores", name, put)

    def edit_restore(self, name: str, **spec: object) -> None:
        """A user changes the spec."""

        def put(restore: Json) -> None:
            restore["spec"] |= spec
            restore["metadata"]["generation"] += 1

        self.update("restores", name, put)

    def post_event(self, body: Json) -> None:
        """Raises ConflictError when there is one of that name."""
        name = body["metadata"]["name"]
        if name in self.events:
            raise ConflictError(f"event {name} already exists")
        self.events[name] = copy.deepcopy(body)


def bound(pod: Json) -> bool:
    """Whether a node is set."""
    return bool(pod["spec"].get("nodeName"))


def set_condition(body: Json, kind: str, status: str, *, at: str, **more: str) -> None:
    """Sets a condition; its transition time moves only with its status."""
    conditions = body.setdefault("status", {}).setdefault("conditions", [])
    known = next((c for c in conditions if c["type"] == kind), None)
    if known is None:
        known = {"type": kind, "status": "", "lastTransitionTime": at}
        conditions.append(known)
    if known["status"] != status:
        known["lastTransitionTime"] = at
    known["status"] = status
    known.update(more)


def _apply(body: Json, operation: Json) -> None:
    *way, last = operation["path"].lstrip("/").split("/")
    try:
        holder: Any = body
        for step in way:
            holder = holder[int(step)] if isinstance(holder, list) else holder[step]
        place = int(last) if isinstance(holder, list) else last
        found = holder[place]
    except (KeyError, IndexError) as error:
        raise ConflictError(f"patch: nothing at {operation['path']}") from error
    match operation["op"]:
        case "test" if found != operation["value"]:
            raise ConflictError(f"patch: test of {operation['path']} fails")
        case "test":
            return
        case "remove":
            del holder[place]
        case other:
            raise RejectedError(f"patch: {other} is not played here")


def _drop_empty(pod: Json) -> None:
    for holder, key in (
        (pod["metadata"], "finalizers"),
        (pod["metadata"], "ownerReferences"),
        (pod["spec"], "schedulingGates"),
    ):
        if holder.get(key) == []:
            del holder[key]
