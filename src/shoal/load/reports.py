"""Reports: telemetry records as the fold uses them, from raw stream entries to checked Arrow columns.

Owns the schema of a batch, and the part of a record that load windows need. Never touches a socket: a reader of the
streams makes batches of the entries with their times of arrival. Rows without a valid record are garbage, which the
fold counts and skips.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from shoal.errors import ProtocolError
from shoal.load.kinds import INTERVAL_S, UNCOUNTED, Folding, HostKind, Kinds, Type, UnitKind
from shoal.load.record import HostRow, RecordId, decode
from shoal.load.table import UnitTable

BATCH_SCHEMA: Final = pa.schema(
    [
        # The id and the data of the record. Null if it could not be read.
        ("host", pa.string()),
        ("instance", pa.string()),
        ("second", pa.int64()),
        ("sequence", pa.int64()),
        ("arrived_s", pa.float64()),  # when it was read, on the reader's wall clock
        ("data", pa.binary()),
    ]
)


class Arrival(NamedTuple):
    """A row of a batch with a valid id. Arrivals sort in the order in which they are folded."""

    arrived_s: float
    id: RecordId
    data: bytes


class HostFigures(msgspec.Struct, frozen=True, array_like=True):
    """The figures of the host itself in a record."""

    kind: str
    site: str
    covered_s: float
    """The time that the record covers; 1 s for the first record of an agent or a host, which does not know it."""
    measured: bool
    """Whether there was a previous sample to compare with; if not, figures that are means are None."""
    complete: bool
    """Whether everything was counted under its unit."""
    figures: dict[str, float | int | None]
    """By their names in load windows."""


class TelemetryReport(NamedTuple):
    """One checked record: nothing in it is null, infinite or negative where that is not allowed."""

    host: HostFigures
    units: dict[str, pa.RecordBatch]
    """By kind: the unit, the figures that load windows have, and `complete`."""


def entries_to_batch(entries: Iterable[tuple[bytes, bytes]], arrived_s: float) -> pa.RecordBatch:
    """A batch of stream entries (the fields `id` and `data`) that were read at the same time."""
    rows: list[tuple[Any, ...]] = []
    for id_text, data in entries:
        try:
            rows.append((*RecordId.decode(id_text), arrived_s, data))
        except ProtocolError:
            rows.append((None, None, None, None, arrived_s, data))
    columns = list(zip(*rows, strict=True)) or [()] * len(BATCH_SCHEMA)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, BATCH_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=BATCH_SCHEMA)


def arrivals(batch: pa.RecordBatch | pa.Table, now_s: float) -> tuple[list[Arrival], int]:
    """The rows of a batch in order, and the number of rows without id, data or time. Times after `now_s` are
    corrected to `now_s`."""
    found: list[Arrival] = []
    columns = (batch[name].to_pylist() for name in BATCH_SCHEMA.names)
    for host, instance, second, sequence, arrived_s, data in zip(*columns, strict=True):
        if None in (host, instance, second, sequence, arrived_s, data) or not math.isfinite(arrived_s):
            continue
        found.append(Arrival(min(arrived_s, now_s), RecordId(host, instance, second, sequence), data))
    found.sort()
    return found, batch.num_rows - len(found)


def refusals(batch: pa.RecordBatch | pa.Table, refusals_max: int, kinds: Kinds) -> list[tuple[int, str]]:
    """The first rows of a batch without a valid record, and why; for log lines, because the fold only counts them."""
    found: list[tuple[int, str]] = []
    columns = (batch[name].to_pylist() for name in BATCH_SCHEMA.names)
    for row, (host, instance, second, sequence, arrived_s, data) in enumerate(zip(*columns, strict=True)):
        if len(found) == refusals_max:
            break
        if None in (host, instance, second, sequence, data):
            found.append((row, "a stream entry has no valid id of a telemetry record, or no data"))
        elif arrived_s is None or not math.isfinite(arrived_s):
            found.append((row, "a record has no time of arrival"))
        else:
            try:
                read_report(Arrival(arrived_s, RecordId(host, instance, second, sequence), data), kinds)
            except ProtocolError as error:
                found.append((row, error.what if error.do is None else f"{error.what}: {error.do}"))
    return found


def read_report(arrival: Arrival, kinds: Kinds) -> TelemetryReport:
    """The part of a record that load windows need; `ProtocolError` if it is invalid or has another id than its row."""
    record = decode(arrival.data, kinds, folded_only=True)
    if record.id != arrival.id:
        raise ProtocolError(f"the row {arrival.id.encode()!r} contains the record {record.id.encode()!r}")
    units = {kind: to_arrow(table) for kind, table in record.tables.items()}
    return TelemetryReport(_host_figures(record.host_kind, record.site, record.host), units)


def to_arrow(table: UnitTable) -> pa.RecordBatch:
    """The columns of a table that load windows need, without a copy except `complete`."""
    names = [None, pa.py_buffer(table.units.offsets), pa.py_buffer(table.units.values)]
    arrays = [pa.Array.from_buffers(pa.binary(), len(table), names)]
    arrays += [pa.array(table[column.name]) for column in table.kind.folded]
    return pa.RecordBatch.from_arrays([*arrays, pa.array(table.complete)], schema=_schema(table.kind))


@lru_cache(maxsize=64)
def _schema(kind: UnitKind) -> pa.Schema:
    figures = [(column.name, pa.int64() if column.type is Type.INT else pa.float64()) for column in kind.folded]
    return pa.schema([("unit", pa.binary()), *figures, ("complete", pa.bool_())])


def _host_figures(kind: HostKind, site: str, row: HostRow) -> HostFigures:
    """The checked figures that the fold needs from the row of a host."""
    interval_s = row[INTERVAL_S.name]
    measured = interval_s is not None
    covered_s = _checked(INTERVAL_S.name, interval_s) if measured else 1.0
    if covered_s == 0:
        raise ProtocolError("a telemetry record covers no time")
    figures: dict[str, float | int | None] = {}
    for column in kind.figures:
        skipped = column.folding is Folding.MEAN and not measured
        figures[column.figure] = None if skipped else _checked(column.name, row[column.name])
    return HostFigures(kind.name, site, covered_s, measured, row[UNCOUNTED.name] == 0, figures)


def _checked(name: str, value: float | int | None) -> float | int:
    """The value; `ProtocolError` if it is missing, infinite or negative."""
    if value is None or not math.isfinite(value) or value < 0:
        raise ProtocolError(f"a telemetry record has {name} = {value!r}")
    return value
