"""Compiled queries on the scanner's tables, and the removal of idle entries.

Owns the loops that read the tables in bulk (names, streams of a channel, indexes of many channels) and the one that
compacts them. The layout belongs to `tables`. Never touches a socket or a clock.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from shoal.channels.telemetry.pattern_kernel import match_name
from shoal.channels.telemetry.tables import (
    MISSING,
    NEVER,
    UNTOLD_LAST,
    Indexes,
    Tables,
    fill_slots,
    find_channel,
    find_stream,
)
from shoal.wire.raw_bytes import Bytes, hash_words, kernel, part

_UNTOLD_LAST: Final = np.uint64(UNTOLD_LAST)


@kernel
def find_channels(tables: Tables, names: Bytes, offsets: Indexes) -> Indexes:
    """The index of each channel, `MISSING` for unknown ones."""
    found = np.empty(offsets.shape[0] - 1, np.int32)
    for row in range(found.shape[0]):
        at = offsets[row]
        size = offsets[row + 1] - at
        found[row] = find_channel(tables, names, at, size, hash_words(names, at, size, tables.head[0].seed))
    return found


@kernel
def match_channels(tables: Tables, pattern: Bytes, steps_max: int) -> tuple[npt.NDArray[np.bool_], int, bool]:
    """Whether the pattern matches the name of each channel; the rest as of `match_names`. Names are not copied."""
    matches = np.zeros(tables.head[0].channels, np.bool_)
    steps = 0
    for index in range(matches.shape[0]):
        if steps > steps_max:
            return matches, steps, False
        channel = tables.channels[index]
        found, taken = match_name(tables.arena, channel.name_at, channel.name_at + channel.name_bytes, pattern)
        matches[index] = found
        steps += taken
    return matches, steps, True


@kernel
def gather_names(tables: Tables, indexes: Indexes) -> tuple[Bytes, Indexes]:
    """The names of channels, one after the other, and the offsets at which they begin; the last offset is the end."""
    offsets = np.zeros(indexes.shape[0] + 1, np.int32)
    for row in range(indexes.shape[0]):
        offsets[row + 1] = offsets[row] + tables.channels[indexes[row]].name_bytes
    names = np.empty(offsets[-1], np.uint8)
    for row in range(indexes.shape[0]):
        at = tables.channels[indexes[row]].name_at
        size = offsets[row + 1] - offsets[row]
        for offset in range(size):
            names[offsets[row] + offset] = tables.arena[at + offset]
    return names, offsets


@kernel
def find_stream_of(tables: Tables, name: Bytes, size: int, stream: np.uint64) -> int:
    """The index of a stream of a channel, `MISSING` if it is not known."""
    channel = find_channel(tables, name, 0, size, hash_words(name, 0, size, tables.head[0].seed))
    return MISSING if channel == MISSING else find_stream(tables, channel, stream)


@kernel
def list_streams(
    tables: Tables, channel: int
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64], npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """The streams of a channel, and for each the last sequence number, the tick in which it was last heard, and whether
    its publisher has told how far it had come."""
    size = tables.channels[channel].streams
    streams = np.empty(size, np.uint64)
    lasts = np.empty(size, np.uint64)
    ticks = np.empty(size, np.int64)
    told = np.empty(size, np.bool_)
    index = tables.channels[channel].first_stream
    for row in range(size):
        record = tables.streams[index]
        streams[row] = record.stream
        lasts[row] = record.last
        ticks[row] = record.tick
        told[row] = record.above != _UNTOLD_LAST
        index = record.next
    return streams, lasts, ticks, told


@kernel
def forget(tables: Tables, before: int) -> tuple[int, int]:
    """Drops streams that were silent since `before`, and idle channels without streams; returns their numbers.

    Channels and streams of the current time unit stay, because their counts are still to be reported.
    """
    head = tables.head[0]
    if head.refused_tick < before:
        head.refused_tick = NEVER
    streams_before = head.streams
    channels_before = head.channels
    new_streams = keep_streams(tables, before)
    new_channels = keep_channels(tables, before)
    for row in range(head.active_channels):
        tables.active_channels[row] = new_channels[tables.active_channels[row]]
    for row in range(head.active_streams):
        tables.active_streams[row] = new_streams[tables.active_streams[row]]
    for index in range(head.streams):
        record = tables.streams[index]
        record.channel = new_channels[record.channel]
        owner = tables.channels[record.channel]
        record.next = owner.first_stream
        owner.first_stream = index
    if head.streams < streams_before or head.channels < channels_before:
        tables.channel_slots[:] = 0
        tables.stream_slots[:] = 0
        fill_slots(tables)
    return streams_before - head.streams, channels_before - head.channels


@part
def keep_streams(tables: Tables, before: int) -> Indexes:
    """Moves the remaining streams to the front and counts them for their channels; returns new indexes by old ones."""
    head = tables.head[0]
    moved = np.full(head.streams, MISSING, np.int32)
    for index in range(head.channels):
        tables.channels[index].streams = 0
    kept = 0
    for index in range(head.streams):
        record = tables.streams[index]
        if record.tick >= before or record.unit == head.unit:
            moved[index] = kept
            tables.channels[record.channel].streams += 1
            tables.streams[kept] = record
            kept += 1
    head.streams = kept
    return moved


@part
def keep_channels(tables: Tables, before: int) -> Indexes:
    """Moves the remaining channels and names to the front; returns new indexes by old ones. The caller rebuilds the
    lists of streams."""
    head = tables.head[0]
    moved = np.full(head.channels, MISSING, np.int32)
    kept = 0
    arena_bytes = 0
    for index in range(head.channels):
        record = tables.channels[index]
        if record.streams > 0 or record.tick >= before or record.unit == head.unit:
            moved[index] = kept
            size = record.name_bytes
            for offset in range(size):
                tables.arena[arena_bytes + offset] = tables.arena[record.name_at + offset]
            record.name_at = arena_bytes
            record.first_stream = MISSING
            if record.refused_tick < before:
                record.refused_tick = NEVER
            tables.channels[kept] = record
            arena_bytes += size
            kept += 1
    head.channels = kept
    head.arena_bytes = arena_bytes
    return moved
