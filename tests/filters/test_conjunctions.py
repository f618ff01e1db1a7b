"""Conjunctions: constraints on several attributes, compared attribute by attribute."""

from __future__ import annotations

import itertools
import random

from hypothesis import given
from hypothesis import strategies as st
from tests.filters.oracle import conjunction_matches
from tests.filters.strategies import events, predicate_lists, predicates_over
from tests.filters.universe import critical_numbers, satisfiable, values_of

from shoal.filters.conjunctions import Conjunction, conjunction_of
from shoal.filters.constraints import Absent, Exists
from shoal.filters.predicates import Operator, Predicate
from shoal.filters.ranges import Numbers, OneOf
from shoal.filters.values import Event

TRUE = Conjunction()

numeric_lists = st.lists(
    predicates_over(st.sampled_from("ab"), st.sampled_from((1, 2, 3)), st.just("x")).filter(
        lambda each: not isinstance(each.value, str) or each.operator is Operator.IS
    ),
    min_size=1,
    max_size=5,
)
"""Predicates on two attributes without strings: there, reasoning is complete."""


def all_events(predicates: list[Predicate]) -> list[Event]:
    """Every event over two attributes that can tell such conjunctions apart."""
    numbers = [value for value in values_of(predicates) if not isinstance(value, (str, bool))]
    values = [None, False, True, "x", "another", *critical_numbers(numbers)]
    return [
        {name: value for name, value in (("a", a), ("b", b)) if value is not None}
        for a, b in itertools.product(values, repeat=2)
    ]


@given(predicate_lists, events)
def test_it_matches_what_all_predicates_are_true_of(predicates: list[Predicate], event: Event) -> None:
    conjunction = conjunction_of(predicates)
    assert (conjunction is not None and conjunction.matches(event)) == conjunction_matches(predicates, event)


@given(predicate_lists, st.randoms(use_true_random=False))
def test_the_order_of_predicates_does_not_matter(predicates: list[Predicate], shuffler: random.Random) -> None:
    conjunction = conjunction_of(predicates)
    shuffler.shuffle(predicates)
    assert conjunction_of(predicates + predicates) == conjunction


def test_no_predicates_match_everything() -> None:
    assert conjunction_of([]) == TRUE
    assert TRUE.matches({})
    assert TRUE.covers(Conjunction((("a", OneOf((1,))),)))
    assert not Conjunction((("a", Exists()),)).covers(TRUE)


def test_null_is_absence() -> None:
    event: Event = {"a": None}  # as it may come from outside
    assert Conjunction((("a", Absent()),)).matches(event)
    assert not Conjunction((("a", Exists()),)).matches(event)


def test_it_covers_conjunctions_that_require_more() -> None:
    wide = Conjunction((("b", Numbers(low=1)),))
    narrow = Conjunction((("a", OneOf((1,))), ("b", Numbers(low=2)), ("c", Exists())))
    assert wide.covers(narrow)
    assert not narrow.covers(wide)
    assert not Conjunction((("b", Numbers(low=3)),)).covers(narrow)
    assert not Conjunction((("b", Numbers(low=1)), ("d", Exists()))).covers(narrow)


@given(numeric_lists, numeric_lists)
def test_reasoning_is_complete_wherever_constraints_are(ours: list[Predicate], theirs: list[Predicate]) -> None:
    one, other = satisfiable(ours), satisfiable(theirs)
    everything = all_events([*ours, *theirs])
    mine = [event for event in everything if one.matches(event)]
    others = [event for event in everything if other.matches(event)]
    both = [event for event in mine if other.matches(event)]
    assert one.covers(other) == (len(both) == len(others))
    assert one.intersects(other) == bool(both)
    assert (one == other) == (len(both) == len(mine) == len(others))
    met = one.meet(other)
    assert (met is None) == (not both)
    assert met is None or [event for event in everything if met.matches(event)] == both


@given(numeric_lists)
def test_predicates_that_nothing_satisfies_give_none(predicates: list[Predicate]) -> None:
    matched = any(conjunction_matches(predicates, event) for event in all_events(predicates))
    assert (conjunction_of(predicates) is None) == (not matched)
