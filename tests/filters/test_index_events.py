"""The index accepts and rejects the same events as the rest of the package."""

from __future__ import annotations

import collections
import dataclasses
import enum
import types
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import EventError
from shoal.filters import encode_event, parse
from shoal.filters.event_batches import to_arrow
from shoal.filters.index import Index, event_table
from shoal.filters.values import Event

"""The first test compiles the kernels, unless they are in the cache."""


class Text(str):
    __slots__ = ()


class Whole(int):
    pass


class Word(enum.StrEnum):
    A = "a"


class Level(enum.IntEnum):
    ONE = 1


class Plain(enum.Enum):
    ONE = 1


class Own(Mapping[str, int]):
    def __getitem__(self, name: str) -> int:
        return {"a": 1}[name]

    def __iter__(self) -> Iterator[str]:
        return iter(("a",))

    def __len__(self) -> int:
        return 1


@dataclasses.dataclass
class Record:
    a: int


class Struct(msgspec.Struct):
    a: int


@pytest.fixture(scope="module")
def index() -> Index:
    index = Index()
    for number, text in enumerate(("a = 1", "s exists", "a = 1 or s = 'x'", "not s contains 'q'")):
        index.insert(number, parse(text))
    return index


def found(index: Index, event: Any) -> list[int]:
    """What an event matches, the same in all forms."""
    ids = sorted(index.match(event).tolist())
    assert sorted(index.match_many([event])[0].tolist()) == ids
    assert sorted(np.concatenate([np.empty(0, np.uint32), *index.match_slices(event)]).tolist()) == ids
    assert np.flatnonzero(np.unpackbits(index.match_bitmap(event, 8), bitorder="little")).tolist() == ids
    return ids


@pytest.mark.parametrize(
    "event",
    [
        types.MappingProxyType({"a": 1}),
        collections.OrderedDict(a=1),
        collections.ChainMap({"a": 1}),
        collections.UserDict(a=1),
        Own(),
        {"a": Whole(1)},
        {"a": Level.ONE},
        {Text("a"): 1},
        {Word.A: 1},
        {"a": np.float64(1)},
        {"a": np.float32(1)},
        {"a": np.int64(1)},
        {"a": np.uint8(1), "b": None},
        bytearray(b"\x81\xa1a\x01"),
        memoryview(b"\x81\xa1a\x01"),
    ],
)
def test_events_of_all_mapping_types_match_alike(index: Index, event: Any) -> None:
    assert found(index, event) == [0, 2]
    if isinstance(event, Mapping):
        assert parse("a = 1").matches(event)
        assert encode_event(event) == b"\x81\xa1a\x01"


@pytest.mark.parametrize("value", [Text("x"), np.str_("x")])
def test_strings_of_all_types_match_alike(index: Index, value: str) -> None:
    assert found(index, {"s": value}) == [1, 2, 3]


@pytest.mark.parametrize(
    "event",
    [
        Record(1),
        Struct(1),
        5,
        None,
        "a",
        [("a", 1)],
        {"a": [[1]]},
        {"a": b"x"},
        {"a": {}},
        {"a": 2**64},
        {"a": float("nan")},
        {"a": np.float64("inf")},
        {"a": "\ud800"},
        {"": 1},
        {1: 1},
        types.MappingProxyType({"a": Plain.ONE}),
        {"a": Plain.ONE, "b": Whole(1)},
        collections.UserDict({1: 1}),
        bytearray(b"\x81\xa1a"),
    ],
)
def test_anything_but_an_event_is_rejected(index: Index, event: Any) -> None:
    for ask in (index.match, index.match_slices, lambda each: index.match_bitmap(each, 8)):
        with pytest.raises(EventError):
            ask(event)
    for ask_many in (index.match_many, index.count_many):
        with pytest.raises(EventError):
            ask_many([{"a": 1}, event])
    assert found(index, {"a": 1}) == [0, 2]


def test_an_event_may_be_larger_than_the_message_limit(index: Index) -> None:
    assert found(index, collections.UserDict({f"n{number}": 1 for number in range(500)} | {"a": 1})) == [0, 2]


# Texts on the wire


@pytest.mark.parametrize(
    "wire",
    [
        b"\x81\xa0\x01",
        b"\x81\xa1\xff\x01",
        b"\x81\xa1s\xa1\xff",
        b"\x81\xa1s\xa3\xed\xa0\x80",
        b"\x81\xa3\xed\xa0\x80\x01",
        b"\x81\xa5other\xa2\xc0\x80",
    ],
)
def test_invalid_names_and_strings_are_rejected(index: Index, wire: bytes) -> None:
    with pytest.raises(EventError):
        index.match(wire)
    with pytest.raises(EventError):
        index.match_many([encode_event({"a": 1}), wire])
    assert found(index, {"a": 1}) == [0, 2]


@settings(max_examples=150, deadline=None)
@given(
    st.one_of(
        st.text(max_size=24).map(str.encode),
        st.binary(max_size=24),
        st.tuples(st.text(max_size=12), st.binary(max_size=4), st.text(max_size=12)).map(
            lambda parts: parts[0].encode() + parts[1] + parts[2].encode()
        ),
    ),
    st.booleans(),
)
def test_the_utf_8_check_agrees_with_python(text: bytes, is_name: bool) -> None:
    index = Index()
    index.insert(0, parse("s exists or n exists"))
    packed = bytes([0xD9, len(text)]) + text
    wire = b"\x82" + (packed + b"\x01" if is_name else b"\xa1s" + packed) + b"\xa1n\x01"
    try:
        text.decode()
        good = bool(text) or not is_name
    except UnicodeDecodeError:
        good = False
    if good:
        assert index.match(wire).tolist() == [0]
    else:
        with pytest.raises(EventError):
            index.match(wire)


# Columns


def test_arrow_batches_and_tables_are_many_events(index: Index) -> None:
    events: list[Event] = [{"a": 1}, {"a": "1", "s": "x"}, {}, {"s": "q", "n": 2.5}]
    batch = to_arrow(events)
    for columns in (batch, pyarrow.Table.from_batches([batch]), pyarrow.Table.from_batches([batch[:1], batch[1:]])):
        assert event_table(columns).data.tolist() == event_table(events).data.tolist()
        matches = index.match_many(columns)
        assert [sorted(each.tolist()) for each in matches] == [found(index, event) for event in events]
        assert index.count_many(columns) == len(matches.ids)
    assert len(index.match_many(to_arrow([]))) == 0
    with pytest.raises(EventError):
        index.match(batch)
    with pytest.raises(EventError, match="row 0"):
        index.match_many(pyarrow.table({"a": [[[1]]]}))


@pytest.mark.parametrize(
    "one", [{"a": 1}, b"\x80", bytearray(b"\x80"), memoryview(b"\x80"), types.MappingProxyType({})]
)
def test_one_event_is_not_many(index: Index, one: Any) -> None:
    for ask in (index.match_many, index.count_many, event_table):
        with pytest.raises(EventError, match="this is one"):
            ask(one)
