"""Wildcards, `ignorecase`, `cidr`, `is not` for numbers, and arrays: what each means, in filters and in the index."""

from __future__ import annotations

import ipaddress
import unicodedata
from functools import cache
from typing import Any

import numpy as np
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.filters import oracle
from tests.filters import strategies as some

from shoal.errors import EventError, FilterError
from shoal.filters import advertisement_of, check_event, decode_event, encode_event, from_arrow, to_arrow
from shoal.filters.advertisements import AdvertisementTable
from shoal.filters.filter import Filter
from shoal.filters.index import Index, batch_table
from shoal.filters.language import parse
from shoal.filters.poset import Poset
from shoal.filters.values import Event
from shoal.filters.views import address_bits, fold, network_bits, network_text
from shoal.filters.wildcards import implies, matches, parts_of, pattern_of

texts = st.text(alphabet="ab*\\", max_size=3)
patterns = st.lists(texts, min_size=1, max_size=4).map(tuple)


def indexed(*filters: Filter) -> Index:
    """An index whose ids are the places of the filters: some in a segment, the last ones in the buffer."""
    index = Index()
    half = len(filters) // 2
    index.insert_many(range(half), filters[:half])
    index.settle()
    for number in range(half, len(filters)):
        index.insert(number, filters[number])
    return index


def matching(index: Index, event: Event) -> list[int]:
    return sorted(index.match(event).tolist())


# -- Wildcards -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("a*b*c", ["abc", "a-b-c", "abbc", "a\nbc"], ["ab", "acb", "xabc", ""]),
        ("ab*ba", ["abba", "ab-ba"], ["aba", "ab"]),
        (r"1\*2*", ["1*2", "1*23"], ["1x2"]),
        (r"\\*", ["\\", "\\x"], ["x"]),
        ("*", ["", "x"], []),
        ("é*ß", ["éß", "é-ß"], ["e-ß", "é"]),
        ("abc", ["abc"], ["ABC", "abcd"]),
        ("**a**", ["a", "bab"], ["b"]),
    ],
)
def test_a_star_stands_for_any_characters_or_none(pattern: str, yes: list[str], no: list[str]) -> None:
    made = parse(f"a wildcard '{pattern}'")
    index = indexed(made, made)
    for text in (*yes, *no):
        assert made.matches({"a": text}) is (text in yes)
        assert matching(index, {"a": text}) == ([0, 1] if text in yes else [])
    assert not made.matches({"a": 5})
    assert not made.matches({})


def test_other_backslashes_are_rejected() -> None:
    with pytest.raises(FilterError, match=r"stands before '\*' or a backslash: write"):
        parse(r"a wildcard 'a\b'")


