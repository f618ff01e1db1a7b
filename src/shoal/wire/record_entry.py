"""The record of a channel on one server: its key and the layout of its entries.

Owns the names of the keys and the layout. It never touches a socket or a clock.

    __shoal:recorded             a set: the channels that have a record on this server
    __shoal:recorded:<channel>   a stream: the record of one channel
    __shoal:recorded-marks       the patterns that the server's agent records, as MessagePack
    __shoal:recorded-archived    all records up to this time are archived: milliseconds by the server's clock

An entry has two fields: `n`, which grows by one with each entry of the record, so that readers notice trimmed entries,
and one of

    m   a message with its original envelope. A message of a plain Redis client has an envelope with FOREIGN and no
        time; the time of the entry counts. Or a final beacon: the stream has ended.
    g   a gap: messages that the recorder of this server did not receive
    s   the streams that the recorder knows, each with its last number: a new agent continues from there

A gap is a claim of one server. Readers merge all records, so messages in another server's record are not missing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from shoal.errors import ProtocolError
from shoal.message import Attributes, AttributeValue
from shoal.wire.envelope import (
    ATTRIBUTES,
    BEACON,
    FINAL,
    FOREIGN,
    HEADER,
    MAGIC,
    UNKNOWN_FLAGS,
    read_header,
    split_attributes,
)

INDEX_KEY: Final = b"__shoal:recorded"
MARKS_KEY: Final = b"__shoal:recorded-marks"
WRITER_KEY: Final = b"__shoal:recorded-by"
"""The number of the connection that writes the records of its server (`CLIENT ID`)."""
ARCHIVED_KEY: Final = b"__shoal:recorded-archived"
RECORD_PREFIX: Final = b"__shoal:recorded:"

NUMBER_FIELD: Final = b"n"
MESSAGE_FIELD: Final = b"m"
GAP_FIELD: Final = b"g"
STREAMS_FIELD: Final = b"s"

NUMBER_MAX: Final = (1 << 63) - 1
"""The largest number of an entry or a message that rows can hold. Valid numbers stay far below it."""

StreamEnds: TypeAlias = list[tuple[int, int]]
"""Stream, and its last number (with `ENDED` if it has ended)."""


class RecordedGap(msgspec.Struct, frozen=True, array_like=True):
    """Numbers of a stream that a recorder did not receive. `stream` 0 means unknown, `last` 0 an unknown end.
    `since_ms` is the time of the recorder's last write before the gap, 0 if that does not matter."""

    stream: int
    first: int
    last: int
    reason: str
    since_ms: int = 0


class RecordedMessage(NamedTuple):
    """A message or the end of a stream, from an entry. `stream` is 0 for a message of a plain Redis client. The body of
    the envelope `blob` begins at `body_at`."""

    stream: int
    sequence: int
    time_us: int
    flags: int
    blob: bytes
    body_at: int

    @property
    def is_end(self) -> bool:
        """Whether this is the end of the stream, not a message."""
        return bool(self.flags & BEACON)

    def split(self) -> tuple[Attributes | None, bytes]:
        """Attributes (None if there are none) and payload; ProtocolError if they cannot be read."""
        if self.flags & ATTRIBUTES:
            return split_finite(self.blob, self.body_at)
        return None, self.blob[self.body_at :]


Fields: TypeAlias = tuple[bytes, ...]
Content: TypeAlias = RecordedMessage | RecordedGap | StreamEnds

_gaps: Final = msgspec.msgpack.Decoder(RecordedGap)
_ends: Final = msgspec.msgpack.Decoder(list[tuple[int, int]])
_marks: Final = msgspec.msgpack.Decoder(list[bytes])
_encoder: Final = msgspec.msgpack.Encoder()


def split_finite(blob: bytes, at: int) -> tuple[Attributes, bytes]:
    """Attributes and payload of an envelope that has attributes; its body begins at `at`. Attributes and elements of
    arrays that are NaN or infinite are left out, because neither JSON nor filters have such values."""
    attributes, payload = split_attributes(blob, at)
    if all(map(_is_finite, attributes.values())):
        return attributes, payload
    finite: dict[str, AttributeValue] = {}
    for name, value in attributes.items():
        if isinstance(value, list):
            finite[name] = [each for each in value if _is_finite(each)]
        elif _is_finite(value):
            finite[name] = value
    return finite, payload


def _is_finite(value: object) -> bool:
    """Whether a value, or each element of an array, is neither NaN nor infinite."""
    if isinstance(value, float):
        return math.isfinite(value)
    return not isinstance(value, list) or all(map(_is_finite, value))


def record_key(channel: bytes) -> bytes:
    """The key of a channel's record."""
    return RECORD_PREFIX + channel


def encode_marks(patterns: Iterable[bytes]) -> bytes:
    """The value of `MARKS_KEY`."""
    return _encoder.encode(sorted(patterns))


def read_marks(value: Any) -> list[bytes]:
    """The patterns that an agent records; empty if the value is not Shoal's."""
    try:
        return _marks.decode(value or b"")
    except (msgspec.MsgspecError, TypeError):
        return []


def message_fields(number: int, blob: bytes) -> Fields:
    """The fields of an entry for a message with its envelope."""
    return NUMBER_FIELD, b"%d" % number, MESSAGE_FIELD, blob


def gap_fields(number: int, gap: RecordedGap) -> Fields:
    """The fields of an entry for a gap."""
    return NUMBER_FIELD, b"%d" % number, GAP_FIELD, _encoder.encode(gap)


def streams_fields(number: int, ends: StreamEnds) -> Fields:
    """The fields of an entry for the last number of each stream."""
    return NUMBER_FIELD, b"%d" % number, STREAMS_FIELD, _encoder.encode(ends)


def foreign_blob(payload: bytes) -> bytes:
    """The message of a plain Redis client, in the envelope that records use."""
    return HEADER.pack(MAGIC, FOREIGN, 0, 0, 0, 0) + payload


def read_entry(fields: Any) -> tuple[int, Content]:
    """Number and content of an entry, from a flat list or a mapping of fields; ProtocolError if it is invalid."""
    try:
        pairs = fields if isinstance(fields, dict) else dict(zip(fields[::2], fields[1::2], strict=True))
        number = int(pairs[NUMBER_FIELD])
        if not 0 <= number <= NUMBER_MAX:
            raise ValueError("its number is out of range")
        ((kind, value),) = (pair for pair in pairs.items() if pair[0] != NUMBER_FIELD)
        if kind == MESSAGE_FIELD:
            return number, _read_message(value)
        if kind == GAP_FIELD:
            return number, _gaps.decode(value)
        if kind == STREAMS_FIELD:
            return number, _ends.decode(value)
    except (KeyError, TypeError, ValueError, msgspec.MsgspecError) as error:
        raise ProtocolError(f"not an entry of a record: {error}") from error
    raise ProtocolError(f"an entry of a record has an unknown field {kind[:20]!r}")


def _read_message(blob: bytes) -> RecordedMessage:
    header = read_header(blob)
    if header is None:
        raise ValueError("a message without an envelope")
    flags, stream, sequence, time_us, body_at = header
    if flags & UNKNOWN_FLAGS:
        raise ValueError(f"a message with unknown flags 0x{flags & UNKNOWN_FLAGS:02x}: read it with a newer version")
    if flags & BEACON and not flags & FINAL:
        raise ValueError("a beacon that is not final")
    if flags & FOREIGN:
        stream = sequence = time_us = 0
    elif not stream or not sequence:
        raise ValueError("a message without a stream")
    return RecordedMessage(stream, sequence, time_us, flags, blob, body_at)
