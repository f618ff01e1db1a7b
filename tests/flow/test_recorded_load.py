"""Replays of load windows: sums over servers, idle windows, missing windows and duplicates."""

from __future__ import annotations

import pyarrow as pa
import pytest

from shoal.errors import ConfigError
from shoal.flow.workloads import Recorded, traffic_of
from shoal.flow.workloads.recorded_load import IDLE
from shoal.load.window import LoadWindow, window_schema
from shoal.load_kinds import KINDS

Unit = tuple[str, bytes, float, int, int, float]
"""Server, channel, publications a second, publishers, subscribers, bytes of a delivery."""


def window(start_s: int, *units: Unit) -> LoadWindow:
    rows = []
    for host, name, publications, publishers, subscribers, weight in units:
        sent = publications * subscribers
        row: dict[str, object] = {"kind": "channel", "host_kind": "server"}
        row |= {"host": host, "unit": name, "seconds": 2, "publications": publications, "forwarded": 0.0}
        row |= {"messages_sent": sent, "bytes_in": publications * weight, "bytes_out": sent * weight}
        row |= {"publishers": publishers, "subscribers": subscribers, "pattern_subscribers": 0, "complete": True}
        rows.append(row)
    return LoadWindow(start_s, start_s + 2, pa.Table.from_pylist(rows, window_schema(KINDS)))


def test_a_channel_is_replayed_with_its_rates_clients_and_message_size() -> None:
    load = Recorded(traffic_of([window(10, ("s1", b"a", 5.0, 2, 3, 100.0), ("s1", b"b", 1.0, 1, 0, 0.0))]), 7.0)
    assert load.seconds == 2
    traffic = load.at(1)
    names = load.names.to_pylist()
    a = names.index(b"a")
    assert traffic.publications.tolist() == [5.0 if name == b"a" else 1.0 for name in names]
    assert traffic.messages_out[a] == 15.0
    assert traffic.bytes_of(pa.array([a]).to_numpy()).tolist() == [100.0]  # type: ignore[union-attr]
    assert (traffic.clients, traffic.latency_ms) == (3, 7.0)


@pytest.mark.parametrize(
    ("units", "publications", "subscribers"),
    [
        # Few publications, many subscribers: subscribers divide, and every server has all publications.
        ([("s1", b"a", 2.0, 1, 30, 10.0), ("s2", b"a", 2.0, 1, 20, 10.0)], 2.0, 50),
        # Many publications, few subscribers: publishers divide, and every server has all subscribers.
        ([("s1", b"a", 200.0, 10, 3, 10.0), ("s2", b"a", 100.0, 5, 3, 10.0)], 300.0, 3),
    ],
)
def test_the_deliveries_of_a_channel_on_several_servers_are_right(
    units: list[Unit], publications: float, subscribers: int
) -> None:
    traffic = Recorded(traffic_of([window(0, *units)])).at(0)
    assert traffic.publications.tolist() == [publications]
    assert traffic.subscribers.tolist() == [subscribers]


def test_idle_windows_are_idle_missing_ones_repeat_the_last_and_duplicates_count_once() -> None:
    busy = ("s1", b"a", 5.0, 1, 1, 10.0)
    windows = [window(0, busy), window(2), window(6, busy), window(6, ("s1", b"a", 9.0, 1, 1, 10.0)), window(10, busy)]
    load = Recorded(traffic_of(reversed(windows[:3] + windows[4:])))
    assert [load.at(second).messages_out.sum() for second in range(12)] == [5, 5, 0, 0, 0, 0, 5, 5, 5, 5, 5, 5]
    assert set(load.names.to_pylist()) == {b"a", IDLE}
    doubled = Recorded(traffic_of(windows))
    assert doubled.at(6).messages_out.sum() == 5


def test_an_empty_table_is_rejected() -> None:
    with pytest.raises(ConfigError, match="no load to replay"):
        Recorded(traffic_of([]))
