"""Recorded rows: entries become rows and messages again, each once, in order, with gaps where something is missing."""

from __future__ import annotations

import math
import re

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.filters.language import parse
from shoal.history.entry_decoder import decode_entries, decode_one_by_one
from shoal.history.merge import merge_rows
from shoal.history.table import SCHEMA, channel_text, dedupe, matching, to_items
from shoal.limits import DEFAULT_LIMITS
from shoal.message import Attributes, Gap, Message
from shoal.wire import envelope
from shoal.wire.envelope import ATTRIBUTES, HEADER, MAGIC, stream_id
from shoal.wire.record_entry import Fields, RecordedGap, foreign_blob, gap_fields, message_fields, streams_fields

BOB = 0xB0B
STREAM = stream_id(BOB, 1)


def blob(sequence: int, time_us: int = 0, attributes: Attributes | None = None, stream: int = STREAM) -> bytes:
    flags = ATTRIBUTES if attributes else 0
    body = envelope.encode_attributes(attributes, DEFAULT_LIMITS) if attributes else b""
    return HEADER.pack(MAGIC, flags, 1, stream, sequence, time_us or sequence * 1000) + body + b"m%d" % sequence


def record(*said: bytes | RecordedGap, server: str = "s1", first: int = 1, after: int | None = 0) -> pa.Table:
    """The record of a server: a message for bytes, else a gap."""
    entries = []
    for number, what in enumerate(said, first):
        fields: Fields = message_fields(number, what) if isinstance(what, bytes) else gap_fields(number, what)
        entries.append((f"{number}-0", list(fields)))
    return pa.Table.from_batches([decode_entries("orders", server, entries, after)])


def spoken(table: pa.Table) -> list[str]:
    """Messages by their payload, gaps by their numbers."""
    return [
        item.payload.decode() if isinstance(item, Message) else f"{item.publisher}:{item.first}-{item.last}"
        for item in to_items(table)
    ]


def name_of(text: str) -> bytes:
    """The name of a text in the column `channel`."""
    return re.sub(rb"\\x([0-9a-f]{2})", lambda found: bytes.fromhex(found[1].decode()), text.encode())


def test_arrays_are_recorded_and_satisfy_filters_on_their_elements() -> None:
    both = record(blob(1, attributes={"tags": ["sport", "tennis"]}), blob(2, attributes={"tags": ["politics"]}))
    kept = matching(both, parse("tags = 'tennis'"))
    assert [item.attributes for item in to_items(kept) if isinstance(item, Message)] == [{"tags": ["sport", "tennis"]}]


@given(st.binary() | st.text().map(str.encode) | st.from_regex(rb"(\xff|\\|x|5c|ff|q)*", fullmatch=True))
def test_the_text_of_a_channel_is_unique(channel: bytes) -> None:
    assert name_of(channel_text(channel)) == channel


@pytest.mark.parametrize(
    ("channel", "text"),
    [
        ("müll.*".encode(), "müll.*"),
        (b"a\\b\\", "a\\b\\"),
        (b"odd\xffq", r"odd\xffq"),
        (rb"odd\xffq", r"odd\x5cxffq"),
        (b"odd\xff\\", r"odd\xff\x5c"),
    ],
)
def test_utf8_names_are_unchanged(channel: bytes, text: str) -> None:
    assert channel_text(channel) == text


def test_an_entry_becomes_a_row_and_a_message_again() -> None:
    table = record(blob(7, 123_456, {"volume": 3, "symbol": "YHOO"}))
    assert table.schema.equals(SCHEMA, check_metadata=True)
    (message,) = to_items(table)
    assert message == Message("orders", b"m7", BOB, 7, 123_456, {"volume": 3, "symbol": "YHOO"})


def test_a_plain_message_has_the_time_of_its_entry() -> None:
    table = record(foreign_blob(b"plain"), foreign_blob(b"plain"))
    assert list(to_items(table)) == [
        Message("orders", b"plain", 0, 0, 1000, None),
        Message("orders", b"plain", 0, 0, 2000, None),
    ]
    assert dedupe(pa.concat_tables([table, table])).num_rows == 2


def test_the_end_of_a_stream_has_the_time_of_its_entry() -> None:
    """Its beacon says how long the stream had been quiet, which is no time of day."""
    (row,) = record(envelope.beacon(1, STREAM, 7, 7, 1.5, final=True), first=5, after=4).to_pylist()
    assert (row["sequence"], row["is_end"]) == (7, True)
    assert row["published_at"] == row["recorded_at"]


