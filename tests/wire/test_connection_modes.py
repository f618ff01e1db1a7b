"""Connections by mode and by way of opening: questions and answers, raw bytes, other dialers, no socket."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from random import Random
from typing import Any

import hiredis
import pytest
from tests.support.connections import Collector, connection_to, on_both_loops, opened, peer
from tests.support.memory_transport import MemoryTransport
from tests.support.redis_server import RedisServer

from shoal.coordination.redis import RedisCoordinator
from shoal.errors import ConnectError, ProtocolError
from shoal.wire.blocking_connection import BlockingConnection
from shoal.wire.connection import READ_BATCH_BYTES, READ_PAUSE_S, READ_QUIET_S, Connection
from shoal.wire.dial import tcp

HELLO = b"%2\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$6\r\n7.0.15\r\n"


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer(password="open sesame", users=("full on >secret ~* &* +@all",)) as server:
        yield server


@pytest.fixture(scope="module")
def plain() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


class Bytes:
    """A receiver of raw bytes that keeps them."""

    def __init__(self) -> None:
        self.reads: list[bytes] = []
        self.at: list[float] = []
        self.losses: list[Exception | None] = []
        self._news = asyncio.Event()

    def received(self, data: bytes) -> None:
        self.reads.append(data)
        self._news.set()
        self.at.append(asyncio.get_running_loop().time())

    def lost(self, error: Exception | None) -> None:
        self.losses.append(error)

    def can_send(self) -> None:
        pass

    async def until(self, condition: Callable[[bytes], bool]) -> bytes:
        async with asyncio.timeout(20):
            while not condition(b"".join(self.reads)):
                self._news.clear()
                await self._news.wait()
        return b"".join(self.reads)


# Questions and answers
@on_both_loops
async def test_answers_come_in_the_order_of_the_requests(server: RedisServer) -> None:
    async with connection_to(server, None) as connection:
        assert await connection.ask(("SET", "key", 7), (b"GET", b"key"), ("GET", "none")) == [b"OK", b"7", None]
        many = await asyncio.gather(*(connection.ask(("PING", number)) for number in range(200)))
        assert many == [[b"%d" % number] for number in range(200)]
        assert connection.statistics().commands == 203


@on_both_loops
async def test_the_first_refusal_is_raised_after_all_answers_have_come(server: RedisServer) -> None:
    async with connection_to(server, None) as connection:
        with pytest.raises(hiredis.ReplyError, match="WRONGTYPE"):
            await connection.ask(("SET", "text", "x"), ("LPOP", "text"), ("NONSENSE",), ("SET", "after", 1))
        assert await connection.ask(("GET", "after")) == [b"1"]


@on_both_loops
async def test_a_refusal_inside_a_transaction_is_a_value_of_its_answer(server: RedisServer) -> None:
    async with connection_to(server, None) as connection:
        await connection.ask(("SET", "text", "x"))
        *_, results = await connection.ask(("MULTI",), ("LPOP", "text"), ("PING",), ("EXEC",))
        assert isinstance(results[0], hiredis.ReplyError)
        assert results[1] == b"PONG"


@on_both_loops
async def test_pushes_go_to_their_handler_and_a_subscription_is_confirmed(server: RedisServer) -> None:
    pushes: list[Any] = []
    async with (
        connection_to(server, None, pushed=pushes.append) as connection,
        connection_to(server, None) as publisher,
    ):
        assert await connection.ask(("SUBSCRIBE", "here"), ("PING",)) == [[b"subscribe", b"here", 1], b"PONG"]
        await publisher.ask(("PUBLISH", "here", "1"), ("PUBLISH", "here", "2"))
        assert await connection.ask(("PING", "seen")) == [b"seen"]
        assert pushes == [[b"message", b"here", b"1"], [b"message", b"here", b"2"]]


@on_both_loops
async def test_a_caller_that_goes_leaves_the_connection_in_order(server: RedisServer) -> None:
    async with connection_to(server, None) as connection:
        gone = asyncio.create_task(connection.ask(("PING", "gone")))
        await asyncio.sleep(0)
        gone.cancel()
        assert await connection.ask(("PING", "stays")) == [b"stays"]


@on_both_loops
async def test_a_server_that_does_not_answer_in_time_ends_the_connection(server: RedisServer) -> None:
    async with connection_to(server, None, answer_timeout_s=0.1) as connection:
        os.kill(server.pid, signal.SIGSTOP)
        try:
            with pytest.raises(ConnectError, match=r"has not answered within 0\.1 s"):
                await connection.ask(("PING",))
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert connection.ended.is_set()
        with pytest.raises(ConnectError, match=r"not open .*has not answered"):
            await connection.ask(("PING",))


@on_both_loops
async def test_a_lost_connection_fails_all_questions(server: RedisServer) -> None:
    async with connection_to(server, None) as connection, connection_to(server, None) as other:
        (number,) = await connection.ask(("CLIENT", "ID"))
        waiting = [asyncio.create_task(connection.ask(("BLPOP", "nothing", 0))) for _ in range(3)]
        await asyncio.sleep(0)
        await other.ask(("CLIENT", "KILL", "ID", number))
        for outcome in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(outcome, ConnectError)
            assert "closed the connection" in str(outcome)


@on_both_loops
async def test_an_answer_that_is_too_large_is_a_protocol_error(server: RedisServer) -> None:
    async with connection_to(server, None, frame_bytes_max=1 << 16) as connection:
        with pytest.raises(ProtocolError, match="frame_bytes_max"):
            await connection.ask(("PING", bytes(1 << 20)))


async def test_an_answer_that_was_not_asked_for_is_a_protocol_error(server: RedisServer) -> None:
    async def talkative(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(HELLO)
        await reader.read(1000)
        writer.write(b"+one\r\n+two\r\n")

    async with peer(server.host, talkative) as port, connection_to(server, None, port=port) as connection:
        assert await connection.ask(("PING",)) == [b"one"]
        await connection.ended.wait()
        assert isinstance(connection.error, ProtocolError)


async def test_a_connection_with_a_receiver_does_not_ask(server: RedisServer) -> None:
    async with opened(server) as (connection, _):
        with pytest.raises(RuntimeError, match="cannot ask"):
            await connection.ask(("PING",))


async def test_a_receiver_and_a_handler_of_pushes_exclude_each_other(server: RedisServer) -> None:
    with pytest.raises(ValueError, match="exclude each other"):
        connection_to(server, Collector(), pushed=print)


async def test_a_user_without_a_password_is_logged_in(server: RedisServer) -> None:
    async with connection_to(server, None) as connection:
        await connection.ask(("ACL", "SETUSER", "open", "on", "nopass", "~*", "&*", "+@all"))
    async with connection_to(server, None, username="open", password=None) as connection:
        assert await connection.ask(("ACL", "WHOAMI")) == [b"open"]


# Raw bytes
@on_both_loops
async def test_bytes_are_delivered_as_they_come(server: RedisServer) -> None:
    receiver = Bytes()
    connection = connection_to(server, None, raw=receiver, identify=True)
    async with connection:
        assert len(connection.run_id) == 40
        connection.send_now([(b"PING", b"1"), (b"PING", bytes(500_000)), (b"PING", b"2")])
        data = await receiver.until(lambda data: data.endswith(b"$1\r\n2\r\n"))
        assert data == b"$1\r\n1\r\n$500000\r\n" + bytes(500_000) + b"\r\n$1\r\n2\r\n"
        assert connection.statistics().bytes_in == len(data)
    await connection.ended.wait()
    assert receiver.losses == [None]


@on_both_loops
async def test_small_reads_are_batched(server: RedisServer) -> None:
    receiver = Bytes()
    async with connection_to(server, None, raw=receiver) as connection:
        for number in range(30):
            connection.send_now([(b"PING", b"%d" % number)])
            await asyncio.sleep(READ_PAUSE_S / 10)
        await receiver.until(lambda data: data.endswith(b"29\r\n"))
        assert all(len(read) < READ_BATCH_BYTES for read in receiver.reads)
        at = receiver.at
        close = [
            (second, third)
            for first, second, third in zip(at, at[1:], at[2:], strict=False)
            if second - first < READ_QUIET_S / 2
        ]
        assert all(third - second > 0.5 * READ_PAUSE_S for second, third in close)


@on_both_loops
async def test_a_receiver_that_raises_loses_its_connection(server: RedisServer) -> None:
    class Clumsy(Bytes):
        def received(self, data: bytes) -> None:
            raise KeyError("bug")

    receiver = Clumsy()
    async with connection_to(server, None, raw=receiver) as connection:
        connection.send_now([(b"PING",)])
        await connection.ended.wait()
        assert isinstance(connection.error, KeyError)
        assert isinstance(receiver.losses[0], KeyError)


# Other ways to dial
@contextlib.asynccontextmanager
async def proxy(server: RedisServer) -> AsyncIterator[tuple[int, list[int]]]:
    """The port of a go-between, and a list that grows by each connection through it."""
    seen: list[int] = []
    pumps: list[asyncio.Task[None]] = []

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError), contextlib.closing(writer):
            while data := await reader.read(65536):
                writer.write(data)

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(1)
        from_server, to_server = await asyncio.open_connection(server.host, server.port)
        pumps.append(asyncio.create_task(pump(reader, to_server)))
        pumps.append(asyncio.create_task(pump(from_server, writer)))

    async with await asyncio.start_server(carry, server.host, 0) as listener:
        yield listener.sockets[0].getsockname()[1], seen
    for task in pumps:
        task.cancel()
    await asyncio.gather(*pumps, return_exceptions=True)


async def test_connections_go_where_the_dialer_leads_them(plain: RedisServer) -> None:
    asked: list[tuple[str, int]] = []

    async with proxy(plain) as (port, seen):

        async def around(factory: Callable[[], asyncio.BaseProtocol], host: str, to_port: int) -> asyncio.Transport:
            asked.append((host, to_port))
            return await tcp(factory, plain.host, port)

        login: dict[str, Any] = {"username": None, "password": None, "name": "test", "dial": around}
        async with Connection("nowhere.invalid", 1, **login) as connection:
            assert await connection.ask(("PING",)) == [b"PONG"]
        assert (asked, len(seen)) == ([("nowhere.invalid", 1)], 1)
        async with await RedisCoordinator.connect("nowhere.invalid:2", dial=around, random=Random(1)) as coordinator:
            await coordinator.put("plan/a", b"1")
            changes = coordinator.watch("plan/")
            assert (await anext(changes)).key == "plan/a"
            await changes.aclose()
            # one for requests, one for notifications
            assert (asked[1:], len(seen)) == ([("nowhere.invalid", 2)] * 2, 3)


async def test_a_dialer_that_fails_is_a_connect_error(plain: RedisServer) -> None:
    async def nowhere(factory: object, host: str, port: int) -> asyncio.Transport:
        raise OSError("no route")

    with pytest.raises(ConnectError, match=r"cannot connect to .*no route"):
        await connection_to(plain, None, dial=nowhere).open()


async def test_a_blocking_connection_dials_too_even_on_a_loop_that_runs(plain: RedisServer) -> None:
    dialled: list[int] = []

    async def counted(factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> asyncio.Transport:
        dialled.append(port)
        return await tcp(factory, host, port)

    with BlockingConnection(plain.host, plain.port, None, None, dial=counted) as connection:
        assert connection.ask("PING") == b"PONG"
    assert dialled == [plain.port]


class MemoryServer:
    """A Redis that knows HELLO and PING, without a network."""

    def __init__(self) -> None:
        self.transport: MemoryTransport | None = None

    async def dial(self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> asyncio.Transport:
        protocol = factory()
        assert isinstance(protocol, asyncio.BufferedProtocol)
        self.transport = MemoryTransport(protocol, self._answer)
        protocol.connection_made(self.transport)
        return self.transport

    def _answer(self, data: bytes) -> None:
        assert self.transport is not None
        if b"HELLO" in data:
            self.transport.feed(HELLO)
        else:
            self.transport.feed(b"+PONG\r\n" * data.count(b"PING"))


# Without a socket
LOGIN: dict[str, Any] = {"username": None, "password": None, "name": "test"}


async def test_questions() -> None:
    server = MemoryServer()
    async with Connection("memory", 1, dial=server.dial, **LOGIN) as connection:
        assert await connection.ask(("PING",), ("PING",)) == [b"PONG", b"PONG"]
    await connection.ended.wait()


async def test_frames_are_written_once_a_turn() -> None:
    server = MemoryServer()
    collector = Collector()
    connection = Connection("memory", 1, receiver=collector, dial=server.dial, **LOGIN)
    await connection.open()
    assert server.transport is not None
    before = server.transport.writes
    for _ in range(10):
        connection.send([(b"PING",)])
    await collector.until_frames(10)
    assert server.transport.writes == before + 1
    connection.close()
    assert await collector.until_lost() is None


async def test_raw_bytes() -> None:
    server = MemoryServer()
    receiver = Bytes()
    async with Connection("memory", 1, raw=receiver, dial=server.dial, **LOGIN) as connection:
        connection.send_now([(b"PING",)])
        assert await receiver.until(bool) == b"+PONG\r\n"
        assert server.transport is not None
        server.transport.feed(b"x" * 300_000)
        assert len(await receiver.until(lambda data: len(data) > 300_000)) == 300_007
