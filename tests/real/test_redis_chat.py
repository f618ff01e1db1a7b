"""A chat server with two worker processes, written for redis-py: every line reaches every client of its room."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import pytest

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

    def __init__(self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._name = name
        self._reader = reader
        self._writer = writer

    @classmethod
    async def join(cls, name: str, room: str, port: int) -> Guest:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"{room}\n".encode())
        assert await reader.readline() == b"joined\n"
        return cls(name, reader, writer)

    def talk(self) -> list[bytes]:
        """Sends lines, and returns them."""
        lines = [f"{self._name} {number}\n".encode() for number in range(LINES)]
        self._writer.writelines(lines)
        return lines

    async def hear(self, count: int) -> list[bytes]:
        return [await self._reader.readline() for _ in range(count)]

    def leave(self) -> None:
        self._writer.close()


async def test_every_line_reaches_every_client_of_its_room(ports: list[int]) -> None:
    for room in ROOMS:
        guests = [await Guest.join(f"guest {number}", room, ports[number % 2]) for number in range(4)]
        said = [guest.talk() for guest in guests]
        expected = sorted(line for lines in said for line in lines)
        for heard in await asyncio.gather(*(guest.hear(len(expected)) for guest in guests)):
            assert sorted(heard) == expected
            for lines in said:
                assert [line for line in heard if line in lines] == lines, "a guest's lines stay in order"
        for guest in guests:
            guest.leave()