def test_stream_positions_give_no_row() -> None:
    batch = decode_entries("orders", "s1", [("1-0", list(streams_fields(1, [(STREAM, 4)])))], 0)
    assert batch.num_rows == 0


def test_a_corrupt_entry_is_a_gap() -> None:
    batch = decode_entries("orders", "s1", [("1-0", [b"n", b"1", b"m", b"garbage"]), ("2-0", [b"?", b"!"])], 0)
    gaps = list(to_items(pa.Table.from_batches([batch])))
    assert [type(gap) for gap in gaps] == [Gap, Gap]
    assert "cannot be read" in gaps[0].reason if isinstance(gaps[0], Gap) else False


def test_numbers_out_of_range_are_a_gap_and_everything_else_is_read() -> None:
    said: list[bytes | RecordedGap] = [
        blob(1),
        blob(2**63 + 5, 7),
        envelope.beacon(1, STREAM, 2**63, 1, 9, final=True),
        RecordedGap(STREAM, 2, 2**63, "away"),
        RecordedGap(-1, 0, 0, "away"),
        blob(2, stream=2**64 - 1),
        blob(2),
    ]
    items = list(to_items(record(*said)))
    assert [type(item) for item in items] == [Message, Gap, Gap, Gap, Gap, Message, Message]
    assert all("is out of range" in item.reason for item in items if isinstance(item, Gap))
    assert spoken(merge_rows(record(blob(2**63 - 1, 7), blob(1), blob(1, stream=STREAM + 1)))).count("m1") == 2


def test_invalid_numbers_and_times_of_entries_are_gaps() -> None:
    entries = [("1-0", [b"n", b"%d" % number, b"m", blob(1)]) for number in (1, 2**63, -1, 10**30, 5)]
    batch = decode_entries("orders", "s1", entries, 0)
    assert batch["is_gap"].to_pylist() == [False, True, True, True, False]
    for way in (decode_entries, decode_one_by_one):
        (row,) = way("orders", "s1", [(f"{2**64 - 1}-0", list(message_fields(1, blob(1))))], 0).to_pylist()
        assert row["recorded_at"].year == 9999


def test_attributes_that_are_not_finite_are_left_out_and_the_message_stays() -> None:
    body = msgspec.msgpack.encode({"a": math.nan, "b": -math.inf, "c": 3})
    strange = HEADER.pack(MAGIC, ATTRIBUTES, 1, STREAM, 1, 7) + len(body).to_bytes(2, "little") + body + b"m1"
    for table in (record(strange), record(strange, foreign_blob(b"x"))):
        assert next(iter(to_items(table))) == Message("orders", b"m1", BOB, 1, 7, {"c": 3})
    assert spoken(matching(record(strange), parse("c > 1"))) == ["m1"]
    assert spoken(matching(record(strange), parse("a > 1"))) == []


def test_an_archive_with_nulls_for_nan_is_read() -> None:
    table = record(blob(1, 0, {"a": 1}))
    old = table.set_column(10, SCHEMA.field("attributes"), pa.array(['{"a":null,"b":2}']))
    (message,) = to_items(old)
    assert isinstance(message, Message)
    assert message.attributes == {"b": 2}
    assert spoken(matching(old, parse("b = 2"))) == ["m1"]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(*[st.integers(0, 2**64 - 1)] * 3, st.integers(0, 63), st.binary(max_size=40)), max_size=5))
def test_any_message_is_a_row_or_a_gap(said: list[tuple[int, int, int, int, bytes]]) -> None:
    blobs = [HEADER.pack(MAGIC, flags, 1, stream, seq, time) + body for stream, seq, time, flags, body in said]
    table = record(*blobs)
    assert table.num_rows == len(blobs)
    list(to_items(merge_rows(table)))
    matching(table, parse("a > 1"))


def format_1(said: bytes) -> bytes:
    """The message in the envelope that it would have had in format 1."""
    header = envelope.read_header(said)
    assert header is not None
    flags, stream, sequence, time_us, at = header
    return envelope.HEADER_1.pack(envelope.MAGIC_1, flags, 1, stream, sequence, time_us) + said[at:]


