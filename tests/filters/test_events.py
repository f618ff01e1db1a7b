"""Events: validation, the papers' spelling, MessagePack, and Arrow columns."""

from __future__ import annotations

import contextlib
import math
import subprocess
import sys
from collections.abc import Callable, Mapping
from decimal import Decimal
from enum import Enum, IntEnum
from fractions import Fraction
from typing import Any

import msgspec
import numpy
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.filters import strategies as some

from shoal.errors import EventError
from shoal.filters.event_batches import from_arrow, to_arrow
from shoal.filters.events import check_event, decode_event, decode_matched_event, encode_event, parse_event
from shoal.filters.formatter import name_text, value_text
from shoal.filters.index import Index
from shoal.filters.language import parse
from shoal.filters.values import Event, Value
from shoal.limits import DEFAULT_LIMITS, Limits


class Colour(Enum):
    RED = 1


class Word(str):
    """Text of another library."""


class Size(IntEnum):
    LARGE = 3


def typed(event: Mapping[str, Value]) -> dict[str, tuple[str, Value]]:
    """The event with the types of its values, because True == 1 and 1 == 1.0."""
    return {name: (type(value).__name__, value) for name, value in event.items()}


# -- Checking ------------------------------------------------------------------------------------------------


def test_none_is_absence_and_values_are_canonical() -> None:
    assert typed(check_event({"a": None, "b": 30.0, "c": True})) == {"b": ("int", 30), "c": ("bool", True)}


def test_values_and_names_of_subclasses_become_plain() -> None:
    event = check_event({Word("a"): Word("text"), "b": Size.LARGE, Word("ä"): [Word("x"), Size.LARGE], "c": "ä"})
    assert typed(event) == {"a": ("str", "text"), "b": ("int", 3), "ä": ("list", ["x", 3]), "c": ("str", "ä")}
    assert {type(name) for name in event} == {str}
    assert [type(each) for each in event["ä"]] == [str, int]


def test_values_and_names_at_the_limits_are_accepted() -> None:
    longest = DEFAULT_LIMITS.attribute_name_bytes_max
    event = {"a": -(2**63), "b": 2**64 - 1, "x" * longest: "", "ä" * (longest // 2): -0.0}
    assert check_event(event) == event


@pytest.mark.parametrize(
    ("attributes", "says"),
    [
        ({"a": -(2**63) - 1}, "does not fit in 64 bits"),
        ({"a": [2**64]}, "has an element that is an integer that does not fit"),
        ({"a": "ä\ud800"}, "surrogate"),
        ({"ä" * 128: 1}, "attribute_name_bytes_max=255"),
        ({"a\ufdd0": 1}, "noncharacter"),
        ({Word(): 1}, "must not be empty"),
        ({"a": [1] * 40, "b": [2] * 40}, "array_combinations_max"),
        ({"a": math.nan}, "attribute 'a' is nan; NaN and infinity are not allowed"),
        ({"a": -math.inf}, "infinity"),
        ({"a": {1}}, "attribute 'a' is of type set; a value is str, int, float or bool"),
        ({"a": 2**64}, "does not fit in 64 bits"),
        ({"a": "\ud800"}, "surrogate"),
        ({"": 1}, "must not be empty"),
        ({1: 1}, "names are strings, not int"),
        ({"x" * 256: 1}, "attribute_name_bytes_max=255"),
        ({str(number): 1 for number in range(65)}, "attributes_max=64 attributes, this one has 65"),
        ({"a": "x" * 8192}, "attributes_bytes_max=8192"),
    ],
)
def test_invalid_names_and_values_are_rejected_with_the_reason(attributes: dict[str, Value], says: str) -> None:
    with pytest.raises(EventError, match=says):
        check_event(attributes)
    with pytest.raises(EventError, match=says):
        encode_event(attributes)


@pytest.mark.parametrize("attributes", [None, 5, "a", [("a", 1)]])
@pytest.mark.parametrize("check", [check_event, encode_event])
def test_anything_but_a_mapping_is_rejected(check: Callable[[Any], object], attributes: object) -> None:
    with pytest.raises(EventError, match="an event is a mapping"):
        check(attributes)


@pytest.mark.parametrize("text", [None, 5, b""])
def test_anything_but_text_is_rejected(text: str) -> None:
    with pytest.raises(EventError, match="a text is needed"):
        parse_event(text)


def test_absent_attributes_do_not_count_towards_the_limit() -> None:
    assert check_event({"a": 1, "b": None}, Limits(attributes_max=1)) == {"a": 1}


# -- The papers' spelling ------------------------------------------------------------------------------------


def test_the_papers_example() -> None:
    assert parse_event(
        "[class,\u2018STOCK\u2019],[symbol,\u2018YHOO\u2019],[open,30.25],[high,31.75],[low,30.00],\n"
        "[close,31.62],[volume,203400],[date,\u20181-May-96\u2019]"
    ) == {
        "class": "STOCK",
        "symbol": "YHOO",
        "open": 30.25,
        "high": 31.75,
        "low": 30,
        "close": 31.62,
        "volume": 203400,
        "date": "1-May-96",
    }
    assert parse_event(" [ up , TRUE ] , [ \"my attr\" , 'it''s' ] ") == {"up": True, "my attr": "it's"}
    assert parse_event("") == {}


@given(some.any_events)
def test_an_event_written_as_text_is_read_back(event: Event) -> None:
    text = ",".join(f"[{name_text(name)},{value_text(value)}]" for name, value in event.items())
    assert parse_event(text) == event


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[class]", r"line 1, column 7: found ']', expected ','"),
        ("[class,=]", r"column 8: found '=', expected a value"),
        ("[class,'a'] [b,1]", r"column 13: found '\[', expected ','"),
        ("[class,'a'],", r"found the end, expected '\['"),
        ("[a,1],[a,2]", r"column 7: attribute 'a' is given twice"),
        ("a = 1", r"found 'a', expected '\['"),
    ],
)
def test_a_syntax_error_is_rejected_with_its_position(text: str, says: str) -> None:
    with pytest.raises(EventError, match=says):
        parse_event(text)


