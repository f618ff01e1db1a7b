"""The parts of the RESP client without a socket: encoding, decoding, handshake, backoff."""

from __future__ import annotations

import contextlib
from random import Random
from typing import Any

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import ProtocolError, ServerTooOldError
from shoal.wire.backoff import Backoff
from shoal.wire.commands import Burst, Command, count_commands, encode_commands
from shoal.wire.frames import FrameReader
from shoal.wire.handshake import handshake_commands, judge_handshake

names = st.sampled_from([b"PUBLISH", b"PING", b"SUBSCRIBE", b"publish"])
commands = st.lists(
    st.tuples(names, st.binary(), st.binary(max_size=5000)) | st.tuples(names) | st.tuples(names, st.binary())
)
SIMPLE = [
    b"+a\r\n",
    b":1\r\n",
    b"$1\r\na\r\n",
    b"_\r\n",
    b"#t\r\n",
    b",1.5\r\n",
    b"(12\r\n",
    b"-E\r\n",
    b"=5\r\ntxt:a\r\n",
]
NESTED = [
    b"*1\r\n",
    b"%1\r\n",
    b"~1\r\n",
    b">1\r\n",
    b"|1\r\n",
    b"*0\r\n",
    b"*-1\r\n",
    b"*4000000000\r\n",
    b"!",
]


def encoded_by_hiredis(batch: list[Command]) -> bytes:
    return b"".join(hiredis.pack_command(command) for command in batch)  # type: ignore[arg-type]


@given(commands)
def test_commands_are_encoded_as_hiredis_does(batch: list[tuple[bytes, ...]]) -> None:
    assert encode_commands(batch) == encoded_by_hiredis(batch)


@given(st.lists(st.binary(max_size=5000), min_size=1, max_size=20), st.booleans())
def test_a_burst_is_encoded_as_one_publish_for_each_message(blobs: list[bytes], same_size: bool) -> None:
    if same_size:
        blobs = [blobs[0]] * len(blobs)
    single: list[Command] = [(b"PUBLISH", b"tile", blob) for blob in blobs]
    around: list[Command] = [(b"PING",), (b"SUBSCRIBE", b"tile")]
    together: list[Command | Burst] = [around[0], Burst(b"tile", blobs), around[1]]
    assert encode_commands(together) == encoded_by_hiredis([around[0], *single, around[1]])
    assert count_commands(together) == 2 + len(blobs)


def test_the_memory_of_channels_is_bounded() -> None:
    from shoal.wire import commands as module

    for number in range(10_000):
        encode_commands([(b"PUBLISH", b"channel.%d" % number, b"")])
    assert len(module._heads) <= module._HEADS_MAX


def test_text_is_refused_where_bytes_belong() -> None:
    with pytest.raises(TypeError):
        encode_commands([(b"PUBLISH", b"channel", "text")])  # type: ignore[list-item]


@given(st.lists(st.binary(max_size=200), max_size=20), st.integers(1, 64), st.data())
def test_frames_do_not_depend_on_how_the_bytes_are_cut(payloads: list[bytes], slice_bytes: int, data: Any) -> None:
    wire = b"".join(b">3\r\n+message\r\n+c\r\n$%d\r\n%b\r\n:%d\r\n" % (len(p), p, len(p)) for p in payloads)
    expected: list[Any] = [item for p in payloads for item in ([b"message", b"c", p], len(p))]
    reader = FrameReader(frame_bytes_max=10_000, read_slice_bytes=slice_bytes)
    frames: list[Any] = []
    while wire:
        cut = data.draw(st.integers(1, len(wire)))
        for some in reader.read(wire[:cut]):
            frames += some
        wire = wire[cut:]
    assert frames == expected
    assert all(isinstance(frame, hiredis.PushNotification) for frame in frames[::2])