def test_records_of_format_1_are_read_as_before() -> None:
    new = [blob(1), blob(2, 0, {"a": 1}), foreign_blob(b"x"), envelope.beacon(1, STREAM, 2, 2, 9, final=True)]
    assert record(*map(format_1, new)) == record(*new)
    assert spoken(record(format_1(new[0]), new[1])) == ["m1", "m2"]


def test_an_extension_is_skipped_in_records() -> None:
    plain = blob(2, 0, {"a": 1})
    extended = plain[:3] + b"\x02" + plain[4:40] + bytes(16) + plain[40:]
    assert record(blob(1), extended) == record(blob(1), plain)


def test_a_message_with_an_unknown_flag_is_a_gap_with_the_reason() -> None:
    first, gap = to_items(record(blob(1), blob(2)[:2] + b"\x20" + blob(2)[3:]))
    assert isinstance(first, Message)
    assert isinstance(gap, Gap)
    assert "unknown flags 0x20" in gap.reason
    assert "newer version" in gap.reason


def test_entries_that_were_dropped_before_they_were_read_are_a_gap() -> None:
    (gap, message) = to_items(record(blob(9), first=9, after=5))
    assert isinstance(gap, Gap)
    assert gap.reason == "3 entries of the record were dropped before they were read: it is too short"
    assert isinstance(message, Message)
    (again, _) = to_items(record(blob(9), first=2, after=5))
    assert isinstance(again, Gap)
    assert "lost its record" in again.reason


def test_a_message_of_two_records_is_one_message() -> None:
    rows = pa.concat_tables([record(blob(1), blob(2)), record(blob(2), blob(3), server="s2")])
    assert spoken(merge_rows(rows)) == ["m1", "m2", "m3"]


def test_a_hole_is_a_gap_at_the_time_of_the_next_message() -> None:
    assert spoken(merge_rows(record(blob(1), blob(4), blob(5)))) == ["m1", f"{BOB}:2-3", "m4", "m5"]


def test_a_message_missed_by_one_recorder_comes_from_another() -> None:
    missed = RecordedGap(STREAM, 2, 3, "away")
    rows = pa.concat_tables([record(blob(1), missed, blob(4)), record(blob(2), blob(3), server="s2")])
    assert spoken(merge_rows(rows)) == ["m1", "m2", "m3", "m4"]


def test_an_open_gap_disappears_if_the_stream_continued_or_ended() -> None:
    missed = RecordedGap(STREAM, 2, 0, "silent")
    assert spoken(merge_rows(record(blob(1), missed))) == ["m1", f"{BOB}:2-None"]
    assert spoken(merge_rows(pa.concat_tables([record(blob(1), missed), record(blob(2), server="s2")]))) == ["m1", "m2"]
    assert spoken(merge_rows(record(blob(1), missed, envelope.beacon(1, STREAM, 1, 1, 9, final=True)))) == ["m1"]


def test_the_end_of_a_stream_shows_missing_last_messages() -> None:
    ended = envelope.beacon(1, STREAM, 3, 3, 9, final=True)
    assert spoken(merge_rows(record(blob(1), ended))) == ["m1", f"{BOB}:2-3"]


def test_messages_missed_before_the_first_one_are_a_gap() -> None:
    missed = [RecordedGap(STREAM, 1, 2, "away"), RecordedGap(STREAM, 3, 3, "away")]
    assert spoken(merge_rows(record(*missed, blob(4)))) == [f"{BOB}:1-3", "m4"]
    rows = pa.concat_tables([record(*missed, blob(4)), record(blob(1), blob(2), blob(3), server="s2")])
    assert spoken(merge_rows(rows)) == ["m1", "m2", "m3", "m4"]


def test_all_messages_missed_after_the_last_one_are_reported() -> None:
    missed = [RecordedGap(STREAM, 5, 7, "forgotten"), RecordedGap(STREAM, 8, 12, "silent")]
    heard = [blob(n) for n in range(1, 5)]
    both = [f"{BOB}:5-7", f"{BOB}:8-12"]
    assert spoken(merge_rows(record(*heard, *missed))) == ["m1", "m2", "m3", "m4", *both]
    assert spoken(merge_rows(record(*missed))) == both
    assert spoken(merge_rows(record(*heard, *(RecordedGap(STREAM, *pair, "away") for pair in ((5, 7), (6, 12))))))[
        4:
    ] == [f"{BOB}:5-12"]
    assert spoken(merge_rows(record(*missed, RecordedGap(STREAM, 13, 0, "silent")))) == [f"{BOB}:5-7", f"{BOB}:8-None"]
    ended = envelope.beacon(1, STREAM, 9, 9, 9, final=True)
    assert spoken(merge_rows(record(*heard, *missed, ended)))[4:] == [f"{BOB}:5-9", f"{BOB}:10-12"]


