"""Bulk matching, profiles and what-if in a process of its own, on any master or in process.

    python -m tests.pipeline.bulk_on_cluster MASTER|none DIRECTORY

Prints one JSON object with what came out.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shoal.balance.window import LoadWindow
from shoal.filters.language import parse
from shoal.pipeline import generated_windows, matching_job, profiles_job, what_if_job
from shoal.pipeline.filter_sets import keep
from shoal.pipeline.forecast import loads_of
from shoal.pipeline.session import SessionOptions, running
from shoal.pipeline.what_if import Case, ServerPool
from shoal.sim.flow.workloads import traffic_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILTERS = {1: "a < 30", 2: "a < 20 and b > 10", 5: "b >= 90"}


def found(directory: Path, spark: SparkSession | None) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    archive = directory / "archive.parquet"
    columns = {name: rng.integers(100, size=4000) for name in "ab"}
    pq.write_table(pa.table(columns), archive, row_group_size=500)
    filters = keep(list(FILTERS), [parse(text) for text in FILTERS.values()], directory / "filters")
    if spark is None:
        matches = matching_job.match_in_process(filters, archive, "counts")
    else:
        matches = matching_job.match_on_spark(spark, filters, archive, "counts")
    options = profiles_job.ProfileOptions(samples=1100)
    profiles = profiles_job.run(filters, FILTERS, archive, options, directory / "profiles", spark)
    cases = [Case(), Case(settings={"safe_ratio": 0.6})]
    finding = what_if_job.find(days(), cases, 1, spark, note=lambda _: None)
    return {
        "top": matches.top,
        "events": matches.events,
        "pairs": profiles.pairs,
        "shares": pq.read_table(directory / "profiles" / profiles_job.PROFILE_FILE)["share"].to_pylist(),
        "costs": finding.runs["cost"].to_pylist(),
    }


def days() -> what_if_job.Days:
    windows: list[LoadWindow] = generated_windows.make_windows(1, 3)
    pool = ServerPool(capacity_bytes_per_s=125e6, servers_first=2)
    traffic = {0: traffic_of(windows[:20]), 1: traffic_of(windows[20:40])}
    loads = loads_of(windows[:40])
    return what_if_job.Days(traffic=traffic, loads=loads, day_s=40, pool=pool, source="made")


def main(master: str, directory: str) -> None:
    if master == "none":
        print(json.dumps(found(Path(directory), None)))
        return
    with running(SessionOptions(master=master, name="tests on a cluster")) as spark:
        facts = found(Path(directory), spark)
    print(json.dumps(facts))


if __name__ == "__main__":
    main(*sys.argv[1:])
