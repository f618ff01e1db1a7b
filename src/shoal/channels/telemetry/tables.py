"""The scanner's tables: channels, and the streams that publish on them.

Owns the layout, the hashing and the bounds of both tables. The compiled scan fills them, `table_queries` reads them.
Never touches a socket, a clock or RESP.

A table is an array of records in order of arrival, and a hash table of slots with open addressing. A slot is 0 (empty)
or the upper half of the key's hash and the record's index + 1. A lookup therefore reads a record only if it is almost
certainly the right one, and then compares the whole key. At most half of the slots are used. Channel names are stored
one after the other in an arena. The streams of a channel are a linked list through the stream records.

Channels and streams above the limits (`TableLimits`) are not recorded. The tick in which that last happened is kept,
and listings say `complete=False` until an entry of that tick would have been dropped as idle.

With the agents' secrets (`set_secrets`) streams belong to clients. A client has at most `CLIENT_STREAMS_MAX` streams on
a channel, so that it cannot fill the channel's share for others: further ones are refused, and the listing stays
complete. The slots are then chosen by the client alone, so that a lookup passes all streams of the client and counts
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from shoal.limits import MIB, NAME_BYTES_MAX
from shoal.wire.envelope import ENDED, EPOCH_BITS
from shoal.wire.identity import KEY_BYTES
from shoal.wire.loop_source import (
    PADDING_BYTES,
    Bytes,
    Records,
    hash_pair,
    hash_words,
    kernel,
    part,
    same_words,
)

MISSING: Final = -1
NO_ROOM: Final = -2
REFUSED: Final = -3
NO_VERSION: Final = -1
ALWAYS: Final = 1
METERED: Final = 2
"""How frames of a channel are returned to Python: all of them, or those for which their publishers have a token."""
TICKS_PER_S: Final = 16
"""The unit of time in the tables. Ticks count from the first `feed`, by a clock that is never set, and fit 32 bits for
four years."""
NEVER: Final = -(2**31)
"""The tick of an event that never happened."""

CLIENT_STREAMS_MAX: Final = 16
"""Streams of one client on one channel. An honest client begins a new one only after half of `publisher_idle_s`."""

REFUTED_MAX: Final = 256
"""Messages with a false tag that are listed until the next heartbeat. Of others only the channel is told."""

UNTOLD_LAST: Final = 2**64 - 1

SECRETS_MAX: Final = 8
"""Generations of the agents' secret that are valid at the same time."""
SERVER_NAME_BYTES_MAX: Final = 255

FIRST_RECORDS: Final = 1024
FIRST_ARENA_BYTES: Final = 65536

CHANNEL: Final = np.dtype(
    [
        ("publications", np.int64),
        ("foreign", np.int64),  # publications without an envelope
        ("forwarded", np.int64),
        ("beacons", np.int64),
        ("bytes_in", np.int64),
        ("frame_bytes", np.int64),  # as the observer received them
        ("hash", np.uint64),
        ("name_at", np.int64),
        ("name_bytes", np.int32),
        ("streams", np.int32),
        ("first_stream", np.int32),
        ("tick", np.int32),  # in which it was last heard
        ("refused_tick", np.int32),
        ("unit", np.int32),
        ("but_version", np.int64),  # frames with this version are only counted; or `NO_VERSION`
        ("watched", np.uint8),  # whether frames are also returned to Python: 0, `ALWAYS`, or `METERED`
        ("overflowed", np.uint8),  # whether messages with a false tag were not listed
    ],
    align=True,
)
COUNTERS: Final = ("publications", "foreign", "forwarded", "beacons", "bytes_in", "frame_bytes")

STREAM: Final = np.dtype(
    [
        ("stream", np.uint64),
        ("last", np.uint64),
        ("channel", np.int32),
        ("next", np.int32),
        ("tick", np.int32),  # in which it was last heard, or an earlier one, see `raise_last`
        ("unit", np.int32),
        # the number above which a message has not been published here before; `UNTOLD_LAST` if its publisher has not
        # told how far it had come when the agent began to listen
        ("above", np.uint64),
        ("uncheckable", np.uint64),  # the last number when a secret was dropped; tags up to it may be by that secret
        # its publisher's key, see `lane_check`; zero before the first message
        *((name, np.uint64) for name in ("k0", "k1", "k2", "k3")),
    ],
    align=True,
)

REFUTED: Final = np.dtype(
    [
        ("stream", np.uint64),
        ("number", np.uint64),
        ("mark", np.uint64),  # see `lane_tag.mark_of`
        ("channel", np.int32),
        ("known", np.uint8),  # whether the stream is in the table
    ],
    align=True,
)

