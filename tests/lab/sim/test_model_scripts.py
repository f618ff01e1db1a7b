"""The model of Redis' collections and scripts, compared with a real server: the same operations must give the same
replies, and leave the same keys behind."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from hiredis import ReplyError
from tests.lab.sim.real_redis import RealClient
from tests.support.redis_server import RedisServer

from shoal.limits import DEFAULT_LIMITS
from shoal.queues.consumer import ConsumerCore
from shoal.queues.keyspace.collections import Hash, SortedSet, Stream, score_text
from shoal.queues.keyspace.keys import Keys
from shoal.queues.keyspace.scripts import ScriptCache, run_script
from shoal.queues.message_format import read_pushed
from shoal.queues.queue_state import unpack_state
from shoal.queues.script_loader import load_scripts
from shoal.queues.settings import CLOCK_STEP_S, ConsumerSettings

PREFIX = b"__shoal:q:orders:"
INBOX = PREFIX + b"in:c1"
CLOCK = b"test-clock"
TIME_CALL = b"redis.call('TIME')"
CLOCK_CALL = b"{redis.call('GET', '" + CLOCK + b"'), '0'}"
"""The real server's time cannot be set, so both sides read it from a key."""


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="module")
def real(server: RedisServer) -> Iterator[RealClient]:
    client = RealClient(server.port)
    yield client
    client.quit()


@pytest.fixture
def listener(server: RedisServer) -> Iterator[RealClient]:
    client = RealClient(server.port)
    yield client
    client.quit()


def show(reply: Any) -> Any:
    """A reply that can be compared: Redis adds the script and the line to the text of some errors."""
    if isinstance(reply, ReplyError):
        return str(reply).split(" script:")[0]
    return [show(part) for part in reply] if isinstance(reply, list) else reply


def real_keys(real: RealClient) -> dict[bytes, Any]:
    """All keys and their values."""
    found: dict[bytes, Any] = {}
    for key in real.call(b"KEYS", b"*"):
        kind = real.call(b"TYPE", key)
        read = {
            b"string": (b"GET", key),
            b"list": (b"LRANGE", key, b"0", b"-1"),
            b"hash": (b"HGETALL", key),
            b"zset": (b"ZRANGE", key, b"0", b"-1", b"WITHSCORES"),
            b"set": (b"SMEMBERS", key),
            b"stream": (b"XRANGE", key, b"-", b"+"),
        }[kind.encode() if isinstance(kind, str) else kind]
        value = real.call(*read)
        if read[0] == b"HGETALL":
            value = dict(zip(value[::2], value[1::2], strict=True))
        found[key] = set(value) if read[0] == b"SMEMBERS" else value
    return found


def model_keys(keys: Keys) -> dict[bytes, Any]:
    """The same of the model."""
    found: dict[bytes, Any] = {}
    for key, value in keys.values.items():
        if isinstance(value, Hash):
            found[key] = value.fields
        elif isinstance(value, SortedSet):
            found[key] = [part for score, member in value.ordered for part in (member, score_text(score))]
        elif isinstance(value, Stream):
            found[key] = [[b"%d-%d" % number, list(fields)] for number, fields in value.entries]
        else:
            found[key] = set(value) if isinstance(value, dict) else value
    return found


