"""Section 7: a node that a pod can land on is one that kube-scheduler's own plugins let pass."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyroaring import BitMap

from sandbox_restore.fleet import labels
from sandbox_restore.model.names import UNSCHEDULABLE_TAINT
from sandbox_restore.model.node import Taint
from sandbox_restore.placement import match, reachable, term
from tests.differential.compare import disagreements, index_of, report
from tests.differential.nasty import Nasty
from tests.differential.run import compare
from tests.differential.shrink import shrunk
from tests.support.oracle import Oracle, OracleError

PAIRS = 5_000
SEED = 20_261
ENOUGH = 3_000
"""Pairs within which a wrong rule shows."""


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    with Oracle() as asked:
        yield asked


@pytest.mark.timeout(1800)
def test_our_matcher_agrees_with_kube_scheduler_on_every_node(oracle: Oracle) -> None:
    """The first run for a user builds the program, which takes minutes."""
    result = compare(oracle, pairs=PAIRS, seed=SEED)
    assert result.clean, "\n".join([result.line(), *result.texts])
    assert result.pairs == PAIRS
    # A run in which hardly any node passes, or nearly every one does, would prove little.
    assert 0.1 < result.passing / result.nodes < 0.6
    assert result.restores > PAIRS / 10
    assert result.constrained > result.restores / 10
    assert result.shortlisted > result.restores / 20


@pytest.mark.timeout(1800)
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(dice=st.randoms(use_true_random=False))
def test_hypothesis_finds_no_pod_and_node_on_which_they_differ(
    oracle: Oracle, dice: random.Random
) -> None:
    """It seeks the edges of what a seed throws anywhere, and tells the smallest case it finds."""
    nasty = Nasty(dice)
    nodes = nasty.fleet(3)
    pod = nasty.pod([node["metadata"]["name"] for node in nodes])
    oracle.keep(nodes)
    (passing,) = oracle.passes([pod])
    assert disagreements(pod, index_of(nodes), passing) == {}, (pod, nodes)


# --- the comparison itself: each rule, made wrong, is found


def _lenient(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


def _strict_key(self: match.Toleration, taint: Taint) -> bool:
    return bool(self.key) and _TOLERATES(self, taint)


def _any_effect(self: match.Toleration, taint: Taint) -> bool:
    anywhere = match.Toleration(key=self.key, operator=self.operator, value=self.value)
    return _TOLERATES(anywhere, taint)


def _comparing(self: match.Toleration, taint: Taint) -> bool:
    return self.operator in ("Gt", "Lt") or _TOLERATES(self, taint)


def _absent_fails(self: match.Requirement, found: Any) -> bool:
    return self.key in found and _MATCHES_LABEL(self, found)


def _name_only(self: match.Requirement, node_name: str) -> bool:
    return (node_name == self.values[0]) == (self.operator == "In")


def _other_way(self: labels.LabelIndex, key: str, *, greater: bool, bound: int) -> BitMap:
    return _COMPARED(self, key, greater=not greater, bound=bound)


_COMPARED = labels.LabelIndex.compared
_TOLERATES = match.Toleration.tolerates
_MATCHES_LABEL = match.Requirement.matches_label
_UNCORDONED = Taint(key=UNSCHEDULABLE_TAINT, value="", effect="NoExecute")

WRONG: dict[str, tuple[tuple[Any, str, Any], ...]] = {
    "any label key parses": ((match, "label_key_problem", lambda _: ""),),
    "any label value parses": ((match, "label_value_problem", lambda _: ""),),
    "Python's integers": ((match, "parse_int64", _lenient), (labels, "parse_int64", _lenient)),
    "an empty toleration key tolerates nothing": ((match.Toleration, "tolerates", _strict_key),),
    "a toleration's effect is ignored": ((match.Toleration, "tolerates", _any_effect),),
    "Gt and Lt tolerate": ((match.Toleration, "tolerates", _comparing),),
    "an empty term matches": ((match.Term, "empty", property(lambda _: False)),),
    "NoExecute never filters": ((match, "_FILTERING_EFFECTS", ("NoSchedule",)),),
    "PreferNoSchedule filters": (
        (match, "_FILTERING_EFFECTS", ("NoSchedule", "NoExecute", "PreferNoSchedule")),
    ),
    "a cordon is tolerated by another effect": ((match, "_CORDON", _UNCORDONED),),
    "NotIn wants the label": ((match.Requirement, "matches_label", _absent_fails),),
    "any field is the name": ((match.Requirement, "matches_field", _name_only),),
    "no term at all matches": ((reachable, "_match_terms", lambda _pod, _fleet, nodes: nodes),),
    "no node has the name, by the sets": (
        (reachable, "_field_set", lambda _rule, _fleet: BitMap()),
    ),
    "Gt is Lt, by the sets": ((labels.LabelIndex, "compared", _other_way),),
    "kept sets do not follow": ((reachable, "_is_open", lambda _pod, _node: True),),
    "rendering revives an empty term": ((term, "is_empty_term", lambda _: False),),
    "the placement term spares a CPU": (
        (term.CpuTerm, "requirement", lambda self: term.node_field(self.operator, "n0")),
    ),
}


@pytest.mark.parametrize("rule", WRONG)
def test_a_wrong_rule_is_found(rule: str, oracle: Oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, name, replacement in WRONG[rule]:
        monkeypatch.setattr(owner, name, replacement)
    result = compare(oracle, pairs=ENOUGH, seed=SEED, texts=1, stop_early=True)
    assert not result.clean
    assert result.texts


def test_a_difference_is_told_with_nothing_beside_it(
    oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(match, "_FILTERING_EFFECTS", ("NoSchedule",))
    gpu = {"key": "gpu", "effect": "NoExecute"}
    nodes: list[dict[str, Any]] = [
        {"metadata": {"name": "n0", "labels": {"a": "x"}}, "spec": {}},
        {"metadata": {"name": "n1", "labels": {"a": "x"}}, "spec": {"taints": [gpu, gpu]}},
    ]
    pod = {"metadata": {"name": "p"}, "spec": {"nodeSelector": {"a": "x"}, "tolerations": []}}
    assert report(pod, nodes, oracle).splitlines()[:3] == [
        "  pod   null",
        '  node  {"metadata": {"name": "n1"}, "spec": {"taints": [{"effect": "NoExecute"}]}}',
        "  kube-scheduler rejects it: TaintToleration: node(s) had untolerated taint(s)",
    ]


# --- its parts


def test_a_seed_makes_the_same_pods_and_fleets() -> None:
    one, two, other = Nasty("1/1"), Nasty("1/1"), Nasty("1/2")
    fleet = one.fleet(12)
    assert fleet == two.fleet(12)
    assert fleet != other.fleet(12)
    assert [one.pod(["n0"]) for _ in range(9)] == [two.pod(["n0"]) for _ in range(9)]
    assert len(index_of(fleet)) == 12


def test_shrinking_keeps_what_shows_and_nothing_else() -> None:
    document = {"pod": {"a": [1, 2, {"b": 3}], "c": {"d": "e"}}, "nodes": [{"name": "n"}]}
    small = shrunk(document, lambda found: {"b": 3} in found["pod"]["a"], keep=("name",))
    assert small == {"pod": {"a": [{"b": 3}]}, "nodes": []}


def test_what_the_oracle_cannot_read_is_an_error(oracle: Oracle) -> None:
    with pytest.raises(OracleError, match="pod 0"):
        oracle.passes([{"spec": {"tolerations": "none"}}])
    oracle.keep([{"metadata": {"name": "n0"}}])
    assert oracle.passes([{}]) == [frozenset({"n0"})]
