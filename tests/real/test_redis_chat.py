"""Programs written for redis-py that deliver everything on a cluster: a FastAPI chat with two workers, and the package
`broadcaster`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import pytest
from broadcaster import Broadcast
from broadcaster._backends import redis as broadcaster_redis
from websockets.asyncio.client import ClientConnection, connect

import shoal.redis

WAIT_S = 60.0
ROOMS = ("harbour", "lagoon")
LINES = 30


@pytest.fixture
async def ports(url: str) -> AsyncIterator[list[int]]:
    """The ports of two workers."""
    command = (sys.executable, "-m", "tests.support.chat_worker", url)
    workers = [await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE) for _ in range(2)]
    try:
        async with asyncio.timeout(WAIT_S):
            yield [int(await worker.stdout.readline()) for worker in workers if worker.stdout]
    finally:
        for worker in workers:
            worker.kill()
            await worker.wait()


class Guest:
    """A client in a room."""

    def __init__(self, name: str, socket: ClientConnection) -> None:
        self._name = name
        self._socket = socket

    @classmethod
    async def join(cls, name: str, room: str, port: int) -> Guest:
        socket = await connect(f"ws://127.0.0.1:{port}/rooms/{room}", proxy=None, open_timeout=None)
        assert await socket.recv() == "joined"
        return cls(name, socket)

    async def talk(self) -> list[str]:
        """Sends lines, and returns them."""
        lines = [f"{self._name} {number}" for number in range(LINES)]
        for line in lines:
            await self._socket.send(line)
        return lines

    async def hear(self, count: int) -> list[str]:
        return [await self._socket.recv(decode=True) for _ in range(count)]

    async def leave(self) -> None:
        await self._socket.close()


async def test_every_line_reaches_every_guest_of_its_room(ports: list[int]) -> None:
    for room in ROOMS:
        guests = [await Guest.join(f"guest {number}", room, ports[number % 2]) for number in range(4)]
        said = [await guest.talk() for guest in guests]
        expected = sorted(line for lines in said for line in lines)
        for heard in await asyncio.gather(*(guest.hear(len(expected)) for guest in guests)):
            assert sorted(heard) == expected
            for lines in said:
                assert [line for line in heard if line in lines] == lines, "a guest's lines stay in order"
        for guest in guests:
            await guest.leave()


async def test_broadcaster_delivers_everything(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broadcaster_redis, "redis", shoal.redis)

    def broadcast() -> Broadcast:
        return Broadcast(backend=broadcaster_redis.RedisBackend(url))

    lines = [f"line {number}" for number in range(LINES)]

    async def hear(to: Broadcast, room: str, ready: asyncio.Barrier) -> list[str]:
        async with to.subscribe(room) as subscriber:
            await ready.wait()
            return [(await subscriber.get()).message for _ in lines]

    async def say(room: str, ready: asyncio.Barrier) -> None:
        await ready.wait()
        for line in lines:
            await one.publish(room, line)

    async with asyncio.timeout(WAIT_S), broadcast() as one, broadcast() as other:
        for _ in range(2):  # the second time, both have been without any subscription
            ready = asyncio.Barrier(3 * len(ROOMS))
            async with asyncio.TaskGroup() as tasks:
                heard = [tasks.create_task(hear(to, room, ready)) for to in (one, other) for room in ROOMS]
                for room in ROOMS:
                    tasks.create_task(say(room, ready))
            assert [task.result() for task in heard] == [lines] * 4
