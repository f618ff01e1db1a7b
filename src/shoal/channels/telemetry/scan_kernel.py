"""The compiled scan of the bytes of the observing connection.

Owns how frames are recognized, skipped and counted without making Python objects. The tables and their bounds belong to
`tables`, the buffer and the results for Python to `scanner`. Never touches a socket.

There are four kinds of frames:

    observed   a `pmessage` of the pattern `*` on an application's channel: counted here
    watched    the same on a watched channel, or on the agents' channel: the scan stops there
    internal   the same on any other channel of ours: only its bytes are counted
    other      anything else: the scan finds its end and stops there, so that Python sees the frame at this point of the
               server's order

Any client can make observed frames large or many, so both have limits here. Of a frame above `observed_bytes_max` only
the beginning is looked at: the message is counted, its bytes are skipped as they come, and if Python should have seen
it, the channel's listing is incomplete. Python sees a control message to agents if the client that it names has a token
left in the meter and `control_left` is not used up; the others, and those above `TO_AGENT_BYTES_MAX`, are counted and
passed over. Python takes the token when it has authenticated the message. Messages on channels that are new, and
watched only for that reason, are metered too, by the client whose tag they have; false ones are not returned.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from shoal.channels.telemetry.lane_check import FALSE, FRESH, UNKNOWN_LANE, find_lane, take_number
from shoal.channels.telemetry.tables import (
    METERED,
    NO_ROOM,
    REFUSED,
    Tables,
    enter_channel,
    find_channel,
)
from shoal.wire.control import CLIENT_AT, HEAD_BYTES, NUMBER_AT, TO_AGENT_BYTES_MAX
from shoal.wire.envelope import (
    AGENT_CHANNEL,
    BEACON,
    EPOCH_BITS,
    FOREIGN,
    FORWARDED,
    HEADER,
    HEADER_1,
    MAGIC,
    MAGIC_1,
    RESERVED_PREFIX,
    UNKNOWN_FLAGS,
)
from shoal.wire.loop_source import (
    MALFORMED,
    NEED_MORE,
    Bytes,
    Records,
    hash_pair,
    hash_words,
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
            "observed_bytes_max",
            "skip_left",  # bytes of a frame above observed_bytes_max that are still to be skipped
            "skip_strings",  # number of its strings after those, each with its length before it
            "control_left",  # control messages that Python may still see
        )
    ]
)
NO_LANE: Final = -1

METER: Final = np.dtype(
    [
        ("tokens", np.int64),  # control messages that clients of this row may still send; `ControlMeter` takes them
        ("lookups", np.int64),  # messages on new channels of theirs that Python may still see
        ("client", np.uint64),  # sender and number of the last one that was passed over; 0 if there is none
        ("number", np.uint64),
    ]
)
METER_ROWS: Final = 4096
"""Clients share a row by a secret hash, so a client rarely shares that of another, and cannot choose to."""

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
_AGENT_BYTES: Final = len(AGENT_CHANNEL)
_AGENT_TAIL: Final = np.frombuffer(AGENT_CHANNEL, np.uint64, 1, _AGENT_BYTES - 8)[0]

_NO_CLIENT: Final = np.uint64(0)
_MAGIC: Final = np.uint64(MAGIC)
_MAGIC_1: Final = np.uint64(MAGIC_1)
_LOW_16: Final = np.uint64(0xFFFF)
_HEADER_BYTES: Final = HEADER.size
_HEADER_1_BYTES: Final = HEADER_1.size
_SETTLED_BYTES: Final = 8
_COUNTED_BYTES: Final = _HEADER_BYTES + 8 * 255 + _SETTLED_BYTES
"""The first bytes of a payload, which are all that `count` looks at: header, extension, and a beacon's number."""
_FLAGS_AT: Final = 2
_EXTENSION_AT: Final = 3
_VERSION_SHIFT: Final = np.uint64(32)
_STREAM_AT: Final = 8
_EPOCH_BITS: Final = np.uint64(EPOCH_BITS)
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
def scan_frames(data: Bytes, cursors: Records, tables: Tables, meter: Records) -> int:
    """Scans until something stops it; returns the reason: `USED_UP`, `OTHER`, `WATCHED`, `GROW` or a fault."""
    cursor = cursors[0]
    status = PASSED
    while status == PASSED:
        if cursor.skip_left > 0 or cursor.skip_strings > 0:
            status = skip(data, cursor)
        elif cursor.walk_left == 0 and may_be_observed(data, cursor.at, cursor.end):
            status = take_observed(data, cursor, tables, meter)
            if status == LANE:
                find_lane(data, cursors, tables)
                status = PASSED
        else:
            if cursor.walk_left == 0:
                cursor.walk_at = cursor.at
                cursor.walk_left = 1
            status = walk_other(data, cursor)
    return status


