"""redis-py's asyncio pub/sub surface on a real cluster: what code that was written for redis-py relies on."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
from redis import asyncio as redis_py
from redis import exceptions
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from tests.support.agent_site import until
from tests.support.cluster_thread import ClusterThread
from tests.support.redis_server import free_port

import shoal
import shoal.redis as redis
from shoal.cluster.acl import ADMIN
from shoal.cluster.local import LocalCluster
from shoal.limits import DEFAULT_LIMITS
from shoal.message import Gap
from shoal.redis.connection import PubSubConnection
from shoal.redis.feeds import FeedKind

WAIT_S = 60.0


@pytest.fixture
async def client(url: str) -> AsyncIterator[redis.Redis]:
    async with redis.Redis.from_url(url) as opened:
        yield opened


@pytest.fixture
async def text_client(url: str) -> AsyncIterator[redis.Redis]:
    async with redis.Redis.from_url(url, decode_responses=True) as opened:
        yield opened


def shape(type: str, channel: Any, data: Any, pattern: Any = None) -> dict[str, Any]:
    return {"type": type, "pattern": pattern, "channel": channel, "data": data}


async def read(pubsub: redis.PubSub) -> dict[str, Any] | None:
    return await pubsub.get_message(timeout=WAIT_S)


async def until_arrived(pubsub: redis.PubSub, channel: bytes, count: int) -> None:
    """Waits until so many messages of a channel wait to be read."""
    assert pubsub.connection is not None
    subscription = pubsub.connection._feeds[FeedKind.CHANNEL, channel]._subscription
    await until(lambda: subscription.waiting >= count)


async def until_unheard(client: redis.Redis, channel: str) -> None:
    """Waits until no client is subscribed to a channel."""
    async with asyncio.timeout(WAIT_S):
        while await client.pubsub_numsub(channel) != [(channel.encode(), 0)]:
            pass


def is_connected(connection: PubSubConnection) -> bool:
    return connection.is_connected


def is_subscribed(pubsub: redis.PubSub) -> bool:
    return pubsub.subscribed


# Subscribing


@pytest.mark.parametrize("pattern", [False, True])
async def test_subscriptions_are_confirmed_with_counts(client: redis.Redis, pattern: bool) -> None:
    names = ["one", "two", "dr\u1168i", b"\x80\x81"]
    raw = [name.encode() if isinstance(name, str) else name for name in names]
    async with client.pubsub() as pubsub:
        subscribe = pubsub.psubscribe if pattern else pubsub.subscribe
        unsubscribe = pubsub.punsubscribe if pattern else pubsub.unsubscribe
        kind = "psubscribe" if pattern else "subscribe"
        await subscribe(*names)
        for count, name in enumerate(raw, start=1):
            assert await read(pubsub) == shape(kind, name, count)
        await subscribe(names[0])
        assert await read(pubsub) == shape(kind, raw[0], 4)
        await unsubscribe(names[1], "never subscribed")
        kind = kind.replace("subscribe", "unsubscribe")
        assert await read(pubsub) == shape(kind, b"two", 3)
        assert await read(pubsub) == shape(kind, b"never subscribed", 3)
        await unsubscribe()
        assert {(await read(pubsub) or {})["data"] for _ in range(3)} == {0, 1, 2}
        await unsubscribe()
        assert await read(pubsub) == shape(kind, None, 0)


async def test_channels_and_patterns_count_together(client: redis.Redis) -> None:
    async with client.pubsub() as pubsub:
        await pubsub.subscribe(["a", "b"])
        await pubsub.psubscribe("a*")
        assert [(await read(pubsub) or {})["data"] for _ in range(3)] == [1, 2, 3]
        assert pubsub.channels == {b"a": None, b"b": None}
        assert pubsub.patterns == {b"a*": None}


async def test_subscribed_holds_until_the_end_is_read(client: redis.Redis) -> None:
    async with client.pubsub() as pubsub:
        assert not is_subscribed(pubsub)
        await pubsub.subscribe("x")
        await pubsub.unsubscribe()
        assert is_subscribed(pubsub)
        await pubsub.subscribe("y")
        assert await read(pubsub) == shape("subscribe", b"x", 1)
        assert await read(pubsub) == shape("unsubscribe", b"x", 0)
        assert pubsub.channels == {b"y": None}
        await pubsub.unsubscribe("y")
        await pubsub.subscribe("y")
        for _ in range(3):
            await read(pubsub)
        assert is_subscribed(pubsub)


async def test_confirmations_can_be_ignored(client: redis.Redis) -> None:
    async with client.pubsub(ignore_subscribe_messages=True) as pubsub:
        await pubsub.subscribe("quiet")
        assert await read(pubsub) is None
    async with client.pubsub() as pubsub:
        await pubsub.subscribe("quiet")
        assert await pubsub.get_message(ignore_subscribe_messages=True, timeout=WAIT_S) is None


# Messages


async def test_messages_have_their_shapes(client: redis.Redis) -> None:
    async with client.pubsub(ignore_subscribe_messages=True) as pubsub:
        await pubsub.subscribe("shape")
        await pubsub.psubscribe("sh?pe")
        assert await read(pubsub) is None
        assert await read(pubsub) is None
        assert await client.publish("shape", "text") == 2
        got = [await read(pubsub), await read(pubsub)]
        assert shape("message", b"shape", b"text") in got
        assert shape("pmessage", b"shape", b"text", b"sh?pe") in got


async def test_responses_can_be_decoded(text_client: redis.Redis) -> None:
    async with text_client.pubsub() as pubsub:
        await pubsub.subscribe("gr\u00fcn")
        assert await read(pubsub) == shape("subscribe", "gr\u00fcn", 1)
        await text_client.publish("gr\u00fcn", "bl\u00e4tter")
        assert await read(pubsub) == shape("message", "gr\u00fcn", "bl\u00e4tter")
        await pubsub.ping("still there?")
        assert await read(pubsub) == shape("pong", None, "still there?")
        assert "redis-py-health-check" in pubsub.health_check_response
        assert "gr\u00fcn" in await text_client.pubsub_channels()


@pytest.mark.parametrize(
    ("value", "sent"), [("s", b"s"), (b"b", b"b"), (7, b"7"), (0.5, b"0.5"), (memoryview(b"m"), b"m")]
)
async def test_values_are_encoded_as_redis_py_does(client: redis.Redis, value: Any, sent: bytes) -> None:
    async with client.pubsub(ignore_subscribe_messages=True) as pubsub:
        await pubsub.subscribe("values")
        await read(pubsub)
        await client.publish("values", value)
        assert await read(pubsub) == shape("message", b"values", sent)


async def test_what_cannot_be_sent_is_a_data_error(client: redis.Redis) -> None:
    for channel, value in (("x", True), ("x", None), ("", "empty"), ("__shoal:heartbeat", "ours")):
        with pytest.raises(exceptions.DataError):
            await client.publish(channel, value)  # type: ignore[arg-type]


async def test_handlers_take_their_messages(client: redis.Redis) -> None:
    seen: list[dict[str, Any]] = []

    async def slowly(message: dict[str, Any]) -> None:
        await asyncio.sleep(0)
        seen.append(message)

    async with client.pubsub(ignore_subscribe_messages=True) as pubsub:
        await pubsub.subscribe(plain=seen.append)
        await pubsub.psubscribe(redis.Subscription(b"\x80*", slowly))
        await client.publish("plain", "1")
        await client.publish(b"\x80x", "2")
        for _ in range(4):
            assert await read(pubsub) is None
    assert seen == [shape("message", b"plain", b"1"), shape("pmessage", b"\x80x", b"2", b"\x80*")]


async def test_a_push_handler_sees_what_a_server_would_push(client: redis.Redis) -> None:
    seen: list[list[Any]] = []

    async def handler(response: list[Any]) -> None:
        seen.append(response)

    async with client.pubsub(push_handler_func=handler) as pubsub:
        await pubsub.subscribe("pushed")
        await client.publish("pushed", "x")
        assert await read(pubsub) is None
        assert await read(pubsub) is None
    assert seen == [[b"subscribe", b"pushed", 1], [b"message", b"pushed", b"x"]]


async def test_what_arrived_before_unsubscribe_is_read_before_its_end(client: redis.Redis) -> None:
    async with client.pubsub(ignore_subscribe_messages=True) as pubsub:
        await pubsub.subscribe("late")
        await read(pubsub)
        for number in range(3):
            await client.publish("late", str(number))
        assert await read(pubsub) == shape("message", b"late", b"0")
        await until_arrived(pubsub, b"late", 2)
        await pubsub.unsubscribe()
        assert await read(pubsub) == shape("message", b"late", b"1")
        assert await read(pubsub) == shape("message", b"late", b"2")
        assert is_subscribed(pubsub)
        assert await read(pubsub) is None
        assert not is_subscribed(pubsub)


async def test_channels_take_turns(client: redis.Redis) -> None:
    async with client.pubsub(ignore_subscribe_messages=True) as pubsub:
        await pubsub.subscribe("busy", "calm")
        for _ in range(2):
            await read(pubsub)
        for _ in range(20):
            await client.publish("busy", "b")
        await client.publish("calm", "c")
        await until_arrived(pubsub, b"calm", 1)
        first = [(await read(pubsub) or {})["channel"] for _ in range(3)]
        assert b"calm" in first


# Reading


async def test_reading_without_a_subscription_is_an_error(client: redis.Redis) -> None:
    with pytest.raises(RuntimeError, match=r"did you forget to call subscribe\(\)"):
        await client.pubsub().get_message()


async def test_polling_lets_others_run_and_returns_none(client: redis.Redis) -> None:
    async with client.pubsub(ignore_subscribe_messages=True) as pubsub:
        await pubsub.subscribe("polled")
        await read(pubsub)
        assert await pubsub.get_message() is None
        publishing = asyncio.create_task(client.publish("polled", "x"))
        message = None
        async with asyncio.timeout(WAIT_S):
            while message is None:
                message = await pubsub.get_message()
        assert message["data"] == b"x"
        await publishing


async def test_listen_ends_with_the_last_subscription(client: redis.Redis) -> None:
    kinds = []
    async with client.pubsub() as pubsub:
        await pubsub.subscribe("heard")
        await client.publish("heard", "x")
        async for message in pubsub.listen():
            kinds.append(message["type"])
            if message["type"] == "message":
                await pubsub.unsubscribe()
    assert kinds == ["subscribe", "message", "unsubscribe"]


async def test_run_hands_messages_to_handlers(client: redis.Redis) -> None:
    seen: asyncio.Queue[Any] = asyncio.Queue()
    async with client.pubsub() as pubsub:
        await pubsub.subscribe(run=seen.put_nowait)
        task = asyncio.create_task(pubsub.run())
        await client.publish("run", "x")
        assert (await asyncio.wait_for(seen.get(), WAIT_S))["data"] == b"x"
        await pubsub.subscribe(later=seen.put_nowait)
        await client.publish("later", "y")
        assert (await asyncio.wait_for(seen.get(), WAIT_S))["data"] == b"y"
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_run_needs_handlers_and_reports_errors(client: redis.Redis) -> None:
    errors: asyncio.Queue[BaseException] = asyncio.Queue()

    def fail(message: Any) -> None:
        raise ZeroDivisionError

    async with client.pubsub() as pubsub:
        await pubsub.subscribe("bare")
        with pytest.raises(exceptions.PubSubError, match="has no handler"):
            await pubsub.run()
    async with client.pubsub() as pubsub:
        await pubsub.subscribe(failing=fail)
        task = asyncio.create_task(pubsub.run(exception_handler=lambda error, _: errors.put_nowait(error)))
        await client.publish("failing", "x")
        assert isinstance(await asyncio.wait_for(errors.get(), WAIT_S), ZeroDivisionError)
        task.cancel()


async def test_closing_tells_a_reader(client: redis.Redis) -> None:
    pubsub = client.pubsub(ignore_subscribe_messages=True)
    await pubsub.subscribe("closing")
    await read(pubsub)
    reader = asyncio.create_task(pubsub.get_message(timeout=None))
    await asyncio.sleep(0.01)
    await pubsub.aclose()
    with pytest.raises(exceptions.ConnectionError, match="closed"):
        await reader
    assert pubsub.connection is None
    assert pubsub.channels == {}
    await pubsub.subscribe("again")
    assert is_subscribed(pubsub)
    with pytest.deprecated_call():
        await pubsub.reset()
    assert not is_subscribed(pubsub)


# Connections


async def test_a_cut_connection_is_confirmed_anew_and_loses_nothing(client: redis.Redis) -> None:
    async with client.pubsub() as pubsub:
        await pubsub.subscribe("back", "again")
        await pubsub.psubscribe("ba*")
        for _ in range(3):
            await read(pubsub)
        connection = pubsub.connection
        assert connection is not None
        await connection.disconnect()
        assert not connection.is_connected
        await client.publish("again", "meanwhile")
        confirmations = [await read(pubsub) or {} for _ in range(3)]
        assert [(message["type"], message["data"]) for message in confirmations] == [
            ("subscribe", 1),
            ("subscribe", 2),
            ("psubscribe", 3),
        ]
        assert is_connected(connection)
        assert await read(pubsub) == shape("message", b"again", b"meanwhile")


async def kill_connections(pubsub: redis.PubSub, cluster: ClusterThread) -> None:
    """Lets the servers close all connections of a PubSub."""

    async def server_urls(cluster: LocalCluster) -> list[str]:
        login = urlsplit(cluster.url_for(ADMIN)).netloc.rpartition("@")[0]
        return [f"redis://{login}@{server.host}:{server.port}" for server in cluster.servers]

    assert pubsub.connection is not None
    name = f"shoal:{pubsub.connection.bus.router.client:012x}"
    killed = 0
    for url in cluster.call(server_urls):
        async with redis_py.Redis.from_url(url) as server:
            for connected in await server.client_list():
                if connected["name"] == name:
                    killed += await server.client_kill_filter(_id=connected["id"])
    assert killed


async def test_a_connection_that_a_server_closes_is_no_error_and_loses_nothing(
    client: redis.Redis, shared_cluster: ClusterThread
) -> None:
    """redis-py reconnects too, but messages may be missing."""
    async with client.pubsub(ignore_subscribe_messages=True) as pubsub:
        await pubsub.subscribe("killed")
        await read(pubsub)
        await kill_connections(pubsub, shared_cluster)
        await client.publish("killed", "meanwhile")
        assert await read(pubsub) == shape("message", b"killed", b"meanwhile")


@pytest.mark.parametrize("polls", [False, True], ids=["listen", "get_message"])
async def test_without_retries_a_reader_is_told_of_a_closed_connection_and_loses_nothing(
    url: str, shared_cluster: ClusterThread, polls: bool
) -> None:
    got: list[dict[str, Any]] = []

    async def next_message() -> dict[str, Any]:
        if not polls:
            return await anext(aiter(pubsub.listen()))
        async with asyncio.timeout(WAIT_S):
            while True:
                message = await pubsub.get_message()
                if message is not None:
                    return message

    async def read_to_the_error() -> None:
        while True:
            got.append(await next_message())

    async with (
        redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0)) as client,
        client.pubsub() as pubsub,
    ):
        await pubsub.subscribe("told")
        assert await next_message() == shape("subscribe", b"told", 1)
        for number in (1, 2):
            await kill_connections(pubsub, shared_cluster)
            sent = [b"meanwhile %d" % number, b"after %d" % number]
            got.clear()
            await client.publish("told", sent[0])
            with pytest.raises(exceptions.ConnectionError, match="a connection to a server broke"):
                await read_to_the_error()
            await client.publish("told", sent[1])
            while shape("message", b"told", sent[1]) not in got:
                got.append(await next_message())
            assert [message["data"] for message in got if message["type"] == "message"] == sent
            assert [message for message in got if message["type"] == "subscribe"] == [shape("subscribe", b"told", 1)]


async def test_a_reader_that_waits_connects_again(client: redis.Redis) -> None:
    async with client.pubsub(ignore_subscribe_messages=True) as pubsub:
        await pubsub.subscribe("waited")
        await read(pubsub)
        reader = asyncio.create_task(pubsub.get_message(timeout=None))
        await asyncio.sleep(0.01)
        assert pubsub.connection is not None
        await pubsub.connection.disconnect()
        assert not reader.done(), "the subscription cannot be in force before its connections are open again"
        await client.publish("waited", "x")
        assert await asyncio.wait_for(reader, WAIT_S) is None, "the subscription is confirmed anew"
        assert await read(pubsub) == shape("message", b"waited", b"x")


async def test_a_gap_is_raised_or_delivered_but_never_silent(client: redis.Redis) -> None:
    gap = Gap("holey", 7, 3, 5, "its publisher no longer has them")
    for gap_messages in (False, True):
        async with client.pubsub(ignore_subscribe_messages=True, gap_messages=gap_messages) as pubsub:
            await pubsub.subscribe("holey")
            await read(pubsub)
            assert pubsub.connection is not None
            feed = pubsub.connection._feeds[FeedKind.CHANNEL, b"holey"]
            core = feed._subscription.core
            assert core is not None
            core.inbox.report(gap)
            feed.wake()
            if gap_messages:
                assert await read(pubsub) == shape("gap", b"holey", gap)
            else:
                with pytest.raises(redis.MessagesLostError, match="3 messages on 'holey'") as caught:
                    await read(pubsub)
                assert caught.value.gap == gap
                assert isinstance(caught.value, exceptions.ConnectionError)
            await client.publish("holey", "after")
            assert await read(pubsub) == shape("message", b"holey", b"after")


async def test_errors_are_redis_pys(url: str) -> None:
    wrong = f"{url.partition('://')[0]}://client:wrong@{url.rpartition('@')[2]}"
    with pytest.raises(exceptions.AuthenticationError) as caught:
        await redis.from_url(wrong).ping()
    assert isinstance(caught.value.__cause__, shoal.ShoalError)
    limits = msgspec.structs.replace(DEFAULT_LIMITS, connect_timeout_s=0.3)
    down = redis.Redis(host="127.0.0.1", port=free_port(), limits=limits)
    with pytest.raises(exceptions.ConnectionError):
        await down.pubsub().subscribe("x")


# Looking around


async def test_the_cluster_can_be_looked_at(client: redis.Redis) -> None:
    assert await client.ping() is True
    async with client.pubsub() as first, client.pubsub() as second:
        before = await client.pubsub_numpat()
        await first.subscribe("seen.1", "seen.2")
        await second.subscribe("seen.2")
        await second.psubscribe("seen.*", "other.*")
        assert await client.pubsub_channels("seen.*") == [b"seen.1", b"seen.2"]
        assert not [name for name in await client.pubsub_channels() if name.startswith(b"__shoal:")]  # type: ignore[arg-type]
        assert await client.pubsub_numsub("seen.1", "seen.2", "seen.3") == [
            (b"seen.1", 1),
            (b"seen.2", 2),
            (b"seen.3", 0),
        ]
        assert await client.pubsub_numsub() == []
        assert await client.pubsub_numpat() == before + 2


async def test_a_pubsub_connects_again_after_its_client_was_closed(url: str) -> None:
    client = await redis.Redis.from_url(url)
    seen: list[dict[str, Any]] = []
    pubsub = client.pubsub()
    await pubsub.subscribe("left")
    await pubsub.psubscribe(**{"ri*": seen.append})
    await client.aclose()
    assert pubsub.connection is not None
    assert not pubsub.connection.is_connected
    assert await read(pubsub) == shape("subscribe", b"left", 1)
    assert await read(pubsub) == shape("psubscribe", b"ri*", 2)
    await client.publish("left", "x")
    assert await read(pubsub) == shape("message", b"left", b"x")
    await client.publish("right", "y")
    assert await read(pubsub) is None
    assert seen == [shape("pmessage", b"right", b"y", b"ri*")]
    await client.aclose()


async def test_a_waiting_reader_is_told_that_its_client_was_closed(url: str) -> None:
    client = await redis.Redis.from_url(url)
    pubsub = client.pubsub(ignore_subscribe_messages=True)
    await pubsub.subscribe("left")
    await read(pubsub)
    reader = asyncio.create_task(pubsub.get_message(timeout=None))
    await asyncio.sleep(0.01)
    await client.aclose()
    with pytest.raises(exceptions.ConnectionError, match="closed"):
        await asyncio.wait_for(reader, WAIT_S)


# Forgotten objects


async def test_forgotten_pubsubs_do_not_stay_subscribed(client: redis.Redis) -> None:
    async def subscribe_and_forget() -> None:
        await client.pubsub().subscribe("forgotten")

    for _ in range(20):
        await subscribe_and_forget()
    await until_unheard(client, "forgotten")


async def test_closing_the_client_ends_subscriptions_of_dropped_pubsubs(url: str, client: redis.Redis) -> None:
    other = await redis.Redis.from_url(url)
    pubsub = other.pubsub()
    await pubsub.subscribe("dropped")
    buses = other._buses
    del pubsub
    await other.aclose()
    assert not buses._open
    await until_unheard(client, "dropped")


async def test_a_pubsub_keeps_its_client(client: redis.Redis, url: str) -> None:
    pubsub = redis.Redis.from_url(url).pubsub(ignore_subscribe_messages=True)
    await pubsub.subscribe("kept")
    gc.collect()
    await read(pubsub)
    await client.publish("kept", "x")
    assert await read(pubsub) == shape("message", b"kept", b"x")
    await pubsub.aclose()


# Sharded channels


async def test_sharded_channels_are_channels_with_other_message_types(client: redis.Redis) -> None:
    seen: list[dict[str, Any]] = []
    async with client.pubsub() as pubsub:
        await pubsub.subscribe("plain")
        await pubsub.ssubscribe("shard")
        await pubsub.ssubscribe(handled=seen.append)
        assert await read(pubsub) == shape("subscribe", b"plain", 1)
        assert await read(pubsub) == shape("ssubscribe", b"shard", 1)
        assert await read(pubsub) == shape("ssubscribe", b"handled", 2)
        assert pubsub.shard_channels == {b"shard": None, b"handled": seen.append}
        assert await client.spublish("shard", "x") == 1
        assert await pubsub.get_sharded_message(timeout=WAIT_S) == shape("smessage", b"shard", b"x")
        await client.spublish("handled", "y")
        assert await read(pubsub) is None
        assert seen == [shape("smessage", b"handled", b"y")]
        await pubsub.sunsubscribe()
        assert {(await read(pubsub) or {})["type"] for _ in range(2)} == {"sunsubscribe"}
        assert pubsub.shard_channels == {}
        assert is_subscribed(pubsub)


# A listener that begins first


async def test_a_listener_may_begin_while_the_first_subscription_waits(client: redis.Redis) -> None:
    """The pattern of the package `broadcaster`: one task listens all the time, others subscribe."""
    pubsub = client.pubsub()
    wanted = asyncio.Event()
    heard: asyncio.Queue[tuple[bytes, bytes]] = asyncio.Queue()

    async def listen() -> None:
        while True:
            await wanted.wait()
            async for message in pubsub.listen():
                if message["type"] == "message":
                    heard.put_nowait((message["channel"], message["data"]))
            wanted.clear()

    async def subscribe(channel: str) -> None:
        wanted.set()
        await pubsub.subscribe(channel)

    listener = asyncio.create_task(listen())
    names = [f"room.{number}" for number in range(3)]
    for name in names:
        await subscribe(name)
        for number in range(20):
            await client.publish(name, str(number))
    expected = {(name.encode(), str(number).encode()) for name in names for number in range(20)}
    async with asyncio.timeout(WAIT_S):
        assert {await heard.get() for _ in range(60)} == expected
    await pubsub.unsubscribe()
    await until(lambda: not is_subscribed(pubsub))
    await subscribe("room.again")
    await client.publish("room.again", "x")
    assert await asyncio.wait_for(heard.get(), WAIT_S) == (b"room.again", b"x")
    listener.cancel()
    await pubsub.aclose()


async def test_a_failed_subscription_leaves_nothing_behind(client: redis.Redis) -> None:
    async with client.pubsub() as pubsub:
        with pytest.raises(exceptions.DataError):
            await pubsub.subscribe("")
        assert not is_subscribed(pubsub)
