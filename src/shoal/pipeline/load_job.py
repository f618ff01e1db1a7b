"""Load windows on Spark: telemetry from the source, micro-batch by micro-batch, into the same fold as in process.

Owns the streaming query and its files. What a window is and when it closes is decided in `shoal.load`: the fold's
`lateness_s` is the watermark, applied to arrival times that are the same each time a batch is read. Spark reads the
servers in parallel and remembers how far it read; the fold runs in the driver.

    servers --source, one task each--> records --foreachBatch--> fold --> windows
                                                    state after the previous batch <--> state after this one
                                                    unreadable records --> refused/<batch>.parquet, with the reason
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from shoal.balance.settings import BalanceSettings
from shoal.load.ordered_fold import fold_in_order
from shoal.load.reports import BATCH_SCHEMA, refusals
from shoal.load.window import LoadWindow
from shoal.load_kinds import KINDS
from shoal.logs import get_log
from shoal.pipeline.job_metrics import JobMetrics
from shoal.pipeline.saved_folds import SavedFolds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TRIGGER_S: Final = 1.0
"""Interval between micro-batches, unless one takes longer."""

METRICS_S: Final = 1
"""Interval at which the metrics follow the progress of the query."""

BATCHES_KEPT: Final = 1000
"""Number of batches whose durations are remembered."""

REFUSED_MAX: Final = 1000
"""Most unreadable records of one batch that are kept in a file. More are only counted."""

_log: Final = get_log(__name__)


Take = Callable[[int, list[LoadWindow]], None]
"""Receives the windows that a batch closed. It may be called again with the same windows if a batch is repeated."""


@dataclass(slots=True)
class LoadFacts:
    """What a job has done so far."""

    detailed: bool = True
    """Whether servers and channels are collected; in a job that runs forever they would be too many."""
    batches: int = 0
    records: int = 0
    windows: int = 0
    hosts: set[str] = field(default_factory=set)
    units: set[tuple[str, bytes]] = field(default_factory=set)
    first_s: int | None = None
    last_s: int | None = None
    counters: dict[str, int] = field(default_factory=dict)
    refused: dict[str, None] = field(default_factory=dict)
    """Why records could not be read, each reason once."""
    refused_in: Path | None = None
    """The directory with such records; None if there were none."""
    refused_kept: int = 0
    refused_only_counted: int = 0
    """Those beyond `REFUSED_MAX` of a batch, or that could not be written."""
    batch_ms: dict[int, float] = field(default_factory=dict)
    """Duration of each batch, including planning and checkpoint, by its id; see `add_durations`."""

    def add_durations(self, query: StreamingQuery) -> None:
        """Adds Spark's durations of its last batches."""
        for progress in query.recentProgress:
            if progress["numInputRows"]:
                self.batch_ms[int(progress["batchId"])] = float(progress["durationMs"]["triggerExecution"])
        for batch in sorted(self.batch_ms)[:-BATCHES_KEPT]:
            del self.batch_ms[batch]

    def take(self, windows: list[LoadWindow]) -> None:
        """Counts windows."""
        self.windows += len(windows)
        for window in windows if self.detailed else ():
            self.hosts.update(window.hosts["host"].to_pylist())
            for kind in KINDS.units:
                names = window.units_of(kind.name)["unit"].unique().to_pylist()
                self.units.update((kind.name, name) for name in names)
            self.first_s = window.start_s if self.first_s is None else min(self.first_s, window.start_s)
            self.last_s = window.end_s if self.last_s is None else max(self.last_s, window.end_s)

    def to_json(self, seconds: float) -> dict[str, Any]:
        """The form that the command prints."""
        rows = self.counters.get("rows", 0)
        return {
            "windows": self.windows,
            "records": self.records,
            "rows": rows,
            "hosts": sorted(self.hosts),
            "units": len(self.units),
            "first_s": self.first_s,
            "last_s": self.last_s,
            "counters": self.counters,
            "refused": list(self.refused),
            "refused_in": None if self.refused_in is None else str(self.refused_in),
            "refused_kept": self.refused_kept,
            "refused_only_counted": self.refused_only_counted,
            "batches": self.batches,
            "batch_ms_p50": round(median(self.batch_ms.values()), 1) if self.batch_ms else None,
            "rows_per_s": round(rows / seconds, 1) if seconds > 0 else 0.0,
            "seconds": round(seconds, 3),
        }


