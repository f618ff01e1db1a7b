"""The job of bulk matching: reads an archive, matches it in process or on Spark, and returns the figures.

Owns how the index reaches the workers, and the output files. The matching is in `bulk_match`. Workers compile nothing:
the driver matches a few events first, and they find the compiled loops on disk.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from shoal.errors import PipelineError
from shoal.history.archive_location import ArchiveLocation
from shoal.pipeline import bulk_match, event_archive
from shoal.pipeline.bulk_match import Output, Query
from shoal.pipeline.event_archive import ALWAYS, EventArchive, TimeSpan
from shoal.pipeline.filter_sets import FilterSet, opened
from shoal.pipeline.job_folders import make_folder
from shoal.pipeline.spark.tasks import Task

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WARM_EVENTS: Final = 64
"""Events that the driver matches first."""
OUT_FILE: Final = "matches.parquet"
TOP: Final = 10
"""Number of filters listed in the result."""


class MatchResult(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a job."""

    output: str
    filters: int
    matching_filters: int
    """Filters that matched an event."""
    events: int
    matches: int
    """Pairs of an event and a filter."""
    rows: int
    """Rows of the output: filters or events that matched."""
    version: str
    """Version of the filter set."""
    seconds: float
    """From the first row read to the last one written, without the start of Spark and the building of the index."""
    out: str | None
    """Path of the output, as Parquet."""
    top: list[tuple[int, int]]
    """The filters that matched most events, and how many."""


def match_in_process(
    filters: FilterSet, path: str | Path, output: Output, out: Path | None = None, span: TimeSpan = ALWAYS
) -> MatchResult:
    """Runs the job on one core of this process."""
    archive = event_archive.open_archive(path, span)
    query = bulk_match.query_of(archive.schema, output, filters.attributes)
    _warm(filters, archive, query)
    index = opened(filters.path, filters.version)
    began, events = time.perf_counter(), _Counter()
    batches = _counted(archive.read(query.columns, place=query.place), events.add)
    found = bulk_match.match_batches(batches, index, query)
    if output == "counts":
        table = bulk_match.sum_counts(found)
        return _of_counts(filters, table, events.rows, began, _written(table, out, path))
    folded, where = _Folded(), None if out is None else _new_file(out, path)
    writer: pq.ParquetWriter | None = None
    try:
        for batch in found:
            folded.add(batch)
            if where is not None:
                writer = writer or pq.ParquetWriter(where, batch.schema)
                writer.write_batch(batch)
    finally:
        if writer is not None:
            writer.close()
    return folded.result(filters, output, events.rows, began, where)


def match_on_spark(
    spark: SparkSession,
    filters: FilterSet,
    path: str | Path,
    output: Output,
    out: Path | None = None,
    span: TimeSpan = ALWAYS,
) -> MatchResult:
    """Runs the job on Spark. Spark sends the index file to the workers, which may be on other machines."""
    archive = event_archive.open_archive(path, span)
    query = bulk_match.query_of(archive.schema, output, filters.attributes)
    _warm(filters, archive, query)
    spark.sparkContext.addFile(filters.path)
    began, events = time.perf_counter(), spark.sparkContext.accumulator(0)
    task = _task(filters, query, events.add)
    schema = bulk_match.output_schema(archive.schema, query)
    found = archive.on_spark(spark, query.columns, task, schema, place=query.place)
    if output == "counts":
        table = bulk_match.sum_counts(_summed(found).to_batches())
        return _of_counts(filters, table, events.value, began, _written(table, out, path))
    where = None if out is None else _new_file(out, path)
    if where is None:
        found = found.cache()  # read twice below, but events must be counted once
    else:
        found.write.mode("overwrite").parquet(str(where))
        found = spark.read.parquet(str(where))
    folded = _Folded()
    folded.add_summary(found)
    if where is None:
        found.unpersist()
    return folded.result(filters, output, events.value, began, where)


def _task(filters: FilterSet, query: Query, count: Callable[[int], None]) -> Task:
    """The task that workers run."""
    name = Path(filters.path).name

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import SparkFiles

        index = opened(SparkFiles.get(name), filters.version)
        yield from bulk_match.match_batches(_counted(batches, count), index, query)

    return run


