"""Offsets: their form, what is lost between them, and how they are cut."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import ConfigError
from shoal.pipeline.source.kinds import ChannelKind
from shoal.pipeline.source.offsets import (
    MISSING,
    START,
    EntryId,
    Position,
    ServerOffset,
    StreamInfo,
    loss,
    read_offset,
    slices,
    write_offset,
)

OLDEST = Position(START, 0)
"""Before the first entry that a stream ever had."""

ids = st.builds(EntryId, st.integers(1, 10**13), st.integers(0, 2**64 - 1))
positions = st.builds(Position, ids, st.none() | st.integers(0, 10**9))
names = st.text(min_size=1) | st.sampled_from(["~", "~ms", "~~ahead_ms"])
server_offsets = st.builds(
    ServerOffset,
    st.dictionaries(names, positions, max_size=3),
    st.integers(-(10**6), 10**6),
    st.dictionaries(names, st.integers(1, 10**9), max_size=3),
    st.dictionaries(names, st.integers(0, 10**9), max_size=3),
    st.booleans(),
)


@given(st.dictionaries(st.text().filter(lambda name: not name.startswith("~")), server_offsets, max_size=3))
def test_an_offset_comes_back_from_json_as_it_was(offset: dict[str, ServerOffset]) -> None:
    assert read_offset(json.loads(json.dumps(write_offset(offset)))) == offset
    of = {"kind": "channel", "channel": "orders.*"}
    assert read_offset(json.loads(json.dumps(write_offset(offset, of))), of) == offset


def test_an_offset_holds_for_what_it_was_made_of() -> None:
    told = write_offset({}, {"kind": "channel", "channel": "orders.eu"})
    with pytest.raises(ConfigError, match=r"channel 'orders.eu', .*kind 'telemetry'.*another checkpointLocation"):
        read_offset(told, {"kind": "telemetry"})


def test_offsets_from_before_are_read() -> None:
    found = read_offset({"s1": {"telemetry": "5-0/7", "~ahead_ms": 3, "~behind": 9}}, {"kind": "telemetry"})
    assert found == {"s1": ServerOffset({"telemetry": Position(EntryId(5, 0), 7)}, 3, {"": 9})}
    assert found["s1"].behind == 9
    kind = ChannelKind({"channel": "orders"})
    old = {"s1": {"b3JkZXJz": "5-0/7", "~ahead_ms": 3, "~behind": {"b3JkZXJz": 2}, "~began": {"b3JkZXJz": 1}}}
    found = read_offset(old, kind.asked, kind.new_name)
    assert found == {"s1": ServerOffset({"orders": Position(EntryId(5, 0), 7)}, 3, {"orders": 2}, {"orders": 1})}


def test_names_are_readable_and_a_user_writes_them_as_they_are() -> None:
    kind = ChannelKind({})
    given = read_offset({"s1": {"b3JkZXJz": "5-0", "caf\u00e9": "6-0"}}, kind.asked, kind.new_name)
    assert given == {"s1": ServerOffset({"b3JkZXJz": Position(EntryId(5, 0)), "caf\u00e9": Position(EntryId(6, 0))})}
    assert write_offset(given)["s1"] == {"b3JkZXJz": "1", "caf\u00e9": "0", "~ms": 6, "~ahead_ms": 0}


def test_a_newer_offset_is_refused() -> None:
    with pytest.raises(ConfigError, match="version 3"):
        read_offset({"~v": 3})


def test_offsets_of_many_channels_are_compact() -> None:
    streams = {f"orders.{n:04}": Position(EntryId(1_763_240_000_000 + n, n % 3), 3_600 + n) for n in range(2_000)}
    behind = ServerOffset(streams, unread=dict.fromkeys(streams, 17))
    assert len(json.dumps(write_offset({"s1": ServerOffset(streams)}))) < 31 * 2_000
    assert len(json.dumps(write_offset({"s1": behind}))) < 34 * 2_000
    first = ServerOffset(streams, unread=dict.fromkeys(streams, 17), began=dict.fromkeys(streams, 0))
    assert len(json.dumps(write_offset({"s1": first}))) < 36 * 2_000


@pytest.mark.parametrize("key", ["~ahead_ms", "~behind", "~began"])
def test_the_other_keys_of_an_offset_are_checked_too(key: str) -> None:
    with pytest.raises(ConfigError, match=f"leave {key} out"):
        read_offset({"s1": {key: "x"}})


@pytest.mark.parametrize(
    "found", [[], {"s1": "5-0"}, {"s1": {"telemetry": 5}}, {"s1": {"telemetry": "5"}}, {"s1": {"telemetry": "5.1"}}]
)
def test_what_is_no_offset_is_refused_with_its_form(found: object) -> None:
    with pytest.raises(ConfigError, match="write it as"):
        read_offset(found)


def info(length: int, first: int, last: int, added: int | None) -> StreamInfo:
    return StreamInfo(length, EntryId(last, 0), EntryId(first, 0) if length else None, added)


@pytest.mark.parametrize(
    ("start", "now", "lost"),
    [
        (OLDEST, MISSING, None),
        (OLDEST, info(9, 1, 9, 9), None),
        (OLDEST, info(3, 7, 9, 9), "6 entries were dropped"),  # it began before the first there ever was
        (OLDEST, info(3, 7, 9, None), None),
        (Position(START), info(3, 7, 9, 9), None),  # starting at the oldest entry loses nothing
        (Position(START, 4), MISSING, "was restarted"),
        (Position(EntryId(5, 0), 5), info(9, 1, 9, 9), None),
        (Position(EntryId(5, 0), 5), info(4, 6, 9, 9), None),  # only read entries were dropped
        (Position(EntryId(9, 0), 9), info(0, 0, 9, 9), None),
        (Position(EntryId(5, 0), 5), info(2, 8, 9, 9), "2 entries were dropped"),
        (Position(EntryId(5, 0), 5), info(3, 7, 9, 9), "1 entry was dropped"),
        (Position(EntryId(5, 0), 5), info(0, 0, 9, 9), "4 entries were dropped"),
        (Position(START, 2), info(6, 4, 9, 9), "1 entry was dropped"),  # the oldest entry at the start was dropped
        (Position(EntryId(5, 0), 5), info(1, 3, 3, 1), "was restarted"),
        (Position(EntryId(5, 0), 5), info(1, 8, 8, 1), "was restarted"),
        (Position(EntryId(5, 0), 5), info(7, 8, 15, 7), "was restarted"),
        (
            Position(EntryId(5, 0), 5),
            info(4, 8, 12, 7),
            "was restarted",
        ),  # 3 dropped, yet all 5 read entries are missing
        (Position(EntryId(5, 0), 5), MISSING, "was restarted"),
        # Servers before Redis 7 do not count
        (Position(EntryId(5, 0)), info(5, 5, 9, None), None),
        (Position(EntryId(9, 0)), info(0, 0, 9, None), None),
        (Position(EntryId(5, 0)), info(3, 7, 9, None), "entries were dropped"),
    ],
)
def test_what_is_lost_is_known_exactly_where_the_server_counts(
    start: Position, now: StreamInfo, lost: str | None
) -> None:
    found = loss(start, now)
    assert (found is None) == (lost is None)
    assert lost is None or lost in str(found)


@given(ids, ids, st.integers(1, 9), st.integers(0, 10**13))
def test_slices_join_without_a_hole_or_a_double(one: EntryId, other: EntryId, parts: int, first_ms: int) -> None:
    start, end = sorted((one, other))
    found = slices("x", Position(start), Position(end), first_ms, parts)
    assert len(found) <= parts
    edges = [start] + [piece.last for piece in found]
    assert [piece.after for piece in found] == edges[:-1]
    assert edges[-1] == end


def test_a_stream_that_began_anew_is_read_from_its_start() -> None:
    (piece,) = slices("x", Position(EntryId(9, 0)), Position(EntryId(4, 1)), 0, 1)
    assert (piece.after, piece.last) == (START, EntryId(4, 1))
    (piece,) = slices("x", Position(EntryId(4, 0), 9), Position(EntryId(6, 0), 5), 0, 1)  # newer ids, fewer entries
    assert (piece.after, piece.last, piece.count) == (START, EntryId(6, 0), None)


def test_a_slice_that_is_alone_says_how_many_entries_it_has() -> None:
    start, end = Position(EntryId(4, 0), 5), Position(EntryId(9, 0), 8)
    assert [piece.count for piece in slices("x", start, end, 0, 1)] == [3]
    assert [piece.count for piece in slices("x", start, end, 0, 3)] == [None] * 3
    assert [piece.count for piece in slices("x", start, Position(EntryId(9, 0)), 0, 1)] == [None]
