"""Rows of an archive, read by its manifest.

Owns reading. Needs no Spark: files are read by Arrow. A job may replace files while somebody reads; those that were
replaced stay for a while, and a reader that comes even later reads the manifest again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from shoal.errors import ArchiveError
from shoal.history.manifest import Manifest, check_new, read_manifest
from shoal.history.table import SCHEMA, TIME, dedupe

ATTEMPTS: Final = 3
"""How often a manifest is read when its files vanish meanwhile."""


def read_archive(
    archive: Path, channel: str | None, from_us: int | None = None, to_us: int | None = None
) -> tuple[Manifest, pa.Table]:
    """The manifest, and the rows of a channel (None: all) published in a time, each message once. ArchiveError for
    files without a manifest: what they hold would be missing without a word."""
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
                f"the archive lists {error.filename or error} but does not have it",
                do="put the file back, or take its entry out of manifest.json and accept the loss",
            ) from error
        return manifest, dedupe(pa.concat_tables([SCHEMA.empty_table(), *tables]))
    raise AssertionError("the last attempt returns or raises")


def read_file(path: Path, channel: str | None, from_us: int | None, to_us: int | None) -> pa.Table:
    """The rows of one file; ArchiveError if it is damaged or of another version."""
    try:
        table = pq.read_table(path, use_threads=False, partitioning=None)
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise ArchiveError(f"{path} cannot be read: {error}", do="put back a copy of the file") from error
    if not table.schema.equals(SCHEMA):
        raise ArchiveError(f"{path} has other columns than this Shoal knows", do="read it with the Shoal that wrote it")
    kept = None
    if channel is not None:
        kept = pc.equal(table["channel"], channel)
    for bound, compare in ((from_us, pc.greater_equal), (to_us, pc.less)):
        if bound is not None:
            within = compare(table["published_at"], pa.scalar(bound, pa.int64()).cast(TIME))
            kept = within if kept is None else pc.and_(kept, within)
    return (table if kept is None else table.filter(kept)).replace_schema_metadata(SCHEMA.metadata)
