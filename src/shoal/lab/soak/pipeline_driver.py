"""The Spark driver of a pipeline soak: `python -m shoal.lab.soak.pipeline_driver`, run by `shoal.lab.harness`.

Owns one session and three jobs on it, as a user would write them: a query that writes rows into Parquet, a query that
counts messages in event-time windows, and the archive. It may be killed at any time; another one continues on the same
checkpoints.
"""

from __future__ import annotations

import asyncio
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from shoal.bus.plan_source import PlanSource
from shoal.errors import ShoalError
from shoal.history.server_reader import Login
from shoal.lab.harness import Parent, run_worker
from shoal.lab.soak.pipeline_orders import (
    ARCHIVED,
    JOB_ORDERS,
    PATTERN,
    ROWS,
    WINDOWS,
    JobOrder,
    JobsDone,
    JobsFailed,
    JobStatus,
    StartJobs,
)
from shoal.pipeline.archive.job import ArchiveJob, on_spark
from shoal.pipeline.session import SessionOptions, activate, running
from shoal.pipeline.source.lag import lag
from shoal.plan.ring import ServerAddress
from shoal.plan.signature import Verifier
from shoal.runtime import PRODUCTION

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

CONNECT_S: Final = 5.0
STATUS_S: Final = 0.25
ARCHIVE_EVERY_S: Final = 1.0
ROWS_PER_BATCH: Final = 20_000
TOO_SLOW: Final = "Python worker failed to connect back"
"""Spark's error when a Python process takes longer than 10 s to start, which no setting changes."""
RESTARTS_MAX: Final = 20


class Jobs:
    """The three jobs of one driver."""

    def __init__(self, spark: SparkSession, order: StartJobs) -> None:
        self._spark = spark
        self._order = order
        self._directory = Path(order.directory)
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._archived = self._archive_batches = self._archive_behind = 0
        self._progress: dict[tuple[str, int], dict[str, Any]] = {}
        self._queries: dict[str, StreamingQuery] = {}
        self._restarts = 0
        self._archiving = threading.Thread(target=self._archive, name="archive", daemon=True)

    def start(self) -> None:
        """Starts the jobs one after another, each when the one before works: Spark gives a Python process 10 s to
        start, and on a busy machine they would slow each other down."""
        for name in ("rows", "windows"):
            self._queries[name] = self._write(name)
            while not self._queries[name].recentProgress:
                self.status()
                time.sleep(STATUS_S)
        self._archiving.start()

    def _source(self) -> DataFrame:
        reader = self._spark.readStream.format("shoal").options(kind="channel", channel=PATTERN)
        reader = reader.options(
            coordinator=self._order.url, failOnDataLoss="false", maxRowsPerBatch=str(ROWS_PER_BATCH)
        )
        return reader.load()

    def _windows(self) -> DataFrame:
        """The numbers of the messages of each channel and window. A message that two servers recorded counts once."""
        rows = self._source().where("sequence is not null and not is_gap and not is_end")
        rows = rows.withWatermark("published_at", f"{self._order.watermark_s} seconds")
        once = rows.dropDuplicates(["channel", "publisher", "epoch", "sequence", "published_at"])
        return (
            once.selectExpr("channel", f"window(published_at, '{self._order.window_s} seconds') as window", "payload")
            .groupBy("channel", "window")
            .agg({"payload": "collect_list"})
            .toDF("channel", "window", "payloads")
            .selectExpr("channel", "window.start as start", "payloads")
        )

    def _write(self, name: str) -> StreamingQuery:
        rows = self._source() if name == "rows" else self._windows()
        writer = rows.writeStream.format("parquet").outputMode("append").trigger(processingTime="1 second")
        writer = writer.option("checkpointLocation", str(self._directory / "checkpoints" / name))
        return writer.start(str(self._directory / name))

    def _archive(self) -> None:
        """Archives until `finish`, and then the remaining entries."""
        activate(self._spark)
        cluster = _Servers(self._order.url)
        try:
            with ArchiveJob(self._directory / "archive", cluster.login) as job:
                is_last = False
                while not is_last:
                    is_last = self._stopping.wait(ARCHIVE_EVERY_S)
                    while (done := job.batch(cluster.now(), on_spark(self._spark))) is not None and done.entries:
                        self._archived += done.rows
                        self._archive_batches += 1
                        self._archive_behind = done.behind
                pq.write_table(_read_all(job), self._directory / ARCHIVED)
        except Exception as error:
            self._failure = error

    def status(self) -> JobStatus:
        """What was done so far. An error of a job is raised."""
        for name, query in self._queries.items():
            for progress in query.recentProgress:
                self._progress[progress["id"], progress["batchId"]] = progress
            failed = query.exception()
            if failed is not None:
                if TOO_SLOW not in str(failed) or self._restarts >= RESTARTS_MAX:
                    raise failed
                self._restarts += 1
                self._queries[name] = self._write(name)
        if self._failure is not None:
            raise self._failure
        with_rows = [one for one in self._progress.values() if one["numInputRows"]]
        late = [
            state["numRowsDroppedByWatermark"] for one in self._progress.values() for state in one["stateOperators"]
        ]
        rows = sum(one["numInputRows"] for one in with_rows)
        return JobStatus(
            len(with_rows), rows, self._archived, self._archive_batches, sum(late), self._restarts, self._behind
        )

    @property
    def _behind(self) -> int:
        """Entries that the job that is furthest behind had not read."""
        newest = [query.lastProgress for query in self._queries.values()]
        return max([self._archive_behind, *(lag(one["sources"][0]).entries for one in newest if one)])

    def finish(self) -> JobStatus:
        """Reads the remaining entries, closes all windows, and writes the results for the checker."""
        for query in self._queries.values():
            query.processAllAvailable()
        self._stopping.set()
        self._archiving.join()
        status = self.status()
        for name, file in (("rows", ROWS), ("windows", WINDOWS)):
            self._queries[name].stop()
            pq.write_table(self._spark.read.parquet(str(self._directory / name)).toArrow(), self._directory / file)
        return status


