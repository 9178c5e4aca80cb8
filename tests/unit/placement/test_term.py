"""Section 8: adding to required terms, and telling stricter from looser."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox_restore.model.names import HOST_CPU_LABEL
from sandbox_restore.model.node import NodeFacts
from sandbox_restore.placement.match import PodRequirements, matches
from sandbox_restore.placement.term import (
    Change,
    CpuTerm,
    Rendered,
    and_required,
    one_term_per_node,
    placement_term,
    read_back,
    render,
    required_terms,
    term_change,
)
from tests.unit.fleet.nodes import AMD, INTEL_B, node
from tests.unit.placement.asks import REQUIRED
from tests.unit.placement.test_match import NODES, PODS

CPU = {"key": HOST_CPU_LABEL, "operator": "NotIn", "values": [AMD]}


def with_terms(*terms: Any) -> dict[str, Any]:
    return {"spec": {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}}}


def test_a_pod_without_a_required_term_gets_one() -> None:
    for pod in ({}, {"spec": {}}, {"spec": {"affinity": None}}, {"spec": {"affinity": {}}}):
        assert required_terms(and_required(pod, expressions=[CPU])) == [{"matchExpressions": [CPU]}]


def test_every_required_term_gets_it_and_an_empty_one_stays_empty() -> None:
    disk = {"key": "disk", "operator": "Exists"}
    name = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
    pod = with_terms(
        {"matchExpressions": [disk]}, {}, {"matchFields": [name]}, {"matchExpressions": []}
    )
    assert required_terms(and_required(pod, expressions=[CPU])) == [
        {"matchExpressions": [disk, CPU]},
        {},
        {"matchFields": [name], "matchExpressions": [CPU]},
        {"matchExpressions": []},
    ]


def test_a_null_term_is_an_empty_one() -> None:
    pod = with_terms(None, {"matchExpressions": [CPU]})
    first, second = required_terms(and_required(pod, expressions=[CPU])) or ()
    assert (first, second) == ({}, {"matchExpressions": [CPU, CPU]})
    (only,) = required_terms(one_term_per_node(pod, ["n1"])) or ()
    assert only["matchExpressions"] == [CPU]


def test_a_list_without_terms_matches_nothing_and_stays_so() -> None:
    pod = with_terms()
    assert required_terms(and_required(pod, expressions=[CPU])) == []
    assert required_terms(one_term_per_node(pod, ["n1"])) == []
    assert required_terms(one_term_per_node(with_terms({}), ["n1"])) == [{}]


def test_other_affinity_and_preferences_are_kept() -> None:
    pod = with_terms({"matchExpressions": [CPU]})
    pod["spec"]["affinity"]["podAffinity"] = {"x": 1}
    pod["spec"]["affinity"]["nodeAffinity"]["preferred"] = [{"weight": 1}]
    found = and_required(pod, expressions=[CPU])["spec"]["affinity"]
    assert found["podAffinity"] == {"x": 1}
    assert found["nodeAffinity"]["preferred"] == [{"weight": 1}]


def test_nothing_to_add_changes_nothing() -> None:
    assert render({"spec": {}}, Rendered()) == {"spec": {}}


RENDERED = st.builds(
    Rendered,
    term=st.sampled_from(
        [
            None,
            CpuTerm(key="zone", operator="NotIn", values=("a",)),
            CpuTerm(key="zone", operator="In", values=("a", "b")),
        ]
    ),
    shortlist=st.sampled_from([(), ("n1",), ("n2", "n3")]),
    node_exclusions=st.sampled_from([(), ("n1",), ("n1", "n3")]),
)


@settings(max_examples=800, deadline=None)
@given(pod=PODS, rendered=RENDERED, nodes=NODES)
def test_what_is_added_narrows_every_pod_by_exactly_that(
    pod: dict[str, Any], rendered: Rendered, nodes: list[NodeFacts]
) -> None:
    """No ORed term escapes, none that matched nothing begins to match, and nothing else changes;
    for pods with several terms, empty terms and terms that do not parse. The input stays."""
    before = copy.deepcopy(pod)
    found = render(pod, rendered)
    assert pod == before
    plain, narrowed = PodRequirements.of(pod), PodRequirements.of(found)
    for facts in nodes:
        zone = facts.labels.get("zone")
        term = rendered.term
        passes = (
            (term is None or (zone in term.values) == (term.operator == "In"))
            and (not rendered.shortlist or facts.name in rendered.shortlist)
            and facts.name not in rendered.node_exclusions
        )
        assert matches(narrowed, facts) == (matches(plain, facts) and passes)


def test_the_term_is_sorted_whatever_it_was_made_of() -> None:
    key = HOST_CPU_LABEL
    made = placement_term(excluded=(INTEL_B, AMD), loaders={"z", "a"}, required=False, key=key)
    assert made == CpuTerm(key=key, operator="NotIn", values=(AMD, INTEL_B))
    made = placement_term(excluded=(AMD,), loaders={"z", "a"}, required=True, key=key)
    assert made == CpuTerm(key=key, operator="In", values=("a", "z"))


def back(pod: dict[str, Any], *, key: str = HOST_CPU_LABEL) -> Rendered:
    return read_back(required_terms(pod), key=key)


def not_on_nodes(*names: str) -> dict[str, Any]:
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in names]
    return {"matchFields": fields}


RENDERED = st.builds(
    Rendered,
    term=st.none()
    | st.builds(
        CpuTerm,
        key=st.just(HOST_CPU_LABEL),
        operator=st.sampled_from(["In", "NotIn"]),
        values=st.sets(st.sampled_from("abc"), min_size=1).map(sorted).map(tuple),
    ),
    shortlist=st.lists(st.sampled_from(["n1", "n2", "n3"]), unique=True).map(tuple),
    node_exclusions=st.sets(st.sampled_from(["n4", "n5"])).map(sorted).map(tuple),
)
DISK = {"matchExpressions": [{"key": "disk", "operator": "Exists"}]}


@settings(deadline=None)
@given(
    pod=st.sampled_from([{}, with_terms(DISK), with_terms({}, DISK, {}, DISK)]), rendered=RENDERED
)
def test_what_was_rendered_is_read_back_from_the_pod(
    pod: dict[str, Any], rendered: Rendered
) -> None:
    assert back(render(pod, rendered)) == rendered


def test_nothing_is_read_from_terms_that_say_nothing_of_cpus_or_names() -> None:
    exists = {"key": HOST_CPU_LABEL, "operator": "Exists"}
    field = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
    for pod in (
        {},
        with_terms(),
        with_terms({}, {"matchExpressions": []}),
        with_terms({"matchExpressions": [exists, {"key": "disk", "operator": "In"}]}),
        # One ORed term without a name lets every node in.
        with_terms({"matchFields": [field]}, DISK),
    ):
        assert back(pod) == Rendered()
    assert back(with_terms({"matchExpressions": [CPU]}), key="other") == Rendered()


def test_what_a_template_requires_itself_is_read_together_with_what_was_rendered() -> None:
    own = {"key": HOST_CPU_LABEL, "operator": "In", "values": [AMD, INTEL_B]}
    template = with_terms({"matchExpressions": [own], **not_on_nodes("n1")})
    term = CpuTerm(key=HOST_CPU_LABEL, operator="NotIn", values=(AMD,))
    found = back(render(template, Rendered(term=term, node_exclusions=("n2",))))
    assert found.term == CpuTerm(key=HOST_CPU_LABEL, operator="In", values=(INTEL_B,))
    assert found.node_exclusions == ("n1", "n2")


def not_in(*values: str) -> CpuTerm:
    return CpuTerm(key="k", operator="NotIn", values=values)


def only_in(*values: str) -> CpuTerm:
    return CpuTerm(key="k", operator="In", values=values)


@pytest.mark.parametrize(
    ("rendered", "wanted", "change"),
    [
        (None, None, Change.NONE),
        (not_in("a"), not_in("a"), Change.NONE),
        (not_in("a", "b"), not_in("b", "a"), Change.NONE),
        (None, not_in("a"), Change.STRICTER),
        (None, only_in("a"), Change.STRICTER),
        (not_in("a"), None, Change.LOOSER),
        (not_in("a"), not_in("a", "b"), Change.STRICTER),
        (not_in("a", "b"), not_in("a"), Change.LOOSER),
        (not_in("a"), not_in("b"), Change.STRICTER),
        (only_in("a"), only_in("a", "b"), Change.LOOSER),
        (only_in("a", "b"), only_in("a"), Change.STRICTER),
        (only_in("a"), only_in("b"), Change.STRICTER),
        (not_in("a"), only_in("b"), Change.STRICTER),
        (only_in("b"), not_in("b"), Change.STRICTER),
        (only_in("b"), not_in("a"), Change.LOOSER),
        (not_in("a"), CpuTerm(key="j", operator="NotIn", values=("a",)), Change.STRICTER),
    ],
)
def test_stricter_is_told_from_looser(
    rendered: CpuTerm | None, wanted: CpuTerm | None, change: Change
) -> None:
    assert term_change(rendered, wanted) is change


TERMS = st.none() | st.builds(
    CpuTerm,
    key=st.just("zone"),
    operator=st.sampled_from(["In", "NotIn"]),
    values=st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True).map(tuple),
)


@settings(deadline=None)
@given(rendered=TERMS, wanted=TERMS)
def test_a_looser_term_takes_all_that_the_old_one_took(
    rendered: CpuTerm | None, wanted: CpuTerm | None
) -> None:
    nodes = [node(f"n-{v}", labels={"zone": v}) for v in "abcd"] + [node("n")]

    def takers(term: CpuTerm | None) -> set[str]:
        requirements = PodRequirements.of(render({"spec": {}}, Rendered(term=term)))
        return {n.name for n in nodes if matches(requirements, n)}

    lost = takers(rendered) - takers(wanted)
    change = term_change(rendered, wanted)
    assert (change is Change.STRICTER) == bool(lost)
    if change is Change.NONE:
        assert takers(rendered) == takers(wanted)


OWN = st.lists(
    st.fixed_dictionaries(
        {
            "key": st.just("zone"),
            "operator": st.sampled_from(["In", "NotIn"]),
            "values": st.lists(st.sampled_from("abc"), min_size=1, unique=True),
        }
    ),
    max_size=2,
)


@settings(deadline=None)
@given(own=OWN, before=TERMS, after=TERMS)
def test_two_pods_of_one_template_are_compared_by_what_they_take(
    own: list[dict[str, Any]], before: CpuTerm | None, after: CpuTerm | None
) -> None:
    template = with_terms({"matchExpressions": [*own, {"key": "all", "operator": "DoesNotExist"}]})
    nodes = [node(f"n-{v}", labels={"zone": v}) for v in "abcd"] + [node("n")]
    pods = [render(template, Rendered(term=term)) for term in (before, after)]
    had, takes = ({n.name for n in nodes if matches(PodRequirements.of(pod), n)} for pod in pods)
    change = term_change(*(back(pod, key="zone").term for pod in pods))
    assert (change is Change.STRICTER) == bool(had - takes)
    assert (change is Change.LOOSER) == (had < takes)
