"""Small jobs of bulk matching, profiles, what-if and report, on Spark or in process, and their results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tests.support.archives import make_archive, message

from shoal.filters.language import parse
from shoal.flow.workloads import traffic_of
from shoal.load.window import LoadWindow
from shoal.pipeline import bulk_match_job, generated_windows, profiles_job, report_job, what_if_job
from shoal.pipeline.filter_sets import keep
from shoal.pipeline.forecast import loads_of
from shoal.pipeline.kept_windows import WindowKeeper
from shoal.pipeline.what_if import ReplayPool, WhatIfCase

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILTERS = {1: "a < 30", 2: "a < 20 and b > 10", 5: "b >= 90"}


def run_bulk_jobs(directory: Path, spark: SparkSession | None) -> dict[str, Any]:
    """The results, as JSON holds them. Without a session the jobs run in process."""
    directory.mkdir()
    rng = np.random.default_rng(1)
    archive = directory / "archive.parquet"
    columns = {name: rng.integers(100, size=4000) for name in "ab"}
    pq.write_table(pa.table(columns), archive, row_group_size=500)
    filters = keep(list(FILTERS), [parse(text) for text in FILTERS.values()], directory / "filters")
    if spark is None:
        matches = bulk_match_job.match_in_process(filters, archive, "counts")
    else:
        matches = bulk_match_job.match_on_spark(spark, filters, archive, "counts")
    options = profiles_job.ProfileOptions(samples=1100)
    profiles = profiles_job.run(filters, FILTERS, archive, options, directory / "profiles", spark)
    cases = [WhatIfCase(), WhatIfCase(settings={"safe_ratio": 0.6})]
    finding = what_if_job.find(days(), cases, 1, spark, note=lambda _: None)
    return {
        "top": matches.top,
        "events": matches.events,
        "pairs": profiles.pairs,
        "shares": pq.read_table(directory / "profiles" / profiles_job.PROFILE_FILE)["share"].to_pylist(),
        "costs": finding.runs["cost"].to_pylist(),
        "report": report(directory, spark),
    }


def report(directory: Path, spark: SparkSession | None) -> list[Any]:
    """The tables of a report, with figures that sums in another order do not change."""
    orders = [message(f"orders.{n % 2}", n % 3, n, n * 90_000_000, recorded_at=n * 90_001_000) for n in range(1, 90)]
    archive = make_archive(directory / "recorded", orders)
    with WindowKeeper(directory / "load", day_s=generated_windows.DAY_S) as keeper:
        keeper.take(0, generated_windows.make_windows(4, 3, starts=range(3590, 3610, 2)))
    made = report_job.run(str(archive), str(directory / "load"), spark=spark)
    rows = [row for table in made.tables.values() for row in table.sort_by(table.column_names[0]).to_pylist()]
    return [[f"{value:.9g}" if isinstance(value, float) else str(value) for value in row.values()] for row in rows]


def days() -> what_if_job.Days:
    windows: list[LoadWindow] = generated_windows.make_windows(1, 3, starts=range(0, 80, 2))
    pool = ReplayPool(capacity_bytes_per_s=125e6, servers_first=2)
    traffic = {0: traffic_of(windows[:20]), 1: traffic_of(windows[20:40])}
    loads = loads_of(windows)
    return what_if_job.Days(traffic=traffic, loads=loads, day_s=40, pool=pool, source="made")
