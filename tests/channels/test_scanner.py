"""The scanner counts what hiredis would read, wherever the bytes are cut, and stops where it should."""

from __future__ import annotations

import logging
from itertools import pairwise
from typing import Any

import hiredis
import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.channels.observed import (
    FORWARDED,
    FRAME_BYTES_MAX,
    MAGIC,
    MAGIC_1,
    Model,
    beacon,
    bulk,
    envelope,
    observed,
    push,
)

from shoal.channels.telemetry import scanner as scanner_module
from shoal.channels.telemetry.scanner import Frame, Scanner
from shoal.channels.telemetry.tables import FIRST_RECORDS, TICKS_PER_S, TableLimits
from shoal.errors import ProtocolError
from shoal.wire import envelope as wire
from shoal.wire import raw_bytes as rawbytes
from shoal.wire.control import TO_AGENT_BYTES_MAX
from shoal.wire.loop_source import hash_pair, hash_words, load_u64, padded, wrapping
from shoal.wire.raw_bytes import compilation_announced

pytestmark = pytest.mark.usefixtures("every_loops")

NOTHING = object()
CHANNELS = [
    b"",
    b"a",
    b"tile.1",
    b"tile.1234",
    b"12345678",
    b"12345678x",
    b"__shoal",
    b"\r\n$1\r\n",
    b"x" * 300,
]
STREAMS = [1, 1 << 16, 1 << 16 | 1, 2**64 - 1]

