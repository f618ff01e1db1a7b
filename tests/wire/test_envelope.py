"""The envelope: what is written can be read, what cannot be read is the peer's fault, what nobody could use is
refused."""

from __future__ import annotations

import math
import struct
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shoal.errors import ChannelNameError, PayloadTooLargeError, ProtocolError, PublishError
from shoal.limits import DEFAULT_LIMITS, Limits
from shoal.message import Attributes
from shoal.wire import envelope

U16, U32, U64 = (st.integers(0, (1 << bits) - 1) for bits in (16, 32, 64))
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
VALUES = (
    TEXT | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.booleans()
)
MAPS = st.dictionaries(TEXT.filter(bool), VALUES, max_size=10)


def with_attributes(attributes: Attributes, payload: bytes) -> bytes:
    header = envelope.HEADER.pack(envelope.MAGIC, envelope.ATTRIBUTES, 1, 2, 3, 4)
    return header + envelope.encode_attributes(attributes, DEFAULT_LIMITS) + payload


def raw_attributes(body: bytes, length: int | None = None) -> bytes:
    """An envelope whose attributes are any bytes."""
    header = envelope.HEADER.pack(envelope.MAGIC, envelope.ATTRIBUTES, 1, 2, 3, 4)
    return header + struct.pack("<H", len(body) if length is None else length) + body


# The header


def test_the_layout_is_the_documented_one() -> None:
    assert envelope.HEADER_BYTES == 40
    blob = envelope.prefix(1, 0x01020304, 0x1112131415161718) + envelope.SUFFIX.pack(0x2122232425262728, 9)
    first, second = "f55b0100" + "04030201", "1817161514131211" + "2827262524232221" + "0900000000000000"
    assert blob.hex() == first + second + "0000000000000000"
    assert envelope.PLAIN.hex() == "f55b0000"


@given(flags=st.integers(0, envelope.KNOWN_FLAGS), version=U32, stream=U64, sequence=U64, time_us=U64)
def test_prefix_and_suffix_are_the_header(flags: int, version: int, stream: int, sequence: int, time_us: int) -> None:
    blob = envelope.prefix(flags, version, stream) + envelope.SUFFIX.pack(sequence, time_us)
    assert envelope.is_envelope(blob)
    assert envelope.HEADER.unpack(blob) == (envelope.MAGIC, flags, version, stream, sequence, time_us)


@given(client=st.integers(0, (1 << 48) - 1), epoch=U16)
def test_a_stream_tells_its_client(client: int, epoch: int) -> None:
    stream = envelope.stream_id(client, epoch)
    assert stream < 1 << 64
    assert envelope.client_of(stream) == client


def test_epochs_wrap_within_their_bits() -> None:
    assert envelope.stream_id(7, 1 << 16) == envelope.stream_id(7, 0)


def test_an_inbox_is_named_by_twelve_digits() -> None:
    assert envelope.inbox_channel(0xB0B) == b"__shoal:in:000000000b0b"
    assert envelope.inbox_channel((1 << 48) - 1) == b"__shoal:in:ffffffffffff"


# What is not an envelope


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_no_text_looks_like_an_envelope(text: str) -> None:
    assert not envelope.is_envelope(text.encode())


@given(cut=st.integers(0, envelope.HEADER_BYTES - 1))
def test_a_cut_header_is_foreign(cut: int) -> None:
    assert not envelope.is_envelope(envelope.beacon(1, 2, 3, 3, 4)[:cut])


@given(flags=st.integers(0, 255).filter(lambda flags: flags & ~envelope.KNOWN_FLAGS))
def test_unknown_flags_are_in_an_envelope(flags: int) -> None:
    """They are for each reader to refuse; a foreign payload would be delivered."""
    blob = envelope.HEADER.pack(envelope.MAGIC, flags, 1, 2, 3, 4)
    assert envelope.is_envelope(blob)
    assert flags & envelope.UNKNOWN_FLAGS


def test_an_envelope_of_format_1_is_foreign_and_readable_in_records() -> None:
    blob = envelope.HEADER_1.pack(envelope.MAGIC_1, envelope.ATTRIBUTES, 1, 2, 3, 4)
    assert blob.hex() == "f55a01" + "01000000" + "02" + 15 * "0" + "3" + 15 * "0" + "4" + 14 * "0"
    assert not envelope.is_envelope(blob)
    assert envelope.read_header(blob) == (envelope.ATTRIBUTES, 2, 3, 4, 31)
    assert envelope.read_header(blob[:-1]) is None


