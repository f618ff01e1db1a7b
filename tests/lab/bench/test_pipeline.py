"""`shoal bench pipeline`, so small that only its shape can be judged, on the session that tests share."""

from __future__ import annotations

import json

import pytest

from shoal import cli
from shoal.lab.bench import (
    pipeline,
    pipeline_archive,
    pipeline_load,
    pipeline_match,
    pipeline_sink,
    pipeline_source,
)
from shoal.pipeline.session import SessionOptions

pytestmark = pytest.mark.usefixtures("spark")


def test_every_job_has_rows_and_those_compared_with_one_core_have_a_ratio() -> None:
    options = pipeline.PipelineOptions(
        parts=tuple(part for part in pipeline.PARTS if part != "sql"),  # it starts two more sessions
        rounds=1,
        sink=pipeline_sink.SinkOptions(messages=100),
        source=pipeline_source.SourceBenchOptions(messages=100),
        load=pipeline_load.LoadOptions(channels=20, seconds=10, batch_rows=300, live_s=2.0),
        archive=pipeline_archive.ArchiveOptions(messages=50),
        match=pipeline_match.BulkMatchOptions(events=2_000, filters=100),
        session=SessionOptions(name="tests"),
    )
    facts = pipeline.measure(options, lambda _: None)
    rows = {row["contender"]: row for row in facts["rows"]}
    assert list(rows) == [
        pipeline.START,
        pipeline_source.SOURCE,
        pipeline_source.XRANGE,
        pipeline_source.PARQUET,
        pipeline_sink.SINK,
        pipeline_sink.PUBLISHER,
        pipeline_load.BACKLOG,
        pipeline_load.LIVE,
        pipeline_archive.ON_SPARK,
        pipeline_archive.ONE_CORE,
        pipeline_match.ONE_CORE,
        pipeline_match.ON_SPARK,
    ]
    assert all(row["rows_per_s"] > 0 for name, row in rows.items() if name != pipeline.START)
    assert rows[pipeline_load.BACKLOG]["batch_ms_p50"] > 0
    for name, ours, other in (
        ("source_vs_xrange", pipeline_source.SOURCE, pipeline_source.XRANGE),
        ("sink_vs_publisher", pipeline_sink.SINK, pipeline_sink.PUBLISHER),
        ("match_on_spark_vs_one_core", pipeline_match.ON_SPARK, pipeline_match.ONE_CORE),
        ("archive_on_spark_vs_one_core", pipeline_archive.ON_SPARK, pipeline_archive.ONE_CORE),
    ):
        assert facts["ratios"][name] == pytest.approx(rows[ours]["rows_per_s"] / rows[other]["rows_per_s"])


def test_one_part_can_be_measured_alone(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("bench", "pipeline", "--only", "match", "--events", "1000", "--filters", "50", "--rounds", "1", "--json")
    assert cli.main(words) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [row["contender"] for row in facts["rows"]] == [
        pipeline.START,
        pipeline_match.ONE_CORE,
        pipeline_match.ON_SPARK,
    ]
