"""What a greedy, buggy or lying client can do with the scripts of queues: malformed calls change nothing, nothing grows
without a limit, and no call blocks the store for long."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import hiredis
import msgspec
import pytest
from tests.lab.sim.real_redis import RealClient
from tests.lab.sim.test_model_scripts import real_keys
from tests.support.queue_store import StoreClient, client_of, until
from tests.support.redis_server import RedisServer

import shoal
from shoal.errors import ConfigError, PayloadTooLargeError, ProtocolError, QueueUnavailableError
from shoal.plan.queue_settings import QueueSettings
from shoal.queues.job import Job
from shoal.queues.message_format import BODY_BYTES_MAX, encode_message, read_pushed
from shoal.queues.queue import NewMessage
from shoal.queues.queue_state import pack_state, unpack_state
from shoal.queues.script_loader import load_scripts
from shoal.queues.settings import ConsumerSettings

PREFIX = b"__shoal:q:target:"
SCRIPTS = load_scripts()
HUGE = (b"1e300", b"9" * 400, b"nan", b"inf", b"-inf", b"-7", b"1.5", b"", b" 1", b"0x10", b"\0", b"ten")
"""Words that are not numbers, or not ones that a script can use."""


class Target:
    """A queue on a real store, and direct calls of its scripts."""

    def __init__(self, server: RedisServer) -> None:
        self.real = RealClient(server.port)
        self.real.call(b"FLUSHALL")
        self.repairs = 0
        self.shas = {script.name: self.real.call(b"SCRIPT", b"LOAD", script.text) for script in SCRIPTS}

    def create(self, **settings: Any) -> None:
        words = QueueSettings(**settings).words(1)
        assert self.run("admin", b"create", *(b"%d" % word for word in words)) == 1

    def run(self, script: str, *words: bytes, prefix: bytes = PREFIX) -> Any:
        return self.real.call(b"EVALSHA", self.shas[script], b"1", prefix, *words)

    def put(self, *messages: bytes, producer: bytes = b"p", batch: bytes = b"1", version: bytes = b"1") -> Any:
        return self.run("put", version, producer, batch, b"", *messages)

    def turn(
        self,
        *operations: bytes,
        consumer: bytes = b"c",
        number: bytes = b"1",
        load: bytes = b"0",
        wants: tuple[bytes, bytes, bytes] = (b"0", b"0", b"1"),
        flags: bytes = b"",
    ) -> Any:
        return self.run("turn", b"1", consumer, number, load, b"0", *wants, flags, *operations)

    def repair(self, *words: bytes) -> Any:
        """The next call of an operator."""
        self.repairs += 1
        return self.run("repair", b"1", b"operator", b"%d" % self.repairs, *words)

    def slowest_ms(self) -> float:
        """The longest call since the last question."""
        entries = self.real.call(b"SLOWLOG", b"GET", b"-1")
        self.real.call(b"SLOWLOG", b"RESET")
        return max((entry[2] for entry in entries if entry[3][0] == b"EVALSHA"), default=0) / 1000


@pytest.fixture
def target(store: RedisServer) -> Iterator[Target]:
    made = Target(store)
    made.real.call(b"CONFIG", b"SET", b"slowlog-log-slower-than", b"0")
    yield made
    made.real.quit()


def message(
    shard: bytes = b"0", key: bytes = b"k", id: bytes = b"", delay: bytes = b"0", body: bytes = b"x"
) -> list[bytes]:
    return [shard, key, body, id, delay]


def check_refused(target: Target, *calls: tuple[Any, ...]) -> None:
    """Each call is refused as malformed, and changes nothing."""
    for name, *words in calls:
        before = real_keys(target.real)
        reply = target.run(name, *words)
        assert isinstance(reply, hiredis.ReplyError), (name, words)
        assert str(reply).split()[0] in ("MALFORMED", "OTHERVERSION"), (str(reply), name, words)
        assert real_keys(target.real) == before, (name, words)


def test_malformed_batches_change_nothing(target: Target) -> None:
    target.create()
    target.put(*message())
    head, grouped = (b"1", b"p", b"2", b""), (b"1", b"p", b"2")
    calls: list[tuple[Any, ...]] = [
        ("put",),
        ("put", b"1"),
        ("put", b"1", b"p"),
        ("put", *head),
        ("put", *grouped, b"\0\1"),
        ("put", *grouped, b"\0\1", b"k"),
        ("put", *grouped, b"\0\1\0", b"k", b"x"),
        ("put", *grouped, b"\0\0", b"k", b"x"),
        ("put", *grouped, b"\0\2", b"k", b"x"),
        ("put", *grouped, b"\0\1", b"k", b"x", b"k"),
        ("put", *grouped, b"\0\1", b"k", b"x", b"k", b"x"),
        ("put", *grouped, b"\0\2\1\xff", b"k", b"x", b"k", b"x"),
        ("put", *grouped, b"\x10\1", b"k", b"x"),
        ("put", *grouped, b"\0\1", b"", b"x"),
        ("put", *grouped, b"\0\1", b"k" * 513, b"x"),
        ("put", *grouped, b"\0\xff" * 5, *((b"k", b"x") * 1275)),
        ("put", *grouped, b"\0\1" * 1025, *((b"k", b"x") * 1025)),
        ("put", *head, b"0"),
        ("put", *head, *message(), b"0", b"k"),
        ("put", b"1", b"", b"2", b"", *message()),
        ("put", b"1", b"p" * 65, b"2", b"", *message()),
        ("put", *head, *(message() * 1025)),
        ("put", *head, *message(key=b"")),
        ("put", *head, *message(key=b"k" * 513)),
        ("put", *head, *message(id=b"i" * 257)),
        ("put", *head, *message(shard=b"16")),
        ("put", *head, *message(shard=b"00")),
        ("put", *head, *message(id=b"new"), *message(delay=b"00")),
    ]
    for word in HUGE:
        calls += [
            ("put", word, b"p", b"2", b"", *message()),
            ("put", b"1", b"p", word, b"", *message()),
            ("put", *grouped, word or b"\0", *message()),
            ("put", *head, *message(id=b"new"), *message(shard=word)),
            ("put", *head, *message(id=b"new"), *message(delay=word)),
        ]
    check_refused(target, *calls)


def test_malformed_turns_change_nothing(target: Target) -> None:
    target.create()
    target.put(*message(), *message(key=b"other", shard=b"1"))
    (grant, *_) = target.turn(wants=(b"5", b"5", b"5"))[8]
    shard, key, token = grant[:3]
    head = [b"1", b"c", b"2", b"0", b"0", b"5", b"5", b"5", b""]
    good = [b"D", shard, key, token, b"1", b"0", b"1"]
    calls: list[tuple[Any, ...]] = [("turn",), ("turn", *head[:8]), ("turn", *head, b"D"), ("turn", *head, *good[:6])]
    for name in (b"", b"-", b"!", b"a b", b"a\nb", b"a\0b", b"a:b", b"\xff", b"c" * 65):
        calls.append(("turn", b"1", name, *head[2:]))
    for word in HUGE:
        for at in (0, 2, 5, 6, 7):
            calls.append(("turn", *head[:at], word, *head[at + 1 :], *good))
        for at in (1, 4, 5, 6):
            calls.append(("turn", *head, *good, *good[:at], word, *good[at + 1 :]))
        if word != b"1.5":
            calls.append(("turn", *head[:3], word, *head[4:], *good))
        calls.append(("turn", *head, *good, b"F", shard, key, token, b"0", word, b"why"))
    calls += [
        ("turn", *head, *good, b"X", *good[1:]),
        ("turn", *head, *good, b"D", shard, b"", *good[3:]),
        ("turn", *head[:8], b"RX", *good),
        ("turn", *head, *(good * 1025)),
    ]
    check_refused(target, *calls)
    assert target.turn(*good, number=b"2")[7][0][0] == 2


def test_malformed_views_repairs_and_changes_change_nothing(target: Target) -> None:
    target.create()
    target.put(*message())
    repair = ("repair", b"1", b"operator", b"1")
    words: tuple[bytes, ...]
    calls: list[tuple[Any, ...]] = [
        *(
            (*head, *words)
            for head in (("look",), repair, ("admin",))
            for words in ((), (b"",), (b"no-such",), (b"\0",))
        ),
        ("repair", b"1", b"", b"1", b"pause", b"1"),
        ("repair", b"1", b"x" * 65, b"1", b"pause", b"1"),
        ("repair", b"1", b"operator", b"x", b"pause", b"1"),
        ("look", b"keys", b"0"),
        ("look", b"peek", b"0", b"k", b"0"),
        (*repair, b"release", b"0"),
        (*repair, b"replay"),
        (*repair, b"purge", b"1025"),
        *(
            (*repair, operation, b"9" * 30 + b"-0") for operation in (b"replay", b"forget")
        ),  # it reached the store as it was
        ("look", b"dead", b"1-" + b"9" * 30, b"1"),
        (*repair, b"forget", *([b"1-0"] * 1024)),
        ("admin", b"configure", b"1"),
        ("admin", b"create", b"1"),
    ]
    words = tuple(b"%d" % word for word in QueueSettings().words(1))
    for word in HUGE:
        calls += [
            ("look", b"keys", word, b"1"),
            ("look", b"keys", b"0", word),
            ("look", b"peek", b"0", b"k", word, b"1"),
            ("look", b"dead", word or b"x", b"1"),
            (*repair, b"pause", word),
            (*repair, b"purge", word),
            (*repair, b"replay", word),
            (*repair, b"forget", b"1-0", word),
            (*repair, b"release", word, b"k"),
            ("admin", b"drop", b"1", word),
            ("admin", b"configure", *words[:3], word, *words[4:], b"1"),
            ("admin", b"configure", *words, word),
        ]
    check_refused(target, *calls)


def test_a_delay_that_is_not_a_number_does_not_lose_an_accepted_message(target: Target) -> None:
    """`00` was accepted, counted and stored nowhere."""
    target.create()
    assert str(target.put(*message(delay=b"00"))).startswith("MALFORMED")
    assert target.run("look", b"stats")[1].split()[3] == b"0"


def test_ids_of_keys_with_a_nul_byte_are_not_confused(target: Target) -> None:
    target.create()
    assert target.put(*message(key=b"a\0b", id=b"c")).split()[0] == b"A"
    assert target.put(*message(key=b"a", id=b"b\0c"), batch=b"2").split()[0] == b"A"
    assert target.put(*message(key=b"a", id=b"b\0c"), batch=b"3").split()[0] == b"D"


@pytest.mark.parametrize("key", [b"\0", b"a b", b"a:b", b"k:1:x", b"\n", b"%d+", b"-", b"!", b"\xff"])
def test_a_key_can_have_any_bytes(target: Target, key: bytes) -> None:
    target.create(on_dead="halt", attempts_max=1)
    target.put(*message(key=key, body=b"1"), *message(key=key, body=b"2"), *message(key=key, delay=b"60000", body=b"3"))
    ((shard, got, token, *_),) = target.turn(wants=(b"5", b"5", b"5"))[8]
    assert got == key
    assert target.turn(b"F", shard, key, token, b"0", b"-1", b"why", number=b"2")[7] == [[2, 2]]
    assert target.run("look", b"keys", b"0", b"5")[0][:3] == [key, 1, b"!"]
    assert target.repair(b"release", b"0", key) == 1
    while target.repair(b"purge", b"2")[1]:
        pass
    assert target.run("look", b"stats")[1].split()[3:9] == [b"0"] * 6


def test_a_guessed_token_or_another_name_ends_nothing(target: Target) -> None:
    target.create()
    target.put(*message())
    ((shard, key, token, *_),) = target.turn(wants=(b"1", b"1", b"1"))[8]
    assert target.turn(b"D", shard, key, token, b"1", b"0", b"0", consumer=b"thief")[7] == [[0, 0]]
    for number, guess in enumerate((b"1.0", b"1.99", b"", b"-", b"1.%d" % (int(token.split(b".")[1]) + 1)), 2):
        assert target.turn(b"D", shard, key, guess, b"1", b"0", b"0", number=b"%d" % number)[7] == [[0, 0]]
    assert target.run("look", b"stats")[1].split()[3] == b"1"


def test_a_consumer_cannot_take_more_than_its_share_by_a_wrong_count(target: Target) -> None:
    target.create(messages_max=100_000)
    target.put(*(word for n in range(40) for word in message(key=b"%d" % n)))
    target.turn(consumer=b"honest")
    for number in range(1, 6):  # it says each time that it holds nothing
        target.turn(consumer=b"greedy", number=b"%d" % number, wants=(b"1000000000", b"1000000000", b"9"))
    assert len(target.turn(consumer=b"greedy", number=b"9", flags=b"R")[9]) == 20


def test_consumers_and_producers_are_bounded_and_the_others_go_on(target: Target) -> None:
    texts = {script.name: script.text.replace(b"_MAX = 10000 ", b"_MAX = 20 ") for script in SCRIPTS}
    texts = {name: text.replace(b"_MAX = 100000 ", b"_MAX = 20 ") for name, text in texts.items()}
    target.shas = {name: target.real.call(b"SCRIPT", b"LOAD", text) for name, text in texts.items()}
    target.create(lease_s=4.0)
    for number in range(20):
        assert target.put(*message(), producer=b"p%d" % number).split()[0] == b"A"
        assert target.turn(consumer=b"c%d" % number)[0] == 1
    assert str(target.put(*message(), producer=b"other")).startswith("CROWDED")
    assert str(target.turn(consumer=b"other")).startswith("CROWDED")
    assert target.put(*message(), producer=b"p3", batch=b"2").split()[0] == b"A"
    assert target.turn(consumer=b"c3", number=b"2")[0] == 0
    for lease in range(20):  # all leases end: a newcomer ends some of them and joins
        target.real.call(b"ZADD", PREFIX + b"leases", b"0", b"c%d" % lease)
    assert target.turn(consumer=b"other")[0] == 1
    assert target.real.call(b"ZCARD", PREFIX + b"leases") == 1
    assert target.real.call(b"HLEN", PREFIX + b"turns") == 1


def test_a_batch_is_remembered_for_longer_than_put_tries_even_if_ids_are_not(target: Target) -> None:
    """With dedupe_s=1 a batch whose reply was lost was stored twice if it came again after two seconds."""
    target.create(dedupe_s=1.0)
    assert target.put(*message()).split()[0] == b"A"
    now, *others = unpack_state(target.real.call(b"GET", PREFIX + b"state"))
    for _ in range(3):
        target.real.call(b"SET", PREFIX + b"state", pack_state((now + 1500, *others)))
        target.put(*message(), producer=b"other", batch=b"%d" % (now + 1500))
        now, *others = unpack_state(target.real.call(b"GET", PREFIX + b"state"))
    before = others[2]
    assert target.put(*message()).split()[0] == b"A"
    assert unpack_state(target.real.call(b"GET", PREFIX + b"state"))[3] == before


def test_the_reason_of_a_failure_is_cut(target: Target) -> None:
    target.create()
    target.put(*message())
    ((shard, key, token, *_),) = target.turn(wants=(b"1", b"1", b"1"))[8]
    target.turn(b"F", shard, key, token, b"0", b"-1", b"r" * 1_000_000, number=b"2")
    ((_, fields),) = target.run("look", b"dead", b"", b"9")
    assert len(fields[fields.index(b"reason") + 1]) == 1024


def test_damaged_state_is_an_error_and_is_not_written_over(target: Target) -> None:
    target.create()
    for name in (b"conf", b"state"):
        line = target.real.call(b"GET", PREFIX + name)
        nan, half = (pack_state((1, 1, value, *[0] * 16)) for value in (float("nan"), 0.5))
        for damaged in (b"", b"x", b"1 2", line + b" 7 7", line[:-8], b"\2" + line[1:], nan, half):
            target.real.call(b"SET", PREFIX + name, damaged)
            for reply in (target.put(*message()), target.turn(), target.run("look", b"stats")):
                assert str(reply).startswith("DAMAGED")
            assert target.real.call(b"GET", PREFIX + name) == damaged
        target.real.call(b"SET", PREFIX + name, line)
    assert target.put(*message()).split()[0] == b"A"


def fill(target: Target, keys: int, per_batch: int = 1000) -> None:
    for start in range(0, keys, per_batch):
        batch = (word for n in range(start, start + per_batch) for word in message(b"%d" % (n % 16), b"%d" % n))
        assert set(target.put(*batch, batch=b"%d" % (start + 1)).split()[0]) == {65}


def commands_of(target: Target, act: Any) -> int:
    """How many commands a call runs inside the store: unlike its duration, it does not depend on the machine."""
    target.real.call(b"CONFIG", b"RESETSTAT")
    act()
    lines = target.real.call(b"INFO", b"commandstats").decode().splitlines()
    return sum(int(line.split("calls=")[1].split(",")[0]) for line in lines if line.startswith("cmdstat_"))


def test_what_one_call_does_is_bounded_on_a_queue_with_many_keys(target: Target) -> None:
    target.create(messages_max=10**6, bytes_max=10**9)
    fill(target, 20_000)
    everything = (b"1000000000", b"1000000000", b"1000000000")
    turns = iter(range(1, 1000))

    def take(consumer: bytes, flags: bytes = b"") -> Any:
        return target.turn(consumer=consumer, number=b"%d" % next(turns), wants=everything, flags=flags)

    assert len(take(b"greedy")[8]) == 1024
    for _ in range(6):
        take(b"greedy")
    held = target.real.call(b"SCARD", PREFIX + b"held:greedy")
    assert held == 4096
    joined = commands_of(target, lambda: target.turn(consumer=b"other", flags=b"R"))
    assert joined < 40, "a consumer without keys costs nothing, whatever others hold"
    for number in range(100):
        target.turn(consumer=b"short-%d" % number)
    target.real.call(b"ZADD", PREFIX + b"leases", *(w for n in range(100) for w in (b"0", b"short-%d" % n)))
    assert commands_of(target, lambda: target.turn(consumer=b"other", number=b"2")) < 250, "leases without keys"
    target.real.call(b"ZADD", PREFIX + b"leases", b"0", b"greedy")
    reply = target.turn(consumer=b"other", number=b"3")
    assert (reply[1], reply[4]) == (20_000, 0)
    assert commands_of(target, lambda: target.run("look", b"keys", b"0", b"9999999")) < 2100
    assert commands_of(target, lambda: target.repair(b"purge", b"1024")) < 12_000


def test_a_key_with_many_messages_is_read_and_deleted_in_pages(target: Target) -> None:
    target.create(messages_max=10**6)
    for batch in range(1, 21):
        target.put(*(message(body=b"") * 1000), batch=b"%d" % batch)
    ((shard, key, token, *_, bodies),) = target.turn(wants=(b"9", b"1000000000", b"1000000000"))[8]
    assert len(bodies) == 4096
    result = target.turn(b"D", shard, key, token, b"0", b"0", b"1000000000", number=b"2")[7][0]
    assert len(result[2]) == 4096
    lie = target.turn(b"D", shard, key, token, b"20000", b"0", b"0", number=b"3")[7][0]
    assert lie == [0, 0], "nobody has processed so many"
    assert len(target.run("look", b"peek", b"0", b"k", b"0", b"1000000000")) == 1024
    assert target.repair(b"purge", b"1000") == [1000, 1000]
    assert target.turn(b"D", shard, key, token, b"5", b"0", b"0", number=b"4")[7][0] == [0, 0], "it was taken away"
    pages = 0
    while target.repair(b"purge", b"1000")[1]:
        pages += 1
    assert pages == 19
    assert target.run("look", b"stats")[1].split()[3:9] == [b"0"] * 6


def test_consumers_that_do_not_listen_cost_a_put_little(target: Target) -> None:
    target.create()
    for number in range(500):
        target.turn(consumer=b"deaf-%d" % number, wants=(b"1", b"1", b"1"))
    assert commands_of(target, lambda: target.put(*message())) < 200


@pytest.fixture
async def client(store: RedisServer) -> AsyncIterator[StoreClient]:
    async with client_of(store) as made:
        yield made


async def test_a_message_that_cannot_be_read_becomes_a_dead_letter_and_stops_no_consumer(
    client: StoreClient, target: Target
) -> None:
    """It raised ProtocolError in every consumer that got it, and nothing ended it."""
    queue = await client.create("target")
    shard = b"%d" % (zlib.crc32(b"bad") % 16)
    target.put(*message(shard, b"bad", body=b"no message"), *message(shard, b"bad", body=b"\x95\xc4\x01a"))
    assert (await queue.stats()).messages == 2
    assert [one.payload for one in await queue.peek("bad")] == [b"no message", b"\x95\xc4\x01a"]
    async with queue.take() as jobs:
        await queue.put(b"good", key="bad")
        job = await anext(jobs)
        assert job.payload == b"good"
        await job.done()
    assert [(one.message.payload, one.attempts) for one in await queue.dead()] == [
        (b"no message", 1),
        (b"\x95\xc4\x01a", 1),
    ]


@pytest.mark.parametrize(
    "stored",
    [
        (b"\xff\xfe", b"", 0, b"p", b"x"),
        (b"n" * 65, b"", 0, b"p", b"x"),
        (b"1", b"", 2**64 - 1, b"p", b"x"),
        (b"1", b"", -1, b"p", b"x"),
    ],
)
async def test_a_message_with_an_impossible_number_or_time_does_not_end_a_worker(
    client: StoreClient, target: Target, stored: tuple[Any, ...]
) -> None:
    """`job.number` raised UnicodeDecodeError: the worker ended and gave the message back, and so did the next one."""
    queue = await client.create("target")
    target.put(*message(b"%d" % (zlib.crc32(b"bad") % 16), b"bad", body=msgspec.msgpack.encode(stored)))
    app, seen = shoal.App(), []

    @app.worker("target")
    async def handle(job: Job) -> None:
        seen.append(job.payload)
        app.stop()

    await queue.put(b"good", key="bad")
    async with asyncio.timeout(30):
        await app.run(client, signals=False)
    assert seen == [b"good"]
    (letter,) = await queue.dead()
    assert letter.message.payload == msgspec.msgpack.encode(stored)


async def test_entries_that_no_script_has_written_hide_no_dead_letter(client: StoreClient, target: Target) -> None:
    """They raised KeyError in `dead`, or ended the list before its end."""
    queue = await client.create("target")
    await queue.put(b"x", key="k")
    async with queue.take() as jobs:
        await (await anext(jobs)).fail("broken", dead=True)
    letter = (b"shard", b"0", b"key", b"k", b"reason", b"r", b"attempts", b"1", b"at", b"1", b"body", b"b")
    target.real.call(b"XADD", PREFIX + b"dead", b"900-0", b"colour", b"red")
    target.real.call(b"XADD", PREFIX + b"dead", b"901-0", *letter[:9], b"9" * 30, *letter[10:])
    target.real.call(b"XADD", PREFIX + b"dead", b"9" * 18 + b"-0", *letter)
    found = await queue.dead()
    assert [one.reason.partition(" (")[0] for one in found] == ["broken", *["a dead letter cannot be read"] * 2, "r"]
    assert await queue.forget(*(one.entry for one in found)) == 3  # the last one has a name that scripts never give
    assert await queue.dead(after=found[-1].entry) == []


async def test_a_key_of_a_consumer_with_an_impossible_name_is_shown(client: StoreClient, target: Target) -> None:
    queue = await client.create("target")
    target.real.call(b"HSET", PREFIX + b"3:owners", b"k", b"\xff 1.5 0 0 0 0 0 0")
    assert [(one.key, one.state) for one in await queue.keys()] == [(b"k", "held")]


async def test_forged_pushes_do_not_stop_a_consumer(client: StoreClient, target: Target) -> None:
    queue = await client.create("target")
    async with queue.take(max_in_flight=4) as jobs:
        await until(lambda: target.real.call(b"ZCARD", PREFIX + b"waiting") == 1)
        inbox = PREFIX + b"in:" + jobs.core.name
        forged = [b"0", b"k", b"1.5", b"0", b"0", b"1", b"0", b"x"]
        for at, word in ((0, b"16"), (0, b"x"), (1, b""), (2, b"x"), (3, b"-1"), (5, b"1e9"), (6, b"")):
            parts = [*forged[:at], word, *forged[at + 1 :]]
            assert target.real.call(b"PUBLISH", inbox, b"".join(b"%d:%s" % (len(one), one) for one in parts)) == 1
        for number in range(100):
            parts = [b"0", b"%d" % number, *forged[2:]]
            target.real.call(b"PUBLISH", inbox, b"".join(b"%d:%s" % (len(one), one) for one in parts))
        await queue.put(b"true", key="true")
        assert jobs.core.held <= 9
        async for job in jobs:
            if job.key == b"true":
                await job.done()
                break


def test_a_pushed_job_is_checked() -> None:
    good = [b"15", b"k", b"1.5", b"0", b"0", b"1", b"0", b"x"]
    data = b"".join(b"%d:%s" % (len(one), one) for one in good)
    assert read_pushed(data, 16) == [good]
    assert read_pushed(2 * data, 16) == [good, good]
    with pytest.raises(ProtocolError):
        read_pushed(data + data.replace(b"2:15", b"2:16"), 16)


async def test_clients_keep_to_the_limits_of_stores(client: StoreClient) -> None:
    with pytest.raises(ConfigError, match="4096"):
        ConsumerSettings(max_in_flight=4097).validate()
    limits = client.queue("target")._limits
    wide = msgspec.structs.replace(limits, payload_bytes_max=64 * 1024 * 1024)
    with pytest.raises(PayloadTooLargeError):
        encode_message(b"1", b"", 0, b"x" * BODY_BYTES_MAX, None, wide)
    with pytest.raises(ConfigError, match="1024"):
        msgspec.structs.replace(limits, queue_batch_messages_max=1025).validate()


async def test_a_crowded_queue_is_an_error_that_says_what_to_do(client: StoreClient, target: Target) -> None:
    queue = await client.create("target")
    target.real.call(b"ZADD", PREFIX + b"leases", *(w for n in range(10_000) for w in (b"9e15", b"c%d" % n)))
    with pytest.raises(QueueUnavailableError, match="10000 consumers"):
        async with queue.take() as jobs:
            await anext(jobs)
    assert (await queue.put_many([NewMessage(b"x")])).accepted == 1
