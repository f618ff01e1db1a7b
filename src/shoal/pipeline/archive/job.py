"""The archive job: runs batches, each committed by the manifest.

Owns the order of steps, by which every recorded message is archived exactly once: first files are written, then the
manifest lists them together with the positions up to which records were read. A job that dies in between has changed
nothing. Only one job writes an archive at a time.

    plan slices -> workers write files -> manifest -> plan slices ... -> compact -> manifest
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
from shoal.history.record_reader import RecordPosition
from shoal.history.server_reader import Login
from shoal.pipeline.archive.batch_plan import BatchPlan, RecordKey, plan_batch, plan_groups
from shoal.pipeline.archive.parquet_files import DONE_SCHEMA, archive_slices, compact_groups
from shoal.pipeline.job_folders import exclusive_lock
from shoal.pipeline.spark.tasks import Task, spark_schema
from shoal.plan.keys import unit_text as record_name
from shoal.plan.ring import ServerAddress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RETIRED_S: Final = 600.0
"""How long a compacted file stays, for readers with an older manifest."""

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

    batch: int
    entries: int
    rows: int
    files: int
    behind: int
    """About how many entries existed when the batch was planned and were not archived by it."""
    seconds: float


class ArchiveJob:
    """The only writer of an archive. `with` takes the lock and removes the files of a job that died."""

    def __init__(self, archive: Path, login: Login, batch_rows: int = BATCH_ROWS) -> None:
        self._archive = archive
        self._login = login
        self._batch_rows = batch_rows
        self._stack = contextlib.ExitStack()
        self.manifest = Manifest()
        self.removed = 0
        """Number of files of a dead job that were removed."""
        self.unreachable: dict[str, str] = {}
        """Servers whose records the last batch could not read, and why. The next batch tries again."""
        self.ends: Mapping[RecordKey, RecordPosition] = {}
        """The newest entries of all records with unarchived entries, when the last batch was planned."""

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
        busy = ArchiveError(f"another job writes the archive {self._archive}", do="wait for it, or stop it first")
        try:
            self._archive.mkdir(parents=True, exist_ok=True)
            self._stack.enter_context(exclusive_lock(self._archive, busy))
        except OSError as error:
            raise self._unwritable(error) from error

    def _begin(self) -> Manifest:
        """The manifest. A new archive gets an empty one before its first file is written. So a directory with files and
        no manifest is not an archive, and nothing in it is removed."""
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

    def batch(self, servers: Sequence[ServerAddress], runner: Runner) -> BatchResult | None:
        """Archives new entries, up to the size of a batch; None if there are none."""
        began = time.monotonic()
        self._note_left({server.id for server in servers})
        plan = plan_batch(self.manifest, servers, self._login, self._batch_rows)
        self.unreachable = plan.unreachable
        self.ends = plan.ends
        if not plan.slices.num_rows:
            return None
        done = runner(partial(archive_slices, self._login, str(self._archive)), plan.slices).to_pylist()
        return self._commit(plan, done, began)

    def _note_left(self, here: Set[str]) -> None:
        """Notes which servers have left and when that was noticed; their last entries may be missing."""
        known, now_us = self.manifest.left, int(time.time() * 1_000_000)
        left = {server: known.get(server, now_us) for server in self.manifest.positions if server not in here}
        if left != known:
            self._write(left=left)

    def behind(self, ends: Mapping[RecordKey, RecordPosition]) -> list[RecordKey]:
        """The records that are not archived up to `ends` and had more entries when the last batch was planned, without
        those of unreachable servers."""
        return [
            (server, channel)
            for (server, channel), end in ends.items()
            if server not in self.unreachable
            and (server, channel) in self.ends
            and self.manifest.position(server, record_name(channel)).key < end.key
        ]

    def _commit(self, plan: BatchPlan, done: list[dict[str, Any]], began: float) -> BatchResult:
        number = self.manifest.batch + 1
        files = [_file(row, number) for row in done if row["path"] is not None]
        positions = {server: dict(known) for server, known in self.manifest.positions.items()}
        entries = {(row["server"], row["record"]): row["entries"] for row in done}
        for row in done:
            if row["error"] is not None:
                self.unreachable[row["server"]] = row["error"]
            if row["entries"]:
                position = RecordPosition(row["entry"], row["number"])
                positions.setdefault(row["server"], {})[record_name(row["record"])] = position
        if any(entries.values()):
            self._write(files=(*self.manifest.files, *files), positions=positions)
        return BatchResult(
            batch=number,
            entries=sum(entries.values()),
            rows=sum(file.rows for file in files),
            files=len(files),
            behind=sum(max(count - entries.get(record, 0), 0) for record, count in plan.entries.items()),
            seconds=time.monotonic() - began,
        )

    def compact(self, runner: Runner, files_min: int = COMPACT_FILES_MIN) -> int:
        """Joins small files into larger ones; returns how many files were replaced."""
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
        """Commits a batch. Drops files from the manifest that were retired long ago, then deletes them."""
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
