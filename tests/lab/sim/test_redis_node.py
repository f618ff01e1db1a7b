"""The model server on the simulated network."""

from __future__ import annotations

from typing import Any

from hiredis import PushNotification

from shoal.lab.sim import BufferLimit, FaultOptions, LinkEnd, Network, RedisNode, RedisOptions, World
from shoal.queues.keyspace.resp import CommandReader
from shoal.wire.commands import encode_commands


class Caller:
    """A client that sends the given commands and keeps the frames that it gets."""

    def __init__(self, network: Network, name: str, *commands: tuple[bytes, ...]) -> None:
        self.node = network.node(name)
        self.network = network
        self.commands = commands
        self.frames: list[Any] = []
        self.losses: list[str] = []
        self.failures: list[str] = []
        self.dial()

    def dial(self) -> None:
        self.network.connect(self.node, "redis", self)

    def connected(self, end: LinkEnd) -> None:
        self.end = end
        self.reader = CommandReader()
        end.send(encode_commands([(b"HELLO", b"3"), *self.commands]))

    def failed(self, reason: str) -> None:
        self.failures.append(reason)

    def received(self, end: LinkEnd, data: bytes) -> None:
        self.frames += self.reader.read(data)

    def lost(self, end: LinkEnd, reason: str) -> None:
        self.losses.append(reason)


def make(limit: BufferLimit | None = None) -> tuple[World, Network, RedisNode]:
    world = World(1)
    network = Network(world, FaultOptions(window_bytes=1000))
    return world, network, RedisNode(network, "redis", RedisOptions(pubsub_limit=limit or BufferLimit()))


def test_messages_cross_the_network_as_the_frames_of_hiredis() -> None:
    world, network, _ = make()
    subscriber = Caller(network, "s", (b"SUBSCRIBE", b"a"), (b"PSUBSCRIBE", b"*"))
    world.run(1.0)
    publisher = Caller(network, "p", (b"PUBLISH", b"a", b"1"), (b"PUBLISH", b"b", b"2"))
    world.run(2.0)
    assert subscriber.frames[1:] == [
        [b"subscribe", b"a", 1],
        [b"psubscribe", b"*", 2],
        [b"message", b"a", b"1"],
        [b"pmessage", b"*", b"a", b"1"],
        [b"pmessage", b"*", b"b", b"2"],
    ]
    assert all(isinstance(frame, PushNotification) for frame in subscriber.frames[1:])
    assert publisher.frames[1:] == [2, 1]


def test_commands_are_read_from_any_pieces() -> None:
    world = World(1)
    network = Network(world, FaultOptions(split_probability=1.0, window_bytes=7))
    RedisNode(network, "redis")
    commands = [(b"SET", b"k%d" % number, b"v" * number) for number in range(30)]
    caller = Caller(network, "c", *commands, *((b"GET", key) for _, key, _ in commands))
    world.run(30.0)
    assert caller.frames[1:] == [b"OK"] * 30 + [value for _, _, value in commands]


def test_a_client_that_left_is_no_longer_counted() -> None:
    world, network, redis = make()
    subscriber = Caller(network, "s", (b"SUBSCRIBE", b"a"))
    world.run(1.0)
    subscriber.node.crash()
    world.run(2.0)
    publisher = Caller(network, "p", (b"PUBLISH", b"a", b"1"), (b"QUIT",))
    world.run(3.0)
    assert publisher.frames[1:] == [0, b"OK"]
    assert publisher.losses == ["closed"]
    assert redis.ends == {}
    assert redis.model.clients == {}


def test_a_slow_reader_is_disconnected_and_the_bytes_in_the_kernel_still_arrive() -> None:
    world, network, redis = make(BufferLimit(hard_bytes=20_000, soft_bytes=0, soft_s=0))
    slow = Caller(network, "slow", (b"SUBSCRIBE", b"a"))
    quick = Caller(network, "quick", (b"SUBSCRIBE", b"a"))
    cut_off: list[str] = []
    redis.on_cut_off = lambda client: cut_off.append(client.name)
    world.run(1.0)
    slow.end.pause_reading()
    publisher = Caller(network, "p")
    world.run(2.0)
    for number in range(100):
        publisher.end.send(encode_commands([(b"PUBLISH", b"a", b"%04d" % number + b"x" * 396)]))
        world.run(world.now + 0.1)
    assert redis.model.cut_off == 1
    assert cut_off == ["slow"]
    slow.end.resume_reading()
    world.run(world.now + 1.0)
    assert slow.losses == ["closed"]
    assert [frame[2][:4] for frame in slow.frames[2:]] == [b"%04d" % number for number in range(len(slow.frames) - 2)]
    assert 0 < len(slow.frames) - 2 < 100
    assert len(quick.frames) - 2 == 100


def test_the_servers_timer_disconnects_a_client_that_stays_above_the_soft_limit() -> None:
    world, network, redis = make(BufferLimit(hard_bytes=0, soft_bytes=1000, soft_s=5.0))
    slow = Caller(network, "slow", (b"SUBSCRIBE", b"a"))
    world.run(1.0)
    slow.end.pause_reading()
    Caller(network, "p", *((b"PUBLISH", b"a", b"x" * 1000) for _ in range(40)))
    world.run(5.0)
    assert redis.model.cut_off == 0
    world.run(9.0)
    assert redis.model.cut_off == 1


def test_a_crash_loses_everything_and_a_restart_has_a_new_run_id() -> None:
    world, network, redis = make()
    client = Caller(network, "c", (b"SUBSCRIBE", b"a"), (b"SET", b"k", b"v"), (b"INFO", b"server"))
    world.run(1.0)
    first_life = redis.model.run_id
    assert first_life.encode() in client.frames[-1]
    redis.node.crash()
    world.run(2.0)
    assert client.losses == ["reset"]
    client.dial()
    world.run(3.0)
    assert client.failures == ["refused"]
    redis.node.restart()
    client.commands = ((b"GET", b"k"), (b"PUBSUB", b"NUMSUB", b"a"))
    client.dial()
    world.run(4.0)
    assert client.frames[-2:] == [None, [b"a", 0]]
    assert redis.model.run_id != first_life
