"""Control messages: each comes back as it was sent, and any other bytes are the peer's fault, never a crash."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shoal.errors import ProtocolError
from shoal.wire import control
from shoal.wire.identity import AgentSecret, control_tag

KINDS: tuple[type[msgspec.Struct], ...] = get_args(control.Control)
CLIENT, U8, U16, U32, U64 = (st.integers(0, (1 << bits) - 1) for bits in (48, 8, 16, 32, 64))
NAME = st.binary(max_size=30)
NAMES = st.lists(NAME, max_size=4)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
BOOL = st.booleans()
STREAMS = st.lists(st.tuples(NAME, U64, U64), max_size=4)
HEARD = st.lists(st.tuples(NAME, U64, U64, U32), max_size=4)
REFUTED = st.lists(st.tuples(NAME, st.lists(st.tuples(U64, U64, U64), max_size=2)), max_size=2)

MESSAGES: st.SearchStrategy[control.Control] = st.one_of(
    st.builds(control.Greet, U64, U32, U64, U8, U8, BOOL),
    st.builds(control.Hello, U64, NAME, BOOL, BOOL, U32, U32, U64, U64, U64),
    st.builds(control.Bye, NAME, BOOL, U64),
    st.builds(control.Present, U64, U64, U16, U16, NAMES, NAMES, STREAMS),
    st.builds(control.Welcome, TEXT, U64, U64, U64, U32, U32, NAME, U8, NAME),
    st.builds(control.Answer, TEXT, NAME, U64, U32, NAME, NAME, BOOL, BOOL, U32, U16, U16, HEARD, HEARD, NAME, NAME),
    st.builds(control.Heartbeat, TEXT, U64, U64, U64, U32, BOOL, U32, st.none() | U32, REFUTED, NAMES),
    st.builds(control.Resync, TEXT, U64, U64),
    st.builds(control.Heal, NAME, U64, U64, U64, U64),
    st.builds(control.Resend, NAME, NAME),
    st.builds(control.Healed, NAME, U64, U64, U64, U64, U64, U64, U64),
    st.builds(control.Notice, TEXT, NAME, NAME),
    st.builds(control.Subscribed, NAME, U64, U64),
    st.builds(control.Left, NAME, U64, U64, U64),
    st.builds(control.Refused, TEXT, U8, U8, U32, TEXT),
    st.builds(control.Enrol, NAME),
    st.builds(control.Enrolled, U64, NAME),
    st.builds(control.Introduce, U64, U64),
    st.builds(control.Introduced, U64, st.lists(st.tuples(U8, NAME), max_size=3)),
    st.builds(control.RequestQueue, U64, NAME, NAME),
    st.builds(control.QueueRequested, NAME, TEXT, TEXT),
)

HEAD = control.encode(control.Resync("", 0, 0))[: control.HEAD_BYTES]
MARK = HEAD[:2]


def read(data: bytes) -> control.Received | ProtocolError:
    """What `data` says, or the error that blames the peer; any other error fails the test."""
    try:
        return control.decode(data)
    except ProtocolError as error:
        return error if error.broken_by == "peer" else pytest.fail("the reader is not to blame")


def packed(kind: int, *fields: object) -> bytes:
    return HEAD[:3] + bytes((kind,)) + HEAD[4:] + msgspec.msgpack.encode(list(fields))


@given(message=MESSAGES, client=CLIENT, number=U64)
def test_each_message_comes_back_as_it_was_sent(message: control.Control, client: int, number: int) -> None:
    assert control.decode(control.encode(message, client, number)) == (client, number, message)


@pytest.mark.parametrize(
    ("message", "kind", "body"),
    [
        (control.Greet(2, 3, 4), 1, "96" + "0203040202c2"),
        (control.Hello(1, b"a", False, True, 2, 3, 4, 5, 6), 2, "99" + "01c40161c2c30203040506"),
        (control.Bye(b"a", True, 2), 3, "93" + "c40161c302"),
        (control.Present(1, 2, 0, 1, [b"a"], [], [(b"b", 3, 4)]), 4, "97" + "0102000191c401619091" + "93c401620304"),
        (control.Welcome("s", 1, 2, 3, 4, 5, b""), 5, "99" + "a1730102030405c40000c400"),
        (
            control.Answer("s", b"a", 1, 2, b"", b"", True, False, 3, 0, 1, [(b"b", 3, 4, 5)], [], b"\6"),
            6,
            "9f" + "a173c401610102c400c400c3c20300019194c4016203040590c40106c400",
        ),
        (control.Heartbeat("s", 1, 2, 3, 4, True, 5), 7, "9a" + "a17301020304c305c09090"),
        (control.Resync("s", 5, 6), 8, "93" + "a1730506"),
        (control.Heal(b"a", 1, 2, 3, 4), 9, "95" + "c4016101020304"),
        (control.Resend(b"a", b"b"), 10, "92" + "c40161c40162"),
        (control.Healed(b"a", 1, 2, 3, 4, 5, 6, 7), 11, "98" + "c4016101020304050607"),
        (control.Notice("s", b"a", b"b"), 12, "93" + "a173c40161c40162"),
        (control.Subscribed(b"a", 1, 2), 13, "93" + "c401610102"),
        (control.Left(b"a", 1, 2, 3), 14, "94" + "c40161010203"),
        (control.Enrol(b"a"), 15, "91" + "c40161"),
        (control.Introduce(1, 2), 16, "92" + "0102"),
        (control.Enrolled(1, b"a"), 17, "92" + "01c40161"),
        (control.Introduced(1, [(2, b"a")]), 18, "92" + "01" + "9192" + "02c40161"),
        (control.Refused("version", 2, 3, 4, "t"), 19, "95" + "a776657273696f6e020304a174"),
        (control.Renew(b"a", 1, 2, b"b"), 20, "94" + "c401610102c40162"),
        (control.RequestQueue(1, b"a", b"b"), 21, "93" + "01c40161c40162"),
        (control.QueueRequested(b"a", "busy", "t"), 22, "93" + "c40161a462757379a174"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, msgspec.Struct) else "",
)
def test_the_wire_form_is_the_one_in_the_documentation(message: control.Control, kind: int, body: str) -> None:
    head = "f54402" + f"{kind:02x}" + "00000000" + "0100000000000000" + "0203000000000000"
    assert control.encode(message, 1, 0x302).hex() == head + body
    assert control.decode(bytes.fromhex(head + body)) == (1, 0x302, message)


def test_every_kind_has_a_number_of_its_own() -> None:
    numbers = {kind: data[3] for kind in KINDS for data in [control.encode(_any_of(kind))]}
    assert sorted(numbers.values()) == [*range(1, 23)]


def _any_of(kind: type[msgspec.Struct]) -> control.Control:
    made: control.Control = kind(*([0] * len(kind.__struct_fields__)))  # type: ignore[assignment]
    return made


def test_a_hello_of_a_publisher_names_its_stream() -> None:
    assert control.Hello(2, b"a", False, False, 1, 1, stream=9).publisher
    assert not control.Hello(2, b"a", False, True, 1, 1).publisher


# Other versions


@given(message=MESSAGES, client=CLIENT, number=U64, version=U8.filter(lambda version: version != 2))
def test_the_head_of_another_version_can_be_read(
    message: control.Control, client: int, number: int, version: int
) -> None:
    data = control.encode(message, client, number)
    other = data[:2] + bytes((version,)) + data[3:]
    if isinstance(message, control.Refused):
        assert control.decode(other) == (client, number, message)
    else:
        with pytest.raises(ProtocolError, match=f"of version {version}; this process speaks 2"):
            control.decode(other)
    head = control.read_head(other)
    assert head is not None
    assert (head.version, head.client, head.number) == (version, client, number)


def test_format_1_is_known_and_not_read() -> None:
    data = bytes.fromhex("f5439401010203")
    assert control.is_format_1(data)
    assert control.read_head(data) is None
    assert isinstance(read(data), ProtocolError)
    assert not control.is_format_1(HEAD)


@given(message=MESSAGES, more=st.lists(st.integers(0, 9) | st.text(max_size=3), max_size=3))
def test_fields_of_later_versions_are_ignored(message: control.Control, more: list[object]) -> None:
    data = control.encode(message, 7, 8)
    fields = [*msgspec.msgpack.decode(data[control.HEAD_BYTES :]), *more]
    assert control.decode(data[: control.HEAD_BYTES] + msgspec.msgpack.encode(fields)) == (7, 8, message)


@given(message=MESSAGES, scheme=st.integers(5, 255))
def test_unknown_schemes_are_not_read(message: control.Control, scheme: int) -> None:
    data = control.encode(message)
    with pytest.raises(ProtocolError, match=f"scheme {scheme}"):
        control.decode(data[:4] + bytes((scheme,)) + data[5:])


# Authentication

SECRET = AgentSecret(3, bytes(range(32)))
KEY = control.KeySeal(control.CLIENT_SCHEME, 3, bytes(32))
SIGNATURE = control.SignatureSeal(SECRET)


def test_the_tag_stands_between_head_and_body() -> None:
    plain, tagged = (control.encode(control.Bye(b"a", True, 2), 1, 9, seal) for seal in (None, KEY))
    assert tagged[:6] == plain[:4] + bytes((control.CLIENT_SCHEME, 3))
    assert tagged[40:] == plain[control.HEAD_BYTES :]
    assert tagged[24:40] == control_tag(bytes(32), tagged[:24], tagged[40:])
    signed = control.encode(control.Resync("s", 1, 2), 0, 9, SIGNATURE)
    assert signed[4:6] == bytes((control.SIGNED_SCHEME, 3))
    assert signed[88:] == control.encode(control.Resync("s", 1, 2))[control.HEAD_BYTES :]


@given(message=MESSAGES, client=CLIENT, number=U64, at=st.integers(0, 5000), bit=st.integers(0, 7))
def test_one_changed_bit_makes_a_message_unauthentic(
    message: control.Control, client: int, number: int, at: int, bit: int
) -> None:
    checks: list[tuple[control.Seal, Callable[[bytes], bool]]] = [
        (KEY, lambda data: control.is_tagged(data, KEY.key)),
        (SIGNATURE, lambda data: control.is_signed(data, SECRET.signing)),
    ]
    for seal, is_authentic in checks:
        data = control.encode(message, client, number, seal)
        assert is_authentic(data)
        assert control.decode(data) == (client, number, message)
        index = at % len(data)
        changed = data[:index] + bytes((data[index] ^ 1 << bit,)) + data[index + 1 :]
        assert not is_authentic(changed)


@given(data=st.binary(max_size=120))
def test_short_and_random_bytes_are_not_authentic(data: bytes) -> None:
    assert not control.is_tagged(data, KEY.key)
    assert not control.is_signed(data, SECRET.signing)


# Hostile bytes


@given(data=st.binary(max_size=80))
@example(b"")
@example(b"\xf5")
@example(MARK)
@example(HEAD)
@example(HEAD + b"\xc0")
@example(HEAD + b"\x90")
@example(HEAD + b"\x91" * 50_000)
@example(HEAD[:3] + b"\x04" + HEAD[4:] + b"\x97\x04" + b"\x91" * 50_000)
@example(HEAD[:3] + b"\x04" + HEAD[4:] + b"\x97\x01\x01\x00\x01\xdd\xff\xff\xff\xff")
@example(HEAD + b"\xdf\xff\xff\xff\xff")
@example(b"hello world")
def test_garbage_is_the_peers_fault(data: bytes) -> None:
    assert isinstance(read(data), control.Received | ProtocolError)


@given(data=st.binary(max_size=80), kind=st.integers(0, 20))
def test_garbage_behind_the_head_is_the_peers_fault(data: bytes, kind: int) -> None:
    found = read(HEAD[:3] + bytes((kind,)) + HEAD[4:] + data)
    if not isinstance(found, ProtocolError):
        assert control.decode(control.encode(found.message, found.client, found.number)) == found


@given(message=MESSAGES, data=st.data())
def test_a_message_that_is_cut_short_is_refused(message: control.Control, data: st.DataObject) -> None:
    whole = control.encode(message)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(ProtocolError):
        control.decode(whole[:cut])


@given(message=MESSAGES, tail=st.binary(min_size=1, max_size=5))
def test_nothing_may_follow_a_message(message: control.Control, tail: bytes) -> None:
    with pytest.raises(ProtocolError):
        control.decode(control.encode(message) + tail)


@given(message=MESSAGES, at=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_flipped_bit_never_crashes(message: control.Control, at: int, bit: int) -> None:
    broken = bytearray(control.encode(message))
    broken[at % len(broken)] ^= 1 << bit
    assert isinstance(read(bytes(broken)), control.Received | ProtocolError)


@pytest.mark.parametrize(
    "data",
    [
        packed(1, -1, 2, 3),
        packed(1, 1, 1 << 32),
        packed(1, 1, 2, 3, 256, 2),
        packed(1, "one", 2),
        packed(1, 1),
        packed(1, 1.0, 2.5),
        packed(3, "text is not bytes", True),
        packed(3, b"a", 1),
        packed(4, 1, 2, 0, 1, [b"a"], [b"b"], [[b"c", 1]]),
        packed(4, 1, 2, 0, 1, [b"a"], [b"b"], [[b"c", 1, 2, 3]]),
        packed(4, 1, 2, 0, 1 << 16, [], [], []),
        packed(0, 1, 2, 3),
        packed(20, b"x" * 32),
        packed(99, 1, 2, 3),
        packed(1),
        packed(7)[: control.HEAD_BYTES] + b"\x98\xa1\xff\x01\x01\x01\x01\xc3\x01",
        HEAD[:8] + b"\xff" * 8 + HEAD[16:] + b"\x93\xa1s\x01\x01",
    ],
    ids=lambda data: data.hex()[6:8] + data.hex()[48:72],
)
def test_fields_are_checked(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        control.decode(data)


# Long lists


@given(channels=NAMES, patterns=NAMES, streams=STREAMS, copies=st.sampled_from([1, 300, 1000]))
def test_a_present_in_parts_says_the_same(
    channels: list[bytes], patterns: list[bytes], streams: control.StreamList, copies: int
) -> None:
    parts = control.presents(7, 8, channels * copies, patterns, streams * copies)
    assert [(part.incarnation, part.resync, part.part, part.parts) for part in parts] == [
        (7, 8, number, len(parts)) for number in range(len(parts))
    ]
    assert [name for part in parts for name in part.channels] == channels * copies
    assert [name for part in parts for name in part.patterns] == patterns
    assert [stream for part in parts for stream in part.streams] == streams * copies
    assert all(len(part.channels) <= 1024 and len(control.encode(part)) < 1 << 16 for part in parts)


@pytest.mark.parametrize("name_bytes", [0, 16, 512])
def test_an_answer_in_parts_says_the_same(name_bytes: int) -> None:
    streams = [(b"x" * name_bytes, number, 1 << 63 | number, 9 + number / 256) for number in range(3000)]
    whole = control.Answer("s", b"*", 1, 2, b"entry", b"ring", True, True, 3, 0, 1, [], [])
    parts = control.in_parts(whole, streams, streams[:40])
    assert [(part.part, part.parts) for part in parts] == [(number, len(parts)) for number in range(len(parts))]
    assert len(parts) > 2
    assert [stream for part in parts for stream in part.heard()] == streams
    assert [stream for part in parts for stream in part.heard_before()] == streams[:40]
    assert [(part.entry, part.ring) for part in parts] == [(b"entry", b"ring")] + [(b"", b"")] * (len(parts) - 1)
    assert all(len(control.encode(part)) < 1 << 16 for part in parts)
    short = msgspec.structs.replace(whole, streams=[(*streams[0][:3], 9)], streams_finer=b"\0")
    assert control.in_parts(whole, streams[:1], []) == [short]


def test_a_quiet_time_is_rounded_down_and_fits_its_field() -> None:
    whole = control.Answer("s", b"*", 1, 2, b"", b"", True, True, 3, 0, 1, [], [])
    (part,) = control.in_parts(whole, [(b"a", 1, 1, 3.999), (b"b", 1, 1, 2.0**40)], [])
    assert [quiet_s for *_, quiet_s in part.heard()] == [3 + 255 / 256, 2.0**32 - 1 / 256]


def test_an_agent_that_knows_quiet_times_to_the_second_is_understood() -> None:
    known = control.Answer("s", b"*", 1, 2, b"", b"", True, True, 3, 0, 1, [(b"a", 1, 1, 3)], [(b"b", 1, 1, 4)])
    assert (known.heard(), known.heard_before()) == ([(b"a", 1, 1, 3.0)], [(b"b", 1, 1, 4.0)])


# Limits: what is above them is refused before anything looks at it


@pytest.mark.parametrize(
    "message",
    [
        control.Hello(1, b"x" * 513, False, True, 0, 0),
        control.Bye(b"x" * 513, False),
        control.Subscribed(b"x" * 513, 1),
        control.Left(b"x" * 513, 1, 1),
        control.Heal(b"x" * 513, 1, 1, 1),
        control.Present(1, 1, 0, 1, [b"x" * 513], [], []),
        control.Present(1, 1, 0, 1, [], [b"x" * 513], []),
        control.Present(1, 1, 0, 1, [], [], [(b"x" * 513, 1, 1)]),
        control.Present(1, 1, 0, 1, [b"x"] * 1025, [], []),
        control.Present(1, 1, 0, 1, [], [b"x"] * 1025, []),
        control.Present(1, 1, 0, 1, [], [], [(b"x", 1, 1)] * 1025),
        control.Resync("x" * 1025, 1, 1),
    ],
)
def test_long_names_and_lists_are_refused(message: control.Control) -> None:
    assert isinstance(read(control.encode(message)), ProtocolError)


def test_names_and_lists_at_their_limits_are_read() -> None:
    name = b"x" * 512
    for message in (
        control.Hello(1, name, False, True, 0, 0),
        control.Present(1, 1, 0, 1, [b"x"] * 1024, [b"x"] * 1024, [(b"x", 1 << 63, 1 << 63)] * 1024),
    ):
        assert control.decode(control.encode(message)).message == message


def test_a_large_message_to_an_agent_is_refused_before_it_is_decoded() -> None:
    message = control.Present(1, 1, 0, 1, [b"x" * 512] * 200, [], [])
    assert len(control.encode(message)) > control.TO_AGENT_BYTES_MAX
    error = read(control.encode(message))
    assert isinstance(error, ProtocolError)
    assert "bytes to an agent" in str(error)
    resend = control.Resend(b"tile", b"x" * (1 << 20))  # between clients a message may be large
    assert control.decode(control.encode(resend)).message == resend


def test_the_longest_present_fits_the_limit() -> None:
    names = [b"x" * 512] * 300
    for part in control.presents(1, 1, names, names, [(name, 1 << 63, 1 << 63) for name in names]):
        assert len(control.encode(part)) <= control.TO_AGENT_BYTES_MAX
