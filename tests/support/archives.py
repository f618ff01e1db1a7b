"""Archives with given messages, made without servers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from shoal.history.archive_location import ArchiveLocation
from shoal.history.archive_table import Positions
from shoal.history.table import SCHEMA
from shoal.pipeline.archive.parquet_files import write_files
from shoal.pipeline.archive.table_writer import create_table


def message(channel: str, publisher: int, sequence: int, at_us: int, **more: Any) -> dict[str, Any]:
    """A row of an archive. Without `recorded_at`, the message was recorded when it was published."""
    row: dict[str, Any] = {
        "channel": channel,
        "server": "s1",
        "entry": f"{at_us // 1000}-{sequence}",
        "publisher": publisher,
        "epoch": 1,
        "sequence": sequence,
        "published_at": at_us,
        "recorded_at": at_us,
        "payload": b"m%d" % sequence,
        "is_gap": False,
        "is_end": False,
    }
    return {**row, **more}


def make_archive(place: Path, rows: Iterable[dict[str, Any]]) -> Path:
    """An archive with these rows."""
    location = ArchiveLocation.of(place)
    table = pa.Table.from_pylist(list(rows), schema=SCHEMA)
    place.mkdir(parents=True, exist_ok=True)
    create_table(location, list(write_files(location, table, "part", "s1")), Positions())
    return place
