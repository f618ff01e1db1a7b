"""The analyzer reports what a plain Python model counts, and what a real Redis really sends."""

from __future__ import annotations

import socket
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import redis
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.channels.observed import FORWARDED, FRAME_BYTES_MAX, beacon, envelope, observed, push
from tests.support.redis_server import RedisServer

from shoal.channels.telemetry import analyzer as analyzer_module
from shoal.channels.telemetry.analyzer import Analyzer, ServerSample
from shoal.channels.telemetry.channel_kind import CHANNEL, SERVER
from shoal.channels.telemetry.loop_image import match_names
from shoal.channels.telemetry.scanner import Scanner
from shoal.errors import ProtocolError
from shoal.load.table import UnitTable
from shoal.wire.glob import glob_match

SAMPLE = ServerSample(0.0, "run", 0, 0, 0.0, 1, 1, 1000.0)
LISTED_MAX = 2
NAMES = [b"a", b"b", b"tile.1", b"tile.22", b"silent"]
CLIENTS = [1, 2, 3, 4]


def feed(scanner: Scanner, *messages: tuple[bytes, bytes]) -> None:
    scanner.feed(b"".join(observed(channel, payload) for channel, payload in messages), 0)
    assert scanner.scan() is None


def by_channel(table: UnitTable) -> dict[bytes, dict[str, Any]]:
    assert table.kind is CHANNEL
    assert set(table.columns) == {column.name for column in CHANNEL.columns}
    rows = table.rows()
    assert len(rows) == len(table)
    return rows


def test_one_channel_with_everything() -> None:
    scanner = Scanner(FRAME_BYTES_MAX)
    analyzer = Analyzer(scanner, LISTED_MAX)
    payloads = [envelope(n << 16, 1, b"xyz") for n in (9, 7, 8, 7)]
    payloads += [b"foreign", envelope(5 << 16, 1, flags=FORWARDED), beacon(9 << 16, 1)]
    feed(scanner, *((b"t", payload) for payload in payloads))
    second = analyzer.close_second(17, {b"t": {1, 2, 3}}, {b"t": 4}, SAMPLE, {b"t*": 2, b"?": 1, b"u*": 9})
    assert second.second == 17
    direct = sum(len(push(b"message", b"t", payload)) for payload in payloads)
    patterns = sum(
        receivers * len(push(b"pmessage", pattern, b"t", payload))
        for payload in payloads
        for pattern, receivers in ((b"t*", 2), (b"?", 1))
    )
    (row,) = by_channel(second.channels).values()
    assert set(row.pop("subscriber_ids")) < {1, 2, 3}
    assert row == {
        "publishers": 3,
        "publisher_ids": [7, 8],
        "publications": 5,
        "subscribers": 4,
        "registered": 3,
        "pattern_subscribers": 3,
        "messages_sent": 6 * 7,
        "bytes_in": sum(map(len, payloads)),
        "bytes_out": 4 * direct + patterns,
        "foreign": 1,
        "forwarded": 1,
        "beacons": 1,
        "complete": True,
    }


def test_a_silent_second_has_rows_for_subscribed_channels_only() -> None:
    scanner = Scanner(FRAME_BYTES_MAX)
    analyzer = Analyzer(scanner, LISTED_MAX)
    assert analyzer.close_second(0, {}, {}, SAMPLE).channels.rows() == {}
    feed(scanner, (b"once", b"x"))
    assert set(by_channel(analyzer.close_second(1, {}, {}, SAMPLE).channels)) == {b"once"}
    rows = by_channel(analyzer.close_second(2, {b"s": [4], b"left": []}, {b"once": 0, b"n": 2}, SAMPLE).channels)
    assert {name: (row["subscribers"], row["subscriber_ids"]) for name, row in rows.items()} == {
        b"s": (1, [4]),
        b"n": (2, []),
    }


