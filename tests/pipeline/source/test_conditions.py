"""Conditions of a query: what is not read, which rows are left out, and that no row is left out wrongly."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, cast

import pytest
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)
from tests.pipeline.source.streaming import empty, listed, one, options, table_of, two, write_record
from tests.support.redis_server import RedisServer

from shoal.pipeline.source.datasource import BatchReader, PartOfSource
from shoal.pipeline.source.parts import Part

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["empty", "one", "two"]

pytestmark = pytest.mark.spark

START_MS = 1_793_534_400_000
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def at(ms: float) -> dt.datetime:
    return dt.datetime.fromtimestamp((START_MS + ms) / 1000, dt.UTC)


@pytest.fixture(autouse=True)
def records(empty: None, one: RedisServer, two: RedisServer) -> None:
    write_record(one, b"orders.eu", range(START_MS, START_MS + 100))
    write_record(one, b"tile", range(START_MS, START_MS + 100))
    write_record(two, b"orders.us", range(START_MS + 50, START_MS + 150))


def read(filters: list[Filter], *servers: RedisServer) -> tuple[list[Part], list[dict[str, Any]]]:
    """The parts of a batch with these filters, and its rows."""
    asked = options(*servers, kind="channel")
    reader = BatchReader(asked)
    assert reader.pushFilters(filters) == filters  # Spark checks all of them again
    parts = [cast(PartOfSource, partition).part for partition in reader.partitions()]
    return parts, table_of(parts, asked.kind).to_pylist()


@pytest.mark.parametrize(
    ("filters", "streams", "rows"),
    [
        ([EqualTo(("channel",), "tile")], {"tile"}, 100),
        ([In(("channel",), ("tile", "orders.us", "none"))], {"tile", "orders.us"}, 200),
        ([StringStartsWith(("channel",), "orders.")], {"orders.eu", "orders.us"}, 200),
        ([StringStartsWith(("channel",), "orders."), EqualTo(("server",), "s2")], {"orders.us"}, 100),
        ([EqualTo(("channel",), "none")], set(), 0),
        ([GreaterThanOrEqual(("recorded_at",), at(90)), LessThan(("recorded_at",), at(110))], None, 40),
        ([GreaterThan(("recorded_at",), at(90)), LessThanOrEqual(("recorded_at",), at(110))], None, 38),
        ([GreaterThanOrEqual(("recorded_at",), at(120))], {"orders.us"}, 30),
        ([EqualTo(("recorded_at",), at(60))], None, 3),
        ([EqualTo(("recorded_at",), at(60.5))], None, 0),
        ([LessThan(("published_at",), at(60))], None, 130),
        ([EqualTo(("sequence",), 7), EqualTo(("is_gap",), False)], None, 3),
        ([EqualTo(("payload",), b"m7")], None, 3),
    ],
)
def test_only_what_conditions_allow_is_read(
    one: RedisServer, two: RedisServer, filters: list[Filter], streams: set[str] | None, rows: int
) -> None:
    parts, found = read(filters, one, two)
    assert len(found) == rows
    if streams is not None:
        assert {slice.stream for part in parts for slice in part.slices} == streams


@pytest.mark.parametrize(
    "filters",
    [
        [IsNull(("reason",))],
        [Not(EqualTo(("channel",), "tile"))],
        [EqualTo(("attributes", "x"), 1)],
        [GreaterThan(("channel",), "a")],
        [EqualTo(("channel",), None)],
        [LessThan(("recorded_at",), dt.datetime(2027, 1, 1))],
    ],
)
def test_other_conditions_are_left_to_spark(one: RedisServer, two: RedisServer, filters: list[Filter]) -> None:
    assert len(read(filters, one, two)[1]) == 300


def test_a_time_before_what_a_stream_still_holds_is_no_loss(one: RedisServer) -> None:
    reader = BatchReader(options(one, kind="channel"))
    reader.pushFilters([GreaterThan(("recorded_at",), at(-1_000))])
    parts = [cast(PartOfSource, partition).part for partition in reader.partitions()]
    assert table_of(parts, reader._options.kind).num_rows == 200


def test_a_session_without_pushdown_takes_the_reader(one: RedisServer) -> None:
    """What PySpark compares before it rejects a reader."""
    reader: Any = BatchReader(options(one, kind="channel"))
    assert reader.pushFilters.__func__ is DataSourceReader.pushFilters


@pytest.mark.parametrize("enabled", ["true", "false"])
def test_sql_gives_the_same_rows_with_and_without_pushdown(
    spark: SparkSession, one: RedisServer, two: RedisServer, enabled: str
) -> None:
    before = spark.conf.get(PUSHDOWN)
    spark.conf.set(PUSHDOWN, enabled)
    try:
        rows = spark.read.format("shoal").options(kind="channel", servers=listed(one, two)).load()
        some = rows.where(
            "channel like 'orders.us%' and recorded_at < timestamp '2026-11-01 12:00:00.1' and sequence > 3"
        )
        assert sorted(row["sequence"] for row in some.collect()) == [*range(4, 51)]
        assert some.rdd.getNumPartitions() == (1 if enabled == "true" else 2)
    finally:
        spark.conf.set(PUSHDOWN, str(before))
