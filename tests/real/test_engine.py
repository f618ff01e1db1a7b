"""The engine on a real cluster: emit and match on buses, an engine that dies."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest

import shoal
from shoal.bus.event_reader import Matching
from shoal.bus.subscription import Subscription
from shoal.cluster.acl import ENGINE
from shoal.cluster.local import LocalCluster
from shoal.engine.shell import EngineShell
from shoal.engine.warm_up import warm_up
from shoal.errors import (
    ChannelNameError,
    EngineUnavailableError,
    EventError,
    FilterError,
    NotConfirmedError,
    PayloadTooLargeError,
    PublishError,
)
from shoal.limits import DEFAULT_LIMITS
from shoal.message import Match
from shoal.runtime import PRODUCTION


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> None:
    warm_up()


LIMITS = msgspec.structs.replace(DEFAULT_LIMITS, engine_roll_s=3.0)
"""On a busy machine a client may need a while to present its filters."""


class Doomed:
    """An engine that can be killed: its lease is not released, and its bus sends nothing more."""

    def __init__(self, shell: EngineShell, task: asyncio.Task[None], bus: shoal.Bus) -> None:
        self.shell = shell
        self._task = task
        self._bus = bus

    async def die(self) -> None:
        self.shell.abandon_lease()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._bus.disconnect()


@contextlib.asynccontextmanager
async def doomed(cluster: LocalCluster, holder: str) -> AsyncIterator[Doomed]:
    url = cluster.url_for(ENGINE)
    async with shoal.connect(url) as bus, await PRODUCTION.coordinator(url, 2.0) as coordinator:
        shell = EngineShell(
            "main", bus, coordinator, holder, LIMITS, cpu_s=time.process_time, thread_s=time.thread_time
        )
        task = asyncio.create_task(shell.run())
        try:
            yield Doomed(shell, task, bus)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@contextlib.asynccontextmanager
async def engine(cluster: LocalCluster) -> AsyncIterator[EngineShell]:
    async with doomed(cluster, "one") as one:
        yield one.shell


async def test_events_reach_the_readers_whose_filters_match() -> None:
    async with (
        LocalCluster(1) as cluster,
        engine(cluster),
        shoal.connect(cluster.url) as bus,
        shoal.connect(cluster.url) as other,
        bus.match("class = 'STOCK' and volume > 300000") as big,
        other.match() as many,
    ):
        await many.add_many({"yhoo": "symbol = 'YHOO'", "small": "volume < 10", "stock": "class = 'STOCK'"})
        await other.emit({"class": "STOCK", "symbol": "YHOO", "volume": 310_000}, b"first", confirm=True)
        await other.emit({"class": "STOCK", "symbol": "MSFT", "volume": 5}, b"second", confirm=True)
        first = await big.get(30)
        assert isinstance(first, Match)
        assert (first.payload, first.publisher, first.sequence) == (b"first", other.client_id, 1)
        assert first.attributes == {"class": "STOCK", "symbol": "YHOO", "volume": 310_000}
        one, two = await many.get(30), await many.get(30)
        assert isinstance(one, Match)
        assert isinstance(two, Match)
        assert (one.payload, set(one.matched)) == (b"first", {"yhoo", "stock"})
        assert (two.payload, set(two.matched)) == (b"second", {"small", "stock"})
        await many.remove("stock", "small")
        await other.emit({"class": "STOCK", "symbol": "MSFT", "volume": 5}, b"third", confirm=True)
        await other.emit({"symbol": "YHOO"}, b"fourth", confirm=True)
        last = await many.get(30)
        assert isinstance(last, Match)
        assert last.payload == b"fourth"


async def test_subscribe_with_a_filter_alone_is_match() -> None:
    async with (
        LocalCluster(1) as cluster,
        engine(cluster),
        shoal.connect(cluster.url) as bus,
        bus.subscribe(where="volume > 3") as events,
    ):
        await bus.emit({"volume": 5}, b"five", confirm=True)
        event = await events.get(30)
        assert isinstance(event, Match)
        assert (event.payload, event.matched) == (b"five", ("volume > 3",))
        with pytest.raises(TypeError, match="none of them was given"):
            bus.subscribe()  # type: ignore[call-overload]
        with pytest.raises(TypeError, match="needs a channel"):
            bus.subscribe(where="a = 1", since=60)  # type: ignore[call-overload]
        with pytest.raises(FilterError):
            bus.subscribe(where="volume >")


async def test_an_engine_that_dies_loses_nothing() -> None:
    async with LocalCluster(2) as cluster, contextlib.AsyncExitStack() as stack:
        first = await stack.enter_async_context(doomed(cluster, "one"))
        second = await stack.enter_async_context(doomed(cluster, "two"))
        emitters = [await stack.enter_async_context(shoal.connect(cluster.url)) for _ in range(3)]
        reader = await stack.enter_async_context(shoal.connect(cluster.url))
        got: list[tuple[int, int]] = []
        gaps = 0

        async def read(events: Matching) -> None:
            nonlocal gaps
            async for item in events:
                if isinstance(item, Match):
                    got.append((item.publisher, item.sequence))
                else:
                    gaps += 1

        async def emit(bus: shoal.Bus) -> None:
            for number in range(1200):
                await bus.emit({"n": number, "odd": number % 2 == 1})
                if number % 3 == 0:
                    await asyncio.sleep(0.005)

        async with reader.match("odd = true") as events:
            reading = asyncio.create_task(read(events))
            emitting = [asyncio.create_task(emit(bus)) for bus in emitters]
            await asyncio.sleep(3.5)
            await (first if first.shell.status is not None else second).die()
            await asyncio.gather(*emitting)
            wanted = [(bus.client_id, number) for bus in emitters for number in range(2, 1201, 2)]
            async with asyncio.timeout(60):
                while len(got) < len(wanted):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            reading.cancel()
        assert sorted(got) == sorted(wanted)
        for bus in emitters:
            mine = [number for publisher, number in got if publisher == bus.client_id]
            assert mine == sorted(mine)
        assert gaps == 0


class Refusing:
    """A bus whose next letter to a client is refused."""

    def __init__(self, bus: shoal.Bus) -> None:
        self._bus = bus
        self.refuses = False

    def post(self, channel: bytes, payload: bytes) -> asyncio.Future[int] | None:
        if self.refuses and b":to:" in channel:
            self.refuses = False
            refused: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            refused.set_exception(NotConfirmedError("refused"))
            return refused
        return self._bus.post(channel, payload)

    async def listen(self, channel: bytes, heard: Callable[[], None]) -> Subscription:
        return await self._bus.listen(channel, heard)


async def test_a_process_that_stops_serving_and_serves_again_is_another_instance() -> None:
    """Its lease was still held, so it got the same token again, and clients took it for the instance before."""
    async with LocalCluster(1) as cluster, contextlib.AsyncExitStack() as stack:
        url = cluster.url_for(ENGINE)
        wire = Refusing(await stack.enter_async_context(shoal.connect(url)))
        coordinator = await stack.enter_async_context(await PRODUCTION.coordinator(url, 2.0))
        shell = EngineShell(
            "main", wire, coordinator, "one", LIMITS, cpu_s=time.process_time, thread_s=time.thread_time
        )
        serving = asyncio.create_task(shell.run())
        reader = await stack.enter_async_context(shoal.connect(cluster.url))
        emitter = await stack.enter_async_context(shoal.connect(cluster.url))
        events = await stack.enter_async_context(reader.match("a > 0"))
        await emitter.emit({"a": 1}, confirm=True)
        before = shell.status
        wire.refuses = True
        for number in range(2, 100):
            await emitter.emit({"a": number}, confirm=True)
        after = shell.status
        assert before is not None
        assert after is not None
        assert after.instance > before.instance
        got = [await events.get(30) for _ in range(1, 100)]
        assert [one.sequence for one in got if isinstance(one, Match)] == [*range(1, 100)]
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        assert await coordinator.lease_of("engines/main") is None


async def test_bad_input_is_refused_and_says_why() -> None:
    limits = msgspec.structs.replace(DEFAULT_LIMITS, subscribe_timeout_s=1.5)
    async with LocalCluster(1) as cluster, shoal.connect(cluster.url, limits=limits) as bus:
        with pytest.raises(EngineUnavailableError, match="the engine does not answer"):
            async with bus.match("a = 1"):
                pass
        with pytest.raises(FilterError):
            bus.match("a = ")
        with pytest.raises(EventError, match="attributes_max"):
            await bus.emit({f"a{number}": 1 for number in range(10_000)})
        with pytest.raises(EventError):
            await bus.emit({"a": object()})  # type: ignore[dict-item]
        with pytest.raises(PayloadTooLargeError):
            await bus.emit({"a": 1}, bytes(DEFAULT_LIMITS.payload_bytes_max))
        for name in ("__shoal.e:main:in:0", "__shoal.i:main:all"):
            with pytest.raises(ChannelNameError, match="reserved"):
                await bus.publish(name, b"")


async def test_applications_neither_hear_nor_forge_what_the_engine_says() -> None:
    async with LocalCluster(1) as cluster, engine(cluster), shoal.connect(cluster.url) as bus:
        async with bus.subscribe(pattern="*") as everything, bus.match("a = 1") as events:
            await bus.emit({"a": 1}, confirm=True)
            await bus.publish("mine", b"1", confirm=True)
            assert isinstance(await events.get(30), Match)
            item = await everything.get(30)
            assert isinstance(item, shoal.Message)
            assert item.channel == "mine"
            assert everything.get_nowait() is None
        forged = bus.post(b"__shoal.i:main:all", b"")
        assert forged is not None
        with pytest.raises(PublishError, match="NOPERM"):
            await forged
