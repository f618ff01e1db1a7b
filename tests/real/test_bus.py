"""The bus on a real cluster: the guarantees of publish, subscribe and drain, and how they end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import warnings
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import uvloop
from hiredis import ReplyError
from prometheus_client import generate_latest
from tests.support.cluster_thread import ClusterThread
from tests.support.redis_server import RedisServer, free_port

import shoal
from shoal.channels.client.context import PublishRefused
from shoal.errors import (
    AuthenticationError,
    BusClosedError,
    ChannelNameError,
    ClusterNotFoundError,
    ConfigError,
    CoordinatorUnavailableError,
    NotConfirmedError,
    PayloadTooLargeError,
    PublishError,
    SubscribeError,
    SubscribeTimeoutError,
)
from shoal.limits import DEFAULT_LIMITS
from shoal.message import Gap, Item, Message
from shoal.metrics import REGISTRY

WAIT_S = 60.0


async def collect(messages: shoal.Subscription, count: int) -> list[Item]:
    return [await messages.get(WAIT_S) for _ in range(count)]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - what is waited for happens in the router, which has no events
            await asyncio.sleep(0.005)


def payloads(items: list[Item]) -> list[bytes]:
    assert all(isinstance(item, Message) for item in items), items
    return [item.payload for item in items if isinstance(item, Message)]


# Messages


async def test_messages_arrive_once_and_in_order(bus: shoal.Bus, other: shoal.Bus) -> None:
    async with bus.subscribe("order") as messages:
        for number in range(3000):
            await other.publish("order", b"%d" % number)
        items = await collect(messages, 3000)
        assert payloads(items) == [b"%d" % number for number in range(3000)]
        assert {item.publisher for item in items} == {other.client_id}
        assert messages.get_nowait() is None


async def test_what_is_published_after_subscribe_returned_arrives(bus: shoal.Bus, other: shoal.Bus) -> None:
    for number in range(30):
        async with bus.subscribe(f"fresh.{number}") as messages:
            await other.publish(f"fresh.{number}", b"first")
            assert payloads([await messages.get(WAIT_S)]) == [b"first"]


async def test_a_message_carries_what_was_published(bus: shoal.Bus) -> None:
    async with bus.subscribe("kinds") as messages:
        await bus.publish("kinds", "grün")
        await bus.publish("kinds", bytearray(b"array"))
        await bus.publish("kinds", memoryview(b"view"), attributes={"n": 1, "f": 0.5, "t": "x", "b": True})
        await bus.publish(b"kinds", b"")
        first, second, third, fourth = await collect(messages, 4)
    assert isinstance(first, Message)
    assert isinstance(third, Message)
    assert first.payload == "grün".encode()
    assert first.channel == "kinds"
    assert first.sequence == 1
    assert first.published_at_us > 1_500_000_000_000_000
    assert payloads([second, fourth]) == [b"array", b""]
    assert third.attributes == {"n": 1, "f": 0.5, "t": "x", "b": True}


@pytest.mark.parametrize("name", ["uni\u1168code", b"\x80\x81\xff", "with space", "x" * 512])
async def test_any_name_is_a_channel(bus: shoal.Bus, name: str | bytes) -> None:
    async with bus.subscribe(name) as messages:
        await bus.publish(name, b"here")
        item = await messages.get(WAIT_S)
    assert item.channel.encode("utf-8", "surrogateescape") == (name if isinstance(name, bytes) else name.encode())


async def test_a_pattern_hears_all_servers(bus: shoal.Bus, other: shoal.Bus) -> None:
    async with bus.subscribe(pattern="zone.*") as messages:
        for number in range(50):
            await other.publish(f"zone.{number}", b"hit")
        await other.publish("zones", b"miss")
        items = await collect(messages, 50)
        assert {item.channel for item in items} == {f"zone.{number}" for number in range(50)}
        assert {item.pattern for item in items} == {"zone.*"}
        assert messages.get_nowait() is None
    homes = {bus.ring.home(b"zone.%d" % number) for number in range(50)}
    assert homes == set(bus.ring.ids)


async def test_several_subscriptions_of_one_bus_each_get_everything(bus: shoal.Bus) -> None:
    async with (
        bus.subscribe("twice") as first,
        bus.subscribe("twice") as second,
        bus.psubscribe("tw?ce") as third,
    ):
        await bus.publish("twice", b"one")
        for messages in (first, second, third):
            assert payloads([await messages.get(WAIT_S)]) == [b"one"]


async def test_a_plain_redis_client_is_heard(bus: shoal.Bus) -> None:
    async with bus.subscribe("foreign") as messages:
        home = bus.ring.address(bus.ring.home(b"foreign"))
        assert home is not None
        await bus.ask_servers("PUBLISH", "foreign", "plain")
        item = await messages.get(WAIT_S)
    assert isinstance(item, Message)
    assert item.foreign
    assert item.payload == b"plain"


# Publishing


async def test_confirm_waits_for_a_server(bus: shoal.Bus) -> None:
    await bus.publish("confirmed", b"x", confirm=True)
    assert bus.statistics().pending_messages == 0


async def test_a_full_buffer_makes_publish_wait(url: str, other: shoal.Bus) -> None:
    limits = msgspec.structs.replace(DEFAULT_LIMITS, publish_buffer_messages_max=10)
    async with other.subscribe("narrow") as messages, shoal.connect(url, limits=limits) as bus:
        highest = 0
        for number in range(500):
            await bus.publish("narrow", b"%d" % number)
            highest = max(highest, bus.statistics().pending_messages)
        assert highest == 10
        assert payloads(await collect(messages, 500)) == [b"%d" % number for number in range(500)]


async def test_drain_waits_for_all_and_says_what_is_missing(
    url: str, shared_cluster: ClusterThread, other: shoal.Bus
) -> None:
    async with shoal.connect(url) as bus:
        await bus.publish("drained", b"x")
        await bus.drain()
        assert bus.statistics().pending_messages == 0
        home = bus.ring.home(b"drained")
        shared_cluster.call(lambda cluster: asyncio.to_thread(cluster.pause, home))
        try:
            await bus.publish("drained", b"y")
            with pytest.raises(NotConfirmedError, match=r"drained \(1\)"):
                await bus.drain(timeout=0.2)
        finally:
            shared_cluster.call(lambda cluster: asyncio.to_thread(cluster.resume, home))
        await bus.drain()


async def test_what_servers_refuse_is_raised_at_the_next_call(bus: shoal.Bus) -> None:
    def refuse() -> None:
        bus.shell.router.effects.append(PublishRefused(b"no", "NOPERM this user"))
        bus.shell.flush()

    refuse()
    with pytest.raises(PublishError, match=r"refused a message on no .*NOPERM"):
        await bus.publish("yes", b"x")
    await bus.publish("yes", b"x")
    refuse()
    with pytest.raises(PublishError, match="NOPERM"):
        bus.subscribe("yes")
    refuse()
    refuse()
    with pytest.raises(PublishError, match="2 messages"):
        await bus.drain()


async def test_a_refusal_is_raised_by_the_publish_that_waits_for_it(bus: shoal.Bus) -> None:
    await bus.publish("mine", b"x", confirm=True)
    waiting = asyncio.create_task(bus.publish("mine", b"y", confirm=True))
    innocent = asyncio.create_task(bus.publish("mine", b"z", confirm=True))
    await asyncio.sleep(0)
    shell = bus.shell
    connection = shell._connections[bus.ring.home(b"mine")]
    shell.flush()
    shell.connection_received(connection, [ReplyError("OOM no"), 1])
    with pytest.raises(PublishError, match="OOM no"):
        await waiting
    await innocent


@pytest.mark.parametrize(
    ("channel", "payload", "attributes", "error"),
    [
        ("", b"x", None, ChannelNameError),
        ("x" * 513, b"x", None, ChannelNameError),
        ("__shoal:heartbeat", b"x", None, ChannelNameError),
        ("big", b"x" * (DEFAULT_LIMITS.payload_bytes_max + 1), None, PayloadTooLargeError),
        ("list", b"x", {"a": [[1]]}, PublishError),
        ("nan", b"x", {"a": float("nan")}, PublishError),
        ("none", None, None, TypeError),
    ],
)
async def test_bad_input_is_refused_and_harms_nothing(
    bus: shoal.Bus, channel: str, payload: bytes, attributes: dict[str, float] | None, error: type[Exception]
) -> None:
    with pytest.raises(error):
        await bus.publish(channel, payload, attributes=attributes)
    async with bus.subscribe("fine") as messages:
        await bus.publish("fine", b"x")
        assert payloads([await messages.get(WAIT_S)]) == [b"x"]
    with pytest.raises(TypeError):
        bus.subscribe("a", pattern="b")  # type: ignore[call-overload]
    with pytest.raises(ChannelNameError):
        bus.subscribe("__shoal:agent")


# Reading


async def test_take_returns_what_is_there(bus: shoal.Bus) -> None:
    async with bus.subscribe("batch") as messages:
        for number in range(10):
            await bus.publish("batch", b"%d" % number)
        taken: list[Item] = []
        while len(taken) < 10:
            batch = await messages.take(4)
            assert 1 <= len(batch) <= 4
            taken += batch
        assert payloads(taken) == [b"%d" % number for number in range(10)]
        assert messages.statistics().bytes == 0


async def test_a_reader_lets_others_run(bus: shoal.Bus) -> None:
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with bus.subscribe("busy") as messages:
        for _ in range(6000):
            await bus.publish("busy", b"x")
        await bus.drain()
        await until(lambda: messages.statistics().messages == 6000)
        counter = asyncio.create_task(count_turns())
        seen = 0
        async for _ in messages:
            seen += 1
            sum(range(2000))  # many times `BURST_S_MAX` in all, also on a fast machine
            if seen == 6000:
                break
        counter.cancel()
        assert turns > 1


async def test_two_readers_are_told_apart(bus: shoal.Bus) -> None:
    async with bus.subscribe("shared") as messages:
        first = asyncio.create_task(messages.get(WAIT_S))
        await asyncio.sleep(0)
        with pytest.raises(SubscribeError, match="two tasks"):
            await messages.get(WAIT_S)
        await bus.publish("shared", b"x")
        assert payloads([await first]) == [b"x"]


async def test_a_timeout_and_a_cancelled_reader_lose_nothing(bus: shoal.Bus) -> None:
    async with bus.subscribe("patient") as messages:
        with pytest.raises(TimeoutError):
            await messages.get(0.01)
        reader = asyncio.create_task(messages.get(WAIT_S))
        await asyncio.sleep(0)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        await bus.publish("patient", b"x")
        assert payloads([await messages.get(WAIT_S)]) == [b"x"]


async def test_closing_a_subscription_ends_its_iteration(bus: shoal.Bus) -> None:
    messages = await bus.subscribe("ending").open()
    reader = asyncio.create_task(collect_all(messages))
    await bus.publish("ending", b"last")
    await until(lambda: bus.statistics().counters["delivered"] == 1)
    await messages.aclose()
    assert payloads(await reader) == [b"last"]
    assert bus.statistics().subscriptions == 0
    with pytest.raises(SubscribeError, match="is closed"):
        await messages.get()
    with pytest.raises(SubscribeError, match="already opened"):
        await messages.open()


async def collect_all(messages: shoal.Subscription) -> list[Item]:
    return [item async for item in messages]


async def test_a_subscription_that_was_not_entered_says_so(bus: shoal.Bus) -> None:
    messages = bus.subscribe("outside")
    with pytest.raises(SubscribeError, match="not open"):
        messages.get_nowait()
    with pytest.raises(SubscribeError, match="not open"):
        await messages.get()


async def test_what_does_not_fit_into_the_inbox_is_fetched_later(url: str, other: shoal.Bus) -> None:
    limits = msgspec.structs.replace(DEFAULT_LIMITS, inbox_messages_max=50)
    async with shoal.connect(url, limits=limits) as bus, bus.subscribe("slow") as messages:
        for number in range(1000):
            await other.publish("slow", b"%d" % number)
        await other.drain()
        await until(lambda: messages.statistics().overflows > 0)
        assert payloads(await collect(messages, 1000)) == [b"%d" % number for number in range(1000)]
        assert messages.gaps == 0


async def test_what_nobody_has_any_more_is_a_gap(url: str) -> None:
    small = msgspec.structs.replace(DEFAULT_LIMITS, inbox_messages_max=50)
    forgetful = msgspec.structs.replace(DEFAULT_LIMITS, resend_messages_max=256)
    async with (
        shoal.connect(url, limits=small) as bus,
        shoal.connect(url, limits=forgetful) as other,
        bus.subscribe("forgotten") as messages,
    ):
        for number in range(2000):
            await other.publish("forgotten", b"%d" % number)
        await other.drain()
        await until(lambda: messages.statistics().overflows > 0)
        seen: list[int] = []
        while len(seen) < 2000:
            item = await messages.get(WAIT_S)
            if isinstance(item, Gap):
                assert item.last is not None
                assert item.publisher == other.client_id
                seen += range(item.first, item.last + 1)
            else:
                seen.append(item.sequence)
        assert seen == list(range(1, 2001))
        assert messages.gaps >= 1


# Faults


async def test_a_cut_connection_loses_nothing(bus: shoal.Bus, other: shoal.Bus) -> None:
    async with bus.subscribe("cut") as messages:
        for number in range(500):
            await other.publish("cut", b"%d" % number, confirm=number % 100 == 0)
            if number % 200 == 50:
                await bus.disconnect()
            elif number % 200 == 150:
                await other.disconnect()
        assert payloads(await collect(messages, 500)) == [b"%d" % number for number in range(500)]
    assert bus.statistics().counters["reconnects"] > 0
    assert other.statistics().counters["reconnects"] > 0


async def test_when_a_server_is_killed_nothing_is_silent(
    bus: shoal.Bus, other: shoal.Bus, shared_cluster: ClusterThread
) -> None:
    names = [f"mortal.{number}" for number in range(12)]
    async with contextlib.AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(bus.subscribe(name)) for name in names]
        for number in range(400):
            for name in names:
                await other.publish(name, b"%d" % number)
            if number == 100:
                shared_cluster.call(lambda cluster: cluster.kill("s2"))
            await asyncio.sleep(0.002)
        await other.drain()
        for messages in opened:
            assert await told_about(messages, 400) == list(range(1, 401))


async def told_about(messages: shoal.Subscription, last: int) -> list[int]:
    """Return the sequence numbers that were delivered or reported as missing, in order."""
    told: list[int] = []
    while not told or told[-1] < last:
        item = await messages.get(WAIT_S)
        if isinstance(item, Message):
            told.append(item.sequence)
        elif isinstance(item, Gap) and item.last is not None:
            told += range(item.first, item.last + 1)
    return told


async def test_data_flows_while_the_coordinator_is_away(
    bus: shoal.Bus, other: shoal.Bus, shared_cluster: ClusterThread
) -> None:
    async with bus.subscribe("alone") as messages:
        shared_cluster.call(lambda cluster: asyncio.to_thread(cluster.pause, "coordinator"))
        try:
            await bus.disconnect()
            await other.publish("alone", b"x", confirm=True)
            assert payloads([await messages.get(WAIT_S)]) == [b"x"]
        finally:
            shared_cluster.call(lambda cluster: asyncio.to_thread(cluster.resume, "coordinator"))


async def test_without_an_agent_a_subscription_times_out_and_leaves_nothing(
    url: str, shared_cluster: ClusterThread
) -> None:
    limits = msgspec.structs.replace(DEFAULT_LIMITS, subscribe_timeout_s=1.0)
    shared_cluster.call(lambda cluster: asyncio.to_thread(cluster.pause, "agent-s1"))
    try:
        async with shoal.connect(url, limits=limits) as bus:
            with pytest.raises(SubscribeTimeoutError, match=r"not|no agent"):
                await bus.psubscribe("lonely*").open()
            assert bus.statistics().subscriptions == 0
    finally:
        shared_cluster.call(lambda cluster: asyncio.to_thread(cluster.resume, "agent-s1"))


async def test_a_cancelled_subscribe_leaves_nothing(bus: shoal.Bus) -> None:
    opening = asyncio.create_task(bus.subscribe("given up").open())
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert bus.statistics().subscriptions == 0


# Opening and closing


async def test_a_wrong_password_is_refused(url: str) -> None:
    wrong = f"{url.partition('://')[0]}://client:wrong@{url.rpartition('@')[2]}"
    with pytest.raises(AuthenticationError, match="refused user 'client'"):
        await shoal.connect(wrong).open()


async def test_an_address_where_nothing_runs_is_unavailable() -> None:
    limits = msgspec.structs.replace(DEFAULT_LIMITS, connect_timeout_s=0.3)
    with pytest.raises(CoordinatorUnavailableError, match="shoal status"):
        await shoal.connect(f"shoal://127.0.0.1:{free_port()}", limits=limits).open()


async def test_a_cluster_of_the_environment_that_does_not_answer_is_not_called_the_local_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`shoal worker --url` and $SHOAL_URL were told to run `shoal up`."""
    monkeypatch.setenv("SHOAL_URL", f"shoal://127.0.0.1:{free_port()}")
    limits = msgspec.structs.replace(DEFAULT_LIMITS, connect_timeout_s=0.3)
    with pytest.raises(CoordinatorUnavailableError) as caught:
        await shoal.connect(limits=limits).open()
    assert "local" not in str(caught.value)