@given(st.binary(max_size=100) | st.lists(st.sampled_from(SIMPLE + NESTED), max_size=20).map(b"".join))
def test_garbage_is_either_frames_or_a_protocol_error(garbage: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        for frames in FrameReader(frame_bytes_max=1000).read(garbage):
            assert frames


def test_false_and_null_are_replies() -> None:
    assert list(FrameReader(frame_bytes_max=100).read(b"#f\r\n_\r\n:0\r\n")) == [[False, None, 0]]


def test_an_endless_frame_is_cut_whether_it_is_one_string_or_many_items() -> None:
    for head, more in ((b"$1000000\r\n", b"x" * 100), (b"*1000000\r\n", b":1\r\n" * 25)):
        reader = FrameReader(frame_bytes_max=1000)
        assert list(reader.read(head)) == []
        for _ in range(9):
            assert list(reader.read(more)) == []
        with pytest.raises(ProtocolError, match="more than 1000 bytes"):
            list(reader.read(more))


def test_the_limit_is_for_one_frame_and_not_for_all_of_them() -> None:
    reader = FrameReader(frame_bytes_max=100)
    for _ in range(50):
        assert list(reader.read(b"$80\r\n" + bytes(60))) == []
        assert list(reader.read(bytes(20) + b"\r\n")) == [[bytes(80)]]


HELLO = {b"server": b"redis", b"version": b"7.0.15", b"proto": 3}
INFO = b"# Server\r\nredis_version:7.0.15\r\nrun_id:abc\r\n"


def judged(hello: Any, info: Any) -> tuple[str, str, str | None]:
    identity = judge_handshake([hello, info], where="here:1", username="u")
    return identity.name, identity.version, identity.run_id


def test_the_login_is_left_out_without_a_password() -> None:
    assert handshake_commands(None, None, "me") == [(b"HELLO", b"3", b"SETNAME", b"me"), (b"INFO", b"server")]
    assert handshake_commands(None, "pw", "me")[0][2:5] == (b"AUTH", b"default", b"pw")


def test_redis_is_known_by_its_version_and_valkey_by_its_own() -> None:
    assert judged(HELLO, INFO) == ("redis", "7.0.15", "abc")
    valkey = b"redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.1.0\r\nrun_id:def\r\n"
    assert judged(HELLO, valkey) == ("valkey", "8.1.0", "def")
    assert judged(HELLO | {b"server": b"valkey", b"version": b"1.0"}, valkey) == ("valkey", "8.1.0", "def")


@pytest.mark.parametrize("version", [b"5.0.14", b"6.0.16", b"6.1"])
def test_redis_before_6_2_is_too_old(version: bytes) -> None:
    with pytest.raises(ServerTooOldError):
        judged(HELLO | {b"version": version}, INFO)


@pytest.mark.parametrize(
    ("hello", "info"),
    [(b"OK", INFO), (HELLO, 1), (HELLO, b""), (HELLO | {b"version": b"new"}, INFO), (None, None)],
)
def test_answers_that_no_redis_gives_are_a_protocol_error(hello: Any, info: Any) -> None:
    with pytest.raises(ProtocolError):
        judged(hello, info)


def test_delays_grow_within_their_bounds_and_replay_from_the_seed() -> None:
    def delays(seed: int) -> list[float]:
        backoff = Backoff(reconnect_delay_s_min=0.05, reconnect_delay_s_max=2.0, random=Random(seed))
        return [backoff.next_delay_s() for _ in range(200)]

    assert delays(1) == delays(1) != delays(2)
    assert all(0.05 <= delay <= 2.0 for delay in delays(1))
    assert delays(1)[0] <= 0.15
    assert max(delays(1)) == 2.0


def test_a_reset_backoff_starts_small_again() -> None:
    backoff = Backoff(reconnect_delay_s_min=0.05, reconnect_delay_s_max=2.0, random=Random(1))
    for _ in range(50):
        backoff.next_delay_s()
    backoff.reset()
    assert backoff.next_delay_s() <= 0.15


def test_bounds_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="reconnect_delay_s_min"):
        Backoff(reconnect_delay_s_min=3, reconnect_delay_s_max=2, random=Random(1))


@given(st.lists(st.tuples(*[st.binary(max_size=20)] * 2, st.binary(max_size=300)), max_size=20))
def test_entries_of_records_are_encoded_as_hiredis_does(entries: list[tuple[bytes, bytes, bytes]]) -> None:
    batch: list[Command] = [
        (b"XADD", key, b"MAXLEN", b"~", b"100", b"*", b"n", number, b"m", blob) for key, number, blob in entries
    ]
    assert encode_commands(batch) == encoded_by_hiredis(batch)
