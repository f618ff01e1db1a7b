"""The sink on Spark, compared with a plain publisher: the same messages on the same channels of a real cluster.

Owns the two contenders and their figures. The sink publishes from Spark's tasks; the publisher is one bus in this
process. Both end when servers have confirmed everything. They run in turn; the first round is a warm-up and does not
count. The start of Spark is not included.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import msgspec

from shoal.bus import connect
from shoal.cluster.local import LocalCluster
from shoal.pipeline.message_ids import ID_ATTRIBUTE
from shoal.pipeline.session import activate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SINK: Final = "sink"
PUBLISHER: Final = "sink, plain publisher"
WORDS: Final = {
    SINK: "rows to messages of a real server, by format shoal on Spark, confirmed",
    PUBLISHER: "the same messages, with the same attribute, by one bus in one process",
}
CHANNELS: Final = 16
TASKS: Final = 2


class SinkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The size of the measurement."""

    messages: int = 100_000
    payload_bytes: int = 100
    rounds: int = 3
    note: Callable[[str], None] = lambda _: None


def measure(spark: SparkSession, options: SinkOptions) -> list[dict[str, Any]]:
    """The rows of both."""
    return asyncio.run(_measure(spark, options))


async def _measure(spark: SparkSession, options: SinkOptions) -> list[dict[str, Any]]:
    payload = "x" * options.payload_bytes
    rows = (
        spark.range(0, options.messages, 1, TASKS)
        .selectExpr(f"concat('bench.', id % {CHANNELS}) as channel", f"'{payload}' as payload")
        .persist()
    )
    rows.count()
    async with LocalCluster(1, tls=False) as cluster:
        contenders: dict[str, Callable[[], None]] = {
            SINK: lambda: _write(spark, rows, cluster.url),
            PUBLISHER: lambda: asyncio.run(_publish(cluster.url, options.messages, payload.encode())),
        }
        speeds: dict[str, list[float]] = {name: [] for name in contenders}
        for number in range(options.rounds + 1):
            for name in list(contenders)[:: 1 if number % 2 == 0 else -1]:
                options.note(f"sink, round {number} of {options.rounds}: {name}")
                began = time.perf_counter()
                await asyncio.to_thread(contenders[name])
                if number:
                    speeds[name].append(options.messages / (time.perf_counter() - began))
    rows.unpersist()
    return [_row(name, found) for name, found in speeds.items()]


def _write(spark: SparkSession, rows: DataFrame, url: str) -> None:
    activate(spark)
    rows.write.format("shoal").option("coordinator", url).mode("append").save()


async def _publish(url: str, messages: int, payload: bytes) -> None:
    async with connect(url) as bus:
        for number in range(messages):
            await bus.publish(
                f"bench.{number % CHANNELS}", payload, attributes={ID_ATTRIBUTE: f"{'0' * 32}/0/0/{number}"}
            )
        await bus.drain()


def _row(name: str, speeds: list[float]) -> dict[str, Any]:
    return {
        "contender": name,
        "rows_per_s": round(median(speeds)),
        "rows_per_s_min": round(min(speeds)),
        "rows_per_s_max": round(max(speeds)),
        "rounds": len(speeds),
    }