@dataclass(frozen=True, slots=True)
class LoadJob:
    """What to read, and where checkpoint and state are stored. `directory` is on the driver's machine."""

    directory: Path
    source: Mapping[str, str]
    """Options of the source, without `kind`."""
    settings: BalanceSettings
    refused: Path | None = None
    """Where unreadable records are kept; None: in `directory`."""

    @property
    def checkpoint(self) -> Path:
        """Spark's checkpoint directory."""
        return self.directory / "checkpoint"


def start(spark: SparkSession, job: LoadJob, take: Take, facts: LoadFacts, *, once: bool) -> StreamingQuery:
    """Starts the query. With `once` it ends after the entries that exist now, else it runs until it is stopped."""
    SavedFolds(job.directory / "fold").check(job.checkpoint)
    reader = spark.readStream.format("shoal").options(**{**job.source, "kind": "telemetry", "rows": "records"})
    folder = _BatchFolder(job, take, facts)
    writer = reader.load().select(*BATCH_SCHEMA.names).writeStream.foreachBatch(folder.fold_batch)
    writer = writer.option("checkpointLocation", str(job.checkpoint)).queryName("load windows")
    writer = writer.trigger(availableNow=True) if once else writer.trigger(processingTime=f"{TRIGGER_S:g} seconds")
    return writer.start()


class _BatchFolder:
    """Folds micro-batches."""

    def __init__(self, job: LoadJob, take: Take, facts: LoadFacts) -> None:
        self._saved = SavedFolds(job.directory / "fold")
        self._refused = job.refused or job.directory / "refused"
        self._settings = job.settings
        self._take = take
        self._facts = facts

    def fold_batch(self, rows: DataFrame, batch: int) -> None:
        """Folds a batch. Saves the state before it passes the windows on, so that a repeated batch gives the same."""
        before = self._saved.before(batch)
        table = rows.toArrow()
        windows, state = fold_in_order(before, table, self._settings, KINDS)
        garbage = state.counters.garbage - before.counters.garbage
        if garbage:
            kept = self._keep_refused(table, batch)
            self._facts.refused_kept += kept
            self._facts.refused_only_counted += max(0, garbage - kept)
        self._saved.save(batch, state)
        self._take(batch, windows)
        facts = self._facts
        facts.batches += 1
        facts.records += table.num_rows
        facts.counters = {name: getattr(state.counters, name) for name in state.counters.__struct_fields__}
        facts.take(windows)

    def _keep_refused(self, table: pa.Table, batch: int) -> int:
        """Writes unreadable records with the reason to a file, for inspection; returns how many. An error while writing
        does not stop the fold."""
        found = refusals(table, REFUSED_MAX, KINDS)
        if not found:
            return 0
        places, why = zip(*found, strict=True)
        kept = table.take(pa.array(places)).append_column("why", pa.array(why, pa.string()))
        self._facts.refused = {**self._facts.refused, **dict.fromkeys(why)}
        path = self._refused / f"{batch}.parquet"
        try:
            self._refused.mkdir(parents=True, exist_ok=True)
            pq.write_table(kept, path)
        except OSError as error:
            _log.warning("telemetry records cannot be read or kept", records=len(found), why=str(error))
            return 0
        self._facts.refused_in = self._refused
        _log.warning("telemetry records cannot be read", records=len(found), first=why[0], kept_in=str(path))
        return len(found)


def run_once(spark: SparkSession, job: LoadJob, take: Take | None = None) -> LoadFacts:
    """Folds the records that are on the streams now, and returns the facts."""
    facts = LoadFacts()
    query = start(spark, job, take or (lambda batch, windows: None), facts, once=True)
    metrics = JobMetrics("load")
    while not query.awaitTermination(METRICS_S):
        metrics.follow(query)
    metrics.follow(query)
    facts.add_durations(query)
    return facts
