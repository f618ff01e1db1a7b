"""Shared by tests: connections to real servers, a receiver that keeps everything, both event loops."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine
from random import SystemRandom
from typing import Any

import pytest
import uvloop
from tests.support.redis_server import RedisServer

from shoal.coordination.link import parse_address
from shoal.coordination.redis import RedisCoordinator
from shoal.runtime import PRODUCTION
from shoal.wire import blocking_connection
from shoal.wire.connection import Connection, Receiver
from shoal.wire.dial import tcp

ask = functools.partial(blocking_connection.ask, dial=tcp)


async def connect_coordinator(address: str, **settings: Any) -> RedisCoordinator:
    """A client of a coordinator on a real server."""
    dial = PRODUCTION.with_tls(parse_address(address, None, None).tls).coordinator_dial
    return await RedisCoordinator.connect(address, dial=dial, random=SystemRandom(), **settings)


def on_both_loops(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on asyncio's event loop and on uvloop: their transports differ in when they call what."""

    def run(loop_factory: Callable[[], asyncio.AbstractEventLoop], **arguments: Any) -> None:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(test(**arguments))

    own = inspect.signature(test).parameters.values()
    factory = inspect.Parameter("loop_factory", inspect.Parameter.KEYWORD_ONLY)
    run.__signature__ = inspect.Signature([*own, factory])  # type: ignore[attr-defined]
    run.__name__, run.__doc__ = test.__name__, test.__doc__
    loops = [asyncio.new_event_loop, uvloop.new_event_loop]
    both: Callable[..., None] = pytest.mark.parametrize("loop_factory", loops, ids=["asyncio", "uvloop"])(run)
    return both


class Collector:
    """A receiver that keeps everything, and a way to wait for it."""

    def __init__(self) -> None:
        self.frames: list[Any] = []
        self.losses: list[Exception | None] = []
        self.can_sends = 0
        self._news = asyncio.Event()

    def received(self, frames: list[Any]) -> None:
        self.frames += frames
        self._news.set()

    def lost(self, error: Exception | None) -> None:
        self.losses.append(error)
        self._news.set()

    def can_send(self) -> None:
        self.can_sends += 1
        self._news.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                self._news.clear()
                await self._news.wait()

    async def until_frames(self, count: int) -> None:
        await self.until(lambda: len(self.frames) >= count)

    async def until_lost(self) -> Exception | None:
        """The one loss, after a moment in which a second one would have come."""
        await self.until(lambda: bool(self.losses))
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(self.losses) == 1
        return self.losses[0]


def connection_to(server: RedisServer, receiver: Receiver | None, **settings: Any) -> Connection:
    port = settings.pop("port", server.port)
    login: dict[str, Any] = {
        "username": "full",
        "password": "secret",
        "name": "test",
        "dial": tcp,
        "identify": receiver is not None,
    } | settings
    return Connection(server.host, port, receiver=receiver, **login)


@contextlib.asynccontextmanager
async def opened(server: RedisServer, **settings: Any) -> AsyncIterator[tuple[Connection, Collector]]:
    """An open connection with a collector; the connection is gone after the block."""
    collector = Collector()
    connection = connection_to(server, collector, **settings)
    await connection.open()
    try:
        yield connection, collector
    finally:
        connection.abort()
        await collector.until_lost()


@contextlib.asynccontextmanager
async def peer(
    host: str, talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]
) -> AsyncIterator[int]:
    """The port of a peer that talks as told on its first connection, then waits for its end."""
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await talk(reader, writer)
            await reader.read()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        ended.set()

    async with await asyncio.start_server(serve, host, 0) as listener:
        yield listener.sockets[0].getsockname()[1]
        await ended.wait()
