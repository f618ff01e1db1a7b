"""CloudEvents filters: six dialects, two-valued, and clear errors for the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.filters import strategies as some

from shoal.errors import EmptyFilterError, FilterError, FilterTooLargeError
from shoal.filters.cloudevents import from_cloudevents
from shoal.filters.language import parse
from shoal.filters.values import Event


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ({"exact": {"type": "com.github.push"}}, "type = 'com.github.push'"),
        ({"exact": {"type": "a", "subject": "b"}}, "type = 'a' and subject = 'b'"),
        ({"prefix": {"type": "com."}}, "type prefix 'com.'"),
        ({"suffix": {"type": ".created"}}, "type suffix '.created'"),
        ({"all": [{"exact": {"type": "a"}}, {"prefix": {"source": "b"}}]}, "type = 'a' and source prefix 'b'"),
        ({"any": [{"exact": {"type": "a"}}, {"exact": {"subject": "b"}}]}, "type = 'a' or subject = 'b'"),
        (
            {"not": {"exact": {"type": "a"}}},
            "type is not 'a'",
        ),
        (
            {"not": {"prefix": {"type": "a"}}},
            "type is not prefix 'a'",
        ),
        ({"not": {"not": {"exact": {"type": "a"}}}}, "type = 'a'"),
        (
            {"not": {"any": [{"exact": {"type": "a"}}, {"exact": {"type": "b"}}]}},
            "type is not 'a' and type is not 'b'",
        ),
        ([{"exact": {"type": "a"}}, {"suffix": {"subject": "b"}}], "type = 'a' and subject suffix 'b'"),
        ([], "true"),
    ],
)
def test_every_dialect(expression: object, text: str) -> None:
    assert from_cloudevents(expression) == parse(text)


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ({"sql": "source LIKE '%x%'"}, "'sql' .CloudEvents SQL. is not supported: use exact, prefix"),
        ({"like": {"a": "b"}}, "the dialect 'like' is unknown"),
        ({1: {"a": "b"}}, "the dialect 1 is unknown"),
        ({}, "one dialect, not an object of 0 members"),
        ({"exact": {"a": "b"}, "prefix": {"a": "b"}}, "not an object of 2 members"),
        ("exact", "not a str"),
        ({"exact": {}}, "'exact' needs an object"),
        ({"exact": {"a": ""}}, "non-empty strings, not with an empty string"),
        ({"exact": {"a": 1}}, "non-empty strings, not with an int"),
        ({"exact": {"": "b"}}, "name must not be empty"),
        ({"exact": {1: "b"}}, "names are strings"),
        ({"exact": {"a": "\ud800"}}, "surrogate"),
        ({"all": []}, "'all' needs a list of at least one"),
        ({"any": {"exact": {"a": "b"}}}, "'any' needs a list"),
        ({"not": [{"exact": {"a": "b"}}]}, "not a list"),
    ],
)
def test_what_the_specification_does_not_allow_is_rejected(expression: object, says: str) -> None:
    with pytest.raises(FilterError, match=says):
        from_cloudevents(expression)


def test_any_of_many_values_is_a_list() -> None:
    many = [f"type-{number}" for number in range(100)]
    folded = from_cloudevents({"any": [{"exact": {"type": text}} for text in (*many, "type-1")]})
    assert folded == parse(f"type in ({', '.join(map(repr, many))})")
    mixed = {"any": [*({"exact": {"type": text}} for text in many), {"prefix": {"source": "/"}}]}
    assert len(from_cloudevents(mixed).conjunctions) == 2
    thousands = {"any": [{"exact": {"type": str(number)}} for number in range(3000)]}
    assert from_cloudevents(thousands).matches({"type": "2999"})
    inverse = {"not": {"all": [{"not": {"exact": {"type": text}}} for text in many]}}
    assert from_cloudevents(inverse) == folded


def test_a_contradiction_says_which_predicates() -> None:
    with pytest.raises(EmptyFilterError, match="`type = 'a'` and `type = 'b'` contradict each other"):
        from_cloudevents([{"exact": {"type": "a"}}, {"exact": {"type": "b"}}])


def test_expressions_that_are_too_deep_or_too_large_are_rejected() -> None:
    deep: dict[str, Any] = {"exact": {"a": "b"}}
    for _ in range(10_000):
        deep = {"not": deep}
    with pytest.raises(FilterTooLargeError, match="filter_depth_max"):
        from_cloudevents(deep)
    with pytest.raises(FilterTooLargeError, match=r"filter_(predicates|conjunctions)_max"):
        from_cloudevents([{"not": {"exact": {f"a{number}": "x", f"b{number}": "x"}}} for number in range(9)])


def test_not_over_many_attributes_is_one_conjunction() -> None:
    names = ("type", "source", "subject", "id")
    at_once = from_cloudevents({"not": {"any": [{"exact": {name: "x"}} for name in names]}})
    listed = from_cloudevents([{"not": {"exact": {name: "x"}}} for name in names])
    assert at_once == listed == parse(" and ".join(f"{name} is not 'x'" for name in names))
    assert len(at_once.conjunctions) == 1
    kinds = "type is not 'x'", "type != 'x' or type absent or type is number or type is boolean"
    assert parse(kinds[0]).equal(parse(kinds[1]))
    assert at_once.matches({"type": 1, "source": "y", "id": True})
    assert not at_once.matches({"type": 1, "source": "x"})
    many = from_cloudevents({"not": {"any": [{"suffix": {f"a{number}": "x"}} for number in range(256)]}})
    assert many.matches({})
    assert not many.matches({"a255": "xx"})


def _members(parts: st.SearchStrategy[Mapping[str, Any]]) -> st.SearchStrategy[Mapping[str, Any]]:
    lists = st.lists(parts, min_size=1, max_size=3)
    return st.one_of(
        lists.map(lambda some: {"all": some}),
        lists.map(lambda some: {"any": some}),
        parts.map(lambda one: {"not": one}),
    )


_leaves = st.builds(
    lambda dialect, pairs: {dialect: pairs},
    st.sampled_from(["exact", "prefix", "suffix"]),
    st.dictionaries(some.names, st.sampled_from([text for text in some.STRINGS if text]), min_size=1, max_size=2),
)
_expressions = st.recursive(_leaves, _members, max_leaves=4)


_COMPARE: dict[str, Callable[[str, str], bool]] = {
    "exact": lambda value, text: value == text,
    "prefix": lambda value, text: value.startswith(text),
    "suffix": lambda value, text: value.endswith(text),
}


def _true(expression: Mapping[str, Any], event: Event) -> bool:
    """The words of the specification."""
    [(dialect, body)] = expression.items()
    match dialect:
        case "all":
            return all(_true(each, event) for each in body)
        case "any":
            return any(_true(each, event) for each in body)
        case "not":
            return not _true(body, event)
    compare = _COMPARE[dialect]
    return all(isinstance(event.get(name), str) and compare(str(event[name]), text) for name, text in body.items())


@given(_expressions, st.lists(some.events, min_size=1, max_size=10))
def test_a_filter_matches_exactly_what_the_specification_says(
    expression: Mapping[str, Any], events: list[Event]
) -> None:
    try:
        made = from_cloudevents(expression)
    except EmptyFilterError:
        assert not any(_true(expression, event) for event in events)
    except FilterTooLargeError:
        assume(False)
    else:
        assert [made.matches(event) for event in events] == [_true(expression, event) for event in events]