async def test_no_local_cluster_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SHOAL_URL", raising=False)
    monkeypatch.setenv("SHOAL_STATE_DIR", str(tmp_path))
    with pytest.raises(ClusterNotFoundError, match="shoal up"):
        await shoal.connect().open()


@pytest.mark.parametrize("address", ["redis://127.0.0.1:6379", "shoal://nowhere", "shoal://:x"])
async def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="shoal://"):
        await shoal.connect(address).open()


async def test_a_server_of_the_cluster_can_be_asked_for_the_plan(bus: shoal.Bus, url: str) -> None:
    server = bus.ring.servers[0]
    login = url.removeprefix("shoal://").rpartition("@")[0]
    async with shoal.connect(f"shoal://{login}@{server.host}:{server.port}") as opened:
        assert opened.ring == bus.ring


async def test_a_server_without_a_cluster_is_no_coordinator(tmp_path: Path) -> None:
    with RedisServer() as server, pytest.raises(ClusterNotFoundError, match="no cluster has started there"):
        await shoal.connect(f"shoal://{server.host}:{server.port}", cache_dir=tmp_path).open()


async def test_a_closed_bus_says_so(url: str) -> None:
    bus = shoal.connect(url)
    with pytest.raises(BusClosedError, match="not open"):
        await bus.publish("x", b"x")
    async with bus:
        messages = await bus.subscribe("x").open()
        reader = asyncio.create_task(messages.get())
        await asyncio.sleep(0)
    with pytest.raises(BusClosedError):
        await reader
    with pytest.raises(BusClosedError):
        await bus.publish("x", b"x")
    with pytest.raises(BusClosedError):
        await bus.subscribe("x").open()
    with pytest.raises(BusClosedError):
        await bus.open()
    await bus.aclose()


