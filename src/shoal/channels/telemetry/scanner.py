"""The scanner: what the agent's observing connection says, counted as fast as Redis can say it.

Owns the bytes of that connection that have not been used up, and the tables of channels and streams. Never
touches a socket or a clock: bytes and the second are handed in. What stands in a report is the analyzer's
business.

    feed(data, second)     bytes as they come, cut anywhere
    scan()                 counts observed messages up to the next frame that is not one, or that is on a
                           watched channel, and returns that frame; None when the bytes are used up
    watch(channel, on)     says which channels are watched

So whatever the agent does about a frame (it answers a hello) it does with the tables exactly as they were
at that point of the server's order. Scan until None before the next feed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import hiredis
import numpy as np
import numpy.typing as npt

from shoal.channels.telemetry import scan_kernel, table_queries
from shoal.channels.telemetry.tables import (
    COUNTERS,
    MISSING,
    NEVER,
    NO_ROOM,
    NO_VERSION,
    REFUSED,
    Indexes,
    TableLimits,
    grow,
    make_tables,
    set_stream,
    set_watched,
)
from shoal.errors import ProtocolError
from shoal.wire.envelope import EPOCH_BITS
from shoal.wire.raw_bytes import PADDING_BYTES, Bytes, compilation_announced, padded

FIRST_BUFFER_BYTES: Final = 262_144

_NOTHING: Final = object()
_AT, _END, _FRAME_END, _WALK_AT = (
    (scan_kernel.CURSOR.names or ()).index(name) for name in ("at", "end", "frame_end", "walk_at")
)
_FAULTS: Final = {
    scan_kernel.BAD_LENGTH: "a length or a line is malformed",
    scan_kernel.BAD_TYPE: "a frame begins with an unknown type",
    scan_kernel.BAD_END: "a string does not end where its length says",
    scan_kernel.TOO_LARGE: "a frame is larger than frame_bytes_max",
}


class Frame(NamedTuple):
    """A frame that is no observed message: a reply (which may be None), or a push. A message on a watched channel is a
    push `[b"pmessage", b"*", channel, payload]`."""

    value: Any
    push: bool


class Listing(NamedTuple):
    """The streams of a channel with their last sequence numbers.

    `complete` is False when a limit of the tables kept a stream, or the channel, from being recorded.
    """

    streams: list[tuple[int, int]]
    complete: bool


@dataclass(frozen=True, slots=True)
class UnitCounts:
    """What was counted in one time unit, in columns; one row for each channel that something came on."""

    channels: Indexes
    """The channels' indexes, good for `Scanner.find` until channels are forgotten."""
    names: Bytes
    name_offsets: Indexes
    counters: dict[str, npt.NDArray[np.int64]]
    complete: npt.NDArray[np.bool_]
    publisher_rows: npt.NDArray[np.int64]
    """The row of each distinct publisher, ascending."""
    publishers: npt.NDArray[np.uint64]
    """Its client id, ascending within a row."""
    uncounted: int
    uncounted_bytes: int
    internal: int
    internal_bytes: int
    observed_bytes: int


