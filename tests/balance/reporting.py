"""Makes telemetry records by hand, and reads load windows back as plain dictionaries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from shoal.balance.window import LoadWindow
from shoal.channels.telemetry.telemetry_record import CHANNELS_SCHEMA, SERVER_SCHEMA, Record, RecordId


def record(
    host: str,
    second: int,
    channels: Mapping[bytes, Mapping[str, int]] | None = None,
    *,
    instance: str = "a",
    sequence: int | None = None,
    interval_s: float | None = 1.0,
    bandwidth: float = 1000.0,
    cpu_share: float = 0.5,
    capacity: float = 10_000.0,
    uncounted: int = 0,
) -> Record:
    """One second of one server; columns of a channel that are not given are 0, or complete."""
    rows = [_row(name, figures) for name, figures in (channels or {}).items()]
    measured = interval_s is not None
    server: dict[str, Any] = dict.fromkeys(SERVER_SCHEMA.names, 0)
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
    return Record(
        RecordId(host, instance, second, second if sequence is None else sequence),
        pa.RecordBatch.from_pylist(rows, schema=CHANNELS_SCHEMA),
        pa.RecordBatch.from_pylist([server], schema=SERVER_SCHEMA),
    )


def _row(name: bytes, figures: Mapping[str, int]) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(CHANNELS_SCHEMA.names, 0)
    return row | {"channel": name, "publisher_ids": [], "subscriber_ids": [], "complete": True} | dict(figures)


def units_of(window: LoadWindow) -> dict[tuple[str, bytes], dict[str, Any]]:
    """The rows of units by host and unit."""
    return {(row["host"], row["unit"]): row for row in window.units.to_pylist()}


def hosts_of(window: LoadWindow) -> dict[str, dict[str, Any]]:
    """The rows of hosts by host."""
    return {row["host"]: row for row in window.hosts.to_pylist()}