channels = st.sampled_from(CHANNELS)
payloads = st.one_of(
    st.binary(max_size=50),
    st.builds(
        envelope,
        st.sampled_from(STREAMS),
        st.integers(0, 2**64 - 1),
        st.binary(max_size=25),
        st.integers(0, 35),
        st.sampled_from([0, 0, 1, 2, 255]),
        st.sampled_from([MAGIC, MAGIC, MAGIC_1]),
    ),
    st.builds(beacon, st.sampled_from(STREAMS), st.integers(0, 99), st.integers(0, 2)),
)
lines = st.sampled_from([b"+OK", b"-ERR no", b":7", b":-12", b"_", b"#t", b",1.5", b"(99999999999999999999"])
values = st.recursive(
    st.one_of(
        st.builds(lambda line: line + b"\r\n", lines),
        st.builds(bulk, st.binary(max_size=20)),
        st.sampled_from([b"$-1\r\n", b"*-1\r\n", b"=7\r\ntxt:abc\r\n"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(lambda items: b"*%d\r\n" % len(items) + b"".join(items)),
        st.lists(inner, max_size=4).map(lambda items: b"~%d\r\n" % len(items) + b"".join(items)),
        st.lists(inner, max_size=4).map(
            lambda items: b"%%%d\r\n" % len(items) + b"".join(b"+k%d\r\n" % n + v for n, v in enumerate(items))
        ),
    ),
    max_leaves=8,
)
frames = st.one_of(
    st.builds(observed, channels, payloads),
    st.builds(observed, channels, payloads),
    st.builds(observed, st.sampled_from([b"__shoal:in:00000000002a", b"__shoal:peer:00000000002a"]), payloads),
    st.builds(
        observed,
        st.sampled_from([b"__shoal:agent", b"__shoal:heartbeat", b"__shoal:", b"__shoal:in", b"__shoal:peer"]),
        payloads,
    ),
    st.builds(lambda name: push(b"message", name, b"x"), channels),
    st.builds(lambda name: push(b"pmessage", b"t*", name, b"x"), channels),
    st.just(b">3\r\n$10\r\npsubscribe\r\n$1\r\n*\r\n:1\r\n"),
    values,
)


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({place % (len(data) + 1) for place in cuts} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(places)]


def plain(value: Any) -> Any:
    """Errors compare by identity; lists and maps may hold them."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {repr(key): plain(item) for key, item in value.items()}
    return repr(value)


def scan_all(scanner: Scanner, chunks: list[bytes], second: int = 0) -> list[Frame]:
    found = []
    for chunk in chunks:
        scanner.feed(chunk, second)
        while (frame := scanner.scan()) is not None:
            found.append(frame)
    return found


def check_streams(scanner: Scanner, model: Model) -> None:
    for channel in CHANNELS:
        listing = scanner.streams(channel)
        assert listing.complete
        assert dict(listing.streams) == model.lasts.get(channel, {})
        assert len(listing.streams) == len(dict(listing.streams))


def check_counts(scanner: Scanner, model: Model) -> None:
    counts = scanner.close_unit()
    names = counts.names.tobytes()
    bounds = counts.name_offsets.tolist()
    rows = {names[bounds[row] : bounds[row + 1]]: row for row in range(len(counts.channels))}
    assert set(rows) == set(model.counters)
    for name, row in rows.items():
        assert {key: int(column[row]) for key, column in counts.counters.items()} == {
            key: model.counters[name][key] for key in counts.counters
        }
        listed = counts.publishers[counts.publisher_rows == row].tolist()
        assert listed == sorted(model.publishers.get(name, ()))
    assert counts.internal == model.internal
    assert counts.uncounted == 0


@given(st.lists(frames, max_size=30), st.lists(st.integers(0, 10_000), max_size=40))
@settings(max_examples=150, deadline=None)
def test_counts_and_stops_as_hiredis_reads(parts: list[bytes], cuts: list[int]) -> None:
    data = b"".join(parts)
    reader = hiredis.Reader(notEnoughData=NOTHING)
    reader.feed(data)
    model = Model()
    scanner = Scanner(FRAME_BYTES_MAX)
    for chunk in cut(data, cuts):
        scanner.feed(chunk, 5)
        while (frame := scanner.scan()) is not None:
            while model.takes(expected := reader.gets()):
                pass
            assert plain(frame.value) == plain(expected)
            assert frame.push == isinstance(expected, hiredis.PushNotification)
            check_streams(scanner, model)
    while (expected := reader.gets()) is not NOTHING:
        assert model.takes(expected)
    check_streams(scanner, model)
    assert sorted(scanner.channels()) == sorted(scanner.active_channels()) == sorted(model.counters)
    check_counts(scanner, model)
    assert scanner.take_other_formats() == (model.envelopes_1, model.unknown_flags)
    assert scanner.take_other_formats() == (0, 0)


@given(st.lists(frames, min_size=1, max_size=6), st.data())
@settings(max_examples=150, deadline=None)
def test_garbage_is_refused_or_read_as_hiredis_reads_it(parts: list[bytes], data: st.DataObject) -> None:
    good = b"".join(parts)
    at = data.draw(st.integers(0, len(good)))
    junk = data.draw(st.one_of(st.binary(max_size=3), st.sampled_from([b"\r", b"\n", b"0", b"-1", b"$", b">", b"|"])))
    bad = good[:at] + junk + good[at + data.draw(st.integers(0, 3)) :]
    reader = hiredis.Reader(notEnoughData=NOTHING)
    reader.feed(bad)
    model, expected, hiredis_refused = Model(), [], False
    try:
        while (frame := reader.gets()) is not NOTHING:
            if not model.takes(frame):
                expected.append(plain(frame))
    except (hiredis.ProtocolError, TypeError, AttributeError):  # AttributeError: the model met a null channel
        hiredis_refused = True
    scanner, found, refused = Scanner(FRAME_BYTES_MAX), [], False
    try:
        for chunk in cut(bad, data.draw(st.lists(st.integers(0, 10_000), max_size=5))):
            scanner.feed(chunk, 0)
            while (stop := scanner.scan()) is not None:
                found.append(plain(stop.value))
    except ProtocolError:
        refused = True
    assert found == expected[: len(found)]
    if not refused and not hiredis_refused:
        assert found == expected
        check_counts(scanner, model)


def test_a_stop_sees_the_sequences_of_exactly_what_came_before_it() -> None:
    scanner = Scanner(FRAME_BYTES_MAX)
    hello = observed(b"__shoal:agent", b"hello")
    data = b"".join(observed(b"t", envelope(1, n)) + hello for n in range(1, 50)) + observed(b"t", envelope(1, 50))
    scanner.feed(data, 0)
    for expected in range(1, 50):
        frame = scanner.scan()
        assert frame == Frame([b"pmessage", b"*", b"__shoal:agent", b"hello"], True)
        assert scanner.streams(b"t").streams == [(1, expected)]
    assert scanner.scan() is None
    assert scanner.streams(b"t").streams == [(1, 50)]


def test_a_null_reply_is_not_the_end_of_the_bytes() -> None:
    assert scan_all(Scanner(FRAME_BYTES_MAX), [b"_\r\n$-1\r\n:1\r\n"]) == [
        Frame(None, False),
        Frame(None, False),
        Frame(1, False),
    ]


def test_sequences_only_rise_and_beacons_raise_them_too() -> None:
    scanner = Scanner(FRAME_BYTES_MAX)
    scan_all(
        scanner,
        [observed(b"t", envelope(1, 7)), observed(b"t", envelope(1, 3)), observed(b"t", beacon(2, 9))],
    )
    assert scanner.set_stream(b"t", 1, 5)
    assert scanner.set_stream(b"t", 2, 11)
    assert scanner.set_stream(b"new", 3, 1)
    assert sorted(scanner.streams(b"t").streams) == [(1, 7), (2, 11)]
    assert scanner.streams(b"new")[:2] == ([(3, 1)], True)
    assert scanner.streams(b"unknown")[:2] == ([], True)
    counts = scanner.close_unit()
    assert counts.counters["publications"].tolist() == [2]
    assert counts.counters["beacons"].tolist() == [1]
    assert counts.publishers.tolist() == [0]


def test_a_client_with_two_streams_is_one_publisher_and_a_forwarded_message_makes_none() -> None:
    scanner = Scanner(FRAME_BYTES_MAX)
    payloads = [envelope(5 << 16, 1), envelope(5 << 16 | 1, 1), envelope(6 << 16, 1, flags=FORWARDED)]
    scan_all(scanner, [observed(b"t", payload) for payload in payloads])
    assert scanner.close_unit().publishers.tolist() == [5]
    assert len(scanner.streams(b"t").streams) == 3
    scan_all(scanner, [observed(b"t", envelope(5 << 16, 2))])
    assert scanner.close_unit().publishers.tolist() == [5]
    assert scanner.close_unit().publishers.tolist() == []


def test_tables_grow() -> None:
    scanner, model = Scanner(FRAME_BYTES_MAX), Model()
    amount = 5 * FIRST_RECORDS
    messages = [(b"channel.%d" % (n % 3000) + b"x" * (n % 60), envelope(n << 16, n)) for n in range(1, amount)]
    data = b"".join(observed(*message) for message in messages)
    for channel, payload in messages:
        assert model.takes(hiredis.PushNotification([b"pmessage", b"*", channel, payload]))
    assert scan_all(scanner, cut(data, list(range(0, len(data), 65536)))) == []
    assert sorted(scanner.channels()) == sorted(model.counters)
    for channel, lasts in model.lasts.items():
        assert dict(scanner.streams(channel).streams) == lasts
    check_counts(scanner, model)
    many = b"".join(observed(b"one", envelope(n, 1)) for n in range(amount))
    scan_all(scanner, [many])
    assert sorted(scanner.streams(b"one").streams) == [(n, 1) for n in range(amount)]


def mix(value: int, heartbeat: int) -> int:
    """One step of `hash_words`."""
    value = (value ^ heartbeat) * 0x9E3779B97F4A7C15 & 2**64 - 1
    return value ^ (value >> 32)


def test_names_with_the_same_hash_are_told_apart() -> None:
    seed = 16 * 0xD6E8FEB86659FD93 & 2**64 - 1
    names = []
    for first in range(40):
        second = mix(seed, first)  # makes the state before the last step zero, whatever came first
        names.append(first.to_bytes(8, "little") + second.to_bytes(8, "little"))
    with wrapping():
        hashes = {int(hash_words(padded(name), 0, 16, np.uint64(0))) for name in names}
    assert len(set(names)) == 40
    assert len(hashes) == 1
    scanner = Scanner(FRAME_BYTES_MAX)
    scan_all(scanner, [observed(name, envelope(1, row + 1)) for row, name in enumerate(names)])
    assert [scanner.streams(name).streams for name in names] == [[(1, row + 1)] for row in range(40)]
    assert scanner.channels() == names


def test_streams_with_the_same_hash_are_told_apart() -> None:
    prime = 0xD6E8FEB86659FD93
    streams = [(index * prime & 2**64 - 1) ^ 12345 for index in range(20)]  # of the channels 0 to 19
    with wrapping():
        assert len({int(hash_pair(np.uint64(index), np.uint64(stream))) for index, stream in enumerate(streams)}) == 1
    scanner = Scanner(FRAME_BYTES_MAX)
    scan_all(scanner, [observed(b"%d" % index, envelope(stream, index)) for index, stream in enumerate(streams)])
    assert [scanner.streams(b"%d" % index).streams for index in range(20)] == [
        [(stream, index)] for index, stream in enumerate(streams)
    ]


def test_channels_above_the_limit_are_counted_apart_and_listings_say_so() -> None:
    scanner = Scanner(FRAME_BYTES_MAX, TableLimits(channels_max=2, channel_name_bytes_max=8))
    scan_all(scanner, [observed(name, envelope(1, 1)) for name in (b"a", b"b")])
    assert scanner.streams(b"c")[:2] == ([], True)
    scan_all(scanner, [observed(b"c", envelope(1, 1)), observed(b"a", envelope(1, 2))], second=3)
    assert scanner.streams(b"c")[:2] == ([], False)
    assert scanner.streams(b"a")[:2] == ([(1, 2)], True)
    assert not scanner.set_stream(b"d", 1, 1)
    counts = scanner.close_unit()
    assert (counts.uncounted, counts.uncounted_bytes) == (1, len(observed(b"c", envelope(1, 1))))
    scanner.forget_idle(3)
    assert scanner.channels() == [b"a"]
    assert scanner.streams(b"c")[:2] == ([], False)
    scanner.forget_idle(4)
    assert scanner.streams(b"c")[:2] == ([], True)


def test_names_have_a_limit_together() -> None:
    scanner = Scanner(FRAME_BYTES_MAX, TableLimits(names_bytes_max=10))
    scan_all(scanner, [observed(name, envelope(1, 1)) for name in (b"aaaa", b"bbbb", b"cccc", b"dd")])
    assert scanner.channels() == [b"aaaa", b"bbbb", b"dd"]
    assert scanner.refuses_channels


def test_only_the_busiest_channels_are_listed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanner_module, "ACTIVE_CHANNELS_MAX", 2)
    scanner = Scanner(FRAME_BYTES_MAX)
    frames = [observed(name, envelope(5 << 16, 1, b"x" * size)) for name, size in ((b"a", 90), (b"b", 1), (b"c", 50))]
    scan_all(scanner, frames)
    assert sorted(scanner.active_channels()) == [b"a", b"c"]
    counts = scanner.close_unit()
    assert counts.names.tobytes() == b"ac"
    assert counts.publisher_rows.tolist() == [0, 1]
    assert (counts.uncounted, counts.uncounted_bytes) == (1, len(frames[1]))
    assert scanner.close_unit().uncounted == 0
    scan_all(scanner, frames[1:2])
    counts = scanner.close_unit()
    assert (counts.names.tobytes(), counts.counters["publications"].tolist()) == (b"b", [1])


def test_the_last_number_of_one_stream() -> None:
    scanner = Scanner(FRAME_BYTES_MAX)
    scan_all(scanner, [observed(b"t", envelope(1 << 16, 7)), observed(b"t", beacon(2 << 16, 9))])
    assert (scanner.last_of(b"t", 1 << 16), scanner.last_of(b"t", 2 << 16)) == (7, 9)
    assert (scanner.last_of(b"t", 3 << 16), scanner.last_of(b"u", 1 << 16)) == (None, None)


def test_a_name_that_no_client_may_use_leaves_listings_complete() -> None:
    scanner = Scanner(FRAME_BYTES_MAX, TableLimits(channel_name_bytes_max=8))
    scan_all(scanner, [observed(b"longer than 8", envelope(1, 1))])
    assert (scanner.channels(), scanner.streams(b"c")[:2]) == ([], ([], True))
    assert scanner.close_unit().uncounted == 1


def test_the_smallest_channels_are_kept_and_the_others_named() -> None:
    scanner = Scanner(FRAME_BYTES_MAX, TableLimits(streams_per_channel_max=5))
    scan_all(scanner, [observed(b"few", envelope(n << 16, n)) for n in (1, 2)], second=10)
    scan_all(scanner, [observed(b"many", envelope(n << 16, 1)) for n in range(1, 8)], second=10)
    scan_all(scanner, [observed(b"one", envelope(9 << 16, 4))], second=12)
    kept, left_out = scanner.smallest_channels(3)
    at = 1 / TICKS_PER_S
    assert kept == {b"one": {9 << 16: (4, 12 + at)}, b"few": {1 << 16: (1, 10 + at), 2 << 16: (2, 10 + at)}}
    assert left_out == [b"many"]
    assert scanner.smallest_channels(100)[1] == [b"many"]  # it had no room for all of its streams
    scanner.clear()
    assert scanner.smallest_channels(3) == ({}, [])


def test_streams_above_the_limit_leave_the_listing_incomplete_until_they_would_be_forgotten() -> None:
    scanner = Scanner(FRAME_BYTES_MAX, TableLimits(streams_per_channel_max=2, streams_max=3))
    scan_all(scanner, [observed(b"t", envelope(n << 16, 1)) for n in (1, 2, 3)], second=10)
    assert len(scanner.streams(b"t").streams) == 2
    assert not scanner.streams(b"t").complete
    assert scanner.set_stream(b"u", 1, 1)
    assert not scanner.set_stream(b"u", 2, 1)
    counts = scanner.close_unit()
    assert counts.complete.tolist() == [False]
    assert counts.counters["publications"].tolist() == [3]
    scan_all(scanner, [observed(b"t", envelope(1 << 16, 2))], second=11)
    scanner.forget_idle(11)
    assert scanner.streams(b"t")[:2] == ([(1 << 16, 2)], True)


def test_a_beacon_says_how_long_its_stream_has_been_quiet() -> None:
    scanner = Scanner(FRAME_BYTES_MAX)
    scan_all(scanner, [observed(b"t", wire.beacon(1, 7, 5, 0, quiet_s=30.5))], second=100)
    assert scanner.streams(b"t")[:3] == ([(7, 5)], True, [69.5 + 1 / TICKS_PER_S])
    scan_all(scanner, [observed(b"t", envelope(7, 6))], second=101)
    scan_all(scanner, [observed(b"t", wire.beacon(1, 7, 6, 0, quiet_s=2**40))], second=102)
    assert scanner.streams(b"t")[:3] == ([(7, 6)], True, [101 + 1 / TICKS_PER_S]), "it was heard here meanwhile"


def test_idle_streams_and_empty_channels_are_forgotten_but_not_what_the_open_second_counts() -> None:
    scanner = Scanner(FRAME_BYTES_MAX)
    scan_all(scanner, [observed(b"old", envelope(1, 1)), observed(b"foreign", b"x")], second=100)
    scan_all(scanner, [observed(b"both", envelope(1, 1))], second=100)
    assert scanner.forget_idle(200) == (0, 0)
    scanner.close_unit()
    scan_all(scanner, [observed(b"both", envelope(2, 5)), observed(b"new", envelope(1, 9))], second=105)
    scan_all(scanner, [observed(b"new", beacon(1, 9))], second=106)
    assert scanner.forget_idle(105) == (2, 2)
    assert sorted(scanner.channels()) == [b"both", b"new"]
    assert scanner.streams(b"both").streams == [(2, 5)]
    scan_all(scanner, [observed(b"both", envelope(2, 6)), observed(b"old", envelope(1, 4))], second=107)
    assert scanner.streams(b"both").streams == [(2, 6)]
    assert scanner.streams(b"old").streams == [(1, 4)]
    assert scanner.close_unit().counters["publications"].tolist() == [2, 1, 1]
    assert scanner.forget_idle(10**6) == (3, 3)
    assert scanner.channels() == []


@given(
    st.lists(st.tuples(channels, st.sampled_from(STREAMS), st.integers(0, 9)), max_size=60),
    st.integers(0, 10),
)
@settings(max_examples=100, deadline=None)
def test_forgetting_agrees_with_a_plain_model(messages: list[tuple[bytes, int, int]], before: int) -> None:
    scanner, seen = Scanner(FRAME_BYTES_MAX), dict[tuple[bytes, int], int]()
    scanner.feed(b"", 0)
    for number, (channel, stream, second) in enumerate(sorted(messages, key=lambda message: message[2])):
        scan_all(scanner, [observed(channel, envelope(stream, number))], second)
        seen[channel, stream] = second
    scanner.close_unit()
    scanner.forget_idle(before)
    kept = {key for key, second in seen.items() if second >= before}
    assert set(scanner.channels()) == {channel for channel, _ in kept}
    for channel in CHANNELS:
        listed = {stream for stream, _ in scanner.streams(channel).streams}
        assert listed == {stream for name, stream in kept if name == channel}


@pytest.mark.parametrize(
    "frame",
    [
        bulk(b"x" * 2000),
        b"*400\r\n:1",
        b"%200\r\n:1",
        b"*1\r\n" * 500,
        b"+" + b"x" * 70_000,
    ],
)
def test_a_frame_above_the_limit_is_refused_before_it_is_complete(frame: bytes) -> None:
    scanner = Scanner(frame_bytes_max=1024)
    assert scan_all(scanner, [observed(b"t", b"x" * 900)]) == []
    with pytest.raises(ProtocolError):
        scan_all(scanner, cut(frame[:-1], list(range(0, len(frame), max(100, len(frame) // 20)))))


LARGE = [
    observed(b"t", envelope(7 << 16, 3, b"x" * 2000)),
    observed(b"t" * 2000, envelope(7 << 16, 3, b"x" * 2000)),
    observed(b"__shoal:in:00000000002a", b"x" * 2000),
    observed(b"__shoal:agent", b"x" * 2000),
    observed(b"t", b"x" * 2000),
]


@pytest.mark.parametrize("step", [1, 7, 100, 5000])
@pytest.mark.parametrize("frame", LARGE, ids=["numbered", "name", "inbox", "agent", "foreign"])
def test_a_message_above_the_limit_is_counted_and_skipped(frame: bytes, step: int) -> None:
    scanner = Scanner(FRAME_BYTES_MAX, observed_bytes_max=1024)
    data = observed(b"t", envelope(1 << 16, 1)) + frame + observed(b"t", envelope(1 << 16, 2)) + b"+OK\r\n"
    assert [found.value for found in scan_all(scanner, cut(data, list(range(0, len(data), step))))] == [b"OK"]
    numbered = frame == LARGE[0]
    listing = scanner.streams(b"t")
    assert dict(listing.streams) == {1 << 16: 2} | ({7 << 16: 3} if numbered else {})
    assert listing.complete
    assert scanner.take_passed_over() == (1, 0, 0)
    assert scanner.take_passed_over() == (0, 0, 0)


def test_a_large_message_takes_no_memory() -> None:
    scanner = Scanner(FRAME_BYTES_MAX, observed_bytes_max=1 << 18)
    start = observed(b"t", envelope(1 << 16, 1, b""))[: -len(envelope(1 << 16, 1)) - 2]
    scanner.feed(start.replace(b"$40\r\n", b"$400000000\r\n") + envelope(1 << 16, 1), 0)
    for _ in range(1000):
        assert scanner.scan() is None
        scanner.feed(b"x" * 65_536, 0)
    assert scanner._buffer.nbytes <= 1 << 19
    assert scanner.streams(b"t").streams == [(1 << 16, 1)]


def test_a_large_message_on_a_watched_channel_makes_its_listing_incomplete() -> None:
    scanner = Scanner(FRAME_BYTES_MAX, observed_bytes_max=1024)
    scanner.watch(b"t", True)
    scanner.watch(b"u", True)
    assert scan_all(scanner, [observed(b"t", envelope(1 << 16, 1, b"x" * 2000))], second=5) == []
    assert scanner.streams(b"t")[:2] == ([(1 << 16, 1)], False)
    assert scanner.streams(b"u").complete
    scanner.forget_idle(6)
    assert scanner.streams(b"t").complete


def test_control_messages_beyond_the_allowance_are_passed_over() -> None:
    scanner = Scanner(FRAME_BYTES_MAX)
    scanner.control_left = 2
    found = scan_all(scanner, [observed(b"__shoal:agent", b"%d" % number) for number in range(5)])
    assert [frame.value[3] for frame in found] == [b"0", b"1"]
    assert (scanner.control_left, scanner.take_passed_over()) == (0, (0, 3, 0))
    scanner.control_left = 1
    too_large = observed(b"__shoal:agent", b"x" * (TO_AGENT_BYTES_MAX + 1))
    assert scan_all(scanner, [too_large, observed(b"__shoal:agent", b"x" * TO_AGENT_BYTES_MAX)])[0].push
    assert scanner.close_unit().internal == 4


def test_a_large_frame_in_small_pieces() -> None:
    scanner = Scanner(frame_bytes_max=1 << 21)
    names = [b"channel.%d" % number for number in range(20_000)]
    reply = b"*%d\r\n" % (2 * len(names)) + b"".join(bulk(name) + b":3\r\n" for name in names)
    data = observed(b"t", envelope(1, 1, b"x" * 1_500_000)) + reply
    found = scan_all(scanner, cut(data, list(range(0, len(data), 5000))))
    assert [frame.value for frame in found] == [[item for name in names for item in (name, 3)]]
    assert scanner.streams(b"t").streams == [(1, 1)]


def test_a_broken_connection_stays_broken_until_reset_and_the_tables_survive_it() -> None:
    scanner = Scanner(FRAME_BYTES_MAX)
    scan_all(scanner, [observed(b"t", envelope(1, 1))])
    with pytest.raises(ProtocolError):
        scan_all(scanner, [b"rubbish\r\n"])
    with pytest.raises(ProtocolError):
        scanner.scan()
    scanner.reset()
    assert scan_all(scanner, [observed(b"t", envelope(1, 2)) + b"*2\r\n:1\r\n"]) == []
    scanner.reset()
    assert scan_all(scanner, [observed(b"t", envelope(1, 3)) + b"+OK\r\n"]) == [Frame(b"OK", False)]
    assert scanner.streams(b"t").streams == [(1, 3)]


def test_compiling_is_announced(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rawbytes, "_logger", logging.getLogger("announced"))  # another test may have set ours up
    monkeypatch.setattr(rawbytes._CompileNotice, "said", set())
    with caplog.at_level(logging.INFO, logger="announced"), compilation_announced(), compilation_announced():
        assert numba.njit(lambda data: load_u64(data, 0))(padded(b"\x02")) == 2
    said = [record.message for record in caplog.records if "agents" in record.message]
    assert said == ["compiling the loops of agents, once on this machine and version: this takes up to a minute"]


# Watched channels


def surfaced(scanner: Scanner, *payloads: bytes, channel: bytes = b"t") -> list[bytes]:
    """The payloads that Python is shown, of some that come on a channel."""
    found = scan_all(scanner, [observed(channel, payload) for payload in payloads])
    assert all(frame.push and frame.value[:3] == [b"pmessage", b"*", channel] for frame in found)
    return [frame.value[3] for frame in found]


def test_what_comes_on_a_watched_channel_is_counted_and_shown() -> None:
    scanner = Scanner(FRAME_BYTES_MAX)
    payloads = [envelope(1, 1), beacon(1, 1), b"foreign", b"", envelope(1, 2, b"x" * 50, FORWARDED)]
    assert surfaced(scanner, *payloads) == []
    scanner.watch(b"t", True)
    assert surfaced(scanner, *payloads) == payloads
    assert surfaced(scanner, *payloads, channel=b"other") == []
    scanner.watch(b"t", False)
    assert surfaced(scanner, *payloads) == []
    assert scanner.close_unit().counters["publications"].tolist() == [9, 3]


def test_a_watched_frame_is_shown_at_its_place() -> None:
    scanner = Scanner(FRAME_BYTES_MAX)
    scanner.watch(b"t", True)
    data = b"".join(observed(b"t", envelope(1, n)) + observed(b"__shoal:agent", b"%d" % n) for n in range(1, 30))
    scanner.feed(data, 0)
    for number in range(1, 30):
        frame = scanner.scan()
        assert frame == Frame([b"pmessage", b"*", b"t", envelope(1, number)], True)
        assert scanner.streams(b"t").streams == [(1, number)]
        assert scanner.scan() == Frame([b"pmessage", b"*", b"__shoal:agent", b"%d" % number], True)
    assert scanner.scan() is None


def test_one_version_may_be_left_out() -> None:
    scanner = Scanner(FRAME_BYTES_MAX)
    scanner.watch(b"t", True, but_version=1)
    other = envelope(1, 2).replace(b"\x01\x00\x00\x00", b"\x01\x00\x00\x01", 1)
    assert surfaced(scanner, envelope(1, 1), b"foreign", other, beacon(1, 1)) == [b"foreign", other]
    scanner.watch(b"t", True)
    assert len(surfaced(scanner, envelope(1, 1), b"foreign", other, beacon(1, 1))) == 4


def test_new_channels_are_watched_until_somebody_says_otherwise() -> None:
    scanner = Scanner(FRAME_BYTES_MAX, TableLimits(channels_max=2))
    scanner.watch_new()
    assert scanner.set_stream(b"told", 1, 1)
    for channel in (b"told", b"t", b"no room"):
        assert surfaced(scanner, b"1", b"2", channel=channel) == [b"1", b"2"]
        scanner.watch(channel, False)
    assert surfaced(scanner, b"3", channel=b"t") == []
    assert surfaced(scanner, b"3", channel=b"no room") == [b"3"], "what cannot be looked up is shown"
    scanner.watch_all()
    assert surfaced(scanner, b"4", channel=b"t") == [b"4"]
    scanner.clear()
    assert surfaced(scanner, b"5", channel=b"t") == [b"5"]
    scanner.watch(b"t", False)
    scanner.close_unit()
    scanner.forget_idle(100)
    assert surfaced(scanner, b"6", channel=b"t") == [b"6"], "whoever was forgotten is new"


def test_watching_survives_growth_and_forgetting_others() -> None:
    scanner = Scanner(FRAME_BYTES_MAX)
    scan_all(scanner, [observed(b"old.%d" % n, b"x") for n in range(10)], second=1)
    scanner.close_unit()
    scan_all(scanner, [observed(b"t", b"x")], second=9)
    scanner.watch(b"t", True, but_version=1)
    scanner.forget_idle(5)
    assert surfaced(scanner, b"1", envelope(1, 1)) == [b"1"]
    scan_all(scanner, [observed(b"new.%d" % n, b"x") for n in range(5 * FIRST_RECORDS)])
    assert surfaced(scanner, b"2", envelope(1, 2)) == [b"2"]


@given(st.lists(frames, max_size=30), st.lists(st.integers(0, 10_000), max_size=40), st.sets(channels))
@settings(max_examples=100, deadline=None)
def test_with_watched_channels_it_stops_as_hiredis_reads(
    parts: list[bytes], cuts: list[int], watched: set[bytes]
) -> None:
    data = b"".join(parts)
    reader = hiredis.Reader(notEnoughData=NOTHING)
    reader.feed(data)
    model, expected = Model(), []
    while (frame := reader.gets()) is not NOTHING:
        if not model.takes(frame) or frame[2] in watched:
            expected.append(plain(frame))
    scanner = Scanner(FRAME_BYTES_MAX)
    for channel in watched:
        scanner.watch(channel, True)
    assert [plain(frame.value) for frame in scan_all(scanner, cut(data, cuts), second=5)] == expected
    check_counts(scanner, model)
