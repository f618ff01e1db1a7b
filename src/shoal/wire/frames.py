"""From the bytes of a server to frames: pushes and replies, in the order in which they came.

Owns the hiredis reader and the bound on what an unfinished frame may hold. Never touches a socket.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import hiredis

from shoal.errors import ProtocolError

_NOTHING: Final = object()
"""What the reader answers when it needs more bytes. Its default, False, is also a RESP3 value."""


class FrameReader:
    """Turns what arrives on one connection into frames.

    A frame is what hiredis makes of it under RESP3: a push is a `hiredis.PushNotification` (a list), an
    error reply a `hiredis.ReplyError`, everything else a plain reply.

    hiredis is fed slices of `read_slice_bytes`, because its cost for a frame grows with what lies unread
    behind it (it moves the rest to the front): a frame of 1 KB costs 0.4 us in slices of 16 KB, 0.7 us in
    64 KB and 2 us in 256 KB.
    """

    __slots__ = ("_frame_bytes_max", "_read_slice_bytes", "_reader", "_unfinished_bytes")

    def __init__(self, *, frame_bytes_max: int, read_slice_bytes: int = 16384) -> None:
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)
        self._frame_bytes_max = frame_bytes_max
        self._read_slice_bytes = read_slice_bytes
        self._unfinished_bytes = 0

    def read(self, data: bytes | bytearray, size: int | None = None) -> Iterator[list[Any]]:
        """The frames that `data`, or its first `size` bytes, completes, a list for each slice that completes any.

        Raises `ProtocolError` after the last good frame when what follows is no RESP3, or when a frame
        grows above `frame_bytes_max` (to within one slice). The reader is of no use afterwards.
        """
        reader = self._reader
        slice_bytes = self._read_slice_bytes
        if size is None:
            size = len(data)
        for offset in range(0, size, slice_bytes):
            length = min(slice_bytes, size - offset)
            frames: list[Any] = []
            try:
                reader.feed(data, offset, length)  # type: ignore[arg-type]  # it takes any buffer
                frames.extend(iter(reader.gets, _NOTHING))
            except (hiredis.ProtocolError, MemoryError, TypeError) as error:
                # MemoryError: an array of absurd length. TypeError: a map whose key is a list.
                if frames:
                    yield frames
                raise ProtocolError(f"this is no RESP3: {str(error) or type(error).__name__}") from error
            if frames:
                self._unfinished_bytes = 0
                yield frames
            else:
                self._unfinished_bytes += length
                if self._unfinished_bytes > self._frame_bytes_max:
                    raise ProtocolError(
                        f"a frame of more than {self._frame_bytes_max} bytes arrived",
                        do="raise frame_bytes_max if messages or values of this size are meant to be",
                    )