def random_command(rng: Random) -> tuple[bytes, ...]:
    """A command on one of a few keys, which may hold another type."""

    def key() -> bytes:
        return rng.choice((b"a", b"b", b"c"))

    def word() -> bytes:
        return rng.choice((b"x", b"y", b"z", b"\0\xff", b""))

    def number() -> bytes:
        return b"%d" % rng.randint(-3, 4)

    def score() -> bytes:
        return rng.choice((b"1", b"2", b"2.5", b"10", b"1700000000000"))

    return rng.choice(
        (
            lambda: (b"LPUSH", key(), word()),
            lambda: (b"RPUSH", key(), word(), word()),
            lambda: (b"LPOP", key()),
            lambda: (b"LPOP", key(), number()),
            lambda: (b"LTRIM", key(), number(), number()),
            lambda: (b"LLEN", key()),
            lambda: (b"LRANGE", key(), number(), number()),
            lambda: (b"LINDEX", key(), number()),
            lambda: (b"LREM", key(), b"0", word()),
            lambda: (b"HSET", key(), word(), word()),
            lambda: (b"HGET", key(), word()),
            lambda: (b"HMGET", key(), word(), word()),
            lambda: (b"HDEL", key(), word()),
            lambda: (b"HGETALL", key()),
            lambda: (b"HKEYS", key()),
            lambda: (b"HLEN", key()),
            lambda: (b"HINCRBY", key(), b"n" + word(), number()),
            lambda: (b"HSCAN", key(), b"0", b"COUNT", b"10"),
            lambda: (b"ZADD", key(), score(), word()),
            lambda: (b"ZREM", key(), word()),
            lambda: (b"ZSCORE", key(), word()),
            lambda: (b"ZCARD", key()),
            lambda: (b"ZRANGE", key(), number(), number()),
            lambda: (b"ZRANGE", key(), number(), number(), b"WITHSCORES"),
            lambda: (b"ZRANGEBYSCORE", key(), b"-inf", score(), b"LIMIT", b"0", b"2"),
            lambda: (b"SADD", key(), word()),
            lambda: (b"SREM", key(), word()),
            lambda: (b"SISMEMBER", key(), word()),
            lambda: (b"SCARD", key()),
            lambda: (b"XADD", key(), b"%d-0" % rng.randint(1, 40), b"f", word()),
            lambda: (b"XLEN", key()),
            lambda: (b"XRANGE", key(), b"-", b"+"),
            lambda: (b"XRANGE", key(), b"(%d-0" % rng.randint(1, 40), b"+", b"COUNT", b"2"),
            lambda: (b"XDEL", key(), b"%d-0" % rng.randint(1, 40)),
            lambda: (b"UNLINK", key(), key()),
            lambda: (b"EXISTS", key()),
            lambda: (b"SET", key(), word()),
            lambda: (b"GET", key()),
        )
    )()


def test_commands_reply_as_a_real_server_does(real: RealClient) -> None:
    rng = Random(1)
    real.call(b"FLUSHALL")
    model = Keys()
    for number in range(4000):
        command = random_command(rng)
        expected, got = show(real.call(*command)), show(model.execute(command, 0.0))
        if isinstance(expected, str) and not isinstance(got, str):
            expected = expected.encode()  # a status reply
        assert got == expected, (number, command)
        if number % 50 == 0:
            assert model_keys(model) == real_keys(real)
            for command in ((b"UNLINK", b"a"), (b"UNLINK", b"b")):
                assert model.execute(command, 0.0) == real.call(*command)


def test_an_unknown_script_is_refused_and_a_loaded_one_runs() -> None:
    cache = ScriptCache()

    def nobody(channel: bytes, payload: bytes) -> int:
        return 0

    assert "NOSCRIPT" in str(cache.run(b"0" * 40, (), (), Keys(), nobody, 0.0))
    name = cache.load(b"return {KEYS[1], ARGV[1], 3.9, false, 'unseen'}")
    assert cache.run(name.upper(), (b"k",), (b"a",), Keys(), nobody, 0.0) == [b"k", b"a", 3, None, b"unseen"]


class Pair:
    """The scripts of queues on a real server and in the model. A consumer may listen on its inbox on both."""

    def __init__(self, real: RealClient, listener: RealClient | None = None) -> None:
        self.real, self.model, self.now = real, Keys(), 1_700_000_000
        self.listener = listener
        real.call(b"FLUSHALL")
        scripts = load_scripts()
        self.texts = {one.name: one.text.replace(TIME_CALL, CLOCK_CALL) for one in scripts}
        assert all(CLOCK_CALL in text for text in self.texts.values())
        self.shas = {name: real.call(b"SCRIPT", b"LOAD", text) for name, text in self.texts.items()}
        self.pushed: list[list[bytes]] = []  # by the last call
        self.pushes = 0
        if listener is not None:
            listener.call(b"SUBSCRIBE", INBOX)

    def run(self, name: str, *arguments: bytes, prefix: bytes = PREFIX) -> Any:
        """The reply of both, which must be the same."""
        clock = b"%d" % self.now
        self.real.call(b"SET", CLOCK, clock)
        self.model.execute((b"SET", CLOCK, clock), 0.0)
        expected = show(self.real.call(b"EVALSHA", self.shas[name], b"1", prefix, *arguments))
        self.pushed.clear()
        got = show(run_script(self.texts[name], (prefix,), arguments, self.model, self._publish, float(self.now)))
        assert got == expected, (name, arguments)
        if self.listener is not None:
            assert self.listener.frames_until_fence() == (self.pushed, True)
        return got

    def _publish(self, channel: bytes, payload: bytes) -> int:
        if self.listener is None or channel != INBOX:
            return 0
        self.pushes += 1
        self.pushed.append([b"message", channel, payload])
        return 1

    def put(self, *arguments: bytes, prefix: bytes = PREFIX) -> bytes:
        """The letters of a batch."""
        letters, _, held = self.run("put", *arguments, prefix=prefix).partition(b" ")
        assert held == self.run("look", b"stats", prefix=prefix)[1].split()[3]
        return bytes(letters)


