"""Batches of recorded channels end at one time in all streams, so that a watermark takes no message for late."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, cast

import pytest
from tests.pipeline.source.streaming import empty, one, options, table_of, two, write_record
from tests.pipeline.source.test_losses import Rings
from tests.support.records import Recording
from tests.support.redis_server import RedisServer

from shoal.errors import ConnectError
from shoal.pipeline.source.cluster_address import SourceAddress
from shoal.pipeline.source.offset_planner import OffsetPlanner
from shoal.pipeline.source.offsets import ServerOffset, read_offset
from shoal.pipeline.source.options import SourceOptions
from shoal.pipeline.source.streams import ServerStreams

__all__ = ["empty", "one", "two"]

START_MS = 1_793_534_400_000


def every(step_ms: int, first_ms: int = 0, last_ms: int = 60_000) -> range:
    return range(START_MS + first_ms, START_MS + last_ms, step_ms)


def batches(planner: OffsetPlanner, asked: SourceOptions, rows_max: int) -> list[list[int]]:
    """When the entries of each batch were recorded, in milliseconds."""
    start: dict[str, ServerOffset] = planner.first()
    found = []
    while (end := planner.next(start, rows_max)) != start:
        table = table_of(planner.parts(start, end), asked.kind)
        found.append(sorted(int(at.timestamp() * 1000 + 0.5) for at in table["recorded_at"].to_pylist()))
        start = end
    return found


def check_aligned(found: list[list[int]], rows: int, rows_max: int) -> None:
    """Everything is read, and no batch has an entry that is older than one of an earlier batch."""
    assert sum(map(len, found)) == rows
    assert max(map(len, found)) <= rows_max
    newest = 0
    for batch in found:
        assert batch[0] >= newest
        newest = batch[-1]


@pytest.mark.parametrize("rows_max", [10_000, 5_000])
def test_a_slow_channel_does_not_run_ahead_of_a_busy_one(one: RedisServer, rows_max: int) -> None:
    write_record(one, b"slow", every(20))
    write_record(one, b"busy", every(2))
    asked = options(one, kind="channel")
    found = batches(OffsetPlanner(asked), asked, rows_max)
    check_aligned(found, 33_000, rows_max)
    assert all(len(batch) >= 0.9 * rows_max for batch in found[:-1])  # and batches are full


def test_a_channel_that_moved_is_read_at_the_same_pace(one: RedisServer, two: RedisServer) -> None:
    write_record(one, b"moved", every(5, 0, 30_000))
    write_record(two, b"moved", every(5, 30_000, 60_000))
    write_record(two, b"stays", every(50))
    asked = options(one, two, kind="channel")
    check_aligned(batches(OffsetPlanner(asked), asked, 1_000), 13_200, 1_000)


def test_servers_with_different_clocks_are_read_at_the_same_pace(
    one: RedisServer, two: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead_ms = {"s1": 0, "s2": 7_000}
    monkeypatch.setattr(ServerStreams, "ahead_ms", lambda self: ahead_ms[self.server.id])
    write_record(one, b"slow", every(20))
    write_record(two, b"busy", [at_ms + 7_000 for at_ms in every(2)])
    asked = options(one, two, kind="channel")
    planner = OffsetPlanner(asked)
    start, newest = planner.first(), 0.0
    while (end := planner.next(start, 5_000)) != start:
        table = table_of(planner.parts(start, end), asked.kind)
        rows = zip(table["server"].to_pylist(), table["recorded_at"].to_pylist(), strict=True)
        times = [at.timestamp() * 1000 - ahead_ms[server] for server, at in rows]
        assert min(times) >= newest
        start, newest = end, max(times)


def test_a_stream_that_joins_or_was_quiet_does_not_run_ahead(one: RedisServer, two: RedisServer) -> None:
    write_record(one, b"busy", every(2))
    asked = options(one, two, kind="channel")
    planner = OffsetPlanner(asked)
    start = planner.next(planner.first(), 10_000)
    write_record(two, b"joined", every(20, 30_000))
    end = planner.next(start, 10_000)
    table = table_of(planner.parts(start, end), asked.kind)
    by_channel: dict[str, list[float]] = {}
    for channel, at in zip(table["channel"].to_pylist(), table["recorded_at"].to_pylist(), strict=True):
        by_channel.setdefault(channel, []).append(at.timestamp())
    assert by_channel["joined"][-1] <= by_channel["busy"][-1] + 0.02


def test_more_entries_in_a_millisecond_than_a_batch_holds_are_read_all_the_same(one: RedisServer) -> None:
    write_record(one, b"burst", [START_MS] * 500)
    write_record(one, b"other", [START_MS] * 30 + [START_MS + 1] * 30)
    asked = options(one, kind="channel")
    check_aligned(batches(OffsetPlanner(asked), asked, 100), 560, 100)


def test_entries_without_usable_numbers_are_counted_by_their_ids(one: RedisServer) -> None:
    write_record(one, b"slow", every(200))
    recording = Recording(one, b"slow")
    recording.redis.xadd("__shoal:recorded:slow", {"x": "garbage"}, id=f"{START_MS + 60_000}-*")
    write_record(one, b"busy", every(20))
    asked = options(one, kind="channel")
    planner = OffsetPlanner(asked)
    found = batches(planner, asked, 500)
    check_aligned(found, 3_301, 500)


def test_an_offset_without_counts_gets_them_back_at_the_end_of_a_stream(one: RedisServer) -> None:
    write_record(one, b"orders", every(1, 0, 500))
    asked = options(one, kind="channel")
    planner = OffsetPlanner(asked)
    start = read_offset({"s1": {"orders": f"{START_MS + 489}-0"}})
    end = planner.next(start, 100)
    assert table_of(planner.parts(start, end), asked.kind).num_rows == 10
    assert end["s1"].streams["orders"].count == 500
    start = read_offset({"s1": {"orders": f"{START_MS + 99}-0"}})
    end = planner.next(start, 100)
    assert 90 <= table_of(planner.parts(start, end), asked.kind).num_rows <= 100


def test_what_is_recorded_while_servers_are_asked_waits_for_the_next_batch(
    one: RedisServer, two: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_record(one, b"first", [int(time.time() * 1000) - 10])
    write_record(two, b"second", [int(time.time() * 1000) - 10])
    asked = options(one, two, kind="channel")
    planner = OffsetPlanner(asked)
    start = planner.first()
    look = ServerStreams.infos

    def slow(self: ServerStreams, *args: Any) -> Any:
        if self.server.id == "s2":
            time.sleep(0.3)
            write_record(two, b"second", [int(time.time() * 1000) - 100])
        return look(self, *args)

    monkeypatch.setattr(ServerStreams, "infos", slow)
    end = planner.next(start)
    monkeypatch.undo()
    assert table_of(planner.parts(start, end), asked.kind).num_rows == 2
    assert table_of(planner.parts(end, planner.next(end)), asked.kind).num_rows == 1


def test_ids_of_a_clock_that_was_set_back_do_not_block_their_stream(one: RedisServer) -> None:
    future_ms = int(time.time() * 1000) + 3_600_000
    write_record(one, b"orders", [future_ms - 5, future_ms, future_ms, future_ms])
    asked = options(one, kind="channel")
    planner = OffsetPlanner(asked)
    assert [len(batch) for batch in batches(planner, asked, 0)] == [4]
    assert sum(len(batch) for batch in batches(planner, asked, 2)) == 4


class Silence:
    """A server that does not answer some of the questions for its streams."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, server: str, answers: Iterable[bool]) -> None:
        self.answers = iter(answers)
        ask = ServerStreams.infos

        def infos(streams: ServerStreams, *args: Any) -> Any:
            if streams.server.id == server and not next(self.answers, True):
                raise ConnectError("silent")
            return ask(streams, *args)

        monkeypatch.setattr(ServerStreams, "infos", infos)


