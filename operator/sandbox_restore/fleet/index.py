"""The fleet in memory: every node by name, and the sets of nodes that decisions ask for.

One writer (the event loop's handlers) calls `apply`, `remove` and `replace`; everything else
reads. A decision asks for a handful of sets and never looks at each node. What a set means for a
pod is not judged here but in `placement`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from pyroaring import BitMap

from sandbox_restore.fleet import cpu as cpus
from sandbox_restore.fleet import record
from sandbox_restore.fleet.history import NodeHistory
from sandbox_restore.fleet.labels import Labels
from sandbox_restore.fleet.left import LeftCpus
from sandbox_restore.fleet.record import NodeChange, NodeRecord
from sandbox_restore.fleet.sets import NodeSets
from sandbox_restore.fleet.tombstones import Tombstones
from sandbox_restore.model.names import HOST_CPU_LABEL, PLACEMENT_BLOCK_LABEL
from sandbox_restore.model.node import NodeFacts


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
    with_slots: int
    """They advertise network slots, so that sandboxes can land there."""


class FleetIndex:
    """Every node that is known, by name and as sets."""

    def __init__(
        self,
        *,
        cpu_label: str = HOST_CPU_LABEL,
        published_hold: timedelta = timedelta(0),
        max_tombstones: int = 10_000,
        history: NodeHistory | None = None,
    ) -> None:
        """`published_hold`: how long a CPU stays published after its last node (section 12).
        `history` is told of every change; None: none is kept."""
        self.cpu_label: Final = cpu_label
        self.history: Final = history
        self._sets: Final = NodeSets()
        self.standing: Final = self._sets.standing
        self.keep: Final = self._sets.keep
        self.tainted: Final = self._sets.tainted
        self.labels: Final = self._sets.labels
        self.all: Final = self._sets.all
        self.cordoned: Final = self._sets.cordoned
        self.deleting: Final = self._sets.deleting
        self.services_ready: Final = self._sets.services_ready
        self.without_slots: Final = self._sets.without_slots
        self.version = 0
        """Rises with every change that can matter to a placement decision."""
        self._by_name: dict[str, NodeRecord] = {}
        self._by_slot: list[NodeRecord | None] = []
        self._free: list[int] = []
        self._resource_versions = array("q")
        self._key_sets: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._tombstones = Tombstones(limit=max_tombstones)
        self._left = LeftCpus(hold=published_hold)
        self._published: tuple[str, ...] | None = None
        self._with_left: tuple[Mapping[str, datetime], tuple[str, ...]] | None = None
        """Those that left lately, and the published together with them."""
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
        found = self._by_slot[slot]
        if found is None:
            raise LookupError(f"slot {slot} is free")
        return found

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
        held = {} if now is None else self._left.held(now=now)
        if not held:
            return self._published
        if self._with_left is None or self._with_left[0] is not held:
            self._with_left = held, tuple(sorted({*self._published, *held}))
        return self._with_left[1]

    def left(self, *, now: datetime) -> Mapping[str, datetime]:
        """CPUs that count as published though no node has them, and when the last one left."""
        return self._left.held(now=now)

    def unusable_labels(self) -> dict[str, tuple[str, ...]]:
        """Host-CPU label values that name no CPU (section 3), each with its nodes' names."""
        return {
            value: self.names(self.with_cpu(value))
            for value in sorted(self.labels.values(self.cpu_label))
            if cpus.usable(value) is None
        }

    def first(self, candidates: BitMap, count: int, *, sandbox_id: str) -> list[NodeRecord]:
        """The first `count` of the candidates in the sandbox's stable order (section 9)."""
        slots = self._sets.ring.first(
            candidates, count, sandbox_id=sandbox_id, name_of=lambda slot: self.at(slot).name
        )
        return [self.at(slot) for slot in slots]

    def absent_since(self, name: str, uid: str | None, *, now: datetime) -> datetime | None:
        """Since when this index knows that no such Node object exists; None: not known absent.

        With `uid`, a node of that name with another UID counts as absent. A node never seen is
        absent since the index became warm. The answer is about this index, which follows the API
        server by some seconds: whoever acts on it must have read the absence live as well.
        """
        found = self._by_name.get(name)
        if found is not None and uid in (None, found.uid):
            return None
        since = self._tombstones.since(name, uid)
        if since is None and self._warm_since is not None:
            since = max(self._warm_since, self._tombstones.forgotten_until or self._warm_since)
        return None if since is None else min(since, now)

    def counts(self) -> dict[str | None, CpuCount]:
        """Nodes per CPU and state; None stands for nodes without a usable label."""
        tainted = self.tainted(
            lambda taints: any(t.effect in ("NoSchedule", "NoExecute") for t in taints)
        )
        slotted = BitMap([node.slot for node in self if node.network_slots])
        unlabelled = self.all.copy()
        answer: dict[str | None, CpuCount] = {}
        for cpu in self.published():
            nodes = self.with_cpu(cpu)
            unlabelled -= nodes
            answer[cpu] = self._count(nodes, tainted=tainted, slotted=slotted)
        if unlabelled:
            answer[None] = self._count(unlabelled, tainted=tainted, slotted=slotted)
        return answer

    def _count(self, nodes: BitMap, *, tainted: BitMap, slotted: BitMap) -> CpuCount:
        return CpuCount(
            nodes=len(nodes),
            ready=nodes.intersection_cardinality(self._sets.ready),
            cordoned=nodes.intersection_cardinality(self.cordoned),
            deleting=nodes.intersection_cardinality(self.deleting),
            blocked=nodes.intersection_cardinality(self.labels.having(PLACEMENT_BLOCK_LABEL)),
            tainted=nodes.intersection_cardinality(tainted),
            services_ready=nodes.intersection_cardinality(self.services_ready),
            with_slots=nodes.intersection_cardinality(slotted),
        )

    # --- writing

    def remember_left(self, left: Mapping[str, datetime]) -> None:
        """Section 12: CPUs of the node history, and when a node was last seen with each."""
        present = self.labels.values(self.cpu_label)
        self._left.left({cpu: when for cpu, when in left.items() if cpu not in present})
        self._with_left = None
        self.version += 1

    def apply(self, facts: NodeFacts, *, now: datetime) -> NodeChange | None:
        """Takes in one event of a node; None when it changes nothing, or is older than what is
        known."""
        change = self._apply(facts, now=now)
        if self.history is not None:
            self.history.take(change, now=now)
        return change

    def _apply(self, facts: NodeFacts, *, now: datetime) -> NodeChange | None:
        before = self._by_name.get(facts.name)
        if self._is_stale(facts, before=before):
            return None
        if before is None:
            return self._add(facts, now=now)
        self._resource_versions[before.slot] = facts.resource_version
        what = 0
        if before.uid != facts.uid:
            self._tombstones.bury(before.name, before.uid, now, certain=True)
            what = record.REPLACED
        keys, values = self._labels_of(facts, before=before)
        changed: tuple[str, ...] = ()
        alone: list[str] = []
        if keys is before.label_keys and values == before.label_values:
            values = before.label_values
        else:
            values, changed, alone = self.labels.move(
                (before.label_keys, before.label_values), (keys, values), before.slot
            )
        after = self._record(facts, keys=keys, values=values, slot=before.slot, before=before)
        if after == before:
            return None
        return self._store(before, after, what=what, changed=changed, alone=alone, now=now)

    def remove(self, name: str, uid: str | None = None, *, now: datetime) -> NodeChange | None:
        """Takes in that a Node object is gone; None when it is not known, or another UID is.

        A deletion that names the UID is certain: no late event brings that node back.
        """
        change = self._remove(name, uid, now=now)
        if self.history is not None:
            self.history.take(change, now=now)
        return change

    def _remove(self, name: str, uid: str | None = None, *, now: datetime) -> NodeChange | None:
        before = self._by_name.get(name)
        if before is None or uid not in (None, before.uid):
            if uid is not None:
                self._tombstones.bury(name, uid, now, certain=True)
            return None
        self._tombstones.bury(name, before.uid, now, certain=uid is not None)
        alone = self.labels.remove(before.label_keys, before.label_values, before.slot)
        what = self._sets.move(before, None, before.slot, label_keys=before.label_keys)
        del self._by_name[name]
        self._by_slot[before.slot] = None
        self._free.append(before.slot)
        return self._change(
            before, None, what=what, changed=before.label_keys, alone=alone, now=now
        )

    def replace(
        self, nodes: Iterable[NodeFacts], *, now: datetime, version: int = 0
    ) -> list[NodeChange]:
        """Takes in an authoritative list of all nodes; what is not in it is gone. Makes it warm.

        `version`: the list's resourceVersion. With it, nodes that an event has shown in a later
        state, or for the first time, since the list was taken stay as they are.
        """
        changes: list[NodeChange] = []
        listed: set[str] = set()
        self._list_version = 0  # what an earlier list left out is no proof against this one
        for facts in nodes:
            listed.add(facts.name)
            change = self._apply(facts, now=now)
            if change is not None:
                changes.append(change)
        for name in [name for name in self._by_name if name not in listed]:
            newer = self._resource_versions[self._by_name[name].slot] > version > 0
            change = None if newer else self._remove(name, now=now)
            if change is not None:
                changes.append(change)
        self._list_version = version
        self._key_sets = {keys: keys for keys in {node.label_keys for node in self}}
        if self._warm_since is None:
            self._warm_since = now
            self.version += 1
            self.labels.compact()
        if self.history is not None:
            self.history.take_listed(changes, now=now)
        return changes

    def _is_stale(self, facts: NodeFacts, *, before: NodeRecord | None) -> bool:
        """Whether an event is older than what is known. Kopf's first pass lags behind our list,
        and tells of nodes that are gone by then (architecture.md)."""
        if before is None or before.uid != facts.uid:
            if self._tombstones.holds(facts.name, facts.uid):
                return True
            if before is None:
                return 0 < facts.resource_version <= self._list_version
        known = self._resource_versions[before.slot]
        if facts.resource_version and known:
            return facts.resource_version < known
        return before.uid != facts.uid and facts.created < before.created

    # --- records

    def _add(self, facts: NodeFacts, *, now: datetime) -> NodeChange:
        slot = self._take_slot()
        self._resource_versions[slot] = facts.resource_version
        keys, values = self._labels_of(facts, before=None)
        name = facts.name
        # One string serves as the name and as the value of the host name label.
        given = [name if value == name else value for value in values]
        values, alone = self.labels.place(keys, given, slot)
        self._tombstones.lift(name, facts.uid)
        after = self._record(facts, keys=keys, values=values, slot=slot, before=None)
        return self._store(None, after, what=0, changed=keys, alone=alone, now=now)

    def _take_slot(self) -> int:
        if self._free:
            return self._free.pop()
        self._by_slot.append(None)
        self._resource_versions.append(0)
        return len(self._by_slot) - 1

    def _labels_of(self, facts: NodeFacts, *, before: NodeRecord | None) -> Labels:
        """The labels by sorted key; the keys are one tuple for all nodes with the same."""
        labels = facts.labels
        keys = tuple(labels)
        if before is not None and keys == before.label_keys:
            return before.label_keys, tuple(labels.values())
        keys = tuple(sorted(keys))
        values = tuple([labels[key] for key in keys])
        return self._key_sets.setdefault(keys, keys), values

    def _record(
        self,
        facts: NodeFacts,
        *,
        keys: tuple[str, ...],
        values: tuple[str, ...],
        slot: int,
        before: NodeRecord | None,
    ) -> NodeRecord:
        """The record of a node; what did not change is the object that is kept already."""
        name, uid, taints = facts.name, facts.uid, facts.taints
        if before is not None:
            name = before.name
            uid = before.uid if before.uid == uid else uid
        if before is not None and before.taints == taints:
            taints = before.taints
        elif taints:
            taints = self._sets.same_taints(taints)
        return NodeRecord(
            name=name,
            uid=uid,
            created_at=facts.created.timestamp(),
            label_keys=keys,
            label_values=values,
            taints=taints,
            unschedulable=facts.unschedulable,
            deleting=facts.deleting,
            ready=facts.ready,
            ready_at=None if facts.ready_since is None else facts.ready_since.timestamp(),
            services_ready=facts.services_ready,
            network_slots=facts.network_slots,
            host_cpu_label=self._value_of(self.cpu_label, keys, values),
            slot=slot,
        )

    @staticmethod
    def _value_of(key: str, keys: tuple[str, ...], values: tuple[str, ...]) -> str | None:
        at = bisect_left(keys, key)
        return values[at] if at < len(keys) and keys[at] == key else None

    def _store(
        self,
        before: NodeRecord | None,
        after: NodeRecord,
        *,
        what: int,
        changed: tuple[str, ...],
        alone: list[str],
        now: datetime,
    ) -> NodeChange:
        self._by_name[after.name] = after
        self._by_slot[after.slot] = after
        what |= self._sets.move(before, after, after.slot, label_keys=changed)
        return self._change(before, after, what=what, changed=changed, alone=alone, now=now)

    def _change(
        self,
        before: NodeRecord | None,
        after: NodeRecord | None,
        *,
        what: int,
        changed: tuple[str, ...],
        alone: list[str],
        now: datetime,
    ) -> NodeChange:
        """What is announced. `alone`: keys of which a value came onto its first node or went off
        its last one."""
        if changed:
            what |= record.LABELS
            if self.cpu_label in changed:
                what |= record.HOST_CPU
        cpus_changed = self.cpu_label in alone
        if cpus_changed:
            self._cpu_moved(
                None if before is None else before.host_cpu_label,
                None if after is None else after.host_cpu_label,
                now=now,
            )
        change = NodeChange(
            aspects=what,
            before=before,
            after=after,
            label_keys=changed,
            cpu_values_changed=cpus_changed,
        )
        if change.matters:
            self.version += 1
        return change

    # --- published CPUs

    def _cpu_moved(self, before: str | None, after: str | None, *, now: datetime) -> None:
        """A host-CPU label came onto its first node, or went off its last."""
        self._published = self._with_left = None
        if after is not None:
            self._left.back(after)
        if before is not None and before not in self.labels.values(self.cpu_label):
            self._left.left({before: now})