@given(patterns, patterns, texts)
def test_a_pattern_implies_another_exactly_where_it_should(narrow: Any, wide: Any, text: str) -> None:
    narrow, wide = (parts_of(pattern_of(parts)) for parts in (narrow, wide))
    assert matches(narrow, text) == oracle.is_like(text, pattern_of(narrow))
    if implies(narrow, wide):
        assert not matches(narrow, text) or matches(wide, text)
    else:
        instance = "z".join(narrow)
        assert matches(narrow, instance)
        assert not matches(wide, instance)


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [
        ("a prefix 'x'", "a wildcard 'x*y*z'"),
        ("a contains 'y'", "a wildcard 'x*y*z'"),
        ("a wildcard 'x*z'", "a wildcard 'x*y*z'"),
        ("a wildcard '*y*z*'", "a wildcard 'x*y*-*z'"),
        ("a wildcard 'a*b*c'", "a = 'abc'"),
        ("not a wildcard '*a*b*'", "not a contains 'a'"),
        ("a is not wildcard 'a*b*c'", "a is not prefix 'a'"),
        ("a is not wildcard 'a*b*c'", "a is number"),
        ("a is not 5", "a > 5"),
        ("a is not 5", "a = 'x'"),
        ("ignorecase(a) prefix 'ab'", "ignorecase(a) = 'ABC'"),
        ("ip cidr '10.0.0.0/8'", "ip cidr '10.1.0.0/16' and not ip cidr '10.1.1.0/24'"),
        ("not ip cidr '10.1.0.0/16'", "ip cidr '11.0.0.0/8'"),
        ("ip is not cidr '10.0.0.0/8'", "ip cidr '::/0'"),
    ],
)
def test_covering(wide: str, narrow: str) -> None:
    assert parse(wide).covers(parse(narrow))
    assert not parse(narrow).covers(parse(wide))
    poset = Poset()
    poset.insert(parse(narrow), 1)
    poset.insert(parse(wide), 2)
    assert poset.roots == {parse(wide)}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a wildcard 'x*y'", "a prefix 'z'"),
        ("a wildcard 'a*b*c'", "not a contains 'b'"),
        ("a is not 5", "a = 5"),
        ("ignorecase(a) = 'x'", "ignorecase(a) = 'Y'"),
        ("ip cidr '10.0.0.0/8'", "ip cidr '11.0.0.0/8'"),
        ("ip cidr '10.0.0.0/8'", "ip cidr '::/0'"),
        ("ip cidr '10.0.0.0/8'", "not ip cidr '0.0.0.0/0'"),
    ],
)
def test_filters_that_exclude_each_other(one: str, other: str) -> None:
    assert not parse(one).intersects(parse(other))
    assert parse(one).meet(parse(other)) is None


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("a wildcard 'x**'", "a prefix 'x'"),
        ("a wildcard '*x'", "a suffix 'x'"),
        ("a wildcard '*x*'", "a contains 'x'"),
        ("a wildcard 'x*y'", "a prefix 'x' and a suffix 'y'"),
        ("a wildcard 'x*x'", "a wildcard 'x*x'"),
        ("a wildcard 'x*y*z' and a prefix 'xx'", "a prefix 'xx' and a wildcard 'x*y*z'"),
        ("not a wildcard 'x*x'", "not a wildcard 'x*x'"),
        ("a equals-ignore-case 'Ab'", "ignorecase(a) = 'ab'"),
        ("not a prefix-ignore-case 'Ab'", "not ignorecase(a) prefix 'ab'"),
        ("ignorecase(\"my a\") in ('X', 'y')", "ignorecase(\"my a\") in ('x', 'y')"),
        ("ignorecase = 'A'", "ignorecase = 'A'"),
        ("ip cidr '10.1.2.3'", "ip cidr '10.1.2.3/32'"),
        ("ip cidr '2001:DB8:0::/32'", "ip cidr '2001:db8::/32'"),
        ("ip is not cidr '10.0.0.0/8' and ip exists", "ip exists and ip is not cidr '10.0.0.0/8'"),
        ("a is not 5.0 and a is not 'x'", "a is not 5 and a is not 'x'"),
        ("not (a is not 5)", "a = 5"),
    ],
)
def test_printing(text: str, printed: str) -> None:
    made = parse(text)
    assert str(made) == printed
    assert parse(printed) == parse(made.paper()) == made


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ip cidr '10.0.0.1/8'", "not a network .*host bits.*: write '10.0.0.0/8'"),
        ("ip cidr 'fe80::%eth0/64'", "not a network"),
        ("ip cidr 5", "'cidr' takes a network in single quotes"),
        ("ignorecase(ip) cidr '::/0'", "cannot be used with ignorecase"),
        ("ignorecase(a) > 5", "ignorecase[(]...[)] is a string"),
        ("ignorecase(a) exists", "ignorecase[(]...[)] is a string"),
        ("a is not true", "'is not' takes a string or a number"),
        ("a is not wildcard '*'", "every string"),
        ('"a\ufdd0" = 1', "noncharacter"),
    ],
)
def test_what_cannot_be_written(text: str, says: str) -> None:
    with pytest.raises(FilterError, match=says):
        parse(text)


