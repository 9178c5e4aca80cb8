"""Section 7: the rules of kube-scheduler, case by case, and that both forms of them agree."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sandbox_restore.fleet.labels import parse_int64
from sandbox_restore.model.names import UNSCHEDULABLE_TAINT
from sandbox_restore.model.node import NodeFacts, Taint
from sandbox_restore.placement.match import (
    PodRequirements,
    Toleration,
    Tolerations,
    label_key_problem,
    label_value_problem,
    matches,
)
from sandbox_restore.placement.reachable import Demand, is_reachable, reachable, removed
from tests.unit.fleet.nodes import fleet, node

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def pod(
    *terms: Any,
    selector: dict[str, str] | None = None,
    tolerations: list[dict[str, str]] | None = None,
) -> dict[str, Any]:
    spec: dict[str, Any] = {}
    if terms:
        spec["affinity"] = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}
    if selector is not None:
        spec["nodeSelector"] = selector
    if tolerations is not None:
        spec["tolerations"] = tolerations
    return {"spec": spec}


def expr(key: str, operator: str, *values: str) -> dict[str, Any]:
    found: dict[str, Any] = {"key": key, "operator": operator}
    if values:
        found["values"] = list(values)
    return found


def labels_term(*expressions: dict[str, Any]) -> dict[str, Any]:
    return {"matchExpressions": list(expressions)}


def fields_term(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"matchFields": list(fields)}


def judged(requested: dict[str, Any], facts: NodeFacts) -> bool:
    """By both forms, which must agree."""
    requirements = PodRequirements.of(requested)
    slow = matches(requirements, facts)
    index = fleet(facts)
    assert bool(reachable(Demand(requirements=requirements), index)) is slow
    return slow


HERE = node("n1", labels={"zone": "a", "size": "12", "empty": "", "word": "x1", "minus": "-3"})


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        (expr("zone", "In", "a"), True),
        (expr("zone", "In", "b", "a"), True),
        (expr("zone", "In", "A"), False),
        (expr("gone", "In", "a"), False),
        (expr("gone", "In", ""), False),
        (expr("empty", "In", ""), True),
        (expr("zone", "NotIn", "a"), False),
        (expr("zone", "NotIn", "b"), True),
        (expr("gone", "NotIn", "a"), True),
        (expr("gone", "NotIn", ""), True),
        (expr("empty", "NotIn", ""), False),
        (expr("zone", "Exists"), True),
        (expr("empty", "Exists"), True),
        (expr("gone", "Exists"), False),
        (expr("zone", "DoesNotExist"), False),
        (expr("gone", "DoesNotExist"), True),
        (expr("size", "Gt", "11"), True),
        (expr("size", "Gt", "12"), False),
        (expr("size", "Lt", "13"), True),
        (expr("size", "Lt", "12"), False),
        (expr("size", "Gt", "0011"), True),
        (expr("minus", "Lt", "0"), True),
        (expr("minus", "Gt", "0"), False),
        (expr("word", "Gt", "0"), False),
        (expr("word", "Lt", "9"), False),
        (expr("gone", "Gt", "0"), False),
        (expr("gone", "Lt", "0"), False),
        (expr("empty", "Lt", "1"), False),
    ],
)
def test_operators(expression: dict[str, Any], result: bool) -> None:
    assert judged(pod(labels_term(expression)), HERE) is result


@pytest.mark.parametrize(
    "bad",
    [
        expr("zone", "in", "a"),
        expr("zone", "Equals", "a"),
        expr("zone", "", "a"),
        expr("zone", "In"),
        expr("zone", "NotIn"),
        expr("zone", "Exists", "a"),
        expr("zone", "DoesNotExist", "a"),
        expr("size", "Gt"),
        expr("size", "Gt", "1", "2"),
        expr("size", "Gt", "x"),
        expr("size", "Gt", ""),
        expr("size", "Gt", "1_0"),
        expr("size", "Gt", "1.5"),
        expr("size", "Gt", "-5"),
        expr("size", "Gt", "+5"),
        expr("size", "Lt", "9223372036854775808"),
        expr("size", "Lt", "٣"),
        expr("", "Exists"),
        expr("a/b/c", "Exists"),
        expr("/a", "Exists"),
        expr("Up.example.com/a", "Exists"),
        expr("a" * 64, "Exists"),
        expr("-a", "DoesNotExist"),
        expr("zone", "In", "a", "b c"),
        expr("zone", "NotIn", "x" * 64),
        expr("zone", "NotIn", "-x"),
        expr("zone", "In", "a\n"),
    ],
)
def test_a_term_that_does_not_parse_matches_nothing(bad: dict[str, Any]) -> None:
    assert not judged(pod(labels_term(bad)), HERE)
    assert not judged(pod(labels_term(expr("zone", "In", "a"), bad)), HERE)
    assert judged(pod(labels_term(bad), labels_term(expr("zone", "In", "a"))), HERE)
    problems = PodRequirements.of(pod(labels_term(expr("zone", "Exists"), bad))).problems
    assert any("nodeSelectorTerms[0].matchExpressions[1]" in p for p in problems)


def test_terms_are_ored_and_expressions_anded() -> None:
    yes, no = expr("zone", "In", "a"), expr("zone", "In", "b")
    assert judged(pod(labels_term(no), labels_term(yes)), HERE)
    assert not judged(pod(labels_term(yes, no)), HERE)
    assert judged(pod(labels_term(yes, expr("size", "Gt", "1"))), HERE)


@pytest.mark.parametrize(
    "empty", [{}, {"matchExpressions": []}, {"matchExpressions": None, "matchFields": None}, None]
)
def test_an_empty_term_matches_nothing(empty: Any) -> None:
    assert not judged(pod(empty), HERE)
    assert judged(pod(empty, labels_term(expr("zone", "Exists"))), HERE)


def test_no_affinity_matches_all_and_a_list_without_terms_nothing() -> None:
    assert judged({}, HERE)
    assert judged({"spec": {"affinity": None}}, HERE)
    assert judged({"spec": {"affinity": {"nodeAffinity": {}}}}, HERE)
    for nothing in ({}, {"nodeSelectorTerms": []}, {"nodeSelectorTerms": None}):
        assert not judged({"spec": {"affinity": {"nodeAffinity": {REQUIRED: nothing}}}}, HERE)


@pytest.mark.parametrize(
    ("field", "result"),
    [
        (expr("metadata.name", "In", "n1"), True),
        (expr("metadata.name", "In", "n2"), False),
        (expr("metadata.name", "NotIn", "n1"), False),
        (expr("metadata.name", "NotIn", "n2"), True),
        (expr("metadata.name", "In", "n1", "n2"), False),
        (expr("metadata.name", "NotIn", "n2", "n3"), False),
        (expr("metadata.name", "In"), False),
        (expr("metadata.name", "Exists"), False),
        (expr("metadata.name", "DoesNotExist"), False),
        (expr("metadata.name", "Gt", "1"), False),
        (expr("metadata.uid", "In", "n1"), False),
        (expr("metadata.uid", "NotIn", "n1"), True),
        (expr("metadata.uid", "In", ""), True),
        (expr("metadata.uid", "NotIn", ""), False),
    ],
)
def test_match_fields_know_only_the_name(field: dict[str, Any], result: bool) -> None:
    assert judged(pod(fields_term(field)), HERE) is result


def test_fields_and_expressions_of_a_term_are_anded() -> None:
    both = {
        **labels_term(expr("zone", "In", "a")),
        **fields_term(expr("metadata.name", "In", "n1")),
    }
    assert judged(pod(both), HERE)
    assert not judged(pod(both), node("n2", labels={"zone": "a"}))
    assert not judged(pod(both), node("n1", labels={"zone": "b"}))


def test_node_selector_is_compared_as_it_stands() -> None:
    assert judged(pod(selector={"zone": "a", "size": "12"}), HERE)
    assert not judged(pod(selector={"zone": "a", "size": "13"}), HERE)
    assert not judged(pod(selector={"gone": ""}), HERE)
    assert judged(pod(selector={"empty": ""}), HERE)
    assert judged(pod(selector={}), HERE)
    assert judged(pod(selector={"not valid!": "x y"}), node("n", labels={"not valid!": "x y"}))
    assert not judged(pod(labels_term(expr("zone", "In", "b")), selector={"zone": "a"}), HERE)


# --- taints and cordon

NO_SCHEDULE = Taint("k", "v", "NoSchedule")
NO_EXECUTE = Taint("k", "v", "NoExecute")
PREFER = Taint("k", "v", "PreferNoSchedule")


@pytest.mark.parametrize(
    ("toleration", "taint", "result"),
    [
        (
            {"key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule"},
            NO_SCHEDULE,
            True,
        ),
        (
            {"key": "k", "operator": "Equal", "value": "w", "effect": "NoSchedule"},
            NO_SCHEDULE,
            False,
        ),
        (
            {"key": "j", "operator": "Equal", "value": "v", "effect": "NoSchedule"},
            NO_SCHEDULE,
            False,
        ),
        (
            {"key": "k", "operator": "Equal", "value": "v", "effect": "NoExecute"},
            NO_SCHEDULE,
            False,
        ),
        ({"key": "k", "value": "v"}, NO_SCHEDULE, True),
        ({"key": "k", "value": "v"}, NO_EXECUTE, True),
        ({"key": "k"}, NO_SCHEDULE, False),
        ({"key": "k"}, Taint("k", "", "NoSchedule"), True),
        ({"key": "k", "operator": "Exists"}, NO_SCHEDULE, True),
        ({"key": "k", "operator": "Exists", "value": "other"}, NO_SCHEDULE, True),
        ({"key": "k", "operator": "Exists", "effect": "NoExecute"}, NO_SCHEDULE, False),
        ({"key": "j", "operator": "Exists"}, NO_SCHEDULE, False),
        ({"operator": "Exists"}, NO_SCHEDULE, True),
        ({"operator": "Exists", "effect": "NoExecute"}, NO_SCHEDULE, False),
        ({"operator": "Exists", "effect": "NoExecute"}, NO_EXECUTE, True),
        ({"operator": "Equal", "value": "v"}, NO_SCHEDULE, True),
        ({"key": "k", "operator": "Gt", "value": "1"}, Taint("k", "2", "NoSchedule"), False),
        ({"key": "k", "operator": "Lt", "value": "3"}, Taint("k", "2", "NoSchedule"), False),
        ({"key": "k", "operator": "exists"}, NO_SCHEDULE, False),
        ({"key": "k", "operator": "In", "value": "v"}, NO_SCHEDULE, False),
        ({"key": "other"}, PREFER, True),
        (None, PREFER, True),
        (None, NO_SCHEDULE, False),
        (None, NO_EXECUTE, False),
        (None, Taint("k", "v", "SomethingNew"), True),
    ],
)
def test_taint_toleration_matching_follows_kubernetes_rules(
    toleration: dict[str, str] | None, taint: Taint, result: bool
) -> None:
    tolerations = [] if toleration is None else [toleration]
    tainted = node("n1", taints=[(taint.key, taint.value, taint.effect)])
    assert judged(pod(tolerations=tolerations), tainted) is result


def test_every_taint_that_filters_must_be_tolerated() -> None:
    two = node("n1", taints=[("a", "", "NoSchedule"), ("b", "", "NoExecute")])
    one, other = {"key": "a", "operator": "Exists"}, {"key": "b", "operator": "Exists"}
    assert not judged(pod(tolerations=[one]), two)
    assert judged(pod(tolerations=[one, other]), two)


@pytest.mark.parametrize(
    ("toleration", "result"),
    [
        (None, False),
        ({"key": UNSCHEDULABLE_TAINT, "operator": "Exists", "effect": "NoSchedule"}, True),
        ({"key": UNSCHEDULABLE_TAINT, "operator": "Exists"}, True),
        ({"key": UNSCHEDULABLE_TAINT}, True),
        ({"key": UNSCHEDULABLE_TAINT, "value": "x"}, False),
        ({"key": UNSCHEDULABLE_TAINT, "operator": "Exists", "effect": "NoExecute"}, False),
        ({"operator": "Exists"}, True),
        ({"operator": "Exists", "effect": "NoExecute"}, False),
    ],
)
def test_a_cordoned_node_is_kept_for_pods_that_tolerate_it(
    toleration: dict[str, str] | None, result: bool
) -> None:
    tolerations = [] if toleration is None else [toleration]
    assert judged(pod(tolerations=tolerations), node("n1", unschedulable=True)) is result


def test_a_cordon_and_its_taint_are_two_hurdles() -> None:
    both = node("n1", unschedulable=True, taints=[(UNSCHEDULABLE_TAINT, "", "NoSchedule")])
    assert not judged(pod(), both)
    assert judged(pod(tolerations=[{"key": UNSCHEDULABLE_TAINT, "operator": "Exists"}]), both)


def test_equal_tolerations_share_one_set() -> None:
    one = Tolerations((Toleration(key="a"),))
    same = Tolerations((Toleration(key="a"),))
    other = Tolerations((Toleration(key="b"),))
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    index = fleet(node("n1", taints=[("a", "", "NoSchedule")]))
    asked = [Demand(requirements=PodRequirements(tolerations=t)) for t in (one, same, other)]
    assert [len(reachable(demand, index)) for demand in asked] == [1, 1, 0]


# --- parsing


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("-0", 0),
        ("+7", 7),
        ("007", 7),
        ("-12", -12),
        ("9223372036854775807", 2**63 - 1),
        ("-9223372036854775808", -(2**63)),
        ("9223372036854775808", None),
        ("-9223372036854775809", None),
        ("0" * 40 + "5", 5),
        ("9" * 63, None),
        ("9" * 5000, None),
        ("0" * 5000, 0),
        ("", None),
        ("+", None),
        ("-", None),
        ("--1", None),
        ("1_0", None),
        (" 1", None),
        ("1\n", None),
        ("1.0", None),
        ("0x1", None),
        ("१", None),
    ],
)
def test_integers_are_parsed_as_go_does(text: str, number: int | None) -> None:
    assert parse_int64(text) == number


@pytest.mark.parametrize(
    "key", ["a", "A_b.c-d", "example.com/a", "a" * 63, f"{'a.' * 126}a/b", "1/1", "x.y/Z"]
)
def test_valid_label_keys(key: str) -> None:
    assert label_key_problem(key) == ""


@pytest.mark.parametrize(
    "key",
    [
        "",
        "a" * 64,
        "a/",
        "/a",
        "a//b",
        "a/b/c",
        "A.b/c",
        "a_b/c",
        "-a",
        "a-",
        "é",
        f"{'a' * 254}/b",
    ],
)
def test_invalid_label_keys(key: str) -> None:
    assert label_key_problem(key)


@pytest.mark.parametrize("value", ["", "a", "A_b.c-d", "a" * 63, "1"])
def test_valid_label_values(value: str) -> None:
    assert label_value_problem(value) == ""


@pytest.mark.parametrize("value", ["a" * 64, "-a", "a-", "a b", "é", "a/b", "a\n", "."])
def test_invalid_label_values(value: str) -> None:
    assert label_value_problem(value)


# --- the fast form over the index agrees with the slow one

KEYS = st.sampled_from(["zone", "size", "disk", "bad key", "a/b/c"])
VALUES = st.sampled_from(["a", "b", "", "1", "12", "-3", "007", "9" * 30, "b c"])
OPERATORS = st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Equals", ""])
EXPRESSIONS = st.builds(
    lambda k, o, v: expr(k, o, *v), KEYS, OPERATORS, st.lists(VALUES, max_size=3)
) | st.sampled_from(
    [
        expr("zone", "In", "a"),
        expr("zone", "NotIn", "a"),
        expr("disk", "Exists"),
        expr("disk", "DoesNotExist"),
        expr("size", "Gt", "1"),
        expr("size", "Lt", "12"),
    ]
)
NODE_NAMES = st.sampled_from(["n1", "n2", "n3"])
FIELDS = st.builds(
    lambda k, o, v: expr(k, o, *v),
    st.sampled_from(["metadata.name", "metadata.name", "metadata.uid"]),
    st.sampled_from(["In", "NotIn", "Exists", "Gt"]),
    st.lists(NODE_NAMES | st.just(""), max_size=2),
)
TERMS = st.builds(
    lambda e, f: {"matchExpressions": e, "matchFields": f},
    st.lists(EXPRESSIONS, max_size=3),
    st.lists(FIELDS, max_size=2) | st.just([]),
)
TOLERATIONS = st.fixed_dictionaries(
    {},
    optional={
        "key": st.sampled_from(["k", "j", "", UNSCHEDULABLE_TAINT]),
        "operator": st.sampled_from(["", "Equal", "Exists", "Gt", "Lt", "Nonsense"]),
        "value": st.sampled_from(["", "v", "1"]),
        "effect": st.sampled_from(["", "NoSchedule", "NoExecute", "PreferNoSchedule"]),
    },
)
PODS = st.builds(
    lambda terms, selector, tolerations: {
        "spec": {
            "nodeSelector": selector,
            "tolerations": tolerations,
            "affinity": None
            if terms is None
            else {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}},
        }
    },
    st.none() | st.lists(TERMS, max_size=3),
    st.dictionaries(KEYS, VALUES, max_size=1),
    st.lists(TOLERATIONS, max_size=2),
)
TAINTS = st.lists(
    st.tuples(
        st.sampled_from(["k", "j", UNSCHEDULABLE_TAINT]),
        st.sampled_from(["", "v", "1"]),
        st.sampled_from(["NoSchedule", "NoExecute", "PreferNoSchedule"]),
    ),
    max_size=2,
)
NODES = st.lists(
    st.builds(
        node,
        NODE_NAMES,
        labels=st.dictionaries(KEYS, VALUES, max_size=4),
        group=st.sampled_from([None, "g", "h"]),
        cohort=st.sampled_from([None, "c", "d"]),
        blocked=st.sampled_from([False, False, True]),
        taints=TAINTS,
        unschedulable=st.sampled_from([False, False, True]),
        deleting=st.sampled_from([False, False, True]),
    ),
    max_size=3,
    unique_by=lambda n: n.name,
)


@settings(max_examples=1500, deadline=None)
@given(
    requested=PODS,
    nodes=NODES,
    group=st.sampled_from([None, "g"]),
    cohort=st.sampled_from([None, "c"]),
)
@example(requested=pod(None), nodes=[HERE], group=None, cohort=None)
def test_the_sets_agree_with_the_single_node(
    requested: dict[str, Any], nodes: list[NodeFacts], group: str | None, cohort: str | None
) -> None:
    index = fleet(*nodes)
    demand = Demand(requirements=PodRequirements.of(requested), node_group=group, cohort=cohort)
    expected = {facts.name for facts in nodes if is_reachable(demand, facts)}
    found = reachable(demand, index)
    assert set(index.names(found)) == expected
    lost = [index.names(gone) for _, gone in removed(demand, index)]
    assert sorted([*expected, *(name for names in lost for name in names)]) == sorted(
        facts.name for facts in nodes
    )
