"""What there is to archive, and to put together.

Owns the slices of a batch and the groups of a compaction. Asks servers how long their records are; reads no entries.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa

from shoal.errors import ShoalError
from shoal.history.manifest import ArchivedFile, Manifest
from shoal.history.records import Position, RecordReader
from shoal.history.servers import Login
from shoal.pipeline.archive.slices import GROUP_SCHEMA, SLICE_BYTES_MAX, SLICE_SCHEMA
from shoal.plan.keys import channel_text as record_name
from shoal.plan.ring import ServerAddress

SMALL_BYTES: Final = 64 * 1024 * 1024
"""Files from this size on are left as they are."""

GROUP_BYTES_MAX: Final = 512 * 1024 * 1024
"""Rows of one group in memory, so that a worker can hold them, and Arrow's 32-bit offsets can count their bytes."""


Record = tuple[str, bytes]
"""A server's id, and a channel that it has recorded."""


class Work(NamedTuple):
    """The slices of a batch, how many entries each record has behind its position, about, the newest entry of each, and
    the servers that could not be asked."""

    slices: pa.Table
    entries: dict[Record, int]
    ends: dict[Record, Position]
    unreachable: dict[str, str]


def plan_slices(manifest: Manifest, servers: Iterable[ServerAddress], login: Login, rows_max: int) -> Work:
    """What the records hold behind the manifest's positions."""
    work = Work(SLICE_SCHEMA.empty_table(), {}, {}, {})
    rows: list[dict[str, Any]] = []
    for server in servers:
        try:
            with RecordReader(server, login) as reader:
                for channel in reader.channels():
                    after = _begin(manifest.position(server.id, record_name(channel)), end := reader.end(channel))
                    if end.key > after.key:
                        work.entries[server.id, channel] = _entries(after, end)
                        work.ends[server.id, channel] = end
                        place = {"server": server.id, "host": server.host, "port": server.port, "channel": channel}
                        mark = {"after": after.entry, "number": after.number, "batch": manifest.batch + 1}
                        rows.append({**place, **mark, "rows_max": rows_max})
        except ShoalError as error:
            work.unreachable[server.id] = str(error)
    return work._replace(slices=pa.Table.from_pylist(rows, schema=SLICE_SCHEMA))


def _entries(after: Position, end: Position) -> int:
    """How many entries lie behind a position; all of them if the record was begun anew."""
    return max(end.number - after.number if end.number > after.number else end.number, 1)


def _begin(position: Position, end: Position) -> Position:
    """Where a record is read from: its position, or its beginning if it is another record than the one of that."""
    if end.key != (0, 0) and end.key < position.key:
        return Position("0-0", position.number)
    return position


def plan_groups(manifest: Manifest, files_min: int) -> pa.Table:
    """Days and channels with `files_min` small files or more, as groups of which each becomes one file."""
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
    """What the rows of a file take in memory. An older manifest does not say: then a file of a batch counts as much as
    a slice may hold, and one that was put together as too much to be put together again."""
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
