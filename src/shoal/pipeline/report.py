"""What messages and load windows say about a cluster: latency, traffic and cost, by channel, publisher and hour.

Owns the figures, as functions from Arrow to Arrow. `message_totals` and `load_totals` reduce any part of an archive or
of kept load windows to counts that can be added up, in process or in Spark's workers; `make_report` adds them up.

Latency is the time from the publication of a message (the publisher's clock) to its entry in the record (the server's
clock). Messages of plain Redis clients have no time of publication, and count as traffic only.

Cost is in server hours. A server costs one hour for each hour in which it reported. The time of a server in a window is
divided among its channels in proportion to the work that they caused there: by the cost models of their kinds (the ones
that the balancer uses) for the resource of which the server used the largest share, bandwidth or CPU. Time without work
is idle and belongs to no channel. The cost of a channel in an hour is divided among its publishers by the bytes that
they published then, as far as the archive has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shoal.history.table import TIME, channel_matches
from shoal.load.costs import work_of
from shoal.load.table import Floats
from shoal.load_kinds import KINDS
from shoal.pipeline.log_buckets import buckets_of, percentile_us

MESSAGE_COLUMNS: Final = ("channel", "publisher", "published_at", "recorded_at", "payload")
"""The columns of an archive that `message_totals` needs."""

MESSAGE_TOTALS: Final = pa.schema(
    [
        pa.field("channel", pa.string()),
        pa.field("hour_s", pa.int64()),
        pa.field("publisher", pa.int64()),
        pa.field("bucket", pa.int32()),
        pa.field("messages", pa.int64()),
        pa.field("bytes", pa.int64()),
    ]
)
"""Messages by publisher (`bucket` is null), and by latency (`publisher` is null)."""

LOAD_TOTALS: Final = pa.schema(
    [
        pa.field("channel", pa.string()),
        pa.field("hour_s", pa.int64()),
        pa.field("server_s", pa.float64()),
        pa.field("idle_s", pa.float64()),
        pa.field("published", pa.float64()),
        pa.field("published_bytes", pa.float64()),
        pa.field("delivered", pa.float64()),
        pa.field("delivered_bytes", pa.float64()),
    ]
)
"""Load by channel; `channel` is null for the servers themselves, and only they have `idle_s`."""

LIMITS: Final = {"bandwidth_bytes_per_s": "capacity_bytes_per_s", "cpu_share": None}
"""Resources of a host, and the figure with how much of each there is; None: 1, which is one core."""

PERCENTILES: Final = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99}
HOUR_S: Final = 3600
PARTS_MAX: Final = 64
"""Partial counts that are held before they are added up."""
_AMOUNTS: Final = {
    "published": "publications",
    "published_bytes": "bytes_in",
    "delivered": "messages_sent",
    "delivered_bytes": "bytes_out",
}
"""Amounts in `LOAD_TOTALS`, and the rates of a load window that they are from."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The tables of a report, each sorted: channels and publishers by cost and traffic, hours by time. Figures of
    messages are null where the archive has none, figures of load where the windows have none."""

    channels: pa.Table
    publishers: pa.Table
    hours: pa.Table
    channel_hours: pa.Table
    totals: dict[str, Any]

    @property
    def tables(self) -> dict[str, pa.Table]:
        """By name."""
        names = ("channels", "publishers", "hours", "channel_hours")
        return {name: getattr(self, name) for name in names}


def message_totals(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Counts messages with the columns `MESSAGE_COLUMNS`; one batch of `MESSAGE_TOTALS`."""
    parts: list[pa.Table] = []
    for batch in batches:
        times_us = batch.column("published_at").cast(pa.int64())
        latency_us = pc.subtract(batch.column("recorded_at").cast(pa.int64()), times_us).to_numpy()
        rows = pa.table(
            {
                "channel": batch.column("channel"),
                "hour_s": pa.array(times_us.to_numpy() // (HOUR_S * 1_000_000) * HOUR_S),
                "publisher": batch.column("publisher"),
                "bucket": buckets_of(latency_us),
                "messages": pa.repeat(pa.scalar(1, pa.int64()), batch.num_rows),
                "bytes": pc.fill_null(pc.binary_length(batch.column("payload")), 0).cast(pa.int64()),
            }
        )
        timed = rows.filter(pc.greater(pc.fill_null(rows["publisher"], 0), 0))
        parts += [_added(_without(rows, "bucket")), _added(_without(timed, "publisher"))]
        if len(parts) >= PARTS_MAX:
            parts = [_added(_joined(parts, MESSAGE_TOTALS))]
    yield from _added(_joined(parts, MESSAGE_TOTALS)).combine_chunks().to_batches()


def _without(rows: pa.Table, column: str) -> pa.Table:
    """The rows with null in a column."""
    at = MESSAGE_TOTALS.get_field_index(column)
    return rows.set_column(at, MESSAGE_TOTALS.field(at), pa.nulls(rows.num_rows, MESSAGE_TOTALS.field(at).type))


def _added(rows: pa.Table) -> pa.Table:
    """Adds up rows of `MESSAGE_TOTALS`."""
    keys, sums = MESSAGE_TOTALS.names[:4], MESSAGE_TOTALS.names[4:]
    return _sums(rows, keys, sums).cast(MESSAGE_TOTALS)


def _sums(rows: pa.Table, keys: Sequence[str], columns: Sequence[str]) -> pa.Table:
    """The sums of columns by keys."""
    added = rows.group_by(list(keys), use_threads=False).aggregate([(name, "sum") for name in columns])
    return added.select([*keys, *(f"{name}_sum" for name in columns)]).rename_columns([*keys, *columns])


def _joined(parts: Sequence[pa.Table], schema: pa.Schema) -> pa.Table:
    return pa.concat_tables([schema.empty_table(), *parts])


def load_totals(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Adds up rows of kept load windows (`kept_windows.KEPT_SCHEMA`), which have all rows of each window; one batch of
    `LOAD_TOTALS`."""
    rows = pa.Table.from_batches(batches)
    hosts = rows.filter(pc.is_null(rows["kind"]))
    busiest, places = _busiest(hosts), _places(hosts)
    length_s = hosts["seconds"].to_numpy().astype(np.float64)
    done, found = np.zeros(hosts.num_rows), []
    for kind in KINDS.units:
        units = rows.filter(pc.equal(rows["kind"], kind.name))
        where = _where(units, places)
        units, where = units.filter(pa.array(where >= 0)), where[where >= 0]
        work = np.zeros(units.num_rows)
        for number, resource in enumerate(LIMITS):
            of_resource = busiest[where] == number
            work[of_resource] = work_of(units, kind.cost(resource))[of_resource]
        done += np.bincount(where, work, hosts.num_rows)
        found.append((units, where, work))
    parts = [_load_rows(hosts, None, length_s, np.where(done > 0, 0.0, length_s))]
    price = np.divide(length_s, done, out=np.zeros(len(done)), where=done > 0)
    parts += [
        _load_rows(units, units["unit"], work * price[where], np.zeros(units.num_rows)) for units, where, work in found
    ]
    keys = LOAD_TOTALS.names[:2]
    added = _sums(_joined(parts, LOAD_TOTALS), keys, LOAD_TOTALS.names[2:]).cast(LOAD_TOTALS)
    yield from added.combine_chunks().to_batches()


def _busiest(hosts: pa.Table) -> Any:
    """For each row of a host, the number of the resource in `LIMITS` of which it used the largest share."""
    shares = []
    for resource, limit in LIMITS.items():
        used = pc.fill_null(hosts[resource], 0.0).to_numpy()
        there = np.ones(len(used)) if limit is None else pc.fill_null(hosts[limit], 0.0).to_numpy()
        shares.append(np.divide(used, there, out=np.zeros(len(used)), where=there > 0))
    return np.argmax(shares, axis=0)


def _places(hosts: pa.Table) -> dict[tuple[int, str], int]:
    """The place of each row of a host, by window and host."""
    starts = hosts["start_at"].cast(pa.int64()).to_pylist()
    return {key: place for place, key in enumerate(zip(starts, hosts["host"].to_pylist(), strict=True))}


def _where(units: pa.Table, places: dict[tuple[int, str], int]) -> Any:
    """The place of the host's row for each row of a unit; -1 if there is none."""
    encoded = units["host"].combine_chunks().dictionary_encode()
    codes, names = encoded.indices.to_numpy(), encoded.dictionary.to_pylist()
    starts = units["start_at"].cast(pa.int64()).to_numpy()
    keys, back = np.unique(np.stack([starts, codes]), axis=1, return_inverse=True)
    of_keys = [places.get((int(start), names[code]), -1) for start, code in keys.T.tolist()]
    return np.array(of_keys, np.int64)[back.reshape(-1)]


def _load_rows(rows: pa.Table, channels: pa.ChunkedArray | None, server_s: Floats, idle_s: Floats) -> pa.Table:
    """Rows of load windows as rows of `LOAD_TOTALS`."""
    seconds = rows["seconds"].to_numpy()
    starts_s = rows["start_at"].cast(pa.int64()).to_numpy() // 1_000_000
    columns = {
        "channel": pa.nulls(rows.num_rows, pa.string()) if channels is None else channels,
        "hour_s": pa.array(starts_s // HOUR_S * HOUR_S),
        "server_s": server_s,
        "idle_s": idle_s,
        **{name: pc.fill_null(rows[rate], 0.0).to_numpy() * seconds for name, rate in _AMOUNTS.items()},
    }
    return pa.table(columns, schema=LOAD_TOTALS)


def make_report(messages: pa.Table | None, load: pa.Table | None, pattern: str | None = None) -> Report:
    """The report from rows of `MESSAGE_TOTALS` (None: there is no archive) and of `LOAD_TOTALS` (None: there are no
    windows), of the channels that a pattern matches (None: all)."""
    counted = MESSAGE_TOTALS.empty_table() if messages is None else _added(_chosen(messages, pattern))
    loaded = LOAD_TOTALS.empty_table() if load is None else load
    servers = loaded.filter(pc.is_null(loaded["channel"]))
    units = _chosen(loaded.filter(pc.is_valid(loaded["channel"])), pattern)
    traffic, latency = (counted.filter(test(counted["bucket"])) for test in (pc.is_null, pc.is_valid))
    by_channel = _rows(["channel"], traffic, latency, units)
    hours = _rows(["hour_s"], traffic, latency, units)
    ran = _sums(servers, ["hour_s"], ["server_s", "idle_s"])
    publishers = _publishers(traffic, units)
    return Report(
        channels=_sorted(by_channel),
        publishers=_sorted(publishers),
        hours=_dated(_with_servers(hours, ran, pattern)),
        channel_hours=_dated(_rows(["channel", "hour_s"], traffic, latency, units)),
        totals=_totals(by_channel, publishers, latency, servers),
    )


def _chosen(rows: pa.Table, pattern: str | None) -> pa.Table:
    if pattern is None:
        return rows
    wanted = [text for text in pc.unique(rows["channel"]).to_pylist() if channel_matches(pattern, text)]
    return rows.filter(pc.is_in(rows["channel"], pa.array(wanted, pa.string())))


def _rows(keys: list[str], traffic: pa.Table, latency: pa.Table, units: pa.Table) -> pa.Table:
    """Messages, latency and load by keys; null where there are none."""
    table = _sums(traffic, keys, ["messages", "bytes"])
    table = table.join(_percentiles(latency, keys), keys, join_type="full outer")
    load = _sums(units, keys, ["server_s", *_AMOUNTS])
    table = table.join(load, keys, join_type="full outer")
    hours = pc.divide(table["server_s"], HOUR_S)
    return table.drop_columns(["server_s"]).append_column("server_hours", hours)


def _percentiles(latency: pa.Table, keys: list[str]) -> pa.Table:
    """The percentiles of latency by keys."""
    ordered = latency.sort_by([(name, "ascending") for name in keys])
    codes = ordered.select(keys)
    groups = codes.group_by(keys, use_threads=False).aggregate([([], "count_all")])
    ends = np.cumsum(groups["count_all"].to_numpy()) if groups.num_rows else np.zeros(0, np.int64)
    buckets, counts = ordered["bucket"].to_numpy(), ordered["messages"].to_numpy()
    spans = list(zip([0, *ends.tolist()], ends.tolist(), strict=False))
    columns: dict[str, Any] = {name: groups[name] for name in keys}
    for name, share in PERCENTILES.items():
        found = [percentile_us(buckets[begin:end], counts[begin:end], share) for begin, end in spans]
        columns[name] = pa.array([None if time is None else time / 1000 for time in found], pa.float64())
    return pa.table(columns)


def _publishers(traffic: pa.Table, units: pa.Table) -> pa.Table:
    """Traffic and cost by publisher. The cost of a channel in an hour is divided by the bytes published then; by
    messages if all of them were empty."""
    keys = ["channel", "hour_s"]
    cost = _sums(units, keys, ["server_s"])
    whole = _sums(traffic, keys, ["messages", "bytes"]).rename_columns([*keys, "all_messages", "all_bytes"])
    rows = traffic.join(whole, keys).join(cost, keys)
    by_bytes = pc.greater(rows["all_bytes"], 0)
    part = pc.if_else(by_bytes, rows["bytes"], rows["messages"]).cast(pa.float64())
    of_all = pc.if_else(by_bytes, rows["all_bytes"], rows["all_messages"]).cast(pa.float64())
    hours = pc.multiply(pc.divide(part, of_all), pc.divide(rows["server_s"], HOUR_S))
    rows = rows.append_column("server_hours", hours)
    table = _sums(rows, ["publisher"], ["messages", "bytes", "server_hours"])
    channels = rows.group_by(["publisher"], use_threads=False).aggregate([("channel", "count_distinct")])
    channels = channels.rename_columns({"channel_count_distinct": "channels"})
    return table.join(channels, ["publisher"])


def _with_servers(hours: pa.Table, ran: pa.Table, pattern: str | None) -> pa.Table:
    """Adds what all servers cost in each hour, and how much of it was idle. Without a pattern, hours without load are
    rows too."""
    ran = pa.table(
        {
            "hour_s": ran["hour_s"],
            "all_server_hours": pc.divide(ran["server_s"], HOUR_S),
            "idle_server_hours": pc.divide(ran["idle_s"], HOUR_S),
        }
    )
    return hours.join(ran, ["hour_s"], join_type="full outer" if pattern is None else "left outer")


def _sorted(table: pa.Table) -> pa.Table:
    """The busiest rows first: by cost, then by messages, then by name."""
    order = [("server_hours", "descending"), ("messages", "descending"), (table.column_names[0], "ascending")]
    return table.sort_by(order)


def _dated(table: pa.Table) -> pa.Table:
    """Rows by time, with the hour as a time."""
    names = [name for name in ("channel", "hour_s") if name in table.column_names]
    table = table.sort_by([(name, "ascending") for name in reversed(names)])
    at = table.column_names.index("hour_s")
    return table.set_column(at, "hour", pc.multiply(table["hour_s"], 1_000_000).cast(TIME))


def _totals(channels: pa.Table, publishers: pa.Table, latency: pa.Table, servers: pa.Table) -> dict[str, Any]:
    buckets, counts = latency["bucket"].to_numpy(), latency["messages"].to_numpy()
    times = {name: percentile_us(buckets, counts, share) for name, share in PERCENTILES.items()}
    sums = {name: pc.sum(channels[name]).as_py() for name in ("messages", "bytes", *_AMOUNTS, "server_hours")}
    total = pc.sum(servers["server_s"]).as_py()
    idle = pc.sum(servers["idle_s"]).as_py()
    return {
        "channels": channels.num_rows,
        "publishers": publishers.num_rows,
        **sums,
        **{name: None if time is None else time / 1000 for name, time in times.items()},
        "clocks_differ": int(counts[buckets < 0].sum()),
        "all_server_hours": None if total is None else total / HOUR_S,
        "idle_server_hours": None if idle is None else idle / HOUR_S,
    }