def test_a_batch_or_a_turn_that_arrives_after_a_later_one_changes_nothing(real: RealClient) -> None:
    """A stalled connection delivers a request long after its client has sent it again on another one."""
    pair = Pair(real)
    pair.run("admin", b"create", b"1", b"3", b"40", b"400", b"12", b"2", b"20000", b"15", b"3", b"5000", b"0", b"0")
    message = (b"\1\1", b"k", b"m")
    for batch in (b"5", b"5", b"6"):
        assert pair.put(b"1", b"p", batch, *message) == b"A"
    assert pair.run("put", b"1", b"p", b"5", *message).startswith("LATE")
    assert pair.run("look", b"stats")[1].split()[3] == b"2"
    for turn in (b"1", b"2"):
        assert pair.run("turn", b"1", b"c", turn, b"1", b"0", b"0", b"0", b"3", b"")[8] == []
    assert pair.run("turn", b"1", b"c", b"1", b"1", b"0", b"4", b"4", b"3", b"").startswith("LATE")
    assert pair.run("turn", b"1", b"c", b"2", b"1", b"0", b"4", b"4", b"3", b"R")[8:10] == [[], []], "it takes nothing"
    assert len(pair.run("turn", b"1", b"c", b"3", b"1", b"0", b"4", b"4", b"3", b"")[8]) == 1


def test_a_turn_leaves_a_lease_that_outlasts_what_its_consumer_counts_on(real: RealClient) -> None:
    """With 10 seconds and more, consumers counted on a longer lease than a turn without renewal left them."""
    pair = Pair(real)
    lease_s = 60
    pair.run("admin", b"create", b"1", b"3", b"40", b"400", b"12", b"2", b"20000", b"15", b"3", b"60000", b"0", b"0")
    core = ConsumerCore("orders", b"c1", 1, float(lease_s), ConsumerSettings(), DEFAULT_LIMITS)
    for step in (0, 1, 0, 1, 1, 0, 1):
        pair.now += step
        core.disconnected(float(pair.now))
        arguments = core.turn(float(pair.now))
        assert arguments is not None
        core.reply(pair.run("turn", *arguments), float(pair.now))
        now_ms = int(pair.run("look", b"stats")[1].split()[0])
        left_s = (float(real.call(b"ZSCORE", PREFIX + b"leases", b"c1")) - now_ms) / 1000
        assert left_s - 2 * CLOCK_STEP_S >= core._lease_until - pair.now > 0.9 * (lease_s - 3)


PLAIN = (b"\1\1", b"k1", b"x")
"""A message of shard 1 in a group."""
OTHER = b"__shoal:q:other:"
"""The same queue on another store: another prefix on the same server."""
CONF = (b"1", b"3", b"1000", b"100000", b"500", b"2", b"20000", b"1500", b"300", b"5000", b"1", b"0")


