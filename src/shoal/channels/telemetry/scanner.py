"""The scanner: counts the messages on the agent's observing connection as fast as Redis can send them.

Owns the unscanned bytes of that connection and the tables of channels and streams. Never touches a socket or a clock:
bytes and the time are arguments. The analyzer turns the counts into figures.

    feed(data, now)        takes bytes, cut anywhere
    scan()                 counts observed messages up to the next frame that is not one or that is on a watched
                           channel, and returns that frame; None when all bytes are scanned
    watch(channel, on)     sets whether a channel is watched

The scan stops at such a frame, so when the agent handles it (say, answers a Hello) the tables are as of that point in
the server's order. Call `scan` until it returns None before the next `feed`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import hiredis
import numpy as np
import numpy.typing as npt

from shoal.channels.telemetry import loop_image, scan_kernel
from shoal.channels.telemetry.lane_check import FALSE, FRESH
from shoal.channels.telemetry.tables import (
    ALWAYS,
    COUNTERS,
    METERED,
    MISSING,
    NEVER,
    NO_ROOM,
    NO_VERSION,
    REFUSED,
    REFUTED_MAX,
    TICKS_PER_S,
    Indexes,
    TableLimits,
    Tables,
    grow,
    make_tables,
    set_secrets,
)
from shoal.errors import ProtocolError
from shoal.wire.envelope import EPOCH_BITS
from shoal.wire.loop_source import PADDING_BYTES, Bytes, padded

FIRST_BUFFER_BYTES: Final = 262_144

OVERFLOW_MAX: Final = 64
"""Channels with more false messages than fit the list that are named; if there are more, all channels are meant."""

ACTIVE_CHANNELS_MAX: Final = 20_000
"""Channels of a time unit that are listed one by one, the busiest. The messages on the others are counted together."""

_NOTHING: Final = object()
_AT, _END, _FRAME_END, _STANDING, _WALK_AT, _LANE_OF, _CONTROL_LEFT = (
    (scan_kernel.CURSOR.names or ()).index(name)
    for name in ("at", "end", "frame_end", "standing", "walk_at", "lane_of", "control_left")
)
_BULK: Final = b"$"[0]
_UNLIMITED: Final = 1 << 62
_FAULTS: Final = {
    scan_kernel.BAD_LENGTH: "a length or a line is malformed",
    scan_kernel.BAD_TYPE: "a frame begins with an unknown type",
    scan_kernel.BAD_END: "a string does not end where its length says",
    scan_kernel.TOO_LARGE: "a frame is larger than frame_bytes_max",
}


class Frame(NamedTuple):
    """A frame for the agent: a reply (which may be None), or a push. A message on a watched channel is a push
    `[b"pmessage", b"*", channel, payload]`; its `standing` is one of `lane_check`."""

    value: Any
    push: bool
    standing: int = FRESH

    @property
    def authentic(self) -> bool:
        """Whether the message's publisher, or an agent in its place, has published it on this server."""
        return self.standing != FALSE


class Refuted(NamedTuple):
    """Messages with a false tag: by channel, each with stream, number and mark; and the channels that had more of them
    than fit the list, an empty name for all channels."""

    messages: dict[bytes, list[tuple[int, int, int]]]
    overflow: list[bytes]


class Listing(NamedTuple):
    """The streams of a channel with their last sequence numbers.

    `complete` is False if a limit of the tables was met, so that streams may be missing. `heard_by` says for each
    stream by when it was last heard, by the clock of `feed`.
    """

    streams: list[tuple[int, int]]
    complete: bool
    heard_by: list[float]
    told: list[bool]
    """Whether each stream's publisher has told how far it had come when the agent began to listen. Without secrets
    anyone could tell that, and it is not asked."""
    known: bool = True
    """Whether the channel is in the table."""


