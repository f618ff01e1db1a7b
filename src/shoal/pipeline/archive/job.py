"""The archive job: one batch after the other, each committed by the manifest.

Owns the order of things, which is what makes every recorded message come once: files are written first, then the
manifest lists them together with the positions up to which records were read. Whoever dies in between has changed
nothing. One job writes an archive at a time.

    plan slices -> workers write files -> manifest -> plan slices ... -> compact -> manifest
"""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from shoal.errors import ArchiveError
from shoal.history.manifest import (
    DATA,
    ArchivedFile,
    Manifest,
    Retired,
    check_new,
    check_newest,
    read_manifest,
    unlisted,
    write_manifest,
)
from shoal.history.records import Position
from shoal.history.servers import Login
from shoal.logs import get_log
from shoal.pipeline.archive.planning import Record, Work, plan_groups, plan_slices
from shoal.pipeline.archive.slices import DONE_SCHEMA, archive_slices, compact_groups
from shoal.plan.keys import channel_text as record_name
from shoal.plan.ring import ServerAddress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RETIRED_S: Final = 600.0
"""How long a file stays that was put together with others: who reads by an older manifest still finds it."""

COMPACT_FILES_MIN: Final = 32
"""Small files of a day and channel from which on they are put together without being asked."""

BATCH_ROWS: Final = 200_000
"""Entries of one record in one batch."""

Function = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
Runner = Callable[[Function, pa.Table], pa.Table]
"""Runs a function over the rows of a table, in as many places as it has."""

_log: Final = get_log(__name__)


def run_here(function: Function, rows: pa.Table) -> pa.Table:
    """Runs a function in this process."""
    return pa.Table.from_batches(list(function(rows.to_batches())), DONE_SCHEMA)


def on_spark(spark: SparkSession) -> Runner:
    """Runs functions on Spark, a task for each row."""

    def run(function: Function, rows: pa.Table) -> pa.Table:
        from pyspark.sql.pandas.types import from_arrow_schema

        frame = spark.createDataFrame(rows).repartition(rows.num_rows)
        done = frame.mapInArrow(function, from_arrow_schema(DONE_SCHEMA))
        return done.toArrow().cast(DONE_SCHEMA)

    return run


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """What a batch has done."""

    batch: int
    entries: int
    rows: int
    files: int
    behind: int
    """Entries of those that there were when the batch was planned that it has left, about."""
    seconds: float


