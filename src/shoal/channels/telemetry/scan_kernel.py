"""The compiled walk over the bytes of the observing connection.

Owns how frames are told apart, skipped and counted, one after the other, without a Python object. The
tables and their bounds belong to `tables`, the buffer and everything that Python sees to `scanner`. Never
touches a socket.

A frame is one of four:

    observed   a `pmessage` of the pattern `*` on an application's channel: counted here
    watched    one of those on a channel that is watched: counted, and the walk stops there as well
    internal   the same on a client's inbox: its bytes are counted, nothing else
    other      anything else: the walk finds its end and stops there, so that Python sees it at exactly
               this point of the server's order
"""

from __future__ import annotations

from typing import Final

import numpy as np

from shoal.channels.telemetry.tables import NO_ROOM, REFUSED, Tables, borrow_tables, enter_channel, note_stream
from shoal.wire.envelope import (
    BEACON,
    ENDED,
    FINAL,
    FOREIGN,
    FORWARDED,
    HEADER,
    INBOX_PREFIX,
    KNOWN_FLAGS,
    MAGIC,
    RESERVED_PREFIX,
)
from shoal.wire.raw_bytes import (
    MALFORMED,
    NEED_MORE,
    Bytes,
    Records,
    borrow,
    is_line_end,
    kernel,
    load_u64,
    part,
    read_length,
)

PASSED: Final = -1
USED_UP: Final = 0
OTHER: Final = 1
GROW: Final = 2
BAD_LENGTH: Final = 3
BAD_TYPE: Final = 4
BAD_END: Final = 5
TOO_LARGE: Final = 6
WATCHED: Final = 7

CURSOR: Final = np.dtype(
    [
        (name, np.int64)
        for name in (
            "at",  # where the next frame begins
            "end",  # where the bytes that have come end
            "frame_end",  # of a frame at which the walk stopped
            "name_at",  # of a watched frame
            "name_end",
            "payload_at",
            "walk_at",  # how far into an unfinished frame of the last kind the walk is
            "walk_left",  # how many values of it are still to come; 0 when no such frame is open
            "frame_bytes_max",
        )
    ]
)
LINE_BYTES_MAX: Final = 65536
VALUE_BYTES_MIN: Final = 3
"""The shortest RESP value is `_` CR LF."""

OBSERVED: Final = b">4\r\n$8\r\npmessage\r\n$1\r\n*\r\n$"
"""How every observed frame begins; the length of the channel's name follows."""
OBSERVED_BYTES: Final = len(OBSERVED)
_OBSERVED: Final = np.frombuffer(OBSERVED, np.uint8)
_WORD_0, _WORD_8, _WORD_16 = np.frombuffer(OBSERVED, np.uint64, 3)
_WORD_18: Final = np.frombuffer(OBSERVED, np.uint64, 1, OBSERVED_BYTES - 8)[0]

_RESERVED_BYTES: Final = len(RESERVED_PREFIX)
_RESERVED: Final = np.frombuffer(RESERVED_PREFIX, np.uint64, 1)[0]
_INBOX_BYTES: Final = len(INBOX_PREFIX)
_INBOX_TAIL: Final = np.frombuffer(INBOX_PREFIX, np.uint64, 1, _INBOX_BYTES - 8)[0]

_MAGIC: Final = np.uint64(MAGIC)
_LOW_16: Final = np.uint64(0xFFFF)
_HEADER_BYTES: Final = HEADER.size
_BEACON_BYTES: Final = HEADER.size + 8
_ENDED: Final = np.uint64(ENDED)
_FLAGS_AT: Final = 2
_STREAM_AT: Final = 7
_SEQUENCE_AT: Final = 15
_VERSION_SHIFT: Final = np.uint64(24)
_LOW_32: Final = np.uint64(0xFFFFFFFF)
_UNKNOWN_FLAGS: Final = 0xFF & ~KNOWN_FLAGS

