"""The measurement of bulk matching on Spark, as small as it can be. Here for the session that tests share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from shoal.lab.bench.pipeline_match import ON_SPARK, ONE_CORE, RATIO, BulkMatchOptions, make_archive, measure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_both_ways_find_the_same_and_are_compared(tmp_path: Path, spark: SparkSession) -> None:
    found = measure(spark, BulkMatchOptions(events=2000, filters=300, rounds=2), tmp_path)
    one_core, on_spark = found["rows"]
    assert (one_core["contender"], on_spark["contender"]) == (ONE_CORE, ON_SPARK)
    assert one_core["matches_per_event"] == on_spark["matches_per_event"] > 0
    assert one_core["seconds_min"] <= one_core["seconds"] <= one_core["seconds_max"]
    assert found["ratios"][RATIO] == pytest.approx(on_spark["rows_per_s"] / one_core["rows_per_s"])


def test_an_archive_is_made_once_and_in_groups(tmp_path: Path) -> None:
    path = make_archive(tmp_path, 70_000)
    written = path.stat().st_mtime_ns
    assert make_archive(tmp_path, 70_000).stat().st_mtime_ns == written
    assert pq.read_metadata(path).num_row_groups == 2
    assert pq.read_metadata(path).num_rows == 70_000
