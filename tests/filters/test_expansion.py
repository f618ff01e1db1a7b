"""Expansion: `or` and `not` become a bounded number of conjunctions, or an error that says why not."""

from __future__ import annotations

import time

import pytest

from shoal.errors import EmptyFilterError, FilterError, FilterTooLargeError
from shoal.filters.language import parse
from shoal.limits import Limits

# -- Nothing can satisfy it ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "position", "says"),
    [
        ("a > 5 and b = 1 and a < 3", 20, "`a > 5` and `a < 3` contradict each other"),
        ("a = 1 and a = 'x'", 10, "`a = 1` and `a = 'x'` contradict each other"),
        ("a = 1 and a absent", 10, "`a = 1` and `a absent` contradict"),
        ("a = 1 and not (a = 1)", 15, "`a = 1` and `a != 1` contradict"),
        ("a >= 1 and (b = 1 or c = 1) and a <= 1 and a != 1", 43, "`a >= 1`, `a <= 1` and `a != 1` contradict"),
        ("(a = 1 or a = 2) and a = 3", 21, "`a = 1` and `a = 3` contradict each other"),
        (f"a not in ({', '.join(map(str, range(200)))}) and a = 7", 904, "`a != 7` and `a = 7` contradict"),
        ("a < ''", 0, "no value satisfies `a < ''`"),
        ("not true", 4, "`not true` is never true"),
        ("a = 1 and not (true and true)", 15, "`not true` is never true"),
        ("not (a = 1 or a = 'x')", 14, "`a != 1` and `a != 'x'` contradict"),
        ("a in (1, 2) and a not in (1, 2, 3)", 16, r"`a in \(1, 2\)` and `a not in \(1, 2\)` contradict"),
        ("a not in (true, false)", 0, r"no value satisfies `a not in \(true, false\)`"),
    ],
)
def test_a_filter_that_nothing_can_satisfy_says_which_predicates_are_to_blame(
    text: str, position: int | None, says: str
) -> None:
    with pytest.raises(EmptyFilterError, match=says) as caught:
        parse(text)
    assert caught.value.position == position


# -- Limits --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "limits", "says"),
    [
        ("a = 'xxxxxxxx'", Limits(filter_text_bytes_max=10), "14 bytes long, more than filter_text_bytes_max=10"),
        ("a = 'éé'", Limits(filter_string_bytes_max=3), "4 bytes long, more than filter_string_bytes_max=3"),
        ("a in (1, 2, 3)", Limits(filter_in_values_max=2), "3 values, more than filter_in_values_max=2"),
        ("((a = 1))", Limits(filter_depth_max=1), "filter_depth_max"),
        ("not not a = 1", Limits(filter_depth_max=1), "filter_depth_max"),
        ("a = 1 or b = 1 or c = 1", Limits(filter_conjunctions_max=2), "more than 2 conjunctions"),
        ("a = 1 and b = 1 or c = 1", Limits(filter_predicates_max=2), "more than 2 predicates"),
        ("(a = 1 or b = 1) and (c = 1 or d = 1)", Limits(filter_work_max=10), "more than 10 steps"),
        ("a > 1 and a < 5 and a != 3", Limits(filter_predicates_max=2), "more than 2 predicates"),
        (
            "a not in (1, 2) and a not in (3, 4)",
            Limits(filter_in_values_max=3),
            "4 values of .*_in_values_max=3",
        ),
    ],
)
def test_a_filter_over_a_limit_is_rejected_with_the_name_of_the_limit(text: str, limits: Limits, says: str) -> None:
    with pytest.raises(FilterTooLargeError, match=says):
        parse(text, limits)


@pytest.mark.parametrize(
    ("text", "limits", "position"),
    [
        ("a = 1 or b = 1 or c = 1", Limits(filter_conjunctions_max=2), 6),
        ("x = 1 and (a = 1 or b = 1 or c = 1 or d = 1 or e = 1 or f = 1)", Limits(filter_conjunctions_max=2), 17),
        ("(a = 1 or b = 1) and (c = 1 or d = 1)", Limits(filter_conjunctions_max=2), 17),
        ("(a = 1 or b = 1) and (c = 1 or d = 1)", Limits(filter_work_max=10), 7),
        ("not (a = 1 and b = 1 and c = 1)", Limits(filter_conjunctions_max=2), 11),
        ("a = 1 and b = 1 or c = 1", Limits(filter_predicates_max=2), 16),
        ("b = 1 or (a > 1 and a < 5 and a != 3)", Limits(filter_predicates_max=2), 16),
        ("x = 1 or a > 1 and a not in (3, 4)", Limits(filter_predicates_max=2), 6),
        ("a=1 or a=2 or a=3", Limits(filter_text_bytes_max=20), 4),
        ("a not in (1, 2) and a not in (3, 4)", Limits(filter_in_values_max=3), 16),
        ("[a,>,1],[a,<,5],[a,!=,3]", Limits(filter_predicates_max=2), 0),
    ],
)
def test_an_expansion_over_a_limit_points_at_the_operator_or_the_predicate(
    text: str, limits: Limits, position: int
) -> None:
    with pytest.raises(FilterTooLargeError, match="line 1, column") as caught:
        parse(text, limits)
    assert caught.value.position == position


