"""Section 4: the compatibility list and lineage."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox_restore.errors import ConfigurationError
from sandbox_restore.fleet.compatibility import Compatibility
from tests.unit.fleet.nodes import AMD, ARM, INTEL_A, INTEL_B


def parsed(text: str) -> Compatibility:
    return Compatibility.parse(text)[0]


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        Compatibility.parse(text)
    return caught.value.problems


@pytest.mark.parametrize("text", ["", " ", "\t", "\n"])
def test_an_empty_list_lets_each_cpu_load_its_own(text: str) -> None:
    found, warnings = Compatibility.parse(text)
    assert not warnings
    assert found.can_load("a", capture="a")
    assert not found.can_load("a", capture="b")


def test_a_pair_is_one_way() -> None:
    found = parsed("a=>b")
    assert found.can_load("b", capture="a")
    assert not found.can_load("a", capture="b")


def test_pairs_are_never_chained() -> None:
    found = parsed("a=>b,b=>c")
    assert found.can_load("b", capture="a")
    assert found.can_load("c", capture="b")
    assert not found.can_load("c", capture="a")


def test_blanks_around_a_token_are_allowed() -> None:
    assert parsed("  a  =>  b ,c=>d ") == parsed("a=>b,c=>d")


@pytest.mark.parametrize(
    ("text", "position", "quoted", "says"),
    [
        ("a=b", 1, "'a=b'", "no '=>'"),
        ("a", 1, "'a'", "no '=>'"),
        ("a>b", 1, "'a>b'", "no '=>'"),
        ("=>b", 1, "'=>b'", "capture side is empty"),
        ("a=>", 1, "'a=>'", "loader side is empty"),
        ("a=> ", 1, "'a=>'", "loader side is empty"),
        ("a=>b=>c", 1, "'a=>b=>c'", "more than one '=>'"),
        ("a=>=>b", 1, "'a=>=>b'", "more than one '=>'"),
        ("a=>B", 1, "'a=>B'", "not canonical"),
        ("a b=>c", 1, "'a b=>c'", "not canonical"),
        ("a_b=>c", 1, "'a_b=>c'", "not canonical"),
        (f"a=>{'b' * 64}", 1, "bbb", "64 characters"),
        ("a=>unknown", 1, "'a=>unknown'", "placeholder"),
        ("a=>b,", 2, "''", "empty item"),
        (",a=>b", 1, "''", "empty item"),
        ("a=>b,,c=>d", 2, "''", "empty item"),
        (",", 1, "''", "empty item"),
        ("a=>b, c=>d ,e=f", 3, "'e=f'", "no '=>'"),
    ],
)
def test_a_malformed_item_is_told_with_its_position(
    text: str, position: int, quoted: str, says: str
) -> None:
    found = problems(text)
    assert any(f"item {position} " in p and quoted in p and says in p for p in found), found


def test_every_problem_is_told_at_once() -> None:
    found = problems("a=b,c=>d,=>,X=>Y,")
    assert [p.split(":")[1].split("'")[0].strip() for p in found] == [
        "item 1",
        "item 3",
        "item 3",
        "item 4",
        "item 4",
        "item 5",
    ]
    assert all("SPACE_SANDBOX_RESTORE_HOST_CPU_COMPATIBILITY" in p for p in found)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"{INTEL_A}=>{AMD}", "different vendors"),
        (f"{AMD}=>hygon-24-0-1", "different vendors"),
        (f"{INTEL_A}=>{ARM}", "different architectures"),
        (f"{ARM}=>{AMD}", "different architectures"),
    ],
)
def test_a_pair_across_vendors_or_architectures_is_refused(text: str, says: str) -> None:
    assert says in problems(text)[0]


@pytest.mark.parametrize("text", [f"{INTEL_A}=>{INTEL_B}", "a=>b", f"{INTEL_A}=>b", f"a=>{ARM}"])
def test_a_pair_with_an_unknown_prefix_is_not_judged(text: str) -> None:
    assert Compatibility.parse(text)[1] == []


@pytest.mark.parametrize(
    ("text", "says"),
    [("a=>a", "always loads"), ("a=>b,a=>b", "repeats"), ("a=>b, a => b", "item 2")],
)
def test_an_item_that_says_nothing_new_is_a_warning(text: str, says: str) -> None:
    found, warnings = Compatibility.parse(text)
    assert len(warnings) == 1
    assert says in warnings[0]
    assert found.can_load("a", capture="a")


@pytest.mark.parametrize("value", ["unknown", "none", "vendorunknown-0-0"])
def test_a_placeholder_equals_nothing_itself_included(value: str) -> None:
    assert not Compatibility().can_load(value, capture=value)
    assert Compatibility().loaders(value, (), [value]) == ()
    assert Compatibility().loaders("a", (value,), ["a"]) == ()


def test_a_loader_must_load_the_capture_and_each_ancestor() -> None:
    found = parsed("a=>b,c=>b,a=>c")
    assert found.can_load("b", capture="a", ancestors=("c",))
    assert not found.can_load("a", capture="a", ancestors=("c",))
    assert found.can_load("c", capture="a", ancestors=("c",))
    assert not found.can_load("b", capture="a", ancestors=("c", "d"))


def test_no_ancestors_is_exactly_the_plain_rule() -> None:
    found = parsed("a=>b")
    for loader in "abc":
        assert found.can_load(loader, capture="a", ancestors=()) == (loader in "ab")


def test_loaders_are_sorted_and_among_the_candidates() -> None:
    found = parsed("b=>c,b=>a,b=>z")
    assert found.loaders("b", (), ["z", "q", "a", "b", "a"]) == ("a", "b", "z")
    assert found.known_loaders("b") == frozenset("abcz")


def test_excluded_are_the_published_that_are_no_loaders() -> None:
    found = parsed("b=>z,b=>gone")
    split = found.split(("z", "b", "a"), capture="b", ancestors=())
    assert (split.loaders, split.excluded, split.known) == (("b", "z"), ("a",), ("b", "gone", "z"))
    assert found.split((), capture="b", ancestors=()).excluded == ()
    assert found.split(("a", "b", "c"), capture="b", ancestors=()).excluded == ("a", "c")
    lineage = found.split(("z", "b", "a"), capture="b", ancestors=("z",))
    assert (lineage.loaders, lineage.excluded, lineage.known) == (("z",), ("a", "b"), ("z",))
    assert found.split(("z", "b", "a"), capture="b", ancestors=()) == split


CPUS = st.sampled_from(["a", "b", "c", "d", "unknown"])


@settings(deadline=None)
@given(
    pairs=st.lists(st.tuples(CPUS, CPUS), max_size=8),
    capture=CPUS,
    ancestors=st.lists(CPUS, max_size=3),
)
def test_the_set_form_agrees_with_the_single_one(
    pairs: list[tuple[str, str]], capture: str, ancestors: list[str]
) -> None:
    found = Compatibility({a: frozenset(y for x, y in pairs if x == a) for a, _ in pairs})
    one_by_one = {
        cpu
        for cpu in ["a", "b", "c", "d", "unknown"]
        if found.can_load(cpu, capture=capture, ancestors=ancestors)
    }
    assert found.known_loaders(capture, ancestors) == one_by_one
    assert set(found.loaders(capture, ancestors, "abcd")) == one_by_one
    split = found.split(tuple("abcd"), capture=capture, ancestors=tuple(ancestors))
    assert set(split.loaders) == one_by_one
    assert set(split.excluded) == set("abcd") - one_by_one