class ArchiveJob:
    """The one writer of an archive; entering it takes the lock and clears up after one that died."""

    def __init__(self, archive: Path, login: Login, batch_rows: int = BATCH_ROWS) -> None:
        self._archive = archive
        self._login = login
        self._batch_rows = batch_rows
        self._stack = contextlib.ExitStack()
        self.manifest = Manifest()
        self.removed = 0
        """Files that a job which died had left."""
        self.unreachable: dict[str, str] = {}
        """Servers whose records could not be read in the last batch, and why. They are left for the next one."""
        self.ends: Mapping[Record, Position] = {}
        """The newest entries of the records that had some unarchived, when the last batch was planned."""

    def __enter__(self) -> ArchiveJob:
        with contextlib.ExitStack() as undo:
            undo.push(self._stack)
            self._lock()
            self.manifest = self._begin()
            check_newest(self._archive, self.manifest)
            for path in list(unlisted(self._archive, self.manifest)):
                path.unlink()
                self.removed += 1
            undo.pop_all()
        return self

    def _lock(self) -> None:
        try:
            self._archive.mkdir(parents=True, exist_ok=True)
            lock = self._stack.enter_context((self._archive / "lock").open("ab"))
        except OSError as error:
            raise self._unwritable(error) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ArchiveError(
                f"another job writes the archive {self._archive}", do="let it, or stop it first"
            ) from None

    def _begin(self) -> Manifest:
        """The manifest. A new archive gets one before its first file is written, so that the files of a first job that
        dies are known for what they are; a directory with files and no manifest is nobody's to clear."""
        manifest = read_manifest(self._archive)
        if manifest is None:
            check_new(self._archive)
        try:
            (self._archive / DATA).mkdir(exist_ok=True)
            if manifest is None:
                manifest = Manifest()
                write_manifest(self._archive, manifest)
        except OSError as error:
            raise self._unwritable(error) from error
        return manifest

    def _unwritable(self, error: OSError) -> ArchiveError:
        return ArchiveError(
            f"the archive {self._archive} cannot be written: {error.strerror}", do="name another directory"
        )

    def __exit__(self, *details: object) -> None:
        self._stack.close()

    def batch(self, servers: Sequence[ServerAddress], runner: Runner) -> Progress | None:
        """Archives what the records hold, or as much of it as a batch takes; None if there is nothing."""
        began = time.monotonic()
        self._note_left({server.id for server in servers})
        work = plan_slices(self.manifest, servers, self._login, self._batch_rows)
        self.unreachable = work.unreachable
        self.ends = work.ends
        if not work.slices.num_rows:
            return None
        done = runner(partial(archive_slices, self._login, str(self._archive)), work.slices).to_pylist()
        return self._commit(work, done, began)

    def _note_left(self, here: Set[str]) -> None:
        """Notes which servers have left, and since when that is known: what they recorded last may be missing."""
        known, now_us = self.manifest.left, int(time.time() * 1_000_000)
        left = {server: known.get(server, now_us) for server in self.manifest.positions if server not in here}
        if left != known:
            self._write(left=left)

    def behind(self, ends: Mapping[Record, Position]) -> list[Record]:
        """The records that are not archived up to entries and had more, by the last batch; those of servers that could
        not be read are left out."""
        return [
            (server, channel)
            for (server, channel), end in ends.items()
            if server not in self.unreachable
            and (server, channel) in self.ends
            and self.manifest.position(server, record_name(channel)).key < end.key
        ]

    def _commit(self, work: Work, done: list[dict[str, Any]], began: float) -> Progress:
        number = self.manifest.batch + 1
        files = [_file(row, number) for row in done if row["path"] is not None]
        positions = {server: dict(known) for server, known in self.manifest.positions.items()}
        entries = {(row["server"], row["record"]): row["entries"] for row in done}
        for row in done:
            if row["error"] is not None:
                self.unreachable[row["server"]] = row["error"]
            if row["entries"]:
                position = Position(row["entry"], row["number"])
                positions.setdefault(row["server"], {})[record_name(row["record"])] = position
        if any(entries.values()):
            self._write(files=(*self.manifest.files, *files), positions=positions)
        return Progress(
            batch=number,
            entries=sum(entries.values()),
            rows=sum(file.rows for file in files),
            files=len(files),
            behind=sum(max(there - entries.get(record, 0), 0) for record, there in work.entries.items()),
            seconds=time.monotonic() - began,
        )

    def compact(self, runner: Runner, files_min: int = COMPACT_FILES_MIN) -> int:
        """Puts small files together; how many were replaced."""
        groups = plan_groups(self.manifest, files_min)
        if not groups.num_rows:
            return 0
        done = runner(partial(compact_groups, str(self._archive)), groups).to_pylist()
        replaced = {path for paths in groups["paths"].to_pylist() for path in paths}
        kept = [file for file in self.manifest.files if file.path not in replaced]
        new = [_file(row, self.manifest.batch + 1) for row in done]
        retired = [Retired(path, time.time()) for path in sorted(replaced)]
        self._write(files=(*kept, *new), retired=(*self.manifest.retired, *retired))
        return len(replaced)

    def _write(self, **changes: Any) -> None:
        """Commits a batch; what was retired long ago is forgotten, and then removed."""
        manifest = msgspec.structs.replace(self.manifest, batch=self.manifest.batch + 1, **changes)
        oldest = time.time() - RETIRED_S
        gone = [file for file in manifest.retired if file.since_s < oldest]
        manifest = msgspec.structs.replace(
            manifest, retired=tuple(file for file in manifest.retired if file.since_s >= oldest)
        )
        write_manifest(self._archive, manifest)
        self.manifest = manifest
        for file in gone:
            (self._archive / file.path).unlink(missing_ok=True)


def _file(row: dict[str, Any], batch: int) -> ArchivedFile:
    names = ("path", "channel", "day", "rows", "bytes", "from_us", "to_us", "raw_bytes")
    return ArchivedFile(**{name: row[name] for name in names}, batch=batch)
