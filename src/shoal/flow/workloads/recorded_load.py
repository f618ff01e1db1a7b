"""Recorded load: replays what channels did in past load windows, second by second.

Owns the step from windows to a table of traffic, which is all that a run needs, and from that to a workload. Placements
are left out: a policy decides them.

A window has one row for each channel and host. The load of a channel is the sum of its rows, with one ambiguity: if a
channel is on several servers, either its publishers divide among them (and every subscriber is on all), or its
subscribers do. The number of deliveries is the same. The replay assumes what a policy would choose: subscribers divide
if there are more of them than publications a second. A second without a window repeats the last one before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shoal.balance.columns import Floats, Ints
from shoal.errors import ConfigError
from shoal.flow.traffic import Traffic
from shoal.load.kinds import CHANNEL
from shoal.load.window import LoadWindow

MESSAGE_BYTES: Final = 200.0
"""Size of a message on a channel without deliveries."""
IDLE: Final = b""
"""The name in the single row of a window without load. No channel has this name."""

TRAFFIC_SCHEMA: Final = pa.schema(
    [
        ("start_s", pa.int64()),  # of the window
        ("end_s", pa.int64()),
        ("channel", pa.binary()),
        ("publications", pa.float64()),  # distinct, a second
        ("publishers", pa.int64()),
        ("subscribers", pa.int64()),
        ("message_bytes", pa.float64()),  # of one delivery
    ]
)


def traffic_of(windows: Iterable[LoadWindow]) -> pa.Table:
    """The load of channels, window by window. Of overlapping windows the first one counts."""
    parts: list[pa.Table] = []
    until_s = -(2**62)
    for window in sorted(windows, key=lambda window: window.start_s):
        if window.start_s >= until_s:
            parts.append(_traffic(window))
            until_s = window.end_s
    return pa.concat_tables(parts) if parts else TRAFFIC_SCHEMA.empty_table()


def _traffic(window: LoadWindow) -> pa.Table:
    units = window.units_of(CHANNEL)
    if not units.num_rows:
        nothing = {"start_s": window.start_s, "end_s": window.end_s, "channel": IDLE, "message_bytes": MESSAGE_BYTES}
        zeros = dict.fromkeys(("publications", "publishers", "subscribers"), 0)
        return pa.Table.from_pylist([nothing | zeros], TRAFFIC_SCHEMA)
    coded = units["unit"].combine_chunks().dictionary_encode()
    rows, count = coded.indices.to_numpy(), len(coded.dictionary)
    publications, sent, weight = (units[name].to_numpy() for name in ("publications", "messages_sent", "bytes_out"))
    publishers = units["publishers"].fill_null(0).to_numpy()
    subscribers = pc.add(units["subscribers"].fill_null(0), units["pattern_subscribers"].fill_null(0)).to_numpy()
    delivered = np.bincount(rows, sent, count)
    divided = _most(rows, subscribers, count) > np.bincount(rows, publications, count)
    published = np.where(divided, _most(rows, publications, count), np.bincount(rows, publications, count))
    receivers = np.where(divided, np.bincount(rows, subscribers, count), _most(rows, subscribers, count))
    publications_each = np.divide(delivered, receivers, out=published.copy(), where=(receivers > 0) & (delivered > 0))
    bytes_each = np.divide(
        np.bincount(rows, weight, count), delivered, out=np.full(count, MESSAGE_BYTES), where=delivered > 0
    )
    columns = [
        np.full(count, window.start_s),
        np.full(count, window.end_s),
        coded.dictionary,
        publications_each,
        np.where(divided, _most(rows, publishers, count), np.bincount(rows, publishers, count)).astype(np.int64),
        receivers.astype(np.int64),
        bytes_each,
    ]
    return pa.table(columns, schema=TRAFFIC_SCHEMA)


def _most(rows: Ints, values: Floats | Ints, count: int) -> Floats:
    """The largest value of each row."""
    most = np.zeros(count)
    np.maximum.at(most, rows, values)
    return most


class Recorded:
    """A table of traffic as a workload. Second 0 is the start of the first window."""

    def __init__(self, traffic: pa.Table, latency_ms: float = 0.0) -> None:
        if not traffic.num_rows:
            raise ConfigError("no load to replay", do="record load windows first")
        coded = traffic["channel"].combine_chunks().dictionary_encode()
        self.names = coded.dictionary
        self._rows: Ints = coded.indices.to_numpy().astype(np.int64)
        starts, ends = traffic["start_s"].to_numpy(), traffic["end_s"].to_numpy()
        self._first = np.flatnonzero(np.diff(starts, prepend=starts[0] - 1))
        self._last = np.append(self._first[1:], len(starts))
        self._starts = starts[self._first] - starts[0]
        self.seconds = int(ends.max() - starts[0])
        self._columns = {name: traffic[name].to_numpy() for name in TRAFFIC_SCHEMA.names[3:]}
        self._latency_ms = latency_ms
        self._open = -1
        self._traffic: Traffic

    def at(self, second: int) -> Traffic:
        """The traffic of a second."""
        window = max(0, int(np.searchsorted(self._starts, second, side="right")) - 1)
        if window != self._open:
            self._open, self._traffic = window, self._of(window)
        return self._traffic

    def _of(self, window: int) -> Traffic:
        here = slice(self._first[window], self._last[window])
        rows, count = self._rows[here], len(self.names)

        def column(name: str, otherwise: float = 0.0) -> Floats:
            values = np.full(count, otherwise)
            values[rows] = self._columns[name][here]
            return values

        publications = column("publications")
        publishers = column("publishers").astype(np.int64)
        return Traffic(
            publications=publications,
            publishers=publishers,
            subscribers=column("subscribers").astype(np.int64),
            message_bytes=column("message_bytes", MESSAGE_BYTES),
            responses=publications,
            latency_ms=self._latency_ms,
            clients=int(publishers.sum()),
        )