messages = st.lists(
    st.tuples(
        st.sampled_from(NAMES[:4]),
        st.one_of(
            st.binary(max_size=20),
            st.builds(
                lambda client, epoch, n: envelope(client << 16 | epoch, n),
                st.sampled_from(CLIENTS),
                st.integers(0, 1),
                st.integers(1, 9),
            ),
        ),
    ),
    max_size=30,
)
registers = st.dictionaries(st.sampled_from(NAMES), st.frozensets(st.sampled_from(CLIENTS)))
numbers = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 5))
held = st.dictionaries(st.sampled_from([b"*", b"tile.*", b"?", b"[^a]"]), st.integers(1, 3))
MATCHES = {
    b"*": NAMES,
    b"tile.*": [b"tile.1", b"tile.22"],
    b"?": [b"a", b"b"],
    b"[^a]": [b"b"],
}


@given(st.lists(st.tuples(messages, registers, numbers, held), min_size=1, max_size=3))
@settings(max_examples=75, deadline=None)
def test_agrees_with_a_plain_model(seconds: list[tuple[Any, Any, Any, Any]]) -> None:
    scanner = Scanner(FRAME_BYTES_MAX)
    analyzer = Analyzer(scanner, LISTED_MAX)
    for number, (sent, register, numsub, patterns) in enumerate(seconds):
        feed(scanner, *sent)
        found = by_channel(analyzer.close_second(number, register, numsub, SAMPLE, patterns).channels)
        payloads = defaultdict[bytes, list[bytes]](list)
        for channel, payload in sent:
            payloads[channel].append(payload)
        subscribed = {name for name, count in numsub.items() if count} | {n for n, ids in register.items() if ids}
        assert set(found) == set(payloads) | subscribed
        for channel, row in found.items():
            own = payloads[channel]
            clients = {int.from_bytes(p[10:16], "little") for p in own if len(p) == 40 and p[:2] == b"\xf5\x5b"}
            direct = numsub.get(channel, len(register.get(channel, ())))
            matching = {pattern: n for pattern, n in patterns.items() if channel in MATCHES[pattern]}
            by_pattern = sum(matching.values())
            assert row["publishers"] == len(clients)
            assert row["publisher_ids"] == sorted(clients)[:LISTED_MAX]
            assert row["publications"] == len(own)
            assert row["foreign"] == sum(len(payload) != 40 for payload in own)
            assert row["subscribers"] == direct
            assert row["registered"] == len(register.get(channel, ()))
            assert set(row["subscriber_ids"]) <= register.get(channel, frozenset())
            assert len(row["subscriber_ids"]) == min(row["registered"], LISTED_MAX)
            assert row["pattern_subscribers"] == by_pattern
            assert row["messages_sent"] == len(own) * (direct + by_pattern)
            assert row["bytes_in"] == sum(map(len, own))
            assert row["bytes_out"] == sum(
                direct * len(push(b"message", channel, payload))
                + sum(n * len(push(b"pmessage", pattern, channel, payload)) for pattern, n in matching.items())
                for payload in own
            )


def test_rates_of_the_server_compare_two_samples_of_one_run() -> None:
    scanner = Scanner(FRAME_BYTES_MAX)
    analyzer = Analyzer(scanner, LISTED_MAX)

    def close(sample: ServerSample) -> dict[str, Any]:
        row = analyzer.close_second(0, {}, {}, sample).server
        assert [*row] == [column.name for column in SERVER.row]
        return dict(row)

    first = close(ServerSample(10.0, "run", 100, 5_000, 1.0, 3, 70, 1000.0))
    assert first["load_ratio"] is first["bytes_out_per_s"] is first["cpu_share"] is first["interval_s"] is None
    assert (first["connections"], first["memory_bytes"], first["max_out_bytes_per_s"]) == (3, 70, 1000.0)
    feed(scanner, (b"t", b"x"), (b"__shoal:in:000000000001", b"resend"))
    copy = len(observed(b"t", b"x")) + len(observed(b"__shoal:in:000000000001", b"resend"))
    then = close(ServerSample(12.0, "run", 300, 5_800 + copy, 1.5, 3, 70, 1000.0))
    assert (then["interval_s"], then["bytes_out_per_s"], then["load_ratio"], then["cpu_share"]) == (
        2,
        400,
        0.4,
        0.25,
    )
    assert then["net_output_bytes_per_s"] == (800 + copy) / 2
    assert then["net_input_bytes_per_s"] == 100
    assert (then["observed_bytes"], then["internal"]) == (copy, 1)
    restarted = close(ServerSample(13.0, "another run", 0, 9_000, 0.0, 1, 60, 1000.0))
    assert restarted["load_ratio"] is None
    unknown = close(ServerSample(14.0, "another run", 0, 9_900, 0.0, 1, 60, 0.0))
    assert (unknown["bytes_out_per_s"], unknown["load_ratio"]) == (900, None)


