"""Which CPU each Node carried, from when to when (domain.md section 12).

A span says: this Node object (name and UID) carried this CPU when it was first seen and when it
was last seen to, and nothing else was seen of it in between. What no span covers is not known.

The fleet index tells every change; what is new is handed out to be written, by `unwritten` and
`extended`. Times are kept as seconds since the epoch: half of what a datetime takes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Final

from msgspec import Struct

from sandbox_restore.fleet import record
from sandbox_restore.fleet.record import NodeChange, NodeRecord
from sandbox_restore.model.sandbox import NodeCpuSpan

MAX_PAST: Final = 250_000
"""Ended spans that are remembered; the database may hold more."""
MAX_UNWRITTEN: Final = 100_000
"""Ended spans that wait for the database; the oldest are given up beyond it."""

FLAPS: Final = 8
FLAP_WINDOW: Final = timedelta(minutes=10)
"""A Node whose label has begun so many spans in that time is not recorded until it has kept one
label for as long: two agents that disagree must not fill the database."""

_SPANS: Final = record.ADDED | record.REMOVED | record.REPLACED | record.HOST_CPU


class Carried(Struct, frozen=True, gc=False, kw_only=True):
    """What the history says of one node name at one time."""

    cpu: str | None = None
    why: str = ""
    """Why no CPU is told; empty when one is."""


class _Span(Struct, frozen=True, gc=False):
    uid: str
    cpu: str
    first: float
    last: float
    """`inf` while it goes on."""


_Key = tuple[str, str, float]
"""What a row is known by: name, UID, first seen."""


class NodeHistory:
    """The spans of every node name that this process saw or read; bounded.

    One writer. Nothing is answered and nothing is handed out before `load`: an answer without the
    older spans could miss one that contradicts it, and a span that is one with an older one would
    be written twice.
    """

    def __init__(self, *, max_past: int = MAX_PAST, max_unwritten: int = MAX_UNWRITTEN) -> None:
        self.max_past: Final = max_past
        self._max_unwritten = max_unwritten
        self._open: dict[str, _Span] = {}
        self._past: dict[str, tuple[_Span, ...]] = {}
        """By name, in no order that matters."""
        self._past_count = 0
        self._known_after = -inf
        """Every span that ended later is known, once loaded."""
        self._current: float | None = None
        """When the open spans were last known to be what the API server has."""
        self._begun: OrderedDict[str, None] = OrderedDict()
        """Names whose open span is not in the database yet."""
        self._ended: OrderedDict[_Key, _Span] = OrderedDict()
        """Spans whose end is not in the database yet, oldest first."""
        self._to_extend: list[str] = []
        self._unsettled: dict[str, _Span] = {}
        """Labels that change too often to be recorded, since when they have been as they are."""
        self.loaded = False
        """The spans of earlier times have been taken in."""
        self.given_up = 0
        """Spans that were never written, for want of room or because the database refused them."""

    # --- reading

    @property
    def waiting(self) -> int:
        """Spans that began or ended and are not in the database yet."""
        return len(self._begun) + len(self._ended)

    @property
    def size(self) -> int:
        """Spans that are remembered."""
        return len(self._open) + self._past_count

    def carried(self, name: str, when: datetime) -> Carried:
        """Section 6 rule 3: the one CPU that this node name carried at that time.

        A time between two spans is not known, whatever they say; nor is one after the last news of
        the fleet, or within spans of two CPUs, such as those of two Nodes of that name that two
        operators saw.
        """
        if not self.loaded:
            return Carried(why="the node history has not been read yet")
        time = when.timestamp()
        found = {span.cpu for span in self._spans(name) if span.first <= time <= self._last(span)}
        if len(found) > 1:
            both = " and ".join(sorted(found))
            return Carried(why=f"node {name} was seen with {both} at {when.isoformat()}")
        if not found or time <= self._known_after:
            return Carried(why=f"no record of what node {name} carried at {when.isoformat()}")
        return Carried(cpu=found.pop())

    def since(self, name: str) -> NodeCpuSpan | None:
        """The newest span of a node name: what it carries, or carried last, and since when."""
        spans = self.spans(name)
        return spans[-1] if spans else None

    def spans(self, name: str) -> tuple[NodeCpuSpan, ...]:
        """All spans of a node name, by their ends; one that goes on ends when it was last seen."""
        spans = sorted(self._spans(name), key=lambda span: (span.last, span.first))
        return tuple(self._row(name, span) for span in spans)

    def _spans(self, name: str) -> Iterator[_Span]:
        yield from self._past.get(name, ())
        if name in self._open:
            yield self._open[name]

    def _row(self, name: str, span: _Span) -> NodeCpuSpan:
        return NodeCpuSpan(
            node_name=name,
            node_uid=span.uid,
            host_cpu=span.cpu,
            first_seen_at=datetime.fromtimestamp(span.first, UTC),
            last_seen_at=datetime.fromtimestamp(self._last(span), UTC),
        )

    def _last(self, span: _Span) -> float:
        """When the span was last seen."""
        return span.last if span.last < inf else max(span.first, self._current or span.first)

    # --- news of the fleet

    def take(self, change: NodeChange | None, *, now: datetime) -> None:
        """Takes in one event of a watch, and what it changed in the index.

        A deletion that is told ends a span now. A label that changed may have done so at any time
        since the event before this one, so the span ends there.
        """
        time = now.timestamp()
        if change is not None:
            self._take(change, now=time, removed_at=time)
        self._current = time

    def take_listed(self, changes: Iterable[NodeChange], *, now: datetime) -> None:
        """Takes in what an authoritative list changed in the index.

        A node that is missing may have gone at any time since the last news before the list.
        """
        time = now.timestamp()
        for change in changes:
            self._take(change, now=time, removed_at=self._current)
        self._current = time

    def _take(self, change: NodeChange, *, now: float, removed_at: float | None) -> None:
        if not change.aspects & _SPANS:
            return
        name, after = change.name, change.after
        self._unsettled.pop(name, None)
        if after is None:
            self._end(name, now if removed_at is None else removed_at)
            return
        known = self._open.get(name)
        if known is not None and (known.uid, known.cpu) != (after.uid, after.cpu):
            self._end(name, now if self._current is None else self._current)
        if change.before is None or change.before.uid != after.uid:
            self._cut(name, after)
        if after.cpu is not None and name not in self._open:
            first = _after(self._past.get(name, ()), uid=after.uid, time=now)
            self._begin(name, _Span(after.uid, after.cpu, first, inf))

    def _begin(self, name: str, span: _Span) -> None:
        """A span begins, unless it is one with the newest: the same Node, with the same CPU."""
        past = self._past.get(name, ())
        newest = _goes_on(past, span)
        if newest is not None:
            self._replace_past(name, newest)
            self._ended.pop((name, newest.uid, newest.first), None)
            span = _Span(span.uid, span.cpu, newest.first, inf)
        elif _flaps(past, uid=span.uid, until=span.first):
            self._unsettled[name] = span
            return
        self._open[name] = span
        self._begun[name] = None

    def settle(self, *, now: datetime) -> None:
        """Records again what flapped and has kept its label since."""
        before = (now - FLAP_WINDOW).timestamp()
        for name, span in list(self._unsettled.items()):
            if span.first <= before:
                del self._unsettled[name]
                self._open[name] = span
                self._begun[name] = None

    def _end(self, name: str, time: float) -> None:
        """The open span of the name, if there is one, ends."""
        span = self._open.pop(name, None)
        if span is None:
            return
        self._begun.pop(name, None)
        self._add_past(name, _Span(span.uid, span.cpu, span.first, max(span.first, time)))

    def _cut(self, name: str, after: NodeRecord) -> None:
        """Two Nodes of one name never exist at once: what an earlier one was seen with ends when
        this one was created, however late its deletion was told."""
        for span in self._past.get(name, ()):
            if span.uid != after.uid and span.last > after.created_at:
                self._replace_past(name, span)
                last = max(span.first, after.created_at)
                self._add_past(name, _Span(span.uid, span.cpu, span.first, last))

    def _add_past(self, name: str, span: _Span) -> None:
        """Remembers a span that has ended, to be written."""
        self._past[name] = (*self._past.get(name, ()), span)
        self._past_count += 1
        self._ended[name, span.uid, span.first] = span
        while len(self._ended) > self._max_unwritten:
            self._ended.popitem(last=False)
            self.given_up += 1
        self._trim()

    def _replace_past(self, name: str, gone: _Span) -> None:
        left = tuple(span for span in self._past[name] if span is not gone)
        self._past_count -= len(self._past[name]) - len(left)
        if left:
            self._past[name] = left
        else:
            del self._past[name]

    def _trim(self) -> None:
        """Forgets the spans that ended first, a tenth of them at a time."""
        if self._past_count <= self.max_past + self.max_past // 10:
            return
        ends = sorted(span.last for spans in self._past.values() for span in spans)
        oldest = ends[self._past_count - self.max_past - 1]
        self._known_after = max(self._known_after, oldest)
        for name, spans in list(self._past.items()):
            left = tuple(span for span in spans if span.last > oldest)
            if len(left) < len(spans):
                self._past_count -= len(spans) - len(left)
                if left:
                    self._past[name] = left
                else:
                    del self._past[name]

    # --- what the database holds, and what it is to hold

    def load(self, spans: Iterable[NodeCpuSpan], *, known_after: datetime) -> None:
        """Takes in what the database holds: every span that was last seen after `known_after`.

        Whether the index was filled before or afterwards makes no difference.
        """
        read: dict[str, list[_Span]] = {}
        cpus: dict[str, str] = {}
        for row in spans:
            cpu = cpus.setdefault(row.host_cpu, row.host_cpu)
            first, last = row.first_seen_at.timestamp(), row.last_seen_at.timestamp()
            read.setdefault(row.node_name, []).append(_Span(row.node_uid, cpu, first, last))
        for name, older in read.items():
            self._load(name, older)
        self._known_after = max(self._known_after, known_after.timestamp())
        self.loaded = True
        self._trim()

    def _load(self, name: str, older: list[_Span]) -> None:
        known = self._open.get(name)
        newest = None if known is None or name in self._past else _goes_on(older, known)
        if known is not None and newest is not None:
            older = [span for span in older if span is not newest]
            self._open[name] = _Span(known.uid, known.cpu, min(known.first, newest.first), inf)
        if older:
            self._past[name] = (*self._past.get(name, ()), *older)
            self._past_count += len(older)

    def unwritten(self, limit: int) -> list[NodeCpuSpan]:
        """Takes out at most `limit` spans that began or ended and are to be written now."""
        if not self.loaded:
            return []
        taken: list[NodeCpuSpan] = []
        while self._ended and len(taken) < limit:
            key, span = self._ended.popitem(last=False)
            taken.append(self._row(key[0], span))
        while self._begun and len(taken) < limit:
            name, _ = self._begun.popitem(last=False)
            taken.append(self._row(name, self._open[name]))
        return taken

    def extend_all(self) -> None:
        """Every span that goes on is to be written anew, in its turn; nothing while a former
        round is not done."""
        if self.loaded and not self._to_extend:
            self._to_extend = list(self._open)

    def extended(self, limit: int) -> list[NodeCpuSpan]:
        """Takes out at most `limit` spans whose end is to be moved to when they were last seen."""
        names, self._to_extend = self._to_extend[-limit:], self._to_extend[:-limit]
        return [self._row(name, self._open[name]) for name in names if name in self._open]

    def give_back(self, spans: Iterable[NodeCpuSpan]) -> None:
        """Spans that were taken out and not written, or not for certain."""
        for row in spans:
            name, first = row.node_name, row.first_seen_at.timestamp()
            known = self._open.get(name)
            if known is not None and (known.uid, known.first) == (row.node_uid, first):
                self._begun[name] = None
                continue
            span = _Span(row.node_uid, row.host_cpu, first, row.last_seen_at.timestamp())
            self._ended.setdefault((name, row.node_uid, first), span)

    def give_up(self) -> None:
        """A span that was taken out is refused for good."""
        self.given_up += 1


def _after(past: Iterable[_Span], *, uid: str, time: float) -> float:
    """The time, or just after the Node's latest span began: no two of one Node begin at once, also
    when the clock was set back."""
    latest = max((one.first for one in past if one.uid == uid), default=-inf)
    if time > latest:
        return time
    return (datetime.fromtimestamp(latest, UTC) + timedelta(microseconds=1)).timestamp()


def _goes_on(past: Sequence[_Span], span: _Span) -> _Span | None:
    """The newest of the spans, if it is one with `span`: nothing else was seen in between."""
    if not past:
        return None
    newest = max(past, key=lambda one: one.last)
    if (newest.uid, newest.cpu) != (span.uid, span.cpu):
        return None
    # After a burst, labels were seen that are not recorded.
    return None if _flaps(past, uid=newest.uid, until=newest.first) else newest


def _flaps(past: Iterable[_Span], *, uid: str, until: float) -> bool:
    since = until - FLAP_WINDOW.total_seconds()
    return sum(one.uid == uid and since < one.first <= until for one in past) >= FLAPS
