"""A load window survives encoding, and invalid bytes are refused."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.load.telemetry_samples import hosts_of, record, records_to_batch, units_of

from shoal.balance.settings import BalanceSettings
from shoal.errors import ProtocolError
from shoal.load.fold import fold
from shoal.load.fold_state import FoldState
from shoal.load.window import END_KEY, KEPT_VERSIONS, START_KEY, VERSION_KEY, WINDOW_VERSION, LoadWindow, window_schema
from shoal.load_kinds import KINDS


def make_window(channels: int = 3) -> LoadWindow:
    names = {b"\xff%d" % number: {"publications": number, "subscribers": 2} for number in range(channels)}
    records = [record(host, second, names) for host in ("one", "two") for second in (100, 101)]
    windows, _ = fold(FoldState(), records_to_batch((made, 102.0) for made in records), 110.0, BalanceSettings(), KINDS)
    return windows[0]


@pytest.mark.parametrize("channels", [0, 1, 500])
def test_round_trip(channels: int) -> None:
    window = make_window(channels)
    again = LoadWindow.from_bytes(window.to_bytes(), KINDS)
    assert again == window
    assert (again.start_s, again.end_s) == (100, 102)
    assert again.units.num_rows == 2 * channels
    assert list(hosts_of(again)) == ["one", "two"]


def test_it_has_the_columns_of_the_schema_and_a_row_for_each_host() -> None:
    window = make_window()
    assert window.table.schema.equals(window_schema(KINDS))
    assert window.table.num_rows == window.hosts.num_rows + window.units.num_rows == 2 + 6
    row = units_of(window)["two", b"\xff2"]
    assert (row["publications"], row["subscribers"], row["seconds"], row["connections"]) == (2.0, 2, 2, None)


def bytes_of(table: pa.Table, metadata: dict[bytes, bytes]) -> bytes:
    sink = pa.BufferOutputStream()
    table = table.replace_schema_metadata(metadata)
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


@pytest.mark.parametrize(
    ("metadata", "complaint"),
    [
        ({}, "None"),
        ({VERSION_KEY: b"99"}, "99"),
        ({VERSION_KEY: WINDOW_VERSION}, "interval"),
        ({VERSION_KEY: WINDOW_VERSION, START_KEY: b"x", END_KEY: b"2"}, "interval"),
    ],
)
def test_another_version_or_no_interval_is_refused(metadata: dict[bytes, bytes], complaint: str) -> None:
    with pytest.raises(ProtocolError, match=complaint):
        LoadWindow.from_bytes(bytes_of(make_window().table, metadata), KINDS)


METADATA = {VERSION_KEY: WINDOW_VERSION, START_KEY: b"100", END_KEY: b"102"}


@pytest.mark.parametrize("name", ["kind", "unit", "host", "host_kind", "site", "seconds", "complete"])
def test_missing_columns_are_refused(name: str) -> None:
    table = make_window().table.drop_columns([name])
    with pytest.raises(ProtocolError, match=f"has no column {name} of"):
        LoadWindow.from_bytes(bytes_of(table, METADATA), KINDS)


def test_other_columns_are_refused() -> None:
    table = make_window().table
    more = table.append_column("watts", pa.nulls(table.num_rows, pa.float64()))
    with pytest.raises(ProtocolError, match="watts: upgrade this process"):
        LoadWindow.from_bytes(bytes_of(more, METADATA), KINDS)
    twice = table.append_column("bytes_out", table["bytes_out"])
    other = table.set_column(table.column_names.index("bytes_out"), "bytes_out", table["publishers"])
    null = table.set_column(table.column_names.index("host"), "host", pa.nulls(table.num_rows, pa.string()))
    for wrong in (twice, other, null):
        with pytest.raises(ProtocolError):
            LoadWindow.from_bytes(bytes_of(wrong, METADATA), KINDS)


VERSION_2 = (
    *("host", "unit", "seconds", "publications", "forwarded", "messages_sent", "bytes_in", "bytes_out", "publishers"),
    *("subscribers", "pattern_subscribers", "capacity_bytes_per_s", "bandwidth_bytes_per_s", "cpu_share"),
    *("connections", "complete"),
)


@pytest.mark.parametrize("channels", [0, 3])
def test_a_window_of_version_2_is_one_of_channels_on_servers(channels: int) -> None:
    window = make_window(channels)
    old = bytes_of(window.table.select(VERSION_2), {**METADATA, VERSION_KEY: b"2"})
    again = LoadWindow.from_bytes(old, KINDS, KEPT_VERSIONS)
    assert again.table.to_pylist() == window.table.to_pylist()
    assert again.units_of("channel").num_rows == 2 * channels
    assert again.hosts_of("server").num_rows == 2
    with pytest.raises(ProtocolError, match="version 2; this process knows 3: upgrade the job"):
        LoadWindow.from_bytes(old, KINDS)
    assert {row["site"] for row in again.table.to_pylist()} == {None}
    assert LoadWindow.from_bytes(again.to_bytes(), KINDS).table.to_pylist() == window.table.to_pylist()


def test_rows_in_any_order_are_selected() -> None:
    table = make_window().table
    turned = LoadWindow(100, 102, table.take(pa.array(range(table.num_rows - 1, -1, -1))))
    assert turned.units_of("channel").num_rows == turned.units.num_rows == 6
    mixed = LoadWindow(100, 102, table.take(pa.array([2, 0, 3, 1, 4])))
    assert [row["unit"] for row in mixed.units.to_pylist()] == [b"\xff0", b"\xff1", b"\xff2"]
    assert [row["host"] for row in mixed.hosts_of("server").to_pylist()] == ["one", "two"]


@given(st.binary(max_size=200), st.integers(min_value=0))
def test_garbage_is_refused(garbage: bytes, at: int) -> None:
    with pytest.raises(ProtocolError):
        LoadWindow.from_bytes(garbage, KINDS)
    with pytest.raises(ProtocolError):
        LoadWindow.from_bytes(WHOLE[: at % (len(WHOLE) * 9 // 10)], KINDS)


WHOLE = make_window().to_bytes()