def test_a_name_over_its_limit_is_rejected() -> None:
    with pytest.raises(FilterError, match="attribute_name_bytes_max=255"):
        parse(f"{'a' * 256} = 1")


def test_a_filter_at_a_limit_is_accepted() -> None:
    parse("a = 1 or b = 1", Limits(filter_conjunctions_max=2, filter_predicates_max=2))
    parse("((a = 1))", Limits(filter_depth_max=2))


def test_covered_alternatives_do_not_count_towards_the_limits() -> None:
    shared = " and ".join(f"(a = 1 or b{number} = 1)" for number in range(12))
    assert len(parse(shared).conjunctions) == 2
    many = " and ".join(f"(a = 1 or b{number} = 1)" for number in range(200))
    assert len(parse(many).conjunctions) == 2


@pytest.mark.parametrize(
    "text",
    [
        "(" * 30_000 + "a = 1" + ")" * 30_000,
        "not " * 16_000 + "a = 1",
        " and ".join(f"(a{number} = 1 or b{number} = 1)" for number in range(1000)),
        "not (" + " or ".join(f"(a{number} = 1 and b{number} = 1)" for number in range(1000)) + ")",
        " and ".join(["(" + " or ".join(f"a = {number}" for number in range(64)) + ")"] * 120),
        f"a not in ({', '.join(map(str, range(1000)))}) and ({' or '.join(f'b = {number}' for number in range(60))})",
        " and ".join(["(" + " or ".join(f"a{number} in {tuple(range(90))}" for number in range(60)) + ")"] * 2),
        " or ".join(f"a = {number}" for number in range(5000)),
        f"s = '{'x' * 4000}' and ({' or '.join(f'a = {number}' for number in range(64))})",
    ],
    ids=[
        "parentheses",
        "nots",
        "or in and",
        "not of and in or",
        "wide steps",
        "long conjunctions",
        "long lists",
        "many alternatives",
        "long text",
    ],
)
def test_an_expansion_that_would_explode_is_rejected_at_once(text: str) -> None:
    began_s = time.process_time()
    with pytest.raises(FilterTooLargeError):
        parse(text)
    assert time.process_time() - began_s < 5.0


def test_not_in_takes_as_many_values_as_in() -> None:
    values = ", ".join(map(str, range(1024)))
    texts = ", ".join(f"'x{number}'" for number in range(1024))
    unwanted = parse(f"a not in ({values}) and s not in ({texts})")
    assert unwanted.matches({"a": 1024, "s": "x"})
    assert not unwanted.matches({"a": 500, "s": "x"})
    assert not unwanted.matches({"a": 1024, "s": "x500"})
    assert parse(str(unwanted)) == unwanted == parse(unwanted.paper())
    with pytest.raises(FilterTooLargeError, match="filter_in_values_max=1024"):
        parse(f"a not in ({values}) and a != -1")


_LAST_OF_THREE_BYTES = "a" * 4093 + "\uffff"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            f"s = '{'x' * 4000}' and ({' or '.join(f'a = {number}' for number in range(64))})",
            r"takes \d+ bytes of text when it is written out as conjunctions, more than filter_text_bytes_max=65536",
        ),
        (
            f"s >= '{_LAST_OF_THREE_BYTES}' and not s prefix '{_LAST_OF_THREE_BYTES}'",
            "takes 4097 bytes in a string when it is written out as conjunctions, more than filter_string_bytes_max",
        ),
    ],
    ids=["text", "string"],
)
def test_a_filter_whose_printed_text_exceeds_the_limits_is_rejected(text: str, says: str) -> None:
    with pytest.raises(FilterTooLargeError, match=says):
        parse(text)
