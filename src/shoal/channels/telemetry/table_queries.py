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
    find_channel,
    find_stream,
)
from shoal.wire.loop_source import Bytes, hash_words, kernel, part

_UNTOLD_LAST: Final = np.uint64(UNTOLD_LAST)


@kernel
def find_channels(tables: Tables, names: Bytes, offsets: Indexes, found: Indexes) -> int:
    """Finds the index of each channel, `MISSING` for unknown ones; returns 0."""
    for row in range(found.shape[0]):
        at = offsets[row]
        size = offsets[row + 1] - at
        found[row] = find_channel(tables, names, at, size, hash_words(names, at, size, tables.head[0].seed))
    return 0


@kernel
def match_channels(tables: Tables, pattern: Bytes, steps_max: int, matches: npt.NDArray[np.bool_]) -> int:
    """Whether the pattern matches the name of each channel; results as of `match_names`. Names are not copied."""
    steps = 0
    for index in range(matches.shape[0]):
        if steps > steps_max:
            return ~steps
        channel = tables.channels[index]
        found, taken = match_name(tables.arena, channel.name_at, channel.name_at + channel.name_bytes, pattern)
        matches[index] = found
        steps += taken
    return steps


@kernel
def gather_names(tables: Tables, indexes: Indexes, offsets: Indexes, names: Bytes) -> int:
    """Copies the names of channels, one after the other, to the offsets at which they begin; returns 0."""
    for row in range(indexes.shape[0]):
        at = tables.channels[indexes[row]].name_at
        size = offsets[row + 1] - offsets[row]
        for offset in range(size):
            names[offsets[row] + offset] = tables.arena[at + offset]
    return 0


@kernel
def find_stream_of(tables: Tables, name: Bytes, size: int, stream: np.uint64) -> int:
    """The index of a stream of a channel, `MISSING` if it is not known."""
    channel = find_channel(tables, name, 0, size, hash_words(name, 0, size, tables.head[0].seed))
    return MISSING if channel == MISSING else find_stream(tables, channel, stream)


@kernel
def list_streams(
    tables: Tables,
    channel: int,
    streams: npt.NDArray[np.uint64],
    lasts: npt.NDArray[np.uint64],
    ticks: npt.NDArray[np.int64],
    told: npt.NDArray[np.bool_],
) -> int:
    """Lists the streams of a channel, and for each the last sequence number, the tick in which it was last heard, and
    whether its publisher has told how far it had come; returns 0."""
    index = tables.channels[channel].first_stream
    for row in range(streams.shape[0]):
        record = tables.streams[index]
        streams[row] = record.stream
        lasts[row] = record.last
        ticks[row] = record.tick
        told[row] = record.above != _UNTOLD_LAST
        index = record.next
    return 0


@kernel
def forget(tables: Tables, before: int, new_streams: Indexes, new_channels: Indexes) -> int:
    """Drops streams that were silent since `before`, and idle channels without streams; returns 0. Their new indexes by
    the old ones are left in two arrays. The slots are those of the old indexes: clear them and call `fill_slots`.

    Channels and streams of the current time unit stay, because their counts are still to be reported.
    """
    head = tables.head[0]
    if head.refused_tick < before:
        head.refused_tick = NEVER
    keep_streams(tables, before, new_streams)
    keep_channels(tables, before, new_channels)
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
    return 0


@part
def keep_streams(tables: Tables, before: int, moved: Indexes) -> None:
    """Moves the remaining streams to the front and counts them for their channels. `moved` gets new indexes by old
    ones."""
    head = tables.head[0]
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
        else:
            moved[index] = MISSING
    head.streams = kept


@part
def keep_channels(tables: Tables, before: int, moved: Indexes) -> None:
    """Moves the remaining channels and names to the front. `moved` gets new indexes by old ones. The caller rebuilds
    the lists of streams."""
    head = tables.head[0]
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
        else:
            moved[index] = MISSING
    head.channels = kept
    head.arena_bytes = arena_bytes
