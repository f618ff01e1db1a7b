"""The compiled scan of the bytes of the observing connection.

Owns how frames are recognized, skipped and counted without making Python objects. The tables and their bounds belong to
`tables`, the buffer and the results for Python to `scanner`. Never touches a socket.

There are four kinds of frames:

    observed   a `pmessage` of the pattern `*` on an application's channel: counted here
    watched    the same on a watched channel: counted, and the scan stops there
    internal   the same on a client's inbox or peer channel: only its bytes are counted
    other      anything else: the scan finds its end and stops there, so that Python sees the frame at this point of the
               server's order
"""

from __future__ import annotations

from typing import Final

import numpy as np

from shoal.channels.telemetry.lane_check import FALSE, FRESH, UNKNOWN_LANE, take_number
from shoal.channels.telemetry.tables import NO_ROOM, REFUSED, Tables, borrow_tables, enter_channel
from shoal.wire.envelope import (
    BEACON,
    FOREIGN,
    FORWARDED,
    HEADER,
    HEADER_1,
    INBOX_PREFIX,
    MAGIC,
    MAGIC_1,
    PEER_PREFIX,
    RESERVED_PREFIX,
    UNKNOWN_FLAGS,
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
LANE: Final = 8

CURSOR: Final = np.dtype(
    [
        (name, np.int64)
        for name in (
            "at",  # where the next frame begins
            "end",  # where the received bytes end
            "frame_end",  # of the frame at which the scan stopped
            "name_at",  # of a watched frame
            "name_end",
            "payload_at",
            "standing",  # see `lane_check`
            "lane_of",  # the message whose lane `find_lane` has looked for, by its payload_at; or `NO_LANE`
            "lane_found",  # whether it is authentic; then the state of its lane
            *("k0", "k1", "k2", "k3"),
            "mark",  # and its mark, see `lane_tag.mark_of`
            "walk_at",  # how far an unfinished frame of the last kind has been scanned
            "walk_left",  # number of its values that have not come; 0 if no such frame is open
            "frame_bytes_max",
        )
    ]
)
NO_LANE: Final = -1
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
_PEER_BYTES: Final = len(PEER_PREFIX)
_PEER_TAIL: Final = np.frombuffer(PEER_PREFIX, np.uint64, 1, _PEER_BYTES - 8)[0]

_MAGIC: Final = np.uint64(MAGIC)
_MAGIC_1: Final = np.uint64(MAGIC_1)
_LOW_16: Final = np.uint64(0xFFFF)
_HEADER_BYTES: Final = HEADER.size
_HEADER_1_BYTES: Final = HEADER_1.size
_SETTLED_BYTES: Final = 8
_FLAGS_AT: Final = 2
_EXTENSION_AT: Final = 3
_VERSION_SHIFT: Final = np.uint64(32)
_UNKNOWN_FLAGS: Final = UNKNOWN_FLAGS

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
    """Scans until something stops it; returns the reason: `USED_UP`, `OTHER`, `WATCHED`, `GROW`, `LANE` or a
    fault."""
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
    """Whether the bytes received so far begin an observed frame."""
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
    """Takes one observed or internal frame. Changes nothing unless the frame is complete."""
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
        inbox = name_bytes >= _INBOX_BYTES and load_u64(data, name_at + _INBOX_BYTES - 8) == _INBOX_TAIL
        peer = name_bytes >= _PEER_BYTES and load_u64(data, name_at + _PEER_BYTES - 8) == _PEER_TAIL
        if not (inbox or peer):
            cursor.frame_end = frame_end
            return OTHER
        tables.head[0].internal += 1
        tables.head[0].internal_bytes += frame_end - start
    else:
        status = count(data, cursor, tables, name_at, name_bytes, payload_at, payload_bytes, frame_end - start)
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
    cursor: Records,
    tables: Tables,
    name_at: int,
    name_bytes: int,
    payload_at: int,
    payload_bytes: int,
    frame_bytes: int,
) -> int:
    """Counts one observed frame. Returns `PASSED`, or `WATCHED` if Python has to see it; or, and then nothing has been
    counted, `GROW` if a table has to grow first, or `LANE` if the key of its publisher has to be found."""
    head = tables.head[0]
    index = enter_channel(tables, data, name_at, name_bytes)
    if index == NO_ROOM:
        return GROW
    first = load_u64(data, payload_at)
    body = payload_bytes - _HEADER_BYTES - 8 * np.int64(data[payload_at + _EXTENSION_AT])
    ours = payload_bytes >= _HEADER_BYTES and (first & _LOW_16) == _MAGIC and body >= 0
    flags = np.int64(data[payload_at + _FLAGS_AT]) if ours else 0
    beacon = (flags & BEACON) != 0
    numbered = ours and (flags & FOREIGN) == 0 and (not beacon or body == _SETTLED_BYTES)
    cursor.standing = FRESH if numbered or not ours or flags & FOREIGN or not head.secrets else FALSE
    if index == REFUSED:
        head.uncounted += 1
        head.uncounted_bytes += frame_bytes
        if not head.watch_new:
            return PASSED
        if numbered and head.secrets:
            if cursor.lane_of != payload_at:
                head.uncounted -= 1
                head.uncounted_bytes -= frame_bytes
                return LANE
            cursor.standing = FRESH if cursor.lane_found else FALSE
        return WATCHED
    if numbered and (head.secrets or not flags & _UNKNOWN_FLAGS):
        cursor.standing = take_number(tables, cursor, index, data, payload_at)
        if cursor.standing == NO_ROOM:
            return GROW
        if cursor.standing == UNKNOWN_LANE:
            return LANE
    if not ours:
        head.envelopes_1 += payload_bytes >= _HEADER_1_BYTES and (first & _LOW_16) == _MAGIC_1
    elif flags & _UNKNOWN_FLAGS:
        head.unknown_flags += 1
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
    version = np.int64(first >> _VERSION_SHIFT)
    return PASSED if ours and version == channel.but_version else WATCHED


@part
def walk_other(data: Bytes, cursor: Records) -> int:
    """Finds the end of a frame of any type, continuing where the bytes ended the last time."""
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
    """The position behind CR LF, or `NEED_MORE`, or `MALFORMED` (too long, or CR or LF alone)."""
    for at in range(start, min(end, start + LINE_BYTES_MAX)):
        if data[at] == _LF:
            return MALFORMED
        if data[at] == _CR:
            if at + 1 >= end:
                return NEED_MORE
            return at + 2 if data[at + 1] == _LF else MALFORMED
    return NEED_MORE if end < start + LINE_BYTES_MAX else MALFORMED