HEAD: Final = np.dtype(
    [
        (name, np.int64)
        for name in (
            # sizes in use
            *("channels", "streams", "arena_bytes", "active_channels", "active_streams"),
            # limits
            *("channels_max", "streams_max", "streams_per_channel_max", "channel_name_bytes_max", "names_bytes_max"),
            # time
            *("tick", "unit", "refused_tick"),
            # see `Scanner.watch_new`
            "watch_new",
            # counts of the time unit that belong to no channel
            *("uncounted", "uncounted_bytes", "internal", "internal_bytes"),
            # messages of other versions, see `Scanner.take_other_formats`
            *("envelopes_1", "unknown_flags"),
            # messages with a false tag: listed, not listed
            *("refuted", "overflows"),
            # number of secrets, and of bytes before the channel's name in what a lane key is made from
            *("secrets", "lane_prefix_bytes"),
            # frames too large, and control messages and new channels too many, see `Scanner.take_passed_over`
            *("oversized", "control_unread", "not_looked_up"),
        )
    ]
    + [("seed", np.uint64)]
)

_TAG: Final = np.uint64(0xFFFFFFFF00000000)
_INDEX: Final = np.uint64(0x00000000FFFFFFFF)
_ONE: Final = np.uint64(1)
_EMPTY: Final = np.uint64(0)
_EPOCH_BITS: Final = np.uint64(EPOCH_BITS)
_UNTOLD_LAST: Final = np.uint64(UNTOLD_LAST)

Slots: TypeAlias = npt.NDArray[np.uint64]
Indexes: TypeAlias = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class TableLimits:
    """Bounds of the tables. A record costs about 125 bytes and its name (channel) or 100 bytes (stream)."""

    channels_max: int = 1_000_000
    names_bytes_max: int = 64 * MIB
    streams_max: int = 4_000_000
    streams_per_channel_max: int = 100_000
    channel_name_bytes_max: int = NAME_BYTES_MAX
    hash_seed: int = 0
    """A secret number, so that an attacker cannot choose channel names that collide."""


class Tables(NamedTuple):
    """The arrays of both tables."""

    head: Records
    channels: Records
    channel_slots: Slots
    arena: Bytes
    streams: Records
    stream_slots: Slots
    active_channels: Indexes
    active_streams: Indexes
    refuted: Records
    secrets: Bytes
    scratch: Bytes


def make_tables(limits: TableLimits, watch_new: int = 0) -> Tables:
    """Empty tables."""
    head = np.zeros(1, HEAD)
    for name in ("channels_max", "streams_max", "streams_per_channel_max", "channel_name_bytes_max", "names_bytes_max"):
        head[name] = getattr(limits, name)
    head["seed"] = limits.hash_seed & (2**64 - 1)
    head["refused_tick"] = NEVER
    head["unit"] = 1
    head["watch_new"] = watch_new
    channels = min(FIRST_RECORDS, limits.channels_max)
    streams = min(FIRST_RECORDS, limits.streams_max)
    return Tables(
        head,
        np.zeros(channels, CHANNEL),
        np.zeros(_slots_for(channels), np.uint64),
        np.zeros(FIRST_ARENA_BYTES + limits.channel_name_bytes_max + PADDING_BYTES, np.uint8),
        np.zeros(streams, STREAM),
        np.zeros(_slots_for(streams), np.uint64),
        np.zeros(channels, np.int32),
        np.zeros(streams, np.int32),
        np.zeros(REFUTED_MAX, REFUTED),
        np.zeros(SECRETS_MAX * KEY_BYTES + PADDING_BYTES, np.uint8),
        np.zeros(1 + SERVER_NAME_BYTES_MAX + limits.channel_name_bytes_max + PADDING_BYTES, np.uint8),
    )


def set_secrets(tables: Tables, server: str, keys: Sequence[bytes], dropped: bool = False) -> None:
    """Checks tags from now on, by the keys from which those of clients follow (see `AgentSecret`), newest first.
    Without keys nothing is checked. `dropped` says that an earlier key is not among them any more. The slots are empty
    then: call `fill_slots`."""
    name = server.encode()
    if len(keys) > SECRETS_MAX or len(name) > SERVER_NAME_BYTES_MAX:
        raise ValueError(f"at most {SECRETS_MAX} secrets, and {SERVER_NAME_BYTES_MAX} bytes of a server's name")
    head = tables.head[0]
    head["secrets"] = len(keys)
    for array, start in ((tables.secrets, b"".join(keys)), (tables.scratch, bytes((len(name),)) + name)):
        array[: len(start)] = np.frombuffer(start, np.uint8)
    head["lane_prefix_bytes"] = 1 + len(name)
    for field in ("k0", "k1", "k2", "k3"):
        tables.streams[field] = 0
    if dropped:
        tables.streams["uncheckable"] = tables.streams["last"] & ~np.uint64(ENDED)
    tables.channel_slots[:] = 0
    tables.stream_slots[:] = 0