_LINE: Final = 1
_BULK: Final = 2
_ARRAY: Final = 3
_MAP: Final = 4
_KINDS: Final = np.zeros(256, np.uint8)
_KINDS[list(b"+-:_#,(")] = _LINE
_KINDS[list(b"$=")] = _BULK
_KINDS[list(b"*~>")] = _ARRAY
_KINDS[list(b"%")] = _MAP
_DOLLAR: Final = 36
_CR: Final = 13
_LF: Final = 10


@kernel
def scan_frames(data: Bytes, cursors: Records, tables: Tables) -> int:
    """Walks on until something stops it; says what: `USED_UP`, `OTHER`, `WATCHED`, `GROW` or a fault."""
    data = borrow(data)
    tables = borrow_tables(tables)
    cursor = borrow(cursors)[0]
    status = PASSED
    while status == PASSED:
        if cursor.walk_left == 0 and may_be_observed(data, cursor.at, cursor.end):
            status = take_observed(data, cursor, tables)
        else:
            if cursor.walk_left == 0:
                cursor.walk_at = cursor.at
                cursor.walk_left = 1
            status = walk_other(data, cursor)
    return status


@part
def may_be_observed(data: Bytes, at: int, end: int) -> bool:
    """Whether the bytes begin an observed frame, as far as they have come."""
    if end - at >= OBSERVED_BYTES:
        return bool(
            load_u64(data, at) == _WORD_0
            and load_u64(data, at + 8) == _WORD_8
            and load_u64(data, at + 16) == _WORD_16
            and load_u64(data, at + OBSERVED_BYTES - 8) == _WORD_18
        )
    for offset in range(end - at):  # noqa: SIM110 (numba knows no generator in all())
        if data[at + offset] != _OBSERVED[offset]:
            return False
    return True


@part
def take_observed(data: Bytes, cursor: Records, tables: Tables) -> int:
    """One observed or internal frame. Changes nothing unless it could take all of it."""
    start = cursor.at
    end = cursor.end
    if end - start < OBSERVED_BYTES:
        return USED_UP
    name_bytes, name_at = read_length(data, start + OBSERVED_BYTES, end)
    if name_bytes < 0:
        return USED_UP if name_bytes == NEED_MORE else BAD_LENGTH
    name_end = name_at + name_bytes
    if name_end - start > cursor.frame_bytes_max:
        return TOO_LARGE
    if name_end + 3 > end:
        return USED_UP
    if not is_line_end(data, name_end) or data[name_end + 2] != _DOLLAR:
        return BAD_END
    payload_bytes, payload_at = read_length(data, name_end + 3, end)
    if payload_bytes < 0:
        return USED_UP if payload_bytes == NEED_MORE else BAD_LENGTH
    frame_end = payload_at + payload_bytes + 2
    if frame_end - start > cursor.frame_bytes_max:
        return TOO_LARGE
    if frame_end > end:
        return USED_UP
    if not is_line_end(data, frame_end - 2):
        return BAD_END
    if name_bytes >= _RESERVED_BYTES and load_u64(data, name_at) == _RESERVED:
        if name_bytes < _INBOX_BYTES or load_u64(data, name_at + _INBOX_BYTES - 8) != _INBOX_TAIL:
            cursor.frame_end = frame_end
            return OTHER
        tables.head[0].internal += 1
        tables.head[0].internal_bytes += frame_end - start
    else:
        status = count(data, tables, name_at, name_bytes, payload_at, payload_bytes, frame_end - start)
        if status != PASSED:
            cursor.name_at = name_at
            cursor.name_end = name_end
            cursor.payload_at = payload_at
            cursor.frame_end = frame_end
            return status
    cursor.at = frame_end
    return PASSED


