"""Commits to the table of an archive: new files with their positions, replaced files, and files that are too old.

Owns every change of the table. A commit is one step: all of it is visible, or nothing. Two writers cannot both commit
positions that follow the same ones: the table rejects the second.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import msgspec
import pyarrow as pa
from pyarrow.fs import FileSelector

from shoal.errors import ArchiveError
from shoal.history.archive_location import ArchiveLocation, reason
from shoal.history.archive_table import (
    DAY,
    POSITIONS,
    POSITIONS_ID,
    TABLE_SCHEMA,
    ArchivedFile,
    ArchiveTable,
    Positions,
    find_table,
    open_table,
    positions_path,
)

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction, RemoveAction, Transaction

VACUUM_S: Final = 7 * 86_400.0
"""How long files stay that are no longer in the table, for readers of an older version."""
VACUUM_S_MIN: Final = 3600.0

TABLE_PROPERTIES: Final = {
    "delta.checkpointInterval": "100",
    "delta.logRetentionDuration": "interval 7 days",
    "delta.deletedFileRetentionDuration": "interval 7 days",
}


class TableWriter:
    """The writer of one archive. Creates the table if there is none, and adds columns that the table does not have."""

    def __init__(self, location: ArchiveLocation) -> None:
        self._location = location
        self._files = location.filesystem()
        self.table = find_table(location) or self._create()
        self._add_columns()

    def _create(self) -> ArchiveTable:
        """A new table. Its directory must be empty, since files that are not in the table are deleted later."""
        with writing(self._location):
            others = {file.path for file in self._files.get_file_info(FileSelector("", allow_not_found=True))}
        if others - {POSITIONS}:
            raise ArchiveError(f"{self._location} has files but is not an archive", do="name an empty directory")
        create_table(self._location, [], Positions())
        return open_table(self._location)

    def _add_columns(self) -> None:
        from deltalake import Schema

        known = pa.schema(self.table.delta.schema().to_arrow()).names
        missing = [field for field in Schema.from_arrow(TABLE_SCHEMA).fields if field.name not in known]
        if missing:
            with writing(self._location):
                self.table.delta.alter.add_columns(missing)
            self.table = open_table(self._location)

    def add(self, files: Sequence[ArchivedFile], positions: Positions) -> None:
        """Adds files together with the positions up to which records were read into them."""
        named = _write_positions(self._location, positions, self.table.number)
        self._commit([_add(file, data_change=True) for file in files], named)

    def replace(self, old: Sequence[ArchivedFile], new: Sequence[ArchivedFile]) -> None:
        """Replaces files by others with the same messages."""
        self._commit(
            [*(_remove(file, data_change=False) for file in old), *(_add(file, data_change=False) for file in new)]
        )

    def remove(self, files: Sequence[ArchivedFile]) -> None:
        """Removes files from the table; `vacuum` deletes them."""
        self._commit([_remove(file, data_change=True) for file in files])

    def vacuum(self, after_s: float = VACUUM_S) -> int:
        """Deletes files that have not been in the table for `after_s`, also those of a job that died; returns their
        number."""
        old_ns = time.time_ns() - int(after_s * 1e9)
        with writing(self._location):
            gone = self.table.delta.vacuum(
                max(int(after_s / 3600), 1), dry_run=False, enforce_retention_duration=False, full=True
            )
            for file in self._files.get_file_info(FileSelector(POSITIONS, allow_not_found=True)):
                number = Path(file.path).stem
                if number.isdecimal() and int(number) < min(old_ns, self.table.number):
                    self._files.delete_file(file.path)
        self.table = open_table(self._location)
        return len(gone)

    def _commit(
        self, actions: Sequence[AddAction | RemoveAction], transactions: list[Transaction] | None = None
    ) -> None:
        from deltalake.transaction import CommitProperties

        delta = self.table.delta
        properties = CommitProperties(app_transactions=transactions)
        with writing(self._location):
            delta.create_write_transaction(
                list(actions), "append", delta.schema(), [DAY.name], commit_properties=properties
            )
        self.table = open_table(self._location)
        self._location.sync(f"_delta_log/{self.table.delta.version():020d}.json")


def create_table(location: ArchiveLocation, files: Sequence[ArchivedFile], positions: Positions) -> None:
    """Creates the table of an archive in one commit, with its first files and positions."""
    from deltalake import Schema
    from deltalake.transaction import CommitProperties, create_table_with_add_actions

    named = _write_positions(location, positions, 0)
    with writing(location):
        create_table_with_add_actions(
            location.url,
            Schema.from_arrow(TABLE_SCHEMA),
            [_add(file, data_change=True) for file in files],
            partition_by=[DAY.name],
            description="Recorded channels, archived by Shoal",
            configuration=TABLE_PROPERTIES,
            commit_properties=CommitProperties(app_transactions=named),
        )
    location.sync(f"_delta_log/{0:020d}.json")


def _write_positions(location: ArchiveLocation, positions: Positions, after: int) -> list[Transaction]:
    """Writes positions under a number above `after`; returns the application transaction that names them."""
    from deltalake.transaction import Transaction

    number = max(time.time_ns(), after + 1)
    with writing(location):
        location.write(positions_path(number), msgspec.json.encode(positions))
    return [Transaction(POSITIONS_ID, number)]


@contextlib.contextmanager
def writing(location: ArchiveLocation, what: str = "the archive") -> Iterator[None]:
    """Turns errors of the library into an ArchiveError that says what to do."""
    from deltalake.exceptions import CommitFailedError, DeltaError

    try:
        yield
    except CommitFailedError as error:
        raise ArchiveError(
            f"another job has written to {what} {location} meanwhile ({reason(error)})",
            do="run one job for a table; this one has changed nothing",
        ) from error
    except (DeltaError, OSError) as error:
        raise ArchiveError(
            f"{what} {location} cannot be written: {reason(error)}",
            do="check the place, and the credentials and the endpoint of an object store",
        ) from error


def table_paths(delta: DeltaTable, day: dt.date) -> list[str]:
    """The files of a day in a table that is partitioned by day."""
    rows = pa.table(delta.get_add_actions(flatten=True)).to_pylist()
    return [unquote(row["path"]) for row in rows if row[f"partition.{DAY.name}"] == day]


def compact_day(delta: DeltaTable, day: dt.date, files_min: int) -> None:
    """Merges the files of a day if there are `files_min`, and deletes files that were merged long ago."""
    if len(table_paths(delta, day)) >= files_min:
        delta.optimize.compact([(DAY.name, "=", day.isoformat())])
        delta.vacuum(int(VACUUM_S / 3600), dry_run=False, full=True)


def _add(file: ArchivedFile, *, data_change: bool) -> AddAction:
    from deltalake.transaction import AddAction

    least = {"channel": file.channel, "published_at": _time_text(file.from_us)}
    most = {"channel": file.channel_max, "published_at": _time_text(file.to_us)}
    nulls = dict.fromkeys(least, 0)
    stats = {"numRecords": file.rows, "minValues": least, "maxValues": most, "nullCount": nulls}
    return AddAction(
        file.path, file.bytes, {DAY.name: file.day}, time.time_ns() // 1_000_000, data_change, json.dumps(stats)
    )


def _remove(file: ArchivedFile, *, data_change: bool) -> RemoveAction:
    from deltalake.transaction import RemoveAction

    return RemoveAction(file.path, data_change, time.time_ns() // 1_000_000, file.bytes, {DAY.name: file.day})


def _time_text(time_us: int) -> str:
    """A time as the table's statistics have it."""
    time = dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=time_us)
    return f"{time.isoformat(timespec='microseconds')}Z"