def _summed(found: DataFrame) -> pa.Table:
    """The counts of all tasks, added up on Spark, so that the driver gets only one row for each filter."""
    from pyspark.sql import functions

    total: Any = functions.sum("matches").cast("bigint").alias("matches")
    table: pa.Table = found.groupBy("filter").agg(total).toArrow()
    return table.cast(bulk_match.COUNTS_SCHEMA)


def _warm(filters: FilterSet, archive: EventArchive, query: Query) -> None:
    """Matches a few events, so that the compiled loops are on disk and errors show before Spark runs a task."""
    for batch in archive.read(query.columns, place=query.place):
        for _ in bulk_match.match_batches([batch.slice(0, WARM_EVENTS)], opened(filters.path, filters.version), query):
            pass
        return


class _Counter:
    """A sum of rows."""

    def __init__(self) -> None:
        self.rows = 0

    def add(self, rows: int) -> None:
        """Adds rows."""
        self.rows += rows


def _counted(batches: Iterable[pa.RecordBatch], count: Callable[[int], None]) -> Iterator[pa.RecordBatch]:
    """Passes batches on and counts their rows."""
    for batch in batches:
        count(batch.num_rows)
        yield batch


class _Folded:
    """The figures of an output with one row for each event, from its batches."""

    def __init__(self) -> None:
        self._rows = 0
        self._parts: list[pa.RecordBatch] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Adds a batch of the output."""
        self._rows += batch.num_rows
        counted = pc.value_counts(pc.list_flatten(batch.column(batch.num_columns - 1)))
        self._parts.append(
            pa.RecordBatch.from_arrays(
                [counted.field("values"), counted.field("counts")], schema=bulk_match.COUNTS_SCHEMA
            )
        )

    def add_summary(self, found: DataFrame) -> None:
        """Adds an output that is a Spark data frame."""
        from pyspark.sql import functions

        exploded = found.select(functions.explode(bulk_match.FILTERS).alias("filter"))
        counts: pa.Table = exploded.groupBy("filter").agg(functions.count("*").alias("matches")).toArrow()
        self._parts += counts.cast(bulk_match.COUNTS_SCHEMA).to_batches()
        self._rows += found.count()

    def result(self, filters: FilterSet, output: Output, events: int, began: float, out: Path | None) -> MatchResult:
        """The figures."""
        found = _of_counts(filters, bulk_match.sum_counts(self._parts), events, began, out)
        return msgspec.structs.replace(found, output=output, rows=self._rows)


def _of_counts(filters: FilterSet, table: pa.Table, events: int, began: float, out: Path | None) -> MatchResult:
    top = table.sort_by([("matches", "descending"), ("filter", "ascending")]).slice(0, TOP)
    return MatchResult(
        output="counts",
        filters=filters.filters,
        matching_filters=table.num_rows,
        events=events,
        matches=pc.sum(table["matches"]).as_py() or 0,
        rows=table.num_rows,
        version=filters.version,
        seconds=time.perf_counter() - began,
        out=None if out is None else str(out),
        top=list(zip(top["filter"].to_pylist(), top["matches"].to_pylist(), strict=True)),
    )


def _written(table: pa.Table, out: Path | None, archive: str | Path) -> Path | None:
    if out is None:
        return None
    where = _new_file(out, archive)
    pq.write_table(table, where)
    return where


def check_out(out: Path, archive: str | Path) -> Path:
    """The path of the output, whose current contents the job replaces. PipelineError if no job has written those."""
    where = out / OUT_FILE
    folder = ArchiveLocation.of(archive).folder
    if (
        folder is not None
        and where.exists()
        and (where.resolve().is_relative_to(folder.resolve()) or folder.resolve().is_relative_to(where.resolve()))
    ):
        raise PipelineError(f"{where} is part of the archive", do="name another folder with --out")
    if where.exists() and not event_archive.is_output(where):
        raise PipelineError(f"{where} was not written by a job", do="move it away, or name another folder with --out")
    make_folder(out)
    return where


def _new_file(out: Path, archive: str | Path) -> Path:
    """The path of the output; an earlier output there is removed. A job on Spark writes a folder, a job in process a
    file, and either may follow the other."""
    where = check_out(out, archive)
    try:
        if where.is_dir() and not where.is_symlink():
            shutil.rmtree(where)
        else:
            where.unlink(missing_ok=True)
    except OSError as error:
        raise PipelineError(f"cannot write to {out}: {error}", do="name another folder with --out") from error
    return where