class Shard1:
    """A queue with three shards at one prefix, and shard 1 on its way to the other prefix."""

    def __init__(self, real: RealClient, rng: Random) -> None:
        self.pair = Pair(real)
        self.pair.run("admin", b"create", *CONF)
        self.keys = [b"k%d" % number for number in range(12)]
        for batch in range(30):
            words = [b"1", b"p", b"%d" % (batch + 1), b""]
            for _ in range(rng.randint(1, 12)):
                words += [b"1", rng.choice(self.keys), b"m" * rng.randint(1, 30)]
                words += [rng.choice((b"", b"i%d" % rng.randint(0, 30))), rng.choice((b"0", b"0", b"9000"))]
            self.pair.run("put", *words)
            self.pair.now += rng.choice((0, 0, 1))
        turn = 0
        for _ in range(6):  # some keys are held, some wait for a retry, some are halted
            turn += 1
            reply = self.pair.run("turn", b"1", b"c1", b"%d" % turn, b"1", b"0", b"2", b"20", b"3", b"")
            for shard, key, token, *_ in reply[8]:
                turn += 1
                fate = rng.choice(((b"F", b"2000", b"why"), (b"F", b"-1", b"why"), (b"S", b"", b"")))
                operation = (fate[0], shard, key, token, b"0", *fate[1:])
                self.pair.run("turn", b"1", b"c1", b"%d" % turn, b"1", b"0", b"0", b"0", b"3", b"", *operation)

    def ship(self, operation: bytes, revision: int, *arguments: bytes, to: bytes = PREFIX) -> Any:
        return self.pair.run("ship", operation, b"1", b"%d" % revision, *arguments, prefix=to)

    def copy(self, revision: int, since: bytes) -> None:
        """Copies the shard, each page twice."""
        facts = self.ship(b"seal", revision, b"1", since)
        assert self.ship(b"seal", revision, b"1", since) == facts
        cursor = b"0.0"
        while cursor != b"end":
            to, *page = self.ship(b"export", revision, b"1", since, cursor)
            for _ in range(2):
                got = self.ship(b"import", revision, b"1", since, facts, cursor, to, *page, to=OTHER)
                assert got == to
            cursor = to

    def content(self, prefix: bytes) -> dict[bytes, Any]:
        """What is in shard 1, without the names of its store."""
        found = {key.removeprefix(prefix): value for key, value in model_keys(self.pair.model).items()}
        return {
            key: value
            for key, value in found.items()
            if key.startswith(b"1:") and not key.endswith((b":ship", b":due", b":dead"))
        }


@pytest.mark.parametrize("seed", range(4))
def test_a_shard_moves_with_everything_in_it_and_back(real: RealClient, seed: int) -> None:
    world = Shard1(real, Random(seed))
    before = world.content(PREFIX)
    stats = world.pair.run("look", b"stats")
    assert any(key.startswith(b"1:k:") for key in before)
    assert world.ship(b"place", 2, b"2", b"gig", *CONF, to=OTHER) == []
    world.copy(3, b"2")
    assert world.content(PREFIX) == before, "a sealed shard does not change"
    assert world.content(OTHER) == before
    assert world.ship(b"place", 4, b"2", b"gog", *CONF, to=OTHER) == []
    there = world.pair.run("look", b"stats", prefix=OTHER)
    names = ("now", "wall", "counter", "messages", "bytes", "keys", "owned", "ready", "delayed", "ids", "ids_old")
    now, then = (dict(zip(names, reply[1].split(), strict=False)) for reply in (there, stats))
    for name in ("messages", "bytes", "keys", "owned", "ready", "delayed"):
        assert now[name] == then[name], name
    assert int(now["ids"]) + int(now["ids_old"]) == int(then["ids"]) + int(then["ids_old"])
    assert int(now["counter"]) >= int(then["counter"])
    assert there[4:6] == stats[4:6], "dead letters and halted keys"
    assert there[2] == 1, "the consumer has a lease"

    assert world.ship(b"place", 4, b"2", b"ogo", *CONF) == [b"1"]
    while world.ship(b"drop", 4, b"1", b"20"):
        pass
    assert world.content(PREFIX) == {}
    left = dict(zip(names, world.pair.run("look", b"stats")[1].split(), strict=False))
    assert [left[name] for name in ("messages", "bytes", "keys", "owned", "ready", "delayed", "ids")] == [b"0"] * 7
    assert world.pair.put(b"1", b"p", b"99", *PLAIN) == b"", "it must come without groups"
    assert world.pair.put(b"1", b"p", b"99", b"", b"1", b"k1", b"x", b"", b"0") == b"M"
    assert world.pair.put(b"1", b"p", b"99", *PLAIN, prefix=OTHER) == b"A"
    assert model_keys(world.pair.model) == real_keys(real)