@dataclass(frozen=True, slots=True)
class UnitCounts:
    """The counts of one time unit, in columns; one row for each channel with a message."""

    channels: Indexes
    """The channels' indexes, as `Scanner.find` returns them, valid until channels are forgotten."""
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
    """Counts the messages of `PSUBSCRIBE *` on one RESP3 connection."""

    def __init__(
        self, frame_bytes_max: int, limits: TableLimits | None = None, observed_bytes_max: int | None = None
    ) -> None:
        """Larger observed messages than `observed_bytes_max` (None: `frame_bytes_max`) are only counted. Any other
        larger frame than `frame_bytes_max` is an error."""
        self._limits = limits or TableLimits()
        self._cursors = np.zeros(1, scan_kernel.CURSOR)
        self._cursors["frame_bytes_max"] = frame_bytes_max
        self._cursors["observed_bytes_max"] = observed_bytes_max or frame_bytes_max
        self._cursors["control_left"] = _UNLIMITED
        self.meter = np.full(scan_kernel.METER_ROWS, _UNLIMITED, scan_kernel.METER)
        """The quotas of clients that send control messages (`scan_kernel.METER`): none, unless the agent sets them."""
        self.meter["client"] = 0
        self._cursor = self._cursors.view(np.int64)
        """The same numbers, read and written faster; see `_AT`."""
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)
        self._buffer = np.zeros(FIRST_BUFFER_BYTES + PADDING_BYTES, np.uint8)
        self._view = self._buffer.data
        self._tables = make_tables(self._limits)
        self._bind(self._tables)
        self._first_tick: int | None = None
        self._tick: int | None = None
        self._observed_bytes = 0
        self._end = 0
        self._used_up = True
        """Whether all bytes have been scanned, so that the kernel need not be called."""
        self._fault: str | None = None
        self._server = ""
        self._secrets: tuple[bytes, ...] = ()
        self._refuted = Refuted({}, [])

    def _bind(self, tables: Tables) -> None:
        """Goes on with these tables, and with the loops that the process uses now."""
        self._tables = tables
        self._false = tables.head["refuted"]
        """The number of messages with a false tag in the tables, read faster."""
        self._loops = loop_image.current()
        self._prepared = self._loops.prepare(tables)
        self._bind_scan()

    def _bind_scan(self) -> None:
        self._scan_frames: Callable[[], int] = self._loops.bind(
            "scan_frames", self._buffer, self._cursors, self._prepared, self.meter
        )

    def _grow(self) -> None:
        self._bind(grow(self._tables))
        self._loops.call("fill_slots", self._prepared)

    def set_secrets(self, server: str, keys: Sequence[bytes]) -> None:
        """Checks the tags of messages from now on, see `tables.set_secrets`."""
        if (server, tuple(keys)) == (self._server, self._secrets):
            return
        dropped = not set(self._secrets).issubset(keys)
        self._server, self._secrets = server, tuple(keys)
        set_secrets(self._tables, server, keys, dropped)
        self._loops.call("fill_slots", self._prepared)

    def feed(self, data: bytes, now: float) -> None:
        """Takes bytes that had arrived by `now`, a time of a clock that is never set."""
        tick = int(now * TICKS_PER_S)
        if tick != self._tick:
            self._enter(tick)
        if self._loops is not loop_image.current():
            self._bind(self._tables)
        cursor, size = self._cursor, len(data)
        self._observed_bytes += size
        at = int(cursor[_AT])
        rest = self._end - at
        self._make_room(at, rest, size)
        self._view[rest : rest + size] = data
        cursor[_AT] = 0
        cursor[_LANE_OF] = scan_kernel.NO_LANE
        cursor[_END] = self._end = rest + size
        self._used_up = False
        if at:
            cursor[_WALK_AT] -= at

    def _enter(self, tick: int) -> None:
        if self._first_tick is None:
            self._first_tick = tick
        self._tick = tick
        self._tables.head["tick"] = tick - self._first_tick

    def _heard_by(self, ticks: npt.NDArray[np.int64]) -> list[float]:
        """The ends of ticks of the tables, by the clock of `feed`."""
        ends: list[float] = ((ticks + (self._first_tick or 0) + 1) / TICKS_PER_S).tolist()
        return ends

    def _make_room(self, at: int, rest: int, more: int) -> None:
        """Moves the unscanned bytes to the front of a buffer with room for `more`."""
        size = FIRST_BUFFER_BYTES
        while size < rest + more:
            size *= 2
        old = self._buffer
        if size + PADDING_BYTES > len(old) or (rest == 0 and size + PADDING_BYTES < len(old)):
            self._buffer = np.zeros(size + PADDING_BYTES, np.uint8)
            self._view = self._buffer.data
            self._bind_scan()
        if rest and (at or self._buffer is not old):
            self._buffer[:rest] = old[at : at + rest]

    def scan(self) -> Frame | None:
        """Counts up to the next frame for the agent and returns it; None if there is none.

        Raises `ProtocolError` for bytes that are not RESP3 and for a frame that is too large, and from then on until
        `reset`.
        """
        if self._fault is not None:
            raise ProtocolError(self._fault)
        if self._used_up:
            return None
        while True:
            status = self._scan_frames()
            if status == scan_kernel.USED_UP:
                return None
            if status == scan_kernel.OTHER:
                return self._take_frame()
            if status == scan_kernel.WATCHED:
                return self._take_watched()
            if status == scan_kernel.GROW:
                self._grow()
            else:
                raise self._broken(_FAULTS[status])

    def _take_frame(self) -> Frame:
        cursor, reader = self._cursor, self._reader
        frame_end = int(cursor[_FRAME_END])
        data = bytes(self._view[int(cursor[_AT]) : frame_end])
        if data[0] == _BULK:  # the kernel has checked its length
            cursor[_AT] = frame_end
            self._used_up = frame_end == self._end
            body_at = data.index(b"\r\n") + 2
            return Frame(data[body_at:-2] if body_at < len(data) else None, False)
        try:
            reader.feed(data)
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
        frame_end, name_at, name_end, payload_at, standing = self._cursor[_FRAME_END : _STANDING + 1].tolist()
        self._cursor[_AT] = frame_end
        self._used_up = frame_end == self._end
        name, payload = bytes(self._view[name_at:name_end]), bytes(self._view[payload_at : frame_end - 2])
        return Frame(hiredis.PushNotification([b"pmessage", b"*", name, payload]), True, standing)

    def _broken(self, fault: str) -> ProtocolError:
        self._fault = f"the observing connection does not carry RESP3: {fault}"
        return ProtocolError(self._fault)

    def reset(self) -> None:
        """Drops the bytes of a lost connection. The tables stay."""
        self._fault = None
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)
        self._end, self._used_up = 0, True
        for name in ("at", "end", "walk_at", "walk_left", "skip_left", "skip_strings"):
            self._cursors[name] = 0

    def clear(self) -> None:
        """Drops all channels and streams: a new incarnation of the agent begins."""
        self._bind(make_tables(self._limits, int(self._tables.head[0]["watch_new"])))
        if self._secrets:
            set_secrets(self._tables, self._server, self._secrets)
        self._refuted = Refuted({}, [])
        self._observed_bytes = 0
        self._tick = None

    def watch_new(self, metered: bool = False) -> None:
        """Watches every new channel from its first frame on, until `watch` changes that, and channels for which the
        tables have no room; with `metered` only as far as the meter allows."""
        self._tables.head[0]["watch_new"] = METERED if metered else ALWAYS

    def watch_all(self) -> None:
        """Watches every known channel, until `watch` changes that."""
        known = self._tables.channels[: self._tables.head[0]["channels"]]
        known["watched"] = 1
        known["but_version"] = NO_VERSION

    def watch(self, channel: bytes, on: bool, but_version: int | None = None) -> None:
        """Sets whether `scan` returns the messages of a channel or only counts them. Messages of the placement version
        `but_version` are only counted."""
        name = padded(channel)
        unless = NO_VERSION if but_version is None else but_version
        while self._loops.call("set_watched", self._prepared, name, len(channel), on, unless) == NO_ROOM:
            self._grow()

    def streams(self, channel: bytes) -> Listing:
        """The streams that published on a channel, with the last sequence number of each."""
        index = self.find(padded(channel), np.array([0, len(channel)], np.int32))[0]
        if index == MISSING:
            return Listing([], not self.refuses_channels, [], [], known=False)
        size = int(self._tables.channels[index]["streams"])
        streams, lasts = np.empty(size, np.uint64), np.empty(size, np.uint64)
        ticks, told = np.empty(size, np.int64), np.empty(size, np.bool_)
        self._loops.call("list_streams", self._prepared, index, streams, lasts, ticks, told)
        pairs = list(zip(streams.tolist(), lasts.tolist(), strict=True))
        complete = bool(self._tables.channels[index]["refused_tick"] == NEVER)
        return Listing(pairs, complete, self._heard_by(ticks), told.tolist() if self._secrets else [True] * len(pairs))

    def last_of(self, channel: bytes, stream: int) -> int | None:
        """The last sequence number of a stream; None if it is not known."""
        index = self._loops.call("find_stream_of", self._prepared, padded(channel), len(channel), stream)
        return None if index == MISSING else int(self._tables.streams[index]["last"])

    def set_stream(self, channel: bytes, stream: int, last: int) -> bool:
        """Raises the last sequence number of a stream, as its publisher reported it; False if a limit of the tables is
        met."""
        name = padded(channel)
        while True:
            index = self._loops.call("set_stream", self._prepared, name, len(channel), stream, last)
            if index != NO_ROOM:
                return index != REFUSED
            self._grow()

    def forget_idle(self, before: float) -> tuple[int, int]:
        """Drops streams that were silent since `before`, and idle channels without streams; returns their numbers."""
        self._collect_refuted()
        before_tick = int(before * TICKS_PER_S) - (self._first_tick or 0)
        tables, head = self._tables, self._tables.head[0]
        streams, channels = int(head["streams"]), int(head["channels"])
        moved = np.empty(streams, np.int32), np.empty(channels, np.int32)
        self._loops.call("forget", self._prepared, max(before_tick, NEVER + 1), *moved)
        dropped = streams - int(head["streams"]), channels - int(head["channels"])
        if any(dropped):
            tables.channel_slots[:] = 0
            tables.stream_slots[:] = 0
            self._loops.call("fill_slots", self._prepared)
        return dropped

    def channels(self) -> list[bytes]:
        """The names of all channels in the table."""
        return self._names(np.arange(self._tables.head[0]["channels"], dtype=np.int32))

    def active_channels(self) -> list[bytes]:
        """The names of the channels with a message in the current time unit, at most `ACTIVE_CHANNELS_MAX`."""
        return self._names(self._busiest())

    def _busiest(self) -> Indexes:
        """The indexes of the active channels; if there are too many, of those with the most bytes."""
        active = self._tables.active_channels[: self._tables.head[0]["active_channels"]]
        if len(active) > ACTIVE_CHANNELS_MAX:
            loads = self._tables.channels["frame_bytes"][active]
            active = active[np.sort(np.argpartition(loads, -ACTIVE_CHANNELS_MAX)[-ACTIVE_CHANNELS_MAX:])]
        return active.copy()

    def matching(self, pattern: bytes, steps_max: int) -> tuple[list[bytes], int, bool]:
        """The names of the channels that a pattern matches, the number of steps, and whether all were looked at."""
        found = np.zeros(self._tables.head[0]["channels"], np.bool_)
        steps = self._loops.call("match_channels", self._prepared, np.frombuffer(pattern, np.uint8), steps_max, found)
        return self._names(found.nonzero()[0].astype(np.int32)), max(steps, ~steps), steps >= 0

    @property
    def refuses_channels(self) -> bool:
        """Whether there was no room for a channel, so that any channel may be missing."""
        return bool(self._tables.head[0]["refused_tick"] != NEVER)

    def smallest_channels(self, streams_max: int) -> tuple[dict[bytes, dict[int, tuple[int, float]]], list[bytes]]:
        """The streams of as many channels as fit, those with the fewest streams first, each with its last number and
        by when it was last heard; and the channels that are left out or that are not complete."""
        head = self._tables.head[0]
        channels = self._tables.channels[: head["channels"]]
        records = self._tables.streams[: head["streams"]]
        order = np.argsort(channels["streams"], kind="stable")
        fits = np.zeros(len(channels), np.bool_)
        fits[order] = channels["streams"][order].cumsum() <= streams_max
        fits &= channels["streams"] > 0
        kept = records[fits[records["channel"]]]
        places = fits.nonzero()[0].astype(np.int32)
        name_of = dict(zip(places.tolist(), self._names(places), strict=True))
        found: dict[bytes, dict[int, tuple[int, float]]] = {name: {} for name in name_of.values()}
        heard_by = self._heard_by(kept["tick"].astype(np.int64))
        columns = (kept["channel"].tolist(), kept["stream"].tolist(), kept["last"].tolist(), heard_by)
        for channel, stream, last, by in zip(*columns, strict=True):
            found[name_of[channel]][stream] = last, by
        lacking = (channels["streams"] > 0) & ~fits | (channels["refused_tick"] != NEVER)
        return found, self._names(lacking.nonzero()[0].astype(np.int32))

    def _names(self, indexes: Indexes) -> list[bytes]:
        names, offsets = self._gather_names(indexes)
        blob, bounds = names.tobytes(), offsets.tolist()
        return [blob[bounds[row] : bounds[row + 1]] for row in range(len(bounds) - 1)]

    def find(self, names: Bytes, offsets: Indexes) -> Indexes:
        """The index of each channel, -1 if it is not known. `names` must end in padding (see `raw_bytes`)."""
        found = np.empty(len(offsets) - 1, np.int32)
        self._loops.call("find_channels", self._prepared, names, offsets, found)
        return found

    def _gather_names(self, indexes: Indexes) -> tuple[Bytes, Indexes]:
        """The names of channels, one after the other, and the offsets at which they begin; the last one is the end."""
        offsets = np.zeros(len(indexes) + 1, np.int32)
        self._tables.channels["name_bytes"][indexes].cumsum(out=offsets[1:])
        names = np.empty(offsets[-1], np.uint8)
        self._loops.call("gather_names", self._prepared, np.ascontiguousarray(indexes), offsets, names)
        return names, offsets

    def take_other_formats(self) -> tuple[int, int]:
        """The number of messages in envelopes of format 1, and with unknown flags, since the last call."""
        head = self._tables.head[0]
        found = int(head["envelopes_1"]), int(head["unknown_flags"])
        head["envelopes_1"] = head["unknown_flags"] = 0
        return found

    @property
    def refutes(self) -> bool:
        """Whether there were messages with a false tag since `take_refuted`."""
        return self._false.item() != 0 or bool(self._refuted.messages)

    def take_refuted(self) -> Refuted:
        """The messages with a false tag since the last call."""
        if not self.refutes:
            return Refuted({}, [])
        self._collect_refuted()
        taken, self._refuted = self._refuted, Refuted({}, [])
        return taken

    def _collect_refuted(self) -> None:
        """Takes the list out of the tables, before the indexes of channels change."""
        tables, head = self._tables, self._tables.head[0]
        entries = tables.refuted[: head["refuted"]]
        messages, overflow = self._refuted
        listed = sum(map(len, messages.values()))
        for name, entry in zip(self._names(entries["channel"]), entries.tolist(), strict=True):
            stream, number, mark, _, _ = entry
            if listed < REFUTED_MAX:
                listed += 1
                messages.setdefault(name, []).append((stream, number, mark))
            elif name not in overflow:
                overflow.append(name)
        if head["overflows"]:
            known = tables.channels[: head["channels"]]
            marked = known["overflowed"].nonzero()[0]
            overflow += [name for name in self._names(marked.astype(np.int32)) if name not in overflow]
            known["overflowed"] = 0
        if len(overflow) > OVERFLOW_MAX:
            overflow[:] = [b""]
        head["refuted"] = head["overflows"] = 0

    @property
    def control_left(self) -> int:
        """How many control messages of all clients `scan` may still return; see `scan_kernel`."""
        return int(self._cursor[_CONTROL_LEFT])

    @control_left.setter
    def control_left(self, count: int) -> None:
        self._cursor[_CONTROL_LEFT] = count

    def meter_row(self, client: int) -> int:
        """The row of a client in the meter."""
        return self._loops.call("find_meter_row", self._tables.head[0]["seed"], client)

    def take_passed_over(self) -> tuple[int, int, int]:
        """The number of messages that were too large, and of control messages and messages on new channels above a
        quota, since the last call."""
        head = self._tables.head[0]
        found = int(head["oversized"]), int(head["control_unread"]), int(head["not_looked_up"])
        head["oversized"] = head["control_unread"] = head["not_looked_up"] = 0
        return found

    def close_unit(self) -> UnitCounts:
        """The counts since the last call. A new time unit begins."""
        tables, head = self._tables, self._tables.head[0]
        active = self._busiest()
        everything = tables.active_channels[: head["active_channels"]]
        if len(active) < len(everything):
            self._count_together(everything, active)
        records = tables.channels[active]
        names, name_offsets = self._gather_names(active)
        publisher_rows, publishers = self._distinct_publishers(active)
        counts = UnitCounts(
            channels=active,
            names=names,
            name_offsets=name_offsets,
            counters={name: np.ascontiguousarray(records[name]) for name in COUNTERS},
            complete=records["refused_tick"] == NEVER,
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
            tables.channels[name][everything] = 0
        for name in ("uncounted", "uncounted_bytes", "internal", "internal_bytes"):
            head[name] = 0
        head["active_channels"] = head["active_streams"] = 0
        head["unit"] += 1
        return counts

    def _count_together(self, everything: Indexes, listed: Indexes) -> None:
        """Adds the counts of channels that are not listed to those of no channel."""
        head, channels = self._tables.head[0], self._tables.channels
        for total, names in (
            ("uncounted", ("publications", "forwarded", "beacons")),
            ("uncounted_bytes", ("frame_bytes",)),
        ):
            head[total] += sum(int(channels[name][everything].sum() - channels[name][listed].sum()) for name in names)

    def _distinct_publishers(self, active: Indexes) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
        """Row and client of each publisher of the time unit. Two streams of a client on a channel count once."""
        tables, head = self._tables, self._tables.head[0]
        records = tables.streams[tables.active_streams[: head["active_streams"]]]
        row_of = np.full(head["channels"], -1, np.int64)
        row_of[active] = np.arange(len(active))
        records = records[row_of[records["channel"]] >= 0]
        rows = row_of[records["channel"]]
        clients = records["stream"] >> np.uint64(EPOCH_BITS)
        order = np.lexsort((clients, rows))
        rows, clients = rows[order], clients[order]
        first = np.ones(len(rows), np.bool_)
        first[1:] = (rows[1:] != rows[:-1]) | (clients[1:] != clients[:-1])
        return rows[first], clients[first]
