"""RESP bytes of model servers, and of the simulator's plain clients.

Owns: how replies and pushes are encoded and how commands are read. Never touches: what they mean.
Shipped code does its own encoding and parsing.
"""

from typing import Any

from hiredis import PushNotification, Reader


def encode_frame(frame: Any) -> bytes:
    """A frame as a RESP3 server writes it."""
    kind = type(frame)
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
    """Reads commands or frames from a byte stream that arrives in pieces of any size."""

    __slots__ = ("_reader",)

    def __init__(self) -> None:
        self._reader = Reader()

    def read(self, data: bytes) -> list[Any]:
        """The commands or frames that are complete now."""
        reader = self._reader
        reader.feed(data)
        found: list[Any] = []
        frame = reader.gets()
        while frame is not False:
            found.append(frame)
            frame = reader.gets()
        return found