def test_info_without_the_fields_is_refused() -> None:
    with pytest.raises(ProtocolError):
        ServerSample.from_info(b"# Server\r\nrun_id:abc\r\n", 0.0, 1.0)


@pytest.fixture(scope="module")
def server() -> Any:
    with RedisServer() as running:
        yield running


class Connection:
    """A bare RESP3 connection, so that every byte that the server sends is seen."""

    def __init__(self, server: RedisServer, *command: bytes) -> None:
        self._socket = socket.create_connection((server.host, server.port), timeout=10)
        self.ask(b"HELLO", b"3")
        if command:
            self.ask(*command)

    def ask(self, *command: bytes) -> bytes:
        """Sends a command and a PING, and returns all that comes before the PONG."""
        self._socket.sendall(b"*%d\r\n" % len(command) + push(*command).partition(b"\r\n")[2])
        return self.heard()

    def heard(self) -> bytes:
        self._socket.sendall(b"*1\r\n$4\r\nPING\r\n")
        data = b""
        while not data.endswith(b"+PONG\r\n"):
            data += self._socket.recv(65536)
        return data.removesuffix(b"+PONG\r\n")

    def close(self) -> None:
        self._socket.close()


def test_bytes_out_are_what_a_real_server_sends(server: RedisServer) -> None:
    observer = Connection(server, b"PSUBSCRIBE", b"*")
    subscribers = [Connection(server, b"SUBSCRIBE", b"tile.1") for _ in range(2)]
    patterned = Connection(server, b"PSUBSCRIBE", b"tile.[0-9]", b"t*1")
    publisher = Connection(server)
    for number in range(1, 120):
        publisher.ask(b"PUBLISH", b"tile.1", envelope(3 << 16, number, b"x" * number))
    scanner = Scanner(FRAME_BYTES_MAX)
    analyzer = Analyzer(scanner, LISTED_MAX)
    scanner.feed(observer.ask(b"INFO"), 0)
    frame = scanner.scan()
    assert frame is not None
    assert scanner.scan() is None
    sample = ServerSample.from_info(frame.value, 1.0, 1e9)
    second = analyzer.close_second(0, {}, {b"tile.1": 2}, sample, {b"tile.[0-9]": 1, b"t*1": 1})
    row = by_channel(second.channels)[b"tile.1"]
    heard = [connection.heard() for connection in (*subscribers, patterned)]
    assert row["bytes_out"] == sum(map(len, heard))
    assert row["messages_sent"] == 119 * 4
    assert scanner.streams(b"tile.1").streams == [(3 << 16, 119)]
    assert sample.connections >= 5
    for connection in (observer, *subscribers, patterned, publisher):
        connection.close()


