"""Constraints on one attribute: canonical, exact for numbers and finite sets, sound for strings."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.filters.oracle import conjunction_matches
from tests.filters.strategies import NUMBERS, UNIVERSE, one_attribute_lists, predicates_over
from tests.filters.universe import critical_values

from shoal.errors import FilterError
from shoal.filters.constraints import Absent, Constraint, Exists, constraint_of, order_of
from shoal.filters.predicates import UNLIKE, WILD, Operator, Predicate
from shoal.filters.ranges import BOOLEANS, Numbers, OneOf, one_of
from shoal.filters.strings import NUL, Strings, common_prefix, points, prefix_end
from shoal.filters.values import INTEGER_MAX, NUMBER_MAX, NUMBER_MIN, Number, Value, pred, succ

NEGATED = (Operator.NOT_PREFIX, Operator.NOT_SUFFIX, Operator.NOT_CONTAINS)
LAST = "\U0010ffff"

NEXT = math.nextafter(1, 2)
hard_numbers: st.SearchStrategy[Number] = st.sampled_from(
    (-1, 0, 1, NEXT, 2, 2**53, 2**53 + 1, 2**53 + 2, 2**63 + 1, INTEGER_MAX, 2.0**64, NUMBER_MAX, NUMBER_MIN)
)
hard_strings = st.text(alphabet=(NUL, "\1", "a", "b", LAST), max_size=3)
plain_strings = st.text(alphabet="ab", max_size=3)

hard_lists = st.lists(predicates_over(st.just("a"), hard_numbers, hard_strings), min_size=1, max_size=4)
positive_lists = st.lists(
    predicates_over(st.just("a"), hard_numbers, plain_strings).filter(
        lambda each: each.operator not in (*NEGATED, *UNLIKE.values(), *WILD)
    ),
    min_size=1,
    max_size=3,
)
number_lists = st.lists(
    st.builds(
        Predicate,
        st.just("a"),
        st.sampled_from((Operator.NE, Operator.NE, Operator.LT, Operator.LE, Operator.GT, Operator.GE)),
        hard_numbers,
    ),
    min_size=1,
    max_size=4,
)
string_lists = st.lists(
    predicates_over(st.just("a"), hard_numbers, hard_strings).filter(lambda each: isinstance(each.value, str)),
    min_size=1,
    max_size=4,
)


def made(*conditions: tuple[Operator, Value | tuple[Value, ...] | None]) -> Constraint | None:
    return constraint_of([Predicate("a", operator, value) for operator, value in conditions])


def oracle_accepts(predicates: Sequence[Predicate], value: Value | None) -> bool:
    return conjunction_matches(predicates, {} if value is None else {"a": value})


def accepted(constraint: Constraint | None, values: Sequence[Value | None]) -> list[Value | None]:
    return [] if constraint is None else [value for value in values if constraint.accepts(value)]


# -- Meaning ---------------------------------------------------------------------------------------------------------


@given(one_attribute_lists)
def test_a_constraint_accepts_what_all_its_predicates_are_true_of(predicates: list[Predicate]) -> None:
    constraint = constraint_of(predicates)
    for value in (None, *UNIVERSE):
        assert (constraint is not None and constraint.accepts(value)) == oracle_accepts(predicates, value)


@settings(max_examples=100)
@given(hard_lists)
def test_neither_neighbours_on_the_line_nor_strings_at_the_edge_of_an_interval_change_that(
    predicates: list[Predicate],
) -> None:
    constraint = constraint_of(predicates)
    for value in critical_values(predicates):
        assert (constraint is not None and constraint.accepts(value)) == oracle_accepts(predicates, value), value


def test_a_boolean_is_not_a_number() -> None:
    assert OneOf((True,)) != OneOf((1,))
    assert not OneOf((True,)).accepts(1)
    assert not OneOf((1,)).accepts(True)
    assert not OneOf((0, 1)).accepts(True)
    assert not Numbers().accepts(True)
    assert not OneOf((1,)).intersects(OneOf((True,)))


def test_an_in_of_several_kinds_is_not_a_single_constraint() -> None:
    with pytest.raises(FilterError, match="several kinds"):
        made((Operator.IN, (1, "x")))


def test_a_constraint_needs_a_predicate() -> None:
    with pytest.raises(FilterError, match="at least one"):
        constraint_of([])


# -- One form for one meaning ----------------------------------------------------------------------------------------

E, N, LT, LE, GT, GE = Operator.EQ, Operator.NE, Operator.LT, Operator.LE, Operator.GT, Operator.GE
PREFIX, SUFFIX, CONTAINS = Operator.PREFIX, Operator.SUFFIX, Operator.CONTAINS
NOT_PREFIX, NOT_SUFFIX, NOT_CONTAINS = NEGATED


@pytest.mark.parametrize(
    ("conditions", "constraint"),
    [
        ([(Operator.EXISTS, None)], Exists()),
        ([(Operator.ABSENT, None)], Absent()),
        ([(Operator.EXISTS, None), (GE, 5)], Numbers(low=5)),
        ([(Operator.IS, "number")], Numbers()),
        ([(Operator.IS, "string")], Strings()),
        ([(Operator.IS, "boolean")], BOOLEANS),
        ([(N, True)], OneOf((False,))),
        ([(GE, NUMBER_MIN)], Numbers()),
        ([(GE, 5), (GE, 3), (N, 2)], Numbers(low=5)),
        ([(GE, 5), (LE, 5)], OneOf((5,))),
        ([(GE, 1), (N, 1), (LE, NEXT)], OneOf((NEXT,))),
        ([(GE, 1), (LE, 2), (N, 1.5), (N, 7)], Numbers(1, 2, (1.5,))),
        ([(Operator.IN, (3, 1, 2, 1)), (GT, 1)], OneOf((2, 3))),
        ([(Operator.IN, (2**60, 2**60 + 1, 2**60 + 2))], Numbers(2**60, 2**60 + 2)),
        ([(GE, 2**60), (LE, 2**60 + 3), (N, 2**60 + 1), (N, 2**60 + 2)], OneOf((2**60, 2**60 + 3))),
        ([(PREFIX, "")], Strings()),
        ([(GE, "ab"), (LT, "ac")], Strings(prefix="ab")),
        ([(PREFIX, "a"), (PREFIX, "ab"), (GE, "a"), (LT, "b")], Strings(prefix="ab")),
        ([(PREFIX, "ab"), (GE, "abc")], Strings(low="abc", high="ac")),
        ([(SUFFIX, "c"), (SUFFIX, "bc")], Strings(suffix="bc")),
        ([(PREFIX, "ab"), (CONTAINS, "b"), (SUFFIX, "cd"), (CONTAINS, "d")], Strings(prefix="ab", suffix="cd")),
        ([(CONTAINS, "b"), (CONTAINS, "abc"), (CONTAINS, "")], Strings(contains=("abc",))),
        ([(PREFIX, "ab"), (SUFFIX, "bc"), (E, "abc")], OneOf(("abc",))),
        ([(GE, "a"), (N, "a")], Strings(low="a\0")),
        ([(LE, "a"), (N, "a")], Strings(high="a")),
        ([(GT, "a"), (SUFFIX, "b")], Strings(low="a", suffix="b")),
        ([(LE, "a"), (SUFFIX, "b")], Strings(high="a", suffix="b")),
        ([(GE, "a"), (LT, "a\1"), (SUFFIX, "b")], Strings(prefix="a\0", suffix="b")),
        ([(N, "x"), (PREFIX, "a")], Strings(prefix="a")),
        ([(N, "b"), (N, "a"), (N, "b")], Strings(excluded=("a", "b"))),
        ([(GE, "a"), (LE, "a")], OneOf(("a",))),
        ([(GE, "a"), (LE, "a\0")], OneOf(("a", "a\0"))),
        ([(GE, "a"), (NOT_PREFIX, "a")], Strings(low="b")),
        ([(LT, "b"), (NOT_PREFIX, "a")], Strings(high="a")),
        ([(NOT_PREFIX, "ab"), (NOT_PREFIX, "a")], Strings(not_prefix=("a",))),
        ([(NOT_PREFIX, "ab"), (PREFIX, "b")], Strings(prefix="b")),
        ([(NOT_SUFFIX, "ab"), (NOT_SUFFIX, "b")], Strings(not_suffix=("b",))),
        ([(NOT_SUFFIX, "ab"), (SUFFIX, "cb")], Strings(suffix="cb")),
        ([(NOT_CONTAINS, "ab"), (NOT_CONTAINS, "b"), (NOT_PREFIX, "xb")], Strings(not_contains=("b",))),
    ],
    ids=str,
)
def test_predicates_with_one_meaning_give_one_constraint(
    conditions: list[tuple[Operator, Value | tuple[Value, ...] | None]], constraint: Constraint
) -> None:
    for order in itertools.islice(itertools.permutations(conditions), 24):
        assert made(*order) == constraint


@pytest.mark.parametrize(
    "conditions",
    [
        [(Operator.EXISTS, None), (Operator.ABSENT, None)],
        [(E, 1), (E, "1")],
        [(E, 1), (E, True)],
        [(E, True), (N, True)],
        [(GT, 1), (LT, NEXT)],
        [(GT, 2**53), (LT, 2**53 + 1)],
        [(GT, NUMBER_MAX)],
        [(LT, NUMBER_MIN)],
        [(GE, 1), (LE, NEXT), (N, 1), (N, NEXT)],
        [(LT, "")],
        [(GT, "a"), (LT, "a\0")],
        [(PREFIX, "a"), (PREFIX, "b")],
        [(SUFFIX, "a"), (SUFFIX, "b")],
        [(PREFIX, "ab"), (E, "ba")],
        [(PREFIX, "ab"), (NOT_PREFIX, "a")],
        [(SUFFIX, "ab"), (NOT_SUFFIX, "b")],
        [(PREFIX, "ab"), (NOT_CONTAINS, "b")],
        [(CONTAINS, "ab"), (NOT_CONTAINS, "b")],
        [(NOT_PREFIX, "")],
        [(NOT_SUFFIX, "")],
        [(NOT_CONTAINS, "")],
        [(GE, LAST), (NOT_PREFIX, LAST)],
    ],
    ids=str,
)
def test_predicates_that_nothing_satisfies_give_none(conditions: list[tuple[Operator, Value]]) -> None:
    for order in itertools.permutations(conditions):
        assert made(*order) is None


@given(one_attribute_lists, st.randoms(use_true_random=False))
def test_order_repetition_and_implied_predicates_do_not_matter(predicates: list[Predicate], random: object) -> None:
    constraint = constraint_of(predicates)
    again = [*predicates, *predicates]
    random.shuffle(again)  # type: ignore[attr-defined]
    assert constraint_of(again) == constraint
    if constraint is not None:
        assert constraint_of([*constraint.predicates("a"), *again]) == constraint


@settings(max_examples=100)
@given(hard_lists)
def test_the_predicates_of_a_constraint_give_the_same_constraint(predicates: list[Predicate]) -> None:
    constraint = constraint_of(predicates)
    if constraint is not None:
        spelled = constraint.predicates("a")
        assert constraint_of(spelled) == constraint
        assert hash(constraint_of(spelled)) == hash(constraint)
        assert order_of(constraint) == order_of(constraint_of(spelled) or Absent())


def test_a_constraint_that_needs_a_value_does_not_cover_one_that_needs_none() -> None:
    present, any_other = (made(*more, (Operator.IS_NOT, 1)) for more in ([(Operator.EXISTS, None)], []))
    assert present is not None
    assert any_other is not None
    assert any_other.covers(present)
    assert not present.covers(any_other)


def test_a_bound_is_spelled_the_short_way() -> None:
    assert Numbers(low=succ(5) or 0).predicates("a") == (Predicate("a", GT, 5),)
    assert Numbers(low=5).predicates("a") == (Predicate("a", GE, 5),)
    assert Numbers(high=pred(0.1) or 0).predicates("a") == (Predicate("a", LT, 0.1),)
    assert Strings(low="a\0", high="c\0").predicates("a") == (Predicate("a", GT, "a"), Predicate("a", LE, "c"))


@given(st.lists(st.sampled_from([2**60 + step for step in range(6)]), min_size=1))
def test_a_finite_set_of_numbers_has_one_form_whether_it_is_listed_or_cut_out(numbers: list[int]) -> None:
    low, high = min(numbers), max(numbers)
    cut_out = [Predicate("a", GE, low), Predicate("a", LE, high)]
    cut_out += [Predicate("a", N, number) for number in range(low, high) if number not in numbers]
    assert one_of(numbers) == constraint_of(cut_out)


# -- Reasoning -------------------------------------------------------------------------------------------------------


@settings(max_examples=100)
@given(hard_lists, hard_lists)
def test_reasoning_is_sound(ours: list[Predicate], theirs: list[Predicate]) -> None:
    one, other = constraint_of(ours), constraint_of(theirs)
    values = critical_values((*ours, *theirs))
    mine, others = accepted(one, values), accepted(other, values)
    if one is None or other is None:
        assert one is not None or not mine
        assert other is not None or not others
        return
    both = [value for value in values if one.accepts(value) and other.accepts(value)]
    if one.covers(other):
        assert len(both) == len(others)
    if both:
        assert one.intersects(other)
        assert other.intersects(one)
    met = one.meet(other)
    assert (met is not None) == one.intersects(other)
    assert accepted(met, values) == both
    assert met == other.meet(one)


@settings(max_examples=100)
@given(number_lists, number_lists)
def test_reasoning_about_numbers_is_complete(ours: list[Predicate], theirs: list[Predicate]) -> None:
    check_completeness(ours, theirs)


@settings(max_examples=100)
@given(positive_lists, positive_lists)
def test_reasoning_is_complete_without_negated_string_operators(ours: list[Predicate], theirs: list[Predicate]) -> None:
    check_completeness(ours, theirs)


def check_completeness(ours: list[Predicate], theirs: list[Predicate]) -> None:
    one, other = constraint_of(ours), constraint_of(theirs)
    values = critical_values((*ours, *theirs))
    mine, others = accepted(one, values), accepted(other, values)
    assert (one is None) == (not mine)
    if one is None or other is None:
        return
    both = [value for value in values if one.accepts(value) and other.accepts(value)]
    assert one.covers(other) == (len(both) == len(others))
    assert one.intersects(other) == bool(both)
    assert (one == other) == (len(both) == len(mine) == len(others))


@settings(max_examples=100)
@given(string_lists, string_lists, string_lists)
def test_covering_is_a_partial_order(first: list[Predicate], second: list[Predicate], third: list[Predicate]) -> None:
    lists = (first, first + second, first + second + third, second, third)
    found = [each for each in map(constraint_of, lists) if each is not None]
    covers = [[one.covers(other) for other in found] for one in found]
    for one, other in itertools.combinations(range(len(found)), 2):
        if covers[one][other] and covers[other][one]:
            assert found[one] == found[other]
    for one, other, another in itertools.product(range(len(found)), repeat=3):
        if covers[one][other] and covers[other][another]:
            assert covers[one][another], (found[one], found[other], found[another])
    assert all(covers[each][each] for each in range(len(found)))


@given(hard_lists, hard_lists)
def test_more_predicates_are_covered_by_fewer(fewer: list[Predicate], more: list[Predicate]) -> None:
    wide, narrow = constraint_of(fewer), constraint_of([*fewer, *more])
    if narrow is not None:
        assert wide is not None
        assert wide.covers(narrow)


def test_presence_covers_every_value_and_absence_none() -> None:
    for constraint in (Numbers(), Strings(), BOOLEANS, Exists()):
        assert Exists().covers(constraint)
        assert not constraint.covers(Absent())
        assert not Absent().covers(constraint)
        assert constraint.meet(Absent()) is None
        assert Absent().meet(constraint) is None
        assert Exists().meet(constraint) == constraint.meet(Exists()) == constraint


def test_an_interval_with_a_hole_does_not_cover_what_fills_it() -> None:
    assert not Numbers(0, 9, (5,)).covers(Numbers(4, 6))
    assert not Numbers(0, 9, (5,)).covers(OneOf((4, 5)))
    assert Numbers(0, 9, (5,)).covers(Numbers(4, 6, (5,)))
    assert Numbers(0, 9, (5,)).covers(Numbers(6, 7))


def test_a_list_covers_an_interval_of_which_it_has_every_number() -> None:
    interval = Numbers(1, NEXT)
    assert OneOf((1, NEXT, 2)).covers(interval)
    assert not OneOf((1, 2)).covers(interval)
    assert not OneOf(NUMBERS).covers(Numbers())


def test_a_substring_follows_from_a_prefix_a_suffix_or_a_longer_one() -> None:
    wanted = Strings(contains=("bc",))
    for narrow in (Strings(prefix="abcd"), Strings(suffix="abc"), Strings(contains=("abcd",)), OneOf(("bc", "abc"))):
        assert wanted.covers(narrow)
    assert not wanted.covers(Strings(prefix="ab", suffix="cd"))
    assert wanted.covers(Strings(low="abcd", high="abce"))
    assert not wanted.covers(Strings(low="abcd", high="abd0"))


def test_the_documented_limitations_exist() -> None:
    """The docstring of `strings` lists them; update it if this test fails after an improvement."""
    assert made((GE, "ab"), (LT, "ad"), (NOT_CONTAINS, "abb"), (NOT_CONTAINS, "abc")) is not None


# -- Intervals of strings --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prefix", "end"),
    [("a", "b"), ("a" + LAST, "b"), (LAST, None), ("", None), ("\ud7ff", "\ue000"), ("a\0", "a\1")],
)
def test_a_prefix_ends_where_no_string_begins_with_it(prefix: str, end: str | None) -> None:
    assert prefix_end(prefix) == end


@pytest.mark.parametrize(
    ("low", "high", "found"),
    [("a", "a\0", ["a"]), ("a", "a\0\0", ["a", "a\0"]), ("a", "b", None), ("a", None, None), ("b", "a", [])],
)
def test_an_interval_is_finite_between_a_string_and_the_same_with_nuls(
    low: str, high: str | None, found: list[str] | None
) -> None:
    assert points(low, high) == found


@given(hard_strings, st.one_of(st.none(), hard_strings), st.lists(hard_strings, min_size=5, max_size=30))
def test_all_strings_of_an_interval_begin_with_its_common_prefix(low: str, high: str | None, texts: list[str]) -> None:
    if high is not None and high <= low:
        return
    common = common_prefix(low, high)
    for text in (low, *texts, *(low + text for text in texts)):
        if low <= text and (high is None or text < high):
            assert text.startswith(common)
