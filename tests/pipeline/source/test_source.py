"""The source on a real Spark: batch, stream, restart, writing to channels."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.pipeline.source.streaming import BASE_S, Stream, entry, listed, one, two
from tests.support.records import Recording
from tests.support.redis_server import RedisServer

import shoal
from shoal.cluster.local import LocalCluster
from shoal.message import Message
from shoal.pipeline.session import activate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


__all__ = ["one", "two"]


@pytest.fixture(autouse=True)
def some(one: RedisServer, two: RedisServer) -> None:
    for number, server in enumerate((one, two), start=1):
        Stream(server).clear()
        Stream(server).add(entry(f"s{number}", BASE_S + second) for second in range(20))


def test_a_batch_is_read_with_one_partition_a_server(spark: SparkSession, one: RedisServer, two: RedisServer) -> None:
    rows = spark.read.format("shoal").option("servers", listed(one, two)).load()
    assert rows.rdd.getNumPartitions() == 2
    found = {(row["host"], row["second"]) for row in rows.select("host", "second").collect()}
    assert found == {(f"s{number}", BASE_S + second) for number in (1, 2) for second in range(20)}
    units = spark.read.format("shoal").options(servers=listed(one, two), rows="units").load()
    sent = units.where(f"at >= timestamp_seconds({BASE_S})").groupBy("unit").sum("bytes_out").collect()
    assert {row["unit"]: row["sum(bytes_out)"] for row in sent} == {"c0": 0, "c1": 40 * 100}


def test_a_session_finds_the_source_by_itself(spark: SparkSession) -> None:
    """What PySpark does without a registered format: it asks a worker for the modules with this prefix."""

    def found(_: object) -> list[str]:
        from pkgutil import iter_modules

        return [info.name for info in iter_modules() if info.name == "pyspark_shoal"]

    assert spark.sparkContext.parallelize([0], 1).flatMap(found).collect() == ["pyspark_shoal"]


def drain(rows: DataFrame, out: Path) -> None:
    """Writes all that is there now into files, exactly once."""
    query = (
        rows.writeStream.format("parquet")
        .option("path", str(out / "rows"))
        .option("checkpointLocation", str(out / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def test_a_stream_is_read_once_into_files_across_restarts(
    spark: SparkSession, one: RedisServer, two: RedisServer, tmp_path: Path
) -> None:
    def rows() -> DataFrame:
        reader = spark.readStream.format("shoal").option("servers", listed(one, two))
        return reader.option("maxRowsPerBatch", 15).option("partitionsPerServer", 2).load().drop("data")

    drain(rows(), tmp_path)
    Stream(one).add(entry("s1", BASE_S + second) for second in range(20, 25))
    drain(rows(), tmp_path)
    found = [(row["host"], row["second"]) for row in spark.read.parquet(str(tmp_path / "rows")).collect()]
    assert sorted(found) == [("s1", BASE_S + n) for n in range(25)] + [("s2", BASE_S + n) for n in range(20)]
    offsets = sorted((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    last = json.loads(offsets[-1].read_text().splitlines()[-1])
    assert set(last) == {"s1", "s2", "~of", "~v"}
    assert last["s1"]["telemetry"].endswith("/25")
    assert len(offsets) > 2  # 40 rows, 15 at a time


def test_a_trimmed_stream_ends_the_query_with_our_words(spark: SparkSession, one: RedisServer, tmp_path: Path) -> None:
    from shoal.pipeline.spark.error_translation import explain

    reader = spark.readStream.format("shoal").option("servers", listed(one)).option("maxRowsPerBatch", 5)
    drain(reader.load().drop("data"), tmp_path)
    Stream(one).add(entry("s1", BASE_S + second) for second in range(20, 30))
    Stream(one).trim(3)
    with pytest.raises(Exception, match="TrimmedError") as raised:
        drain(reader.load().drop("data"), tmp_path)
    error = explain(raised.value)
    assert "was trimmed: 7 entries were dropped before they were read" in str(error)
    assert "failOnDataLoss" in str(error)


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [("'x' as payload", "channel is not given, or given twice"), ("'c' as channel", "no column payload")],
)
def test_rows_that_are_no_messages_are_refused(spark: SparkSession, columns: str, complaint: str) -> None:
    with pytest.raises(Exception, match=complaint):
        spark.sql(f"select {columns}").write.format("shoal").option("coordinator", "shoal://a:1").mode("append").save()


async def test_rows_become_messages_with_ids_that_a_repeat_has_too(spark: SparkSession, tmp_path: Path) -> None:
    async with LocalCluster(servers=1) as cluster, shoal.connect(cluster.url) as bus:
        async with bus.subscribe("numbers") as messages:
            (tmp_path / "in").mkdir()

            def write(checkpoint: str) -> str:
                activate(spark)
                rows = spark.readStream.schema("value string").text(str(tmp_path / "in"))
                out = rows.selectExpr("'numbers' as channel", "value as payload", "map('size', 'one') as attributes")
                stream = out.writeStream.format("shoal").option("coordinator", cluster.url)
                query = (
                    stream.option("checkpointLocation", str(tmp_path / checkpoint)).trigger(availableNow=True).start()
                )
                query.awaitTermination()
                return query.id

            (tmp_path / "in" / "one.txt").write_text("1\n2\n3\n")
            query_id = await asyncio.to_thread(write, "checkpoint")
            (tmp_path / "in" / "two.txt").write_text("4\n")
            assert await asyncio.to_thread(write, "checkpoint") == query_id
            for file in (tmp_path / "checkpoint" / "commits").glob(
                "*1*"
            ):  # as if the driver had died before the commit
                file.unlink()
            assert await asyncio.to_thread(write, "checkpoint") == query_id
            found = [await next_message(messages) for _ in range(5)]
        assert sorted(message.payload for message in found) == [b"1", b"2", b"3", b"4", b"4"]
        once = {str((message.attributes or {})["shoal_id"]): message.payload for message in found}
        assert sorted(once) == [f"{query_id}/0/0/{row}" for row in range(3)] + [f"{query_id}/1/0/0"]
        assert sorted(once.values()) == [b"1", b"2", b"3", b"4"]  # a reader that drops by id has each row once
        assert {(message.attributes or {})["size"] for message in found} == {"one"}


async def test_rows_that_were_read_can_be_written_again_and_keep_their_attributes(spark: SparkSession) -> None:
    with RedisServer() as server:
        recording = Recording(server)
        recording.write(1, attributes={"id": "mine", "amount": 250, "shoal_id": "that of the first writing"})
        recording.write(2)
        async with LocalCluster(servers=1) as cluster, shoal.connect(cluster.url) as bus:

            def write() -> None:
                activate(spark)
                reader = spark.read.format("shoal").option("kind", "channel").option("servers", listed(server))
                rows = reader.load().select("payload", "attributes")
                rows.write.format("shoal").options(coordinator=cluster.url, channel="again").mode("append").save()

            async with bus.subscribe("again") as messages:
                await asyncio.to_thread(write)
                first, second = [await next_message(messages) for _ in range(2)]
    assert (first.payload, second.payload) == (b"m1", b"m2")
    assert {**(first.attributes or {}), "shoal_id": ""} == {"id": "mine", "amount": 250, "shoal_id": ""}
    assert str((first.attributes or {})["shoal_id"]).endswith("/0/0/0")
    assert set(second.attributes or {}) == {"shoal_id"}


async def next_message(messages: Any) -> Message:
    async with asyncio.timeout(20):
        message = await anext(messages)
    assert isinstance(message, Message)
    return message