def grow(tables: Tables) -> Tables:
    """Doubles each table that is full and keeps its content. The slots of the new tables are empty: call
    `fill_slots`."""
    head = tables.head[0]
    if head["channels"] == len(tables.channels) < head["channels_max"]:
        size = min(2 * len(tables.channels), int(head["channels_max"]))
        tables = tables._replace(
            channels=_enlarged(tables.channels, size), active_channels=_enlarged(tables.active_channels, size)
        )
    if head["streams"] == len(tables.streams) < head["streams_max"]:
        size = min(2 * len(tables.streams), int(head["streams_max"]))
        tables = tables._replace(
            streams=_enlarged(tables.streams, size), active_streams=_enlarged(tables.active_streams, size)
        )
    if head["arena_bytes"] + head["channel_name_bytes_max"] + PADDING_BYTES > len(tables.arena):
        tables = tables._replace(arena=_enlarged(tables.arena, 2 * len(tables.arena)))
    return tables._replace(
        channel_slots=np.zeros(_slots_for(len(tables.channels)), np.uint64),
        stream_slots=np.zeros(_slots_for(len(tables.streams)), np.uint64),
    )


def _slots_for(records: int) -> int:
    """Twice as many slots as records, rounded up to a power of two."""
    return 1 << (2 * max(records, 1) - 1).bit_length()


