"""A load window survives the way through bytes, and nothing else passes for one."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.balance.reporting import hosts_of, record, units_of

from shoal.balance.fold import fold
from shoal.balance.fold_state import FoldState
from shoal.balance.reports import records_to_batch
from shoal.balance.settings import BalanceSettings
from shoal.balance.window import END_KEY, START_KEY, VERSION_KEY, WINDOW_SCHEMA, WINDOW_VERSION, LoadWindow
from shoal.errors import ProtocolError


def make_window(channels: int = 3) -> LoadWindow:
    names = {b"\xff%d" % number: {"publications": number, "subscribers": 2} for number in range(channels)}
    records = [record(host, second, names) for host in ("one", "two") for second in (100, 101)]
    windows, _ = fold(FoldState(), records_to_batch((made, 102.0) for made in records), 110.0, BalanceSettings())
    return windows[0]


@pytest.mark.parametrize("channels", [0, 1, 500])
def test_round_trip(channels: int) -> None:
    window = make_window(channels)
    again = LoadWindow.from_bytes(window.to_bytes())
    assert again == window
    assert (again.start_s, again.end_s) == (100, 102)
    assert again.units.num_rows == 2 * channels
    assert list(hosts_of(again)) == ["one", "two"]


def test_it_has_the_columns_of_the_schema_and_a_row_for_each_host() -> None:
    window = make_window()
    assert window.table.schema.equals(WINDOW_SCHEMA)
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
        LoadWindow.from_bytes(bytes_of(make_window().table, metadata))


def test_other_columns_are_refused() -> None:
    table = make_window().table.drop_columns(["forwarded"])
    metadata = {VERSION_KEY: WINDOW_VERSION, START_KEY: b"0", END_KEY: b"2"}
    with pytest.raises(ProtocolError, match="columns"):
        LoadWindow.from_bytes(bytes_of(table, metadata))


@given(st.binary(max_size=200), st.integers(min_value=0))
def test_garbage_is_refused(garbage: bytes, at: int) -> None:
    with pytest.raises(ProtocolError):
        LoadWindow.from_bytes(garbage)
    with pytest.raises(ProtocolError):
        LoadWindow.from_bytes(WHOLE[: at % (len(WHOLE) * 9 // 10)])


WHOLE = make_window().to_bytes()