@pytest.mark.parametrize("aborted", [False, True])
def test_a_move_does_not_end_a_lease_from_before_it_was_shortened(real: RealClient, aborted: bool) -> None:
    """The consumer still counts on its long lease, and another one would get its keys."""
    world = Shard1(real, Random(1))
    short = (*CONF[:9], b"1000", *CONF[10:])
    world.ship(b"place", 2, b"2", b"gig", *short, to=OTHER)
    assert world.pair.run("admin", b"configure", *short, b"2") == 1
    world.copy(3, b"2")
    states, prefix = (b"ooo", PREFIX) if aborted else (b"gog", OTHER)
    assert world.ship(b"place", 4, b"0" if aborted else b"2", states, *short, to=prefix) == []
    now, *_ = unpack_state(real.call(b"GET", prefix + b"state"))
    assert float(real.call(b"ZSCORE", prefix + b"leases", b"c1")) - now == 5000


def test_a_move_that_is_aborted_leaves_the_shard_open_and_its_late_calls_change_nothing(real: RealClient) -> None:
    world = Shard1(real, Random(7))
    before, stats = world.content(PREFIX), world.pair.run("look", b"stats")
    world.ship(b"place", 2, b"2", b"gig", *CONF, to=OTHER)
    world.copy(3, b"2")
    one, two = (b"1", b"k1", b"x", b"", b"0"), (b"2", b"z", b"x", b"", b"0")
    assert world.pair.put(b"1", b"p", b"97", b"", *one, *two, *one) == b"MAM"
    assert world.pair.put(b"1", b"p", b"97", b"", *one, *two, *one) == b"MAM", "the same batch again"
    assert world.ship(b"place", 4, b"0", b"ooo", *CONF) == []
    assert world.content(PREFIX) == before
    owned, ready, delayed = (int(word) for word in stats[1].split()[6:9])
    assert [int(word) for word in world.pair.run("look", b"stats")[1].split()[6:9]] == [owned, ready + 1, delayed]
    assert world.ship(b"place", 4, b"0", b"ggg", *CONF, to=OTHER) == [b"1"]
    for late in ((b"seal", b"1", b"2"), (b"export", b"1", b"2", b"0.0")):
        assert world.ship(late[0], 3, *late[1:]).startswith("STALE")
    assert world.ship(b"import", 3, b"1", b"2", b"2 0 0 0 0 0 0", b"0.0", b"end", to=OTHER).startswith("STALE")
    while world.ship(b"drop", 4, b"1", b"50", to=OTHER):
        pass
    assert world.content(OTHER) == {}
    assert world.pair.put(b"1", b"p", b"99", *PLAIN) == b"A"
    assert model_keys(world.pair.model) == real_keys(real)


