"""The model of Redis, compared with a real one: the same operations must give the same frames."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from hiredis import PushNotification, Reader, ReplyError
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.lab.sim.real_redis import RealClient
from tests.support.redis_server import RedisServer

from shoal.lab.sim.models.redis import BufferLimit, Client, ModelRedis, RedisOptions
from shoal.lab.sim.models.redis_base import STATIC_BUFFER_BYTES, NoBacklog
from shoal.wire.commands import Command

HARD_BYTES = 256 * 1024
CLIENTS_MAX = 5
STREAM_INFO = (b"length", b"last-generated-id")
"""The fields of XINFO STREAM that the model has; a server has more."""
USERS = {
    "default": "on nopass ~* &* +@all",
    "reader": "on >r resetchannels &a* &t.? -@all +@connection +@pubsub -publish -pubsub",
    "writer": "on >w resetchannels &a -@all +publish +ping +pubsub|numsub (+publish &b*) (+subscribe &t.?)",
    "off": "off >o ~* &* +@all",
    "keys": "on >k ~k* resetchannels -@all +get +set +del (+xadd ~s)",
}
CHANNEL = st.sampled_from([b"a", b"ab", b"abc", b"b", b"bc", b"t.1", b"t.2", b"t.33", b"", b"*", b"[", b"\xff\0"])
PATTERN = st.sampled_from(
    [
        b"*",
        b"a*",
        b"a**",
        b"?",
        b"??",
        b"t.[12]",
        b"t.[^1]",
        b"[a-b]*",
        b"[",
        b"[^",
        b"\\*",
        b"t.?",
        b"",
        b"a",
        b"&a",
    ]
)
PAYLOAD = st.binary(max_size=20)
LOGIN = st.sampled_from(
    [
        (b"reader", b"r"),
        (b"writer", b"w"),
        (b"off", b"o"),
        (b"keys", b"k"),
        (b"default", b"any"),
        (b"reader", b"bad"),
    ]
)
ODD = st.sampled_from(
    [
        (b"PING",),
        (b"PING", b"x"),
        (b"PING", b"x", b"y"),
        (b"NOPE", b"1"),
        (b"publish", b"a"),
        (b"SUBSCRIBE",),
        (b"PUBSUB",),
        (b"PUBSUB", b"nope"),
        (b"PUBSUB", b"NUMPAT", b"x"),
        (b"PUBSUB", b"CHANNELS", b"a", b"b"),
        (b"CLIENT", b"SETNAME", b"bob"),
        (b"CLIENT", b"SETNAME", b"b b"),
        (b"CLIENT", b"GETNAME"),
        (b"CLIENT", b"NOPE"),
        (b"CLIENT", b"KILL", b"ID", b"0"),
        (b"CLIENT", b"KILL", b"ID", b"x"),
        (b"CLIENT", b"KILL", b"ID", b"987654321", b"SKIPME", b"no"),
        (b"CLIENT", b"KILL", b"ID", b"987654321", b"TYPE"),
        (b"CLIENT", b"KILL", b"SKIPME", b"maybe"),
        (b"HELLO",),
        (b"HELLO", b"2"),
        (b"HELLO", b"3"),
        (b"HELLO", b"4"),
        (b"HELLO", b"x"),
        (b"HELLO", b"3", b"AUTH", b"reader"),
        (b"HELLO", b"3", b"SETNAME", b"n"),
        (b"AUTH", b"x"),
        (b"AUTH", b"a", b"b", b"c"),
        (b"ECHO", b"x"),
        (b"GET", b"k1"),
        (b"SET", b"k1", b"v"),
        (b"SET", b"z", b"v"),
        (b"DEL", b"k1", b"k2"),
        (b"DEL", b"k1", b"z"),
        (b"XADD", b"s", b"*", b"f"),
        (b"XLEN", b"k1"),
        (b"XREAD", b"STREAMS", b"k1", b"0"),
        (b"XREAD", b"STREAMS", b"k1"),
        (b"XREAD", b"COUNT", b"1", b"STREAMS", b"k1", b"z", b"0"),
        (b"XINFO", b"STREAM", b"k1"),
        (b"XINFO", b"NOPE", b"k1"),
        (b"XINFO",),
    ]
)


def frames_of(data: bytes) -> list[Any]:
    """The frames in the model's output; nothing may be left over."""
    reader = Reader()
    reader.feed(data)
    frames = []
    while (frame := reader.gets()) is not False:
        frames.append(frame)
    assert not reader.has_data()
    return frames