class Scanner:
    """Counts what `PSUBSCRIBE *` hears on one RESP3 connection."""

    def __init__(self, frame_bytes_max: int, limits: TableLimits | None = None) -> None:
        self._limits = limits or TableLimits()
        self._tables = make_tables(self._limits)
        self._cursors = np.zeros(1, scan_kernel.CURSOR)
        self._cursors["frame_bytes_max"] = frame_bytes_max
        self._cursor = self._cursors.view(np.int64)
        """The same numbers, read and written faster; see `_AT`."""
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)
        self._buffer = np.zeros(FIRST_BUFFER_BYTES + PADDING_BYTES, np.uint8)
        self._view = self._buffer.data
        self._first_second: int | None = None
        self._observed_bytes = 0
        self._end = 0
        self._used_up = True
        """Whether everything that was fed has been scanned: then there is no need to call the kernel."""
        self._fault: str | None = None

    def feed(self, data: bytes, second: int) -> None:
        """Takes bytes that arrived in `second`."""
        if self._first_second is None:
            self._first_second = second
        cursor = self._cursor
        self._tables.head["second"] = second - self._first_second
        self._observed_bytes += len(data)
        at = int(cursor[_AT])
        rest = int(cursor[_END]) - at
        self._make_room(at, rest, len(data))
        self._view[rest : rest + len(data)] = data
        cursor[_AT] = 0
        cursor[_END] = self._end = rest + len(data)
        self._used_up = False
        cursor[_WALK_AT] -= at

    def _make_room(self, at: int, rest: int, more: int) -> None:
        """Brings the unused bytes to the front of a buffer that also holds what is coming."""
        size = FIRST_BUFFER_BYTES
        while size < rest + more:
            size *= 2
        old = self._buffer
        if size + PADDING_BYTES > len(old) or (rest == 0 and size + PADDING_BYTES < len(old)):
            self._buffer = np.zeros(size + PADDING_BYTES, np.uint8)
            self._view = self._buffer.data
        if rest and (at or self._buffer is not old):
            self._buffer[:rest] = old[at : at + rest]

    def scan(self) -> Frame | None:
        """Counts up to the next frame that is no observed message, or watched, and returns it; None when there is none.

        Raises `ProtocolError` when what follows is no RESP3, or too large; it stays so until `reset`.
        """
        if self._fault is not None:
            raise ProtocolError(self._fault)
        if self._used_up:
            return None
        while True:
            status = scan_kernel.scan_frames(self._buffer, self._cursors, self._tables)
            if status == scan_kernel.USED_UP:
                return None
            if status == scan_kernel.OTHER:
                return self._take_frame()
            if status == scan_kernel.WATCHED:
                return self._take_watched()
            if status != scan_kernel.GROW:
                raise self._broken(_FAULTS[status])
            self._tables = grow(self._tables)

    def _take_frame(self) -> Frame:
        cursor, reader = self._cursor, self._reader
        frame_end = int(cursor[_FRAME_END])
        try:
            reader.feed(bytes(self._view[int(cursor[_AT]) : frame_end]))
            value = reader.gets()
        except (
            hiredis.ProtocolError,
            MemoryError,
            TypeError,
        ) as error:  # TypeError: a map whose key is a list
            raise self._broken(str(error)) from error
        if value is _NOTHING or reader.has_data():
            raise self._broken("a frame does not end where its lengths say")
        cursor[_AT] = frame_end
        self._used_up = frame_end == self._end
        return Frame(value, isinstance(value, hiredis.PushNotification))

    def _take_watched(self) -> Frame:
        _, _, frame_end, name_at, name_end, payload_at, *_ = self._cursors.item()
        self._cursor[_AT] = frame_end
        self._used_up = frame_end == self._end
        name, payload = bytes(self._view[name_at:name_end]), bytes(self._view[payload_at : frame_end - 2])
        return Frame(hiredis.PushNotification([b"pmessage", b"*", name, payload]), True)

    def _broken(self, fault: str) -> ProtocolError:
        self._fault = f"the observing connection does not carry RESP3: {fault}"
        return ProtocolError(self._fault)

    def reset(self) -> None:
        """Forgets the bytes of a connection that is gone. The tables stay."""
        self._fault = None
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)
        self._end, self._used_up = 0, True
        for name in ("at", "end", "walk_at", "walk_left"):
            self._cursors[name] = 0

    def clear(self) -> None:
        """Forgets every channel and stream: the server has begun a new life."""
        self._tables = make_tables(self._limits, bool(self._tables.head[0]["watch_new"]))
        self._observed_bytes = 0

    def watch_new(self) -> None:
        """From now on every channel is watched from its first frame until `watch` says otherwise, and one for which
        there is no room always."""
        self._tables.head[0]["watch_new"] = 1

    def watch_all(self) -> None:
        """Watches every channel that is known, until `watch` says otherwise."""
        known = self._tables.channels[: self._tables.head[0]["channels"]]
        known["watched"] = 1
        known["but_version"] = NO_VERSION

    def watch(self, channel: bytes, on: bool, but_version: int | None = None) -> None:
        """Shows what comes on a channel to whoever scans, or only counts it; messages that carry `but_version` are only
        counted in any case."""
        name = padded(channel)
        unless = NO_VERSION if but_version is None else but_version
        while set_watched(self._tables, name, len(channel), on, unless) == NO_ROOM:
            self._tables = grow(self._tables)

    def streams(self, channel: bytes) -> Listing:
        """The streams that published on a channel, with the last sequence number of each."""
        index = self.find(padded(channel), np.array([0, len(channel)], np.int32))[0]
        refused = self._tables.head[0]["refused_second"] != NEVER
        if index == MISSING:
            return Listing([], not refused)
        streams, lasts = table_queries.list_streams(self._tables, index)
        pairs = list(zip(streams.tolist(), lasts.tolist(), strict=True))
        return Listing(pairs, bool(self._tables.channels[index]["refused_second"] == NEVER))

    def set_stream(self, channel: bytes, stream: int, last: int) -> bool:
        """Raises the last sequence number of a stream, as a resync told it; False: a limit forbids it."""
        name = padded(channel)
        while True:
            index = set_stream(self._tables, name, len(channel), np.uint64(stream), np.uint64(last))
            if index != NO_ROOM:
                return bool(index != REFUSED)
            self._tables = grow(self._tables)

    def forget_idle(self, before_second: int) -> tuple[int, int]:
        """Drops streams not seen since `before_second`, then idle channels without any; how many of each."""
        before = before_second - (self._first_second or 0)
        streams, channels = table_queries.forget(self._tables, max(before, NEVER + 1))
        return int(streams), int(channels)

    def channels(self) -> list[bytes]:
        """The names of all channels in the table."""
        return self._names(np.arange(self._tables.head[0]["channels"], dtype=np.int32))

    def active_channels(self) -> list[bytes]:
        """The names of the channels that something came on in the open time unit."""
        return self._names(self._tables.active_channels[: self._tables.head[0]["active_channels"]])

    def _names(self, indexes: Indexes) -> list[bytes]:
        names, offsets = table_queries.gather_names(self._tables, indexes)
        blob, bounds = names.tobytes(), offsets.tolist()
        return [blob[bounds[row] : bounds[row + 1]] for row in range(len(bounds) - 1)]

    def find(self, names: Bytes, offsets: Indexes) -> Indexes:
        """The index of each of many channels (-1: not known); `names` ends in padding, see `rawbytes`."""
        return table_queries.find_channels(self._tables, names, offsets)

    def take_other_formats(self) -> tuple[int, int]:
        """The number of messages in envelopes of format 1, and with unknown flags, since the last call."""
        head = self._tables.head[0]
        found = int(head["envelopes_1"]), int(head["unknown_flags"])
        head["envelopes_1"] = head["unknown_flags"] = 0
        return found

    def close_unit(self) -> UnitCounts:
        """What was counted since the last call, and the begin of a new time unit."""
        tables, head = self._tables, self._tables.head[0]
        active = tables.active_channels[: head["active_channels"]].copy()
        records = tables.channels[active]
        names, name_offsets = table_queries.gather_names(tables, active)
        publisher_rows, publishers = self._distinct_publishers(active)
        counts = UnitCounts(
            channels=active,
            names=names,
            name_offsets=name_offsets,
            counters={name: np.ascontiguousarray(records[name]) for name in COUNTERS},
            complete=records["refused_second"] == NEVER,
            publisher_rows=publisher_rows,
            publishers=publishers,
            uncounted=int(head["uncounted"]),
            uncounted_bytes=int(head["uncounted_bytes"]),
            internal=int(head["internal"]),
            internal_bytes=int(head["internal_bytes"]),
            observed_bytes=self._observed_bytes,
        )
        self._observed_bytes = 0
        for name in COUNTERS:
            tables.channels[name][active] = 0
        for name in ("uncounted", "uncounted_bytes", "internal", "internal_bytes"):
            head[name] = 0
        head["active_channels"] = head["active_streams"] = 0
        head["unit"] += 1
        return counts

    def _distinct_publishers(self, active: Indexes) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
        """Row and client of each publisher of the open unit; two streams of a client on a channel are one."""
        tables, head = self._tables, self._tables.head[0]
        records = tables.streams[tables.active_streams[: head["active_streams"]]]
        row_of = np.zeros(head["channels"], np.int64)
        row_of[active] = np.arange(len(active))
        rows = row_of[records["channel"]]
        clients = records["stream"] >> np.uint64(EPOCH_BITS)
        order = np.lexsort((clients, rows))
        rows, clients = rows[order], clients[order]
        first = np.ones(len(rows), np.bool_)
        first[1:] = (rows[1:] != rows[:-1]) | (clients[1:] != clients[:-1])
        return rows[first], clients[first]


def warm_up() -> None:
    """Loads every compiled loop of the scanner before the first message, or compiles it and says so."""
    with compilation_announced():
        scanner = Scanner(frame_bytes_max=4096)
        scanner.feed(scan_kernel.OBSERVED + b"1\r\na\r\n$1\r\nb\r\n", 0)
        scanner.scan()
        scanner.set_stream(b"a", 1, 1)
        scanner.watch(b"a", False)
        scanner.streams(b"a")
        scanner.close_unit()
        scanner.forget_idle(1)
        grow(scanner._tables)
