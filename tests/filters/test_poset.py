"""The poset: the transitive reduction of covering, kept through inserts and removes, and its roots."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.filters.strategies import predicate_lists, predicates_over
from tests.filters.universe import satisfiable

from shoal.errors import FilterError, ProtocolError
from shoal.filters.conjunctions import Conjunction
from shoal.filters.filter import Filter, filter_of
from shoal.filters.language import parse
from shoal.filters.poset import Insertion, Poset, Removal
from shoal.filters.predicates import Predicate


class SlowPoset:
    """Compares all pairs; only the results of comparisons are cached."""

    def __init__(self) -> None:
        self.filters: set[Filter] = set()
        self.compared: dict[tuple[Filter, Filter], bool] = {}

    def is_above(self, one: Filter, other: Filter) -> bool:
        if (one, other) not in self.compared:
            self.compared[one, other] = one != other and one.covers_by_parts(other)
        return self.compared[one, other]

    def above(self, filter_: Filter) -> set[Filter]:
        return {other for other in self.filters if self.is_above(other, filter_)}

    def parents(self, filter_: Filter) -> set[Filter]:
        above = self.above(filter_)
        return {one for one in above if not any(self.is_above(one, other) for other in above)}

    def roots(self) -> set[Filter]:
        return {each for each in self.filters if not any(self.is_above(other, each) for other in self.filters)}


def check(poset: Poset, slow: SlowPoset) -> None:
    assert set(poset) == slow.filters
    assert set(poset.roots) == slow.roots()
    children: dict[Filter, set[Filter]] = {each: set() for each in slow.filters}
    for each in slow.filters:
        parents = slow.parents(each)
        assert set(poset.parents(each)) == parents, each
        for parent in parents:
            children[parent].add(each)
    for each in slow.filters:
        assert set(poset.children(each)) == children[each]


def insert(poset: Poset, slow: SlowPoset, filter_: Filter, subscriber: object = 0) -> None:
    before = slow.roots()
    is_new = filter_ not in slow.filters
    slow.filters.add(filter_)
    after = slow.roots()
    result = poset.insert(filter_, subscriber)
    assert (result.is_new, result.is_root, set(result.covered)) == (is_new, filter_ in after, before - after)


def remove(poset: Poset, slow: SlowPoset, filter_: Filter, subscriber: object = 0) -> None:
    before = slow.roots()
    slow.filters.remove(filter_)
    after = slow.roots()
    result = poset.remove(filter_, subscriber)
    assert (result.is_gone, result.was_root, set(result.exposed)) == (True, filter_ in before, after - before)


# -- By hand: figure 2 and section 2.3 of the paper ------------------------------------------------------------------


def test_a_covered_filter_is_below_the_nearest_that_cover_it() -> None:
    poset = Poset()
    wide, middle, narrow = (parse(f"a > {bound}") for bound in (1, 5, 9))
    assert poset.insert(narrow, "n") == Insertion(is_new=True, is_root=True, covered=())
    assert poset.insert(wide, "w") == Insertion(is_new=True, is_root=True, covered=(narrow,))
    assert poset.insert(middle, "m") == Insertion(is_new=True, is_root=False, covered=())
    assert set(poset.roots) == {wide}
    assert poset.parents(narrow) == (middle,)
    assert poset.children(wide) == (middle,)


def test_removing_a_root_exposes_those_that_only_it_had_covered() -> None:
    poset = Poset()
    first, second = parse("a > 1"), parse("b > 1")
    only_first, both = parse("a > 5"), parse("a > 3 and b > 3")
    for filter_ in (both, first, only_first, second):
        poset.insert(filter_, "s")
    assert set(poset.parents(both)) == {first, second}
    assert poset.remove(first, "s") == Removal(is_gone=True, was_root=True, exposed=(only_first,))
    assert set(poset.roots) == {second, only_first}
    assert poset.remove(second, "s") == Removal(is_gone=True, was_root=True, exposed=(both,))


def test_a_filter_stays_while_it_has_subscribers() -> None:
    poset = Poset()
    filter_ = parse("a = 1")
    poset.insert(filter_, "one")
    assert poset.insert(parse("a >= 1 and a <= 1"), "two") == Insertion(is_new=False, is_root=True, covered=())
    assert poset.subscribers(filter_) == {"one", "two"}
    assert poset.remove(filter_, "one") == Removal(is_gone=False, was_root=True, exposed=())
    assert filter_ in poset
    assert poset.remove(filter_, "two").is_gone
    assert filter_ not in poset
    assert len(poset) == 0
    assert not poset.subscribers(filter_)


def test_removing_an_unknown_subscriber_is_a_mistake_of_the_caller() -> None:
    poset = Poset()
    poset.insert(parse("a = 1"), "one")
    with pytest.raises(ProtocolError):
        poset.remove(parse("a = 1"), "two")
    with pytest.raises(ProtocolError):
        poset.remove(parse("a = 2"), "one")
    assert poset.subscribers(parse("a = 1")) == {"one"}


def test_true_covers_all_filters() -> None:
    poset = Poset()
    others = [parse(text) for text in ("a = 1", "b absent", "c prefix 'x' or d exists")]
    for other in others:
        poset.insert(other, 0)
    assert set(poset.insert(parse("true"), 0).covered) == set(others)
    assert set(poset.remove(parse("true"), 0).exposed) == set(others)


@pytest.mark.parametrize("narrow", ["a contains 'bcd'", "a suffix 'bc'", "a prefix 'a'"])
@pytest.mark.parametrize("wide", ["a > ''", "a != ''", "a >= '\0\0'"])
def test_an_interval_without_the_smallest_strings_covers_suffixes_and_substrings(wide: str, narrow: str) -> None:
    poset = Poset()
    poset.insert(parse(narrow), 0)
    assert poset.insert(parse(wide), 0).covered == (parse(narrow),)


def test_all_alternatives_of_a_filter_are_compared() -> None:
    poset = Poset()
    near, far = parse("a < 3"), parse("a < 9")
    poset.insert(near, 0)
    poset.insert(far, 0)
    both = parse("a < 2 and b = 1 or a < 5 and c = 1")
    assert poset.insert(both, 0) == Insertion(is_new=True, is_root=False, covered=())
    assert poset.parents(both) == (far,)


# -- Against all pairs -----------------------------------------------------------------------------------------------

numbers = st.sampled_from((1, 2, 3, 4))
strings = st.sampled_from(("a", "ab", "abc", "abcd", "b", "bc", "bcd", "cd"))
alike = st.lists(predicates_over(st.sampled_from("ab"), numbers, strings), min_size=1, max_size=3)


def filters_over(lists: st.SearchStrategy[list[Predicate]], conjunctions_max: int = 3) -> st.SearchStrategy[Filter]:
    return st.lists(lists.map(satisfiable), min_size=1, max_size=conjunctions_max).map(filter_of)


class Changes(RuleBasedStateMachine):
    """Random inserts and removes; after each one the poset agrees with comparing all pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.poset = Poset()
        self.slow = SlowPoset()

    @rule(filter_=st.one_of(filters_over(alike, 1), filters_over(alike), filters_over(predicate_lists)))
    def insert(self, filter_: Filter) -> None:
        insert(self.poset, self.slow, filter_)

    @precondition(lambda self: self.slow.filters)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        filter_ = data.draw(st.sampled_from(sorted(self.slow.filters, key=str)))
        remove(self.poset, self.slow, filter_)

    @invariant()
    def agrees_with_all_pairs(self) -> None:
        check(self.poset, self.slow)