def shown(frame: Any) -> Any:
    """A frame in a comparable form, without the values that differ between servers."""
    if isinstance(frame, ReplyError):
        return "error", str(frame)
    if isinstance(frame, dict):
        return {key: shown(value) for key, value in frame.items() if key != b"id"}
    if isinstance(frame, list):
        parts = [shown(part) for part in frame]
        if parts[:1] == [b"server"] and b"id" in parts:  # the answer to HELLO
            parts[parts.index(b"id") + 1] = "some id"
        return ("push" if isinstance(frame, PushNotification) else "list"), parts
    return frame


def comparable(frames: list[Any], command: Command) -> list[Any]:
    """Frames without the order of Redis's hash tables."""
    words = command[0].lower(), command[1].lower() if len(command) > 1 else b""
    result = [shown(frame) for frame in frames]
    if words == (b"xinfo", b"stream"):
        return [{key: frame.get(key) for key in STREAM_INFO} if isinstance(frame, dict) else frame for frame in result]
    if words == (b"pubsub", b"channels"):
        return [(kind, sorted(names)) if kind == "list" else (kind, names) for kind, names in result]
    if words[0] in (b"unsubscribe", b"punsubscribe") and len(command) == 1:
        names = sorted(str(frame[1][1]) for frame in result)
        return [names, [frame[1][2] for frame in result if frame[0] != "error"]]
    if words[0] == b"publish":
        kinds = [str(frame[1][0]) if isinstance(frame, tuple) else "reply" for frame in result]
        patterns = sorted(str(frame) for frame, kind in zip(result, kinds, strict=True) if kind == "b'pmessage'")
        rest = [frame for frame, kind in zip(result, kinds, strict=True) if kind != "b'pmessage'"]
        return [kinds, patterns, rest]
    return result


class Both:
    """The same connections to the model and to a real server; each step compares the frames of each connection."""

    def __init__(self, port: int, users: dict[str, str], hard_bytes: int = HARD_BYTES) -> None:
        self.port = port
        options = RedisOptions(users=users, pubsub_limit=BufferLimit(hard_bytes, 0, 0))
        self.model = ModelRedis(options, "0" * 40)
        self.pairs: list[tuple[Client, RealClient]] = []

    def open(self) -> None:
        self.pairs.append((self.model.open(), RealClient(self.port)))

    def run(self, index: int, command: Command) -> None:
        client, real = self.pairs[index]
        self.model.execute(client, command, 0.0)
        real.send(command)
        self.compare(command, first=index)

    def compare(self, command: Command, first: int = 0) -> None:
        """Reads every connection, starting with the one that sent the command, so that the command has run."""
        order = self.pairs[first : first + 1] + self.pairs[:first] + self.pairs[first + 1 :]
        for client, real in order:
            ours = frames_of(self.model.take_output(client))
            theirs, stands = real.frames_until_fence()
            assert comparable(ours, command) == comparable(theirs, command)
            assert stands == (not client.closing)
            if client.closing:
                self.model.close(client)
                real.quit()
        self.pairs = [pair for pair in self.pairs if not pair[0].closing]

    def close(self, index: int) -> None:
        client, real = self.pairs.pop(index)
        self.model.close(client)
        real.quit()

    def close_all(self) -> None:
        while self.pairs:
            self.close(0)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    lines = [f"{name} {line}" for name, line in USERS.items() if name != "default"]
    limit = f"client-output-buffer-limit pubsub {HARD_BYTES} 0 0"
    with RedisServer(users=lines, config=[limit]) as server:
        yield server


