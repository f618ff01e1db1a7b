"""What workers do for the archive: write slices of records into Parquet files, and join small files.

Owns the contents of the files. Functions from Arrow to Arrow that run in a Spark worker or in process. Every file gets
a unique name. So a task that runs twice leaves one extra file and never overwrites one, and only files that the driver
commits belong to the archive.
"""

from __future__ import annotations

import datetime as dt
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from shoal.errors import ShoalError
from shoal.history.archive import read_files
from shoal.history.archive_location import ArchiveLocation
from shoal.history.archive_table import ArchivedFile
from shoal.history.entry_decoder import decode_entries
from shoal.history.record_reader import RecordPosition, RecordReader, last_position
from shoal.history.row_selection import take
from shoal.history.server_reader import Login
from shoal.history.table import SCHEMA, channel_text, dedupe
from shoal.plan.ring import ServerAddress

SLICE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Size of one slice's rows in memory. The rest of the record is left for the next batch."""

MERGE_BYTES_MAX: Final = 512 * 1024 * 1024
"""Size of the rows in memory from which a compaction writes a file, so that a worker can hold them and 32-bit offsets
of Arrow suffice."""

ROW_GROUP_ROWS: Final = 65_536
NAME_MAX: Final = 60
"""Most characters of a channel in the name of a file."""
COMPACTED: Final = "compact"
"""First word in the names of files that a compaction wrote."""

SLICE_SCHEMA: Final = pa.schema(
    [
        pa.field("server", pa.string()),
        pa.field("host", pa.string()),
        pa.field("port", pa.int32()),
        pa.field("channel", pa.binary()),
        pa.field("after", pa.string()),
        pa.field("number", pa.int64()),
        pa.field("rows_max", pa.int64()),
    ]
)
"""A slice: entries of one record after `after`."""

GROUP_SCHEMA: Final = pa.schema([pa.field("paths", pa.list_(pa.string()))])
"""A group: files that are merged into larger ones."""

DONE_SCHEMA: Final = pa.schema(
    [
        pa.field("server", pa.string()),
        pa.field("record", pa.binary()),
        pa.field("entry", pa.string()),
        pa.field("number", pa.int64()),
        pa.field("entries", pa.int64()),
        pa.field("path", pa.string()),
        pa.field("day", pa.string()),
        pa.field("channel", pa.string()),
        pa.field("channel_max", pa.string()),
        pa.field("rows", pa.int64()),
        pa.field("bytes", pa.int64()),
        pa.field("from_us", pa.int64()),
        pa.field("to_us", pa.int64()),
        pa.field("error", pa.string()),
    ]
)
"""A file that was written (`path` is null if none was), how far the record was read, and the error if it failed."""


def archive_slices(
    login: Login, archive: ArchiveLocation, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Reads slices and writes their rows into files. Returns a row for each file, and one for a slice without a file.
    If a server cannot be read, the rows of its slices contain the error; other slices continue."""
    for batch in batches:
        for row in batch.to_pylist():
            yield pa.RecordBatch.from_pylist(_archive_slice(login, archive, row), schema=DONE_SCHEMA)


def _archive_slice(login: Login, archive: ArchiveLocation, row: dict[str, Any]) -> list[dict[str, Any]]:
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
    files = [msgspec.to_builtins(file) for file in write_files(archive, table, "part", server.id)]
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


def compact_groups(archive: ArchiveLocation, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Merges the files of each group, each message once and ordered by time. Returns a row for each new file."""
    for batch in batches:
        for paths in batch.column("paths").to_pylist():
            for table in _merged(archive, paths):
                written = [msgspec.to_builtins(file) for file in write_files(archive, table, COMPACTED)]
                yield pa.RecordBatch.from_pylist(written, schema=DONE_SCHEMA)


def _merged(archive: ArchiveLocation, paths: Sequence[str]) -> Iterator[pa.Table]:
    """The rows of some files, in tables of about `MERGE_BYTES_MAX`."""
    filesystem, tables, size = archive.filesystem(), list[pa.Table](), 0
    for path in paths:
        tables.append(read_files(filesystem, [path]))
        size += tables[-1].nbytes
        if size >= MERGE_BYTES_MAX or path == paths[-1]:
            table = dedupe(pa.concat_tables(tables))
            order = [(name, "ascending") for name in ("published_at", "publisher", "epoch", "sequence")]
            yield take(table, pc.sort_indices(table, order))
            tables, size = [], 0


def write_files(archive: ArchiveLocation, table: pa.Table, *name: str) -> Iterator[ArchivedFile]:
    """Writes one file for each day and channel; `name` are words of the files' names."""
    days = pc.floor_temporal(table["published_at"], unit="day")
    keys = pa.table({"day": days, "channel": table["channel"]})
    for key in keys.group_by(["day", "channel"]).aggregate([]).sort_by("day").to_pylist():
        rows = table.filter(pc.and_(pc.equal(days, key["day"]), pc.equal(table["channel"], key["channel"])))
        yield _write(archive, rows, key["day"].date(), key["channel"], name)


def _write(archive: ArchiveLocation, rows: pa.Table, day: dt.date, channel: str, name: Sequence[str]) -> ArchivedFile:
    path = file_path(day.isoformat(), channel, *name)
    with archive.writing(path) as stream:
        pq.write_table(rows, stream, compression="zstd", row_group_size=ROW_GROUP_ROWS)
        size = stream.tell()
    bounds = pc.min_max(rows["published_at"].cast(pa.int64())).as_py()
    return ArchivedFile(
        path=path,
        day=day.isoformat(),
        channel=channel,
        channel_max=channel,
        rows=rows.num_rows,
        bytes=size,
        from_us=bounds["min"],
        to_us=bounds["max"],
    )


def file_path(day: str, channel: str, first: str, *more: str) -> str:
    """A unique path for a file of a day and channel. Channel and server are in it for people only, as far as the
    characters are safe in every file system and URL."""
    words = [first, secrets.token_hex(8), channel[:NAME_MAX], *more]
    return f"day={day}/{'-'.join(re.sub('[^A-Za-z0-9_.-]', '_', word) for word in words)}.parquet"