# -- Case ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "yes", "no"),
    [
        ("yHoO", ["YHOO", "yhoo"], ["yho", "yhoo "]),
        ("É", ["é", "É"], ["e"]),
        ("straße", ["STRAßE", "STRAẞE"], ["STRASSE"]),
        ("k", ["K", "\u212a"], []),
        ("ς", ["\u03a3", "\u03c3"], []),
        ("i", ["I"], ["\u0130", "\u0131"]),
        ("Ⱥⱥ", ["ⱥȺ"], []),
        ("𐐀", ["𐐨"], []),
    ],
)
def test_case_is_ignored_by_simple_folding(wanted: str, yes: list[str], no: list[str]) -> None:
    made, prefix = parse(f"ignorecase(a) = '{wanted}'"), parse(f"a prefix-ignore-case '{wanted}'")
    index = indexed(made, prefix)
    for text in (*yes, *no):
        assert matching(index, {"a": text}) == [
            place for place, each in enumerate((made, prefix)) if each.matches({"a": text})
        ]
        assert made.matches({"a": text}) is (text in yes)
        assert prefix.matches({"a": text + "x"}) is (text in yes or fold(text).startswith(fold(wanted)))
    assert not made.matches({"a": 1})


def test_folding_is_that_of_unicode() -> None:
    for code in range(0x20000):
        character = chr(code)
        if unicodedata.category(character) != "Cs":
            assert fold(fold(character)) == fold(character)
            if len(character.casefold()) == 1:
                assert fold(character) == character.casefold()


# -- Networks --------------------------------------------------------------------------------------------------------