async def test_leaving_the_block_drains(url: str, other: shoal.Bus) -> None:
    async with other.subscribe("leaving") as messages:
        async with shoal.connect(url) as bus:
            for number in range(2000):
                await bus.publish("leaving", b"%d" % number)
        assert payloads(await collect(messages, 2000)) == [b"%d" % number for number in range(2000)]


async def test_an_exception_in_the_block_is_not_masked(url: str) -> None:
    async def fail() -> None:
        async with shoal.connect(url) as bus:
            await bus.publish("oops", b"x")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()


async def test_many_buses_leave_no_tasks_and_no_warnings(url: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before = asyncio.all_tasks()
        buses = [shoal.connect(url) for _ in range(40)]
        await asyncio.gather(*(bus.open() for bus in buses))
        messages = [await bus.subscribe("crowd").open() for bus in buses]
        await buses[0].publish("crowd", b"hello")
        for subscription in messages:
            assert payloads([await subscription.get(WAIT_S)]) == [b"hello"]
        await asyncio.gather(*(bus.aclose() for bus in buses))
        assert asyncio.all_tasks() == before
        del buses, messages, subscription
        gc.collect()


def test_it_runs_on_uvloop(url: str) -> None:
    async def main() -> list[bytes]:
        async with shoal.connect(url) as bus, bus.subscribe("uv") as messages:
            for number in range(100):
                await bus.publish("uv", b"%d" % number)
            return payloads(await collect(messages, 100))

    assert uvloop.run(main()) == [b"%d" % number for number in range(100)]


async def test_statistics_and_metrics_count(bus: shoal.Bus) -> None:
    async with bus.subscribe("counted") as messages:
        await bus.publish("counted", b"x", confirm=True)
        await messages.get(WAIT_S)
        statistics = bus.statistics()
    assert statistics.client_id == bus.client_id
    assert statistics.published == 1
    assert statistics.subscriptions == 1
    assert statistics.counters["delivered"] == 1
    assert "usable" in statistics.links.values()
    page = generate_latest(REGISTRY).decode()
    assert "shoal_bus_delivered_total" in page
    assert "shoal_bus_published_total" in page
    assert "shoal_bus_pending_messages 0.0" in page
