"""The archive job: runs batches, each committed to the archive's table.

Owns the order of steps, by which every recorded message is archived exactly once: first files are written, then they
are committed together with the positions up to which records were read. A job that dies in between has changed nothing.
Only one job writes an archive at a time: in a directory a lock keeps others out, in an object store the table rejects
the commit of the second.

    plan slices -> workers write files -> commit -> plan slices ... -> compact -> commit -> vacuum
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from shoal.errors import ArchiveError
from shoal.history.archive_location import ArchiveLocation
from shoal.history.archive_table import POSITIONS, ArchivedFile, ArchiveTable, Positions, check_migrated
from shoal.history.record_reader import RecordPosition
from shoal.history.server_reader import Login
from shoal.pipeline.archive.batch_plan import BatchPlan, RecordKey, plan_batch, plan_groups
from shoal.pipeline.archive.parquet_files import DONE_SCHEMA, GROUP_SCHEMA, archive_slices, compact_groups
from shoal.pipeline.archive.table_writer import VACUUM_S, TableWriter
from shoal.pipeline.job_folders import exclusive_lock
from shoal.pipeline.spark.tasks import Task, spark_schema
from shoal.plan.keys import unit_text as record_name
from shoal.plan.ring import ServerAddress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COMPACT_FILES_MIN: Final = 32
"""Number of small files of a day and channel from which they are compacted automatically."""

BATCH_ROWS: Final = 200_000
"""Entries of one record in one batch."""

Runner = Callable[[Task, pa.Table], pa.Table]
"""Runs a task over the rows of a table."""


def run_here(task: Task, rows: pa.Table) -> pa.Table:
    """Runs a task in this process."""
    return pa.Table.from_batches(list(task(rows.to_batches())), DONE_SCHEMA)


def on_spark(spark: SparkSession) -> Runner:
    """Runs tasks on Spark, one Spark task for each row."""

    def run(task: Task, rows: pa.Table) -> pa.Table:
        frame = spark.createDataFrame(rows).repartition(rows.num_rows)
        return frame.mapInArrow(task, spark_schema(DONE_SCHEMA)).toArrow().cast(DONE_SCHEMA)

    return run


class BatchResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a batch has done."""

    entries: int
    rows: int
    files: int
    behind: int
    """About how many entries existed when the batch was planned and were not archived by it."""
    seconds: float


