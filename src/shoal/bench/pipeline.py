"""`shoal bench pipeline`: the jobs of the data pipeline on Spark, each beside the same function on one core.

Owns the order of the measurements and their facts. What is measured: how long a session takes to start
(`pipeline` itself), telemetry through source and fold (`pipeline_load`), the archive (`pipeline_archive`) and bulk
matching (`pipeline_match`). All but the start share one session.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from shoal.bench import pipeline_archive, pipeline_load, pipeline_match
from shoal.bench.machine import machine
from shoal.pipeline.session import SessionOptions, running

START: Final = "start"
PARTS: Final = ("load", "archive", "match")
WORDS: Final = {
    "start": "from nothing to a session that has counted three rows",
    pipeline_load.BACKLOG: "rows of channels in telemetry records that wait on real servers, source and fold",
    pipeline_load.LIVE: "what agents would write each second, a micro-batch a second; delay_s: from the end of a "
    "second to its closed window",
    pipeline_archive.ON_SPARK: "recorded messages of real servers into Parquet files and a manifest, by Spark",
    pipeline_archive.ONE_CORE: "the same by the same function in one process",
    **pipeline_match.WORDS,
}


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How much is measured."""

    parts: tuple[str, ...] = PARTS
    events: int = pipeline_match.Options().events
    filters: int = pipeline_match.Options().filters
    rounds: int = 3
    live_s: float = 20.0
    messages: int = pipeline_archive.Options().messages
    seconds: int = pipeline_load.Options().seconds
    session: SessionOptions = SessionOptions(heap_mb=1536)


def measure(options: Options, note: Callable[[str], None]) -> dict[str, Any]:
    """All rows and ratios."""
    rows: list[dict[str, Any]] = []
    ratios: dict[str, float] = {}
    note("starting Spark")
    began = time.perf_counter()
    with running(options.session) as spark, tempfile.TemporaryDirectory(prefix="shoal-bench-") as directory:
        spark.range(3).count()
        rows.append({"contender": START, "seconds": round(time.perf_counter() - began, 2)})
        if "load" in options.parts:
            wanted = pipeline_load.Options(
                rounds=options.rounds, live_s=options.live_s, seconds=options.seconds, note=note
            )
            rows += pipeline_load.measure(spark, wanted)["rows"]
        if "archive" in options.parts:
            archive = pipeline_archive.Options(messages=options.messages, rounds=options.rounds, note=note)
            found = pipeline_archive.measure(spark, archive)["rows"]
            rows += found
            ratios["archive_on_spark_vs_one_core"] = found[0]["rows_per_s"] / found[1]["rows_per_s"]
        if "match" in options.parts:
            matching = pipeline_match.Options(
                events=options.events, filters=options.filters, rounds=options.rounds, note=note
            )
            facts = pipeline_match.measure(spark, matching, Path(directory))
            rows += facts["rows"]
            ratios |= facts["ratios"]
    workload = {"all": f"master {options.session.master}, heap {options.session.heap_mb} MB", **WORDS}
    return {"name": "pipeline", "workload": workload, "machine": machine(), "rows": rows, "ratios": ratios}
