"""Values: three kinds, one line of numbers without gaps or duplicates, and invalid values."""

from __future__ import annotations

import math
from enum import IntEnum, StrEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.filters import strategies as some

from shoal.filters.values import (
    EXACT_MAX,
    INTEGER_MAX,
    INTEGER_MIN,
    NUMBER_MAX,
    NUMBER_MIN,
    Value,
    ValueKind,
    canonical,
    kind_of,
    pred,
    problem_of,
    problem_of_name,
    succ,
)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (True, ValueKind.BOOLEAN),
        (1, ValueKind.NUMBER),
        (1.5, ValueKind.NUMBER),
        ("1", ValueKind.STRING),
        ("", ValueKind.STRING),
    ],
)
def test_a_value_has_one_kind_and_booleans_are_not_numbers(value: Value, kind: ValueKind) -> None:
    assert kind_of(value) is kind


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (math.nan, "NaN"),
        (math.inf, "infinity"),
        (INTEGER_MAX + 1, "64 bits"),
        (INTEGER_MIN - 1, "64 bits"),
        ("\ud800", "surrogate"),
        (None, "NoneType"),
        (b"x", "bytes"),
        ([1], "list"),
    ],
)
def test_invalid_values_are_rejected_with_the_reason(value: object, says: str) -> None:
    assert says in (problem_of(value) or "")


@pytest.mark.parametrize("value", [INTEGER_MAX, INTEGER_MIN, NUMBER_MAX, NUMBER_MIN, 5e-324, "", "\0", "\U0001f41f"])
def test_the_ends_of_the_range_are_values(value: object) -> None:
    assert problem_of(value) is None


@pytest.mark.parametrize(
    ("name", "says"), [("", "empty"), (1, "not int"), ("\udfff", "surrogate"), ("é" * 128, "attribute_name_bytes_max")]
)
def test_a_name_is_a_short_string_that_is_not_empty(name: object, says: str) -> None:
    assert says in (problem_of_name(name) or "")
    assert problem_of_name("é" * 127) is None


@pytest.mark.parametrize(
    ("value", "kept"), [(30.0, 30), (-0.0, 0), (2.0**53, 2**53), (0.5, 0.5), (True, True), (2.0**60, 2.0**60)]
)
def test_an_integral_float_becomes_an_int_where_that_is_exact(value: Value, kept: Value) -> None:
    assert canonical(value) == kept
    assert type(canonical(value)) is type(kept)
    assert str(canonical(-0.0)) == "0"


def test_the_canonical_form_has_plain_types() -> None:
    class Size(IntEnum):
        LARGE = 3

    class Name(StrEnum):
        FISH = "fish"

    assert [type(canonical(value)) for value in (Size.LARGE, Name.FISH)] == [int, str]


@given(some.any_values)
def test_the_canonical_form_is_the_same_value(value: Value) -> None:
    assert canonical(value) == value
    assert kind_of(canonical(value)) is kind_of(value)


@given(some.any_numbers)
def test_neighbours_are_next_to_each_other(number: int | float) -> None:
    above, below = succ(number), pred(number)
    assert above is None or (above > number and pred(above) == number)
    assert below is None or (below < number and succ(below) == number)


@given(some.any_numbers, some.any_numbers)
def test_nothing_is_between_neighbours(one: int | float, other: int | float) -> None:
    above, below = succ(one), pred(one)
    assert other <= one or above is None or other >= above
    assert other >= one or below is None or other <= below


@given(st.sampled_from([0, 1, EXACT_MAX, INTEGER_MAX, INTEGER_MIN, 2**63]), st.integers(-3, 3), st.booleans())
def test_neighbours_where_the_spacing_of_the_line_changes(at: int, offset: int, as_float: bool) -> None:
    number: int | float = float(at + offset) if as_float else at + offset
    if problem_of(number):
        return
    above, below = succ(number), pred(number)
    assert above is not None
    assert below is not None
    assert pred(above) == succ(below) == number
    assert canonical(above) == above
    assert type(canonical(above)) is type(above)


def test_examples_of_neighbours() -> None:
    assert succ(0) == 5e-324
    assert pred(5e-324) == 0
    assert succ(2**53) == 2**53 + 1
    assert succ(INTEGER_MAX) == 2.0**64
    assert succ(2.0**64) == 2.0**64 + 4096
    assert pred(2.0**64) == INTEGER_MAX
    assert succ(NUMBER_MAX) is None
    assert pred(NUMBER_MIN) is None