@pytest.mark.parametrize("seed", range(6))
def test_scripts_do_the_same_on_a_real_server_and_in_the_model(
    real: RealClient, listener: RealClient, seed: int
) -> None:
    rng = Random(seed)
    pair = Pair(real, listener if seed % 2 else None)
    halt = b"%d" % (seed % 2)
    pair.run("admin", b"create", b"1", b"3", b"40", b"400", b"12", b"2", b"20000", b"15", b"3", b"5000", halt, b"0")
    batches = dict.fromkeys((b"p1", b"p2"), 0)
    held: dict[bytes, list[list[Any]]] = {b"c1": [], b"c2": [], b"c3": []}
    seen: set[str] = set()
    turns = 0
    for step in range(400):
        pair.now += rng.choice((0, 0, 1, 1, 2, 7))
        choice = rng.random()
        if choice < 0.4:
            producer = rng.choice((b"p1", b"p2"))
            batches[producer] += rng.random() < 0.8  # otherwise the same batch again
            words, plain = [b"1", producer, b"%d" % batches[producer]], rng.random() < 0.5
            pairs: list[bytes] = []
            groups = b""
            for _ in range(rng.randint(1, 6)):
                key, body = b"k%d" % rng.randint(0, 14), b"m" * rng.randint(1, 30)
                shard, pairs, groups = key[-1] % 3, [*pairs, key, body], groups + bytes((key[-1] % 3, 1))
                if not plain:
                    given = rng.choice((b"", b"i%d" % rng.randint(0, 9))), rng.choice((b"0", b"0", b"3000"))
                    pairs[-2:] = [b"%d" % shard, key, body, *given]
            seen.add("grouped" if plain else "single")
            letters = pair.put(*words, groups if plain else b"", *pairs).decode()
            seen.update(letters or ["no letters"])
        elif choice < 0.9:
            consumer = rng.choice((b"c1", b"c1", b"c2", b"c3"))
            flags = rng.choice((b"", b"", b"", b"R", b"L"))
            turns += rng.random() < 0.9  # otherwise the same turn again
            words = [b"1", consumer, b"%d" % turns, b"1.5", b"1", b"%d" % rng.randint(0, 6), b"20", b"3", flags]
            for shard, key, token, *_ in rng.sample(held[consumer], min(2, len(held[consumer]))):
                code = rng.choice("DDDSFGE")
                upto = rng.choice((b"0", b"1", b"2"))
                extra = {"D": (b"0", b"2"), "F": (rng.choice((b"2000", b"-1")), b"why"), "G": (b"F", b"")}
                words += [code.encode(), shard, key, token, upto, *extra.get(code, (b"", b""))]
                seen.add(code)
            reply = pair.run("turn", *words)
            held[consumer] += reply[8]
            if flags == b"L":
                held[consumer] = []
        else:
            operation = rng.choice(("stats", "keys", "dead", "replay", "pause", "purge", "release", "peek"))
            more = {
                "keys": (b"%d" % rng.randint(0, 2), b"5"),
                "dead": (b"", b"9"),
                "replay": (b"%d-0" % rng.randint(1, 900),),
                "pause": (b"%d" % (6 * step + rng.choice((0, 0, 1))),),
                "purge": (b"%d" % rng.randint(1, 6),),
                "release": (b"%d" % rng.randint(0, 2), b"k%d" % rng.randint(0, 14)),
                "peek": (b"1", b"k1", b"0", b"3"),
            }
            if operation == "replay" and (letters := pair.run("look", b"dead", b"", b"9")):
                more["replay"] = (letters[0][0],)
            script = "look" if operation in ("stats", "keys", "dead", "peek") else "repair"
            head = () if script == "look" else (b"1", b"operator", b"%d" % rng.randint(step, step + 1))
            reply = pair.run(script, *head, operation.encode(), *more.get(operation, ()))
            if operation == "release" and reply:
                seen.add("released")
    assert model_keys(pair.model) == real_keys(real)
    while pair.run("admin", b"drop", b"1", b"5")[1]:
        pass
    assert {*model_keys(pair.model)} == {*real_keys(real)} == {CLOCK}
    assert {*"ADFB", *"DSFGE", "grouped", "single", "no letters"} <= seen
    assert (pair.pushes > 0) == (pair.listener is not None)


def test_a_server_clock_before_1970_does_not_stop_a_queue(real: RealClient) -> None:
    pair = Pair(real)
    pair.run("admin", b"create", *CONF)
    pair.now = -100
    for number in (b"1", b"2"):  # the second call reads what the first one stored
        assert pair.put(b"1", b"p", number, *PLAIN) == b"A"


def test_an_idle_turn_of_a_waiting_consumer_writes_only_its_number(real: RealClient) -> None:
    pair = Pair(real)
    pair.run("admin", b"create", *CONF)
    idle = [b"1", b"c", b"1", b"1.5", b"0", b"6", b"20", b"3", b""]
    pair.run("turn", *idle)
    before = real_keys(real)
    idle[2] = b"2"
    assert pair.run("turn", *idle)[8] == []
    after = real_keys(real)
    changed = {name for name in after if after[name] != before.get(name)}
    assert changed <= {PREFIX + b"turns"}, changed
    assert model_keys(pair.model) == after


@pytest.mark.parametrize(
    ("keys_count", "room", "expected"), [(8, 20, [4, 4]), (8, 3, [3, 3]), (8, 1, [1, 1]), (5, 20, [2, 1, 1, 1])]
)
def test_waiting_consumers_get_equal_parts_of_a_batch_up_to_their_room(
    keys_count: int, room: int, expected: list[int]
) -> None:
    model, texts = Keys(), {one.name: one.text for one in load_scripts()}
    pushed: list[list[list[bytes]]] = []

    def listen(_: bytes, data: bytes) -> int:
        pushed.append(read_pushed(data, 3))
        return 1

    def run(name: str, *words: bytes) -> Any:
        return run_script(texts[name], (PREFIX,), words, model, listen, 1_700_000_000.0)

    run("admin", b"create", *CONF)
    for number in range(len(expected)):
        run("turn", b"1", b"c%d" % number, b"1", b"1.5", b"0", b"%d" % room, b"%d" % room, b"3", b"")
    messages = [(b"k%d" % number, b"m%d" % number) for number in range(keys_count)]
    groups = b"".join(bytes((number % 3, 1)) for number in range(keys_count))
    run("put", b"1", b"p", b"1", groups, *(word for message in messages for word in message))
    assert [len(jobs) for jobs in pushed] == expected
    keys = [job[1] for jobs in pushed for job in jobs]
    assert len({*keys}) == len(keys), "a key has one owner"
    assert all(job[7] == b"m" + job[1][1:] for jobs in pushed for job in jobs)


