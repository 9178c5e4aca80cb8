"""The fleet in memory: every node, and the sets of nodes that decisions ask for.

One writer (the event loop's handlers) calls `apply`, `remove` and `replace`; everything else
reads. A decision asks for a handful of sets and never looks at each node. What each set means for
a pod is not judged here but in `placement`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Protocol

from pyroaring import BitMap

from sandbox_restore.fleet import cpu as cpus
from sandbox_restore.fleet.labels import LabelIndex
from sandbox_restore.fleet.record import Aspect, NodeChange, NodeRecord
from sandbox_restore.fleet.ring import Ring
from sandbox_restore.fleet.tombstones import Tombstones
from sandbox_restore.model.names import HOST_CPU_LABEL, PLACEMENT_BLOCK_LABEL
from sandbox_restore.model.node import NodeFacts, Taint

_MAX_TOLERANCES: Final = 16
_MAX_LEFT: Final = 1024


class Tolerance(Hashable, Protocol):
    """What a pod tolerates; equal ones share one kept set of nodes."""

    @property
    def cordon(self) -> bool:
        """Cordoned nodes are tolerated."""

    def all_of(self, taints: tuple[Taint, ...]) -> bool:
        """Every taint that filters is tolerated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuCount:
    """Nodes of one CPU by state; the states overlap."""

    nodes: int
    ready: int
    cordoned: int
    deleting: int
    blocked: int
    tainted: int
    services_ready: int