ADDRESSES = (
    *("10.1.2.3", "10.1.2.3 ", "010.1.2.3", "10.1.2", "10.1.2.256", "1.2.3.4.5", "0.0.0.0", "255.255.255.255", "", "x"),
    *("::", "::1", ":::", "1::2::3", "::1:", ":1::2", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7::", "::2:3:4:5:6:7:8"),
    *("1:2:3:4:5:6:7:8:9", "::1:2:3:4:5:6:7:8", "::ffff:10.0.0.1", "1:2:3:4:5:6:10.0.0.1", "1:2:3:4:5:6:7:10.0.0.1"),
    *("fe80::1%eth0", "2001:DB8::1", "12345::", "g::", "1::10.0.0", "::10.0.0.1:1", ".", ":", "\u0661.1.1.1"),
)
near_addresses = st.one_of(
    st.text(alphabet="0123f:.", max_size=12), st.ip_addresses().map(str), st.sampled_from(ADDRESSES)
)


@settings(max_examples=100)
@given(st.lists(near_addresses, min_size=1, max_size=8))
def test_the_index_reads_addresses_as_ipaddress_does(given: list[str]) -> None:
    for text in given:
        expected = [place for place, family in enumerate(("0", "1")) if (address_bits(text) or "x")[0] == family]
        assert matching(families(), {"a": text}) == expected
        try:
            known = None if "%" in text else ipaddress.ip_address(text)
        except ValueError:
            known = None
        assert (address_bits(text) is None) == (known is None)


@cache
def families() -> Index:
    return indexed(parse("a cidr '0.0.0.0/0'"), parse("a cidr '::/0'"))


@given(st.one_of(st.integers(0, 32).map(lambda n: (4, n)), st.integers(0, 128).map(lambda n: (6, n))), st.integers(0))
def test_a_network_is_what_its_addresses_begin_with(length: tuple[int, int], number: int) -> None:
    width = 32 if length[0] == 4 else 128
    kind = ipaddress.IPv4Network if width == 32 else ipaddress.IPv6Network
    network = kind((number % 2**width >> (width - length[1]) << (width - length[1]), length[1]))
    assert network_text(network_bits(str(network))) == str(network)
    made = parse(f"ip cidr '{network}'")
    for address in (network[0], network[-1], ipaddress.ip_address("10.1.2.3"), ipaddress.ip_address("2001:db8::1")):
        assert made.matches({"ip": str(address)}) is (address in network)


def test_what_is_no_address_is_in_no_network() -> None:
    for value in ("x", "10.1.2.3/32", "::ffff:10.1.2.3", 5, True, None):
        assert not parse("ip cidr '10.0.0.0/8'").matches({"ip": value})
        assert parse("ip is not cidr '10.0.0.0/8'").matches({"ip": value})
        assert parse("not ip cidr '10.0.0.0/8'").matches({"ip": value}) is (value == "::ffff:10.1.2.3")


# -- is not ----------------------------------------------------------------------------------------------------------


def test_is_not_a_number_is_true_of_everything_else() -> None:
    made = parse("a is not 5")
    index = indexed(made, parse("a is not 5 and a exists"))
    for value in (5, 5.0, np.float32(5)):
        assert not made.matches({"a": value})
        assert matching(index, {"a": value}) == []
    for other in (6, 2**64 - 1, "5", True, 5.000000000000001):
        assert made.matches({"a": other})
        assert matching(index, {"a": other}) == [0, 1]
    assert matching(index, {}) == [0]


# -- Arrays ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ("a = 'x'", ["w", "x"], True),
        ("a = 'x'", ["w"], False),
        ("a != 1", [1, 2], True),
        ("a != 1", [1], False),
        ("not a = 1", [1, 2], True),
        ("a is not 'x'", ["x", "y"], True),
        ("a is not 'x'", ["x"], False),
        ("a > 1 and a < 3", [1, 3], False),
        ("a > 1 and a < 3", [0, 2], True),
        ("a prefix 'x' and a suffix 'y'", ["x", "y"], False),
        ("a = 1 or a = 2", [3, 2], True),
        ("a exists", [], False),
        ("a absent", [], True),
        ("a absent", [None], True),
        ("a absent", [None, 1], False),
        ("a is number", ["x", 1], True),
        ("a cidr '10.0.0.0/8'", ["x", "10.1.1.1"], True),
        ("ignorecase(a) = 'x' and a = 'X'", ["x", "X"], True),
        ("ignorecase(a) = 'x' and a = 'y'", ["x", "y"], False),
        ("a = true", [1, True], True),
    ],
)
def test_an_event_with_an_array_matches_if_it_does_with_one_of_the_elements(
    text: str, value: list[Any], expected: bool
) -> None:
    made = parse(text)
    for given_value in (value, tuple(value)):
        assert made.matches({"a": given_value, "other": [1, 2]}) is expected
        index = indexed(made, made)
        event = {"a": given_value, "other": [1, 2]}
        assert matching(index, event) == matching(index, encode_event(event)) == ([0, 1] if expected else [])  # type: ignore[arg-type]


array_events = st.dictionaries(
    some.names, st.one_of(some.values, st.lists(st.one_of(some.values, st.none()), max_size=3)), max_size=3
)


@settings(max_examples=60)
@given(st.lists(some.filters, min_size=2, max_size=8), st.lists(array_events, min_size=1, max_size=6))
def test_the_index_finds_the_filters_that_match_events_with_arrays(filters: list[Filter], events: list[Event]) -> None:
    index = indexed(*filters)
    expected = [[place for place, each in enumerate(filters) if each.matches(event)] for event in events]
    assert [matching(index, event) for event in events] == expected
    assert [sorted(ids.tolist()) for ids in index.match_many(events)] == expected
    assert index.count_many(events) == sum(map(len, expected))
    for event, ids in zip(events, expected, strict=True):
        assert sorted(np.concatenate([*index.match_slices(event), []]).tolist()) == ids


def test_a_filter_that_covers_another_one_covers_it_for_arrays_too() -> None:
    wide, narrow = parse("a != 1"), parse("a > 1")
    assert wide.covers(narrow)
    assert [each.matches({"a": [1, 2]}) for each in (wide, narrow)] == [True, True]


