"""Dead letters of queues as a Delta table of their own, in a directory or in an object store.

Owns the table and the rule by which each dead letter is in it once. The columns are those of kind `dead`
(`source.dead_letters`) and `day`, the day of `dead_at`, UTC: the partition.

A dead letter stays on its store after it was archived. It is identified by its queue, the number of its message and the
time at which it died: all three stay the same when its shard moves to another store, where it gets another entry id. A
message that was replayed and dies again is another dead letter. So a job can read all letters again, and only adds
those that the table does not have; it needs no positions. Each commit has a number (application transaction
`DEAD_LETTERS_ID`), so of two jobs that add to one table at the same time the second is rejected.

    read letters -> drop those in the table -> commit -> read letters ...
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from shoal.errors import ArchiveError
from shoal.history.archive_location import ArchiveLocation, reason, require_deltalake
from shoal.pipeline.archive.table_writer import TABLE_PROPERTIES, compact_day, table_paths, writing
from shoal.pipeline.job_folders import exclusive_lock
from shoal.pipeline.source.dead_letters import DEAD_SCHEMA
from shoal.pipeline.source.offset_planner import OffsetPlanner
from shoal.pipeline.source.offsets import ServerOffset
from shoal.pipeline.source.options import SourceOptions
from shoal.pipeline.source.parts import read_part

if TYPE_CHECKING:
    from deltalake import DeltaTable

TABLE_NAME: Final = "shoal dead letters"
DEAD_LETTERS_ID: Final = "shoal.dead_letters"
"""The application transaction that grows with each commit."""
WHAT: Final = "the table of dead letters"
BATCH_ROWS: Final = 10_000
"""Dead letters of one commit."""
COMPACT_FILES_MIN: Final = 32
"""Number of files of a day from which they are compacted."""
LOCKS: Final = "_lock"
"""Directory of the lock. Vacuum leaves directories with an underscore alone."""

_DAY: Final = pa.field("day", pa.date32())
_SAME: Final = ("queue", "number", "dead_at")
"""The columns that identify a dead letter."""


class DeadLettersAdded(msgspec.Struct, frozen=True):
    """What a batch has done."""

    read: int
    rows: int
    """Letters that were new, and are in the table now."""
    unreadable: int
    """Damaged letters. They stay on their stores."""
    seconds: float


class DeadLetterArchive:
    """The only writer of a table of dead letters. `with` takes the lock and opens the table, or creates it."""

    def __init__(self, place: str | Path, options: SourceOptions, batch_rows: int = BATCH_ROWS) -> None:
        self._location = ArchiveLocation.of(place)
        self._planner = OffsetPlanner(options)
        self._batch_rows = batch_rows
        self._reached: dict[str, ServerOffset] | None = None
        """How far this job has read; another job reads all letters again."""
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> DeadLetterArchive:
        with contextlib.ExitStack() as undo:
            undo.push(self._stack)
            self._delta = find_letters(self._location) or self._created()
            self._lock()
            undo.pop_all()
        return self

    def __exit__(self, *details: object) -> None:
        self._stack.close()

    @property
    def silent(self) -> list[str]:
        """Stores that did not answer. Their letters are archived when they do."""
        return self._planner.silent

    @property
    def rows(self) -> int:
        """Dead letters in the table."""
        return sum(row["num_records"] or 0 for row in pa.table(self._delta.get_add_actions(flatten=True)).to_pylist())

    def _created(self) -> DeltaTable:
        from deltalake import DeltaTable, Schema
        from pyarrow.fs import FileSelector

        with writing(self._location, WHAT):
            if self._location.filesystem().get_file_info(FileSelector("", allow_not_found=True)):
                raise ArchiveError(f"{self._location} has other files", do="name an empty directory")
            return DeltaTable.create(
                self._location.url,
                Schema.from_arrow(DEAD_SCHEMA.append(_DAY)),
                name=TABLE_NAME,
                description="Dead letters of queues, archived by Shoal",
                partition_by=[_DAY.name],
                configuration=TABLE_PROPERTIES,
            )

    def _lock(self) -> None:
        if self._location.folder is None:
            return
        busy = ArchiveError(f"another job writes {WHAT} {self._location}", do="wait for it, or stop it first")
        with writing(self._location, WHAT):
            directory = self._location.folder / LOCKS
            directory.mkdir(exist_ok=True)
            self._stack.enter_context(exclusive_lock(directory, busy))
            self._delta.update_incremental()  # another job may have ended since the table was opened

    def batch(self) -> DeadLettersAdded | None:
        """Adds letters that were not read yet, up to the size of a batch; None if there are none."""
        began = time.monotonic()
        start = self._planner.first() if self._reached is None else self._reached
        end = self._planner.next(start, self._batch_rows)
        if end == start:
            self._reached = start
            return None
        batches = [batch for part in self._planner.parts(start, end) for batch in read_part(part)]
        letters = pa.Table.from_batches(batches, DEAD_SCHEMA)
        readable = letters.filter(pc.is_valid(letters["number"]))
        added = self._add(readable)
        self._reached = end
        return DeadLettersAdded(letters.num_rows, added, letters.num_rows - readable.num_rows, time.monotonic() - began)

    def _add(self, letters: pa.Table) -> int:
        """Commits the letters that the table does not have; returns their number."""
        from deltalake import write_deltalake
        from deltalake.transaction import CommitProperties, Transaction

        days = letters["dead_at"].cast(_DAY.type)
        known, places = self._known(letters, set(pc.unique(days).to_pylist())), list[int]()
        for place, identity in enumerate(_identities(letters)):
            if identity not in known:
                known.add(identity)
                places.append(place)
        if not places:
            return 0
        new = letters.append_column(_DAY, days).take(pa.array(places))
        number = max(time.time_ns(), (self._delta.transaction_version(DEAD_LETTERS_ID) or 0) + 1)
        named = CommitProperties(app_transactions=[Transaction(DEAD_LETTERS_ID, number)])
        with writing(self._location, WHAT):
            write_deltalake(self._delta, new, mode="append", commit_properties=named)
            self._delta.update_incremental()
            for day in pc.unique(new[_DAY.name]).to_pylist():
                compact_day(self._delta, day, COMPACT_FILES_MIN)
        return len(places)

    def _known(self, letters: pa.Table, days: set[Any]) -> set[tuple[Any, ...]]:
        """The identities of letters in the table that died on these days, of the queues of `letters`."""
        paths = [path for day in days for path in table_paths(self._delta, day)]
        if not paths:
            return set()
        files = self._location.filesystem()
        dataset = ds.FileSystemDataset.from_paths(paths, DEAD_SCHEMA, ds.ParquetFileFormat(), files)
        wanted = ds.field("queue").isin(pc.unique(letters["queue"]))
        try:
            return set(_identities(dataset.to_table(columns=list(_SAME), filter=wanted)))
        except (pa.ArrowException, OSError) as error:
            raise ArchiveError(
                f"a file of {WHAT} {self._location} cannot be read: {error}", do="restore a copy of the file"
            ) from error


def _identities(letters: pa.Table) -> Iterator[tuple[Any, ...]]:
    columns = (letters[name] if name != "dead_at" else letters[name].cast(pa.int64()) for name in _SAME)
    return zip(*(column.to_pylist() for column in columns), strict=True)


def find_letters(location: ArchiveLocation) -> DeltaTable | None:
    """The table at a place; None if there is none. ArchiveError if it cannot be read, or is another table."""
    require_deltalake()
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    if location.folder is not None and location.folder.is_file():
        raise ArchiveError(f"{location} is a file, not a directory", do="name another directory")
    try:
        delta = DeltaTable(location.url)
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        raise ArchiveError(
            f"{WHAT} {location} cannot be read: {reason(error)}",
            do="check the place, and the credentials and the endpoint of an object store",
        ) from error
    if delta.metadata().name != TABLE_NAME:
        raise ArchiveError(f"{location} is a Delta table, but not one of dead letters", do="name another place")
    return delta
