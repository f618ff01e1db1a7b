"""An archive as a Delta table: which files belong to it, and how far the records were read into it.

Owns the format. `shoal.pipeline.archive.table_writer` commits to the table; this module reads it.

    ARCHIVE/
      _delta_log/                                    commits and checkpoints, written by the library `deltalake`
      _positions/1793534400123456789.json            how far each record was read
      day=2026-11-01/part-0c2f...-orders.eu-s1.parquet

A commit lists its files and names its positions: the application transaction `POSITIONS_ID` carries their number. The
file with that number is written before the commit and never changed. So files and positions become valid in one step,
and a writer that dies before it leaves files that no commit names. Positions are not in the commit itself: its metadata
does not survive checkpoints, and an application transaction holds one integer, where a position is an entry's id and a
number, for thousands of records. The number of an application transaction is part of every checkpoint.

A file has rows of one day and, unless another program has rewritten it, of one channel. The smallest and largest
channel and time of a file are in the commit, so readers skip files without opening them.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import msgspec
import pyarrow as pa

from shoal.errors import ArchiveError
from shoal.history.archive_location import ArchiveLocation, reason, require_deltalake
from shoal.history.record_reader import BEGINNING, RecordPosition
from shoal.history.table import SCHEMA

if TYPE_CHECKING:
    from deltalake import DeltaTable

POSITIONS: Final = "_positions"
"""Directory of positions. Other programs that clean up Delta tables leave directories with an underscore alone."""

POSITIONS_ID: Final = "shoal.positions"
"""The application transaction with the number of the positions."""

DAY: Final = pa.field("day", pa.date32())
"""The partition column: the day of `published_at`, UTC. It is the same for all copies of a message."""

TABLE_SCHEMA: Final = pa.schema([*SCHEMA, DAY])

OLD_MANIFEST: Final = "manifest.json"
"""Lists the files of an archive that was written before archives were tables."""

_REQUIRED: Final = ("channel", "server", "entry", "published_at")


class Positions(msgspec.Struct, frozen=True, kw_only=True):
    """How far each record of each server was read into the archive."""

    records: dict[str, dict[str, RecordPosition]] = {}
    """Server to channel (in base64url) to the last entry that was archived."""
    left: dict[str, int] = {}
    """Servers in `records` that have left the cluster: when a job first noticed, in microseconds since 1970."""

    def of(self, server: str, channel: str) -> RecordPosition:
        """How far a record was read."""
        return self.records.get(server, {}).get(channel, BEGINNING)


class ArchivedFile(msgspec.Struct, frozen=True, kw_only=True):
    """One Parquet file. Times are those of `published_at`, in microseconds since 1970."""

    path: str
    day: str
    channel: str
    """The smallest name of a channel in the file; usually there is one."""
    channel_max: str
    rows: int
    bytes: int
    from_us: int
    to_us: int

    def may_hold(self, channel: str | None, from_us: int | None, to_us: int | None) -> bool:
        """Whether the file may have rows of a channel (None: any) and a time span."""
        return (
            (channel is None or self.channel <= channel <= self.channel_max)
            and (from_us is None or self.to_us >= from_us)
            and (to_us is None or self.from_us < to_us)
        )


@dataclass(frozen=True)
class ArchiveTable:
    """An archive as it was at one version. Later commits do not change it."""

    location: ArchiveLocation
    delta: DeltaTable
    number: int
    """The number of the positions; 0 before the first ones."""
    positions: Positions

    @cached_property
    def files(self) -> tuple[ArchivedFile, ...]:
        """The files of the table."""
        return tuple(_file(row) for row in pa.table(self.delta.get_add_actions(flatten=True)).to_pylist())

    @property
    def rows(self) -> int:
        """Rows of all files. A message that two servers recorded counts twice until compaction."""
        return sum(file.rows for file in self.files)


def open_table(location: ArchiveLocation) -> ArchiveTable:
    """The archive as it is now. ArchiveError if there is none, or if it cannot be read."""
    table = find_table(location)
    if table is None:
        raise ArchiveError(
            f"there is no archive at {location}", do="name another place, or run `shoal pipeline archive`"
        )
    return table


def find_table(location: ArchiveLocation) -> ArchiveTable | None:
    """The archive as it is now; None if there is none. ArchiveError if it cannot be read."""
    require_deltalake()
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    check_migrated(location)
    try:
        delta = DeltaTable(location.url)
        number = delta.transaction_version(POSITIONS_ID) or 0
        _check_columns(location, pa.schema(delta.schema().to_arrow()))
        return ArchiveTable(location, delta, number, _read_positions(location, number))
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        raise ArchiveError(
            f"the archive {location} cannot be read: {reason(error)}",
            do="check the place, and the credentials and the endpoint of an object store",
        ) from error


def check_migrated(location: ArchiveLocation) -> None:
    """ArchiveError if an archive is in the format that was used before tables."""
    if location.folder is not None and (location.folder / OLD_MANIFEST).is_file():
        raise ArchiveError(
            f"{location} was written by an older version of Shoal",
            do=f"run `shoal pipeline archive --migrate --archive {location}` once; it copies no data",
        )


def _check_columns(location: ArchiveLocation, schema: pa.Schema) -> None:
    """ArchiveError if a table has no recorded messages. It may have more columns than this version knows, or fewer:
    then these are null."""
    if any(name not in schema.names for name in _REQUIRED) or any(
        field.name in schema.names and schema.field(field.name).type != field.type for field in TABLE_SCHEMA
    ):
        raise ArchiveError(
            f"{location} is a Delta table, but not an archive that this version of Shoal reads",
            do="name another place, or use the version of Shoal that wrote it",
        )


def positions_path(number: int) -> str:
    """The file of the positions with a number."""
    return f"{POSITIONS}/{number}.json"


def _read_positions(location: ArchiveLocation, number: int) -> Positions:
    if not number:
        return Positions()
    path = positions_path(number)
    try:
        with location.filesystem().open_input_file(path) as stream:
            return msgspec.json.decode(stream.read(), type=Positions)
    except (OSError, msgspec.DecodeError) as error:
        raise ArchiveError(
            f"{path} of the archive {location} cannot be read: {error}", do="restore a copy of the file"
        ) from error


def _file(row: dict[str, Any]) -> ArchivedFile:
    """A file from a row of the library. A file of another program may have no statistics: it may hold anything."""
    day = row["partition.day"].isoformat()
    begin = dt.datetime.fromisoformat(f"{day}T00:00+00:00")
    first, last = row.get("min.published_at") or begin, row.get("max.published_at") or begin + dt.timedelta(days=1)
    return ArchivedFile(
        path=unquote(row["path"]),
        day=day,
        channel=row.get("min.channel") or "",
        channel_max=row.get("max.channel") or "\U0010ffff",
        rows=row.get("num_records") or 0,
        bytes=row["size_bytes"],
        from_us=_time_us(first),
        to_us=_time_us(last),
    )


def _time_us(time: dt.datetime) -> int:
    return (time - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)


def channel_groups(files: Iterable[ArchivedFile]) -> Iterator[Sequence[ArchivedFile]]:
    """The files in groups, each with all files of a day that share channels. All copies of a message are in one."""
    group: list[ArchivedFile] = []
    reached = ""
    for file in sorted(files, key=lambda file: (file.day, file.channel, file.from_us)):
        if group and (file.day != group[0].day or file.channel > reached):
            yield group
            group, reached = [], ""
        group.append(file)
        reached = max(reached, file.channel_max)
    if group:
        yield group
