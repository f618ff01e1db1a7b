"""Plans a batch of the archive job, and a compaction.

Owns the slices of a batch and the groups of a compaction. Asks servers how far their records go; reads no entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import Any, Final, NamedTuple

import pyarrow as pa

from shoal.errors import ShoalError
from shoal.history.archive_table import ArchivedFile, Positions, channel_groups
from shoal.history.record_reader import RecordPosition, RecordReader
from shoal.history.server_reader import Login
from shoal.pipeline.archive.parquet_files import COMPACTED, SLICE_SCHEMA
from shoal.plan.keys import unit_text as record_name
from shoal.plan.ring import ServerAddress

SMALL_BYTES: Final = 64 * 1024 * 1024
"""Files of this size or more are not compacted."""

RecordKey = tuple[str, bytes]
"""A server's id, and a channel that it has recorded."""


class BatchPlan(NamedTuple):
    """What a batch reads."""

    slices: pa.Table
    """Rows of `SLICE_SCHEMA`."""
    entries: dict[RecordKey, int]
    """About how many entries each record has after its position."""
    ends: dict[RecordKey, RecordPosition]
    """The newest entry of each record."""
    unreachable: dict[str, str]
    """Servers that could not be asked, and why."""


def plan_batch(positions: Positions, servers: Iterable[ServerAddress], login: Login, rows_max: int) -> BatchPlan:
    """The entries of all records after their positions."""
    plan = BatchPlan(SLICE_SCHEMA.empty_table(), {}, {}, {})
    rows: list[dict[str, Any]] = []
    for server in servers:
        try:
            with RecordReader(server, login) as reader:
                for channel in reader.channels():
                    after = _begin(positions.of(server.id, record_name(channel)), end := reader.end(channel))
                    if end.key > after.key:
                        plan.entries[server.id, channel] = _entries(after, end)
                        plan.ends[server.id, channel] = end
                        place = {"server": server.id, "host": server.host, "port": server.port, "channel": channel}
                        rows.append({**place, "after": after.entry, "number": after.number, "rows_max": rows_max})
        except ShoalError as error:
            plan.unreachable[server.id] = str(error)
    return plan._replace(slices=pa.Table.from_pylist(rows, schema=SLICE_SCHEMA))


def _entries(after: RecordPosition, end: RecordPosition) -> int:
    """Number of entries after a position; all of them if the record was restarted."""
    return max(end.number - after.number if end.number > after.number else end.number, 1)


def _begin(position: RecordPosition, end: RecordPosition) -> RecordPosition:
    """Where a record is read from: its position, or its beginning if the record was restarted."""
    if end.key != (0, 0) and end.key < position.key:
        return RecordPosition("0-0", position.number)
    return position


def plan_groups(files: Iterable[ArchivedFile], files_min: int) -> list[Sequence[ArchivedFile]]:
    """Groups of at least `files_min` small files of a day that share channels, ordered by time. A group that only has
    files of an earlier compaction is left alone."""
    groups = channel_groups(file for file in files if file.bytes < SMALL_BYTES)
    return [
        sorted(group, key=lambda file: file.from_us)
        for group in groups
        if len(group) >= max(files_min, 2)
        and not all(PurePosixPath(file.path).name.startswith(COMPACTED) for file in group)
    ]
