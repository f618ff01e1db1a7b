"""The measurement of load windows on Spark, as small as it can be."""

from __future__ import annotations

import pytest

from shoal.bench.pipeline_load import BACKLOG, LIVE, Options, measure
from shoal.errors import NoJavaError, NoSparkError
from shoal.pipeline.java import find_java
from shoal.pipeline.session import SessionOptions, import_spark, running


@pytest.mark.timeout(180)
def test_it_measures_a_backlog_and_what_comes() -> None:
    try:
        find_java()
        import_spark()
    except (NoJavaError, NoSparkError) as error:
        pytest.skip(str(error))
    with running(SessionOptions(name="tests")) as spark:
        options = Options(servers=2, channels=20, seconds=30, batch_rows=400, rounds=1, live_s=4.0)
        backlog, live = measure(spark, options)["rows"]
    assert (backlog["contender"], live["contender"]) == (BACKLOG, LIVE)
    assert backlog["rows_per_s_min"] <= backlog["rows_per_s"] <= backlog["rows_per_s_max"]
    assert backlog["batch_ms_p50"] > 0
