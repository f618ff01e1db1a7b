"""The feed of load windows from a job to the balancer, on a real server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

import pytest
from tests.support.agent_site import until
from tests.support.connections import ask
from tests.support.redis_server import RedisServer

from shoal.coordination.link import Address
from shoal.leader.window_reader import WindowReader
from shoal.limits import Limits
from shoal.load import window_feed
from shoal.load.window import LoadWindow, window_schema
from shoal.load.window_feed import ALIVE_KEY, FEED_KEY
from shoal.load_kinds import KINDS
from shoal.pipeline import load_service
from shoal.pipeline.load_service import WindowSender
from shoal.runtime import PRODUCTION


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def address(server: RedisServer) -> Address:
    ask(server.host, server.port, None, None, "FLUSHALL")
    return Address(server.host, server.port, None, None)


@contextlib.asynccontextmanager
async def reading(address: Address) -> AsyncIterator[WindowReader]:
    reader = WindowReader(
        address, Limits(reconnect_delay_s_min=0.01, reconnect_delay_s_max=0.05), asyncio.Event(), PRODUCTION
    )
    task = asyncio.create_task(reader.run())
    try:
        await until(lambda: reader.alive is not None)
        yield reader
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def window(start_s: int) -> LoadWindow:
    return LoadWindow(start_s, start_s + 2, window_schema(KINDS).empty_table())


async def test_windows_arrive_in_order_and_the_end_of_the_job_is_noticed(address: Address) -> None:
    sender = WindowSender(address)
    await asyncio.to_thread(sender.take, 0, [window(0)])  # written before the reader starts: skipped
    async with reading(address) as reader:
        assert reader.alive is False
        await asyncio.to_thread(sender.heartbeat, "pid 1")
        await asyncio.to_thread(sender.take, 1, [window(2), window(4)])
        found: list[int] = []

        def take() -> bool:
            found.extend(each.start_s for each in reader.take())
            return len(found) == 2 and bool(reader.alive)

        await until(take)
        assert found == [2, 4]
        await asyncio.to_thread(sender.end)
        await until(lambda: reader.alive is False)


async def test_garbage_in_the_feed_is_logged_and_skipped(address: Address, caplog: pytest.LogCaptureFixture) -> None:
    async with reading(address) as reader:
        for fields in (("data", "garbage"), ("other", "x")):
            await asyncio.to_thread(ask, address.host, address.port, None, None, "XADD", FEED_KEY, "*", *fields)
        await asyncio.to_thread(WindowSender(address).take, 0, [window(2)])
        await until(lambda: len(reader._windows) == 1)
    assert caplog.text.count("unreadable load window from Spark dropped") == 2


def test_the_feed_is_bounded_and_the_heartbeat_expires(address: Address) -> None:
    sender = WindowSender(address)
    for number in range(3):
        sender.take(number, [window(number)] * 100)
    assert ask(address.host, address.port, None, None, "XLEN", FEED_KEY) < 300
    sender.heartbeat("x")
    assert 0 < ask(address.host, address.port, None, None, "PTTL", ALIVE_KEY) <= window_feed.ALIVE_S * 1000


def test_a_window_that_is_too_large_is_logged_and_not_sent(
    address: Address, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_service, "WINDOW_BYTES_MAX", 10)
    WindowSender(address).take(0, [window(0)])
    assert ask(address.host, address.port, None, None, "EXISTS", FEED_KEY) == 0
    assert "load windows not sent to the balancer" in caplog.text


def test_a_coordinator_that_does_not_answer_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    sender = WindowSender(Address("127.0.0.1", 1, None, None))
    sender.heartbeat("x")
    sender.heartbeat("x")
    assert caplog.text.count("load windows not sent to the balancer") == 1
