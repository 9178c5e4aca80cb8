"""The placement term and the node exclusions: what the feature adds to a pod (sections 8, 11)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct

from sandbox_restore.placement.match import NAME_FIELD

MAX_NODE_EXCLUSIONS: Final = 16
"""Section 11: the newest 16 at most."""

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"

Json = dict[str, Any]


class CpuTerm(Struct, frozen=True, kw_only=True):
    """The requirement on the host-CPU label that every required term gets."""

    key: str
    operator: str
    """`NotIn` the CPUs that cannot load it, or `In` those that can (`Required`)."""
    values: tuple[str, ...]

    def requirement(self) -> Json:
        return {"key": self.key, "operator": self.operator, "values": list(self.values)}


class Rendered(Struct, frozen=True, kw_only=True):
    """All that a decision adds to a pod. Two decisions with equal ones give equal pods."""

    term: CpuTerm | None = None
    shortlist: tuple[str, ...] = ()
    """Node names, source first; empty: no shortlist."""
    node_exclusions: tuple[str, ...] = ()


NOTHING_RENDERED: Final = Rendered()


class Change(StrEnum):
    """What a new decision would do to a requirement that is already rendered (section 8)."""

    NONE = "None"
    STRICTER = "Stricter"
    """Some node that is allowed now would not be: re-render at once."""
    LOOSER = "Looser"
    """Only allows more: re-render after a steady time."""


def placement_term(
    *, excluded: Sequence[str], loaders: Iterable[str], required: bool, key: str
) -> CpuTerm:
    """Section 8: `NotIn` the excluded CPUs, or, with `Required`, `In` the loaders; sorted.

    `In` takes every CPU that is known to load the snapshot, in the fleet or not, so that a node
    that joins with one can take a pod that waits. Neither unlabelled nodes nor CPUs that nobody
    knows match it.
    """
    operator, values = ("In", loaders) if required else ("NotIn", excluded)
    return CpuTerm(key=key, operator=operator, values=tuple(sorted(values)))


def term_change(rendered: CpuTerm | None, wanted: CpuTerm | None) -> Change:
    """Section 8 [beyond]: how the wanted term differs from the one on the pod."""
    if rendered == wanted:
        return Change.NONE
    if wanted is None:
        return Change.LOOSER
    if rendered is None:
        return Change.STRICTER
    had, wants = set(rendered.values), set(wanted.values)
    if (rendered.operator, rendered.key, had) == (wanted.operator, wanted.key, wants):
        return Change.NONE
    if rendered.key != wanted.key:
        return Change.STRICTER
    match rendered.operator, wanted.operator:
        case "NotIn", "NotIn":
            looser = wants < had
        case "In", "In":
            looser = had < wants
        case "In", _:
            looser = not had & wants
        case _:
            looser = False
    return Change.LOOSER if looser else Change.STRICTER


def read_back(terms: Iterable[Mapping[str, Any]] | None, *, key: str) -> Rendered:
    """What required terms, as JSON, say of CPUs and node names: what was rendered into them,
    joined with what the template itself says of these.

    It is for comparing two pods of one template. `render` adds the same to every term, so that the
    first one that is not empty speaks for all.
    """
    left = [term for term in terms or () if not is_empty_term(term)]
    if not left:
        return NOTHING_RENDERED
    only = [_names(term, "In") for term in left]
    return Rendered(
        term=_term_on(left[0], key=key),
        shortlist=tuple(dict.fromkeys(names[-1] for names in only)) if all(only) else (),
        node_exclusions=tuple(sorted(set(_names(left[0], "NotIn")))),
    )


def _term_on(term: Mapping[str, Any], *, key: str) -> CpuTerm | None:
    """All `In` and `NotIn` of one term on the label, as one requirement."""
    taken: set[str] | None = None
    shut: set[str] = set()
    for item in term.get("matchExpressions") or ():
        values = set(item.get("values") or ())
        if item.get("key") != key:
            continue
        if item.get("operator") == "In":
            taken = values if taken is None else taken & values
        elif item.get("operator") == "NotIn":
            shut |= values
    if taken is not None:
        return CpuTerm(key=key, operator="In", values=tuple(sorted(taken - shut)))
    return CpuTerm(key=key, operator="NotIn", values=tuple(sorted(shut))) if shut else None


def _names(term: Mapping[str, Any], operator: str) -> list[str]:
    """Node names that a term's `matchFields` names with this operator."""
    return [
        str(value)
        for item in term.get("matchFields") or ()
        if item.get("key") == NAME_FIELD and item.get("operator") == operator
        for value in item.get("values") or ()
    ]