# The extension


def extended(blob: bytes, words: int) -> bytes:
    """The envelope with so many words of an extension."""
    at = envelope.HEADER_BYTES
    return blob[:3] + bytes((words,)) + blob[4:at] + b"\xee" * (8 * words) + blob[at:]


@given(attributes=MAPS, payload=st.binary(max_size=50), words=st.integers(0, 255))
def test_readers_skip_an_extension(attributes: dict[str, Any], payload: bytes, words: int) -> None:
    blob = extended(with_attributes(attributes, payload), words)
    at = envelope.body_at(blob)
    assert envelope.is_envelope(blob)
    assert envelope.split_attributes(blob, at) == (attributes, payload)
    header = envelope.read_header(blob)
    assert header is not None
    assert header == (envelope.ATTRIBUTES, 2, 3, 4, at)
    assert envelope.settled_of(extended(envelope.beacon(1, 2, 3, 3, 4), words)) == 3
    assert envelope.body_at(envelope.forwarded(blob)) == envelope.body_at(envelope.under(7, blob)) == at


@given(words=st.integers(1, 255), data=st.data())
def test_an_extension_that_is_cut_short_is_foreign(words: int, data: st.DataObject) -> None:
    blob = extended(envelope.HEADER.pack(envelope.MAGIC, 0, 1, 2, 3, 4), words)
    cut = data.draw(st.integers(0, len(blob) - 1))
    assert not envelope.is_envelope(blob[:cut])


@given(data=st.binary(max_size=100), magic=st.sampled_from([b"", b"\xf5\x5a", b"\xf5\x5b"]))
def test_any_bytes_have_a_header_or_none(data: bytes, magic: bytes) -> None:
    header = envelope.read_header(magic + data)
    assert header is None or header.body_at <= len(magic + data)


# Beacons


@given(version=U32, stream=U64, last=U64, settled=U64, quiet_s=U32, final=st.booleans())
def test_a_beacon_says_what_it_was_given(
    version: int, stream: int, last: int, settled: int, quiet_s: int, final: bool
) -> None:
    blob = envelope.beacon(version, stream, last, settled, quiet_s, final)
    _, flags, *rest = envelope.HEADER.unpack_from(blob)
    assert envelope.is_envelope(blob)
    assert flags == envelope.BEACON | (envelope.FINAL if final else 0)
    assert rest == [version, stream, last, quiet_s * envelope.US_PER_S]
    assert envelope.settled_of(blob) == settled


@given(body=st.binary(max_size=40).filter(lambda body: len(body) != 8))
def test_a_beacon_of_another_length_is_refused(body: bytes) -> None:
    blob = envelope.HEADER.pack(envelope.MAGIC, envelope.BEACON, 1, 2, 3, 4) + body
    with pytest.raises(ProtocolError, match="wrong length"):
        envelope.settled_of(blob)


# Attributes


@given(attributes=MAPS, payload=st.binary(max_size=50))
def test_attributes_come_back_with_their_types(attributes: dict[str, str | int | float | bool], payload: bytes) -> None:
    read, rest = envelope.split_attributes(with_attributes(attributes, payload), envelope.HEADER_BYTES)
    assert rest == payload
    assert read == attributes
    assert {name: type(value) for name, value in read.items()} == {
        name: type(value) for name, value in attributes.items()
    }


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_a_number_is_refused(value: float) -> None:
    with pytest.raises(PublishError, match="NaN and infinities"):
        envelope.encode_attributes({"x": value}, DEFAULT_LIMITS)


@pytest.mark.parametrize("value", [1 << 64, -(1 << 63) - 1, 10**30])
def test_what_does_not_fit_in_64_bits_is_refused(value: int) -> None:
    with pytest.raises(PublishError, match="64 bits"):
        envelope.encode_attributes({"x": value}, DEFAULT_LIMITS)