class ModelMachine(RuleBasedStateMachine):
    """Random operations on up to CLIENTS_MAX connections."""

    port: ClassVar[int]

    def __init__(self) -> None:
        super().__init__()
        self.both = Both(self.port, USERS)
        self.admin = RealClient(self.port)
        self.admin.call(b"FLUSHALL")

    def teardown(self) -> None:
        self.both.close_all()
        self.admin.quit()

    def run(self, pick: int, *command: bytes) -> None:
        self.both.run(pick % len(self.both.pairs), command)

    @initialize(count=st.integers(0, 3))
    def begin(self, count: int) -> None:
        for _ in range(count):
            self.connect(hello=True)

    @precondition(lambda self: len(self.both.pairs) < CLIENTS_MAX)
    @rule(hello=st.booleans())
    def connect(self, hello: bool) -> None:
        self.both.open()
        if hello:
            self.run(-1, b"HELLO", b"3")

    @precondition(lambda self: self.both.pairs)
    @rule(pick=st.integers(0, 9))
    def close(self, pick: int) -> None:
        self.both.close(pick % len(self.both.pairs))
        self.both.compare((b"CLOSE",))

    @precondition(lambda self: self.both.pairs)
    @rule(pick=st.integers(0, 9), channels=st.lists(CHANNEL, min_size=1, max_size=4))
    def subscribe(self, pick: int, channels: list[bytes]) -> None:
        self.run(pick, b"SUBSCRIBE", *channels)

    @precondition(lambda self: self.both.pairs)
    @rule(pick=st.integers(0, 9), patterns=st.lists(PATTERN, min_size=1, max_size=4))
    def psubscribe(self, pick: int, patterns: list[bytes]) -> None:
        self.run(pick, b"PSUBSCRIBE", *patterns)

    @precondition(lambda self: self.both.pairs)
    @rule(pick=st.integers(0, 9), channels=st.lists(CHANNEL, max_size=3))
    def unsubscribe(self, pick: int, channels: list[bytes]) -> None:
        self.run(pick, b"UNSUBSCRIBE", *channels)

    @precondition(lambda self: self.both.pairs)
    @rule(pick=st.integers(0, 9), patterns=st.lists(PATTERN, max_size=3))
    def punsubscribe(self, pick: int, patterns: list[bytes]) -> None:
        self.run(pick, b"PUNSUBSCRIBE", *patterns)

    @precondition(lambda self: self.both.pairs)
    @rule(pick=st.integers(0, 9), channel=CHANNEL, payload=PAYLOAD)
    def publish(self, pick: int, channel: bytes, payload: bytes) -> None:
        self.run(pick, b"PUBLISH", channel, payload)

    @precondition(lambda self: self.both.pairs)
    @rule(pick=st.integers(0, 9), channels=st.lists(CHANNEL, max_size=3), pattern=PATTERN)
    def look(self, pick: int, channels: list[bytes], pattern: bytes) -> None:
        for command in (
            (b"PUBSUB", b"NUMSUB", *channels),
            (b"PUBSUB", b"NUMPAT"),
            (b"PUBSUB", b"CHANNELS"),
            (b"pubsub", b"channels", pattern),
        ):
            self.run(pick, *command)

    @precondition(lambda self: self.both.pairs)
    @rule(pick=st.integers(0, 9), login=LOGIN, hello=st.booleans())
    def log_in(self, pick: int, login: tuple[bytes, bytes], hello: bool) -> None:
        self.run(pick, *((b"HELLO", b"3", b"AUTH", *login) if hello else (b"AUTH", *login)))

    @precondition(lambda self: self.both.pairs)
    @rule(pick=st.integers(0, 9), command=ODD)
    def odd(self, pick: int, command: Command) -> None:
        self.run(pick, *command)

    @precondition(lambda self: self.both.pairs)
    @rule(pick=st.integers(0, 9))
    def quit(self, pick: int) -> None:
        self.run(pick, b"QUIT")

    @precondition(lambda self: self.both.pairs)
    @rule(channel=CHANNEL, size=st.sampled_from([1_000, 20_000, 100_000]), count=st.sampled_from([3, 20, 60]))
    def burst(self, channel: bytes, size: int, count: int) -> None:
        """Many messages in one step of the server: it writes nothing meanwhile, as if the clients did not read."""
        model = self.both.model
        copies = [self.copies(client, channel) for client, _ in self.both.pairs]
        if any(HARD_BYTES / 2 < each * size * count < HARD_BYTES * 2 + STATIC_BUFFER_BYTES for each in copies):
            return  # Redis counts blocks, the model bytes: near the limit they may differ
        script = b"for i = 1, ARGV[2] do redis.call('PUBLISH', ARGV[1], string.rep('x', ARGV[3])) end"
        self.admin.call(b"EVAL", script, b"0", channel, b"%d" % count, b"%d" % size)
        for _ in range(count):
            model.publish(channel, b"x" * size)
        self.both.compare((b"PUBLISH", channel))

    def copies(self, client: Client, channel: bytes) -> int:
        """How many times a client gets a message on that channel."""
        probe = ModelRedis(RedisOptions(), "")
        listener, speaker = probe.open(), probe.open()
        for pattern in client.patterns:
            probe.execute(listener, (b"PSUBSCRIBE", pattern), 0.0)
        probe.execute(speaker, (b"PUBLISH", channel, b""), 0.0)
        return int(frames_of(speaker.output[0])[0]) + (channel in client.channels)


