"""The shipped connection on simulated links, which behave like sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import hiredis
import pytest

from shoal.errors import ConnectError
from shoal.lab.sim import BufferLimit, FaultOptions, LinkEnd, ModelCoordinator, Network, RedisNode, RedisOptions, World
from shoal.lab.sim.world.process import Process, Processes
from shoal.lab.sim.world.transport import SimTransport
from shoal.wire.connection import Connection

CALM = FaultOptions(tcp_timeout_s=5.0, connect_timeout_s=3.0)


class Wiretap:
    """Notes what a process writes and which of its connections have ended."""

    def __init__(self) -> None:
        self.written: dict[str, bytes] = {}
        self.over: list[str] = []

    def wrote(self, peer: str, data: bytes) -> None:
        self.written[peer] = self.written.get(peer, b"") + data

    def ended(self, peer: str) -> None:
        self.over.append(peer)


class Inbox:
    """A receiver that keeps all frames or bytes."""

    def __init__(self) -> None:
        self.frames: list[Any] = []
        self.data = b""
        self.reads = 0
        self.losses: list[Exception | None] = []
        self.can_sends = 0

    def received(self, arrived: Any) -> None:
        self.reads += 1
        if isinstance(arrived, bytes):
            self.data += arrived
        else:
            self.frames += arrived

    def lost(self, error: Exception | None) -> None:
        self.losses.append(error)

    def can_send(self) -> None:
        self.can_sends += 1


class Deaf:
    """A server that accepts connections and sends nothing; `reads` is whether it reads."""

    def __init__(self, network: Network, name: str, *, reads: bool = True) -> None:
        self.ends: list[LinkEnd] = []
        self.data = b""
        self.losses: list[str] = []
        self._reads = reads
        network.listen(network.node(name), self._accept)

    def _accept(self, end: LinkEnd) -> Deaf:
        self.ends.append(end)
        if not self._reads:
            end.pause_reading()
        return self

    def received(self, end: LinkEnd, data: bytes) -> None:
        self.data += data

    def lost(self, end: LinkEnd, reason: str) -> None:
        self.losses.append(reason)


class Site:
    """A model server, and a client process whose connections are tapped."""

    def __init__(self, options: FaultOptions = CALM, seed: int = 1, redis: RedisOptions | None = None) -> None:
        self.world = World(seed)
        self.network = Network(self.world, options)
        self.processes = Processes(self.network, ModelCoordinator(self.network))
        self.redis = RedisNode(self.network, "redis", redis)
        self.client = self.network.node("client")
        self.tap = Wiretap()
        self.process = self.processes.new(self.client, tap=self.tap)

    def connection(self, host: str = "redis", process: Process | None = None, **settings: Any) -> Connection:
        dial = (process or self.process).runtime.dial
        return Connection(host, 1, username=None, password=None, name="test", dial=dial, **settings)

    def begin(self, main: Coroutine[Any, Any, object]) -> None:
        self.process.begin(main)

    def run_for(self, seconds: float) -> None:
        self.world.run(self.world.now + seconds)
        assert self.processes.failures == []

    def result_of(self, main: Coroutine[Any, Any, Any], within_s: float = 60.0) -> Any:
        results: list[Any] = []

        async def run() -> None:
            results.append(await main)

        self.begin(run())
        self.run_for(within_s)
        assert len(results) == 1, "it has not ended"
        return results[0]

    @property
    def end(self) -> LinkEnd:
        """The client's end of its only connection."""
        (end,) = self.network.ends("client")
        return end


# -- the three modes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [CALM, replace(CALM, split_probability=1.0, window_bytes=50)])
def test_a_connection_asks_and_gets_pushes(options: FaultOptions) -> None:
    site = Site(options)
    pushed: list[list[Any]] = []

    async def main() -> None:
        async with site.connection(pushed=pushed.append, identify=True) as connection:
            assert connection.server_version == "7.0.15"
            assert connection.run_id == site.redis.model.run_id
            assert await connection.ask((b"SET", b"k", b"v" * 300), (b"GET", b"k")) == [b"OK", b"v" * 300]
            await connection.ask((b"SUBSCRIBE", b"tile"))
            answers = await asyncio.gather(*(connection.ask((b"PUBLISH", b"tile", b"%d" % n)) for n in range(20)))
            assert answers == [[1]] * 20
            with pytest.raises(hiredis.ReplyError, match="unknown command"):
                await connection.ask((b"NOPE",), (b"PING",))
            assert await connection.ask((b"PING",)) == [b"PONG"]

    site.result_of(main())
    assert pushed == [[b"message", b"tile", b"%d" % n] for n in range(20)]


