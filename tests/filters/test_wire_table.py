"""Arrow columns are encoded as the events that they contain, for all types and nulls."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.filters import strategies

from shoal.errors import EventError
from shoal.filters.event_batches import to_arrow
from shoal.filters.events import check_event
from shoal.filters.index import WireTable, batch_table
from shoal.filters.values import Event

"""The first test compiles the kernels, unless they are in the cache."""

SETTINGS = settings(max_examples=60, deadline=None)


def decoded(table: WireTable) -> list[Event]:
    return [check_event(msgspec.msgpack.decode(table[row])) for row in range(len(table))]


@SETTINGS
@given(st.lists(strategies.any_events, max_size=8), st.integers(0, 3))
def test_a_batch_encodes_the_events_that_it_was_made_from(events: list[Event], cut: int) -> None:
    batch = to_arrow(events)
    assert decoded(batch_table(batch)) == [check_event(event) for event in events]
    assert decoded(batch_table(batch.slice(cut))) == [check_event(event) for event in events[cut:]]


def test_strings_and_integers_of_every_length_keep_their_value() -> None:
    lengths = [0, 1, 31, 32, 255, 256, 65535, 65536]
    numbers = [-(2**63), -(2**31) - 1, -(2**31), -32769, -32768, -33, -32, -1, 0, 127, 128, 2**31, 2**63 - 1]
    texts = pa.RecordBatch.from_pydict({"a": ["x" * length for length in lengths]})
    table = batch_table(texts)
    assert [len(msgspec.msgpack.decode(table[row])["a"]) for row in range(len(table))] == lengths
    assert [event["a"] for event in decoded(batch_table(pa.RecordBatch.from_pydict({"a": numbers})))] == numbers


def test_other_widths_and_dictionary_encoded_strings_are_read() -> None:
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([1, None], pa.int8()),
            pa.array([0.5, None], pa.float32()),
            pa.array(["x", None], pa.large_string()),
            pa.array(["y", None]).dictionary_encode(),
            pa.array([2**64 - 1, None], pa.uint64()),
            pa.array([None, None]),
        ],
        names=list("abcdef"),
    )
    assert decoded(batch_table(batch)) == [{"a": 1, "b": 0.5, "c": "x", "d": "y", "e": 2**64 - 1}, {}]


def test_only_the_requested_attributes_are_encoded() -> None:
    batch = pa.RecordBatch.from_pydict({"a": [1], "when": pa.array([1], pa.timestamp("us")), "b": ["x"]})
    assert decoded(batch_table(batch, {"a", "z"})) == [{"a": 1}]


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (pa.array([0.5, float("nan")]), "'a' is NaN or infinity in row 1"),
        (pa.array([1], pa.timestamp("us")), "of type timestamp"),
        (pa.array([{"int64": 1, "string": "x"}]), "has 2 values in row 0"),
    ],
)
def test_invalid_values_are_rejected_with_their_row(column: pa.Array, words: str) -> None:
    with pytest.raises(EventError, match=words):
        batch_table(pa.RecordBatch.from_arrays([column], names=["a"]))


def test_two_columns_with_one_name_are_rejected() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(EventError, match="two columns of the batch have the same name"):
        batch_table(batch)
