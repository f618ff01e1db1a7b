"""Entries that were dropped, deleted or left unread are reported: planning and reading against real servers."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import cast

import pytest
from tests.pipeline.source.streaming import (
    BASE_S,
    Stream,
    empty,
    entry,
    one,
    options,
    quick,
    seconds_of,
    table_of,
    two,
    write_record,
)
from tests.support.records import Recording
from tests.support.redis_server import RedisServer

from shoal.errors import TrimmedError
from shoal.history.server_reader import Login
from shoal.pipeline.source.cluster_address import SourceAddress
from shoal.pipeline.source.offset_planner import OffsetPlanner
from shoal.pipeline.source.offsets import read_offset, write_offset
from shoal.pipeline.source.parts import read_part
from shoal.plan.ring import ServerAddress
from shoal.wire.record_entry import INDEX_KEY

__all__ = ["empty", "one", "quick", "two"]


class Rings:
    """A cluster whose ring changes: the last of some holds."""

    login = Login(None, None)
    name = "rings"

    def __init__(self, rings: list[tuple[ServerAddress, ...]]) -> None:
        self._rings = rings

    def servers(self) -> tuple[ServerAddress, ...]:
        return self._rings[-1]

    def stores(self) -> dict[ServerAddress, tuple[str, ...]]:
        return {}


def test_a_trimmed_stream_is_an_error_that_says_how_much_is_lost(one: RedisServer) -> None:
    stream = Stream(one)
    stream.add(entry("s1", BASE_S + second) for second in range(10))
    planning = OffsetPlanner(options(one))
    start = planning.next({}, 4)
    stream.trim(3)
    with pytest.raises(TrimmedError, match=r"telemetry of s1 was trimmed: 3 entries were dropped.*failOnDataLoss"):
        planning.next(start)


def test_a_trimmed_stream_goes_on_with_the_oldest_and_a_warning_if_asked(
    one: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    stream = Stream(one)
    stream.add(entry("s1", BASE_S + second) for second in range(10))
    asked = options(one, failOnDataLoss="false")
    planning = OffsetPlanner(asked)
    start = planning.next({}, 4)
    stream.trim(3)
    end = planning.next(start)
    assert [second - BASE_S for _, second in seconds_of(planning, asked, start, end)] == [7, 8, 9]
    assert "entries are lost" in caplog.text
    assert planning.next(end) == end


def test_what_is_trimmed_between_planning_and_reading_is_seen_too(one: RedisServer) -> None:
    stream = Stream(one)
    stream.add(entry("s1", BASE_S + second) for second in range(10))
    asked = options(one)
    planning = OffsetPlanner(asked)
    start = planning.next({}, 4)
    end = planning.next(start)
    parts = planning.parts(start, end)
    stream.trim(3)
    with pytest.raises(TrimmedError, match="3 entries were dropped"):
        table_of(parts, asked.kind)


def test_a_server_that_lost_its_data_is_seen(one: RedisServer) -> None:
    stream = Stream(one)
    stream.add(entry("s1", BASE_S + second) for second in range(10))
    start = OffsetPlanner(options(one)).next({})
    stream.clear()
    stream.add([entry("s1", BASE_S + 20)])
    with pytest.raises(TrimmedError, match="was restarted"):
        OffsetPlanner(options(one)).next(start)
    asked = options(one, failOnDataLoss="false")
    end = OffsetPlanner(asked).next(start)
    assert seconds_of(OffsetPlanner(asked), asked, start, end) == [("s1", BASE_S + 20)]
    assert OffsetPlanner(asked).next(end) == end


def test_a_record_that_its_server_does_not_know_any_more_is_told(
    one: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    Recording(one, b"orders").write(*range(1, 11))
    Recording(one, b"quiet").write(1)
    asked = options(one, kind="channel")
    behind = read_offset(write_offset(OffsetPlanner(asked).next({}, 4)))
    covered = OffsetPlanner(asked).next(behind)
    Stream(one).clear()
    with pytest.raises(TrimmedError, match=r"orders of s1 no longer exist.* at least 7 entries were not read"):
        OffsetPlanner(asked).next(behind)
    lenient = OffsetPlanner(options(one, kind="channel", failOnDataLoss="false"))
    after = lenient.next(behind)
    assert lenient.next(after) == after
    assert caplog.text.count("entries are lost") == 1
    old = {"s1": {"b3JkZXJz": str(behind["s1"].streams["orders"]), "~ahead_ms": 0, "~behind": 7}}
    with pytest.raises(TrimmedError, match="at least 7 entries"):  # an older offset, without numbers by stream
        OffsetPlanner(asked).next(read_offset(old, asked.kind.asked, asked.kind.new_name))
    caplog.clear()
    planning = OffsetPlanner(asked)
    assert planning.next(covered) == covered
    assert planning.next(covered) == covered
    assert caplog.text.count("stream no longer exists") == 2  # each once


def test_a_record_that_was_read_to_its_end_is_not_lost_though_another_is_behind(one: RedisServer) -> None:
    Recording(one, b"orders").write(*range(1, 11))
    Recording(one, b"quiet").write(1)
    asked = options(one, kind="channel")
    start = OffsetPlanner(asked).next({}, 4)
    Stream(one).ask("SREM", INDEX_KEY, b"quiet")
    assert OffsetPlanner(asked).next(start)["s1"].behind == 0


@pytest.mark.parametrize(("parts", "fail"), [(1, "true"), (3, "true"), (1, "false")])
def test_who_begins_with_the_oldest_of_a_full_stream_begins_with_what_is_there_when_it_is_read(
    one: RedisServer, caplog: pytest.LogCaptureFixture, parts: int, fail: str
) -> None:
    stream, asked = Stream(one), options(one, partitionsPerServer=str(parts), failOnDataLoss=fail)
    stream.add(entry("s1", BASE_S + second) for second in range(600))
    planning = OffsetPlanner(asked)
    start = planning.first()
    for second in range(600, 605):  # it is at its bound: each that comes drops the oldest
        stream.add([entry("s1", BASE_S + second)])
        stream.trim(600)
    end = planning.next(start)
    planned = planning.parts(start, end)
    for second in range(605, 610):
        stream.add([entry("s1", BASE_S + second)])
        stream.trim(600)
    with caplog.at_level(logging.INFO, logger="shoal"):
        table = table_of(planned, asked.kind)
    assert [second - BASE_S for second in table["second"].to_pylist()] == [*range(10, 605)]
    assert "stream starts later" in caplog.text
    assert "lost" not in caplog.text
    stream.trim(2)
    with pytest.raises(TrimmedError, match="3 entries were dropped"):  # from where it was read on it is a loss
        OffsetPlanner(options(one)).next(end)


def test_a_stream_that_a_small_first_batch_left_out_begins_with_what_is_there(
    one: RedisServer, two: RedisServer
) -> None:
    Stream(one).add(entry("s1", BASE_S + second) for second in range(100))
    Stream(two).add(entry("s2", BASE_S + second) for second in range(80, 100))
    asked = options(one, two)
    planning = OffsetPlanner(asked)
    start = planning.first()
    early = planning.next(start, 20)
    Stream(two).trim(15)
    later = planning.next(early)
    assert [second - BASE_S for host, second in seconds_of(planning, asked, start, early) if host == "s2"] == []
    found = [second - BASE_S for host, second in seconds_of(planning, asked, early, later) if host == "s2"]
    assert found == [*range(85, 100)]


def test_what_comes_into_an_empty_stream_and_is_dropped_unread_is_lost(one: RedisServer) -> None:
    planning = OffsetPlanner(options(one))
    start = read_offset(write_offset(planning.first()))
    Stream(one).add(entry("s1", BASE_S + second) for second in range(10))
    Stream(one).trim(3)
    with pytest.raises(TrimmedError, match="7 entries were dropped"):
        planning.next(start)


@pytest.mark.parametrize("parts", [1, 2])
def test_a_stream_that_is_deleted_before_the_first_batch_is_read_is_seen(one: RedisServer, parts: int) -> None:
    stream, asked = Stream(one), options(one, partitionsPerServer=str(parts))
    stream.add(entry("s1", BASE_S + second) for second in range(10))
    planning = OffsetPlanner(asked)
    start = planning.first()
    end = planning.next(start)
    stream.clear()
    with pytest.raises(TrimmedError, match="was restarted"):
        seconds_of(planning, asked, start, end)
    stream.add(entry("s1", BASE_S + second) for second in range(20, 23))
    with pytest.raises(TrimmedError, match="was restarted"):
        seconds_of(planning, asked, start, end)


def test_of_a_new_server_nothing_is_missed_but_what_is_dropped_after_it_was_read(one: RedisServer) -> None:
    stream, asked = Stream(one), options(one)
    stream.add(entry("s1", BASE_S + second) for second in range(10))
    stream.trim(6)
    planning = OffsetPlanner(asked)
    end = read_offset(write_offset(planning.next({})))
    assert len(seconds_of(planning, asked, {}, end)) == 6
    stream.trim(2)
    assert len(seconds_of(planning, asked, {}, end)) == 2
    stream.add(entry("s1", BASE_S + second) for second in range(10, 15))
    stream.trim(1)
    with pytest.raises(TrimmedError, match="4 entries were dropped"):
        planning.next(end)


@pytest.mark.parametrize("parts", [1, 2])
def test_what_is_dropped_while_it_is_read_is_seen(one: RedisServer, parts: int) -> None:
    stream, asked = Stream(one), options(one, partitionsPerServer=str(parts))
    stream.add(entry("s1", BASE_S + second) for second in range(400))
    planning = OffsetPlanner(asked)
    start = planning.next({}, 1)
    first, *_ = planning.parts(start, planning.next(start))
    batches = read_part(first)
    assert next(batches).num_rows == 64
    stream.trim(10)
    with pytest.raises(TrimmedError, match="dropped before they were read"):
        list(batches)


@pytest.mark.parametrize("parts", [1, 2])
def test_what_was_read_may_be_dropped_while_the_rest_is_read(one: RedisServer, parts: int) -> None:
    stream, asked = Stream(one), options(one, partitionsPerServer=str(parts))
    stream.add(entry("s1", BASE_S + second) for second in range(400))
    planning = OffsetPlanner(asked)
    first, *_ = planning.parts({}, planning.next({}))
    batches = read_part(first)
    assert next(batches).num_rows == 64
    stream.trim(400 - 50)
    assert 64 + sum(batch.num_rows for batch in batches) == 400 // parts


def test_a_server_that_left_with_entries_unread_is_told(
    one: RedisServer, two: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    Stream(two).add(entry("s2", BASE_S + second) for second in range(10))
    both = options(one, two)
    start = read_offset(write_offset(OffsetPlanner(both).next({}, 4)))
    with pytest.raises(TrimmedError, match="s2 has left the ring and does not answer: at least 6 entries"):
        OffsetPlanner(options(one)).next(start)
    lenient = OffsetPlanner(options(one, failOnDataLoss="false"))
    end = lenient.next(start)
    assert lenient.next(end) == end
    assert caplog.text.count("entries are lost") == 1
    with pytest.raises(TrimmedError, match="s2 has left the ring; 4 entries that this batch planned to read are lost"):
        OffsetPlanner(options(one)).parts({}, start)


def test_a_server_that_left_before_its_turn_in_time_is_told(one: RedisServer, two: RedisServer) -> None:
    write_record(one, b"early", range(BASE_S * 1000, BASE_S * 1000 + 100))
    write_record(two, b"late", range(BASE_S * 1000 + 100, BASE_S * 1000 + 107))
    asked = options(one, two, kind="channel")
    start = read_offset(write_offset(OffsetPlanner(asked).next({}, 50)))
    assert not start["s2"].streams
    with pytest.raises(TrimmedError, match="s2 has left the ring and does not answer: at least 7 entries"):
        OffsetPlanner(options(one, kind="channel")).next(start)
    Stream(two).clear()
    with pytest.raises(TrimmedError, match=r"the streams late of s2 no longer exist.* at least 7 entries"):
        OffsetPlanner(asked).next(start)


def test_a_server_that_left_is_read_to_its_end_while_it_answers(one: RedisServer, two: RedisServer) -> None:
    Stream(two).add(entry("s2", BASE_S + second) for second in range(10))
    asked = options(one, two)
    rings = [options(one, two).cluster.listed]
    planning = OffsetPlanner(replace(asked, cluster=cast(SourceAddress, Rings(rings))))
    start = planning.next({}, 4)
    rings.append(options(one).cluster.listed)
    end = planning.next(start)
    assert len(seconds_of(planning, asked, start, end)) == 6
    Stream(two).add([entry("s2", BASE_S + 20)])
    assert planning.next(end) != end
    end = planning.next(end)
    assert planning.next(end) == end
    Stream(two).add([entry("s2", BASE_S + 21)])
    assert planning.next(end) == end  # it was read to its end, and is asked no more


def test_a_server_that_died_and_left_is_reported_without_a_number_of_entries(
    one: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    with RedisServer() as two:
        Stream(two).add([entry("s2", BASE_S)])
        rings = [options(one, two).cluster.listed]
        planning = OffsetPlanner(replace(options(one), cluster=cast(SourceAddress, Rings(rings))))
        start = planning.next({})
    assert planning.next(start) == start
    rings.append(options(one).cluster.listed)
    assert planning.next(start) == start
    assert planning.next(start) == start
    assert caplog.text.count("entries may be lost") == 1
