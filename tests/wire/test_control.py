"""Control messages: each comes back as it was sent, and whatever else arrives is the peer's fault, never a crash."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shoal.errors import ProtocolError
from shoal.wire import control

KINDS: tuple[type[msgspec.Struct], ...] = get_args(control.Control)
CLIENT, U32, U64 = (st.integers(0, (1 << bits) - 1) for bits in (48, 32, 64))
NAME = st.binary(max_size=30)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
STREAMS = st.lists(st.tuples(NAME, U64, U64), max_size=4)

MESSAGES: st.SearchStrategy[control.Control] = st.one_of(
    st.builds(control.Greet, CLIENT, U64, U32),
    st.builds(control.Hello, CLIENT, U64, NAME, st.booleans(), st.booleans(), U32, U32, U64, U64),
    st.builds(control.Bye, CLIENT, NAME, st.booleans()),
    st.builds(control.Present, CLIENT, U64, st.lists(NAME), st.lists(NAME), STREAMS),
    st.builds(control.Welcome, U64, TEXT, U64, U32, U32, NAME),
    st.builds(control.Answer, U64, NAME, U64, U32, NAME, NAME, st.booleans(), STREAMS, STREAMS, U32),
    st.builds(control.Heartbeat, TEXT, U64, U64, U64, U64, U32, st.booleans(), U32, st.none() | U32),
    st.builds(control.Resync, U64, U64),
    st.builds(control.Heal, CLIENT, NAME, U64, U64, U64),
    st.builds(control.Resend, NAME, NAME),
    st.builds(control.Healed, NAME, U64, U64, U64, U64),
)

MARK = control.encode(control.Resync(0, 0))[:2]


def read(data: bytes) -> control.Control | ProtocolError:
    """What `data` says, or the error that blames the peer; any other error fails the test."""
    try:
        return control.decode(data)
    except ProtocolError as error:
        return error if error.broken_by == "peer" else pytest.fail("the reader is not to blame")


def packed(*fields: object) -> bytes:
    return MARK + msgspec.msgpack.encode(list(fields))


@given(message=MESSAGES)
def test_each_message_comes_back_as_it_was_sent(message: control.Control) -> None:
    assert control.decode(control.encode(message)) == message


@pytest.mark.parametrize(
    ("message", "hex_form"),
    [
        (control.Greet(1, 2, 3), "f5439401010203"),
        (control.Bye(1, b"a", True, 2), "f543950301c40161c302"),
        (control.Resync(5, 6), "f54393080506"),
        (control.Healed(b"a", 1, 2, 3, 4), "f543960bc4016101020304"),
    ],
)
def test_the_wire_form_does_not_change(message: control.Control, hex_form: str) -> None:
    assert control.encode(message).hex() == hex_form
    assert control.decode(bytes.fromhex(hex_form)) == message


def test_every_kind_has_a_tag_of_its_own() -> None:
    tags = {kind.__struct_config__.tag for kind in KINDS}
    assert tags == set(range(1, len(KINDS) + 1))


def test_a_hello_of_a_publisher_names_its_stream() -> None:
    assert control.Hello(1, 2, b"a", False, False, 1, 1, stream=9).publisher
    assert not control.Hello(1, 2, b"a", False, True, 1, 1).publisher


@given(data=st.binary(max_size=80))
@example(b"")
@example(b"\xf5")
@example(b"\xf5C")
@example(b"\xf5C\xc0")
@example(b"\xf5C\x90")
@example(b"\xf5C" + b"\x91" * 50_000)
@example(b"\xf5C\x96\x04" + b"\x91" * 50_000)
@example(b"\xf5C\x96\x04\x01\x01\xdd\xff\xff\xff\xff")
@example(b"\xf5C\xdf\xff\xff\xff\xff")
@example(b"hello world")
def test_garbage_is_the_peers_fault(data: bytes) -> None:
    assert isinstance(read(data), (*KINDS, ProtocolError))


@given(data=st.binary(max_size=80))
def test_garbage_behind_the_mark_is_the_peers_fault(data: bytes) -> None:
    message = read(MARK + data)
    if not isinstance(message, ProtocolError):
        assert control.decode(control.encode(message)) == message


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
    assert isinstance(read(bytes(broken)), (*KINDS, ProtocolError))


@pytest.mark.parametrize(
    "data",
    [
        packed(1, -1, 2, 3),
        packed(1, 1 << 48, 2, 3),
        packed(1, 1, 2, 1 << 32),
        packed(1, "one", 2, 3),
        packed(1, 1, 2, 3, 4),
        packed(1, 1, 2),
        packed(1, 1.0, 2.5, 3),
        packed(3, 1, "text is not bytes", True),
        packed(3, 1, b"a", 1),
        packed(4, 1, 2, [b"a"], [b"b"], [[b"c", 1]]),
        packed(4, 1, 2, [b"a"], [b"b"], [[b"c", 1, 2, 3]]),
        packed(99, 1, 2, 3),
        packed("1", 1, 2, 3),
        packed(),
        MARK + b"\x98\x07\xa1\xff\x01\x01\x01\x01\x01\xc3\x01",
    ],
    ids=lambda data: data.hex()[:24],
)
def test_fields_are_checked(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        control.decode(data)
