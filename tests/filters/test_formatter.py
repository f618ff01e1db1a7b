"""The formatter: printed text parses to the same filter, and equal filters print the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from tests.filters import strategies as some

from shoal.errors import FilterError
from shoal.filters.filter import Filter
from shoal.filters.language import parse


@pytest.mark.parametrize(
    ("text", "infix", "paper"),
    [
        (
            "volume>300_000 and class=='STOCK'",
            "class = 'STOCK' and volume > 300000",
            "[class,eq,'STOCK'],[volume,>,300000]",
        ),
        ("a in (2, 1)", "a in (1, 2)", "[a,in,(1,2)]"),
        ("a != 1 and a != 2", "a not in (1, 2)", "[a,not in,(1,2)]"),
        ("a != 1", "a != 1", "[a,!=,1]"),
        ("not a prefix 'x'", "not a prefix 'x'", "[a,not str-prefix,'x']"),
        ("a is not 'x'", "a is not 'x'", "[a,is not,'x']"),
        ("a exists and a is not prefix 'x'", "a exists and a is not prefix 'x'", "[a,=,*],[a,is not str-prefix,'x']"),
        ("a contains 'it''s'", "a contains 'it''s'", "[a,str-contains,'it''s']"),
        ("a exists and b absent", "a exists and b absent", "[a,=,*],[b,absent]"),
        ("a is number", "a is number", "[a,isPresent,0]"),
        ("a is string", "a is string", "[a,isPresent,'']"),
        ("a is boolean", "a is boolean", "[a,isPresent,false]"),
        ("a = true", "a = true", "[a,=,true]"),
        ('"my attr" = 1 and "OR" = 1 and "a""b" = 1', '"OR" = 1 and "a""b" = 1 and "my attr" = 1', None),
        ("a = 1e300", "a = 1e+300", "[a,=,1e+300]"),
        ("true", "true", "true"),
        ("b = 1 or a = 1", "a = 1 or b = 1", None),
        ("a not in (1, 'x')", "a not in (1, 'x')", None),
        ("a != 'x' or a != 1", "a not in (1, 'x')", None),
        (
            "a not in (1, 'x') and b not in (2, 'y') or c = 1",
            "a not in (1, 'x') and b not in (2, 'y') or c = 1",
            None,
        ),
        ("a != 1 and a != 2 or b != 'x'", "a not in (1, 2) or b != 'x'", None),
    ],
)
def test_one_spelling_is_printed(text: str, infix: str, paper: str | None) -> None:
    made = parse(text)
    assert str(made) == infix
    if paper is not None:
        assert made.paper() == paper


def test_a_number_prints_the_same_as_int_and_as_float() -> None:
    assert str(parse("a = 1152921504606846976.0")) == str(parse("a = 1152921504606846976"))
    assert str(parse("a = 30.0")) == "a = 30"


def test_the_papers_spelling_has_no_or() -> None:
    with pytest.raises(FilterError, match="no `or`"):
        parse("a = 1 or b = 1").paper()


@given(some.filters)
def test_printed_filters_parse_to_the_same_filter(made: Filter) -> None:
    assert parse(str(made)) == made
    assert str(parse(str(made))) == str(made)


@given(some.any_filters)
def test_printed_predicates_parse_for_all_names_and_values(made: Filter) -> None:
    assert parse(str(made)) == made
    if len(made.conjunctions) == 1:
        assert parse(made.paper()) == made
