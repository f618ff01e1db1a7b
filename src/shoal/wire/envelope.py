"""The envelope: the compact binary header in front of every payload that Shoal publishes.

Owns the layout of the header, and nothing else does. Never touches a socket or a clock.

    magic     u16   F5 5A: 0xF5 cannot begin UTF-8 text, so no text payload looks like an envelope
    flags     u8    ATTRIBUTES | BEACON | FORWARDED | FINAL | FOREIGN; every other bit is zero
    version   u32   the channel's placement version that the publisher believed
    stream    u64   who publishes: client id (48 bits), epoch (16 bits)
    sequence  u64   per stream and channel, from 1, without holes
    time      u64   microseconds since 1970, by the publisher's clock; informative only

With ATTRIBUTES, a u16 length and a MessagePack map stand between header and payload. A BEACON has no
payload: its sequence is the last one that the stream has published, its body (u64) the last one that
servers had confirmed when the publisher came to this server; FINAL on it says that the stream has ended.
What does not begin with a valid header is a foreign payload and is delivered as it is. An agent that forwards
one puts a header with FOREIGN, and stream 0, in front of it.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from shoal.errors import ChannelNameError, PayloadTooLargeError, ProtocolError, PublishError
from shoal.limits import Limits
from shoal.message import Attributes, GivenAttributes

MAGIC: Final = 0x5AF5
ATTRIBUTES: Final = 1
BEACON: Final = 2
FORWARDED: Final = 4
FINAL: Final = 8
FOREIGN: Final = 16
KNOWN_FLAGS: Final = ATTRIBUTES | BEACON | FORWARDED | FINAL | FOREIGN

HEADER: Final = struct.Struct("<HBIQQQ")
HEADER_BYTES: Final = HEADER.size
PLAIN_HEADER: Final = struct.Struct("<3s4xQQQ")
"""The header for those who look for plain messages only: magic and flags as bytes, stream, sequence, time."""
PLAIN: Final = HEADER.pack(MAGIC, 0, 0, 0, 0, 0)[:3]
PREFIX: Final = struct.Struct("<HBIQ")
SUFFIX: Final = struct.Struct("<QQ")
_U16: Final = struct.Struct("<H")
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")
_VERSION_AT: Final = 3

ENDED: Final = 1 << 63
"""In listings of streams, this bit of the last sequence number says that the stream has ended with it."""

RESERVED_PREFIX: Final = b"__shoal:"
AGENT_CHANNEL: Final = b"__shoal:agent"
HEARTBEAT_CHANNEL: Final = b"__shoal:word"
INBOX_PREFIX: Final = b"__shoal:in:"
TELEMETRY_KEY: Final = b"__shoal:telemetry"

CLIENT_ID_BITS: Final = 48
EPOCH_BITS: Final = 16

_map_decoder: Final = msgspec.msgpack.Decoder(dict[str, str | int | float | bool])
_map_encoder: Final = msgspec.msgpack.Encoder()


def inbox_channel(client: int) -> bytes:
    """The channel on which a client hears what is meant for it alone."""
    return b"%b%012x" % (INBOX_PREFIX, client)


def stream_id(client: int, epoch: int) -> int:
    """The publisher id in a header: which client, and which of its streams on the channel."""
    return client << EPOCH_BITS | epoch & (1 << EPOCH_BITS) - 1


def client_of(stream: int) -> int:
    """The client that a stream belongs to."""
    return stream >> EPOCH_BITS


def prefix(flags: int, version: int, stream: int) -> bytes:
    """The part of the header that stays the same between two messages of a stream."""
    return PREFIX.pack(MAGIC, flags, version, stream)


def beacon(version: int, stream: int, last: int, settled: int, time_us: int, final: bool = False) -> bytes:
    """A beacon: what a stream has published so far, sent after a burst, on coming to a server and at the end."""
    flags = BEACON | FINAL if final else BEACON
    return HEADER.pack(MAGIC, flags, version, stream, last, time_us) + _U64.pack(settled)


def under(version: int, blob: bytes) -> bytes:
    """The envelope with another placement version."""
    return blob[:_VERSION_AT] + _U32.pack(version) + blob[_VERSION_AT + 4 :]


def forwarded(blob: bytes) -> bytes:
    """The blob as an agent passes it on: marked, and with a header if it had none."""
    if is_envelope(blob):
        return blob[:2] + bytes((blob[2] | FORWARDED,)) + blob[3:]
    return HEADER.pack(MAGIC, FORWARDED | FOREIGN, 0, 0, 0, 0) + blob


def settled_of(blob: bytes) -> int:
    """The confirmed sequence number that a beacon carries."""
    if len(blob) != HEADER_BYTES + 8:
        raise ProtocolError("a peer sent a beacon of the wrong length; it is ignored")
    settled: int = _U64.unpack_from(blob, HEADER_BYTES)[0]
    return settled


def is_envelope(blob: bytes) -> bool:
    """Whether a payload begins with a header of ours."""
    return len(blob) >= HEADER_BYTES and blob[0] == 0xF5 and blob[1] == 0x5A and not blob[2] & ~KNOWN_FLAGS


def encode_attributes(attributes: GivenAttributes, limits: Limits) -> bytes:
    """Length and map, as they stand between header and payload; refuses what no reader could use.

    None is absence: an attribute with that value is left out.
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
        if not isinstance(value, str | int | float | bool):
            raise PublishError(f"attribute {name!r} must be str, int, float or bool, not {type(value).__name__}")
        if isinstance(value, float) and not math.isfinite(value):
            raise PublishError(f"attribute {name!r} is {value}: NaN and infinities are refused")
        present[name] = value
    if len(present) > limits.attributes_max:
        raise PublishError(f"a message carries at most {limits.attributes_max} attributes, this one has {len(present)}")
    try:
        body = _map_encoder.encode(present)
    except OverflowError as error:
        raise PublishError("an integer attribute does not fit in 64 bits; send it as a string") from error
    except UnicodeEncodeError as error:
        raise PublishError("an attribute holds text that UTF-8 cannot carry; send it as something else") from error
    if len(body) > limits.attributes_bytes_max:
        raise PublishError(
            f"attributes take {len(body)} bytes, more than attributes_bytes_max={limits.attributes_bytes_max}"
        )
    return _U16.pack(len(body)) + body