def test_a_receiver_gets_frames_in_order() -> None:
    site = Site(replace(CALM, split_probability=1.0))
    inbox = Inbox()

    async def main() -> None:
        connection = site.connection(receiver=inbox)
        await connection.open()
        connection.send([(b"SUBSCRIBE", b"tile")])
        for number in range(50):
            connection.send([(b"PUBLISH", b"tile", b"%d" % number)])
            await asyncio.sleep(0.001 * (number % 3))
        await asyncio.sleep(1.0)
        connection.close()

    site.result_of(main())
    pushes = [frame for frame in inbox.frames if isinstance(frame, hiredis.PushNotification)]
    assert pushes == [[b"subscribe", b"tile", 1], *([b"message", b"tile", b"%d" % n] for n in range(50))]
    assert [frame for frame in inbox.frames if not isinstance(frame, hiredis.PushNotification)] == [1] * 50
    assert inbox.losses == [None]


def test_a_raw_connection_gets_the_bytes_of_the_wire_and_rests_between_reads() -> None:
    site = Site()
    inbox = Inbox()

    async def main() -> None:
        async with site.connection(raw=inbox) as connection, site.connection(receiver=Inbox()) as publisher:
            connection.send([(b"SUBSCRIBE", b"tile")])
            await asyncio.sleep(0.1)
            inbox.data, inbox.reads = b"", 0
            for number in range(200):
                publisher.send([(b"PUBLISH", b"tile", b"%03d" % number)])
                await asyncio.sleep(0)
            await asyncio.sleep(0.1)

    site.result_of(main())
    message = b">3\r\n$7\r\nmessage\r\n$4\r\ntile\r\n$3\r\n%03d\r\n"
    assert inbox.data == b"".join(message % number for number in range(200))
    assert 1 <= inbox.reads < 50, "not one for each message"


# -- how connections fail ---------------------------------------------------------------------------------------------


def test_a_machine_on_which_nothing_listens_refuses() -> None:
    site = Site()
    site.redis.node.crash()

    async def main() -> None:
        with pytest.raises(ConnectError, match=r"cannot connect to redis:1: .*refused"):
            await site.connection().open()

    site.result_of(main(), 1.0)


def test_a_machine_without_power_does_not_answer_in_time() -> None:
    site = Site()
    site.redis.node.crash(power=True)

    async def main() -> float:
        with pytest.raises(ConnectError, match=r"no connection within 1\.5 s"):
            await site.connection(connect_timeout_s=1.5).open()
        return site.world.now

    assert site.result_of(main(), 10.0) == pytest.approx(1.5, abs=0.01)
    assert site.network.ends() == []

    async def patient() -> float:
        began = site.world.now
        with pytest.raises(ConnectError, match="cannot connect to redis:1"):
            await site.connection(connect_timeout_s=100.0).open()
        return site.world.now - began

    assert site.result_of(patient(), 10.0) == pytest.approx(CALM.connect_timeout_s, abs=0.1), "the kernel gives up"


def test_a_server_that_sends_nothing_is_given_up() -> None:
    site = Site()
    deaf = Deaf(site.network, "deaf")

    async def main() -> None:
        with pytest.raises(ConnectError, match="connected, but no answer to HELLO within 5"):
            await site.connection("deaf").open()

    site.result_of(main(), 10.0)
    assert deaf.data.startswith(b"*")
    assert deaf.losses == ["reset"]
    assert site.tap.over == ["deaf"]


def test_an_attempt_that_is_cancelled_leaves_nothing_behind() -> None:
    site = Site()
    for wait_s in (0.0, 0.000_3, 0.001, 0.002, 0.003):

        async def main(wait_s: float = wait_s) -> None:
            attempt = asyncio.create_task(site.connection().open())
            await asyncio.sleep(wait_s)
            attempt.cancel()
            await asyncio.wait([attempt])

        site.result_of(main(), 1.0)
        assert site.network.ends() == []
        assert site.redis.ends == {}


def test_a_reset_in_the_middle_of_a_reply_fails_the_request() -> None:
    """A part of the reply has arrived; the rest never does."""
    cuts = set()
    for seed in range(30):
        site = Site(seed=seed)
        heard: list[int] = []

        async def main(site: Site = site, heard: list[int] = heard) -> None:
            connection = site.connection()
            await connection.open()
            assert await connection.ask((b"SET", b"k", b"v" * 1000)) == [b"OK"]
            before = connection.statistics().bytes_in
            with pytest.raises(ConnectError, match=r"the connection to redis:1 broke: .*reset by peer"):
                await connection.ask((b"GET", b"k"))
            heard.append(connection.statistics().bytes_in - before)
            with pytest.raises(ConnectError, match="is not open"):
                await connection.ask((b"PING",))
            assert connection.ended.is_set()

        site.begin(main())
        executed = site.redis.model.execute

        def cut(client: Any, command: Any, now: float, site: Site = site, executed: Any = executed) -> None:
            executed(client, command, now)
            if command[0] == b"GET":
                site.world.at(site.world.now, site.network.reset, site.end)

        site.redis.model.execute = cut  # type: ignore[method-assign]
        site.run_for(5.0)
        assert heard
        assert 0 <= heard[0] < len(b"$1000\r\n") + 1000 + 2
        cuts.add(heard[0])
    assert len(cuts) > 10
    assert any(cut > 100 for cut in cuts)


