"""The analyzer: closes each second with the figures of the paper's local load analyzer (Dynamoth, III.A).

Owns how the figures of a second are derived: from the scanner's counts, the agent's register of subscribers, and
samples of the server's own counters. Never touches a socket or a clock. `channel_kind` declares the columns.

`bytes_out` of a channel is exact, not an estimate from payloads: a frame for the agent differs from a subscriber's only
in the strings before the channel, whose lengths are known. The server's `bytes_out_per_s` excludes the agent's own copy
of every message: it does not leave the machine, but the server counts it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import chain, islice, repeat
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from shoal.channels.telemetry.channel_kind import CHANNEL, SERVER
from shoal.channels.telemetry.loop_image import match_names
from shoal.channels.telemetry.scanner import ACTIVE_CHANNELS_MAX, Scanner, UnitCounts
from shoal.errors import ProtocolError
from shoal.load.record import HostRow
from shoal.load.table import Numbers, Ragged, UnitTable
from shoal.wire.loop_source import padded

PATTERN_STEPS_MAX: Final = 20_000_000
"""Steps of matching patterns with channels in one second, about 40 ms. Patterns beyond it are left out of the figures,
and the rows are marked as incomplete."""
_OBSERVER_PREFIX: Final = len(b">4\r\n$8\r\npmessage\r\n$1\r\n*\r\n")
_SUBSCRIBER_PREFIX: Final = len(b">3\r\n$7\r\nmessage\r\n")


@dataclass(frozen=True, slots=True)
class ServerSample:
    """The server's own counters at one moment."""

    at_s: float
    """When it was taken, on the caller's clock."""
    run_id: str
    """Changes when the server restarts and its totals begin again."""
    bytes_in_total: int
    bytes_out_total: int
    cpu_seconds_total: float
    connections: int
    memory_bytes: int
    max_out_bytes_per_s: float
    """The configured limit of the server's output; 0 if there is none."""

    @classmethod
    def from_info(cls, info: bytes, at_s: float, max_out_bytes_per_s: float) -> ServerSample:
        """A sample from the reply to INFO."""
        lines = (line.partition(":") for line in info.decode("utf-8", "replace").splitlines())
        fields = {name: value for name, colon, value in lines if colon}
        try:
            return cls(
                at_s=at_s,
                run_id=fields["run_id"],
                bytes_in_total=int(fields["total_net_input_bytes"]),
                bytes_out_total=int(fields["total_net_output_bytes"]),
                cpu_seconds_total=float(fields["used_cpu_sys"]) + float(fields["used_cpu_user"]),
                connections=int(fields["connected_clients"]),
                memory_bytes=int(fields["used_memory"]),
                max_out_bytes_per_s=max_out_bytes_per_s,
            )
        except (KeyError, ValueError) as error:
            raise ProtocolError(f"INFO has a missing or malformed field: {error}") from error


class Second(NamedTuple):
    """A closed second: a row for each channel that is active or subscribed, and the row of the server."""

    second: int
    channels: UnitTable
    server: HostRow


class _Rows(NamedTuple):
    """The order of rows: first the channels in the register or in the reply to NUMSUB, then other active ones."""

    names: Ragged
    place: npt.NDArray[np.int64]
    """The row of each active channel, in the order of the scanner's counts."""
    registered: npt.NDArray[np.int64]
    direct: npt.NDArray[np.int64]
    total: int

    def spread(self, values: Numbers) -> Numbers:
        """A column of the active channels as one of all rows, zero elsewhere."""
        column = np.zeros(self.total, values.dtype)
        column[self.place] = values
        return column


