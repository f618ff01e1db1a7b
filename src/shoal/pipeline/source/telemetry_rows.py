"""Telemetry records as rows with real columns: one row a host and second, or one row a unit, host and second.

Owns the two schemas, as functions from Arrow to Arrow over the rows of records (`shoal.load.reports.BATCH_SCHEMA`, with
their origin). The figures are those that the kinds of hosts and units declare; null in rows of other kinds. A record
that cannot be read is one row, with the reason in `error` and null in all figures.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from shoal.errors import ProtocolError
from shoal.history.table import TIME, text_array
from shoal.load.kinds import Type
from shoal.load.record import RecordId, TelemetryRecord, decode
from shoal.load.table import Ragged, UnitTable
from shoal.load_kinds import KINDS

ORIGIN: Final = (pa.field("server", pa.string()), pa.field("entry", pa.string()))
"""Where a row was read: the server, and the id of the entry in its stream."""

ROWS_MAX: Final = 100_000
"""Rows of units in one batch; a record with more is a batch of its own."""

_TYPES: Final = {Type.INT: pa.int64(), Type.FLOAT: pa.float64(), Type.IDS: pa.list_(pa.int64())}
_COMMON: Final = (
    pa.field("host", pa.string()),
    pa.field("host_kind", pa.string()),
    pa.field("site", pa.string()),
    pa.field("instance", pa.string()),
    pa.field("second", pa.int64()),
    pa.field("at", TIME),  # the same, for event time
    pa.field("sequence", pa.int64()),
    pa.field("arrived_s", pa.float64()),
)
_ERROR: Final = pa.field("error", pa.string())
_HOST_FIGURES: Final = tuple({column.name: column for kind in KINDS.hosts for column in kind.row}.values())
_UNIT_FIGURES: Final = tuple({column.name: column for kind in KINDS.units for column in kind.columns}.values())

HOST_SCHEMA: Final = pa.schema(
    [*_COMMON, *(pa.field(column.name, _TYPES[column.type]) for column in _HOST_FIGURES), _ERROR, *ORIGIN]
)
UNIT_SCHEMA: Final = pa.schema(
    [
        *_COMMON,
        pa.field("kind", pa.string()),
        pa.field("unit", pa.string()),  # text, as the column `channel` of recorded channels
        *(pa.field(column.name, _TYPES[column.type]) for column in _UNIT_FIGURES),
        pa.field("complete", pa.bool_()),
        _ERROR,
        *ORIGIN,
    ]
)


def host_rows(records: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """One row for each record, with the figures of its host."""
    rows = []
    for row, record in _decoded(records):
        figures = record.host if isinstance(record, TelemetryRecord) else {}
        rows.append({**row, **figures})
    yield pa.RecordBatch.from_pylist(rows, schema=HOST_SCHEMA)


def unit_rows(records: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """One row for each unit of each record; a record without units has none."""
    parts: list[pa.RecordBatch] = []
    for row, record in _decoded(records):
        if isinstance(record, TelemetryRecord):
            parts += [_units(row, table) for table in record.tables.values() if len(table)]
        else:
            parts.append(pa.RecordBatch.from_pylist([row], schema=UNIT_SCHEMA))
        if sum(part.num_rows for part in parts) >= ROWS_MAX:
            yield _joined(parts)
            parts = []
    yield _joined(parts)


def _decoded(records: pa.RecordBatch) -> Iterator[tuple[dict[str, Any], TelemetryRecord | None]]:
    """The common columns of each record, and the record; None if it cannot be read."""
    for given in records.to_pylist():
        data = given.pop("data")
        second = given["second"]
        row = {**given, "at": None if second is None else second * 1_000_000, "error": None}
        try:
            record = _record(given, data)
        except ProtocolError as error:
            yield {**row, "error": str(error)}, None
            continue
        yield {**row, "host_kind": record.host_kind.name, "site": record.site or None}, record


def _record(given: dict[str, Any], data: bytes) -> TelemetryRecord:
    if given["second"] is None or not data:
        raise ProtocolError("a stream entry has no valid id of a telemetry record, or no data")
    record = decode(data, KINDS)
    expected = RecordId(given["host"], given["instance"], given["second"], given["sequence"])
    if record.id != expected:
        raise ProtocolError(f"the entry {expected.encode()!r} contains the record {record.id.encode()!r}")
    return record


def _units(row: dict[str, Any], table: UnitTable) -> pa.RecordBatch:
    count = len(table)
    names = [None, pa.py_buffer(table.units.offsets), pa.py_buffer(table.units.values)]
    known: dict[str, pa.Array] = {
        "kind": pa.repeat(table.kind.name, count),
        "unit": text_array(pa.chunked_array([pa.Array.from_buffers(pa.binary(), count, names)])).combine_chunks(),
        "complete": pa.array(table.complete),
        **{name: _column(values) for name, values in table.columns.items()},
    }
    arrays = [
        known[field.name] if field.name in known else pa.repeat(pa.scalar(row.get(field.name), field.type), count)
        for field in UNIT_SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=UNIT_SCHEMA)


def _column(values: Any) -> pa.Array:
    """A column of numbers, or of lists of ids: clients have ids of 48 bits, which fit a signed number."""
    if not isinstance(values, Ragged):
        return pa.array(values)
    return pa.ListArray.from_arrays(pa.array(values.offsets), pa.array(values.values.astype(np.int64)))


def _joined(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    return pa.concat_batches(parts) if parts else pa.RecordBatch.from_pylist([], schema=UNIT_SCHEMA)
