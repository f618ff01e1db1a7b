"""`shoal bench pipeline`: the jobs of the data pipeline on Spark, compared with the same functions on one core.

Owns the order of the measurements and their facts: the start of a session (measured here), telemetry through source and
fold (`pipeline_load`), the source alone (`pipeline_source`, without Spark), the sink (`pipeline_sink`), the archive
(`pipeline_archive`) and bulk matching (`pipeline_match`). All use the same session, except SQL (`pipeline_sql`), which
compares two sessions in processes of their own.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from shoal.lab.bench import (
    pipeline_archive,
    pipeline_load,
    pipeline_match,
    pipeline_sink,
    pipeline_source,
    pipeline_sql,
)
from shoal.lab.machine import machine
from shoal.pipeline.session import SessionOptions, running

START: Final = "start"
PARTS: Final = ("sql", "source", "sink", "load", "archive", "match")
WORDS: Final = {
    "start": "from no process to a session that has counted three rows",
    pipeline_load.BACKLOG: "rows of channels in telemetry records that wait on real servers, through source and fold",
    pipeline_load.LIVE: "what agents would write each second, a micro-batch a second; delay_s: from the end of a "
    "second to its closed window",
    pipeline_archive.ON_SPARK: "recorded messages with attributes, of real servers, into a Delta table, by Spark",
    pipeline_archive.ONE_CORE: "the same by the same function in one process",
    **pipeline_sql.WORDS,
    **pipeline_source.WORDS,
    **pipeline_sink.WORDS,
    **pipeline_match.WORDS,
}


class PipelineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How much is measured."""

    parts: tuple[str, ...] = PARTS
    rounds: int = 3
    source: pipeline_source.SourceBenchOptions = pipeline_source.SourceBenchOptions()
    sql: pipeline_sql.SqlOptions = pipeline_sql.SqlOptions()
    sink: pipeline_sink.SinkOptions = pipeline_sink.SinkOptions()
    load: pipeline_load.LoadOptions = pipeline_load.LoadOptions()
    archive: pipeline_archive.ArchiveOptions = pipeline_archive.ArchiveOptions()
    match: pipeline_match.BulkMatchOptions = pipeline_match.BulkMatchOptions()
    session: SessionOptions = SessionOptions(heap_mb=1536)


def measure(options: PipelineOptions, note: Callable[[str], None]) -> dict[str, Any]:
    """All rows and ratios."""
    rows: list[dict[str, Any]] = []
    ratios: dict[str, float] = {}
    common: dict[str, Any] = {"rounds": options.rounds, "note": note}
    if "sql" in options.parts:
        found = pipeline_sql.measure(replace(options.sql, **common))
        rows += found
        ratios["sql_vs_plain_session"] = found[0]["seconds"] / found[1]["seconds"]
    note("starting Spark")
    began = time.perf_counter()
    with running(options.session) as spark, tempfile.TemporaryDirectory(prefix="shoal-bench-") as directory:
        spark.range(3).count()
        rows.append({"contender": START, "seconds": round(time.perf_counter() - began, 2)})
        if "source" in options.parts:
            found = pipeline_source.measure(replace(options.source, **common))
            rows += found
            ratios["source_vs_xrange"] = found[0]["rows_per_s"] / found[1]["rows_per_s"]
        if "sink" in options.parts:
            found = pipeline_sink.measure(spark, replace(options.sink, **common))
            rows += found
            ratios["sink_vs_publisher"] = found[0]["rows_per_s"] / found[1]["rows_per_s"]
        if "load" in options.parts:
            rows += pipeline_load.measure(spark, replace(options.load, **common))
        if "archive" in options.parts:
            found = pipeline_archive.measure(spark, replace(options.archive, **common))
            rows += found
            ratios["archive_on_spark_vs_one_core"] = found[0]["rows_per_s"] / found[1]["rows_per_s"]
        if "match" in options.parts:
            facts = pipeline_match.measure(spark, replace(options.match, **common), Path(directory))
            rows += facts["rows"]
            ratios |= facts["ratios"]
    workload = {"all": f"master {options.session.master}, heap {options.session.heap_mb} MB", **WORDS}
    return {"name": "pipeline", "workload": workload, "machine": machine(), "rows": rows, "ratios": ratios}
