"""The in-memory state that the watches feed: one writer, facts in, concerned sandboxes out.

PURE apart from being mutable: no I/O, no clock.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from sandbox_restore.fleet.index import FleetIndex
from sandbox_restore.fleet.record import NodeRecord
from sandbox_restore.model import names
from sandbox_restore.model.node import NodeFacts
from sandbox_restore.model.pod import PodFacts
from sandbox_restore.model.restore import Restore
from sandbox_restore.restore.interest import Interests
from sandbox_restore.restore.liveness import NodeSighting

Key = tuple[str, str]

KEPT_DEAD = 50_000
"""UIDs of deleted objects that are remembered; late news of them comes within seconds."""
KEPT_ENDS = 10_000
"""Ends of removed pods that are remembered; each is asked for within seconds of its removal."""


def is_newer(resource_version: str, than: str) -> bool:
    """Whether a version of one object is later.

    Kubernetes promises comparable, ordered resource versions of one resource since 1.35; anything
    that is not a number is taken as new.
    """
    if resource_version.isdigit() and than.isdigit():
        return int(resource_version) >= int(than)
    return True


class ClusterState:
    """Nodes, restore pods and SandboxRestores as last seen.

    Each method that takes news returns the ids of the sandboxes that it concerns.
    """

    def __init__(self, fleet: FleetIndex) -> None:
        self.fleet = fleet
        self.waiting_for_nodes: set[str] = set()
        """Sandboxes that any change of a node may concern, as a node proves a pod's end; the
        reconciler keeps it."""
        self.interests = Interests()
        """Sandboxes whose placement depends on the fleet, and how; the reconciler keeps it."""
        self._pods: dict[Key, PodFacts] = {}
        self._pods_of: dict[str, set[Key]] = defaultdict(set)
        self._pods_on: dict[str, set[Key]] = defaultdict(set)
        self._restores: dict[Key, Restore] = {}
        self._restores_of: dict[str, set[Key]] = defaultdict(set)
        self._gone_since: dict[str, datetime] = {}
        self._absent_since: dict[str, datetime] = {}
        self._ended: OrderedDict[Key, PodFacts] = OrderedDict()
        self._terminal_since: OrderedDict[str, datetime] = OrderedDict()
        self._dead: OrderedDict[str, None] = OrderedDict()
        self._became_ready: dict[str, datetime] = {}

    # --- reading

    def pods_of(self, sandbox_id: str) -> list[PodFacts]:
        """Restore pods labelled with the sandbox, by name."""
        return [self._pods[k] for k in sorted(self._pods_of.get(sandbox_id, ()))]

    def restores_of(self, sandbox_id: str) -> list[Restore]:
        """SandboxRestores that name the sandbox, in every namespace, by name."""
        return [self._restores[k] for k in sorted(self._restores_of.get(sandbox_id, ()))]

    def sandboxes(self) -> set[str]:
        """Every sandbox that a restore or a restore pod names."""
        return {s for s, keys in self._restores_of.items() if keys} | {
            s for s, keys in self._pods_of.items() if keys
        }

    def restores(self) -> Iterable[Restore]:
        """All SandboxRestores."""
        return self._restores.values()

    def gone_since(self, uid: str, now: datetime) -> datetime:
        """When the pod was first seen gone by this process: now, if that is news."""
        return self._gone_since.setdefault(uid, now)

    def forget_gone(self, uid: str) -> None:
        """The pod's execution is retired; nobody asks for it again."""
        self._gone_since.pop(uid, None)

    def sighting(self, name: str, now: datetime) -> NodeSighting:
        """The node of that name as the index has it; good enough to decide whether to look."""
        record = self.fleet.get(name)
        node = self.timed(_facts(record)) if record is not None else None
        absent = None if node is not None else self.absent_since(name, now)
        return NodeSighting(name=name, node=node, absent_since=absent)

    def absent_since(self, name: str, now: datetime) -> datetime:
        """When the name was first seen without a Node by this process: now, if that is news.

        Only a name that somebody asks for is remembered, until a Node of that name appears.
        """
        return self._absent_since.setdefault(name, now)

    def forget_absent(self, name: str) -> None:
        """A live read shows a Node of that name, whatever the index has heard of it so far."""
        self._absent_since.pop(name, None)

    # --- nodes

    def apply_node(self, node: NodeFacts, now: datetime) -> set[str]:
        """A node as it is now."""
        self._note_ready(node, now)
        self._absent_since.pop(node.name, None)
        change = self.fleet.apply(node, now=now)
        if change is None:
            return set()
        return self._concerned([node.name]) | self.interests.concerned(change)

    def remove_node(self, name: str, uid: str, now: datetime) -> set[str]:
        """A node that is gone."""
        change = self.fleet.remove(name, uid, now=now)
        self._became_ready.pop(name, None)
        if change is not None and name in self._pods_on:
            self._absent_since.setdefault(name, now)
        found = self._concerned([name])
        return found if change is None else found | self.interests.concerned(change)

    def replace_nodes(
        self, nodes: Iterable[NodeFacts], now: datetime, *, version: int = 0
    ) -> set[str]:
        """The authoritative list at a resource version: what it does not hold is gone."""
        listed = list(nodes)
        was_warm = self.fleet.warm
        if was_warm:
            for node in listed:
                self._note_ready(node, now)
        changes = self.fleet.replace(listed, now=now, version=version)
        for node in listed:
            self._absent_since.pop(node.name, None)
        found = self._concerned(list(self._pods_on))
        if not was_warm:
            return found | self.interests.all()
        return found.union(*(self.interests.concerned(change) for change in changes))

    def _note_ready(self, node: NodeFacts, now: datetime) -> None:
        """When this process saw the node become Ready: the node's own clock may be wrong."""
        before = self.fleet.get(node.name)
        if node.ready and (before is None or not before.ready or before.uid != node.uid):
            self._became_ready[node.name] = now
        elif not node.ready:
            self._became_ready.pop(node.name, None)

    def timed(self, node: NodeFacts) -> NodeFacts:
        """The node with the later of both answers to "Ready since when"."""
        seen = self._became_ready.get(node.name)
        if seen is None or node.ready_since is None or seen <= node.ready_since:
            return node
        return replace(node, ready_since=seen)

    def _concerned(self, node_names: Iterable[str]) -> set[str]:
        found = set(self.waiting_for_nodes)
        for name in node_names:
            for key in self._pods_on.get(name, ()):
                pod = self._pods[key]
                if pod.terminal or not pod.ready or names.FENCE in pod.finalizers:
                    found.add(pod.labels.get(names.SANDBOX_LABEL, ""))
        found.discard("")
        return found

    # --- pods

    def apply_pod(self, pod: PodFacts) -> set[str]:
        """A restore pod as it is now; older news than what is known is dropped."""
        key = (pod.namespace, pod.name)
        known = self._pods.get(key)
        if pod.uid in self._dead:
            return set()
        if known is not None and not is_newer(pod.resource_version, known.resource_version):
            return set()
        pod = self.merged(pod)
        self._drop_pod(key)
        self._pods[key] = pod
        self._gone_since.pop(pod.uid, None)
        sandbox = pod.labels.get(names.SANDBOX_LABEL, "")
        self._pods_of[sandbox].add(key)
        if pod.node_name is not None:
            self._pods_on[pod.node_name].add(key)
        return {sandbox} if sandbox else set()

    def ended(self, namespace: str, name: str) -> PodFacts | None:
        """The last state of a pod that is gone, if it was a reported end."""
        return self._ended.get((namespace, name))

    def remove_pod(
        self, namespace: str, name: str, uid: str, *, last: PodFacts | None = None
    ) -> set[str]:
        """A pod that is gone; `last` is the state in which the API server removed it.

        A reported end is kept, for it is a fact that nothing can change any more.
        """
        key = (namespace, name)
        self._bury(uid)
        end = last.runner_end if last is not None and last.terminal else None
        if last is not None and end is not None and end.is_report:
            self._ended[key] = last
            while len(self._ended) > KEPT_ENDS:
                self._ended.popitem(last=False)
        known = self._pods.get(key)
        if known is None or known.uid != uid:
            return set()
        sandbox = known.labels.get(names.SANDBOX_LABEL, "")
        self._drop_pod(key)
        return {sandbox} if sandbox else set()

    def merged(self, pod: PodFacts) -> PodFacts:
        """A pod as read, with what was known of it: a kubelet that rejects a running pod takes
        back that its container ever started."""
        known = self._pods.get((pod.namespace, pod.name))
        if known is None or known.uid != pod.uid or not known.runner_started:
            return pod
        return pod if pod.runner_started else replace(pod, runner_started=True)

    def seen_terminal(self, pod: PodFacts, now: datetime) -> datetime:
        """When this process first saw the pod terminal: now, if that is news."""
        found = self._terminal_since.setdefault(pod.uid, now)
        while len(self._terminal_since) > KEPT_ENDS:
            self._terminal_since.popitem(last=False)
        return found

    def _bury(self, uid: str) -> None:
        """News of a deleted object that comes late must not bring it back."""
        self._dead[uid] = None
        while len(self._dead) > KEPT_DEAD:
            self._dead.popitem(last=False)

    def forget_unlisted(
        self, namespace: str, sandbox_id: str, listed: Iterable[PodFacts], version: int
    ) -> None:
        """Pods of one sandbox that a live list at this version does not hold are gone."""
        names_listed = {p.name for p in listed}
        for pod in self.pods_of(sandbox_id):
            gone = pod.namespace == namespace and pod.name not in names_listed
            if gone and not _is_after(pod.resource_version, version):
                self.remove_pod(pod.namespace, pod.name, pod.uid)

    def replace_pods(self, pods: Iterable[PodFacts], *, version: int = 0) -> set[str]:
        """The authoritative list at a resource version: what it does not hold is gone."""
        found: set[str] = set()
        listed = {(p.namespace, p.name): p for p in pods}
        for key in set(self._pods) - set(listed):
            if not _is_after(self._pods[key].resource_version, version):
                found |= self.remove_pod(*key, self._pods[key].uid)
        for pod in listed.values():
            found |= self.apply_pod(pod)
        return found

    def _drop_pod(self, key: Key) -> None:
        known = self._pods.pop(key, None)
        if known is None:
            return
        _discard(self._pods_of, known.labels.get(names.SANDBOX_LABEL, ""), key)
        if known.node_name is not None:
            _discard(self._pods_on, known.node_name, key)

    # --- restores

    def apply_restore(self, restore: Restore) -> set[str]:
        """A SandboxRestore as it is now; older news than what is known is dropped."""
        key = (restore.namespace, restore.name)
        known = self._restores.get(key)
        if restore.uid in self._dead:
            return set()
        if known is not None and not is_newer(restore.resource_version, known.resource_version):
            return set()
        found = self._drop_restore(key)
        self._restores[key] = restore
        self._restores_of[restore.spec.sandbox_id].add(key)
        return found | {restore.spec.sandbox_id}

    def remove_restore(self, namespace: str, name: str, uid: str) -> set[str]:
        """A SandboxRestore that is gone."""
        self._bury(uid)
        known = self._restores.get((namespace, name))
        if known is None or known.uid != uid:
            return set()
        return self._drop_restore((namespace, name))

    def replace_restores(self, restores: Iterable[Restore], *, version: int = 0) -> set[str]:
        """The authoritative list at a resource version: what it does not hold is gone."""
        found: set[str] = set()
        listed = {(r.namespace, r.name): r for r in restores}
        for key in set(self._restores) - set(listed):
            known = self._restores[key]
            if not _is_after(known.resource_version, version):
                found |= self.remove_restore(*key, known.uid)
        for restore in listed.values():
            found |= self.apply_restore(restore)
        return found

    def _drop_restore(self, key: Key) -> set[str]:
        known = self._restores.pop(key, None)
        if known is None:
            return set()
        _discard(self._restores_of, known.spec.sandbox_id, key)
        return {known.spec.sandbox_id}


def _is_after(resource_version: str, version: int) -> bool:
    """Whether an object is younger than a list: the list does not speak of it. 0: no list known."""
    return version > 0 and resource_version.isdigit() and int(resource_version) > version


def _facts(record: NodeRecord) -> NodeFacts:
    """The part of a node that decides on a pod's life, or on a redirect away from it."""
    return NodeFacts(
        name=record.name,
        uid=record.uid,
        created=record.created,
        labels=record.labels,
        taints=record.taints,
        deleting=record.deleting,
        ready=record.ready,
        ready_since=record.ready_since,
    )


def _discard(index: dict[str, set[Key]], name: str, key: Key) -> None:
    keys = index.get(name)
    if keys is not None:
        keys.discard(key)
        if not keys:
            del index[name]