@given(st.text(alphabet="[],'\"ab1. ", max_size=30))
def test_no_text_raises_anything_but_an_event_error(text: str) -> None:
    with contextlib.suppress(EventError):
        check_event(parse_event(text))


# -- Bytes ---------------------------------------------------------------------------------------------------


@given(some.any_events)
def test_an_event_survives_its_encoding(event: Event) -> None:
    assert typed(decode_event(encode_event(event))) == typed(check_event(event))


def test_the_bytes_are_a_plain_messagepack_map() -> None:
    assert msgspec.msgpack.decode(encode_event({"a": 2**64 - 1, "b": None})) == {"a": 2**64 - 1}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"\x91\x01",
        msgspec.msgpack.encode({"a": math.nan}),
        msgspec.msgpack.encode({"a": [[1]]}),
        msgspec.msgpack.encode({"": 1}),
        msgspec.msgpack.encode({"a": "x" * 10_000}),
        b"\x81\xa1a\xa1\xff",
        b"\x91" * 5000,
    ],
)
def test_bytes_that_are_not_an_event_are_rejected(data: bytes) -> None:
    with pytest.raises(EventError):
        decode_event(data)


@given(st.binary(max_size=40))
def test_no_bytes_raise_anything_but_an_event_error(data: bytes) -> None:
    with contextlib.suppress(EventError):
        decode_event(data)


# -- Columns -------------------------------------------------------------------------------------------------


@given(st.lists(st.one_of(some.events, some.any_events), max_size=8))
def test_events_survive_a_round_trip_through_arrow(events: list[Event]) -> None:
    batch = to_arrow(events)
    assert batch.num_rows == len(events)
    assert from_arrow(batch) == [check_event(event) for event in events]
    for event, again in zip(events, from_arrow(batch), strict=True):
        assert {n: type(v) is bool for n, v in again.items()} == {n: type(v) is bool for n, v in event.items()}


@pytest.mark.parametrize(
    ("values", "type_name"),
    [
        (["x", None], "string"),
        ([True, False], "bool"),
        ([1, 2**63 - 1, -(2**63)], "int64"),
        ([1, 2**64 - 1], "uint64"),
        ([1, 0.5], "double"),
        ([0.5, 2**53 + 1], "struct<double: double, int64: int64>"),
        ([-1, 2**64 - 1], "struct<int64: int64, uint64: uint64>"),
        (["1", 1, None], "struct<int64: int64, string: string>"),
        ([True, 1], "struct<bool: bool, int64: int64>"),
    ],
)
def test_a_column_has_a_plain_type_unless_that_loses_something(values: list[Value | None], type_name: str) -> None:
    events = [{"a": value} for value in values]
    batch = to_arrow(events)
    assert str(batch.schema.field("a").type) == type_name
    assert [typed(event) for event in from_arrow(batch)] == [typed(check_event(event)) for event in events]


def test_events_without_attributes_are_rows_too() -> None:
    assert from_arrow(to_arrow([{}, {}])) == [{}, {}]
    assert from_arrow(to_arrow([])) == []