@pytest.mark.parametrize("value", [b"bytes", {"a": 1}, 1j, object()])
def test_other_types_are_refused_by_name(value: object) -> None:
    with pytest.raises(PublishError, match=rf"'x' must be .* not {type(value).__name__}"):
        envelope.encode_attributes({"x": value}, DEFAULT_LIMITS)  # type: ignore[dict-item]


@given(st.lists(st.text(max_size=5) | st.integers(-(1 << 63), (1 << 64) - 1) | st.booleans(), max_size=20))
def test_arrays_come_back_as_lists(elements: list[str | int | bool]) -> None:
    blob = with_attributes({"tags": tuple(elements), "one": 1}, b"x")
    assert envelope.split_attributes(blob, envelope.HEADER_BYTES) == ({"tags": elements, "one": 1}, b"x")


@pytest.mark.parametrize("element", [[1], b"x", math.nan, 1j])
def test_an_element_that_is_no_value_is_refused(element: object) -> None:
    with pytest.raises(PublishError, match="an element of attribute 'x'"):
        envelope.encode_attributes({"x": [1, element]}, DEFAULT_LIMITS)  # type: ignore[list-item]


def test_the_combinations_of_arrays_are_limited_for_publishers_and_for_peers() -> None:
    most = {"a": [1] * 32, "b": [1] * 32, "none": []}
    blob = with_attributes(most, b"")
    assert envelope.split_attributes(blob, envelope.HEADER_BYTES)[0] == most
    more = {"a": [1] * 32, "b": [1] * 33}
    with pytest.raises(PublishError, match="1056 combinations of elements, more than 1024"):
        envelope.encode_attributes(more, DEFAULT_LIMITS)
    with pytest.raises(ProtocolError, match="too long arrays"):
        envelope.split_attributes(raw_attributes(msgspec.msgpack.encode(more)), envelope.HEADER_BYTES)


def test_none_is_absence_and_is_left_out() -> None:
    limits = msgspec.structs.replace(DEFAULT_LIMITS, attributes_max=1)
    given = envelope.encode_attributes({"a": None, "b": [1, None], "c": None}, limits)
    assert given == envelope.encode_attributes({"b": [1]}, limits)


@pytest.mark.parametrize("attributes", [5, "x", [("a", 1)], b"x"])
def test_what_is_no_mapping_is_refused(attributes: object) -> None:
    with pytest.raises(PublishError, match=f"a mapping of names to values, not {type(attributes).__name__}"):
        envelope.encode_attributes(attributes, DEFAULT_LIMITS)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", 1, b"x", None])
def test_names_are_non_empty_strings(name: object) -> None:
    with pytest.raises(PublishError, match="non-empty strings"):
        envelope.encode_attributes({name: 1}, DEFAULT_LIMITS)  # type: ignore[dict-item]


@pytest.mark.parametrize("attributes", [{"x": "\udc80"}, {"\ud800": 1}])
def test_text_that_utf8_cannot_carry_is_refused(attributes: Attributes) -> None:
    with pytest.raises(PublishError):
        envelope.encode_attributes(attributes, DEFAULT_LIMITS)


def test_the_number_of_attributes_is_limited() -> None:
    limits = msgspec.structs.replace(DEFAULT_LIMITS, attributes_max=3)
    envelope.encode_attributes({"a": 1, "b": 2, "c": 3}, limits)
    with pytest.raises(PublishError, match="at most 3 attributes, this one has 4"):
        envelope.encode_attributes({"a": 1, "b": 2, "c": 3, "d": 4}, limits)


def test_the_size_of_attributes_is_limited() -> None:
    limits: Limits = msgspec.structs.replace(DEFAULT_LIMITS, attributes_bytes_max=100)
    taken = len(envelope.encode_attributes({"a": "x" * 95}, limits)) - 2
    assert taken == 1 + 2 + 2 + 95
    with pytest.raises(PublishError, match="attributes_bytes_max=100"):
        envelope.encode_attributes({"a": "x" * 96}, limits)


@given(body=st.binary(max_size=60))
@example(b"\x81\xa1\xff\x01")
@example(b"\x81\xa1a\xa1\xff")
@example(b"\x81\xc4\x01a\x01")
@example(b"\x81\xa1a\xc0")
@example(b"\x91" * 60)
@example(b"\xdf\xff\xff\xff\xff")
def test_attributes_that_cannot_be_read_are_the_peers_fault(body: bytes) -> None:
    try:
        attributes, payload = envelope.split_attributes(raw_attributes(body), envelope.HEADER_BYTES)
    except ProtocolError:
        return
    assert payload == b""
    assert all(type(value) in (str, int, float, bool, list) for value in attributes.values())


