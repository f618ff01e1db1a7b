"""Connection against a real Redis, on both event loops: order, refusals, bounds and ends."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from typing import Any

import hiredis
import pytest
from tests.support.connections import Collector, ask, connection_to, on_both_loops, opened, peer
from tests.support.redis_server import RedisServer, free_port

from shoal.errors import AuthenticationError, ConnectError, ProtocolError, ServerTooOldError
from shoal.wire.commands import encode_commands

PASSWORD = "open sesame"
USERS = (
    "full on >secret ~* &* +@all",
    "blind on >secret ~* &* +@all -info",
    "listener on >secret ~* &* +@pubsub -publish +hello +info +ping",
)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer(password=PASSWORD, users=USERS) as server:
        yield server


@on_both_loops
async def test_open_learns_the_servers_identity_and_tells_our_name(server: RedisServer) -> None:
    async with opened(server, name="shoal-test") as (connection, collector):
        assert connection.server_name in ("redis", "valkey")
        assert int(connection.server_version.split(".")[0]) >= 6
        assert len(connection.run_id) == 40
        connection.send([(b"CLIENT", b"GETNAME")])
        await collector.until_frames(1)
        assert collector.frames == [b"shoal-test"]


@on_both_loops
async def test_replies_come_in_the_order_of_the_commands(server: RedisServer) -> None:
    async with opened(server) as (connection, collector):
        for start in range(0, 1000, 10):
            connection.send([(b"PING", b"%d" % number) for number in range(start, start + 10)])
            if start % 200 == 0:
                await asyncio.sleep(0)
        await collector.until_frames(1000)
        assert collector.frames == [b"%d" % number for number in range(1000)]


@on_both_loops
async def test_pushes_and_replies_keep_the_order_of_the_wire(server: RedisServer) -> None:
    async with opened(server) as (connection, collector):
        connection.send([(b"SUBSCRIBE", b"here")])
        for number in range(300):
            connection.send([(b"PUBLISH", b"here", b"%d" % number), (b"PING", b"%d" % number)])
        await collector.until_frames(1 + 3 * 300)
        confirmation, *rest = (frame for frame in collector.frames if not isinstance(frame, int))
        assert isinstance(confirmation, hiredis.PushNotification)
        assert confirmation == [b"subscribe", b"here", 1]
        assert all(isinstance(frame, hiredis.PushNotification) for frame in rest[::2])
        assert rest[::2] == [[b"message", b"here", b"%d" % number] for number in range(300)]
        assert rest[1::2] == [b"%d" % number for number in range(300)]


@on_both_loops
async def test_errors_stand_where_the_reply_would(server: RedisServer) -> None:
    async with opened(server, username="listener") as (connection, collector):
        connection.send([(b"PING", b"1"), (b"PUBLISH", b"channel", b"x"), (b"PING", b"2")])
        await collector.until_frames(3)
        assert collector.frames[::2] == [b"1", b"2"]
        assert isinstance(collector.frames[1], hiredis.ReplyError)
        assert str(collector.frames[1]).startswith("NOPERM")


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 16384, 65537, 5_000_000])
@on_both_loops
async def test_payloads_of_any_size_arrive_whole(server: RedisServer, size: int) -> None:
    payload = os.urandom(size)
    async with opened(server) as (publisher, _), opened(server) as (subscriber, collector):
        subscriber.send([(b"SUBSCRIBE", b"large")])
        await collector.until_frames(1)
        publisher.send([(b"PUBLISH", b"large", payload)] * 3)
        await collector.until_frames(4)
        assert collector.frames[1:] == [[b"message", b"large", payload]] * 3


@on_both_loops
async def test_what_is_sent_in_one_turn_of_the_loop_is_written_at_once(server: RedisServer) -> None:
    def reads(info: bytes) -> int:
        return int(info.split(b"total_reads_processed:")[1].split(b"\r\n")[0])

    async with opened(server) as (connection, collector):
        connection.send([(b"INFO", b"stats")])
        await collector.until_frames(1)
        for _ in range(50):
            connection.send([(b"PING",)])
            connection.send([(b"PING",)])
        await collector.until_frames(101)
        connection.send([(b"INFO", b"stats")])
        await collector.until_frames(102)
        assert reads(collector.frames[101]) - reads(collector.frames[0]) == 2


@on_both_loops
async def test_statistics_count_what_was_carried(server: RedisServer) -> None:
    async with opened(server) as (connection, collector):
        commands = [(b"SUBSCRIBE", b"counted"), (b"PUBLISH", b"counted", b"x"), (b"PING",)]
        connection.send(commands)
        await collector.until_frames(4)
        statistics = connection.statistics()
        assert (statistics.commands, statistics.frames) == (3, 4)
        assert statistics.bytes_out == len(encode_commands(commands))
        assert statistics.bytes_in > 0


@on_both_loops
async def test_pause_holds_deliveries_back_until_resume(server: RedisServer) -> None:
    async with opened(server) as (publisher, replies), opened(server) as (subscriber, collector):
        subscriber.send([(b"SUBSCRIBE", b"slow")])
        await collector.until_frames(1)
        subscriber.pause()
        subscriber.pause()
        publisher.send([(b"PUBLISH", b"slow", b"%d" % number) for number in range(100)])
        await replies.until_frames(100)
        assert len(collector.frames) == 1
        subscriber.resume()
        await collector.until_frames(101)
        assert [frame[2] for frame in collector.frames[1:]] == [b"%d" % number for number in range(100)]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"password": "wrong"}, "refused user 'full'"),
        ({"username": "nobody"}, "refused user 'nobody'"),
        ({"username": None, "password": None}, "requires a password"),
        ({"username": "blind"}, r"has no permission for INFO .* \+info"),
    ],
)
@on_both_loops
async def test_open_says_what_is_wrong_with_the_login(
    server: RedisServer, settings: dict[str, str | None], words: str
) -> None:
    collector = Collector()
    connection = connection_to(server, collector, **settings)
    with pytest.raises(AuthenticationError, match=words) as caught:
        await connection.open()
    assert "secret" not in str(caught.value)
    assert not connection.writable
    await asyncio.sleep(0.01)
    assert not collector.losses


@on_both_loops
async def test_the_default_user_is_meant_when_only_a_password_is_given(server: RedisServer) -> None:
    async with opened(server, username=None, password=PASSWORD) as (connection, collector):
        connection.send([(b"ACL", b"WHOAMI")])
        await collector.until_frames(1)
        assert collector.frames == [b"default"]


@pytest.mark.parametrize(
    "answer",
    [
        b"%2\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$6\r\n5.0.14\r\n$0\r\n\r\n",
        b"-ERR unknown command `HELLO`, with args beginning with: `AUTH`, `full`, `secret`\r\n$0\r\n\r\n",
        b"-NOPROTO unsupported protocol version\r\n$0\r\n\r\n",
    ],
)
@on_both_loops
async def test_a_server_that_is_too_old_is_refused(server: RedisServer, answer: bytes) -> None:
    async def old_server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(answer)

    async with peer(server.host, old_server) as port:
        connection = connection_to(server, Collector(), port=port)
        with pytest.raises(ServerTooOldError, match=r"use Redis 6\.2 or newer") as caught:
            await connection.open()
        assert "secret" not in str(caught.value)


@on_both_loops
async def test_a_port_where_nobody_listens_is_a_connect_error(server: RedisServer) -> None:
    with pytest.raises(ConnectError, match="cannot connect to"):
        await connection_to(server, Collector(), port=free_port()).open()


async def test_a_server_without_room_for_another_connection_says_what_to_do(server: RedisServer) -> None:
    async def full_server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"-ERR max number of clients reached\r\n")
        writer.write_eof()

    async with peer(server.host, full_server) as port:
        with pytest.raises(ConnectError, match=r"no room for another connection.*raise its maxclients"):
            await connection_to(server, Collector(), port=port).open()


@on_both_loops
async def test_a_peer_that_accepts_and_stays_silent_times_out(server: RedisServer) -> None:
    with socket.create_server((server.host, 0)) as silent:
        connection = connection_to(server, Collector(), port=silent.getsockname()[1], connect_timeout_s=0.1)
        with pytest.raises(ConnectError, match="connected, but no answer to HELLO"):
            await connection.open()


@on_both_loops
async def test_a_link_opens_once_and_sends_only_while_open(server: RedisServer) -> None:
    collector = Collector()
    connection = connection_to(server, collector)
    with pytest.raises(ConnectError, match="not open"):
        connection.send([(b"PING",)])
    await connection.open()
    with pytest.raises(RuntimeError, match="opens once"):
        await connection.open()
    connection.close()
    assert not connection.writable
    with pytest.raises(ConnectError, match="not open"):
        connection.send([(b"PING",)])
    assert await collector.until_lost() is None


@on_both_loops
async def test_the_write_buffer_is_bounded_and_tells_when_there_is_room(server: RedisServer) -> None:
    limits = {"write_buffer_bytes_high": 1 << 18, "write_buffer_bytes_max": 1 << 20}
    batch = [(b"PUBLISH", b"nobody", bytes(10_000))] * 10
    sent = 0
    async with opened(server, **limits) as (connection, collector):
        os.kill(server.pid, signal.SIGSTOP)
        try:
            while connection.writable:
                connection.send(batch)
                sent += 10
                await asyncio.sleep(0)
            assert collector.can_sends == 0
            refusal = None
            while refusal is None:
                try:
                    connection.send(batch)
                    sent += 10
                except ConnectError as error:
                    refusal = str(error)
                await asyncio.sleep(0)
            assert "write_buffer_bytes_max" in refusal
        finally:
            os.kill(server.pid, signal.SIGCONT)
        await collector.until_frames(sent)
        assert collector.frames == [0] * sent
        assert collector.can_sends == 1
        assert connection.writable


@on_both_loops
async def test_a_burst_in_one_turn_is_bounded_too(server: RedisServer) -> None:
    limits = {"write_buffer_bytes_high": 10_000, "write_buffer_bytes_max": 20_000}
    async with opened(server, **limits) as (connection, collector):
        connection.send([(b"PING", bytes(12_000))])
        assert not connection.writable
        with pytest.raises(ConnectError, match="write_buffer_bytes_max"):
            connection.send([(b"PING", bytes(12_000))])
        await collector.until(lambda: connection.writable)
        await collector.until_frames(1)
        assert collector.can_sends == 1
        assert collector.frames == [bytes(12_000)]


@on_both_loops
async def test_a_frame_above_the_limit_ends_the_link(server: RedisServer) -> None:
    async with opened(server, frame_bytes_max=1 << 20) as (connection, collector):
        connection.send([(b"PING", bytes(1 << 20)), (b"PING", bytes(1 << 21)), (b"PING", b"never")])
        error = await collector.until_lost()
        assert isinstance(error, ProtocolError)
        assert "frame_bytes_max" in str(error)
        assert collector.frames == [bytes(1 << 20)]


@on_both_loops
async def test_close_sends_what_is_pending_first(server: RedisServer) -> None:
    collector = Collector()
    connection = connection_to(server, collector)
    await connection.open()
    connection.send([(b"DEL", b"counter"), *[(b"INCR", b"counter")] * 1000])
    connection.close()
    assert await collector.until_lost() is None
    count = await asyncio.to_thread(ask, server.host, server.port, "full", "secret", "GET", "counter")
    assert count == b"1000"


@on_both_loops
async def test_abort_drops_what_is_pending_and_is_no_error(server: RedisServer) -> None:
    async with opened(server) as (connection, collector):
        connection.send([(b"SET", b"never", b"set")])
        connection.abort()
        connection.abort()
        assert await collector.until_lost() is None
    assert await asyncio.to_thread(ask, server.host, server.port, "full", "secret", "GET", "never") is None


@on_both_loops
async def test_a_killed_server_is_one_loss_in_the_middle_of_the_stream() -> None:
    with RedisServer() as server:
        nobody = {"username": None, "password": None}
        async with (
            opened(server, **nobody) as (subscriber, collector),
            opened(server, **nobody) as (connection, own),
        ):
            subscriber.send([(b"SUBSCRIBE", b"stream")])
            await collector.until_frames(1)
            connection.send([(b"PUBLISH", b"stream", bytes(1000))] * 2000)
            await collector.until_frames(100)
            server.kill()
            for receiver in (collector, own):
                assert isinstance(await receiver.until_lost(), ConnectError)
            payloads = [frame[2] for frame in collector.frames[1:]]
            assert payloads == [bytes(1000)] * len(payloads)
            for ended in (subscriber, connection):
                assert not ended.writable
                ended.close()
                ended.pause()
                ended.resume()


@on_both_loops
async def test_a_client_that_the_server_throws_out_learns_it(server: RedisServer) -> None:
    async with opened(server, name="victim") as (connection, collector):
        connection.send([(b"CLIENT", b"ID")])
        await collector.until_frames(1)
        await asyncio.to_thread(
            ask, server.host, server.port, "full", "secret", "CLIENT", "KILL", "ID", collector.frames[0]
        )
        error = await collector.until_lost()
        assert isinstance(error, ConnectError)
        assert "closed the connection" in str(error)


@on_both_loops
async def test_garbage_instead_of_hello_is_a_protocol_error(server: RedisServer) -> None:
    async def web_server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with peer(server.host, web_server) as port:
        collector = Collector()
        connection = connection_to(server, collector, port=port)
        with pytest.raises(ProtocolError, match="no RESP3"):
            await connection.open()
        assert collector.losses == []


@on_both_loops
async def test_garbage_in_the_stream_ends_the_link_after_the_last_good_frame(server: RedisServer) -> None:
    async def go_between(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry the handshake and one reply to and from the real server, then speak nonsense."""
        from_server, to_server = await asyncio.open_connection(server.host, server.port)
        to_server.write(await reader.read(1000))
        writer.write(await from_server.readuntil(b"run_id:") + await from_server.read(10_000))
        to_server.write(await reader.read(1000))
        writer.write(await from_server.read(1000) + b":7\r\n>1\r\n+push\r\n\x00nonsense")
        to_server.close()
        await to_server.wait_closed()

    async with peer(server.host, go_between) as port, opened(server, port=port) as (connection, collector):
        connection.send([(b"PING", b"good")])
        error = await collector.until_lost()
        assert isinstance(error, ProtocolError)
        assert error.broken_by == "peer"
        assert collector.frames == [b"good", 7, [b"push"]]


@on_both_loops
async def test_a_receiver_that_raises_loses_its_link_and_is_told_why(server: RedisServer) -> None:
    class Clumsy(Collector):
        def received(self, frames: list[Any]) -> None:
            super().received(frames)
            raise KeyError("bug")

    collector = Clumsy()
    connection = connection_to(server, collector)
    await connection.open()
    connection.send([(b"PING",)])
    assert isinstance(await collector.until_lost(), KeyError)


@on_both_loops
async def test_nothing_is_delivered_after_a_receiver_closed_the_link(server: RedisServer) -> None:
    class Hasty(Collector):
        def received(self, frames: list[Any]) -> None:
            super().received(frames)
            connection.close()

    collector = Hasty()
    connection = connection_to(server, collector, read_slice_bytes=64)
    await connection.open()
    connection.send([(b"PING", b"%020d" % number) for number in range(1000)])
    assert await collector.until_lost() is None
    assert 0 < len(collector.frames) < 10