class _Servers:
    """The servers of the ring, which changes."""

    def __init__(self, url: str) -> None:
        self._source = PlanSource(lambda: url, CONNECT_S, PRODUCTION)
        self._known: tuple[ServerAddress, ...] = ()
        self.now()

    @property
    def login(self) -> Login:
        """The login in the address of the cluster."""
        address = self._source.address
        return Login(address.username, address.password, address.tls)

    def now(self) -> tuple[ServerAddress, ...]:
        """The servers; the last known ones if the coordinator does not answer."""
        try:
            key, ring = asyncio.run(self._source.key_and_ring())
            self._known = Verifier(key).ring(ring).servers
        except ShoalError:
            if not self._known:
                raise
        return self._known


def _read_all(job: ArchiveJob) -> pa.Table:
    """Every row of an archive's table, with repeats."""
    return job.table.delta.to_pyarrow_table()


async def work(parent: Parent[JobOrder]) -> None:
    """Runs the jobs until `Stop`."""
    start = await parent.order()
    if not isinstance(start, StartJobs):
        return
    stop = asyncio.create_task(parent.order())
    try:
        await asyncio.to_thread(_run, start, stop.done, parent.tell)
    except Exception as error:
        traceback.print_exc()
        parent.tell(JobsFailed(f"{type(error).__name__}: {error}"))


def _run(start: StartJobs, is_over: Callable[[], bool], tell: Callable[[Any], None]) -> None:
    with running(SessionOptions(name="soak")) as spark:
        activate(spark)
        jobs = Jobs(spark, start)
        jobs.start()
        while not is_over():
            time.sleep(STATUS_S)
            tell(jobs.status())
        tell(JobsDone(jobs.finish()))


if __name__ == "__main__":
    run_worker(JOB_ORDERS, work)
