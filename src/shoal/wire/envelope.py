"""The envelope: the binary header in front of every payload that Shoal publishes.

Owns the layout of the header in format 2, and in format 1, which only recorded messages still have. Also owns the names
of the internal channels. It never touches a socket or a clock. Format 2, little-endian, 40 bytes:

    magic      u16   F5 5B: 0xF5 cannot begin UTF-8 text, so no text payload looks like an envelope
    flags      u8    ATTRIBUTES | BEACON | FORWARDED | FINAL | FOREIGN; the other bits are reserved
    extension  u8    number of 8-byte words between header and body; 0 so far, readers skip them
    version    u32   the channel's placement version that the publisher used
    stream     u64   the publisher: client id (48 bits), epoch (16 bits)
    sequence   u64   per stream and channel, from 1, without holes
    time       u64   microseconds since 1970, by the publisher's clock; informative only
    tag        u64   see `lane_tag`; 0 in a cluster that does not authenticate, and in foreign messages

With ATTRIBUTES, the body begins with a u16 length and a MessagePack map; the payload follows. A BEACON has no payload:
its sequence is the last one that the stream has published, its body (u64) the last one that servers had confirmed when
the publisher came to this server; FINAL on it says that the stream has ended. A payload without a valid header is a
foreign payload and is delivered unchanged. An agent that forwards one puts a header with FOREIGN and stream 0 in front.

A message with an unknown flag comes from a newer version. It is not delivered and not counted as received, so that the
subscriber sees a hole. Agents forward it like any other.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from shoal.errors import ChannelNameError, PayloadTooLargeError, ProtocolError, PublishError
from shoal.limits import Limits
from shoal.message import Attributes, GivenAttributes

MAGIC: Final = 0x5BF5
MAGIC_1: Final = 0x5AF5
"""The magic of format 1."""
ATTRIBUTES: Final = 1
BEACON: Final = 2
FORWARDED: Final = 4
FINAL: Final = 8
FOREIGN: Final = 16
KNOWN_FLAGS: Final = ATTRIBUTES | BEACON | FORWARDED | FINAL | FOREIGN
UNKNOWN_FLAGS: Final = 0xFF & ~KNOWN_FLAGS

US_PER_S: Final = 1_000_000

HEADER: Final = struct.Struct("<HBxIQQQ8x")
"""Magic, flags, version, stream, sequence, time. Extension and tag are zero when packed and skipped when unpacked."""
HEADER_BYTES: Final = HEADER.size
HEADER_1: Final = struct.Struct("<HBIQQQ")
"""The same fields in format 1."""
WORDS: Final = struct.Struct("<QQQQQ")
"""The header in words: the first with magic, flags, extension and version; then stream, sequence, time and tag."""
PLAIN: Final = HEADER.pack(MAGIC, 0, 0, 0, 0, 0)[:4]
"""How a plain message begins: no flags, no extension."""
_PLAIN_WORD: Final = int.from_bytes(PLAIN, "little")


def is_plain(word: int) -> bool:
    """Whether the first word of a header is that of a plain message."""
    return word & 0xFFFFFFFF == _PLAIN_WORD


PREFIX: Final = struct.Struct("<HBxIQ")
SUFFIX: Final = struct.Struct("<QQ8x")
UNTAGGED: Final = struct.Struct("<16sQQ")
"""A prefix, sequence and time: the header without the tag that ends it."""
_U16: Final = struct.Struct("<H")
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")
_EXTENSION_AT: Final = 3
_VERSION_AT: Final = 4

ENDED: Final = 1 << 63
"""In listings of streams, this bit of the last sequence number says that the stream has ended with it."""

RESERVED_PREFIX: Final = b"__shoal:"
"""Prefix of control channels. Agents neither count nor move nor record them."""
OWN_PREFIX: Final = b"__shoal."
"""Prefix of channels on which Shoal's own parts publish. Agents treat them as any other; applications cannot use them,
and their patterns do not match them."""
HIDDEN_PREFIXES: Final = (RESERVED_PREFIX, OWN_PREFIX)
AGENT_CHANNEL: Final = b"__shoal:agent"
HEARTBEAT_CHANNEL: Final = b"__shoal:heartbeat"
INBOX_PREFIX: Final = b"__shoal:in:"
PEER_PREFIX: Final = b"__shoal:peer:"
TELEMETRY_KEY: Final = b"__shoal:telemetry"

CLIENT_ID_BITS: Final = 48
EPOCH_BITS: Final = 16

ARRAY_COMBINATIONS_MAX: Final = 1024
"""The product of the lengths of a message's arrays, at most. A filter may have to try each combination of elements."""

