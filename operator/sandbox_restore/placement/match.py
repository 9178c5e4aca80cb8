"""Which nodes a pod may run on, judged exactly as kube-scheduler 1.37 judges it (section 7).

A pod is parsed once into `PodRequirements` and matched many times. `matches` is the slow form for
one node; `reachable.selected` is the fast one over the fleet index, and the two must agree.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from sandbox_restore.fleet.labels import parse_int64
from sandbox_restore.model.names import UNSCHEDULABLE_TAINT
from sandbox_restore.model.node import Taint

NAME_FIELD: Final = "metadata.name"

_NAME: Final = re.compile(r"(?:[A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_DNS_SUBDOMAIN: Final = re.compile(
    r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*"
)
_FILTERING_EFFECTS: Final = ("NoSchedule", "NoExecute")
_CORDON: Final = Taint(key=UNSCHEDULABLE_TAINT, value="", effect="NoSchedule")

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
TERMS_PATH: Final = f"spec.affinity.nodeAffinity.{_REQUIRED}.nodeSelectorTerms"


class NodeLike(Protocol):
    """The part of a node that kube-scheduler's rules look at."""

    @property
    def name(self) -> str: ...
    @property
    def labels(self) -> Mapping[str, str]: ...
    @property
    def taints(self) -> tuple[Taint, ...]: ...
    @property
    def unschedulable(self) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Toleration:
    """One toleration of a pod, as written."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        """Section 7, taints: an empty effect matches every effect and an empty key every key; an
        empty operator is Equal. Gt and Lt are alpha and off: they tolerate nothing."""
        if self.effect not in ("", taint.effect) or self.key not in ("", taint.key):
            return False
        if self.operator in ("", "Equal"):
            return self.value == taint.value
        return self.operator == "Exists"


class Tolerations:
    """All tolerations of a pod. Equal ones hash alike, at the cost of one attribute."""

    __slots__ = ("_hash", "cordon", "items")

    def __init__(self, items: tuple[Toleration, ...] = ()) -> None:
        self.items: Final = items
        self.cordon: Final = self.tolerates(_CORDON)
        """Section 7, cordon: it is tolerated like the taint that goes with it."""
        self._hash: Final = hash(items)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Tolerations) and self.items == other.items)

    def __repr__(self) -> str:
        return f"Tolerations({self.items!r})"

    # Loops where `any` and `all` would read as well: they are asked for each change of a node, and
    # two generators for each would take as long as all else.

    def tolerates(self, taint: Taint) -> bool:
        for toleration in self.items:  # noqa: SIM110
            if toleration.tolerates(taint):
                return True
        return False

    def all_of(self, taints: tuple[Taint, ...]) -> bool:
        """Section 7, taints: each NoSchedule and NoExecute taint is tolerated."""
        for taint in taints:
            if taint.effect in _FILTERING_EFFECTS and not self.tolerates(taint):
                return False
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One expression of a term: on a label, or on the node's name (`matchFields`)."""

    key: str
    operator: str
    values: tuple[str, ...] = ()
    bound: int = 0
    """The integer of Gt and Lt."""

    def matches_label(self, labels: Mapping[str, str]) -> bool:
        """Section 7, operators on labels."""
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
        number = None if value is None else parse_int64(value)
        if number is None:
            return False
        return number > self.bound if self.operator == "Gt" else number < self.bound

    def matches_field(self, node_name: str) -> bool:
        """Section 7, `matchFields`: a node has one field, its name; any other reads as empty."""
        value = node_name if self.key == NAME_FIELD else ""
        return (value == self.values[0]) == (self.operator == "In")


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One required term: its expressions are ANDed. One with problems matches nothing."""

    expressions: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        return not (self.expressions or self.fields or self.problems)

    def matches(self, *, name: str, labels: Mapping[str, str]) -> bool:
        """Section 7: an empty term and one that does not parse match nothing."""
        if self.empty or self.problems:
            return False
        return all(e.matches_label(labels) for e in self.expressions) and all(
            f.matches_field(name) for f in self.fields
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRequirements:
    """What a pod asks of its node."""

    selector: tuple[tuple[str, str], ...] = ()
    """`spec.nodeSelector`, sorted; compared as it stands, never validated."""
    terms: tuple[Term, ...] | None = None
    """Required terms, ORed. None: no required node affinity. Empty: matches nothing."""
    tolerations: Tolerations = field(default_factory=Tolerations)

    @classmethod
    def of(cls, pod: Mapping[str, Any]) -> PodRequirements:
        """Parses a pod as JSON gives it; absent and null mean the same, as in Go."""
        spec = pod.get("spec") or {}
        affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
        required = affinity.get(_REQUIRED)
        terms = None
        if required is not None:
            terms = tuple(
                parse_term(term or {}, path=f"{TERMS_PATH}[{i}]")
                for i, term in enumerate(required.get("nodeSelectorTerms") or ())
            )
        return cls(
            selector=tuple(sorted((spec.get("nodeSelector") or {}).items())),
            terms=terms,
            tolerations=Tolerations(
                tuple(_toleration(item) for item in spec.get("tolerations") or ())
            ),
        )

    def with_selector(self, selector: Mapping[str, str]) -> PodRequirements:
        """The same pod with this `nodeSelector`."""
        return replace(self, selector=tuple(sorted(selector.items())))

    @property
    def problems(self) -> tuple[str, ...]:
        """Why terms do not parse, each with its field path."""
        return tuple(problem for term in self.terms or () for problem in term.problems)


def selector_matches(requirements: PodRequirements, labels: Mapping[str, str]) -> bool:
    """Section 7, `nodeSelector`: every pair is on the node, byte for byte."""
    return all(labels.get(key) == value for key, value in requirements.selector)


def affinity_matches(
    requirements: PodRequirements, *, name: str, labels: Mapping[str, str]
) -> bool:
    """Section 7, required node affinity: any term matches; no affinity at all matches."""
    if requirements.terms is None:
        return True
    return any(term.matches(name=name, labels=labels) for term in requirements.terms)


def matches(requirements: PodRequirements, node: NodeLike) -> bool:
    """Section 7, kube-scheduler's own rules, for one node."""
    labels = node.labels
    return (
        selector_matches(requirements, labels)
        and affinity_matches(requirements, name=node.name, labels=labels)
        and (not node.unschedulable or requirements.tolerations.cordon)
        and requirements.tolerations.all_of(node.taints)
    )