def required_terms(pod: Mapping[str, Any]) -> list[Json] | None:
    """The pod's required node-selector terms; None when it has no required node affinity."""
    affinity = (pod.get("spec") or {}).get("affinity") or {}
    required = (affinity.get("nodeAffinity") or {}).get(_REQUIRED)
    if required is None:
        return None
    # A null item is an empty term, which matches nothing.
    return [term or {} for term in required.get("nodeSelectorTerms") or ()]


def is_empty_term(term: Mapping[str, Any]) -> bool:
    """Kubernetes: a term without expressions and fields matches nothing."""
    return not (term.get("matchExpressions") or term.get("matchFields"))


def and_required(
    pod: Mapping[str, Any],
    *,
    expressions: Sequence[Json] = (),
    fields: Sequence[Json] = (),
) -> Json:
    """The pod with the requirements added to every required term, so that none escapes them.

    Section 8: without a required term one is made; an empty term matches nothing and stays as it
    is. The input is not changed.
    """
    if not (expressions or fields):
        return dict(pod)
    terms = required_terms(pod)
    if terms is None:
        terms = [_anded({}, expressions=expressions, fields=fields)]
    else:
        terms = [
            term if is_empty_term(term) else _anded(term, expressions=expressions, fields=fields)
            for term in terms
        ]
    return _with_terms(pod, terms)


def one_term_per_node(pod: Mapping[str, Any], names: Sequence[str]) -> Json:
    """Section 9: each node as its own required term, with all that the pod's terms require.

    With several terms, each node gets each of them. An empty term is left out: it matches nothing
    and may not begin to. Where every term is empty the pod stays as it is.
    """
    terms = required_terms(pod)
    bases = [{}] if terms is None else [term for term in terms if not is_empty_term(term)]
    if not bases:
        return dict(pod)
    return _with_terms(
        pod,
        [
            _anded(base, expressions=(), fields=(node_field("In", name),))
            for name in names
            for base in bases
        ],
    )


def node_field(operator: str, name: str) -> Json:
    """A `matchFields` requirement; the API takes exactly one value."""
    return {"key": NAME_FIELD, "operator": operator, "values": [name]}


def render(pod: Mapping[str, Any], rendered: Rendered) -> Json:
    """The pod with everything that a decision adds; the input is not changed."""
    expressions = [] if rendered.term is None else [rendered.term.requirement()]
    fields = [node_field("NotIn", name) for name in rendered.node_exclusions]
    answer = and_required(pod, expressions=expressions, fields=fields)
    return one_term_per_node(answer, rendered.shortlist) if rendered.shortlist else answer


def _anded(term: Mapping[str, Any], *, expressions: Sequence[Json], fields: Sequence[Json]) -> Json:
    answer = dict(term)
    for name, more in (("matchExpressions", expressions), ("matchFields", fields)):
        if more:
            answer[name] = [*(term.get(name) or ()), *more]
    return answer


def _with_terms(pod: Mapping[str, Any], terms: list[Json]) -> Json:
    """The pod with these required terms; only the path to them is copied."""
    spec = dict(pod.get("spec") or {})
    affinity = dict(spec.get("affinity") or {})
    node_affinity = dict(affinity.get("nodeAffinity") or {})
    required = dict(node_affinity.get(_REQUIRED) or {})
    required["nodeSelectorTerms"] = terms
    node_affinity[_REQUIRED] = required
    affinity["nodeAffinity"] = node_affinity
    spec["affinity"] = affinity
    return {**pod, "spec": spec}