@given(attributes=MAPS.filter(bool), data=st.data())
def test_attributes_that_are_cut_short_are_the_peers_fault(
    attributes: dict[str, str | int | float | bool], data: st.DataObject
) -> None:
    whole = with_attributes(attributes, b"")
    cut = data.draw(st.integers(envelope.HEADER_BYTES, len(whole) - 1))
    with pytest.raises(ProtocolError):
        envelope.split_attributes(whole[:cut], envelope.HEADER_BYTES)


def test_a_length_past_the_end_is_the_peers_fault() -> None:
    with pytest.raises(ProtocolError, match="cut short"):
        envelope.split_attributes(raw_attributes(b"\x80", length=2), envelope.HEADER_BYTES)


# Names and sizes


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("tile.1", b"tile.1"),
        ("grün", "grün".encode()),
        (b"\x80\xff", b"\x80\xff"),
        ("\udc80", b"\x80"),
        ("x" * 512, b"x" * 512),
    ],
)
def test_a_name_is_its_bytes(name: str | bytes, raw: bytes) -> None:
    assert envelope.check_channel_name(name, DEFAULT_LIMITS) == raw


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "empty"),
        (b"", "empty"),
        ("x" * 513, "513 bytes"),
        ("ü" * 257, "514 bytes"),
        ("__shoal:agent", "reserved"),
        (b"__shoal:", "reserved"),
        ("__shoal:in:000000000b0b", "reserved"),
    ],
)
def test_a_bad_name_is_refused_with_the_reason(name: str | bytes, reason: str) -> None:
    with pytest.raises(ChannelNameError, match=reason):
        envelope.check_channel_name(name, DEFAULT_LIMITS)


@pytest.mark.parametrize("name", [17, True, None, 1.5, [b"a"], [1, 2]])
def test_what_is_no_text_is_no_name(name: Any) -> None:
    with pytest.raises(ChannelNameError, match=f"a channel name is str or bytes, not {type(name).__name__}"):
        envelope.check_channel_name(name, DEFAULT_LIMITS)


@pytest.mark.parametrize("name", [bytearray(b"a"), memoryview(b"a")])
def test_bytes_of_any_kind_are_a_name(name: bytearray | memoryview) -> None:
    assert envelope.check_channel_name(name, DEFAULT_LIMITS) == b"a"


def test_a_name_that_utf8_cannot_carry_is_refused() -> None:
    with pytest.raises(ChannelNameError):
        envelope.check_channel_name("\ud800", DEFAULT_LIMITS)


@given(name=st.text(min_size=1, max_size=600) | st.binary(min_size=1, max_size=600))
def test_any_name_is_taken_or_refused(name: str | bytes) -> None:
    try:
        raw = envelope.check_channel_name(name, DEFAULT_LIMITS)
    except ChannelNameError:
        return
    assert 0 < len(raw) <= DEFAULT_LIMITS.channel_name_bytes_max
    assert not raw.startswith(envelope.RESERVED_PREFIX)


def test_a_pattern_has_few_stars() -> None:
    assert envelope.check_pattern("*a" * 16, DEFAULT_LIMITS) == b"*a" * 16
    with pytest.raises(ChannelNameError, match="17 stars, more than pattern_stars_max=16"):
        envelope.check_pattern("*a" * 17, DEFAULT_LIMITS)
    with pytest.raises(ChannelNameError, match="513 bytes"):
        envelope.check_pattern("*" + "x" * 512, DEFAULT_LIMITS)
    assert envelope.check_channel_name("*" * 512, DEFAULT_LIMITS) == b"*" * 512  # no pattern


def test_a_payload_is_limited() -> None:
    limits = msgspec.structs.replace(DEFAULT_LIMITS, payload_bytes_max=10)
    envelope.check_payload(b"x" * 10, limits)
    with pytest.raises(PayloadTooLargeError, match="11 bytes long, more than payload_bytes_max=10"):
        envelope.check_payload(b"x" * 11, limits)