def parse_term(term: Mapping[str, Any], *, path: str) -> Term:
    """A `nodeSelectorTerms` item; what does not parse is told with its field path."""
    problems: list[str] = []
    expressions = tuple(
        _parse_expression(item, path=f"{path}.matchExpressions[{i}]", problems=problems)
        for i, item in enumerate(term.get("matchExpressions") or ())
    )
    fields = tuple(
        _parse_field(item, path=f"{path}.matchFields[{i}]", problems=problems)
        for i, item in enumerate(term.get("matchFields") or ())
    )
    return Term(expressions=expressions, fields=fields, problems=tuple(problems))


def _parse_expression(item: Mapping[str, Any], *, path: str, problems: list[str]) -> Requirement:
    key, operator, values = _parts(item)
    if why := label_key_problem(key):
        problems.append(f"{path}.key: {key!r}: {why}")
    match operator:
        case "In" | "NotIn":
            if not values:
                problems.append(f"{path}.values: empty; {operator} wants at least one value")
        case "Exists" | "DoesNotExist":
            if values:
                problems.append(f"{path}.values: {list(values)}; {operator} wants no value")
        case "Gt" | "Lt":
            if len(values) != 1:
                problems.append(f"{path}.values: {list(values)}; {operator} wants one integer")
            problems.extend(
                f"{path}.values[{i}]: {value!r}; {operator} wants a 64-bit decimal integer"
                for i, value in enumerate(values)
                if parse_int64(value) is None
            )
        case _:
            problems.append(
                f"{path}.operator: {operator!r}; expected In, NotIn, Exists, DoesNotExist, Gt or Lt"
            )
    problems.extend(
        f"{path}.values[{i}]: {value!r}: {why}"
        for i, value in enumerate(values)
        if (why := label_value_problem(value))
    )
    bound = parse_int64(values[0]) if operator in ("Gt", "Lt") and values else None
    return Requirement(key=key, operator=operator, values=values, bound=bound or 0)


def _parse_field(item: Mapping[str, Any], *, path: str, problems: list[str]) -> Requirement:
    key, operator, values = _parts(item)
    if operator not in ("In", "NotIn"):
        problems.append(f"{path}.operator: {operator!r}; matchFields knows In and NotIn")
    elif len(values) != 1:
        problems.append(f"{path}.values: {list(values)}; matchFields wants exactly one value")
    return Requirement(key=key, operator=operator, values=values)


def _parts(item: Mapping[str, Any]) -> tuple[str, str, tuple[str, ...]]:
    return (
        item.get("key") or "",
        item.get("operator") or "",
        tuple(item.get("values") or ()),
    )


def _toleration(item: Mapping[str, Any]) -> Toleration:
    return Toleration(
        key=item.get("key") or "",
        operator=item.get("operator") or "",
        value=item.get("value") or "",
        effect=item.get("effect") or "",
    )


def label_key_problem(key: str) -> str:
    """Why a label key is not valid, as Kubernetes judges it; empty when it is."""
    prefix, slash, name = key.rpartition("/")
    if slash and not (len(prefix) <= 253 and _DNS_SUBDOMAIN.fullmatch(prefix)):
        return "the part before '/' must be a lower-case DNS subdomain"
    if len(name) > 63 or not _NAME.fullmatch(name):
        return (
            "must be 1 to 63 letters, digits, '-', '_' or '.', beginning and ending with a letter"
            " or digit, after an optional DNS subdomain and '/'"
        )
    return ""


def label_value_problem(value: str) -> str:
    """Why a label value is not valid, as Kubernetes judges it; empty when it is."""
    # Kubernetes counts bytes; anything that is not ASCII is refused by the pattern anyway.
    if value and (len(value) > 63 or not _NAME.fullmatch(value)):
        return (
            "must be empty or at most 63 letters, digits, '-', '_' or '.', beginning and ending"
            " with a letter or digit"
        )
    return ""
