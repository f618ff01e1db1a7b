"""Reports: telemetry records as the fold takes them in, from raw stream entries to checked columns.

Owns the shape of a batch, and what of a record a load window needs. Never touches a socket: whoever reads the
streams makes a batch of what was read and says when it arrived. A row that is no record is garbage: it is counted
by the fold and skipped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from shoal.balance.window import COUNTS, RATES
from shoal.channels.telemetry import telemetry_record as telemetry
from shoal.channels.telemetry.telemetry_record import Record, RecordId
from shoal.errors import ProtocolError

BATCH_SCHEMA: Final = pa.schema(
    [
        # The id of the record, and what was on the stream. Null where it could not be read.
        ("host", pa.string()),
        ("instance", pa.string()),
        ("second", pa.int64()),
        ("sequence", pa.int64()),
        ("arrived_s", pa.float64()),  # when it was read, on the reader's wall clock
        ("data", pa.binary()),
    ]
)

LOAD_COLUMNS: Final = ("channel", *RATES, *COUNTS, "complete")
"""What a load window needs of the rows of channels."""

LOAD_SCHEMA: Final = pa.schema([field for field in telemetry.CHANNELS_SCHEMA if field.name in LOAD_COLUMNS])


class Arrival(NamedTuple):
    """A row of a batch that has an id. They sort in the order in which they count as read."""

    arrived_s: float
    id: RecordId
    data: bytes


class Figures(msgspec.Struct, frozen=True, array_like=True):
    """What a record says of the server itself."""

    covered_s: float
    """How long the record counted. The first one of an agent or of a server's life does not know: taken for 1 s."""
    measured: bool
    """Whether there was anything to compare with; if not, the two measured rates are 0."""
    capacity_bytes_per_s: float
    bandwidth_bytes_per_s: float
    cpu_share: float
    connections: int
    complete: bool
    """Whether every message was counted under its channel."""


class Report(NamedTuple):
    """One record, checked: nothing in it is null, infinite or negative where it must not be."""

    figures: Figures
    channels: pa.RecordBatch
    """With `LOAD_SCHEMA`."""


def entries_to_batch(entries: Iterable[tuple[bytes, bytes]], arrived_s: float) -> pa.RecordBatch:
    """A batch of stream entries (the fields `id` and `data`) that were read at one time."""
    rows: list[tuple[Any, ...]] = []
    for id_text, data in entries:
        try:
            rows.append((*RecordId.decode(id_text), arrived_s, data))
        except ProtocolError:
            rows.append((None, None, None, None, arrived_s, data))
    return _batch(rows)


def records_to_batch(records: Iterable[tuple[Record, float]]) -> pa.RecordBatch:
    """A batch of records, each with the time of its arrival."""
    return _batch([(*record.id, arrived_s, telemetry.encode(record)) for record, arrived_s in records])


def _batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) or [()] * len(BATCH_SCHEMA)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, BATCH_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=BATCH_SCHEMA)


def arrivals(batch: pa.RecordBatch | pa.Table, now_s: float) -> tuple[list[Arrival], int]:
    """The rows of a batch in order, and how many had no id, no data or no time. None arrived after now."""
    found: list[Arrival] = []
    columns = (batch[name].to_pylist() for name in BATCH_SCHEMA.names)
    for host, instance, second, sequence, arrived_s, data in zip(*columns, strict=True):
        if None in (host, instance, second, sequence, arrived_s, data) or not math.isfinite(arrived_s):
            continue
        found.append(Arrival(min(arrived_s, now_s), RecordId(host, instance, second, sequence), data))
    found.sort()
    return found, batch.num_rows - len(found)


def refusals(batch: pa.RecordBatch | pa.Table, refusals_max: int) -> list[tuple[int, str]]:
    """The rows of a batch that are no record, the first ones: which row, and why. For people: the fold only counts."""
    found: list[tuple[int, str]] = []
    columns = (batch[name].to_pylist() for name in BATCH_SCHEMA.names)
    for row, (host, instance, second, sequence, arrived_s, data) in enumerate(zip(*columns, strict=True)):
        if len(found) == refusals_max:
            break
        if None in (host, instance, second, sequence, data):
            found.append((row, "an entry of the stream has no id of a telemetry record, or no data"))
        elif arrived_s is None or not math.isfinite(arrived_s):
            found.append((row, "a record has no time of arrival"))
        else:
            try:
                read_report(Arrival(arrived_s, RecordId(host, instance, second, sequence), data))
            except ProtocolError as error:
                found.append((row, error.what))
    return found


def read_report(arrival: Arrival) -> Report:
    """What a load window needs of a record; `ProtocolError` when it is none, or not the one that its row names."""
    record = telemetry.decode(arrival.data, LOAD_COLUMNS)
    if record.id != arrival.id:
        raise ProtocolError(f"a row of {arrival.id.encode()!r} holds the record {record.id.encode()!r}")
    if any(column.null_count for column in record.channels.columns):
        raise ProtocolError("a telemetry record has a null where its columns have none")
    row = record.server.to_pylist()[0]
    measured = row["interval_s"] is not None
    figures = Figures(
        covered_s=row["interval_s"] if measured else 1.0,
        measured=measured,
        capacity_bytes_per_s=row["max_out_bytes_per_s"],
        bandwidth_bytes_per_s=row["bytes_out_per_s"] if measured else 0.0,
        cpu_share=row["cpu_share"] if measured else 0.0,
        connections=row["connections"],
        complete=row["uncounted"] == 0,
    )
    _check(figures)
    return Report(figures, record.channels.replace_schema_metadata(None))


def _check(figures: Figures) -> None:
    """Refuses figures that nobody can have measured."""
    for name in ("capacity_bytes_per_s", "bandwidth_bytes_per_s", "cpu_share", "connections", "covered_s"):
        value = getattr(figures, name)
        if value is None or not math.isfinite(value) or value < 0:
            raise ProtocolError(f"a telemetry record says {name} = {value!r}")
    if figures.covered_s == 0:
        raise ProtocolError("a telemetry record covers no time")
