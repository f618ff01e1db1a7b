"""What workers do for the archive: write slices of records into Parquet files, and join small files.

Owns the contents of the files. Functions from Arrow to Arrow that run in a Spark worker or in process. Every file gets
a unique name. So a task that runs twice leaves one extra file and never overwrites one, and only files that the driver
lists in the manifest belong to the archive.
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
from shoal.history.entry_decoder import decode_entries
from shoal.history.manifest import batch_name, compact_name, day_of, file_path, sync_directory
from shoal.history.record_reader import RecordPosition, RecordReader, last_position
from shoal.history.row_selection import take
from shoal.history.server_reader import Login
from shoal.history.table import SCHEMA, channel_text, dedupe
from shoal.plan.ring import ServerAddress

SLICE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Size of one slice's rows in memory. The rest of the record is left for the next batch."""

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
"""A slice: entries of one record after `after`."""

GROUP_SCHEMA: Final = pa.schema(
    [
        pa.field("channel", pa.string()),
        pa.field("day", pa.string()),
        pa.field("paths", pa.list_(pa.string())),
        pa.field("batch", pa.int64()),
    ]
)
"""A group: files of one day and channel that become one file."""

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
"""A file that was written (`path` is null if none was), how far the record was read, and the error if it failed."""


def archive_slices(login: Login, archive: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Reads slices and writes their rows into files. Returns a row for each file, and one for a slice without a file.
    If a server cannot be read, the rows of its slices contain the error; other slices go on."""
    for batch in batches:
        for row in batch.to_pylist():
            yield pa.RecordBatch.from_pylist(_archive_slice(login, Path(archive), row), schema=DONE_SCHEMA)


def _archive_slice(login: Login, archive: Path, row: dict[str, Any]) -> list[dict[str, Any]]:
    server = ServerAddress(row["server"], row["host"], row["port"])
    read = _Read(RecordPosition(row["after"], row["number"]))
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
    """The part of a record that was read. If the server dies meanwhile, the pages read before are still valid."""

    def __init__(self, position: RecordPosition) -> None:
        self.position = position
        self.batches: list[pa.RecordBatch] = []
        self.entries = 0
        self.error: str | None = None

    def slice(self, reader: RecordReader, channel: bytes, rows_max: int) -> None:
        """Reads up to `rows_max` entries or `SLICE_BYTES_MAX`."""
        size = 0
        for page in reader.pages(channel, self.position.entry, rows_max):
            batch = decode_entries(channel_text(channel), reader.server.id, page, self.position.number)
            self.batches.append(batch)
            self.position = last_position(page, self.position)
            self.entries += len(page)
            size += batch.nbytes
            if size >= SLICE_BYTES_MAX:
                return


def compact_groups(archive: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Joins the files of each group, each message once and ordered by time. Returns a row for each new file."""
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
    """Writes the rows of one channel into one file for each day. The files have the same name in different folders."""
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
