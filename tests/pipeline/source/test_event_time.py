"""Windows in event time over a backlog, on a real Spark: a watermark takes no message for late."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.pipeline.source.streaming import empty, listed, one, two, write_record
from tests.support.redis_server import RedisServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["empty", "one", "two"]

START_MS = 1_793_534_400_000
END_MS = START_MS + 60_000
ROWS_MAX = 5000


def test_windows_over_a_backlog_count_every_message(
    spark: SparkSession, one: RedisServer, two: RedisServer, tmp_path: Path
) -> None:
    write_record(one, b"slow", range(START_MS, END_MS, 20))
    write_record(one, b"busy", range(START_MS, START_MS + 40_000, 2))
    write_record(two, b"busy", range(START_MS + 40_000, END_MS, 2))  # where it was moved
    reader = spark.readStream.format("shoal").options(kind="channel", servers=listed(one, two))
    rows = reader.option("maxRowsPerBatch", ROWS_MAX).load().withWatermark("published_at", "10 seconds")
    query = (
        rows.selectExpr("channel", "window(published_at, '5 seconds') as window", "published_at")
        .groupBy("channel", "window")
        .count()
        .writeStream.format("memory")
        .queryName("windows")
        .outputMode("update")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    counted = spark.sql("select channel, window, max(count) as count from windows group by channel, window")
    totals = counted.groupBy("channel").sum("count").toDF("channel", "total").collect()
    found = {row["channel"]: row["total"] for row in totals}
    assert found == {"slow": 3_000, "busy": 30_000}
    progress = [one_batch for one_batch in query.recentProgress if one_batch["numInputRows"]]
    assert len(progress) >= 33_000 // ROWS_MAX
    assert sum(state["numRowsDroppedByWatermark"] for each in progress for state in each["stateOperators"]) == 0