class Analyzer:
    """Turns the counts of one scanner into reports.

    `listed_max` bounds each list of publishers and subscribers; the counts beside them are exact.
    """

    def __init__(self, scanner: Scanner, listed_max: int) -> None:
        self._scanner = scanner
        self._listed_max = listed_max
        self._sample: ServerSample | None = None

    def close_second(
        self,
        second: int,
        subscribers: Mapping[bytes, Collection[int]],
        numsub: Mapping[bytes, int],
        server: ServerSample,
        pattern_subscribers: Mapping[bytes, int] | None = None,
    ) -> Second:
        """Closes a second: everything that was counted since the last call.

        `subscribers` are the registered client ids by channel. `numsub` is the reply to PUBSUB NUMSUB, which includes
        plain Redis clients; channels that are not in it get the count of the register. `pattern_subscribers` is the
        number of connections by pattern, without the agent's own.
        """
        counts = self._scanner.close_unit()
        if len(subscribers) > ACTIVE_CHANNELS_MAX:  # the busiest channels, and some others, are in the reply to NUMSUB
            subscribers = {name: subscribers[name] for name in numsub if name in subscribers}
        rows = self._arrange(counts, subscribers, numsub)
        table = self._channels(counts, rows, subscribers, pattern_subscribers or {})
        kept = rows.direct + rows.registered > 0
        kept[rows.place] = True
        if not kept.all():
            table = table.take(np.flatnonzero(kept))
        previous, self._sample = self._sample, server
        return Second(second, table, _server(previous, server, counts))

    def _arrange(
        self, counts: UnitCounts, subscribers: Mapping[bytes, Collection[int]], numsub: Mapping[bytes, int]
    ) -> _Rows:
        named = [*subscribers, *(name for name in numsub if name not in subscribers)]
        blob = b"".join(named)
        offsets = np.zeros(len(named) + 1, np.int32)
        np.fromiter(map(len, named), np.int32, len(named)).cumsum(out=offsets[1:])
        found = self._scanner.find(padded(blob), offsets)
        active = len(counts.channels)
        row_of = np.full(max(found.max(initial=-1), counts.channels.max(initial=-1)) + 2, -1, np.int64)
        row_of[counts.channels] = np.arange(active)
        activity = row_of[found]  # the index of an unknown channel is -1: the spare last element
        place = np.full(active, -1, np.int64)
        known = (activity >= 0).nonzero()[0]
        place[activity[known]] = known
        others = (place < 0).nonzero()[0]
        total = len(named) + len(others)
        names = Ragged(offsets, np.frombuffer(blob, np.uint8))
        if len(others):
            place[others] = np.arange(len(named), total)
            names = names.joined(Ragged(counts.name_offsets, counts.names).take(others))
        registered, direct = np.zeros(total, np.int64), np.zeros(total, np.int64)
        registered[: len(subscribers)] = np.fromiter(map(len, subscribers.values()), np.int64, len(subscribers))
        asked = np.fromiter((numsub.get(name, -1) for name in named), np.int64, len(named))
        direct[: len(named)] = np.where(asked >= 0, asked, registered[: len(named)])
        return _Rows(names, place, registered, direct, total)

    def _channels(
        self,
        counts: UnitCounts,
        rows: _Rows,
        subscribers: Mapping[bytes, Collection[int]],
        pattern_subscribers: Mapping[bytes, int],
    ) -> UnitTable:
        columns: dict[str, Any] = {name: rows.spread(values) for name, values in counts.counters.items()}
        frames = columns["publications"] + columns["forwarded"] + columns["beacons"]
        frame_bytes = columns.pop("frame_bytes")
        frame_bytes_out = frame_bytes - (_OBSERVER_PREFIX - _SUBSCRIBER_PREFIX) * frames
        by_pattern = np.zeros(rows.total, np.int64)
        bytes_out = frame_bytes_out * rows.direct
        steps_left, unmatched = PATTERN_STEPS_MAX, False
        for pattern, receivers in pattern_subscribers.items():
            if steps_left <= 0:
                unmatched = True
                break
            found, steps, whole = match_names(rows.names.values, rows.names.offsets, pattern, steps_left)
            steps_left -= steps
            unmatched = unmatched or not whole
            matching = found * receivers
            longer = len(b"$%d\r\n%b\r\n" % (len(pattern), pattern)) - len(b"$1\r\n*\r\n")
            bytes_out += matching * (frame_bytes + longer * frames)
            by_pattern += matching
        complete = np.full(rows.total, not unmatched, np.bool_)
        complete[rows.place] &= counts.complete
        publishers, publisher_ids = self._publishers(counts, rows)
        columns |= {
            "publishers": publishers,
            "publisher_ids": publisher_ids,
            "subscribers": rows.direct,
            "registered": rows.registered,
            "subscriber_ids": self._subscribers(rows, subscribers),
            "pattern_subscribers": by_pattern,
            "messages_sent": (columns["publications"] + columns["forwarded"]) * (rows.direct + by_pattern),
            "bytes_out": bytes_out,
        }
        return UnitTable(CHANNEL, rows.names, columns, complete)

    def _publishers(self, counts: UnitCounts, rows: _Rows) -> tuple[Numbers, Ragged]:
        """The number of publishers of each channel, and the ids of up to `listed_max` of them."""
        amounts = np.bincount(rows.place[counts.publisher_rows], minlength=rows.total)
        order = rows.place[counts.publisher_rows].argsort(kind="stable")
        firsts = amounts.cumsum() - amounts
        listed = np.arange(len(order)) - firsts.repeat(amounts) < self._listed_max
        return amounts, Ragged.of_lengths(np.minimum(amounts, self._listed_max), counts.publishers[order][listed])

    def _subscribers(self, rows: _Rows, subscribers: Mapping[bytes, Collection[int]]) -> Ragged:
        """The ids of up to `listed_max` registered subscribers of each channel."""
        amounts = np.minimum(rows.registered, self._listed_max)
        some = map(islice, subscribers.values(), repeat(self._listed_max))
        ids = np.fromiter(chain.from_iterable(some), np.uint64, int(amounts.sum()))
        return Ragged.of_lengths(amounts, ids)


def _server(previous: ServerSample | None, sample: ServerSample, counts: UnitCounts) -> HostRow:
    """The row of the server. Rates need a previous sample with the same run id."""
    maximum = sample.max_out_bytes_per_s
    row: dict[str, float | int | None] = dict.fromkeys(column.name for column in SERVER.row)
    row |= {
        "max_out_bytes_per_s": maximum,
        "connections": sample.connections,
        "memory_bytes": sample.memory_bytes,
        "observed_bytes": counts.observed_bytes,
        "internal": counts.internal,
        "internal_bytes": counts.internal_bytes,
        "uncounted": counts.uncounted,
        "uncounted_bytes": counts.uncounted_bytes,
    }
    if previous is not None and previous.run_id == sample.run_id and sample.at_s > previous.at_s:
        interval_s = sample.at_s - previous.at_s
        output = sample.bytes_out_total - previous.bytes_out_total
        bytes_out_per_s = max(output - counts.observed_bytes, 0) / interval_s
        row |= {
            "interval_s": interval_s,
            "bytes_out_per_s": bytes_out_per_s,
            "net_output_bytes_per_s": output / interval_s,
            "net_input_bytes_per_s": (sample.bytes_in_total - previous.bytes_in_total) / interval_s,
            "load_ratio": bytes_out_per_s / maximum if maximum > 0 else None,
            "cpu_share": (sample.cpu_seconds_total - previous.cpu_seconds_total) / interval_s,
        }
    return row