def split_attributes(blob: bytes) -> tuple[Attributes, bytes]:
    """Attributes and payload of an envelope that has the ATTRIBUTES flag."""
    try:
        length = _U16.unpack_from(blob, HEADER_BYTES)[0]
        start = HEADER_BYTES + 2
        if len(blob) < start + length:
            raise ProtocolError("a peer sent attributes that are cut short; the message is ignored")
        return _map_decoder.decode(blob[start : start + length]), blob[start + length :]
    except (struct.error, msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ProtocolError("a peer sent attributes that cannot be read; the message is ignored") from error


def check_channel_name(name: str | bytes | bytearray | memoryview, limits: Limits) -> bytes:
    """The bytes of a channel name or pattern, or a clear refusal."""
    if not isinstance(name, str | bytes | bytearray | memoryview):
        raise ChannelNameError(f"a channel name is str or bytes, not {type(name).__name__}")
    try:
        raw = name.encode("utf-8", "surrogateescape") if isinstance(name, str) else bytes(name)
    except UnicodeEncodeError as error:
        raise ChannelNameError(f"the channel name {name!r} holds text that UTF-8 cannot carry") from error
    if not raw:
        raise ChannelNameError("a channel name must not be empty")
    if len(raw) > limits.channel_name_bytes_max:
        raise ChannelNameError(
            f"the channel name is {len(raw)} bytes long, "
            f"more than channel_name_bytes_max={limits.channel_name_bytes_max}"
        )
    if raw.startswith(RESERVED_PREFIX):
        raise ChannelNameError(
            f"channel names that begin with {RESERVED_PREFIX.decode()!r} are reserved for Shoal itself"
        )
    return raw


def check_payload(payload: bytes, limits: Limits) -> None:
    """Refuses a payload that no subscriber would be allowed to receive."""
    if len(payload) > limits.payload_bytes_max:
        raise PayloadTooLargeError(
            f"the payload is {len(payload)} bytes long, more than payload_bytes_max={limits.payload_bytes_max}; "
            "send a reference to it, or raise the limit on every client"
        )