def test_columns_of_other_types_are_read() -> None:
    batch = pyarrow.record_batch(
        {
            "symbol": pyarrow.array(["YHOO", None], pyarrow.large_string()).dictionary_encode(),
            "volume": pyarrow.array([1, 2], pyarrow.int16()),
            "open": pyarrow.array([0.5, None], pyarrow.float32()),
        }
    )
    assert from_arrow(batch) == [{"symbol": "YHOO", "volume": 1, "open": 0.5}, {"volume": 2}]


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"a": pyarrow.array([1.0, math.nan])}, "row 1: attribute 'a' is nan"),
        ({"a": pyarrow.array([[[1]], [[2]]])}, "row 0: attribute 'a' has an element that is of type list"),
        ({"a": pyarrow.array([{"x": 1, "y": 2}])}, "attribute 'a' has 2 values in one row"),
    ],
)
def test_columns_with_invalid_values_are_rejected_with_the_row(columns: dict[str, object], says: str) -> None:
    with pytest.raises(EventError, match=says):
        from_arrow(pyarrow.record_batch(columns))


def test_two_columns_with_one_name_are_rejected() -> None:
    batch = pyarrow.RecordBatch.from_arrays([pyarrow.array([1]), pyarrow.array([2])], names=["a", "a"])
    with pytest.raises(EventError, match="two columns of the batch are named 'a'"):
        from_arrow(batch)


def test_arrow_is_not_imported_before_it_is_needed() -> None:
    program = "import sys, shoal.filters.event_batches; sys.exit('pyarrow' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize("batch", [None, [{"a": 1}], 5, {}])
def test_anything_but_a_batch_is_rejected(batch: Any) -> None:
    with pytest.raises(EventError, match="an Arrow record batch or table is needed"):
        from_arrow(batch)


def test_strings_of_a_batch_that_are_not_utf_8_are_rejected() -> None:
    lengths, data = pyarrow.py_buffer(b"\0\0\0\0\1\0\0\0"), pyarrow.py_buffer(b"\xff")
    column = pyarrow.StringArray.from_buffers(1, lengths, data)
    with pytest.raises(EventError, match="column 'a' contains a string that is not UTF-8"):
        from_arrow(pyarrow.record_batch([column], names=["a"]))


@pytest.mark.parametrize("data", ["x", None, 5, {}])
def test_anything_but_bytes_is_not_decoded(data: Any) -> None:
    with pytest.raises(EventError, match="bytes are needed"):
        decode_event(data)


def test_numbers_and_booleans_of_numpy_are_values_and_those_of_other_libraries_are_not() -> None:
    given: dict[str, Any] = {"a": numpy.int64(2), "b": numpy.float32(0.5), "c": numpy.float64(3), "d": numpy.True_}
    assert typed(check_event(given)) == {
        "a": ("int", 2),
        "b": ("float", 0.5),
        "c": ("int", 3),
        "d": ("bool", True),
    }
    for value in (Fraction(1, 2), Decimal(1), Colour.RED):
        with pytest.raises(EventError, match="attribute 'a' is of type"):
            check_event({"a": value})


@pytest.mark.parametrize("value", [[[1]], b"x", {}, Decimal(1), Colour.RED, object(), 1 + 2j])
def test_a_filter_does_not_match_invalid_values(value: Any) -> None:
    for text in ("a > 0", "a = 1", "a != 1", "a in (1, 2)", "a prefix 'x'", "a = true", "a is boolean", "a is number"):
        assert not parse(text).matches({"a": value})


def test_values_of_numpy_are_converted_before_they_are_compared() -> None:
    event: dict[str, Any] = {"a": numpy.float32(0.1), "b": numpy.True_, "c": numpy.uint64(2**63 + 1)}
    assert [parse(f"a {sign} 0.1").matches(event) for sign in ("<", "=", ">")] == [False, False, True]
    assert parse("b = true and b is boolean and c = 9223372036854775809").matches(event)
    assert not parse("b is number").matches(event)
    index = Index()
    index.insert_many([0, 1, 2, 3], [parse(text) for text in ("a < 0.1", "a = 0.1", "a > 0.1", "b = true")])
    assert sorted(index.match(event)) == [2, 3]


@given(some.any_events)
def test_a_matched_event_is_what_was_encoded(event: Event) -> None:
    assert decode_matched_event(encode_event(event)) == check_event(event)


def test_a_matched_event_of_an_emitter_that_does_not_check_is_read() -> None:
    assert decode_matched_event(msgspec.msgpack.encode({"a": 1, "b": None, "c": ["x", None]})) == {"a": 1, "c": ["x"]}
    with pytest.raises(EventError):
        decode_matched_event(b"\x81\xa1a\xc4\x01x")
