"""Reads rows of an archive.

Owns reading only, with Arrow and without Spark. The archive job may replace files meanwhile. Replaced files stay for
days; a reader whose file is gone reads the table again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.dataset as ds

from shoal.errors import ArchiveError
from shoal.history.archive_location import ArchiveLocation
from shoal.history.archive_table import ArchiveTable, open_table
from shoal.history.table import SCHEMA, TIME, dedupe

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

ATTEMPTS: Final = 3
"""How often the table is read when one of its files is gone."""


def read_archive(
    archive: str | Path, channel: str | None, from_us: int | None = None, to_us: int | None = None
) -> tuple[ArchiveTable, pa.Table]:
    """The table, and the rows of a channel (None: all channels) published from `from_us` up to `to_us` (exclusive),
    each message once. ArchiveError if there is no archive, or if it is damaged."""
    location = ArchiveLocation.of(archive)
    for attempt in range(ATTEMPTS):
        table = open_table(location)
        paths = [file.path for file in table.files if file.may_hold(channel, from_us, to_us)]
        try:
            rows = read_files(location.filesystem(), paths, channel=channel, from_us=from_us, to_us=to_us)
        except FileNotFoundError as error:
            if attempt + 1 < ATTEMPTS:
                continue
            raise ArchiveError(
                f"a file of the archive {location} is missing: {error}", do="restore a copy of the file"
            ) from error
        return table, dedupe(rows)
    raise AssertionError("the last attempt returns or raises")


def read_files(
    files: FileSystem,
    paths: Sequence[str],
    columns: Sequence[str] | None = None,
    *,
    channel: str | None = None,
    from_us: int | None = None,
    to_us: int | None = None,
) -> pa.Table:
    """Columns (None: all) of the selected rows of some files, with null where a file does not have a column.
    ArchiveError if a file is damaged, FileNotFoundError if it is gone."""
    wanted = SCHEMA if columns is None else pa.schema([SCHEMA.field(name) for name in columns], SCHEMA.metadata)
    if not paths:
        return wanted.empty_table()
    dataset = ds.FileSystemDataset.from_paths(paths, SCHEMA, ds.ParquetFileFormat(), files)
    try:
        table = dataset.to_table(columns, selection(channel, from_us, to_us), use_threads=False)
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise ArchiveError(f"a file of the archive cannot be read: {error}", do="restore a copy of the file") from error
    return table.cast(wanted)


def selection(channel: str | None, from_us: int | None, to_us: int | None) -> ds.Expression | None:
    """The rows of a channel and a time span, as a condition of Arrow; None: all rows."""
    conditions = [] if channel is None else [ds.field("channel") == channel]
    if from_us is not None:
        conditions.append(ds.field("published_at") >= pa.scalar(from_us, pa.int64()).cast(TIME))
    if to_us is not None:
        conditions.append(ds.field("published_at") < pa.scalar(to_us, pa.int64()).cast(TIME))
    chosen = None
    for condition in conditions:
        chosen = condition if chosen is None else chosen & condition
    return chosen
