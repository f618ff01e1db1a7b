"""Hypothesis strategies for values, events, predicates and filters, over a universe small enough to try all of it.

The universe has the values where mistakes hide: neighbours of integers past 2**53, strings that are prefixes and
suffixes of each other, and the same digits as a number and as a string.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from shoal.filters.conjunctions import conjunction_of
from shoal.filters.expansion import All, Any, Expression, Leaf, Not
from shoal.filters.filter import Filter, filter_of
from shoal.filters.predicates import LISTING, ORDERED, TEXTUAL, UNLIKE, WILD, Operator, Predicate, predicate
from shoal.filters.values import INTEGER_MAX, INTEGER_MIN, KINDS, Event, Value
from shoal.filters.views import ADDRESS, FOLDED, network_bits
from shoal.filters.wildcards import pattern_of

NAMES = ("a", "b", "c")
NUMBERS: tuple[int | float, ...] = (-1, 0, 0.5, 1, 2, 3, 2**53, 2**53 + 1, 1e300)
STRINGS = ("", "a", "ab", "aba", "b", "ba", "bb", "1", "é", "aB*", "É", "10.1.2.3", "::1")
NETWORKS = ("10.0.0.0/8", "10.1.2.3", "10.1.2.0/24", "0.0.0.0/0", "::/0", "::1/128", "2001:db8::/32")
BOOLEANS = (False, True)
UNIVERSE: tuple[Value, ...] = (*NUMBERS, *STRINGS, *BOOLEANS)
"""Every value that the strategies draw."""

names = st.sampled_from(NAMES)
numbers = st.sampled_from(NUMBERS)
strings = st.sampled_from(STRINGS)
booleans = st.sampled_from(BOOLEANS)
values: st.SearchStrategy[Value] = st.one_of(numbers, strings, booleans)

any_numbers = st.one_of(st.integers(INTEGER_MIN, INTEGER_MAX), st.floats(allow_nan=False, allow_infinity=False))
any_strings = st.text(max_size=12)
any_values: st.SearchStrategy[Value] = st.one_of(any_numbers, any_strings, st.booleans())
"""Values of all sizes, for what need not be tried exhaustively."""

any_names = st.text(min_size=1, max_size=12)

events: st.SearchStrategy[Event] = st.dictionaries(names, values, max_size=len(NAMES))
any_events: st.SearchStrategy[Event] = st.dictionaries(any_names, any_values, max_size=6)


def patterns_over(textual: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Wildcards with some stars between some texts."""
    return st.lists(textual, min_size=1, max_size=4).map(lambda parts: pattern_of(tuple(parts)))


def predicates_over(
    attributes: st.SearchStrategy[str],
    numeric: st.SearchStrategy[int | float],
    textual: st.SearchStrategy[str],
) -> st.SearchStrategy[Predicate]:
    """Predicates of every operator, each with a value that it takes."""
    ordered = st.one_of(numeric, textual)
    anything: st.SearchStrategy[Value] = st.one_of(numeric, textual, st.booleans())
    lists = st.one_of(
        st.lists(numeric, min_size=1, max_size=4), st.lists(textual, min_size=1, max_size=4), st.just([False, True])
    )

    def operand(operator: Operator) -> st.SearchStrategy[Value | tuple[Value, ...] | None]:
        if operator in (Operator.EXISTS, Operator.ABSENT):
            return st.none()
        if operator is Operator.IS:
            return st.sampled_from(sorted(KINDS))
        if operator in LISTING:
            return lists.map(tuple)
        if operator in WILD:
            return patterns_over(textual).filter(lambda pattern: set(pattern) != {"*"})
        if operator is Operator.IS_NOT:
            return ordered
        if operator in UNLIKE.values():
            return textual.filter(bool)
        if operator in TEXTUAL:
            return textual
        return ordered if operator in ORDERED else anything

    return st.sampled_from(list(Operator)).flatmap(
        lambda operator: st.builds(predicate, attributes, st.just(operator), operand(operator))
    )


def predicates_on_views(
    attributes: st.SearchStrategy[str], textual: st.SearchStrategy[str]
) -> st.SearchStrategy[Predicate]:
    """Predicates on folded strings and on addresses."""
    operators = sorted((TEXTUAL | ORDERED | {Operator.EQ, Operator.NE, Operator.IS_NOT}) - _NEEDS_TEXT)
    folded = attributes.map(lambda name: name + FOLDED)
    return st.one_of(
        st.builds(predicate, folded, st.sampled_from(operators), textual),
        st.builds(predicate, folded, st.sampled_from(sorted(_NEEDS_TEXT - WILD)), textual.filter(bool)),
        st.builds(predicate, folded, st.sampled_from(sorted(LISTING)), st.lists(textual, min_size=1).map(tuple)),
        st.builds(
            predicate,
            folded,
            st.sampled_from(sorted(WILD)),
            patterns_over(textual).filter(lambda pattern: set(pattern) != {"*"}),
        ),
        st.builds(
            predicate,
            attributes.map(lambda name: name + ADDRESS),
            st.sampled_from((Operator.PREFIX, Operator.NOT_PREFIX, Operator.IS_NOT_PREFIX)),
            st.sampled_from(NETWORKS).map(network_bits),
        ),
    )


_NEEDS_TEXT = frozenset(UNLIKE.values()) - {Operator.IS_NOT} | WILD

plain_predicates = predicates_over(names, numbers, strings)
predicates = st.one_of(plain_predicates, plain_predicates, predicates_on_views(names, strings))
any_predicates = st.one_of(
    predicates_over(any_names, any_numbers, any_strings), predicates_on_views(any_names, any_strings)
)

predicate_lists = st.lists(predicates, min_size=1, max_size=5)
"""The predicates of one conjunction, which may contradict each other."""

one_attribute_lists = st.lists(predicates_over(st.just("a"), numbers, strings), min_size=1, max_size=5)
"""The same on the attribute `a` alone: what one constraint is made from."""


def _filter(alternatives: Sequence[Sequence[Predicate]]) -> Filter | None:
    satisfiable = [found for found in map(conjunction_of, alternatives) if found is not None]
    return filter_of(satisfiable) if satisfiable else None


def filters_over(conditions: st.SearchStrategy[Predicate]) -> st.SearchStrategy[Filter]:
    """Filters of a few conjunctions that something can satisfy."""
    alternatives = st.lists(st.lists(conditions, min_size=1, max_size=3), min_size=1, max_size=3)
    return alternatives.map(_filter).filter(lambda made: made is not None)  # type: ignore[return-value]


filters = filters_over(predicates)
any_filters = filters_over(any_predicates)

mixed_lists = st.builds(
    predicate, names, st.sampled_from(sorted(LISTING)), st.lists(values, min_size=2, max_size=4).map(tuple)
)
"""`in` and `not in` with values of several kinds, which only an expression can hold."""

expressions: st.SearchStrategy[Expression] = st.recursive(
    st.one_of(predicates, mixed_lists).map(Leaf),
    lambda parts: st.one_of(
        parts.map(Not),
        st.lists(parts, min_size=1, max_size=3).map(lambda some: All(tuple(some))),
        st.lists(parts, min_size=1, max_size=3).map(lambda some: Any(tuple(some))),
    ),
    max_leaves=6,
)
"""Predicates under `and`, `or` and `not`, which may be too much for the limits or for anything to satisfy."""