@part
def skip(data: Bytes, cursor: Records) -> int:
    """Passes over bytes of a frame that is too large."""
    if cursor.skip_left == 0:
        size, following = read_length(data, cursor.at + 1, cursor.end)
        if size == NEED_MORE:
            return USED_UP
        if size == MALFORMED or data[cursor.at] != _DOLLAR:
            return BAD_LENGTH
        cursor.skip_strings -= 1
        cursor.skip_left = following - cursor.at + size + 2
    taken = min(cursor.skip_left, cursor.end - cursor.at)
    cursor.at += taken
    cursor.skip_left -= taken
    return USED_UP if cursor.skip_left > 0 else PASSED


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
def take_observed(data: Bytes, cursor: Records, tables: Tables, meter: Records) -> int:
    """Takes one observed or internal frame. Changes nothing unless the frame is complete."""
    start = cursor.at
    end = cursor.end
    if end - start < OBSERVED_BYTES:
        return USED_UP
    name_bytes, name_at = read_length(data, start + OBSERVED_BYTES, end)
    if name_bytes < 0:
        return USED_UP if name_bytes == NEED_MORE else BAD_LENGTH
    name_end = name_at + name_bytes
    if name_end - start > cursor.observed_bytes_max:
        tables.head[0].oversized += 1
        tables.head[0].uncounted += 1
        tables.head[0].uncounted_bytes += name_end - start
        cursor.skip_left = name_end + 2 - start
        cursor.skip_strings = 1
        return PASSED
    if name_end + 3 > end:
        return USED_UP
    if not is_line_end(data, name_end) or data[name_end + 2] != _DOLLAR:
        return BAD_END
    payload_bytes, payload_at = read_length(data, name_end + 3, end)
    if payload_bytes < 0:
        return USED_UP if payload_bytes == NEED_MORE else BAD_LENGTH
    frame_end = payload_at + payload_bytes + 2
    oversized = frame_end - start > cursor.observed_bytes_max
    if frame_end > end and not (oversized and payload_at + _COUNTED_BYTES <= end):
        return USED_UP
    if not oversized and not is_line_end(data, frame_end - 2):
        return BAD_END
    if name_bytes >= _RESERVED_BYTES and load_u64(data, name_at) == _RESERVED:
        status = take_internal(data, cursor, tables, meter, name_at, name_bytes, payload_at, payload_bytes, start)
    else:
        status = count(data, cursor, tables, meter, name_at, name_bytes, payload_at, payload_bytes, frame_end - start)
        if status == WATCHED and oversized:
            status = PASSED
            if cursor.standing != FALSE:
                mark_incomplete(data, tables, name_at, name_bytes)
    if status != PASSED:
        cursor.name_at = name_at
        cursor.name_end = name_end
        cursor.payload_at = payload_at
        cursor.frame_end = frame_end
        return status
    if oversized:
        tables.head[0].oversized += 1
        cursor.skip_left = frame_end - start
    else:
        cursor.at = frame_end
    return PASSED


@part
def take_internal(
    data: Bytes,
    cursor: Records,
    tables: Tables,
    meter: Records,
    name_at: int,
    name_bytes: int,
    payload_at: int,
    payload_bytes: int,
    start: int,
) -> int:
    """Takes one frame on a channel of ours. Returns `WATCHED` if Python has to see it."""
    head = tables.head[0]
    frame_bytes = payload_at + payload_bytes + 2 - start
    to_agent = name_bytes == _AGENT_BYTES and load_u64(data, name_at + _AGENT_BYTES - 8) == _AGENT_TAIL
    if to_agent and payload_bytes <= TO_AGENT_BYTES_MAX and frame_bytes <= cursor.observed_bytes_max:
        client = load_u64(data, payload_at + CLIENT_AT) if payload_bytes >= HEAD_BYTES else _NO_CLIENT
        row = meter[meter_row(head.seed, client)]
        if row.tokens > 0 and cursor.control_left > 0:
            cursor.control_left -= 1
            return WATCHED
        head.control_unread += 1
        if row.tokens <= 0 or not head.secrets:  # if not, anyone could have a client told to wait
            row.client = client
            row.number = load_u64(data, payload_at + NUMBER_AT) if client != _NO_CLIENT else _NO_CLIENT
    head.internal += 1
    head.internal_bytes += frame_bytes
    return PASSED


@part
def meter_row(seed: np.uint64, client: np.uint64) -> int:
    """The row of a client in the meter."""
    return int(hash_pair(seed, client) % np.uint64(METER_ROWS))


@kernel
def find_meter_row(seed: np.uint64, client: np.uint64) -> int:
    """`meter_row`, for Python."""
    return meter_row(seed, client)


@part
def mark_incomplete(data: Bytes, tables: Tables, name_at: int, name_bytes: int) -> None:
    """Python did not see a message of a watched channel: its listing is incomplete for a while."""
    head = tables.head[0]
    index = find_channel(tables, data, name_at, name_bytes, hash_words(data, name_at, name_bytes, head.seed))
    if index >= 0:
        tables.channels[index].refused_tick = head.tick
    else:
        head.refused_tick = head.tick


@part
def count(
    data: Bytes,
    cursor: Records,
    tables: Tables,
    meter: Records,
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
    client = load_u64(data, payload_at + _STREAM_AT) >> _EPOCH_BITS if numbered else _NO_CLIENT
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
        return look_up(head, cursor, meter, client) if head.watch_new == METERED else WATCHED
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
    channel.tick = max(channel.tick, head.tick)
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
    if ours and version == channel.but_version:
        return PASSED
    return look_up(head, cursor, meter, client) if channel.watched == METERED else WATCHED


@part
def look_up(head: Records, cursor: Records, meter: Records, client: np.uint64) -> int:
    """Whether Python sees a message on a new channel: `WATCHED`, or `PASSED` if the client begins too many, or if it is
    not the client's."""
    if cursor.standing == FALSE:
        return PASSED
    row = meter[meter_row(head.seed, client)]
    if row.lookups <= 0:
        head.not_looked_up += 1
        return PASSED
    row.lookups -= 1
    return WATCHED


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
