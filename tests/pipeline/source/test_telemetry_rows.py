"""Telemetry as typed rows: of hosts, of units or of records, and damage is a row that says so."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest
from tests.load.telemetry_samples import record
from tests.pipeline.source.streaming import BASE_S

from shoal.errors import ConfigError
from shoal.load.record import DATA_FIELD, ID_FIELD, TelemetryRecord, encode
from shoal.pipeline.source import telemetry_rows
from shoal.pipeline.source.kinds import Entry, kind_of

CHANNELS: dict[bytes, dict[str, Any]] = {
    b"orders.eu": {"publications": 5, "bytes_out": 700, "publisher_ids": [7, 2**47]},
    b"deals\xff": {"publications": 1, "complete": False},
}


def entry_of(made: TelemetryRecord, **fields: bytes) -> Entry:
    pairs = {ID_FIELD: made.id.encode(), DATA_FIELD: encode(made), **{name.encode(): v for name, v in fields.items()}}
    return f"{made.id.second + 1}000-0".encode(), [word for pair in pairs.items() for word in pair]


ENTRIES = [
    entry_of(record("s1", BASE_S, CHANNELS, site="eu")),
    entry_of(record("s1", BASE_S + 1, interval_s=None)),
    entry_of(record("s1", BASE_S + 2), data=b"damaged"),
    entry_of(record("s1", BASE_S + 3), id=b"nonsense"),
    entry_of(record("s1", BASE_S + 4), id=record("s9", BASE_S).id.encode()),
]


def read(rows: str | None) -> list[dict[str, Any]]:
    kind = kind_of({"kind": "telemetry", **({} if rows is None else {"rows": rows})})
    table = pa.Table.from_batches(kind.rows("s1", "telemetry", ENTRIES, 20), kind.schema)
    found: list[dict[str, Any]] = table.to_pylist()
    return found


def test_by_default_a_row_is_a_second_of_a_host_with_its_figures() -> None:
    rows = read(None)
    assert rows == read("hosts")
    first, second = rows[:2]
    expected = {"host": "s1", "host_kind": "server", "site": "eu", "second": BASE_S, "error": None, "server": "s1"}
    expected |= {"cpu_share": 0.5, "connections": 7, "max_out_bytes_per_s": 10_000.0, "interval_s": 1.0}
    assert expected.items() <= first.items()
    assert first["at"] == dt.datetime.fromtimestamp(BASE_S, dt.UTC)
    assert first["arrived_s"] == BASE_S + 1 - 0.02
    assert (second["site"], second["cpu_share"], second["memory_bytes"]) == (None, None, 0)


def test_a_row_can_be_a_unit() -> None:
    rows = read("units")
    assert [(row["kind"], row["unit"], row["publications"], row["complete"]) for row in rows[:2]] == [
        ("channel", "orders.eu", 5, True),
        ("channel", "deals\\xff", 1, False),
    ]
    assert rows[0]["publisher_ids"] == [7, 2**47]
    assert (rows[0]["host"], rows[0]["site"], rows[0]["entry"]) == ("s1", "eu", f"{BASE_S + 1}000-0")
    assert len(rows) == 2 + 3, "the second record has no units, and three cannot be read"


@pytest.mark.parametrize("rows", ["hosts", "units"])
def test_a_record_that_cannot_be_read_is_a_row_that_says_why(rows: str) -> None:
    damaged, without_id, of_another = read(rows)[-3:]
    assert "not a telemetry record: it begins with b'dama'" in damaged["error"]
    assert (damaged["host"], damaged["second"]) == ("s1", BASE_S + 2)
    assert "no valid id" in without_id["error"]
    assert (without_id["host"], without_id["at"], without_id["server"]) == (None, None, "s1")
    assert "contains the record" in of_another["error"]


def test_units_come_in_batches_of_limited_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry_rows, "ROWS_MAX", 2)
    kind = kind_of({"rows": "units"})
    assert [batch.num_rows for batch in kind.rows("s1", "telemetry", ENTRIES, 0)] == [2, 2, 1]


def test_records_are_what_agents_wrote_and_offsets_serve_all_rows() -> None:
    assert read("records")[2]["data"] == b"damaged"
    kinds = [kind_of({"rows": rows}) for rows in ("hosts", "units", "records")]
    assert all(kind.asked == {"kind": "telemetry"} for kind in kinds)


def test_other_rows_are_refused() -> None:
    with pytest.raises(ConfigError, match="rows is 'channels': give one of hosts, units, records"):
        kind_of({"rows": "channels"})
    with pytest.raises(ConfigError, match="the option rows is for telemetry"):
        kind_of({"kind": "channel", "rows": "units"})
