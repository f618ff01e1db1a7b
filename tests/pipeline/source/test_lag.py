"""How far a query is behind, from the offsets in its progress."""

from __future__ import annotations

import json

from tests.pipeline.source.streaming import empty, one, options, two, write_record
from tests.support.redis_server import RedisServer

from shoal.pipeline.source.lag import Lag, lag
from shoal.pipeline.source.offset_planner import OffsetPlanner
from shoal.pipeline.source.offsets import ServerOffset, write_offset
from shoal.pipeline.source.options import LATEST

__all__ = ["empty", "one", "two"]

START_MS = 1_793_534_400_000


def progress(end: dict[str, ServerOffset], latest: dict[str, ServerOffset]) -> dict[str, str]:
    return {"endOffset": json.dumps(write_offset(end)), "latestOffset": json.dumps(write_offset(latest))}


def test_the_lag_is_what_was_not_read(one: RedisServer, two: RedisServer) -> None:
    write_record(one, b"busy", range(START_MS, START_MS + 10_000, 10))
    write_record(two, b"later", range(START_MS + 9_000, START_MS + 10_000, 10))
    planner = OffsetPlanner(options(one, two, kind="channel"))
    latest = planner.first(LATEST)
    start = planner.next(planner.first(), 500)
    found = lag(progress(start, latest))
    read = start["s1"].streams["busy"].count or 0
    assert 450 <= read <= 500
    assert found == Lag(1_100 - read, (1_000 - read) * 10 / 1000)
    assert lag(progress(planner.next(start), latest)) == Lag(0, 0.0)


def test_before_the_first_batch_nothing_is_known(one: RedisServer) -> None:
    assert lag({"endOffset": None, "latestOffset": "{}"}) == Lag(0, 0.0)
