"""The report job: reduces an archive and kept load windows to a report, in process or on Spark.

Owns what is read, and where the functions of `shoal.pipeline.report` run. On Spark, a task reads one day of one
channel, or one hour of load windows, and returns counts; the driver adds them up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from shoal.errors import PipelineError
from shoal.history.archive_location import ArchiveLocation
from shoal.history.archive_table import open_table
from shoal.pipeline.event_archive import ALWAYS, RecordedArchive, TimeSpan
from shoal.pipeline.kept_windows import KeptWindows, open_windows
from shoal.pipeline.report import (
    LOAD_TOTALS,
    MESSAGE_COLUMNS,
    MESSAGE_TOTALS,
    Report,
    load_totals,
    make_report,
    message_totals,
)
from shoal.pipeline.spark.tasks import collect_numbers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(
    archive: str | None,
    windows: str | None,
    span: TimeSpan = ALWAYS,
    pattern: str | None = None,
    spark: SparkSession | None = None,
) -> Report:
    """The report on an archive, on kept load windows, or on both; without `spark`, in process. PipelineError or
    ArchiveError if they cannot be read, or have nothing of that time and these channels."""
    if archive is None and windows is None:
        raise PipelineError("a report needs an archive or load windows", do="give --archive, --windows, or both")
    messages = None if archive is None else _messages(archive, span, pattern, spark)
    load = None if windows is None else _load(open_windows(windows), span, spark)
    made = make_report(messages, load, pattern)
    if not made.channels.num_rows and not (pattern is None and load is not None and load.num_rows):
        found = " and ".join(place for place in (archive, windows) if place is not None)
        wanted = "" if pattern is None else f" of channels that match {pattern!r}"
        raise PipelineError(f"{found}: nothing{wanted} in that time", do="give another time or channel")
    return made


def _messages(archive: str, span: TimeSpan, pattern: str | None, spark: SparkSession | None) -> pa.Table:
    opened = RecordedArchive(open_table(ArchiveLocation.of(archive)), span, pattern)
    if spark is None:
        return pa.Table.from_batches(message_totals(opened.read(MESSAGE_COLUMNS)), MESSAGE_TOTALS)
    return opened.on_spark(spark, MESSAGE_COLUMNS, message_totals, MESSAGE_TOTALS).toArrow().cast(MESSAGE_TOTALS)


def _load(windows: KeptWindows, span: TimeSpan, spark: SparkSession | None) -> pa.Table:
    spans = windows.spans(span.from_us, span.to_us)
    if spark is None or not spans:
        batches = [batch for each in spans for batch in load_totals(each.read().to_batches())]
        return pa.Table.from_batches(batches, LOAD_TOTALS)
    return collect_numbers(
        spark, len(spans), lambda number: load_totals(spans[number].read().to_batches()), LOAD_TOTALS
    )
