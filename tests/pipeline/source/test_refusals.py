"""What is asked for wrongly is refused when a query is planned: options, columns, modes, checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import types
from tests.pipeline.source.streaming import BASE_S, Stream, entry, listed
from tests.support.redis_server import RedisServer

from shoal.errors import ConfigError
from shoal.pipeline.source.columns import check_written, chosen
from shoal.pipeline.source.datasource import ShoalSource
from shoal.pipeline.source.kinds import TelemetryKind
from shoal.pipeline.source.writer import BatchWriter, StreamWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

NOWHERE = "shoal://127.0.0.1:1"


@pytest.fixture(scope="module")
def one() -> Iterator[RedisServer]:
    with RedisServer() as server:
        Stream(server).add(entry("s1", BASE_S + second) for second in range(5))
        yield server


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"chanel": "x"}, "no option 'chanel': did you mean channel"),
        ({"maxrowsperbach": "1"}, "did you mean maxRowsPerBatch"),
        ({"colour": "red"}, "the options are coordinator"),
        ({"path": "orders.eu"}, "no path, but 'orders.eu' is given.*with the option channel"),
        ({"owner": "me", "provider": "shoal"}, "Spark reads a catalog table without its options"),
        ({"where": "a = 1"}, "where is not for telemetry: set kind to channel"),
        ({"channel": "a"}, "channel is not for telemetry"),
    ],
)
def test_wrong_options_are_refused_with_what_to_do(given: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        ShoalSource(given).schema()


def test_options_of_spark_itself_are_let_through() -> None:
    given = {"checkpointLocation": "/x", "queryName": "q", "spark.sql.x": "1", "KIND": "telemetry"}
    assert ShoalSource(given).schema().fieldNames() == TelemetryKind({}).schema.names


@pytest.mark.parametrize(
    ("option", "offset", "complaint"),
    [
        ("startingOffsets", '{"s99": {"telemetry": "1-0"}}', "startingOffsets names a server 's99'.*name one of s1"),
        ("startingOffsets", '{"s1": {"telemetri": "1-0"}}', "names a stream 'telemetri'.*name one of telemetry"),
        ("endingOffsets", '{"s99": {"telemetry": "1-0"}}', "endingOffsets names a server 's99'"),
        ("startingOffsets", '{"~of": {"kind": "channel"}}', "the offset is for kind 'channel'"),
    ],
)
def test_offsets_of_what_is_not_there_are_refused(one: RedisServer, option: str, offset: str, complaint: str) -> None:
    source = ShoalSource({"servers": listed(one), option: offset})
    with pytest.raises(ConfigError, match=complaint):
        source.reader(source.schema()).partitions()


def test_a_stream_has_no_end(one: RedisServer) -> None:
    source = ShoalSource({"servers": listed(one), "endingOffsets": "{}"})
    with pytest.raises(ConfigError, match="endingOffsets is for a batch"):
        source.streamReader(source.schema()).initialOffset()


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [("hosts string", "a column 'hosts'.*choose from host, "), ("second string", "has it as bigint")],
)
def test_a_schema_that_is_not_the_one_of_the_source_is_refused(asked: str, complaint: str) -> None:
    name, type = asked.split()
    with pytest.raises(ConfigError, match=complaint):
        chosen(types.StructType().add(name, type), TelemetryKind({}).schema)


MAP = types.MapType(types.StringType(), types.LongType())


@pytest.mark.parametrize(
    ("column", "type", "fits"),
    [
        ("channel", "string", True),
        ("channel", "binary", True),
        ("channel", "integer", False),
        ("payload", "binary", True),
        ("payload", "double", False),
        ("attributes", "string", True),
        ("attributes", "binary", False),
        ("attributes", MAP, True),
        ("attributes", types.MapType(types.StringType(), types.DateType()), False),
        ("attributes", types.MapType(types.StringType(), types.DecimalType()), False),
        ("attributes", types.MapType(types.LongType(), types.StringType()), False),
        ("attributes", types.StructType().add("a", "integer"), False),
    ],
)
def test_a_column_of_a_wrong_type_is_refused_by_name_and_type(
    column: str, type: str | types.DataType, fits: bool
) -> None:
    columns: dict[str, str | types.DataType] = {"channel": "string", "payload": "string", column: type}
    schema = types.StructType()
    for name, of_type in columns.items():
        schema = schema.add(name, of_type)
    if fits:
        check_written(schema, None)
        return
    with pytest.raises(ConfigError, match=rf"the column {column} is .*{schema[column].dataType.simpleString()[:3]}"):
        check_written(schema, None)


def test_what_was_published_is_not_replaced() -> None:
    schema = types.StructType().add("channel", "string").add("payload", "string")
    with pytest.raises(ConfigError, match=r"the mode is overwrite.*use mode"):
        BatchWriter.of({"coordinator": NOWHERE}, schema, overwrite=True)
    with pytest.raises(ConfigError, match="the output mode is complete"):
        StreamWriter.of({"coordinator": NOWHERE}, schema, overwrite=True)
    with pytest.raises(ConfigError, match="no option 'kind'"):
        StreamWriter.of({"coordinator": NOWHERE, "kind": "channel"}, schema, overwrite=False)


# What Spark makes of it


def run(rows: DataFrame, checkpoint: Path, format: str = "noop", mode: str = "append") -> None:
    writer = rows.writeStream.format(format).outputMode(mode).option("checkpointLocation", str(checkpoint))
    if format == "shoal":
        writer = writer.option("coordinator", NOWHERE)
    writer.trigger(availableNow=True).start().awaitTermination()


def stream(spark: SparkSession, server: RedisServer, **more: str) -> DataFrame:
    return spark.readStream.format("shoal").options(servers=listed(server), **more).load()


def test_a_batch_that_finds_nothing_has_no_rows(spark: SparkSession, one: RedisServer) -> None:
    reader = spark.read.format("shoal").option("servers", listed(one))
    assert reader.option("endingOffsets", "{}").load().collect() == []


def test_a_schema_names_the_columns_that_are_wanted(spark: SparkSession, one: RedisServer) -> None:
    reader = spark.read.format("shoal").option("servers", listed(one)).schema("second long, host string")
    rows = reader.load().collect()
    assert [(row["second"], row["host"]) for row in rows] == [(BASE_S + second, "s1") for second in range(5)]


def test_a_checkpoint_is_that_of_one_kind_and_channel(spark: SparkSession, one: RedisServer, tmp_path: Path) -> None:
    run(stream(spark, one), tmp_path)
    run(stream(spark, one), tmp_path)
    with pytest.raises(Exception, match="ConfigError: the offset is for kind 'telemetry', but"):
        run(stream(spark, one, kind="channel", channel="orders.eu"), tmp_path)
    with pytest.raises(Exception, match="ConfigError: endingOffsets is for a batch"):
        run(stream(spark, one, endingOffsets="{}"), tmp_path / "other")


@pytest.mark.parametrize("mode", ["complete", "update"])
def test_a_stream_of_rows_that_change_is_not_written(
    spark: SparkSession, one: RedisServer, tmp_path: Path, mode: str
) -> None:
    rows = stream(spark, one).groupBy("host").count().selectExpr("'c' as channel", "host as payload")
    with pytest.raises(Exception, match=r"the output mode is complete|does not support Update mode"):
        run(rows, tmp_path, "shoal", mode)


def test_a_refusal_of_columns_comes_before_anything_runs(spark: SparkSession) -> None:
    rows = spark.sql("select 17 as channel, 'x' as payload")
    with pytest.raises(Exception, match="ConfigError: the column channel is int: cast it"):
        rows.write.format("shoal").option("coordinator", NOWHERE).mode("append").save()
