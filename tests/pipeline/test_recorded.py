"""Recorded channels through the Spark source: rows of all servers, by channel or pattern, and by filter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from tests.pipeline.source.streaming import listed
from tests.support.records import BOB, Recording
from tests.support.redis_server import RedisServer

from shoal.errors import ConfigError
from shoal.history.table import SCHEMA
from shoal.limits import DEFAULT_LIMITS
from shoal.pipeline.source.kinds import ChannelKind
from shoal.wire.envelope import ATTRIBUTES, HEADER, MAGIC, encode_attributes, stream_id
from shoal.wire.record_entry import RecordedGap, message_fields

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def servers() -> Iterator[tuple[RedisServer, RedisServer]]:
    with RedisServer() as first, RedisServer() as second:
        yield first, second


def test_a_filter_is_taken_before_rows_leave_the_worker() -> None:
    kind = ChannelKind({"channel": "orders.*", "where": "volume > 5"})
    entries = []
    for number in range(1, 11):
        body = encode_attributes({"volume": number}, DEFAULT_LIMITS)
        blob = HEADER.pack(MAGIC, ATTRIBUTES, 1, stream_id(BOB, 1), number, 1000) + body + b"x"
        entries.append((b"%d-0" % number, message_fields(number, blob)))
    (batch,) = kind.rows("s1", "orders.eu", entries, 0)
    assert batch.schema.equals(SCHEMA, check_metadata=False)
    assert batch["sequence"].to_pylist() == [6, 7, 8, 9, 10]
    assert set(batch["channel"].to_pylist()) == {"orders.eu"}
    assert [rows.num_rows for rows in kind.rows("s1", "orders.eu", entries[:2], 0)] == [0]


def test_an_empty_channel_is_refused() -> None:
    with pytest.raises(ConfigError, match="channel is empty"):
        ChannelKind({"channel": ""})


def test_spark_reads_recorded_channels(servers: tuple[RedisServer, RedisServer], spark: SparkSession) -> None:
    for server, numbers in zip(servers, ((1, 2, 3), (4, 5)), strict=True):
        Recording(server, b"orders.eu").write(*numbers)
        Recording(server, b"tile").write(*numbers)
    absent = Recording(servers[1], b"orders.us")
    absent.write(1)
    absent.gap(RecordedGap(0, 0, 0, "away"), 1_900_000_000_000_000)
    reader = spark.read.format("shoal").option("kind", "channel").option("servers", listed(*servers))
    rows = reader.option("channel", "orders.*").load().collect()
    found = sorted((row["channel"], row["server"], row["sequence"]) for row in rows if not row["is_gap"])
    names = listed(*servers).split(",")
    first, second = (name.partition("=")[0] for name in names)
    assert found == [
        *(("orders.eu", first, number) for number in (1, 2, 3)),
        *(("orders.eu", second, number) for number in (4, 5)),
        ("orders.us", second, 1),
    ]
    assert [row["reason"] for row in rows if row["is_gap"]] == ["away"]
    assert rows[0]["publisher"] == BOB