def test_an_array_keeps_a_promise_if_each_element_does() -> None:
    promise = advertisement_of(parse("a > 1 and ip cidr '10.0.0.0/8'"))
    assert promise.allows({"a": [2, 3], "ip": "10.1.1.1"})
    assert not promise.allows({"a": [1, 3], "ip": "10.1.1.1"})
    assert not promise.allows({"a": [], "ip": "10.1.1.1"})
    assert promise.overlaps(parse("ip prefix '10.'"))
    assert promise.overlaps(parse("ignorecase(ip) = 'x'"))
    assert not promise.overlaps(parse("ip cidr '11.0.0.0/8'"))
    table = AdvertisementTable()
    table.advertise("feed", promise)
    assert table.subscribe("ann", parse("ip prefix '10.'")) == {"feed"}
    assert table.subscribe("bob", parse("ip cidr '10.1.0.0/16'")) == {"feed"}
    assert table.subscribe("cid", parse("ip cidr '11.1.0.0/16'")) == frozenset()
    assert set(table.unadvertise("feed")) == {"ann", "bob"}


def test_arrays_are_checked_and_encoded() -> None:
    assert check_event({"a": [1.0, None, "x"], "b": [], "c": (True,)}) == {"a": [1, "x"], "c": [True]}
    assert decode_event(encode_event({"a": [1, "x"]})) == {"a": [1, "x"]}
    with pytest.raises(EventError, match="attribute 'a' has an element that is of type list"):
        check_event({"a": [[1]]})
    with pytest.raises(EventError, match="array_combinations_max=1024"):
        check_event({"a": list(range(33)), "b": list(range(32))})
    index = indexed(parse("a = 1"), parse("b = 1"))
    with pytest.raises(EventError, match="array_combinations_max"):
        index.match({"a": list(range(33)), "b": list(range(32))})
    with pytest.raises(EventError):
        index.match({"a": [[1]]})


def test_arrays_are_lists_in_columns() -> None:
    events: list[Event] = [{"a": [1, 2], "b": "x"}, {"a": [3]}, {"b": "y"}]
    batch = to_arrow(events)
    assert batch.schema.field("a").type == pyarrow.list_(pyarrow.int64())
    assert from_arrow(batch) == events
    index = indexed(parse("a = 2"), parse("b = 'y'"))
    assert [sorted(ids.tolist()) for ids in index.match_many(batch_table(batch))] == [[0], [], [1]]
    with pytest.raises(EventError, match="several kinds"):
        to_arrow([{"a": [1, "x"]}])


def test_views_survive_parts_and_snapshots(tmp_path: Any) -> None:
    filters = [
        parse("ignorecase(a) = 'x'"),
        parse("a cidr '10.0.0.0/8'"),
        parse("a wildcard 'q*w*e'"),
        parse("a is not 3"),
    ]
    index = indexed(*filters)
    index.save(tmp_path / "filters.index")
    parts = index.split(lambda ids: ids % 2)
    parts[0].merge(parts[1])
    for each in (index, parts[0], Index.open(tmp_path / "filters.index")):
        assert matching(each, {"a": "X"}) == [0, 3]
        assert matching(each, {"a": "10.9.9.9"}) == [1, 3]
        assert matching(each, {"a": "qwe"}) == [2, 3]


def test_an_event_cannot_name_a_view() -> None:
    index = indexed(parse("ignorecase(a) = 'x'"), parse("b = 1"))
    with pytest.raises(EventError):
        index.match({"a\ufdd0": "x"})
    with pytest.raises(EventError, match="noncharacter"):
        check_event({"a\ufdd0": "x"})


def test_long_strings_and_many_views_find_room() -> None:
    index = indexed(*(parse(f"ignorecase(a{number}) suffix 'Z'") for number in range(60)))
    event = {f"a{number}": "Y" * 3000 + "z" for number in range(60)}
    assert matching(index, event) == list(range(60))
