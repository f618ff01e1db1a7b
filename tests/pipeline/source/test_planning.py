"""Planning and reading against real servers, without Spark."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import Any, cast

import hiredis
import pytest
from pyspark.sql.datasource import InputPartition
from tests.pipeline.source.streaming import BASE_S, Stream, empty, entry, one, options, quick, seconds_of, table_of, two
from tests.support.cluster_thread import ClusterThread
from tests.support.redis_server import RedisServer, free_port

from shoal.balance.settings import BalanceSettings
from shoal.cluster.local import LocalCluster
from shoal.errors import ConfigError, ConnectError, PipelineError
from shoal.history.server_reader import Login
from shoal.load.fold_state import FoldState
from shoal.load.ordered_fold import fold_in_order
from shoal.load.record import encode
from shoal.load_kinds import KINDS
from shoal.pipeline.source.datasource import BatchReader, PartOfSource
from shoal.pipeline.source.offset_planner import OffsetPlanner
from shoal.pipeline.source.offsets import ServerOffset, read_offset, write_offset
from shoal.pipeline.source.options import read_options
from shoal.pipeline.source.parts import read_part
from shoal.pipeline.source.streams import ServerStreams
from shoal.plan.ring import ServerAddress
from shoal.wire.blocking_connection import BlockingConnection

__all__ = ["empty", "one", "quick", "two"]

pytestmark = pytest.mark.spark
WAIT_S = 60.0


def test_all_is_read_once_from_both_servers_and_the_same_again(one: RedisServer, two: RedisServer) -> None:
    asked = options(one, two)
    planning = OffsetPlanner(asked)
    start = planning.first()
    Stream(one).add(entry("s1", BASE_S + second) for second in range(100))
    Stream(two).add(entry("s2", BASE_S + second) for second in range(50))
    end = planning.next(start)
    expected = [("s1", BASE_S + n) for n in range(100)] + [("s2", BASE_S + n) for n in range(50)]
    assert seconds_of(planning, asked, start, end) == expected
    assert seconds_of(OffsetPlanner(asked), asked, start, end) == expected
    assert planning.next(end) == end
    assert planning.parts(end, end) == []
    assert write_offset(read_offset(json.loads(json.dumps(write_offset(end))))) == write_offset(end)


def test_rows_say_where_they_came_from_and_when(one: RedisServer) -> None:
    asked = options(one)
    planning = OffsetPlanner(asked)
    Stream(one).add([entry("s1", BASE_S)])
    end = planning.next({})
    (row,) = table_of(planning.parts({}, end), asked.kind).to_pylist()
    assert (row["server"], row["entry"]) == ("s1", f"{(BASE_S + 1) * 1000 + 50}-0")
    assert row["arrived_s"] == pytest.approx(BASE_S + 1.05 - end["s1"].ahead_ms / 1000)


def test_a_batch_takes_no_more_than_it_may_and_each_server_its_part(one: RedisServer, two: RedisServer) -> None:
    asked = options(one, two)
    planning = OffsetPlanner(asked)
    Stream(one).add(entry("s1", BASE_S + second) for second in range(90))
    Stream(two).add(entry("s2", BASE_S + second) for second in range(10))
    start: dict[str, ServerOffset] = {}
    sizes, seen = [], []
    while (end := planning.next(start, 40)) != start:
        found = seconds_of(planning, asked, start, end)
        sizes.append(len(found))
        seen += found
        start = end
    assert max(sizes) <= 40
    assert len(sizes) <= 4
    assert len(seen) == len(set(seen)) == 100


def test_a_batch_is_no_larger_than_it_may_be(one: RedisServer) -> None:
    Stream(one).add(entry("s1", BASE_S + second, channels=50) for second in range(100))
    size = len(encode(entry("s1", BASE_S + 99, channels=50)))
    asked = options(one, maxBytesPerBatch=str(20 * size))
    planning = OffsetPlanner(asked)
    end = planning.next({}, 10_000)
    assert 15 <= len(seconds_of(planning, asked, {}, end)) <= 20
    assert len(seconds_of(planning, asked, {}, planning.next({}))) == 100  # all that there is was asked for


def test_the_ring_is_read_when_an_offset_is_made() -> None:
    with ClusterThread(servers=1) as cluster:
        asked = read_options({"stateDir": cluster.call(root_of)})
        planning = OffsetPlanner(asked)
        assert set(planning.first()) == {"s1"}
        cluster.call(add_server)
        give_up = time.monotonic() + WAIT_S
        while "s2" not in planning.next({}):  # until its agent has written its first record
            assert time.monotonic() < give_up
            time.sleep(0.05)
        assert set(planning.next({})) == {"s1", "s2"}


async def root_of(cluster: LocalCluster) -> str:
    return str(cluster.directory.root)


async def add_server(cluster: LocalCluster) -> None:
    await cluster.add_server()
    await cluster.wait_until_ready()


@pytest.mark.parametrize("parts", [1, 3, 7])
def test_more_parts_read_the_same(one: RedisServer, parts: int) -> None:
    asked = options(one, partitionsPerServer=str(parts))
    planning = OffsetPlanner(asked)
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
    first = OffsetPlanner(alone).next({})
    joined = OffsetPlanner(both).next(first)
    assert seconds_of(OffsetPlanner(both), both, first, joined) == [("s2", BASE_S)]
    left = OffsetPlanner(alone).next(joined)
    assert left == joined
    assert OffsetPlanner(both).next(left) == joined


def test_latest_begins_behind_what_is_there(one: RedisServer) -> None:
    Stream(one).add([entry("s1", BASE_S)])
    asked = options(one, startingOffsets="latest")
    planning = OffsetPlanner(asked)
    start = planning.first()
    Stream(one).add([entry("s1", BASE_S + 1)])
    assert seconds_of(planning, asked, start, planning.next(start)) == [("s1", BASE_S + 1)]


def test_an_offset_can_be_given(one: RedisServer) -> None:
    Stream(one).add(entry("s1", BASE_S + second) for second in range(10))
    given = {"s1": {"telemetry": f"{(BASE_S + 5) * 1000}-0"}}
    asked = options(one, startingOffsets=json.dumps(given), failOnDataLoss="false")
    planning = OffsetPlanner(asked)
    start = planning.first()
    found = [second - BASE_S for _, second in seconds_of(planning, asked, start, planning.next(start))]
    assert found == [4, 5, 6, 7, 8, 9]  # the record of a second comes after its end


def test_a_server_that_does_not_answer_is_warned_of_once_and_read_later(
    one: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    Stream(one).add([entry("s1", BASE_S)])
    asked = read_options({"servers": f"s1={one.host}:{one.port},gone={one.host}:{free_port()}"})
    planning = OffsetPlanner(asked)
    end = planning.next({})
    assert planning.next(end) == end
    assert set(end) == {"s1"}
    assert caplog.text.count("server does not answer; it is read when it does") == 1


def test_the_error_for_missing_rights_names_the_role() -> None:
    with RedisServer(users=["narrow on >pass ~* &* +hello +ping"]) as server:
        asked = options(server, user="narrow", password="pass")
        with pytest.raises(PipelineError, match=r"s1 .* refused XINFO: .*log in as the role reader or pipeline"):
            OffsetPlanner(asked).first()


def test_no_server_at_all_is_an_error(one: RedisServer) -> None:
    with pytest.raises(ConnectError, match="no server of gone answers"):
        OffsetPlanner(read_options({"servers": f"gone={one.host}:{free_port()}"})).first()


def test_a_planned_part_whose_server_is_away_is_an_error_and_never_a_loss(quick: None) -> None:
    with RedisServer() as server:
        Stream(server).add([entry("s1", BASE_S)])
        strict, lenient = options(server), options(server, failOnDataLoss="false")
        planning = OffsetPlanner(strict)
        end = planning.next({})
        parts = planning.parts({}, end)
        forgiving = OffsetPlanner(lenient).parts({}, end)
    for planned in (parts, forgiving):
        with pytest.raises(ConnectError, match="s1 cannot be read now; none of its entries were skipped") as raised:
            table_of(planned, strict.kind)
        assert "checkpoint" not in str(raised.value)
    with pytest.raises(ConnectError, match="s1 cannot be read now"):
        OffsetPlanner(lenient).parts({}, end)


def test_a_batch_that_finds_nothing_has_no_rows(one: RedisServer) -> None:
    reader = BatchReader(options(one))
    assert reader.partitions() == []
    assert list(reader.read(InputPartition(None))) == []  # what Spark makes of that


def test_a_batch_may_be_asked_to_end_later_than_there_is_anything(one: RedisServer) -> None:
    Stream(one).add(entry("s1", BASE_S + second) for second in range(10))
    beyond = json.dumps({"s1": {"telemetry": f"{(BASE_S + 99) * 1000}-0"}})
    asked = options(one, endingOffsets=beyond)
    parts = [cast(PartOfSource, part).part for part in BatchReader(asked).partitions()]
    assert table_of(parts, asked.kind).num_rows == 10


def test_reading_goes_on_where_it_was_when_a_connection_broke(one: RedisServer, quick: None) -> None:
    asked = options(one)
    Stream(one).add(entry("s1", BASE_S + second) for second in range(300))
    planning = OffsetPlanner(asked)
    (part,) = planning.parts({}, planning.next({}))
    seconds: list[int] = []
    for batch in read_part(part):
        seconds += batch["second"].to_pylist()
        Stream(one).ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    assert seconds == [BASE_S + second for second in range(300)]


def test_a_server_that_dies_while_a_batch_is_planned_keeps_its_place(
    one: RedisServer, two: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    Stream(one).add(entry("s1", BASE_S + second) for second in range(90))
    Stream(two).add(entry("s2", BASE_S + second) for second in range(90))
    planning = OffsetPlanner(options(one, two))
    start = planning.first()
    asked = ServerStreams.last_entries

    def die(self: ServerStreams, *args: Any) -> Any:
        if self.server.id == "s2":
            raise ConnectError("gone")
        return asked(self, *args)

    monkeypatch.setattr(ServerStreams, "last_entries", die)
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
    planning = OffsetPlanner(asked)
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


def test_a_server_that_still_reads_its_data_is_one_that_does_not_answer_yet(
    one: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loading(*_: object) -> None:
        raise hiredis.ReplyError("LOADING Redis is loading the dataset in memory")

    with ServerStreams(ServerAddress("s1", one.host, one.port), Login(None, None)) as streams:
        monkeypatch.setattr(BlockingConnection, "ask", loading)
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


def test_telemetry_of_all_servers_is_read_at_the_same_pace_so_that_none_comes_late(
    one: RedisServer, two: RedisServer
) -> None:
    Stream(one).add(entry("s1", BASE_S + second) for second in range(200))
    Stream(two).add(entry("s2", BASE_S + second) for second in range(180, 200))
    asked = options(one, two)
    planning = OffsetPlanner(asked)
    start, state, sizes = planning.first(), FoldState(), []
    while (end := planning.next(start, 100)) != start:
        table = table_of(planning.parts(start, end), asked.kind)
        sizes.append(table.num_rows)
        _, state = fold_in_order(state, table, BalanceSettings(), KINDS)
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