@part
def count(
    data: Bytes,
    tables: Tables,
    name_at: int,
    name_bytes: int,
    payload_at: int,
    payload_bytes: int,
    frame_bytes: int,
) -> int:
    """Counts one observed frame: `PASSED` or, if Python has to see it, `WATCHED`. `GROW`, and nothing counted, when a
    table has to grow first."""
    head = tables.head[0]
    index = enter_channel(tables, data, name_at, name_bytes)
    if index == NO_ROOM:
        return GROW
    if index == REFUSED:
        head.uncounted += 1
        head.uncounted_bytes += frame_bytes
        return WATCHED if head.watch_new else PASSED
    ours = (
        payload_bytes >= _HEADER_BYTES
        and (load_u64(data, payload_at) & _LOW_16) == _MAGIC
        and (data[payload_at + _FLAGS_AT] & _UNKNOWN_FLAGS) == 0
    )
    flags = np.int64(data[payload_at + _FLAGS_AT]) if ours else 0
    beacon = (flags & BEACON) != 0
    if ours and (flags & FOREIGN) == 0 and (not beacon or payload_bytes == _BEACON_BYTES):
        stream = load_u64(data, payload_at + _STREAM_AT)
        sequence = load_u64(data, payload_at + _SEQUENCE_AT)
        if beacon and flags & FINAL:
            sequence |= _ENDED
        if note_stream(tables, index, stream, sequence, (flags & (BEACON | FORWARDED)) == 0) == NO_ROOM:
            return GROW
    channel = tables.channels[index]
    if channel.unit != head.unit:
        channel.unit = head.unit
        tables.active_channels[head.active_channels] = index
        head.active_channels += 1
    channel.second = max(channel.second, head.second)
    channel.bytes_in += payload_bytes
    channel.frame_bytes += frame_bytes
    if beacon:
        channel.beacons += 1
    elif flags & FORWARDED:
        channel.forwarded += 1
    else:
        channel.publications += 1
        channel.foreign += not ours
    if not channel.watched:
        return PASSED
    version = np.int64((load_u64(data, payload_at) >> _VERSION_SHIFT) & _LOW_32)
    return PASSED if ours and version == channel.but_version else WATCHED


@part
def walk_other(data: Bytes, cursor: Records) -> int:
    """Finds the end of a frame of any shape, going on from where the bytes ended the last time."""
    at = cursor.walk_at
    left = cursor.walk_left
    while left > 0 and at < cursor.end:
        kind = _KINDS[data[at]]
        if kind == 0:
            return BAD_TYPE
        if kind == _LINE:
            following = line_end(data, at + 1, cursor.end)
            size = min(following, 0)
        else:
            size, following = read_length(data, at + 1, cursor.end)
        if size == NEED_MORE:
            break
        if size == MALFORMED:
            return BAD_LENGTH
        if following - cursor.at + size > cursor.frame_bytes_max:
            return TOO_LARGE
        if kind == _BULK and size >= 0:
            following += size + 2
            if following > cursor.end:
                break
            if not is_line_end(data, following - 2):
                return BAD_END
        elif kind == _ARRAY:
            left += max(size, 0)
        elif kind == _MAP:
            left += 2 * max(size, 0)
        left -= 1
        at = following
        if at - cursor.at + VALUE_BYTES_MIN * left > cursor.frame_bytes_max:
            return TOO_LARGE
    cursor.walk_at = at
    cursor.walk_left = left
    if left > 0:
        return USED_UP
    cursor.frame_end = at
    return OTHER


@part
def line_end(data: Bytes, start: int, end: int) -> int:
    """Where the byte behind CR LF stands, or `NEED_MORE`, or `MALFORMED` (too long, or CR or LF alone)."""
    for at in range(start, min(end, start + LINE_BYTES_MAX)):
        if data[at] == _LF:
            return MALFORMED
        if data[at] == _CR:
            if at + 1 >= end:
                return NEED_MORE
            return at + 2 if data[at + 1] == _LF else MALFORMED
    return NEED_MORE if end < start + LINE_BYTES_MAX else MALFORMED