def test_random_operations_give_the_same_frames(server: RedisServer) -> None:
    machine = type("Machine", (ModelMachine,), {"port": server.port})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=120,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )


def test_a_server_with_a_password(server: RedisServer) -> None:
    with RedisServer(password="sesame") as locked:
        both = Both(locked.port, {"default": "on >sesame ~* &* +@all"})
        both.open()
        for command in (
            (b"PING",),
            (b"SUBSCRIBE", b"a"),
            (b"NOPE",),
            (b"PUBLISH", b"a"),
            (b"PUBSUB", b"NOPE"),
            (b"HELLO", b"3"),
            (b"HELLO", b"9"),
            (b"HELLO", b"3", b"AUTH", b"default", b"bad"),
            (b"AUTH", b"bad"),
            (b"AUTH", b"sesame"),
            (b"HELLO", b"3"),
            (b"SUBSCRIBE", b"a"),
            (b"PUBLISH", b"a", b"1"),
        ):
            both.run(0, command)
        both.close_all()


def test_two_connections_with_the_same_pattern_and_a_user_with_few_rights(server: RedisServer) -> None:
    both = Both(server.port, USERS)
    for _ in range(3):
        both.open()
    for index, command in (
        (0, (b"HELLO", b"3")),
        (1, (b"HELLO", b"3", b"AUTH", b"reader", b"r")),
        (2, (b"HELLO", b"3", b"AUTH", b"writer", b"w")),
        (0, (b"PSUBSCRIBE", b"a*", b"*")),
        (1, (b"PSUBSCRIBE", b"a*")),
        (
            1,
            (b"PSUBSCRIBE", b"ab*"),
        ),  # narrower than the allowed pattern, and yet refused: patterns are compared literally
        (1, (b"PSUBSCRIBE", b"t.1")),
        (1, (b"SUBSCRIBE", b"t.1", b"b")),
        (1, (b"SUBSCRIBE", b"t.1")),
        (2, (b"PUBLISH", b"a", b"1")),
        (2, (b"PUBLISH", b"bcd", b"2")),
        (2, (b"PUBLISH", b"t.1", b"3")),
        (2, (b"SUBSCRIBE", b"t.1")),
        (2, (b"SUBSCRIBE", b"a")),
        (0, (b"PUBLISH", b"t.1", b"4")),
    ):
        both.run(index, command)
    both.close_all()


