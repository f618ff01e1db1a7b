"""RESP bytes of the model servers and of the simulator's plain clients.

Owns: how replies and pushes look on the wire, and how commands are read from it. Never touches: what they mean.
Shipped code does its own encoding and parsing.
"""

from functools import lru_cache
from typing import Any

from hiredis import PushNotification, Reader


class Push(PushNotification):
    """A push that goes to many clients: its bytes are made once."""

    wire: bytes | None = None


@lru_cache(maxsize=65_536)
def _bulk_overhead(length: int) -> int:
    """`$`, the length, two line ends."""
    return 5 + len(str(length))


def bulk_size(value: bytes) -> int:
    """Bytes of one bulk string."""
    length = len(value)
    return length + _bulk_overhead(length)


def item_size(item: Any) -> int:
    """Bytes of a command (a tuple of bytes) or of a frame that a server sends."""
    if isinstance(item, bytes):
        return bulk_size(item)
    if isinstance(item, (tuple, list)):
        return 3 + len(str(len(item))) + sum(map(item_size, item))
    if isinstance(item, dict):
        return 3 + len(str(len(item))) + sum(map(item_size, item)) + sum(map(item_size, item.values()))
    if item is None:
        return 3
    return 3 + len(str(item))


def encode_frame(frame: Any) -> bytes:
    """A frame as a RESP3 server writes it."""
    kind = type(frame)
    if kind is Push:
        wire: bytes | None = frame.wire
        if wire is None:
            wire = frame.wire = b">%d\r\n%b" % (len(frame), b"".join(map(encode_frame, frame)))
        return wire
    if kind is bytes:
        return b"$%d\r\n%b\r\n" % (len(frame), frame)
    if kind is int:
        return b":%d\r\n" % frame
    if kind is str:
        return b"+%b\r\n" % frame.encode()
    if frame is None:
        return b"_\r\n"
    if isinstance(frame, Exception):
        return b"-%b\r\n" % str(frame).encode()
    if kind is dict:
        pairs = b"".join(encode_frame(key) + encode_frame(value) for key, value in frame.items())
        return b"%%%d\r\n%b" % (len(frame), pairs)
    mark = b">" if isinstance(frame, PushNotification) else b"*"
    return b"%b%d\r\n%b" % (mark, len(frame), b"".join(map(encode_frame, frame)))


class CommandReader:
    """Reads commands, or frames, from a stream of bytes that comes in any pieces."""

    __slots__ = ("_reader",)

    def __init__(self) -> None:
        self._reader = Reader()

    def read(self, data: bytes) -> list[Any]:
        """What is complete now."""
        reader = self._reader
        reader.feed(data)
        found: list[Any] = []
        frame = reader.gets()
        while frame is not False:
            found.append(frame)
            frame = reader.gets()
        return found
