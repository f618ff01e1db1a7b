"""What a worker does for the archive: reads a slice of a record and writes it as files; puts small files together.

Owns the files' contents. Plain functions from Arrow to Arrow that run in a Spark worker and in process alike. A file
has a name that nobody used before, so that a task that is tried twice leaves one file too many, never a wrong one: only
what the driver lists in the manifest is part of the archive.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from shoal.errors import ShoalError
from shoal.history.archive import read_file
from shoal.history.manifest import batch_name, compact_name, day_of, file_path, sync_directory
from shoal.history.records import Position, RecordReader, last_position
from shoal.history.servers import Login
from shoal.history.table import SCHEMA, channel_text, dedupe, entries_to_batch
from shoal.history.taking import take
from shoal.plan.ring import ServerAddress

SLICE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Rows of one slice in memory. The rest of the record comes with the next batch."""

ROW_GROUP_ROWS: Final = 65_536

SLICE_SCHEMA: Final = pa.schema(
    [
        pa.field("server", pa.string()),
        pa.field("host", pa.string()),
        pa.field("port", pa.int32()),
        pa.field("channel", pa.binary()),
        pa.field("after", pa.string()),
        pa.field("number", pa.int64()),
        pa.field("rows_max", pa.int64()),
        pa.field("batch", pa.int64()),
    ]
)
"""Entries of one record behind one of them."""

GROUP_SCHEMA: Final = pa.schema(
    [
        pa.field("channel", pa.string()),
        pa.field("day", pa.string()),
        pa.field("paths", pa.list_(pa.string())),
        pa.field("batch", pa.int64()),
    ]
)
"""Files of one day and channel that become one."""

DONE_SCHEMA: Final = pa.schema(
    [
        pa.field("server", pa.string()),
        pa.field("record", pa.binary()),
        pa.field("entry", pa.string()),
        pa.field("number", pa.int64()),
        pa.field("entries", pa.int64()),
        pa.field("path", pa.string()),
        pa.field("channel", pa.string()),
        pa.field("day", pa.string()),
        pa.field("rows", pa.int64()),
        pa.field("bytes", pa.int64()),
        pa.field("from_us", pa.int64()),
        pa.field("to_us", pa.int64()),
        pa.field("raw_bytes", pa.int64()),
        pa.field("error", pa.string()),
    ]
)
"""A file that was written (`path` null: none), how far the record was read, and why no further if it failed."""


def archive_slices(login: Login, archive: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Reads slices and writes their rows; a row for each file, and one for a slice without any. A server that cannot be
    read is an error in the rows of its slices, and stops no other."""
    for batch in batches:
        for row in batch.to_pylist():
            yield pa.RecordBatch.from_pylist(_archive_slice(login, Path(archive), row), schema=DONE_SCHEMA)


def _archive_slice(login: Login, archive: Path, row: dict[str, Any]) -> list[dict[str, Any]]:
    server = ServerAddress(row["server"], row["host"], row["port"])
    read = _Read(Position(row["after"], row["number"]))
    try:
        with RecordReader(server, login) as reader:
            read.slice(reader, row["channel"], row["rows_max"])
    except ShoalError as error:
        read.error = str(error)
    reached = {
        "server": server.id,
        "record": row["channel"],
        "entry": read.position.entry,
        "number": read.position.number,
        "entries": read.entries,
        "error": read.error,
    }
    table = dedupe(pa.Table.from_batches(read.batches, SCHEMA))
    files = write_days(archive, table, batch_name(row["batch"], server.id))
    return [{**reached, **file} for file in files or [{}]]


class _Read:
    """What was read of a record. A server that dies in the middle leaves what came before: it is whole."""

    def __init__(self, position: Position) -> None:
        self.position = position
        self.batches: list[pa.RecordBatch] = []
        self.entries = 0
        self.error: str | None = None

    def slice(self, reader: RecordReader, channel: bytes, rows_max: int) -> None:
        """Reads on, up to a number of entries or `SLICE_BYTES_MAX`."""
        size = 0
        for page in reader.pages(channel, self.position.entry, rows_max):
            batch = entries_to_batch(channel_text(channel), reader.server.id, page, self.position.number)
            self.batches.append(batch)
            self.position = last_position(page, self.position)
            self.entries += len(page)
            size += batch.nbytes
            if size >= SLICE_BYTES_MAX:
                return


def compact_groups(archive: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Puts the files of each group together, each message once and in the order of time; a row for each new file."""
    root = Path(archive)
    for batch in batches:
        for row in batch.to_pylist():
            tables = [read_file(root / path, None, None, None) for path in row["paths"]]
            table = dedupe(pa.concat_tables(tables))
            order = [(name, "ascending") for name in ("published_at", "publisher", "epoch", "sequence")]
            table = take(table, pc.sort_indices(table, order))
            written = write_days(root, table, compact_name(row["batch"]))
            yield pa.RecordBatch.from_pylist(written, schema=DONE_SCHEMA)


def write_days(archive: Path, table: pa.Table, name: str) -> list[dict[str, Any]]:
    """Writes the rows of one channel into a file for each day; they have one name and lie apart."""
    if not table.num_rows:
        return []
    times = table["published_at"].cast(pa.int64())
    days = pc.cast(pc.floor(pc.divide(pc.cast(times, pa.float64()), 86_400e6)), pa.int64())
    written = []
    for day in sorted(pc.unique(days).to_pylist()):
        rows = table.filter(pc.equal(days, day))
        written.append(_write(archive, rows, day_of(day * 86_400_000_000), name))
    return written


def _write(archive: Path, rows: pa.Table, day: str, name: str) -> dict[str, Any]:
    channel = rows["channel"][0].as_py()
    path = file_path(day, channel, name)
    target = archive / path
    target.parent.mkdir(parents=True, exist_ok=True)
    new = target.with_suffix(".new")
    with new.open("wb") as stream:
        pq.write_table(rows, stream, compression="zstd", row_group_size=ROW_GROUP_ROWS)
        stream.flush()
        os.fsync(stream.fileno())
    new.replace(target)
    sync_directory(target.parent)
    bounds = pc.min_max(rows["published_at"].cast(pa.int64()))
    return {
        "path": path,
        "channel": channel,
        "day": day,
        "rows": rows.num_rows,
        "bytes": target.stat().st_size,
        "from_us": bounds["min"].as_py(),
        "to_us": bounds["max"].as_py(),
        "raw_bytes": rows.nbytes,
    }