def test_a_server_that_closes_is_noticed_at_once() -> None:
    site = Site()
    inbox = Inbox()

    async def main() -> None:
        connection = site.connection(receiver=inbox)
        await connection.open()
        connection.send([(b"QUIT",)])
        await connection.ended.wait()

    site.result_of(main(), 1.0)
    assert inbox.frames == [b"OK"]
    (error,) = inbox.losses
    assert str(error).startswith("redis:1 closed the connection")
    assert site.tap.over == ["redis"]


def test_a_partition_times_out_an_end_that_waits_for_an_acknowledgement() -> None:
    site = Site()
    inbox = Inbox()

    async def main() -> float:
        connection = site.connection(receiver=inbox)
        await connection.open()
        site.network.partition(["client"], ["redis"])
        began = site.world.now
        connection.send([(b"PING",)])
        await connection.ended.wait()
        return site.world.now - began

    assert site.result_of(main(), 20.0) == pytest.approx(CALM.tcp_timeout_s, abs=0.1)
    assert isinstance(inbox.losses[0], ConnectError)
    assert isinstance(inbox.losses[0].__cause__, TimeoutError)


def test_a_request_without_an_answer_ends_the_connection() -> None:
    site = Site()

    async def main() -> float:
        connection = site.connection(answer_timeout_s=1.0)
        await connection.open()
        site.redis.node.pause()
        began = site.world.now
        with pytest.raises(ConnectError, match="has not answered within 1 s"):
            await connection.ask((b"PING",))
        return site.world.now - began

    assert site.result_of(main(), 5.0) == pytest.approx(1.0, abs=0.01)
    site.redis.node.resume()
    site.run_for(1.0)
    assert site.redis.ends == {}


def test_close_sends_what_is_pending_and_abort_does_not_wait() -> None:
    site = Site(replace(CALM, window_bytes=100))
    deaf = Deaf(site.network, "deaf", reads=False)

    class Writer(asyncio.Protocol):
        """Immediately writes more than fits into the window."""

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, SimTransport)
            transport.write(b"x" * 1000)
            self.lost: list[Exception | None] = []

        def connection_lost(self, exc: Exception | None) -> None:
            self.lost.append(exc)

    async def main() -> None:
        writers = Writer(), Writer()
        for writer, polite in zip(writers, (True, False), strict=True):
            transport = await site.process.runtime.dial(lambda: writer, "deaf", 1)  # noqa: B023
            assert transport.get_write_buffer_size() == 900
            if polite:
                transport.close()
            else:
                transport.abort()
            assert transport.is_closing()
            transport.write(b"vanishes")
            transport.close()
            transport.abort()
            assert writer.lost == [], "told in another turn"
            await asyncio.sleep(0.01)
            assert writer.lost == [None]

    site.result_of(main(), 2.0)
    for end in deaf.ends:
        end.resume_reading()
    site.run_for(2.0)
    assert deaf.data[:1000] == b"x" * 1000
    assert len(deaf.data) <= 1100, "after an abort, at most the bytes that fitted into the window"
    assert b"vanishes" not in deaf.data
    assert sorted(deaf.losses) == ["closed", "reset"]
    assert site.tap.over == ["deaf", "deaf"]


# -- reading and writing at a pace ------------------------------------------------------------------------------------


def test_a_full_connection_is_told_to_pause_and_to_resume_writing() -> None:
    site = Site(replace(CALM, window_bytes=1000))
    inbox = Inbox()
    command = (b"SET", b"k", b"x" * 500)

    async def main() -> None:
        connection = site.connection(receiver=inbox, write_buffer_bytes_high=4000, write_buffer_bytes_max=50_000)
        await connection.open()
        site.redis.node.pause()
        sent = 0
        while connection.writable:
            connection.send([command])
            sent += 1
            await asyncio.sleep(0)
        assert 4000 / 540 < sent < 7000 / 540
        with pytest.raises(ConnectError, match="reads too slowly"):
            connection.send([command] * 200)
        await asyncio.sleep(1.0)
        states = [connection.writable]
        assert inbox.can_sends == 0
        site.redis.node.resume()
        await asyncio.sleep(1.0)
        assert [*states, connection.writable] == [False, True]
        assert inbox.can_sends == 1
        assert set(inbox.frames) == {b"OK"}
        connection.abort()

    site.result_of(main())