OLD, NEW = CONF, (b"2", *CONF[1:])
MESSAGE = (b"\1\1", b"k", b"m")


def repair(pair: Pair, number: int, *words: bytes, version: bytes = b"1") -> Any:
    return pair.run("repair", version, b"operator", b"%d" % number, *words)


def test_a_repair_that_comes_again_is_told_the_same_and_one_that_comes_late_changes_nothing(real: RealClient) -> None:
    """A purge whose reply was lost reported fewer messages than it had deleted. One that a network had kept deleted
    what was put after it."""
    pair = Pair(real)
    pair.run("admin", b"create", *CONF)
    pair.run("put", b"1", b"p", b"1", b"\1\2", *(2 * MESSAGE[1:]))
    assert repair(pair, 1, b"purge", b"5") == repair(pair, 1, b"purge", b"5") == [2, 2]
    assert repair(pair, 2, b"release", b"1", b"k") == repair(pair, 2, b"release", b"1", b"k") == 0
    pair.run("put", b"1", b"p", b"2", *MESSAGE)
    assert repair(pair, 1, b"purge", b"5").startswith("LATE")
    assert pair.run("look", b"stats")[1].split()[3] == b"1"


def test_calls_for_a_queue_that_was_dropped_do_not_hit_the_next_one_of_its_name(real: RealClient) -> None:
    """A page of `drop` that a network had kept deleted messages of the next queue."""
    pair = Pair(real)
    pair.run("admin", b"create", *OLD)
    assert pair.run("admin", b"drop", b"1", b"5") == [0, 0]
    pair.run("admin", b"create", *NEW)
    pair.run("put", b"2", b"p", b"1", *MESSAGE)
    assert pair.run("admin", b"drop", b"1", b"5").startswith("OTHERVERSION")
    assert pair.run("admin", b"configure", *OLD, b"9").startswith("OTHERVERSION")
    assert repair(pair, 1, b"purge", b"5").startswith("OTHERVERSION")
    assert pair.run("look", b"stats")[1].split()[3] == b"1"


def test_limits_of_an_older_entry_that_come_late_are_refused(real: RealClient) -> None:
    pair = Pair(real)
    pair.run("admin", b"create", *CONF)
    newer = (*CONF[:2], b"7", *CONF[3:])
    assert pair.run("admin", b"configure", *newer, b"5") == 1
    assert pair.run("admin", b"configure", *CONF, b"4").startswith("STALE")
    assert pair.run("look", b"stats")[0].split()[2] == b"7"


def test_of_two_changes_of_pause_the_later_one_counts_whichever_comes_last(real: RealClient) -> None:
    pair = Pair(real)
    pair.run("admin", b"create", *CONF)
    assert [repair(pair, number, b"pause", b"%d" % change) for number, change in enumerate((1, 4, 3, 0, 4))] == [
        1, 4, 4, 4, 4,
    ]  # fmt: skip
    assert pair.run("look", b"stats")[0].split()[11] == b"0"
    assert repair(pair, 9, b"pause", b"5") == 5
    assert pair.run("look", b"stats")[0].split()[11] == b"1"


def test_a_reply_to_a_turn_says_how_long_a_lease_is(real: RealClient) -> None:
    """A consumer counted on the lease of the time when it came, although an operator had shortened it."""
    pair = Pair(real)
    pair.run("admin", b"create", *CONF)
    turn = [b"1", b"c", b"1", b"1.5", b"0", b"6", b"20", b"3", b""]
    assert pair.run("turn", *turn)[12] == 5000
    assert pair.run("admin", b"configure", *CONF[:9], b"4000", *CONF[10:], b"2") == 1
    assert pair.run("turn", *turn[:2], b"2", *turn[3:])[12] == 4000
