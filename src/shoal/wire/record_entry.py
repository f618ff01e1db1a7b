"""The record of a channel on one server: where it lies, and what its entries look like.

Owns the names of the keys and the layout of an entry. Never touches a socket or a clock.

    __shoal:recorded             a set: the channels that have a record on this server
    __shoal:recorded:<channel>   a stream: the record of one channel
    __shoal:recorded-marks       what the server's agent records: the patterns that it knows of, as MessagePack
    __shoal:recorded-archived    up to when all records of this server are in an archive: milliseconds of its clock

An entry has two fields: `n`, a number that grows by one with each entry of the record, so that a reader sees when
entries are missing before it (they were trimmed), and one of

    m   a message, with the envelope that it was published with; one of a plain Redis client has an envelope with
        FOREIGN and no time: that of its entry counts. Or a final beacon: the stream has ended.
    g   a gap: what the recorder of this server did not hear
    s   the streams that the recorder knows, each with its last number: where a new agent goes on from

A gap is a claim of one server. What another server's record holds is not missing: readers take all records together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from shoal.errors import ProtocolError
from shoal.message import Attributes
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
ARCHIVED_KEY: Final = b"__shoal:recorded-archived"
RECORD_PREFIX: Final = b"__shoal:recorded:"

NUMBER_FIELD: Final = b"n"
MESSAGE_FIELD: Final = b"m"
GAP_FIELD: Final = b"g"
STREAMS_FIELD: Final = b"s"

NUMBER_MAX: Final = (1 << 63) - 1
"""The largest number of an entry or a message that rows can hold; honest ones never come near it."""

StreamEnds: TypeAlias = list[tuple[int, int]]
"""Stream, and its last number (with `ENDED` if it has ended)."""


class RecordedGap(msgspec.Struct, frozen=True, array_like=True):
    """Numbers of a stream that a recorder did not hear. Stream 0: nobody can say whose. Last 0: up to an end that
    nobody knows. `since_ms` is when the recorder had last written, 0 if that does not matter."""

    stream: int
    first: int
    last: int
    reason: str
    since_ms: int = 0


class RecordedMessage(NamedTuple):
    """A message, or the end of a stream, as an entry holds it. Stream 0: a plain Redis client's. The body of the
    envelope `blob` begins at `body_at`."""

    stream: int
    sequence: int
    time_us: int
    flags: int
    blob: bytes
    body_at: int

    @property
    def is_end(self) -> bool:
        """Whether it says that the stream has ended, and is no message."""
        return bool(self.flags & BEACON)

    def split(self) -> tuple[Attributes | None, bytes]:
        """Attributes (None if there are none) and payload; ProtocolError if they cannot be read."""
        if self.flags & ATTRIBUTES:
            return split_finite(self.blob, self.body_at)
        return None, self.blob[self.body_at :]


Fields: TypeAlias = tuple[bytes, ...]
Said: TypeAlias = RecordedMessage | RecordedGap | StreamEnds

_gaps: Final = msgspec.msgpack.Decoder(RecordedGap)
_ends: Final = msgspec.msgpack.Decoder(list[tuple[int, int]])
_marks: Final = msgspec.msgpack.Decoder(list[bytes])
_encoder: Final = msgspec.msgpack.Encoder()


def split_finite(blob: bytes, at: int) -> tuple[Attributes, bytes]:
    """Attributes and payload of an envelope that has attributes; its body begins at `at`. Attributes that are NaN or
    infinite are left out, because neither JSON nor filters have such values."""
    attributes, payload = split_attributes(blob, at)
    if all(not isinstance(value, float) or math.isfinite(value) for value in attributes.values()):
        return attributes, payload
    finite = {name: value for name, value in attributes.items() if not isinstance(value, float) or math.isfinite(value)}
    return finite, payload


def record_key(channel: bytes) -> bytes:
    """The key of a channel's record."""
    return RECORD_PREFIX + channel


def encode_marks(patterns: Iterable[bytes]) -> bytes:
    """The value of `MARKS_KEY`."""
    return _encoder.encode(sorted(patterns))


def read_marks(value: Any) -> list[bytes]:
    """The patterns that an agent records; none if the value is not ours."""
    try:
        return _marks.decode(value or b"")
    except (msgspec.MsgspecError, TypeError):
        return []


def message_fields(number: int, blob: bytes) -> Fields:
    """The entry of a message that has its envelope."""
    return NUMBER_FIELD, b"%d" % number, MESSAGE_FIELD, blob


def gap_fields(number: int, gap: RecordedGap) -> Fields:
    """The entry of a gap."""
    return NUMBER_FIELD, b"%d" % number, GAP_FIELD, _encoder.encode(gap)


def streams_fields(number: int, ends: StreamEnds) -> Fields:
    """The entry that says how far each stream has come."""
    return NUMBER_FIELD, b"%d" % number, STREAMS_FIELD, _encoder.encode(ends)


def foreign_blob(payload: bytes) -> bytes:
    """The message of a plain Redis client in an envelope, as records hold it."""
    return HEADER.pack(MAGIC, FOREIGN, 0, 0, 0, 0) + payload


def read_entry(fields: Any) -> tuple[int, Said]:
    """Number and content of an entry, whose fields are a flat list or a mapping; ProtocolError if it is none."""
    try:
        pairs = fields if isinstance(fields, dict) else dict(zip(fields[::2], fields[1::2], strict=True))
        number = int(pairs[NUMBER_FIELD])
        if not 0 <= number <= NUMBER_MAX:
            raise ValueError("a number that no record counts to")
        ((kind, value),) = (pair for pair in pairs.items() if pair[0] != NUMBER_FIELD)
        if kind == MESSAGE_FIELD:
            return number, _read_message(value)
        if kind == GAP_FIELD:
            return number, _gaps.decode(value)
        if kind == STREAMS_FIELD:
            return number, _ends.decode(value)
    except (KeyError, TypeError, ValueError, msgspec.MsgspecError) as error:
        raise ProtocolError(f"not an entry of a record: {error}") from error
    raise ProtocolError(f"an entry of a record has a field {kind[:20]!r} that nobody knows")


def _read_message(blob: bytes) -> RecordedMessage:
    header = read_header(blob)
    if header is None:
        raise ValueError("a message without an envelope")
    flags, stream, sequence, time_us, body_at = header
    if flags & UNKNOWN_FLAGS:
        raise ValueError(f"a message with unknown flags 0x{flags & UNKNOWN_FLAGS:02x}: read it with a newer version")
    if flags & BEACON and not flags & FINAL:
        raise ValueError("a beacon that ends nothing")
    if flags & FOREIGN:
        stream = sequence = time_us = 0
    elif not stream or not sequence:
        raise ValueError("a message without a stream")
    return RecordedMessage(stream, sequence, time_us, flags, blob, body_at)