def test_the_others_wait_for_a_server_that_does_not_answer_for_a_while(
    one: RedisServer, two: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_record(one, b"slow", every(20))
    write_record(two, b"busy", every(2))
    monkeypatch.setattr("shoal.pipeline.source.offset_planner.WAIT_PAUSE_S", 0.01)
    asked = options(one, two, kind="channel")
    planner = OffsetPlanner(asked)
    first = planner.next(planner.first(), 5_000)
    Silence(monkeypatch, "s2", [False, False, False])
    second = planner.next(first, 5_000)
    assert second["s1"] != first["s1"]
    assert second["s2"] != first["s2"]


@pytest.mark.parametrize("wait", ["0", "1"])
def test_the_others_go_on_when_they_have_waited_long_enough(
    one: RedisServer, two: RedisServer, monkeypatch: pytest.MonkeyPatch, wait: str
) -> None:
    write_record(one, b"slow", every(20))
    write_record(two, b"busy", every(2))
    asked = options(one, two, kind="channel", serverWait=wait)
    planner = OffsetPlanner(asked)
    first = planner.next(planner.first(), 5_000)
    Silence(monkeypatch, "s2", [False] * 1_000)
    began = time.monotonic()
    second = planner.next(first, 5_000)
    assert time.monotonic() - began >= float(wait) - 0.1
    assert second["s2"] == first["s2"]
    assert second["s1"] != first["s1"]
    began = time.monotonic()
    planner.next(second, 5_000)
    assert time.monotonic() - began < 0.9  # it is waited for once


def test_no_one_waits_for_a_server_that_has_left(
    one: RedisServer, two: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_record(one, b"slow", every(20))
    rings: list[Any] = [options(one, two).cluster.listed]
    asked = replace(options(one, two, kind="channel"), cluster=cast(SourceAddress, Rings(rings)))
    planner = OffsetPlanner(asked)
    first = planner.next(planner.first(), 100)
    Silence(monkeypatch, "s2", [False] * 1_000)
    rings.append(options(one).cluster.listed)
    began = time.monotonic()
    assert planner.next(first, 100)["s1"] != first["s1"]
    assert time.monotonic() - began < 5.0


@pytest.mark.parametrize(("kind", "wait_s"), [("channel", 10), ("telemetry", 0)])
def test_how_long_a_server_is_waited_for_by_default(one: RedisServer, kind: str, wait_s: int) -> None:
    assert options(one, kind=kind).server_wait_s == wait_s