PATTERNS = [
    b"*",
    b"a*",
    b"*a",
    b"a*b*c",
    b"?",
    b"??",
    b"[ab]",
    b"[^ab]",
    b"[a-c]x",
    b"[c-a]x",
    b"[",
    b"[^",
    b"[a",
    b"\\*",
]
PATTERNS += [
    b"\\",
    b"a\\",
    b"[\\]]",
    b"[a\\",
    b"[a-",
    b"[a-]",
    b"**",
    b"*?*",
    b"*[b]",
    b"a[^]b",
    b"[]a]",
    b"\\a",
    b"*\\",
]
KEYS = [
    b"a",
    b"b",
    b"ab",
    b"abc",
    b"aXbYc",
    b"ax",
    b"bx",
    b"cx",
    b"*",
    b"\\",
    b"a\\",
    b"]",
    b"-",
    b"[",
    b"^",
    b"a]b",
    b"aa",
]


@pytest.fixture(scope="module")
def client(server: RedisServer) -> Any:
    with redis.Redis(host=server.host, port=server.port) as connected:
        connected.mset(dict.fromkeys(KEYS, b""))
        yield connected


def matched(pattern: bytes, names: Sequence[bytes] = KEYS) -> set[bytes]:
    offsets = np.cumsum([0, *map(len, names)], dtype=np.int32)
    data = np.frombuffer(b"".join(names), np.uint8).copy()
    found, _, whole = match_names(data, offsets, pattern, 1 << 40)
    assert whole
    return {name for name, is_match in zip(names, found, strict=True) if is_match}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_match_what_a_real_server_says(client: Any, pattern: bytes) -> None:
    assert matched(pattern) == set(client.keys(pattern))


@given(st.lists(st.sampled_from(list(b"ab*?[]^-\\")), max_size=8).map(bytes))
@settings(max_examples=75, deadline=None)
def test_random_patterns_match_what_a_real_server_says(client: Any, pattern: bytes) -> None:
    assert matched(pattern) == set(client.keys(pattern))


@given(
    st.lists(st.sampled_from(list(b"ab*?[]^-\\\0\x7f\x80\xff")), max_size=9).map(bytes),
    st.lists(st.lists(st.sampled_from(list(b"ab-]\\\0\x7f\x80\xff")), max_size=6).map(bytes), min_size=1, max_size=20),
)
@settings(max_examples=100, deadline=None)
@example(b"[a-\xff]", [b"a", b"b", b"\0", b"\xff"])
def test_the_compiled_matcher_agrees_with_the_other_one(pattern: bytes, names: list[bytes]) -> None:
    assert matched(pattern, names) == {name for name in names if glob_match(pattern, name)}


def test_a_match_that_takes_too_many_steps_ends_and_says_so() -> None:
    names = [b"a" * 500] * 200
    offsets = np.cumsum([0, *map(len, names)], dtype=np.int32)
    data = np.frombuffer(b"".join(names), np.uint8).copy()
    slow = b"*" + b"a" * 400 + b"b"
    found, steps, whole = match_names(data, offsets, slow, 100_000)
    assert not found.any()
    assert not whole
    assert steps < 300_000  # one name more than allowed, of at most 500 x 400 steps
    assert match_names(data, offsets, slow, 1 << 40)[2]


def test_rows_are_incomplete_when_patterns_were_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analyzer_module, "PATTERN_STEPS_MAX", 20)
    scanner = Scanner(FRAME_BYTES_MAX)
    feed(scanner, *((b"tile.%d" % number, b"x") for number in range(10)))
    patterns = {b"tile.*": 1, b"*9": 1}
    closed = Analyzer(scanner, 10).close_second(1, {}, {}, SAMPLE, patterns)
    assert not closed.channels.complete.any()
    monkeypatch.undo()
    feed(scanner, (b"tile.1", b"x"))
    closed = Analyzer(scanner, 10).close_second(2, {}, {}, SAMPLE, patterns)
    assert closed.channels.complete.all()


def test_the_empty_name_is_matched_by_the_empty_pattern_only() -> None:
    nothing = np.zeros(0, np.uint8)
    offsets = np.zeros(2, np.int32)
    assert match_names(nothing, offsets, b"", 9)[0].tolist() == [True]
    assert match_names(nothing, offsets, b"*", 9)[0].tolist() == [False]