def test_keys_and_streams(server: RedisServer) -> None:
    both = Both(server.port, USERS)
    both.open()
    for command in (
        (b"HELLO", b"3"),
        (b"DEL", b"s", b"k"),
        (b"XADD", b"s", b"0-0", b"f", b"v"),
        (b"XADD", b"s", b"5-1", b"f", b"v"),
        (b"XADD", b"s", b"5-1", b"f", b"v"),
        (b"XADD", b"s", b"6", b"f", b"v", b"g", b"w"),
        (b"XADD", b"s", b"x", b"f", b"v"),
        (b"XADD", b"s", b"7", b"f", b"v", b"g"),
        (b"XADD", b"s", b"MAXLEN", b"2", b"7-0", b"f", b"v"),
        (b"XLEN", b"s"),
        (b"XADD", b"s", b"MAXLEN", b"=", b"1", b"8-0", b"f", b"v"),
        (b"XADD", b"s", b"MAXLEN", b"x", b"9-0", b"f", b"v"),
        (b"XLEN", b"s"),
        (b"XREVRANGE", b"s", b"+", b"-"),
        (b"XADD", b"s", b"9-1", b"f", b"w"),
        (b"XREVRANGE", b"s", b"+", b"-", b"COUNT", b"1"),
        (b"XREVRANGE", b"s", b"(9-1", b"-", b"COUNT", b"5"),
        (b"XREVRANGE", b"none", b"+", b"-", b"COUNT", b"1"),
        (b"XREVRANGE", b"s", b"+", b"-", b"COINT", b"1"),
        (b"XREAD", b"STREAMS", b"s", b"0"),
        (b"XREAD", b"STREAMS", b"s", b"8"),
        (b"XREAD", b"STREAMS", b"s", b"8-0"),
        (b"XREAD", b"STREAMS", b"s", b"9-1"),
        (b"XADD", b"s", b"9-2", b"f", b"x", b"g", b"y"),
        (b"XREAD", b"COUNT", b"1", b"STREAMS", b"s", b"8-0"),
        (b"xread", b"count", b"9", b"streams", b"none", b"s", b"0", b"9-1"),
        (b"XREAD", b"STREAMS", b"none", b"0"),
        (b"XREAD", b"STREAMS", b"s", b"x"),
        (b"XREAD", b"STREAMS", b"s", b"none", b"0"),
        (b"XREAD", b"COUNT", b"1", b"s"),
        (b"XINFO", b"STREAM", b"s"),
        (b"XADD", b"s", b"MAXLEN", b"0", b"11-0", b"f", b"v"),
        (b"XINFO", b"STREAM", b"s"),
        (b"XREAD", b"STREAMS", b"s", b"0"),
        (b"XINFO", b"STREAM", b"none"),
        (b"DEL", b"set"),
        (b"SADD", b"set", b"a"),
        (b"SADD", b"set", b"a"),
        (b"SMEMBERS", b"set"),
        (b"SMEMBERS", b"none"),
        (b"SADD", b"s", b"a"),
        (b"SMEMBERS", b"s"),
        (b"XREVRANGE", b"set", b"+", b"-"),
        (b"GET", b"set"),
        (b"GET", b"s"),
        (b"SET", b"k", b"v"),
        (b"XLEN", b"k"),
        (b"XREAD", b"STREAMS", b"k", b"0"),
        (b"XINFO", b"STREAM", b"k"),
        (b"XADD", b"k", b"1-1", b"f", b"v"),
        (b"GET", b"k"),
        (b"DEL", b"k", b"s", b"none"),
        (b"GET", b"k"),
    ):
        both.run(0, command)
    both.close_all()


@pytest.mark.parametrize("subscribed", [False, True])
def test_a_connection_is_ended_by_number_and_kind(server: RedisServer, subscribed: bool) -> None:
    both = Both(server.port, USERS)
    for index in range(2):
        both.open()
        both.run(index, (b"HELLO", b"3"))
    if subscribed:
        both.run(1, (b"SUBSCRIBE", b"a"))
    killer, victim = both.pairs
    numbers = victim[0].id, victim[1].call(b"CLIENT", b"ID")
    kills = [(b"CLIENT", b"KILL", b"ID", b"%d" % number, b"TYPE", b"pubsub", b"SKIPME", b"yes") for number in numbers]
    both.model.execute(killer[0], kills[0], 0.0)
    killer[1].send(kills[1])
    for replies in (frames_of(both.model.take_output(killer[0])), killer[1].frames_until_fence()[0]):
        assert replies == [int(subscribed)]
    assert bool(victim[0].closing) is subscribed
    assert victim[1].frames_until_fence() == ([], not subscribed)
    both.close_all()


def test_own_messages_come_after_the_reply_where_the_server_is_newer() -> None:
    model = ModelRedis(RedisOptions(push_after_reply=True), "")
    client = model.open()
    for command in ((b"HELLO", b"3"), (b"SUBSCRIBE", b"a"), (b"PUBLISH", b"a", b"1"), (b"PING",)):
        model.execute(client, command, 0.0)
    assert frames_of(model.take_output(client))[1:] == [[b"subscribe", b"a", 1], 1, [b"message", b"a", b"1"], b"PONG"]


def test_a_client_that_stays_above_the_soft_limit_is_disconnected() -> None:
    backlog = NoBacklog()
    limit = BufferLimit(hard_bytes=0, soft_bytes=1000, soft_s=10.0)
    model = ModelRedis(RedisOptions(pubsub_limit=limit), "")
    client = model.open(backlog)
    model.execute(client, (b"SUBSCRIBE", b"a"), 0.0)
    backlog.unsent_bytes = STATIC_BUFFER_BYTES + 2000
    for now, expected in ((5.0, ""), (15.0, ""), (15.1, "output buffer limit")):
        model.now = now
        model.check_soft_limit(client)
        assert client.closing == expected
    assert model.cut_off == 1