class FleetIndex:
    """Every node that is known, by name and as sets."""

    def __init__(
        self,
        *,
        cpu_label: str = HOST_CPU_LABEL,
        published_hold: timedelta = timedelta(0),
        max_tombstones: int = 10_000,
    ) -> None:
        """`published_hold`: how long a CPU stays published after its last node (section 12)."""
        self.cpu_label: Final = cpu_label
        self.labels: Final = LabelIndex()
        self.all = BitMap()
        self.cordoned = BitMap()
        self.deleting = BitMap()
        self.ready = BitMap()
        self.services_ready = BitMap()
        self.without_slots = BitMap()
        self.taint_sets: Final[dict[tuple[Taint, ...], BitMap]] = {}
        """Nodes by the taints that they carry together; nodes with none are not listed."""
        self.version = 0
        """Rises with every change that can matter to a placement decision."""
        self._by_name: dict[str, NodeRecord] = {}
        self._by_slot: list[NodeRecord | None] = []
        self._free: list[int] = []
        self._resource_versions: list[int] = []
        self._key_sets: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._ring = Ring()
        self._closed: OrderedDict[Tolerance, BitMap] = OrderedDict()
        self._tombstones = Tombstones(limit=max_tombstones)
        self._hold = published_hold
        self._left: OrderedDict[str, datetime] = OrderedDict()
        self._published: tuple[str, ...] | None = None
        self._warm_since: datetime | None = None
        self._list_version = 0

    # --- reading

    @property
    def warm(self) -> bool:
        """An authoritative list has been taken in: what is not here does not exist."""
        return self._warm_since is not None

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[NodeRecord]:
        return iter(self._by_name.values())

    def get(self, name: str) -> NodeRecord | None:
        """The node of that name, or None."""
        return self._by_name.get(name)

    def at(self, slot: int) -> NodeRecord:
        """The node at a position of the sets."""
        record = self._by_slot[slot]
        if record is None:
            raise LookupError(f"slot {slot} is free")
        return record

    def names(self, nodes: BitMap, *, limit: int | None = None) -> tuple[str, ...]:
        """Names of the nodes of a set, sorted; with `limit`, of that many of them."""
        slots = nodes if limit is None else nodes[:limit]
        return tuple(sorted(self.at(slot).name for slot in slots))

    def with_cpu(self, cpu: str) -> BitMap:
        """Nodes whose label is that CPU."""
        return self.labels.equal(self.cpu_label, cpu)

    def published(self, *, now: datetime | None = None) -> tuple[str, ...]:
        """Section 2: the usable CPUs that some node's label names, in whatever state; sorted.

        With `now`, also those whose last node left within the hold of section 12.
        """
        if self._published is None:
            values = self.labels.values(self.cpu_label)
            self._published = tuple(sorted(v for v in values if cpus.usable(v) is not None))
        if now is None or not self._left:
            return self._published
        held = {
            value
            for value, left in self._left.items()
            if now - left < self._hold and cpus.usable(value) is not None
        }
        return tuple(sorted(held.union(self._published))) if held else self._published

    def unusable_labels(self) -> dict[str, tuple[str, ...]]:
        """Host-CPU label values that name no CPU (section 3), each with its nodes' names."""
        return {
            value: self.names(self.with_cpu(value))
            for value in sorted(self.labels.values(self.cpu_label))
            if cpus.usable(value) is None
        }

    def closed_to(self, tolerance: Tolerance) -> BitMap:
        """Nodes that take no pod with these tolerations, whatever it selects (section 7).

        They are cordoned, tainted, being deleted or blocked. The set is kept and follows every
        change, for the tolerations come from the few templates that there are.
        """
        kept = self._closed.get(tolerance)
        if kept is not None:
            return kept
        closed = self.deleting | self.labels.having(PLACEMENT_BLOCK_LABEL)
        if not tolerance.cordon:
            closed |= self.cordoned
        closed |= self.untolerated(tolerance)
        if len(self._closed) >= _MAX_TOLERANCES:
            self._closed.popitem(last=False)
        self._closed[tolerance] = closed
        return closed

    def untolerated(self, tolerance: Tolerance) -> BitMap:
        """Nodes with a taint that filters and is not tolerated."""
        found = BitMap()
        for taints, nodes in self.taint_sets.items():
            if not tolerance.all_of(taints):
                found |= nodes
        return found

    def first(self, candidates: BitMap, count: int, *, sandbox_id: str) -> list[NodeRecord]:
        """The first `count` of the candidates in the sandbox's stable order (section 9)."""
        slots = self._ring.first(
            candidates, count, sandbox_id=sandbox_id, name_of=lambda slot: self.at(slot).name
        )
        return [self.at(slot) for slot in slots]

    def absent_since(self, name: str, uid: str | None, *, now: datetime) -> datetime | None:
        """Since when this index knows that no such Node object exists; None: not known absent.

        With `uid`, a node of that name with another UID counts as absent. A node never seen is
        absent since the index became warm. The answer is about this index, which follows the API
        server by some seconds: whoever acts on it must have read the absence live as well.
        """
        record = self._by_name.get(name)
        if record is not None and uid in (None, record.uid):
            return None
        since = self._tombstones.since(name, uid)
        if since is None and self._warm_since is not None:
            since = max(self._warm_since, self._tombstones.forgotten_until or self._warm_since)
        return None if since is None else min(since, now)

    def counts(self) -> dict[str | None, CpuCount]:
        """Nodes per CPU and state; None stands for nodes without a usable label."""
        tainted = BitMap()
        for taints, nodes in self.taint_sets.items():
            if any(taint.effect in ("NoSchedule", "NoExecute") for taint in taints):
                tainted |= nodes
        unlabelled = self.all.copy()
        answer: dict[str | None, CpuCount] = {}
        for cpu in self.published():
            nodes = self.with_cpu(cpu)
            unlabelled -= nodes
            answer[cpu] = self._count(nodes, tainted=tainted)
        if unlabelled:
            answer[None] = self._count(unlabelled, tainted=tainted)
        return answer

    def _count(self, nodes: BitMap, *, tainted: BitMap) -> CpuCount:
        return CpuCount(
            nodes=len(nodes),
            ready=nodes.intersection_cardinality(self.ready),
            cordoned=nodes.intersection_cardinality(self.cordoned),
            deleting=nodes.intersection_cardinality(self.deleting),
            blocked=nodes.intersection_cardinality(self.labels.having(PLACEMENT_BLOCK_LABEL)),
            tainted=nodes.intersection_cardinality(tainted),
            services_ready=nodes.intersection_cardinality(self.services_ready),
        )

    # --- writing

    def remember_left(self, left: Mapping[str, datetime]) -> None:
        """Section 12: CPUs of the node history, and when the last node of each left."""
        for value, when in left.items():
            known = self._left.get(value)
            self._left[value] = when if known is None else max(known, when)
        for value in self.labels.values(self.cpu_label):
            self._left.pop(value, None)

    def apply(self, facts: NodeFacts, *, now: datetime) -> NodeChange | None:
        """Takes in one event of a node; None when it changes nothing, or is older than what is
        known."""
        before = self._by_name.get(facts.name)
        if self._is_stale(facts, before=before):
            return None
        what = Aspect(0)
        if before is not None and before.uid != facts.uid:
            self._tombstones.bury(before.name, before.uid, now)
            what = Aspect.REPLACED
        slot = self._take_slot() if before is None else before.slot
        after = self._record(facts, slot=slot, before=before)
        self._resource_versions[slot] = facts.resource_version
        if after == before:
            return None
        self._by_name[after.name] = after
        self._by_slot[slot] = after
        return self._changed(before, after, what=what, now=now)

    def remove(self, name: str, uid: str | None = None, *, now: datetime) -> NodeChange | None:
        """Takes in that a Node object is gone; None when it is not known, or another UID is."""
        before = self._by_name.get(name)
        if before is None or uid not in (None, before.uid):
            if uid is not None:
                self._tombstones.bury(name, uid, now)
            return None
        del self._by_name[name]
        self._tombstones.bury(name, before.uid, now)
        change = self._changed(before, None, what=Aspect.REMOVED, now=now)
        self._by_slot[before.slot] = None
        self._free.append(before.slot)
        return change

    def replace(
        self, nodes: Iterable[NodeFacts], *, now: datetime, version: int = 0
    ) -> list[NodeChange]:
        """Takes in an authoritative list of all nodes; what is not in it is gone. Makes it warm.

        `version`: the list's resourceVersion. With it, nodes that an event has shown in a later
        state, or for the first time, since the list was taken stay as they are.
        """
        changes: list[NodeChange] = []
        listed: set[str] = set()
        for facts in nodes:
            listed.add(facts.name)
            change = self.apply(facts, now=now)
            if change is not None:
                changes.append(change)
        for name in [name for name in self._by_name if name not in listed]:
            newer = self._resource_versions[self._by_name[name].slot] > version > 0
            change = None if newer else self.remove(name, now=now)
            if change is not None:
                changes.append(change)
        self._list_version = max(self._list_version, version)
        self._key_sets = {keys: keys for keys in {r.label_keys for r in self}}
        if self._warm_since is None:
            self._warm_since = now
            self.version += 1
        return changes

    def _is_stale(self, facts: NodeFacts, *, before: NodeRecord | None) -> bool:
        """Whether an event is older than what is known. Kopf's first pass lags behind our list,
        and tells of nodes that are gone by then (architecture.md)."""
        if self._tombstones.holds(facts.name, facts.uid):
            return True
        if before is None:
            return 0 < facts.resource_version <= self._list_version
        known = self._resource_versions[before.slot]
        if facts.resource_version and known:
            return facts.resource_version < known
        return before.uid != facts.uid and facts.created < before.created

    def _take_slot(self) -> int:
        if self._free:
            return self._free.pop()
        self._by_slot.append(None)
        self._resource_versions.append(0)
        return len(self._by_slot) - 1

    def _record(self, facts: NodeFacts, *, slot: int, before: NodeRecord | None) -> NodeRecord:
        """The record of a node, with every part that did not change taken from the one before."""
        labels = facts.labels
        keys = tuple(sorted(labels))
        keys = self._key_sets.setdefault(keys, keys)
        values = tuple([labels[key] for key in keys])
        taints = facts.taints
        name, uid, created = facts.name, facts.uid, facts.created
        if before is not None:
            name = before.name
            uid = before.uid if before.uid == uid else uid
            created = before.created if before.created == created else created
            taints = before.taints if before.taints == taints else taints
        if before is not None and before.label_keys is keys and before.label_values == values:
            values = before.label_values
        else:
            same = self.labels.same_object
            values = tuple(
                [
                    name if value == name else same(key, value)
                    for key, value in zip(keys, values, strict=True)
                ]
            )
        return NodeRecord(
            name=name,
            uid=uid,
            created=created,
            label_keys=keys,
            label_values=values,
            taints=taints,
            unschedulable=facts.unschedulable,
            deleting=facts.deleting,
            ready=facts.ready,
            ready_since=facts.ready_since,
            services_ready=facts.services_ready,
            network_slots=facts.network_slots,
            host_cpu_label=labels.get(self.cpu_label),
            slot=slot,
        )

    # --- keeping the sets

    def _changed(
        self, before: NodeRecord | None, after: NodeRecord | None, *, what: Aspect, now: datetime
    ) -> NodeChange:
        """Brings every set up to date and says what changed."""
        keys, cpu_values_changed = self._move_labels(before, after, now=now)
        if before is None:
            what |= Aspect.ADDED
        if keys:
            what |= Aspect.LABELS
            if self.cpu_label in keys:
                what |= Aspect.HOST_CPU
        slot = (after or before).slot  # type: ignore[union-attr]
        what |= self._move_states(before, after, slot=slot)
        self._move_taints(before, after, slot=slot)
        if before is None and after is not None:
            self.all.add(slot)
            self._ring.add(slot, after.name)
        elif after is None:
            self.all.discard(slot)
            self._ring.discard(slot)
        for tolerance, closed in self._closed.items():
            if after is not None and self._is_closed(after, tolerance=tolerance):
                closed.add(slot)
            else:
                closed.discard(slot)
        change = NodeChange(
            what=what,
            before=before,
            after=after,
            label_keys=frozenset(keys),
            cpu_values_changed=cpu_values_changed,
        )
        if change.matters:
            self.version += 1
        return change

    def _move_labels(
        self, before: NodeRecord | None, after: NodeRecord | None, *, now: datetime
    ) -> tuple[list[str], bool]:
        """Follows the labels; returns the keys that changed, and whether a CPU came or left."""
        if before is not None and after is not None and (before.label_values is after.label_values):
            return [], False
        old = {} if before is None else dict(before.labels)
        changed: list[str] = []
        cpus_changed = False
        if after is not None:
            for key, value in zip(after.label_keys, after.label_values, strict=True):
                was = old.pop(key, None)
                if was == value:
                    continue
                changed.append(key)
                if was is not None:
                    cpus_changed |= self._drop_label(key, was, after.slot, now=now)
                if self.labels.add(key, value, after.slot) and key == self.cpu_label:
                    self._left.pop(value, None)
                    cpus_changed = True
        for key, was in old.items():
            changed.append(key)
            if before is not None:
                cpus_changed |= self._drop_label(key, was, before.slot, now=now)
        if cpus_changed:
            self._published = None
        return changed, cpus_changed

    def _drop_label(self, key: str, value: str, slot: int, *, now: datetime) -> bool:
        """Takes a label off a node; True when it was the last one of a CPU label's value."""
        if not self.labels.discard(key, value, slot) or key != self.cpu_label:
            return False
        if self._hold:
            if len(self._left) >= _MAX_LEFT:
                self._left.popitem(last=False)
            self._left[value] = now
        return True

    def _move_states(
        self, before: NodeRecord | None, after: NodeRecord | None, *, slot: int
    ) -> Aspect:
        what = Aspect(0)
        for aspect, nodes, was, now_is in (
            (
                Aspect.CORDON,
                self.cordoned,
                before and before.unschedulable,
                after and after.unschedulable,
            ),
            (Aspect.DELETING, self.deleting, before and before.deleting, after and after.deleting),
            (Aspect.READY, self.ready, before and before.ready, after and after.ready),
            (
                Aspect.SERVICES,
                self.services_ready,
                before and before.services_ready,
                after and after.services_ready,
            ),
            (
                Aspect.SLOTS,
                self.without_slots,
                before and before.network_slots <= 0,
                after and after.network_slots <= 0,
            ),
        ):
            if bool(was) == bool(now_is):
                continue
            what |= aspect
            if now_is:
                nodes.add(slot)
            else:
                nodes.discard(slot)
        return what

    def _move_taints(
        self, before: NodeRecord | None, after: NodeRecord | None, *, slot: int
    ) -> None:
        was = () if before is None else before.taints
        now_are = () if after is None else after.taints
        if was == now_are:
            return
        if was:
            nodes = self.taint_sets[was]
            nodes.discard(slot)
            if not nodes:
                del self.taint_sets[was]
        if now_are:
            self.taint_sets.setdefault(now_are, BitMap()).add(slot)

    def _is_closed(self, node: NodeRecord, *, tolerance: Tolerance) -> bool:
        """As `closed_to`, for one node."""
        return (
            node.deleting
            or (node.unschedulable and not tolerance.cordon)
            or PLACEMENT_BLOCK_LABEL in node.label_keys
            or (bool(node.taints) and not tolerance.all_of(node.taints))
        )
