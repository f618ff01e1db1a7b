"""Load windows on Spark: telemetry through the source, micro-batch by micro-batch, into the same fold as in process.

Owns the query and where its parts lie. What a window is and when it closes is decided in `shoal.balance`: the fold's
`lateness_s` is the watermark, by arrival times that are the same each time a batch is read. Spark reads the servers in
parallel and remembers how far it came; the fold itself is one small step of the driver for each record.

    servers --source, a task each--> records --foreachBatch--> fold --> windows
                                                    state of the batch before <--> state of this one
                                                    what is no record --> refused/<batch>.parquet, with the reason
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from shoal.balance.fold_in_order import fold_in_order
from shoal.balance.reports import BATCH_SCHEMA, refusals
from shoal.balance.settings import BalanceSettings
from shoal.balance.window import LoadWindow
from shoal.logs import get_log
from shoal.pipeline.saved_folds import SavedFolds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TRIGGER_S: Final = 1.0
"""How often a micro-batch begins, unless the one before takes longer."""

BATCHES_KEPT: Final = 1000
"""Batches whose times are remembered."""

REFUSED_MAX: Final = 1000
"""Rows of one batch that are put aside because they are no records. More are only counted."""

_log: Final = get_log(__name__)


Take = Callable[[int, list[LoadWindow]], None]
"""What is done with the windows that a batch has closed. It may be called again for the same batch, with the same."""


@dataclass(slots=True)
class LoadFacts:
    """What a job has done so far."""

    detailed: bool = True
    """Whether servers and channels are counted; a job that never ends would remember too many."""
    batches: int = 0
    records: int = 0
    windows: int = 0
    hosts: set[str] = field(default_factory=set)
    units: set[bytes] = field(default_factory=set)
    first_s: int | None = None
    last_s: int | None = None
    counters: dict[str, int] = field(default_factory=dict)
    refused: dict[str, None] = field(default_factory=dict)
    """Why records could not be read, each reason once."""
    refused_in: Path | None = None
    """The directory where such records were put; None if there was none."""
    refused_kept: int = 0
    refused_only_counted: int = 0
    """Those beyond `REFUSED_MAX` of a batch, or that could not be written."""
    fold_ms: list[float] = field(default_factory=list)
    """How long each batch took from its rows to its windows, the last `BATCHES_KEPT`."""
    batch_ms: dict[int, float] = field(default_factory=dict)
    """How long each batch took as a whole, planning and remembering included, by its id; see `look`."""

    def look(self, query: StreamingQuery) -> None:
        """Takes in what Spark says of its last batches."""
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
            self.units.update(window.units["unit"].unique().to_pylist())
            self.first_s = window.start_s if self.first_s is None else min(self.first_s, window.start_s)
            self.last_s = window.end_s if self.last_s is None else max(self.last_s, window.end_s)

    def to_json(self, seconds: float) -> dict[str, Any]:
        """As the command prints them."""
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
    """What to read and where to remember it. `directory` is on the driver's machine."""

    directory: Path
    source: Mapping[str, str]
    """Options of the source, but for its kind."""
    settings: BalanceSettings
    refused: Path | None = None
    """Where records go that cannot be read; None: into `directory`."""

    @property
    def checkpoint(self) -> Path:
        """Where Spark remembers how far it came."""
        return self.directory / "checkpoint"


def start(spark: SparkSession, job: LoadJob, take: Take, facts: LoadFacts, *, once: bool) -> StreamingQuery:
    """Starts the query. With `once` it ends with what is there now, else it goes on until it is stopped."""
    SavedFolds(job.directory / "fold").check(job.checkpoint)
    reader = spark.readStream.format("shoal").options(**{**job.source, "kind": "telemetry"})
    folding = Folding(job, take, facts)
    writer = reader.load().select(*BATCH_SCHEMA.names).writeStream.foreachBatch(folding.fold_batch)
    writer = writer.option("checkpointLocation", str(job.checkpoint)).queryName("load windows")
    writer = writer.trigger(availableNow=True) if once else writer.trigger(processingTime=f"{TRIGGER_S:g} seconds")
    return writer.start()


class Folding:
    """What is done with each micro-batch."""

    def __init__(self, job: LoadJob, take: Take, facts: LoadFacts) -> None:
        self._saved = SavedFolds(job.directory / "fold")
        self._refused = job.refused or job.directory / "refused"
        self._settings = job.settings
        self._take = take
        self._facts = facts

    def fold_batch(self, rows: DataFrame, batch: int) -> None:
        """Folds a batch. Its state is kept before anybody sees its windows: what is repeated is the same."""
        began = time.monotonic()
        before = self._saved.before(batch)
        table = rows.toArrow()
        windows, state = fold_in_order(before, table, self._settings)
        garbage = state.counters.garbage - before.counters.garbage
        if garbage:
            kept = self._put_aside(table, batch)
            self._facts.refused_kept += kept
            self._facts.refused_only_counted += max(0, garbage - kept)
        self._saved.save(batch, state)
        self._take(batch, windows)
        facts = self._facts
        facts.batches += 1
        facts.records += table.num_rows
        facts.counters = {name: getattr(state.counters, name) for name in state.counters.__struct_fields__}
        facts.take(windows)
        facts.fold_ms = [*facts.fold_ms[1 - BATCHES_KEPT :], 1000 * (time.monotonic() - began)]

    def _put_aside(self, table: pa.Table, batch: int) -> int:
        """Keeps rows that are no records, with the reason, and returns how many: whoever wants can look. That they
        cannot be written does not stop the fold."""
        found = refusals(table, REFUSED_MAX)
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
            _log.warning("telemetry records cannot be read, and not kept", records=len(found), why=str(error))
            return 0
        self._facts.refused_in = self._refused
        _log.warning("telemetry records cannot be read", records=len(found), first=why[0], kept_in=str(path))
        return len(found)


def run_once(spark: SparkSession, job: LoadJob, take: Take | None = None) -> LoadFacts:
    """Folds what is on the streams now, and returns what came of it."""
    facts = LoadFacts()
    query = start(spark, job, take or (lambda batch, windows: None), facts, once=True)
    query.awaitTermination()
    facts.look(query)
    return facts