_map_decoder: Final = msgspec.msgpack.Decoder(dict[str, str | int | float | bool | list[str | int | float | bool]])
_map_encoder: Final = msgspec.msgpack.Encoder()


class Header(NamedTuple):
    """A header of either format."""

    flags: int
    stream: int
    sequence: int
    time_us: int
    body_at: int
    """Where the body begins."""


def inbox_channel(client: int) -> bytes:
    """The channel on which agents answer a client."""
    return b"%b%012x" % (INBOX_PREFIX, client)


def peer_channel(client: int) -> bytes:
    """The channel on which other clients ask a client for messages, and send it those that it asked for."""
    return b"%b%012x" % (PEER_PREFIX, client)


def stream_id(client: int, epoch: int) -> int:
    """The id of a stream: its client, and an epoch that tells the client's streams apart."""
    return client << EPOCH_BITS | epoch & (1 << EPOCH_BITS) - 1


def client_of(stream: int) -> int:
    """The client that a stream belongs to."""
    return stream >> EPOCH_BITS


def epoch_of(stream: int) -> int:
    """The epoch of a stream."""
    return stream & (1 << EPOCH_BITS) - 1


def prefix(flags: int, version: int, stream: int) -> bytes:
    """The part of the header that stays the same between messages of a stream."""
    return PREFIX.pack(MAGIC, flags, version, stream)


def beacon(version: int, stream: int, last: int, settled: int, quiet_s: float = 0.0, final: bool = False) -> bytes:
    """A beacon: the last sequence number of a stream. Sent after a burst, before the first message to a server, and at
    the end. In place of the time it says for how long, at least, the stream has been quiet."""
    flags = BEACON | FINAL if final else BEACON
    return HEADER.pack(MAGIC, flags, version, stream, last, int(quiet_s * US_PER_S)) + _U64.pack(settled)


def under(version: int, blob: bytes) -> bytes:
    """The envelope with another placement version."""
    return blob[:_VERSION_AT] + _U32.pack(version) + blob[_VERSION_AT + 4 :]


def forwarded(blob: bytes) -> bytes:
    """The blob as an agent forwards it: marked, and with a header if it had none."""
    if is_envelope(blob):
        return blob[:2] + bytes((blob[2] | FORWARDED,)) + blob[3:]
    return HEADER.pack(MAGIC, FORWARDED | FOREIGN, 0, 0, 0, 0) + blob


def settled_of(blob: bytes) -> int:
    """The confirmed sequence number that a beacon carries."""
    at = body_at(blob)
    if len(blob) != at + 8:
        raise ProtocolError("a peer sent a beacon of the wrong length; it is ignored")
    settled: int = _U64.unpack_from(blob, at)[0]
    return settled


def is_envelope(blob: bytes) -> bool:
    """Whether a payload begins with a header of format 2 and its extension, whatever the flags."""
    return len(blob) >= HEADER_BYTES and blob[0] == 0xF5 and blob[1] == 0x5B and len(blob) >= body_at(blob)


def body_at(blob: bytes) -> int:
    """Where the body of an envelope begins."""
    return HEADER_BYTES + 8 * blob[_EXTENSION_AT]


def read_header(blob: bytes) -> Header | None:
    """The header of an envelope of either format; None if there is none."""
    if is_envelope(blob):
        _, flags, _, stream, sequence, time_us = HEADER.unpack_from(blob)
        return Header(flags, stream, sequence, time_us, body_at(blob))
    if len(blob) >= HEADER_1.size and blob[0] == 0xF5 and blob[1] == 0x5A:
        _, flags, _, stream, sequence, time_us = HEADER_1.unpack_from(blob)
        return Header(flags, stream, sequence, time_us, HEADER_1.size)
    return None