TestChanges = Changes.TestCase
TestChanges.settings = settings(
    max_examples=30, stateful_step_count=20, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def texts_of_one_shape(seed: int) -> Iterable[str]:
    """Templates that make large families of each type, with bounds and texts that often cover each other."""
    draw = random.Random(seed)
    while True:
        number, other = draw.randint(1, 12), draw.randint(1, 12)
        text = "".join(draw.choices("ab", k=draw.randint(1, 4)))
        yield draw.choice(
            (
                f"a > {number}",
                f"a < {number}",
                f"a > {number} and b < {other}",
                f"a > {number} and a < {number + other}",
                f"a > {number} and b > {other} and c < {draw.randint(1, 4)}",
                f"c = {draw.randint(1, 2)} and a >= {number}",
                f"c in ({draw.randint(1, 3)}, {draw.randint(1, 5)}, {draw.randint(1, 5)})",
                f"a is number and b > {number}",
                f"a = {number}",
                f"a != {number} and a > {other}",
                f"s prefix '{text}'",
                f"s suffix '{text}'",
                f"s contains '{text}'",
                f"s = '{text}'",
                f"s in ('{text}', '{text[::-1]}', 'b')",
                f"s prefix '{text}' and s suffix '{text[:2]}'",
                f"s prefix '{text}' and a > {number}",
                f"s >= '{text}'",
                f"not s contains '{text}'",
                "s exists",
                "s is string",
                "a is number",
                f"a > {number} or s prefix '{text}'",
                f"a > {number} and c = 1 or a > {other} and c = 2",
            )
        )


@pytest.mark.parametrize("seed", range(4))
def test_large_families_agree_with_comparing_all_pairs(seed: int) -> None:
    draw = random.Random(seed)
    poset, slow = Poset(), SlowPoset()
    for step, text in zip(range(160), texts_of_one_shape(seed), strict=False):
        if slow.filters and draw.random() < 0.3:
            remove(poset, slow, draw.choice(sorted(slow.filters, key=str)))
        if (filter_ := parse(text)) not in slow.filters:
            insert(poset, slow, filter_)
        if step % 40 == 0:
            check(poset, slow)
    check(poset, slow)
    for filter_ in sorted(slow.filters, key=str):
        remove(poset, slow, filter_)
    assert not poset.roots
    for index in (poset._single, poset._several):
        assert not index._root.further, "branches of families that are gone are cut"


@settings(max_examples=50)
@given(st.lists(filters_over(alike, 2), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_the_order_of_inserts_does_not_matter(filters: list[Filter], shuffler: random.Random) -> None:
    one, other = Poset(), Poset()
    for filter_ in filters:
        one.insert(filter_, 0)
    shuffler.shuffle(filters)
    for filter_ in filters:
        other.insert(filter_, 0)
    assert set(one.roots) == set(other.roots)
    assert {each: set(one.parents(each)) for each in one} == {each: set(other.parents(each)) for each in other}


# -- Cost ------------------------------------------------------------------------------------------------------------


def stock(count: int, symbols: int, seed: int = 1) -> Iterable[Filter]:
    """Subscriptions by the templates of the paper's section 6.2."""
    draw = random.Random(seed)
    for _ in range(count):
        symbol = f"symbol = 'S{draw.randrange(symbols)}' and "
        kind = draw.random()
        if kind < 0.6:
            bound = ("high > {:.2f}", "low < {:.2f}", "volume > {:.0f}")[int(kind / 0.2)]
            yield parse(f"class = 'STOCK' and {symbol}{bound.format(draw.uniform(1, 1000) * 100)}")
        elif kind < 0.94:
            yield parse(f"class = 'STOCK' and {symbol[:-5]}")
        else:
            volume = f" and volume > {draw.uniform(1, 1000) * 100:.0f}" if kind < 0.99 else ""
            yield parse(f"class = 'STOCK'{volume}")


def test_an_insert_compares_with_a_few_filters_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0
    covers = Conjunction.covers

    def counted(self: Conjunction, other: Conjunction) -> bool:
        nonlocal compared
        compared += 1
        return covers(self, other)

    poset = Poset()
    filters = list(stock(4000, 40))
    for filter_ in filters[:2000]:
        poset.insert(filter_, 0)
    monkeypatch.setattr(Conjunction, "covers", counted)
    for filter_ in filters[2000:]:
        poset.insert(filter_, 0)
    assert compared / 2000 < 20
    assert len(poset) > 1500


def test_anything_but_a_filter_of_the_poset_is_rejected() -> None:
    poset, wrong = Poset(), cast(Filter, "a = 1")
    for refused in (
        lambda: poset.insert(wrong, 1),
        lambda: poset.remove(wrong, 1),
        lambda: poset.children(wrong),
        lambda: poset.parents(wrong),
    ):
        with pytest.raises(FilterError, match="a filter is needed, not something of type str"):
            refused()
    for unknown in (poset.children, poset.parents):
        with pytest.raises(FilterError, match="`a = 1` is not in the poset"):
            unknown(parse("a = 1"))
    assert len(poset) == 0