class ArchiveJob:
    """The only writer of an archive. `with` takes the lock and opens the table, or creates it."""

    def __init__(self, archive: str | Path, login: Login, batch_rows: int = BATCH_ROWS) -> None:
        self._location = ArchiveLocation.of(archive)
        self._login = login
        self._batch_rows = batch_rows
        self._stack = contextlib.ExitStack()
        self.unreachable: dict[str, str] = {}
        """Servers whose records the last batch could not read, and why. The next batch tries again."""
        self.ends: Mapping[RecordKey, RecordPosition] = {}
        """The newest entries of all records with unarchived entries, when the last batch was planned."""

    def __enter__(self) -> ArchiveJob:
        with contextlib.ExitStack() as undo:
            undo.push(self._stack)
            self._lock()
            self._writer = TableWriter(self._location)
            undo.pop_all()
        return self

    def __exit__(self, *details: object) -> None:
        self._stack.close()

    @property
    def table(self) -> ArchiveTable:
        """The archive after the last commit."""
        return self._writer.table

    @property
    def positions(self) -> Positions:
        """How far each record was archived."""
        return self.table.positions

    def _lock(self) -> None:
        check_migrated(self._location)
        if self._location.folder is None:
            return
        busy = ArchiveError(f"another job writes the archive {self._location}", do="wait for it, or stop it first")
        directory = self._location.folder / POSITIONS
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._stack.enter_context(exclusive_lock(directory, busy))
        except OSError as error:
            raise ArchiveError(
                f"the archive {self._location} cannot be written: {error.strerror}", do="name another directory"
            ) from error

    def batch(self, servers: Sequence[ServerAddress], runner: Runner) -> BatchResult | None:
        """Archives new entries, up to the size of a batch; None if there are none."""
        began = time.monotonic()
        self._note_left({server.id for server in servers})
        plan = plan_batch(self.positions, servers, self._login, self._batch_rows)
        self.unreachable = plan.unreachable
        self.ends = plan.ends
        if not plan.slices.num_rows:
            return None
        done = runner(partial(archive_slices, self._login, self._location), plan.slices).to_pylist()
        return self._commit(plan, done, began)

    def _note_left(self, here: Set[str]) -> None:
        """Notes which servers have left and when that was noticed; their last entries may be missing."""
        known, now_us = self.positions.left, int(time.time() * 1_000_000)
        left = {server: known.get(server, now_us) for server in self.positions.records if server not in here}
        if left != known:
            self._writer.add([], msgspec.structs.replace(self.positions, left=left))

    def behind(self, ends: Mapping[RecordKey, RecordPosition]) -> list[RecordKey]:
        """The records that are not archived up to `ends` and had more entries when the last batch was planned, without
        those of unreachable servers."""
        return [
            (server, channel)
            for (server, channel), end in ends.items()
            if server not in self.unreachable
            and (server, channel) in self.ends
            and self.positions.of(server, record_name(channel)).key < end.key
        ]

    def behind_s(self) -> float:
        """The most time between the last archived entry of a record and its newest one, when the last batch was
        planned. Records of which nothing is archived are not counted."""
        positions = (
            (self.positions.of(server, record_name(channel)), end) for (server, channel), end in self.ends.items()
        )
        ages_ms = [end.key[0] - at.key[0] for at, end in positions if at.key[0] and end.key > at.key]
        return max(ages_ms, default=0) / 1000

    def _commit(self, plan: BatchPlan, done: list[dict[str, Any]], began: float) -> BatchResult:
        files = _files(done)
        records = {server: dict(known) for server, known in self.positions.records.items()}
        entries = {(row["server"], row["record"]): row["entries"] for row in done}
        for row in done:
            if row["error"] is not None:
                self.unreachable[row["server"]] = row["error"]
            if row["entries"]:
                position = RecordPosition(row["entry"], row["number"])
                records.setdefault(row["server"], {})[record_name(row["record"])] = position
        if any(entries.values()):
            self._writer.add(files, msgspec.structs.replace(self.positions, records=records))
        return BatchResult(
            entries=sum(entries.values()),
            rows=sum(file.rows for file in files),
            files=len(files),
            behind=sum(max(count - entries.get(record, 0), 0) for record, count in plan.entries.items()),
            seconds=time.monotonic() - began,
        )

    def compact(self, runner: Runner, files_min: int = COMPACT_FILES_MIN) -> int:
        """Merges small files into larger ones; returns how many files were replaced."""
        groups = plan_groups(self.table.files, files_min)
        if not groups:
            return 0
        paths = [{"paths": [file.path for file in group]} for group in groups]
        rows = pa.Table.from_pylist(paths, schema=GROUP_SCHEMA)
        done = runner(partial(compact_groups, self._location), rows).to_pylist()
        replaced = [file for group in groups for file in group]
        self._writer.replace(replaced, _files(done))
        return len(replaced)

    def retain(self, since_us: int) -> int:
        """Removes files whose messages are all older than `since_us` from the table; returns their number."""
        old = [file for file in self.table.files if file.to_us < since_us]
        if old:
            self._writer.remove(old)
        return len(old)

    def vacuum(self, after_s: float = VACUUM_S) -> int:
        """Deletes files that left the table `after_s` ago, and those of a job that died then; returns their number."""
        return self._writer.vacuum(after_s)


def _files(done: list[dict[str, Any]]) -> list[ArchivedFile]:
    """The files that tasks have written."""
    return [msgspec.convert(row, ArchivedFile) for row in done if row["path"] is not None]
