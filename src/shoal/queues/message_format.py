"""A message as a store keeps it, the names that a queue accepts, and the frames of pushed jobs.

Owns the encoding and the checks. The scripts never look inside a message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from shoal.errors import PayloadTooLargeError, ProtocolError, QueueNameError
from shoal.limits import MIB, Limits
from shoal.message import Attributes, GivenAttributes
from shoal.plan.queue_request import check_name
from shoal.wire.envelope import encode_attributes, split_attributes

KEY_PREFIX: Final = b"__shoal:q:"
"""Prefix of all keys of queues on a store."""
KEY_BYTES_MAX: Final = 512
ID_BYTES_MAX: Final = 256
PUSHED_PARTS: Final = 8
"""Of each job: shard, key, token, attempts, suspect, messages left, other ready keys, message."""
DELAY_S_MAX: Final = 10 * 366 * 86400.0
BODY_BYTES_MAX: Final = 32 * MIB
"""The largest stored message that a store accepts: payload, attributes and about 100 bytes more."""
NUMBER_BYTES_MAX: Final = 64
TIME_US_MAX: Final = 253_402_300_799_999_999
"""The end of the year 9999 in microseconds since 1970: the last time that Python, Arrow and Spark can all show."""
_ATTRIBUTES, _PLAIN = b"a", b"p"
DIGITS_MAX: Final = 16
"""Of a number that a store says."""


class Stored(msgspec.Struct, frozen=True, array_like=True):
    """A message: its number (unique, of its producer), the id that the application gave it, when it was put
    (microseconds since 1970, the producer's clock), and the rest."""

    number: bytes
    id: bytes
    put_us: int
    flags: bytes
    content: bytes

    def split(self) -> tuple[Attributes | None, bytes]:
        """Attributes and payload."""
        if self.flags == _ATTRIBUTES:
            return split_attributes(self.content, 0)
        return None, self.content


_encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final = msgspec.msgpack.Decoder(Stored)


def encode_message(
    number: bytes, id: bytes, put_us: int, payload: bytes, attributes: GivenAttributes | None, limits: Limits
) -> bytes:
    """The stored form of a message. Raises PayloadTooLargeError or PublishError."""
    if len(payload) > limits.payload_bytes_max:
        raise PayloadTooLargeError(
            f"the payload has {len(payload)} bytes, the limit is {limits.payload_bytes_max}",
            do="store it elsewhere and put a reference, or raise payload_bytes_max",
        )
    encoded = encode_attributes(attributes, limits) if attributes is not None else b""
    flags = _ATTRIBUTES if encoded else _PLAIN
    body = _encode((number, id, put_us, flags, encoded + payload))
    if len(body) > BODY_BYTES_MAX:
        raise PayloadTooLargeError(
            f"the message has {len(body)} bytes, stores accept {BODY_BYTES_MAX}",
            do="store the payload elsewhere and put a reference",
        )
    return body


def decode_message(body: bytes) -> Stored:
    """A stored message; ProtocolError if it is not one. Every client of a store can write one, so everything that is
    shown or counted with is checked."""
    try:
        stored = _decoder.decode(body)
    except msgspec.DecodeError as error:
        raise ProtocolError(f"a stored message cannot be read ({error})") from error
    if not stored.number.isascii() or len(stored.number) > NUMBER_BYTES_MAX:
        raise ProtocolError("a stored message cannot be read (its number is not one that a client gives)")
    if not 0 <= stored.put_us <= TIME_US_MAX:
        raise ProtocolError("a stored message cannot be read (the time of its put is impossible)")
    return stored


class Buried(NamedTuple):
    """A dead letter as its store keeps it."""

    key: bytes
    body: bytes
    reason: str
    attempts: int
    at_ms: int
    """When it was given up, in milliseconds since 1970, by the store's clock."""


def decode_dead_letter(fields: Sequence[bytes]) -> Buried:
    """A dead letter from the fields of its stream entry; ProtocolError if no script has written them: every client of a
    store can add entries. If the store's clock was before 1970, the time is 0."""
    try:
        named = dict(zip(fields[::2], fields[1::2], strict=True))
        found = Buried(
            named[b"key"],
            named[b"body"],
            named[b"reason"].decode(errors="replace"),
            int(named[b"attempts"]),
            max(int(named[b"at"]), 0),
        )
    except (KeyError, ValueError) as error:
        raise ProtocolError("a dead letter cannot be read") from error
    if not 0 <= found.attempts <= 10**DIGITS_MAX or found.at_ms > TIME_US_MAX // 1000:
        raise ProtocolError("a dead letter cannot be read (impossible numbers)")
    return found


def check_queue_name(name: str) -> bytes:
    """The prefix of the queue's keys; QueueNameError if the name is invalid."""
    if not isinstance(name, str):
        raise QueueNameError(f"the name of a queue is text, not {type(name).__name__}")
    check_name(name.encode(errors="replace"))
    return KEY_PREFIX + name.encode() + b":"


def check_key(key: str | bytes) -> bytes:
    """A message key as bytes; QueueNameError if it is invalid."""
    return _bytes(key, "a key", KEY_BYTES_MAX)


def check_id(id: str | bytes) -> bytes:
    """A message id as bytes; QueueNameError if it is invalid."""
    return _bytes(id, "a message id", ID_BYTES_MAX)


def check_payload(payload: bytes | bytearray | memoryview | str) -> bytes:
    """A payload as bytes; TypeError if it is not text or bytes."""
    if type(payload) is bytes:
        return payload
    if isinstance(payload, str):
        return payload.encode()
    if not isinstance(payload, bytes | bytearray | memoryview):
        raise TypeError(f"a payload must be bytes or str, not {type(payload).__name__}")
    return bytes(payload)


def check_delay(delay: float, what: str = "a delay") -> float:
    """A number of seconds that stores accept; TypeError or ValueError for anything else."""
    if isinstance(delay, bool) or not isinstance(delay, int | float):
        raise TypeError(f"{what} is a number of seconds, not {type(delay).__name__}")
    if not 0 <= delay < DELAY_S_MAX:  # also true for NaN
        raise ValueError(f"{what} is between 0 and ten years in seconds, not {delay}")
    return delay


def _bytes(value: str | bytes, what: str, bytes_max: int) -> bytes:
    if type(value) is bytes and 1 <= len(value) <= bytes_max:
        return value
    if not isinstance(value, str | bytes):
        raise QueueNameError(f"{what} is text or bytes, not {type(value).__name__}")
    try:
        raw = value.encode() if isinstance(value, str) else value
    except UnicodeEncodeError:
        raise QueueNameError(f"{what} contains a lone surrogate, which UTF-8 cannot encode") from None
    if not 1 <= len(raw) <= bytes_max:
        raise QueueNameError(f"{what} has {len(raw)} bytes", do=f"use 1 to {bytes_max} bytes, or a hash of it")
    return raw


def read_pushed(data: bytes, shards: int) -> list[list[bytes]]:
    """The parts of each job of a push, of a queue with so many shards: each part has its length before it. Every client
    of a store can publish to an inbox, so everything is checked."""
    parts = []
    at = 0
    while at < len(data):
        colon = data.find(b":", at, at + 20)
        if colon < 0 or not data[at:colon].isdigit():
            raise ProtocolError("a pushed job cannot be read")
        size = int(data[at:colon])
        parts.append(data[colon + 1 : colon + 1 + size])
        at = colon + 1 + size
    if not parts or len(parts) % PUSHED_PARTS:
        raise ProtocolError(f"a push has {len(parts)} parts, not {PUSHED_PARTS} for each job")
    jobs = [parts[start : start + PUSHED_PARTS] for start in range(0, len(parts), PUSHED_PARTS)]
    for shard, key, token, attempts, suspect, left, ready, _ in jobs:
        if not _is_number(shard) or int(shard) >= shards or not 1 <= len(key) <= KEY_BYTES_MAX:
            raise ProtocolError("a pushed job has a key or a shard that the queue cannot have")
        version, point, counter = token.partition(b".")
        is_token = point and _are_digits(version) and _are_digits(counter)
        if not (is_token and _is_number(attempts) and _is_number(suspect) and _is_number(left) and _is_number(ready)):
            raise ProtocolError("a pushed job has invalid numbers")
    return jobs


def _are_digits(word: bytes) -> bool:
    return word.isdigit() and len(word) <= DIGITS_MAX


def _is_number(word: bytes) -> bool:
    """Whether a word is a number as the scripts write it: without a leading zero."""
    return _are_digits(word) and (len(word) == 1 or not word.startswith(b"0"))


def put_us_of(begin: bytes) -> int | None:
    """When a message was put, from its first bytes (number and id need at most 300); None if they are too few, or of no
    message."""
    try:
        data = memoryview(begin)
        at = 1
        for _ in range(2):
            size = {0xC4: 1, 0xC5: 2, 0xC6: 4}[data[at]]
            at += 1 + size + int.from_bytes(data[at + 1 : at + 1 + size], "big")
        if data[at] < 0x80:
            return data[at]
        size = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}[data[at]]
        digits = bytes(data[at + 1 : at + 1 + size])
        return int.from_bytes(digits, "big") if len(digits) == size else None
    except (KeyError, IndexError):
        return None
