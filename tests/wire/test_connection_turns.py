"""What a Connection does within one turn of the event loop: how much it reads, and when it writes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.connections import on_both_loops, opened
from tests.support.redis_server import RedisServer

PASSWORD = "open sesame"
READ_BYTES_MAX = 1 << 20
"""More than any event loop reads at a time, and much less than what waits in the tests."""


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer(password=PASSWORD, users=("full on >secret ~* &* +@all",)) as server:
        yield server


@on_both_loops
async def test_others_get_a_turn_while_much_is_read(server: RedisServer) -> None:
    """An event loop that reads on while there is more would fill every inbox before its reader runs."""
    count, payload = 4000, b"x" * 1000
    async with opened(server) as (connection, collector), opened(server) as (publisher, confirmed):
        connection.send([(b"SUBSCRIBE", b"much")])
        await collector.until_frames(1)
        connection.pause()
        publisher.send([(b"PUBLISH", b"much", payload)] * count)
        await confirmed.until_frames(count)
        connection.resume()
        in_one_turn, before = 0, connection.statistics().bytes_in
        while len(collector.frames) <= count:
            await asyncio.sleep(0)
            after = connection.statistics().bytes_in
            in_one_turn, before = max(in_one_turn, after - before), after
        assert 0 < in_one_turn < READ_BYTES_MAX


@on_both_loops
async def test_resting_does_not_undo_a_pause(server: RedisServer) -> None:
    async with opened(server) as (connection, collector):
        keep = collector.received

        def keep_and_pause(frames: list[Any]) -> None:
            keep(frames)
            connection.pause()

        collector.received = keep_and_pause  # type: ignore[method-assign]
        connection.send([(b"PING", b"x" * (1 << 20))] * 8)
        await collector.until_frames(1)
        seen = connection.statistics().bytes_in
        for _ in range(100):
            await asyncio.sleep(0)
        assert connection.statistics().bytes_in == seen
        connection.resume()
        await collector.until_frames(2)


@on_both_loops
async def test_send_now_writes_at_once_and_behind_what_is_pending(server: RedisServer) -> None:
    async with opened(server) as (connection, collector):
        connection.send([(b"PING", b"1")])
        before = connection.statistics().bytes_out
        connection.send_now([(b"PING", b"2")])
        assert connection.statistics().bytes_out > before
        connection.send([(b"PING", b"3")])
        await collector.until_frames(3)
        assert collector.frames == [b"1", b"2", b"3"]
        assert connection.statistics().commands == 3
