"""Metrics of the pipeline's jobs, for Prometheus: how far a job is behind, what it has read, how long batches take.

Owns their names. The label `job` is the name of the command: `load`, `archive`, or `dead_letters` for
`archive --dead`. Jobs on Spark's streams take the
figures from the progress of their query.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from shoal.metrics import counter, gauge, histogram
from shoal.pipeline.source.lag import lag

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

BUCKETS_S: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)

BEHIND_ENTRIES: Final = gauge(
    "shoal_pipeline_behind_entries", "entries that exist and were not read, after the last batch", ["job"]
)
BEHIND_SECONDS: Final = gauge(
    "shoal_pipeline_behind_seconds",
    "most time between the last entry read of a stream and its newest one, after the last batch",
    ["job"],
)
ROWS: Final = counter("shoal_pipeline_rows_total", "rows that were read", ["job"])
BATCH_SECONDS: Final = histogram("shoal_pipeline_batch_seconds", "duration of a batch", ["job"], buckets=BUCKETS_S)


class JobMetrics:
    """The metrics of one job."""

    def __init__(self, job: str) -> None:
        self._behind_entries = BEHIND_ENTRIES.labels(job)
        self._behind_seconds = BEHIND_SECONDS.labels(job)
        self._rows = ROWS.labels(job)
        self._batch_seconds = BATCH_SECONDS.labels(job)
        self._batch: int | None = None

    def count(self, rows: int, seconds: float) -> None:
        """Counts a batch."""
        self._rows.inc(rows)
        self._batch_seconds.observe(seconds)

    def behind(self, entries: int, seconds: float) -> None:
        """Shows how far the job is behind."""
        self._behind_entries.set(entries)
        self._behind_seconds.set(seconds)

    def follow(self, query: StreamingQuery) -> None:
        """Takes the progress of a query since the last call, each batch once."""
        last: Any = query.lastProgress
        if last is None:
            return
        skipped = self._batch is not None and last["batchId"] > self._batch + 1
        for progress in query.recentProgress if skipped or self._batch is None else [last]:
            self.take(progress)

    def take(self, progress: Mapping[str, Any]) -> None:
        """Takes the progress after one batch. Spark repeats it while there is nothing new."""
        if self._batch is not None and progress["batchId"] <= self._batch and progress["numInputRows"]:
            return
        if progress["numInputRows"]:
            self._batch = progress["batchId"]
            self.count(progress["numInputRows"], progress["durationMs"]["triggerExecution"] / 1000)
        self.behind(*lag(progress["sources"][0]))
