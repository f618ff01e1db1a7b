"""Reads rows of an archive, as listed in its manifest.

Owns reading only, with Arrow and without Spark. The archive job may replace files meanwhile. Replaced files stay for a
while; if one is gone, the reader reads the manifest again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from shoal.errors import ArchiveError
from shoal.history.manifest import Manifest, check_new, read_manifest
from shoal.history.table import SCHEMA, TIME, dedupe

ATTEMPTS: Final = 3
"""How often the manifest is read when a listed file is gone."""


def read_archive(
    archive: Path, channel: str | None, from_us: int | None = None, to_us: int | None = None
) -> tuple[Manifest, pa.Table]:
    """The manifest, and the rows of a channel (None: all channels) published from `from_us` up to `to_us` (exclusive),
    each message once. ArchiveError for a directory with files and no manifest."""
    for attempt in range(ATTEMPTS):
        manifest = read_manifest(archive)
        if manifest is None:
            check_new(archive)
            manifest = Manifest()
        try:
            tables = [
                read_file(archive / file.path, channel, from_us, to_us)
                for file in manifest.chosen(channel, from_us, to_us)
            ]
        except FileNotFoundError as error:
            if attempt + 1 < ATTEMPTS:
                continue
            raise ArchiveError(
                f"the manifest lists {error.filename or error}, but the archive does not have it",
                do="restore the file, or remove its entry from manifest.json and accept the loss",
            ) from error
        return manifest, dedupe(pa.concat_tables([SCHEMA.empty_table(), *tables]))
    raise AssertionError("the last attempt returns or raises")


def read_file(path: Path, channel: str | None, from_us: int | None, to_us: int | None) -> pa.Table:
    """The rows of one file; ArchiveError if it is damaged or of another version, FileNotFoundError if it is gone."""
    table = read_columns(path)
    if not table.schema.equals(SCHEMA):
        raise ArchiveError(
            f"{path} does not have the columns that this version of Shoal reads",
            do="read it with the version of Shoal that wrote it",
        )
    kept = None
    if channel is not None:
        kept = pc.equal(table["channel"], channel)
    for bound, compare in ((from_us, pc.greater_equal), (to_us, pc.less)):
        if bound is not None:
            within = compare(table["published_at"], pa.scalar(bound, pa.int64()).cast(TIME))
            kept = within if kept is None else pc.and_(kept, within)
    return (table if kept is None else table.filter(kept)).replace_schema_metadata(SCHEMA.metadata)


def read_columns(path: Path | str, columns: Sequence[str] | None = None) -> pa.Table:
    """Columns (None: all) of one file; ArchiveError if it is damaged, FileNotFoundError if it is gone."""
    try:
        return pq.read_table(path, columns=columns, use_threads=False, partitioning=None)
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise ArchiveError(f"{path} cannot be read: {error}", do="restore a copy of the file") from error
