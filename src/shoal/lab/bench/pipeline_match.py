"""Bulk matching on Spark, compared with the same function on one core: one archive, one set of filters, same counts.

Owns the archive, the two contenders and the ratio. Both read the same Parquet file with the workload `hard` and count
the matches of every filter. The start of Spark and the making of the index are not included; a small first run warms up
both.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shoal.lab.bench.contender import BenchError
from shoal.lab.bench.loads import hard
from shoal.pipeline.bulk_match_job import MatchResult, match_in_process, match_on_spark
from shoal.pipeline.filter_sets import FilterSet, keep

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ONE_CORE: Final = "one-core"
ON_SPARK: Final = "spark"
RATIO: Final = "match_on_spark_vs_one_core"
GROUP_ROWS: Final = 65_536
"""Rows in a row group of the file, the unit in which Spark divides it."""
WARM_ROWS: Final = 20_000
SEED: Final = 17
WORDS: Final = {
    ONE_CORE: "match_in_process: Arrow reads the Parquet and the index counts, on one thread of this process",
    ON_SPARK: "match_on_spark: Spark reads the same Parquet, mapInArrow with the same function, counts summed by Spark",
    RATIO: "events a second on Spark divided by those on one core, medians",
}


class BulkMatchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The size of the measurement."""

    events: int = 2_000_000
    filters: int = 100_000
    rounds: int = 1
    note: Callable[[str], None] = lambda _: None


def measure(spark: SparkSession, options: BulkMatchOptions, work: Path) -> dict[str, Any]:
    """Rows and the ratio. `work` is a directory for archive and index, which are made if they do not exist."""
    options.note(f"{options.events:,} events and {options.filters:,} filters")
    archive, warm = (make_archive(work, rows) for rows in (options.events, WARM_ROWS))
    filters = make_filters(work, options.filters)
    ways: dict[str, Callable[[Path], MatchResult]] = {
        ONE_CORE: lambda path: match_in_process(filters, path, "counts"),
        ON_SPARK: lambda path: match_on_spark(spark, filters, path, "counts"),
    }
    for way in ways.values():
        way(warm)
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    found: dict[str, int] = {}
    for number in range(options.rounds):
        for name in list(ways)[:: 1 if number % 2 == 0 else -1]:
            options.note(f"round {number + 1} of {options.rounds}: {name}")
            outcome, figures = _timed(lambda name=name: ways[name](archive))  # type: ignore[misc]
            runs[name].append(figures)
            found[name] = outcome.matches
    if len(set(found.values())) > 1:
        raise BenchError(f"the contenders find different numbers of matches: {found}")
    rows = [_row(name, runs[name], options, found[name]) for name in ways]
    speed = {row["contender"]: row["rows_per_s"] for row in rows}
    return {"rows": rows, "ratios": {RATIO: speed[ON_SPARK] / speed[ONE_CORE]}, "words": WORDS}


def make_archive(work: Path, rows: int) -> Path:
    """A Parquet file with events of the workload `hard`."""
    path = work / f"hard-{rows}.parquet"
    if path.exists():
        return path
    work.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng([SEED, rows])
    schema = pa.schema([(name, pa.int64()) for name in hard.ATTRIBUTES])
    unfinished = path.with_suffix(".part")
    with pq.ParquetWriter(unfinished, schema) as writer:
        for first in range(0, rows, GROUP_ROWS):
            count = min(GROUP_ROWS, rows - first)
            columns = [pa.array(rng.integers(hard.VALUES, size=count)) for _ in hard.ATTRIBUTES]
            writer.write_table(pa.table(columns, schema=schema), row_group_size=GROUP_ROWS)
    unfinished.replace(path)
    return path


def make_filters(work: Path, count: int) -> FilterSet:
    """Filters of the workload `hard`."""
    filters, _ = hard.make(count, 0, SEED)
    return keep(range(count), filters, work)


def _timed(run: Callable[[], MatchResult]) -> tuple[MatchResult, dict[str, float]]:
    """The outcome of a run, its time, and the CPU time of this process, without that of Spark's workers."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    began = time.perf_counter()
    outcome = run()
    seconds = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return outcome, {"seconds": seconds, "driver_cpu_s": cpu_s}


def _row(name: str, runs: list[dict[str, float]], options: BulkMatchOptions, matches: int) -> dict[str, Any]:
    seconds = [run["seconds"] for run in runs]
    middle = median(seconds)
    return {
        "contender": name,
        "events": options.events,
        "filters": options.filters,
        "matches_per_event": matches / options.events,
        "seconds": middle,
        "seconds_min": min(seconds),
        "seconds_max": max(seconds),
        "rows_per_s": options.events / middle,
        "driver_cpu_s": median(run["driver_cpu_s"] for run in runs),
        "rounds": len(runs),
    }
