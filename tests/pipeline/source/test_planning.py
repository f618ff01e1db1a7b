"""Planning and reading against real servers, without Spark."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import hiredis
import pytest
from pyspark.sql.datasource import InputPartition
from tests.pipeline.source.streaming import BASE_S, Stream, entry, options
from tests.support.cluster_thread import ClusterThread
from tests.support.records import Recording
from tests.support.redis_server import RedisServer, free_port

from shoal.balance.fold_in_order import fold_in_order
from shoal.balance.fold_state import FoldState
from shoal.balance.settings import BalanceSettings
from shoal.channels import telemetry
from shoal.cluster.local import LocalCluster
from shoal.errors import ConfigError, ConnectError, PipelineError, TrimmedError
from shoal.history.servers import Login
from shoal.pipeline.source import reading
from shoal.pipeline.source.offsets import ServerOffset, read_offset, write_offset
from shoal.pipeline.source.options import SourceOptions, read_options
from shoal.pipeline.source.planning import Planning, table_of
from shoal.pipeline.source.source import BatchReader, PartOfSource
from shoal.pipeline.source.streams import ServerStreams
from shoal.pipeline.source.where import Cluster
from shoal.plan.ring import ServerAddress
from shoal.wire.ask import Asking
from shoal.wire.recorded import INDEX_KEY


@pytest.fixture(scope="module")
def one() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="module")
def two() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(autouse=True)
def empty(one: RedisServer, two: RedisServer) -> None:
    for server in (one, two):
        Stream(server).clear()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "PAUSE_S", 0.01)


def seconds_of(
    planning: Planning, asked: SourceOptions, start: dict[str, ServerOffset], end: dict[str, ServerOffset]
) -> list[tuple[str, int]]:
    """What is between two offsets: host and second of each record."""
    table = table_of(planning.parts(start, end), asked.kind)
    return sorted(zip(table["host"].to_pylist(), table["second"].to_pylist(), strict=True))


def test_all_is_read_once_from_both_servers_and_the_same_again(one: RedisServer, two: RedisServer) -> None:
    asked = options(one, two)
    planning = Planning(asked)
    start = planning.first()
    Stream(one).add(entry("s1", BASE_S + second) for second in range(100))
    Stream(two).add(entry("s2", BASE_S + second) for second in range(50))
    end = planning.next(start)
    expected = [("s1", BASE_S + n) for n in range(100)] + [("s2", BASE_S + n) for n in range(50)]
    assert seconds_of(planning, asked, start, end) == expected
    assert seconds_of(Planning(asked), asked, start, end) == expected
    assert planning.next(end) == end
    assert planning.parts(end, end) == []
    assert write_offset(read_offset(json.loads(json.dumps(write_offset(end))))) == write_offset(end)


def test_rows_say_where_they_came_from_and_when(one: RedisServer) -> None:
    asked = options(one)
    planning = Planning(asked)
    Stream(one).add([entry("s1", BASE_S)])
    end = planning.next({})
    (row,) = table_of(planning.parts({}, end), asked.kind).to_pylist()
    assert (row["server"], row["entry"]) == ("s1", f"{(BASE_S + 1) * 1000 + 50}-0")
    assert row["arrived_s"] == pytest.approx(BASE_S + 1.05 - end["s1"].ahead_ms / 1000)


def test_a_batch_takes_no_more_than_it_may_and_each_server_its_part(one: RedisServer, two: RedisServer) -> None:
    asked = options(one, two)
    planning = Planning(asked)
    Stream(one).add(entry("s1", BASE_S + second) for second in range(90))
    Stream(two).add(entry("s2", BASE_S + second) for second in range(10))
    start: dict[str, ServerOffset] = {}
    sizes, seen = [], []
    while (end := planning.next(start, 40)) != start:
        found = seconds_of(planning, asked, start, end)
        sizes.append(len(found))
        seen += found
        start = end
    assert sizes == [40, 40, 20]
    assert len(set(seen)) == 100


def test_a_batch_is_no_larger_than_it_may_be(one: RedisServer) -> None:
    Stream(one).add(entry("s1", BASE_S + second, channels=50) for second in range(100))
    size = len(telemetry.encode(entry("s1", BASE_S + 99, channels=50)))
    asked = options(one, maxBytesPerBatch=str(20 * size))
    planning = Planning(asked)
    end = planning.next({}, 10_000)
    assert 15 <= len(seconds_of(planning, asked, {}, end)) <= 20
    assert len(seconds_of(planning, asked, {}, planning.next({}))) == 100  # all that there is was asked for


def test_the_ring_is_read_when_an_offset_is_made() -> None:
    with ClusterThread(servers=1) as cluster:
        asked = read_options({"stateDir": cluster.call(root_of)})
        planning = Planning(asked)
        assert set(planning.first()) == {"s1"}
        cluster.call(add_server)
        assert set(planning.next({})) == {"s1", "s2"}


async def root_of(cluster: LocalCluster) -> str:
    return str(cluster.directory.root)


async def add_server(cluster: LocalCluster) -> None:
    await cluster.add_server()
    await cluster.wait_until_ready()
    await asyncio.sleep(2.0)  # its first record


@pytest.mark.parametrize("parts", [1, 3, 7])
def test_more_parts_read_the_same(one: RedisServer, parts: int) -> None:
    asked = options(one, partitionsPerServer=str(parts))
    planning = Planning(asked)
    Stream(one).add(entry("s1", BASE_S + second) for second in range(100))
    end = planning.next({})
    found = planning.parts({}, end)
    assert len(found) == parts
    assert [second for _, second in seconds_of(planning, asked, {}, end)] == [BASE_S + n for n in range(100)]


def test_a_server_that_joins_is_read_from_its_oldest_and_one_that_leaves_keeps_its_place(
    one: RedisServer, two: RedisServer
) -> None:
    Stream(one).add([entry("s1", BASE_S)])
    Stream(two).add([entry("s2", BASE_S)])
    alone, both = options(one), options(one, two)
    first = Planning(alone).next({})
    joined = Planning(both).next(first)
    assert seconds_of(Planning(both), both, first, joined) == [("s2", BASE_S)]
    left = Planning(alone).next(joined)
    assert left == joined
    assert Planning(both).next(left) == joined


def test_latest_begins_behind_what_is_there(one: RedisServer) -> None:
    Stream(one).add([entry("s1", BASE_S)])
    asked = options(one, startingOffsets="latest")
    planning = Planning(asked)
    start = planning.first()
    Stream(one).add([entry("s1", BASE_S + 1)])
    assert seconds_of(planning, asked, start, planning.next(start)) == [("s1", BASE_S + 1)]


def test_an_offset_can_be_given(one: RedisServer) -> None:
    Stream(one).add(entry("s1", BASE_S + second) for second in range(10))
    given = {"s1": {"telemetry": f"{(BASE_S + 5) * 1000}-0"}}
    asked = options(one, startingOffsets=json.dumps(given), failOnDataLoss="false")
    planning = Planning(asked)
    start = planning.first()
    found = [second - BASE_S for _, second in seconds_of(planning, asked, start, planning.next(start))]
    assert found == [4, 5, 6, 7, 8, 9]  # the record of a second comes after its end


def test_a_trimmed_stream_is_an_error_that_says_how_much_is_lost(one: RedisServer) -> None:
    stream = Stream(one)
    stream.add(entry("s1", BASE_S + second) for second in range(10))
    planning = Planning(options(one))
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
    planning = Planning(asked)
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
    planning = Planning(asked)
    start = planning.next({}, 4)
    end = planning.next(start)
    parts = planning.parts(start, end)
    stream.trim(3)
    with pytest.raises(TrimmedError, match="3 entries were dropped"):
        table_of(parts, asked.kind)


def test_a_server_that_lost_its_data_is_seen(one: RedisServer) -> None:
    stream = Stream(one)
    stream.add(entry("s1", BASE_S + second) for second in range(10))
    start = Planning(options(one)).next({})
    stream.clear()
    stream.add([entry("s1", BASE_S + 20)])
    with pytest.raises(TrimmedError, match="began anew"):
        Planning(options(one)).next(start)
    asked = options(one, failOnDataLoss="false")
    end = Planning(asked).next(start)
    assert seconds_of(Planning(asked), asked, start, end) == [("s1", BASE_S + 20)]
    assert Planning(asked).next(end) == end


def test_a_record_that_its_server_does_not_know_any_more_is_told(
    one: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    Recording(one, b"orders").write(*range(1, 11))
    Recording(one, b"quiet").write(1)
    asked = options(one, kind="channel")
    behind = read_offset(write_offset(Planning(asked).next({}, 4)))
    covered = Planning(asked).next(behind)
    Stream(one).clear()
    with pytest.raises(TrimmedError, match=r"b3JkZXJz of s1 are not there any more.* at least 7 entries of them"):
        Planning(asked).next(behind)
    lenient = Planning(options(one, kind="channel", failOnDataLoss="false"))
    after = lenient.next(behind)
    assert lenient.next(after) == after
    assert caplog.text.count("entries are lost") == 1
    old = {"s1": {**write_offset(behind)["s1"], "~behind": 7}}
    with pytest.raises(TrimmedError, match="at least 7 entries"):  # an offset from before: nobody noted which stream
        Planning(asked).next(read_offset(old))
    caplog.clear()
    planning = Planning(asked)
    assert planning.next(covered) == covered
    assert planning.next(covered) == covered
    assert caplog.text.count("a stream that was read is not there any more") == 2  # each once


def test_a_record_that_was_read_to_its_end_is_not_lost_though_another_is_behind(one: RedisServer) -> None:
    Recording(one, b"orders").write(*range(1, 11))
    Recording(one, b"quiet").write(1)
    asked = options(one, kind="channel")
    start = Planning(asked).next({}, 4)
    Stream(one).ask("SREM", INDEX_KEY, b"quiet")
    assert Planning(asked).next(start)["s1"].behind == 0


def test_a_server_that_does_not_answer_is_warned_of_once_and_read_later(
    one: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    Stream(one).add([entry("s1", BASE_S)])
    asked = read_options({"servers": f"s1={one.host}:{one.port},gone={one.host}:{free_port()}"})
    planning = Planning(asked)
    end = planning.next({})
    assert planning.next(end) == end
    assert set(end) == {"s1"}
    assert caplog.text.count("not read until it answers") == 1


def test_a_user_without_the_rights_is_told_which_role_has_them() -> None:
    with RedisServer(users=["narrow on >pass ~* &* +hello +ping"]) as server:
        asked = options(server, user="narrow", password="pass")
        with pytest.raises(PipelineError, match=r"s1 .* refused XINFO: .*log in as the role reader or pipeline"):
            Planning(asked).first()


def test_no_server_at_all_is_an_error(one: RedisServer) -> None:
    with pytest.raises(ConnectError, match="no server of gone answers"):
        Planning(read_options({"servers": f"gone={one.host}:{free_port()}"})).first()


def test_a_planned_part_whose_server_is_away_is_an_error_and_never_a_loss(quick: None) -> None:
    with RedisServer() as server:
        Stream(server).add([entry("s1", BASE_S)])
        strict, lenient = options(server), options(server, failOnDataLoss="false")
        planning = Planning(strict)
        end = planning.next({})
        parts = planning.parts({}, end)
        forgiving = Planning(lenient).parts({}, end)
    for planned in (parts, forgiving):
        with pytest.raises(ConnectError, match="s1 cannot be read now, and nothing of it was skipped") as raised:
            table_of(planned, strict.kind)
        assert "checkpoint" not in str(raised.value)
    with pytest.raises(ConnectError, match="s1 cannot be read now"):
        Planning(lenient).parts({}, end)


@pytest.mark.parametrize(("parts", "fail"), [(1, "true"), (3, "true"), (1, "false")])
def test_who_begins_with_the_oldest_of_a_full_stream_begins_with_what_is_there_when_it_is_read(
    one: RedisServer, caplog: pytest.LogCaptureFixture, parts: int, fail: str
) -> None:
    stream, asked = Stream(one), options(one, partitionsPerServer=str(parts), failOnDataLoss=fail)
    stream.add(entry("s1", BASE_S + second) for second in range(600))
    planning = Planning(asked)
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
    assert "a stream begins later" in caplog.text
    assert "lost" not in caplog.text
    stream.trim(2)
    with pytest.raises(TrimmedError, match="3 entries were dropped"):  # from where it was read on it is a loss
        Planning(options(one)).next(end)


def test_a_stream_that_a_small_first_batch_left_out_begins_with_what_is_there(
    one: RedisServer, two: RedisServer
) -> None:
    Stream(one).add(entry("s1", BASE_S + second) for second in range(100))
    Stream(two).add(entry("s2", BASE_S + second) for second in range(80, 100))
    asked = options(one, two)
    planning = Planning(asked)
    start = planning.first()
    early = planning.next(start, 20)
    Stream(two).trim(15)
    later = planning.next(early)
    assert [second - BASE_S for host, second in seconds_of(planning, asked, start, early) if host == "s2"] == []
    found = [second - BASE_S for host, second in seconds_of(planning, asked, early, later) if host == "s2"]
    assert found == [*range(85, 100)]


def test_what_comes_into_an_empty_stream_and_is_dropped_unread_is_lost(one: RedisServer) -> None:
    planning = Planning(options(one))
    start = read_offset(write_offset(planning.first()))
    Stream(one).add(entry("s1", BASE_S + second) for second in range(10))
    Stream(one).trim(3)
    with pytest.raises(TrimmedError, match="7 entries were dropped"):
        planning.next(start)


def test_a_batch_that_finds_nothing_has_no_rows(one: RedisServer) -> None:
    reader = BatchReader(options(one))
    assert reader.partitions() == []
    assert list(reader.read(InputPartition(None))) == []  # what Spark makes of that


@pytest.mark.parametrize("parts", [1, 2])
def test_a_stream_that_is_deleted_before_the_first_batch_is_read_is_seen(one: RedisServer, parts: int) -> None:
    stream, asked = Stream(one), options(one, partitionsPerServer=str(parts))
    stream.add(entry("s1", BASE_S + second) for second in range(10))
    planning = Planning(asked)
    start = planning.first()
    end = planning.next(start)
    stream.clear()
    with pytest.raises(TrimmedError, match="began anew"):
        seconds_of(planning, asked, start, end)
    stream.add(entry("s1", BASE_S + second) for second in range(20, 23))
    with pytest.raises(TrimmedError, match="began anew"):
        seconds_of(planning, asked, start, end)


def test_a_batch_may_be_asked_to_end_later_than_there_is_anything(one: RedisServer) -> None:
    Stream(one).add(entry("s1", BASE_S + second) for second in range(10))
    beyond = json.dumps({"s1": {"telemetry": f"{(BASE_S + 99) * 1000}-0"}})
    asked = options(one, endingOffsets=beyond)
    parts = [cast(PartOfSource, part).part for part in BatchReader(asked).partitions()]
    assert table_of(parts, asked.kind).num_rows == 10


def test_of_a_new_server_nothing_is_missed_but_what_is_dropped_after_it_was_read(one: RedisServer) -> None:
    stream, asked = Stream(one), options(one)
    stream.add(entry("s1", BASE_S + second) for second in range(10))
    stream.trim(6)
    planning = Planning(asked)
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
    planning = Planning(asked)
    start = planning.next({}, 1)
    first, *_ = planning.parts(start, planning.next(start))
    batches = reading.read_part(first)
    assert next(batches).num_rows == 64
    stream.trim(10)
    with pytest.raises(TrimmedError, match="dropped before they were read"):
        list(batches)


@pytest.mark.parametrize("parts", [1, 2])
def test_what_was_read_may_be_dropped_while_the_rest_is_read(one: RedisServer, parts: int) -> None:
    stream, asked = Stream(one), options(one, partitionsPerServer=str(parts))
    stream.add(entry("s1", BASE_S + second) for second in range(400))
    planning = Planning(asked)
    first, *_ = planning.parts({}, planning.next({}))
    batches = reading.read_part(first)
    assert next(batches).num_rows == 64
    stream.trim(400 - 50)
    assert 64 + sum(batch.num_rows for batch in batches) == 400 // parts


def test_reading_goes_on_where_it_was_when_a_connection_broke(one: RedisServer, quick: None) -> None:
    asked = options(one)
    Stream(one).add(entry("s1", BASE_S + second) for second in range(300))
    planning = Planning(asked)
    (part,) = planning.parts({}, planning.next({}))
    seconds: list[int] = []
    for batch in reading.read_part(part):
        seconds += batch["second"].to_pylist()
        Stream(one).ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    assert seconds == [BASE_S + second for second in range(300)]


@pytest.mark.parametrize("name", ["nth_id", "entry_bytes"])
def test_a_server_that_dies_while_a_batch_is_planned_keeps_its_place(
    one: RedisServer, two: RedisServer, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    Stream(one).add(entry("s1", BASE_S + second) for second in range(90))
    Stream(two).add(entry("s2", BASE_S + second) for second in range(90))
    planning = Planning(options(one, two))
    start = planning.first()
    asked = getattr(ServerStreams, name)

    def die(self: ServerStreams, *args: Any) -> Any:
        if self.server.id == "s2":
            raise ConnectError("gone")
        return asked(self, *args)

    monkeypatch.setattr(ServerStreams, name, die)
    end = planning.next(start, 20)
    assert end["s2"] == start["s2"]
    assert end["s1"] != start["s1"]
    monkeypatch.undo()
    assert planning.next(end, 20)["s2"] != start["s2"]


def test_a_server_that_was_silent_when_a_query_began_with_latest_is_read_from_where_it_answers(
    one: RedisServer, two: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    Stream(one).add([entry("s1", BASE_S)])
    Stream(two).add([entry("s2", BASE_S)])
    asked = options(one, two, startingOffsets="latest")
    planning = Planning(asked)
    look = ServerStreams.ahead_ms

    def silent(self: ServerStreams) -> int:
        if self.server.id == "s2":
            raise ConnectError("gone")
        return look(self)

    monkeypatch.setattr(ServerStreams, "ahead_ms", silent)
    start = read_offset(write_offset(planning.first()))
    assert planning.next(start) == start
    monkeypatch.undo()
    there = planning.next(start)
    assert seconds_of(planning, asked, start, there) == []
    Stream(two).add([entry("s2", BASE_S + 1)])
    assert seconds_of(planning, asked, there, planning.next(there)) == [("s2", BASE_S + 1)]


def test_a_server_that_left_with_entries_unread_is_told(
    one: RedisServer, two: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    Stream(two).add(entry("s2", BASE_S + second) for second in range(10))
    both = options(one, two)
    start = read_offset(write_offset(Planning(both).next({}, 4)))
    with pytest.raises(TrimmedError, match="s2 has left the ring and cannot be asked: at least 6 entries of it"):
        Planning(options(one)).next(start)
    lenient = Planning(options(one, failOnDataLoss="false"))
    end = lenient.next(start)
    assert lenient.next(end) == end
    assert caplog.text.count("entries are lost") == 1
    with pytest.raises(TrimmedError, match="s2 has left the ring, and 4 entries of it that were planned"):
        Planning(options(one)).parts({}, start)


def test_a_server_that_left_is_read_to_its_end_while_it_answers(one: RedisServer, two: RedisServer) -> None:
    Stream(two).add(entry("s2", BASE_S + second) for second in range(10))
    asked = options(one, two)
    rings = [options(one, two).cluster.listed]
    planning = Planning(replace(asked, cluster=cast(Cluster, Rings(rings))))
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


def test_a_server_that_died_and_then_left_is_told_though_nobody_knows_what_it_held(
    one: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    with RedisServer() as two:
        Stream(two).add([entry("s2", BASE_S)])
        rings = [options(one, two).cluster.listed]
        planning = Planning(replace(options(one), cluster=cast(Cluster, Rings(rings))))
        start = planning.next({})
    assert planning.next(start) == start
    rings.append(options(one).cluster.listed)
    assert planning.next(start) == start
    assert planning.next(start) == start
    assert caplog.text.count("nobody knows what of it is lost") == 1


def test_a_server_that_still_reads_its_data_is_one_that_does_not_answer_yet(
    one: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loading(*_: object) -> None:
        raise hiredis.ReplyError("LOADING Redis is loading the dataset in memory")

    with ServerStreams(ServerAddress("s1", one.host, one.port), Login(None, None)) as streams:
        monkeypatch.setattr(Asking, "ask", loading)
        with pytest.raises(ConnectError, match="cannot answer yet: LOADING"):
            streams.info(b"x")


@pytest.mark.parametrize(("there_s", "ahead_ms"), [(0.04, 0), (-0.005, 0), (0.54, 515), (-0.86, -885)])
def test_a_clock_is_ahead_or_behind_only_if_the_time_of_the_question_tells(
    one: RedisServer, monkeypatch: pytest.MonkeyPatch, there_s: float, ahead_ms: int
) -> None:
    ours = iter([1_000_000.0, 1_000_000.05])
    answer = f"# Server\r\nserver_time_usec:{round((1_000_000 + there_s) * 1e6)}\r\n".encode()
    with ServerStreams(ServerAddress("s1", one.host, one.port), Login(None, None)) as streams:
        monkeypatch.setattr(streams, "ask", lambda *_: answer)
        monkeypatch.setattr("shoal.pipeline.source.streams.time", SimpleNamespace(time=lambda: next(ours)))
        assert streams.ahead_ms() == ahead_ms


class Rings:
    """A cluster whose ring changes: the last of some holds."""

    login = Login(None, None)
    name = "rings"

    def __init__(self, rings: list[tuple[ServerAddress, ...]]) -> None:
        self._rings = rings

    def servers(self) -> tuple[ServerAddress, ...]:
        return self._rings[-1]


def test_telemetry_of_all_servers_is_read_at_the_same_pace_so_that_none_comes_late(
    one: RedisServer, two: RedisServer
) -> None:
    Stream(one).add(entry("s1", BASE_S + second) for second in range(200))
    Stream(two).add(entry("s2", BASE_S + second) for second in range(180, 200))
    asked = options(one, two)
    planning = Planning(asked)
    start, state, sizes = planning.first(), FoldState(), []
    while (end := planning.next(start, 100)) != start:
        table = table_of(planning.parts(start, end), asked.kind)
        sizes.append(table.num_rows)
        _, state = fold_in_order(state, table, BalanceSettings())
        start = end
    assert sum(sizes) == 220
    assert max(sizes) <= 100
    assert state.counters.late == 0


def test_a_batch_that_ends_before_it_starts_is_refused(one: RedisServer) -> None:
    Stream(one).add(entry("s1", BASE_S + second) for second in range(10))
    late, early = ({"s1": {"telemetry": f"{(BASE_S + second) * 1000}-0"}} for second in (8, 3))
    beyond = {"s1": {"telemetry": f"{(BASE_S + 99) * 1000}-0"}}
    for given in ({"startingOffsets": late, "endingOffsets": early}, {"startingOffsets": beyond}):
        texts = {name: json.dumps(offset) for name, offset in given.items()}
        for fail in ("true", "false"):
            with pytest.raises(ConfigError, match=r"the batch starts at .* after its end"):
                BatchReader(options(one, failOnDataLoss=fail, **texts)).partitions()


def test_a_batch_without_one_of_its_servers_is_an_error_that_names_it(one: RedisServer) -> None:
    Stream(one).add([entry("s1", BASE_S)])
    given = {"servers": f"s1={one.host}:{one.port},gone={one.host}:{free_port()}"}
    with pytest.raises(PipelineError, match="gone does not answer"):
        BatchReader(read_options(given)).partitions()
    (part,) = BatchReader(read_options({**given, "failOnDataLoss": "false"})).partitions()
    assert cast(PartOfSource, part).part.server.id == "s1"


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"kind": "quues"}, "no kind 'quues'"),
        ({"servers": "somewhere"}, "no host or no port"),
        ({"servers": "a:1,a:1"}, "one of them twice"),
        ({"servers": "a:1", "coordinator": "shoal://b:2"}, "both"),
        ({"servers": "a:1", "startingOffsets": "middle"}, "startingOffsets is 'middle'"),
        ({"servers": "a:1", "endingOffsets": "earliest"}, "endingOffsets is earliest"),
        ({"servers": "a:1", "failOnDataLoss": "maybe"}, "give true or false"),
        ({"servers": "a:1", "maxRowsPerBatch": "-1"}, "maxRowsPerBatch is '-1'"),
        ({"servers": "a:1", "partitionsPerServer": "0"}, "partitionsPerServer is '0'"),
    ],
)
def test_options_that_cannot_be_are_refused_with_what_to_do(given: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        read_options(given)