def _enlarged(array: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    larger = np.zeros(size, array.dtype)
    larger[: len(array)] = array
    return larger


@part
def claim(slots: Slots, value: np.uint64, index: int) -> None:
    """Puts a new record into the slots."""
    mask = np.uint64(slots.shape[0] - 1)
    slot = value & mask
    while slots[slot] != _EMPTY:
        slot = (slot + _ONE) & mask
    slots[slot] = (value & _TAG) | np.uint64(index + 1)


@part
def hash_stream(tables: Tables, channel: int, stream: np.uint64) -> np.uint64:
    """The hash of a stream of a channel. With secrets the streams of a client have the same one."""
    owner = stream >> _EPOCH_BITS if tables.head[0].secrets else stream
    return hash_pair(np.uint64(channel), owner)


@kernel
def fill_slots(tables: Tables) -> int:
    """Puts all channels and streams into empty slots; returns 0."""
    for index in range(tables.head[0].channels):
        claim(tables.channel_slots, tables.channels[index].hash, index)
    for index in range(tables.head[0].streams):
        record = tables.streams[index]
        claim(tables.stream_slots, hash_stream(tables, record.channel, record.stream), index)
    return 0


@part
def find_channel(tables: Tables, name: Bytes, at: int, size: int, value: np.uint64) -> int:
    """The index of a channel, or `MISSING`. `value` is the hash of its name."""
    slots = tables.channel_slots
    mask = np.uint64(slots.shape[0] - 1)
    slot = value & mask
    while slots[slot] != _EMPTY:
        if (slots[slot] & _TAG) == (value & _TAG):
            index = int(slots[slot] & _INDEX) - 1
            record = tables.channels[index]
            if record.name_bytes == size and same_words(tables.arena, record.name_at, name, at, size):
                return index
        slot = (slot + _ONE) & mask
    return MISSING


@part
def enter_channel(tables: Tables, name: Bytes, at: int, size: int) -> int:
    """The index of a channel, which is added if it is new. `NO_ROOM`: call `grow` and try again. `REFUSED`: a limit is
    met."""
    head = tables.head[0]
    value = hash_words(name, at, size, head.seed)
    index = find_channel(tables, name, at, size, value)
    if index != MISSING:
        return index
    if size > head.channel_name_bytes_max:  # no client of ours can use it, so nothing is missing in listings
        return REFUSED
    if head.channels >= head.channels_max or head.arena_bytes + size > head.names_bytes_max:
        head.refused_tick = head.tick
        return REFUSED
    if head.channels == tables.channels.shape[0]:
        return NO_ROOM
    if head.arena_bytes + head.channel_name_bytes_max + PADDING_BYTES > tables.arena.shape[0]:
        return NO_ROOM
    index = int(head.channels)
    head.channels += 1
    record = tables.channels[index]
    record.publications = record.foreign = record.forwarded = record.beacons = 0
    record.bytes_in = record.frame_bytes = 0
    record.hash = value
    record.name_at = head.arena_bytes
    record.name_bytes = size
    record.streams = 0
    record.first_stream = MISSING
    record.tick = head.tick
    record.refused_tick = NEVER
    record.unit = 0
    record.but_version = NO_VERSION
    record.watched = head.watch_new
    record.overflowed = 0
    for offset in range(size):
        tables.arena[head.arena_bytes + offset] = name[at + offset]
    head.arena_bytes += size
    claim(tables.channel_slots, value, index)
    return index


@part
def find_stream(tables: Tables, channel: int, stream: np.uint64) -> int:
    """The index of a stream of a channel, or `MISSING`."""
    slots = tables.stream_slots
    mask = np.uint64(slots.shape[0] - 1)
    value = hash_stream(tables, channel, stream)
    slot = value & mask
    while slots[slot] != _EMPTY:
        if (slots[slot] & _TAG) == (value & _TAG):
            found = int(slots[slot] & _INDEX) - 1
            known = tables.streams[found]
            if known.stream == stream and known.channel == channel:
                return found
        slot = (slot + _ONE) & mask
    return MISSING


@part
def enter_stream(tables: Tables, channel: int, stream: np.uint64) -> int:
    """The index of a stream of a channel; results as of `enter_channel`. A client with too many streams is `REFUSED`
    too, but then the channel's listing stays complete."""
    head = tables.head[0]
    slots = tables.stream_slots
    mask = np.uint64(slots.shape[0] - 1)
    value = hash_stream(tables, channel, stream)
    slot = value & mask
    owned = 0
    while slots[slot] != _EMPTY:
        if (slots[slot] & _TAG) == (value & _TAG):
            found = int(slots[slot] & _INDEX) - 1
            known = tables.streams[found]
            if known.stream == stream and known.channel == channel:
                return found
            owned += known.channel == channel and known.stream >> _EPOCH_BITS == stream >> _EPOCH_BITS
        slot = (slot + _ONE) & mask
    if head.secrets and owned >= CLIENT_STREAMS_MAX:
        return REFUSED
    owner = tables.channels[channel]
    if head.streams >= head.streams_max or owner.streams >= head.streams_per_channel_max:
        owner.refused_tick = head.tick
        return REFUSED
    if head.streams == tables.streams.shape[0]:
        return NO_ROOM
    index = int(head.streams)
    head.streams += 1
    record = tables.streams[index]
    record.stream = stream
    record.last = 0
    record.above = _UNTOLD_LAST
    record.uncheckable = _EMPTY
    record.channel = channel
    record.next = owner.first_stream
    record.tick = NEVER
    record.unit = 0
    record.k0 = record.k1 = record.k2 = record.k3 = _EMPTY
    owner.first_stream = index
    owner.streams += 1
    slots[slot] = (value & _TAG) | np.uint64(index + 1)
    return index


@part
def raise_last(tables: Tables, index: int, sequence: np.uint64, publishes: bool, quiet_ticks: int) -> None:
    """Raises the last sequence number of a stream, which was heard somewhere `quiet_ticks` ago. If it `publishes`, it
    counts as a publisher of the current time unit."""
    head = tables.head[0]
    record = tables.streams[index]
    record.last = max(record.last, sequence)
    record.tick = max(record.tick, head.tick - quiet_ticks)
    if publishes and record.unit != head.unit:
        record.unit = head.unit
        tables.active_streams[head.active_streams] = index
        head.active_streams += 1


@kernel
def set_stream(tables: Tables, name: Bytes, size: int, stream: np.uint64, last: np.uint64) -> int:
    """Raises the last sequence number of a stream on a channel, as its publisher has told it, and adds both if they are
    new; results as of `enter_stream`."""
    channel = enter_channel(tables, name, 0, size)
    if channel < 0:
        return channel
    index = enter_stream(tables, channel, stream)
    if index >= 0:
        record = tables.streams[index]
        record.above = last if record.above == _UNTOLD_LAST else max(record.above, last)
        raise_last(tables, index, last, False, 0)
    return index


@kernel
def set_watched(tables: Tables, name: Bytes, size: int, watched: bool, but_version: int) -> int:
    """Sets whether the frames of a channel are returned to Python; results as of `enter_channel`. An unknown channel is
    added only if it would not be watched otherwise, or not always."""
    channel = find_channel(tables, name, 0, size, hash_words(name, 0, size, tables.head[0].seed))
    if channel == MISSING and watched and tables.head[0].watch_new != ALWAYS:
        channel = enter_channel(tables, name, 0, size)
    if channel >= 0:
        tables.channels[channel].watched = watched
        tables.channels[channel].but_version = but_version
    return channel
