"""Plans a batch of the archive job, and a compaction.

Owns the slices of a batch and the groups of a compaction. Asks servers how far their records go; reads no entries.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa

from shoal.errors import ShoalError
from shoal.history.manifest import ArchivedFile, Manifest
from shoal.history.record_reader import RecordPosition, RecordReader
from shoal.history.server_reader import Login
from shoal.pipeline.archive.parquet_files import GROUP_SCHEMA, SLICE_BYTES_MAX, SLICE_SCHEMA
from shoal.plan.keys import unit_text as record_name
from shoal.plan.ring import ServerAddress

SMALL_BYTES: Final = 64 * 1024 * 1024
"""Files of this size or more are not compacted."""

GROUP_BYTES_MAX: Final = 512 * 1024 * 1024
"""Size of one group's rows in memory, so that a worker can hold them and 32-bit offsets of Arrow suffice."""


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


def plan_batch(manifest: Manifest, servers: Iterable[ServerAddress], login: Login, rows_max: int) -> BatchPlan:
    """The entries of all records after the manifest's positions."""
    plan = BatchPlan(SLICE_SCHEMA.empty_table(), {}, {}, {})
    rows: list[dict[str, Any]] = []
    for server in servers:
        try:
            with RecordReader(server, login) as reader:
                for channel in reader.channels():
                    after = _begin(manifest.position(server.id, record_name(channel)), end := reader.end(channel))
                    if end.key > after.key:
                        plan.entries[server.id, channel] = _entries(after, end)
                        plan.ends[server.id, channel] = end
                        place = {"server": server.id, "host": server.host, "port": server.port, "channel": channel}
                        mark = {"after": after.entry, "number": after.number, "batch": manifest.batch + 1}
                        rows.append({**place, **mark, "rows_max": rows_max})
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


def plan_groups(manifest: Manifest, files_min: int) -> pa.Table:
    """Groups of files that each become one file, for every day and channel with at least `files_min` small files."""
    small: defaultdict[tuple[str, str], list[ArchivedFile]] = defaultdict(list)
    for file in manifest.files:
        if file.bytes < SMALL_BYTES and raw_bytes(file) <= GROUP_BYTES_MAX // 2:
            small[file.channel, file.day].append(file)
    rows: list[dict[str, Any]] = []
    for (channel, day), files in sorted(small.items()):
        if len(files) < files_min:
            continue
        for group in _groups(sorted(files, key=lambda file: file.from_us)):
            if len(group) >= min(files_min, 2):
                paths = [file.path for file in group]
                rows.append({"channel": channel, "day": day, "paths": paths, "batch": manifest.batch + 1})
    return pa.Table.from_pylist(rows, schema=GROUP_SCHEMA)


def raw_bytes(file: ArchivedFile) -> int:
    """Size of a file's rows in memory. If an older manifest does not have it, a batch's file counts as the size limit
    of a slice, and a compacted file as too large to be compacted again."""
    if file.raw_bytes:
        return file.raw_bytes
    return SLICE_BYTES_MAX if "/batch-" in file.path else GROUP_BYTES_MAX


def _groups(files: Iterable[ArchivedFile]) -> Iterator[list[ArchivedFile]]:
    """Neighbouring files that a worker can hold together."""
    group: list[ArchivedFile] = []
    size = 0
    for file in files:
        if group and size + raw_bytes(file) > GROUP_BYTES_MAX:
            yield group
            group, size = [], 0
        group.append(file)
        size += raw_bytes(file)
    if group:
        yield group
