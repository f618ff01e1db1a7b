"""Polars, DuckDB, Spark and our own readers see the same rows of an archive: before, during and after a compaction."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.support.records import DAY_US, NOON_US, Recording
from tests.support.redis_server import RedisServer

from shoal.errors import ConfigError
from shoal.history.archive import read_archive
from shoal.history.server_reader import Login
from shoal.pipeline import event_archive
from shoal.pipeline.archive.job import ArchiveJob, run_here
from shoal.pipeline.event_archive import TimeSpan
from shoal.pipeline.source.kinds import kind_of
from shoal.pipeline.spark.tasks import Task
from shoal.plan.ring import ServerAddress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = list[tuple[str, int, bytes]]
COLUMNS = ["channel", "sequence", "payload"]
NOBODY = Login(None, None)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Two channels on two days, in many small files."""
    with RedisServer() as server:
        for channel in (b"orders.eu", b"deals/\xff"):
            recording = Recording(server, channel)
            recording.write(*range(1, 21))
            recording.write(*range(21, 31), from_us=NOON_US + DAY_US)
        with ArchiveJob(tmp_path, NOBODY, 4) as job:
            while job.batch([ServerAddress("s1", server.host, server.port)], run_here) is not None:
                pass
    return tmp_path


EXPECTED: Rows = sorted(
    (channel, number, b"m%d" % number) for channel in ("orders.eu", "deals/\\xff") for number in range(1, 31)
)


def by_polars(archive: Path) -> Rows:
    return sorted(pl.scan_delta(str(archive)).select(COLUMNS).collect().rows())


def by_duckdb(archive: Path) -> Rows:
    table = DeltaTable(archive).to_pyarrow_dataset()
    return sorted(duckdb.from_arrow(table).project("channel, sequence, payload").fetchall())


def by_shoal(archive: Path) -> Rows:
    rows = read_archive(archive, None)[1].select(COLUMNS).to_pylist()
    return sorted((row["channel"], row["sequence"], row["payload"]) for row in rows)


def by_jobs(archive: Path) -> Rows:
    batches = event_archive.open_archive(archive).read(COLUMNS)
    rows = [row for batch in batches for row in batch.to_pylist()]
    return sorted((row["channel"], row["sequence"], row["payload"]) for row in rows)


@pytest.mark.parametrize("read", [by_polars, by_duckdb, by_shoal, by_jobs])
def test_the_same_rows_before_during_and_after_a_compaction(read: Callable[[Path], Rows], archive: Path) -> None:
    assert read(archive) == EXPECTED
    during: list[Rows] = []

    def reads_before_the_commit(task: Task, rows: pa.Table) -> pa.Table:
        done = run_here(task, rows)
        during.append(read(archive))
        return done

    with ArchiveJob(archive, NOBODY) as job:
        assert job.compact(reads_before_the_commit, 2) == 16
        assert read(archive) == EXPECTED
        assert len(job.table.files) == 4
        assert job.compact(run_here, 2) == 0
    assert during == [EXPECTED]


def test_a_reader_that_began_before_a_compaction_reads_on(archive: Path) -> None:
    reading = DeltaTable(archive).to_pyarrow_dataset()
    lazy = pl.scan_delta(str(archive))
    opened = event_archive.open_archive(archive)
    with ArchiveJob(archive, NOBODY) as job:
        job.compact(run_here, 2)
        job.vacuum()
    assert reading.count_rows() == lazy.collect().height == len(EXPECTED)
    assert sum(batch.num_rows for batch in opened.read(["sequence"])) == len(EXPECTED)


def test_another_program_may_compact_the_table_too(archive: Path) -> None:
    DeltaTable(archive).optimize.compact()
    for read in (by_polars, by_duckdb, by_shoal, by_jobs):
        assert read(archive) == EXPECTED
    with ArchiveJob(archive, NOBODY) as job:
        assert len(job.table.files) == 2
        assert job.compact(run_here, 2) == 0
    _, rows = read_archive(archive, "orders.eu")
    assert rows.num_rows == 30


def test_jobs_read_a_span_of_time(archive: Path) -> None:
    def found(*span: int | None) -> int:
        opened = event_archive.open_archive(archive, TimeSpan(*span))
        return sum(batch.num_rows for batch in opened.read(["sequence"]))

    assert found(NOON_US + 15_000_000, None) == 32
    assert found(None, NOON_US + 15_000_000) == 28
    assert found(NOON_US + DAY_US, NOON_US + DAY_US + 25_000_000) == 8


def test_spark_reads_the_archive(archive: Path, spark: SparkSession) -> None:
    reader = spark.read.format("shoal").option("kind", "archive").option("path", str(archive))

    def rows() -> Rows:
        found = reader.load().select(*COLUMNS).collect()
        return sorted((row["channel"], row["sequence"], bytes(row["payload"])) for row in found)

    assert rows() == EXPECTED
    with ArchiveJob(archive, NOBODY) as job:
        job.compact(run_here, 2)
    assert rows() == EXPECTED
    assert reader.option("channel", "orders.eu").option("since", "2026-11-02T12:00").load().count() == 10
    assert reader.option("channel", "nobody").load().count() == 0


def test_an_archive_is_not_a_stream() -> None:
    with pytest.raises(ConfigError, match="an archive is not a stream"):
        kind_of({"kind": "archive"})