def test_a_paused_connection_reads_nothing_and_loses_nothing() -> None:
    site = Site(replace(CALM, window_bytes=1000))
    inbox = Inbox()

    async def main() -> None:
        async with site.connection(receiver=inbox) as reader, site.connection() as publisher:
            reader.send([(b"SUBSCRIBE", b"tile")])
            await asyncio.sleep(0.1)
            reader.pause()
            for number in range(100):
                await publisher.ask((b"PUBLISH", b"tile", b"%d" % number))
            assert len(inbox.frames) == 1
            reader.resume()
            await asyncio.sleep(1.0)
        assert [frame[2] for frame in inbox.frames[1:]] == [b"%d" % number for number in range(100)]

    site.result_of(main())


def test_a_slow_reader_is_disconnected_by_the_server() -> None:
    limit = BufferLimit(hard_bytes=20_000, soft_bytes=0, soft_s=0)
    site = Site(replace(CALM, window_bytes=1000), redis=RedisOptions(pubsub_limit=limit))
    inbox = Inbox()

    async def main() -> None:
        async with site.connection(receiver=inbox) as reader, site.connection() as publisher:
            reader.send([(b"SUBSCRIBE", b"tile")])
            await asyncio.sleep(0.1)
            reader.pause()
            for number in range(100):
                await publisher.ask((b"PUBLISH", b"tile", b"%03d" % number + b"x" * 500))
            reader.resume()
            await asyncio.sleep(1.0)
            assert not reader.usable

    site.result_of(main())
    assert site.redis.model.cut_off == 1
    (error,) = inbox.losses
    assert isinstance(error, ConnectError)
    got = [frame[2][:3] for frame in inbox.frames[1:]]
    assert got == [b"%03d" % number for number in range(len(got))]
    assert len(got) < 10


# -- pauses and crashes of the process --------------------------------------------------------------------------------


def test_a_paused_process_learns_of_its_connections_when_it_resumes() -> None:
    site = Site()
    inbox = Inbox()

    async def main() -> None:
        connection = site.connection(receiver=inbox)
        await connection.open()
        connection.send([(b"PING",)])
        await connection.ended.wait()

    site.begin(main())
    site.run_for(0.1)
    assert inbox.frames == [b"PONG"]
    site.client.pause()
    site.redis.node.crash()
    site.run_for(5.0)
    assert inbox.losses == []
    assert site.tap.over == []
    site.client.resume()
    site.run_for(0.1)
    assert len(inbox.losses) == 1
    assert site.tap.over == ["redis"]


def test_the_connection_of_a_crashed_process_is_reset_at_its_server() -> None:
    site = Site()
    inbox = Inbox()

    async def main() -> None:
        async with site.connection(receiver=inbox) as connection:
            connection.send([(b"SUBSCRIBE", b"tile")])
            await asyncio.sleep(100.0)

    site.begin(main())
    site.run_for(0.1)
    assert len(site.redis.ends) == 1
    site.redis.model.publish(b"tile", b"on the way")
    written = dict(site.tap.written)
    site.client.crash()
    site.run_for(1.0)
    assert site.redis.ends == {}
    assert inbox.losses == []
    assert [frame[0] for frame in inbox.frames] == [b"subscribe"]
    assert site.tap.written == written
    assert site.tap.over == [], "no process was there to end it"

    site.client.restart()
    again = site.processes.new(site.client, tap=site.tap)
    answers: list[Any] = []

    async def second_process() -> None:
        async with site.connection(process=again) as connection:
            answers.append(await connection.ask((b"PING",)))

    again.begin(second_process())
    site.run_for(1.0)
    assert answers == [[b"PONG"]]


# -- the tap ----------------------------------------------------------------------------------------------------------


def test_the_tap_sees_every_byte_that_is_written_and_every_end() -> None:
    site = Site()
    other = RedisNode(site.network, "other")

    async def main() -> None:
        async with site.connection() as first, site.connection("other") as second:
            await first.ask((b"SET", b"here", b"1"))
            await second.ask((b"SET", b"there", b"2"))
        assert site.tap.over == ["other", "redis"]

    site.result_of(main())
    assert set(site.tap.written) == {"redis", "other"}
    assert b"here" in site.tap.written["redis"]
    assert b"there" in site.tap.written["other"]
    assert b"there" not in site.tap.written["redis"]
    reader = hiredis.Reader()
    reader.feed(site.tap.written["redis"])
    commands = list(iter(reader.gets, False))
    assert commands[0][0] == b"HELLO"
    assert commands[-1] == [b"SET", b"here", b"1"]
    assert other.model.keys.values == {b"there": b"2"}