def test_a_gap_around_known_messages_is_reported_before_and_after_them() -> None:
    missed = RecordedGap(STREAM, 1, 9, "away")
    rows = pa.concat_tables([record(missed), record(blob(4), blob(5), server="s2")])
    assert sorted(spoken(merge_rows(rows))) == sorted([f"{BOB}:1-3", "m4", "m5", f"{BOB}:6-9"])


def test_an_absence_of_a_recorder_is_reported() -> None:
    (_, gap) = to_items(merge_rows(record(blob(1), RecordedGap(0, 0, 0, "away", 1))))
    assert isinstance(gap, Gap)
    assert (gap.publisher, gap.last, gap.reason) == (None, None, "away")


def test_a_clock_that_goes_back_does_not_change_the_order_of_a_publisher() -> None:
    assert spoken(merge_rows(record(blob(1, 50_000), blob(2, 20_000), blob(3, 60_000)))) == ["m1", "m2", "m3"]


def test_filters_use_attributes_and_keep_gaps() -> None:
    rows = merge_rows(record(blob(1, 0, {"volume": 1}), blob(3, 0, {"volume": 9}), blob(4)))
    assert spoken(matching(rows, parse("volume > 5"))) == [f"{BOB}:2-2", "m3"]


@settings(max_examples=100, deadline=None)
@given(
    st.integers(1, 30).flatmap(
        lambda count: st.tuples(
            st.just(count), st.lists(st.lists(st.integers(1, count), max_size=40), min_size=1, max_size=3)
        )
    )
)
def test_any_split_over_records_is_the_same_history(drawn: tuple[int, list[list[int]]]) -> None:
    """Every number that some record has comes once, in order; every other one between two of them is in a gap."""
    _, records = drawn
    tables = [record(*(blob(n) for n in numbers), server=f"s{i}") for i, numbers in enumerate(records)]
    items = list(to_items(merge_rows(pa.concat_tables(tables))))
    heard = sorted({number for numbers in records for number in numbers})
    assert [item.sequence for item in items if isinstance(item, Message)] == heard
    missing = [n for gap in items if isinstance(gap, Gap) for n in range(gap.first, (gap.last or 0) + 1)]
    assert missing == [n for n in range(heard[0], heard[-1]) if n not in heard] if heard else not missing
    reported = [item.sequence if isinstance(item, Message) else item.first for item in items]
    assert reported == sorted(reported)


ENTRY = st.one_of(
    st.builds(lambda n, t: ("m", blob(n, t)), st.integers(1, 99), st.integers(1, 2**64 - 1)),
    st.builds(lambda n, v: ("m", blob(n, 0, {"v": v, "w": "x"})), st.integers(1, 99), st.integers(-9, 9)),
)
ODD = st.one_of(
    st.just(("m", foreign_blob(b"plain"))),
    st.just(("m", envelope.beacon(1, STREAM, 3, 3, 9, final=True))),
    st.just(("m", blob(1)[:20])),
    st.just(("m", b"garbage")),
    st.just(("g", b"\xc1")),
    st.just(("?", b"")),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(ENTRY, max_size=12), st.lists(ODD, max_size=1), st.integers(-1, 1), st.sampled_from([None, 0, 4]))
def test_both_ways_to_read_entries_give_the_same_rows(
    plain: list[tuple[str, bytes]], odd: list[tuple[str, bytes]], skip: int, after: int | None
) -> None:
    kinds = [*plain[:5], *odd, *plain[5:]]
    entries = [
        (f"{row}-0", [b"n", b"%d" % ((after or 0) + 1 + row + max(skip, 0) * (row > 3)), kind.encode(), data])
        for row, (kind, data) in enumerate(kinds)
    ]
    quick = decode_entries("orders", "s1", entries, after)
    assert quick.equals(decode_one_by_one("orders", "s1", entries, after), check_metadata=True)
    as_bytes = [(entry.encode(), fields) for entry, fields in entries]
    assert decode_entries("orders", "s1", as_bytes, after).equals(quick)
    assert decode_one_by_one("orders", "s1", as_bytes, after).equals(quick)
