"""Generated load windows: some days of load from a seed, to try what-if and forecasts without a recording.

Owns the generated load: channels of very different load (Zipf) whose sum follows a daily curve, with variation by day
and hour, and an event every evening for which many clients come at once. Days are short (an hour takes `HOUR_S`), so
that a grid of settings is replayed in minutes; a policy has less time to react than in reality. The windows contain
servers, on which the hash ring places the channels.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shoal.balance.columns import Floats
from shoal.flow import ServerModel, Traffic, at_homes, distance_model
from shoal.flow.model import DEFAULT_SERVER
from shoal.flow.workloads import Curve, Zipf, ZipfChannels
from shoal.flow.workloads.curves import DAY
from shoal.load.kinds import CHANNEL, SERVER
from shoal.load.window import LoadWindow, repeated, window_schema
from shoal.load_kinds import KINDS

HOUR_S: Final = 60
DAY_S: Final = 24 * HOUR_S
WINDOW_S: Final = 2
CHANNELS: Final = 200
SERVERS: Final = 2
"""Servers in the windows, with which a replay also starts."""
PEAK_SERVERS: Final = 2.8
"""Load of the busiest hour, in servers' worth of capacity."""
EVENT_HOUR: Final = 20
"""When the evening's event starts, during the daily peak."""
EVENT_RISE: Final = 1.8
"""Factor by which the event raises the load, within `EVENT_RAMP_S`."""
EVENT_HOURS: Final = 1.5
EVENT_RAMP_S: Final = 10
DAY_SPREAD: Final = 0.06
"""Standard deviation of a day's level, as a share."""
HOUR_SPREAD: Final = 0.03
"""Standard deviation of an hour's level, as a share."""
SUBSCRIBERS: Final = 10
MESSAGE_BYTES: Final = 200.0


def curve(days: int, seed: int) -> Curve:
    """The load over some days, as a share of an ordinary day's busiest hour."""
    rng = np.random.default_rng([seed, days])
    level = np.repeat(1.0 + rng.normal(0.0, DAY_SPREAD, days).clip(-0.15, 0.15), 24)
    hours = np.tile(DAY, days) * level * (1.0 + rng.normal(0.0, HOUR_SPREAD, 24 * days).clip(-0.1, 0.1))
    base = Curve(tuple((float(hour * HOUR_S), float(share)) for hour, share in enumerate([*hours, hours[0]])))
    seconds = np.arange(days * DAY_S + 1)
    shares = base.at(seconds) * _event(seconds % DAY_S)
    return Curve(tuple(zip(seconds.astype(float).tolist(), shares.tolist(), strict=True)))


def _event(second: npt.NDArray[np.int64]) -> Floats:
    """The event's factor at each second of a day."""
    begins, ends = EVENT_HOUR * HOUR_S, (EVENT_HOUR + EVENT_HOURS) * HOUR_S
    points = [begins - EVENT_RAMP_S, begins, ends, ends + HOUR_S]
    return np.asarray(np.interp(second, points, [1.0, EVENT_RISE, EVENT_RISE, 1.0]), np.float64)


def make_windows(
    days: int, seed: int, server: ServerModel = DEFAULT_SERVER, *, starts: Iterable[int] | None = None
) -> list[LoadWindow]:
    """The windows of some days, from second 0 on; `starts`: only those that start at these seconds."""
    deliveries = PEAK_SERVERS * server.capacity_bytes_per_s / MESSAGE_BYTES
    zipf = Zipf(CHANNELS, deliveries / SUBSCRIBERS, exponent=0.8, subscribers=SUBSCRIBERS, message_bytes=MESSAGE_BYTES)
    load = ZipfChannels(zipf, curve(days, seed), distance_model(), seed)
    ids = tuple(f"s{number}" for number in range(1, SERVERS + 1))
    homes = at_homes(load.names, ids).servers
    return [
        _window(start_s, load.names, load.at(start_s + WINDOW_S // 2), homes, ids, server)
        for start_s in (range(0, days * DAY_S, WINDOW_S) if starts is None else starts)
    ]


def _window(
    start_s: int,
    names: pa.Array,
    traffic: Traffic,
    homes: npt.NDArray[np.int32],
    ids: tuple[str, ...],
    server: ServerModel,
) -> LoadWindow:
    channels, hosts = len(names), len(ids)
    sent = traffic.messages_out
    weight = sent * traffic.message_bytes
    cores = traffic.publications * server.publication_cpu_s + sent * server.delivery_cpu_s

    def column(by_channel: Floats) -> Floats:
        """The values of channels, then their sums by host."""
        return np.concatenate([by_channel, np.bincount(homes, by_channel, hosts)])

    def of_hosts(values: npt.ArrayLike, kind: pa.DataType) -> pa.Array:
        numbers = np.broadcast_to(np.asarray(values), (hosts,))
        return pa.concat_arrays([pa.nulls(channels, kind), pa.array(numbers, kind)])

    def of_channels(values: npt.NDArray[np.int64]) -> pa.Array:
        return pa.concat_arrays([pa.array(values, pa.int64()), pa.nulls(hosts, pa.int64())])

    bytes_out = np.bincount(homes, weight, hosts)
    given: dict[str, object] = {
        "kind": pa.concat_arrays([repeated(CHANNEL, channels), repeated(None, hosts, [CHANNEL])]),
        "host_kind": repeated(SERVER, channels + hosts),
        "site": repeated(None, channels + hosts),
        "host": pa.concat_arrays([pa.array(ids).take(pa.array(homes)), pa.array(ids)]),
        "unit": pa.concat_arrays([names, pa.nulls(hosts, pa.binary())]),
        "seconds": np.full(channels + hosts, WINDOW_S, np.int32),
        "publications": column(traffic.publications),
        "forwarded": np.zeros(channels + hosts),
        "messages_sent": column(sent),
        "bytes_in": column(traffic.publications * MESSAGE_BYTES),
        "bytes_out": column(weight),
        "publishers": of_channels(traffic.publishers),
        "subscribers": of_channels(traffic.subscribers),
        "pattern_subscribers": of_channels(np.zeros(channels, np.int64)),
        "capacity_bytes_per_s": of_hosts(np.full(hosts, server.capacity_bytes_per_s), pa.float64()),
        "bandwidth_bytes_per_s": of_hosts(bytes_out, pa.float64()),
        "cpu_share": of_hosts(np.bincount(homes, cores, hosts), pa.float64()),
        "connections": of_hosts(int(traffic.clients), pa.int64()),
        "complete": np.ones(channels + hosts, np.bool_),
    }
    schema = window_schema(KINDS)
    given |= {field.name: pa.nulls(channels + hosts, field.type) for field in schema if field.name not in given}
    return LoadWindow(start_s, start_s + WINDOW_S, pa.table(given, schema=schema))
