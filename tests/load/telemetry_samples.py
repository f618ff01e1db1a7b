"""Creates telemetry records, and converts load windows to dictionaries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from shoal.channels.telemetry.channel_kind import CHANNEL, SERVER
from shoal.load.record import RecordId, TelemetryRecord, encode
from shoal.load.reports import entries_to_batch
from shoal.load.table import UnitTable
from shoal.load.window import LoadWindow


def record(
    host: str,
    second: int,
    channels: Mapping[bytes, Mapping[str, Any]] | None = None,
    *,
    instance: str = "a",
    sequence: int | None = None,
    interval_s: float | None = 1.0,
    bandwidth: float = 1000.0,
    cpu_share: float = 0.5,
    capacity: float = 10_000.0,
    uncounted: int = 0,
    site: str = "",
) -> TelemetryRecord:
    """One second of one server; missing columns of a channel are 0, and rows are complete by default."""
    measured = interval_s is not None
    server: dict[str, Any] = {column.name: 0 for column in SERVER.row}
    server |= {
        "interval_s": interval_s,
        "bytes_out_per_s": bandwidth if measured else None,
        "net_output_bytes_per_s": bandwidth if measured else None,
        "net_input_bytes_per_s": 0.0 if measured else None,
        "max_out_bytes_per_s": capacity,
        "load_ratio": None,
        "cpu_share": cpu_share if measured else None,
        "connections": 7,
        "uncounted": uncounted,
    }
    return TelemetryRecord(
        RecordId(host, instance, second, second if sequence is None else sequence),
        SERVER,
        server,
        {CHANNEL.name: UnitTable.of_rows(CHANNEL, channels or {})},
        site,
    )


def units_of(window: LoadWindow) -> dict[tuple[str, bytes], dict[str, Any]]:
    """The rows of units by host and unit."""
    return {(row["host"], row["unit"]): row for row in window.units.to_pylist()}


def hosts_of(window: LoadWindow) -> dict[str, dict[str, Any]]:
    """The rows of hosts by host."""
    return {row["host"]: row for row in window.hosts.to_pylist()}


def records_to_batch(records: Iterable[tuple[TelemetryRecord, float]]) -> pa.RecordBatch:
    """A batch of records, each with the time of its arrival."""
    batches = [entries_to_batch([(made.id.encode(), encode(made))], arrived_s) for made, arrived_s in records]
    return pa.concat_batches([entries_to_batch([], 0.0), *batches])
