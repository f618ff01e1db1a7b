"""Decodes the bytes from a server into frames: pushes and replies, in wire order.

Owns the hiredis reader and the limit on the size of a frame. It never touches a socket.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import hiredis

from shoal.errors import ProtocolError

_NOTHING: Final = object()
"""The reader's result when it needs more bytes. Its default, False, is also a RESP3 value."""


class FrameReader:
    """Decodes the frames of one connection.

    Frames are decoded by hiredis under RESP3: a push is a `hiredis.PushNotification` (a list), an error reply a
    `hiredis.ReplyError`, everything else a plain reply.

    hiredis gets slices of `read_slice_bytes`, because after each frame it moves the unread rest to the front. A frame
    of 1 KB costs 0.4 us in slices of 16 KB, 0.7 us in 64 KB and 2 us in 256 KB.
    """

    __slots__ = ("_frame_bytes_max", "_read_slice_bytes", "_reader", "_unfinished_bytes")

    def __init__(self, *, frame_bytes_max: int, read_slice_bytes: int = 16384) -> None:
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)
        self._frame_bytes_max = frame_bytes_max
        self._read_slice_bytes = read_slice_bytes
        self._unfinished_bytes = 0

    def read(self, data: bytes | bytearray, size: int | None = None) -> Iterator[list[Any]]:
        """Yield the frames completed by `data`, or by its first `size` bytes, in one list per slice that completes any.

        Raises `ProtocolError` after the last valid frame if the following bytes are not RESP3, or if a frame is larger
        than `frame_bytes_max` (to within one slice). The reader cannot be used afterwards.
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
                raise ProtocolError(f"the server sent no RESP3: {str(error) or type(error).__name__}") from error
            if frames:
                self._unfinished_bytes = 0
                yield frames
            else:
                self._unfinished_bytes += length
                if self._unfinished_bytes > self._frame_bytes_max:
                    raise ProtocolError(
                        f"a frame of more than {self._frame_bytes_max} bytes arrived",
                        do="raise frame_bytes_max if messages or values of this size are intended",
                    )