def encode_attributes(attributes: GivenAttributes, limits: Limits) -> bytes:
    """Length and map, as placed between header and payload. PublishError if readers could not use them.

    Attributes with the value None are left out, and so are elements of arrays that are None.
    """
    if not isinstance(attributes, Mapping):
        raise PublishError(f"attributes are a mapping of names to values, not {type(attributes).__name__}")
    present: dict[str, object] = {}
    items: Iterable[tuple[object, object]] = attributes.items()
    for name, value in items:
        if not isinstance(name, str) or not name:
            raise PublishError(f"attribute names are non-empty strings, not {name!r}")
        if value is None:
            continue
        if isinstance(value, list | tuple):
            present[name] = elements = [each for each in value if each is not None]
            for each in elements:
                _check_scalar(f"an element of attribute {name!r}", each)
        else:
            _check_scalar(f"attribute {name!r}", value)
            present[name] = value
    if (combinations := _combinations(present)) > ARRAY_COMBINATIONS_MAX:
        raise PublishError(
            f"the arrays have {combinations} combinations of elements, more than {ARRAY_COMBINATIONS_MAX}: shorten them"
        )
    if len(present) > limits.attributes_max:
        raise PublishError(f"a message carries at most {limits.attributes_max} attributes, this one has {len(present)}")
    try:
        body = _map_encoder.encode(present)
    except OverflowError as error:
        raise PublishError("an integer attribute does not fit in 64 bits; send it as a string") from error
    except UnicodeEncodeError as error:
        raise PublishError(
            "an attribute has text that cannot be encoded as UTF-8; remove the lone surrogates"
        ) from error
    if len(body) > limits.attributes_bytes_max:
        raise PublishError(
            f"attributes take {len(body)} bytes, more than attributes_bytes_max={limits.attributes_bytes_max}"
        )
    return _U16.pack(len(body)) + body


def _check_scalar(what: str, value: object) -> None:
    if not isinstance(value, str | int | float | bool):
        raise PublishError(f"{what} must be str, int, float or bool, not {type(value).__name__}")
    if isinstance(value, float) and not math.isfinite(value):
        raise PublishError(f"{what} is {value}: NaN and infinities are rejected")


def _combinations(attributes: Mapping[str, object]) -> int:
    """The number of ways to choose one element of each array."""
    count = 1
    for value in attributes.values():
        if type(value) is list:
            count *= len(value) or 1
    return count


def split_attributes(blob: bytes, at: int) -> tuple[Attributes, bytes]:
    """Attributes and payload of an envelope that has the ATTRIBUTES flag and whose body begins at `at`."""
    try:
        length = _U16.unpack_from(blob, at)[0]
        start = at + 2
        if len(blob) < start + length:
            raise ProtocolError("a peer sent attributes that are cut short; the message is ignored")
        attributes = _map_decoder.decode(blob[start : start + length])
    except (struct.error, msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ProtocolError("a peer sent attributes that cannot be read; the message is ignored") from error
    if _combinations(attributes) > ARRAY_COMBINATIONS_MAX:
        raise ProtocolError("a peer sent attributes with too long arrays; the message is ignored")
    return attributes, blob[start + length :]


def check_channel_name(name: str | bytes | bytearray | memoryview, limits: Limits) -> bytes:
    """The bytes of a channel name or pattern; ChannelNameError if it is not valid."""
    if not isinstance(name, str | bytes | bytearray | memoryview):
        raise ChannelNameError(f"a channel name is str or bytes, not {type(name).__name__}")
    try:
        raw = name.encode("utf-8", "surrogateescape") if isinstance(name, str) else bytes(name)
    except UnicodeEncodeError as error:
        raise ChannelNameError(f"the channel name {name!r} cannot be encoded as UTF-8") from error
    if not raw:
        raise ChannelNameError("a channel name must not be empty")
    if len(raw) > limits.channel_name_bytes_max:
        raise ChannelNameError(
            f"the channel name is {len(raw)} bytes long, "
            f"more than channel_name_bytes_max={limits.channel_name_bytes_max}"
        )
    if raw.startswith(HIDDEN_PREFIXES):
        prefix = RESERVED_PREFIX if raw.startswith(RESERVED_PREFIX) else OWN_PREFIX
        raise ChannelNameError(f"channel names that begin with {prefix.decode()!r} are reserved for Shoal")
    return raw


def check_pattern(pattern: str | bytes | bytearray | memoryview, limits: Limits) -> bytes:
    """The bytes of a pattern; ChannelNameError if it is not valid, or if agents would refuse it."""
    raw = check_channel_name(pattern, limits)
    if raw.count(b"*") > limits.pattern_stars_max:
        raise ChannelNameError(
            f"the pattern has {raw.count(b'*')} stars, more than pattern_stars_max={limits.pattern_stars_max}"
        )
    return raw


def check_payload(payload: bytes, limits: Limits) -> None:
    """Raises PayloadTooLargeError for a payload that subscribers could not receive."""
    if len(payload) > limits.payload_bytes_max:
        raise PayloadTooLargeError(
            f"the payload is {len(payload)} bytes long, more than payload_bytes_max={limits.payload_bytes_max}; "
            "send a reference to it, or raise the limit on every client"
        )
