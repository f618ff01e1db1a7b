"""The emitters and readers of `bench engine`: `python -m shoal.lab.bench.engine_worker`, run by `shoal.lab.harness`.

Owns their loops. Three ways to bring an event to those who want it:

    engine    bus.emit, and bus.match with a filter for each subscriber, or with many for one
    where     bus.publish with attributes on one channel, and bus.subscribe(channel, where=...)
    channel   bus.publish with attributes on one channel, and bus.subscribe(channel): every subscriber wants everything
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

import msgspec

import shoal
from shoal.bus.event_reader import Matching
from shoal.bus.subscription import Subscription
from shoal.lab.air_quality import AirQuality, attributes
from shoal.lab.harness import Parent, Ready, run_worker
from shoal.message import Message

CHANNEL: Final = "bench.engine"
UNHEARD: Final = "bench.engine.unheard"
PAYLOAD_BYTES: Final = 64
BEAT_S: Final = 0.002
"""How often an emitter with a rate emits what is due."""
ADD_MANY: Final = 5000

Way: TypeAlias = Literal["engine", "where", "channel"]


class Subscribe(msgspec.Struct, tag=True, frozen=True):
    """Bring subscribers with these filters into force, the filters of each; answered with `Ready`. Subscribers are
    spread over buses."""

    url: str
    way: Way
    filters: int
    """Filters of the city."""
    subscribers: list[tuple[int, int]]
    """Of each subscriber: its first filter, and how many it has. Filters of one subscriber are `stride` apart."""
    stride: int
    buses: int


class Receive(msgspec.Struct, tag=True, frozen=True):
    """Take this number of deliveries; answered with `Measured`."""

    deliveries: int


class AddOneByOne(msgspec.Struct, tag=True, frozen=True):
    """Add further filters one by one, then remove them; answered with `Measured`: latencies until each is in force."""

    first: int
    count: int


class Unsubscribe(msgspec.Struct, tag=True, frozen=True):
    """End all subscriptions; answered with `Ready`."""


class Emit(msgspec.Struct, tag=True, frozen=True):
    """Emit events at a rate, or as fast as possible if it is 0; answered with `Measured` when all are taken."""

    url: str
    way: Way
    filters: int
    first: int
    events: int
    rate: float


class Measured(msgspec.Struct, tag=True, frozen=True):
    """What an order took. Times are those of the clock that all processes of a machine share."""

    began_at: float
    ended_at: float
    cpu_s: float
    latencies_us: list[float] = []


Order: TypeAlias = Subscribe | Receive | AddOneByOne | Unsubscribe | Emit
ORDERS: Final[msgspec.json.Decoder[Order]] = msgspec.json.Decoder(Order)
REPORTS: Final[msgspec.json.Decoder[Ready | Measured]] = msgspec.json.Decoder(Ready | Measured)


class Readers:
    """The subscribers of this process."""

    def __init__(self, order: Subscribe) -> None:
        self._order = order
        self._city = AirQuality(order.filters)
        self._stack = contextlib.AsyncExitStack()
        self._first: Matching | None = None
        self._wanted = 0
        self._latencies_us: list[float] = []
        self._done = asyncio.Event()
        self._failed: BaseException | None = None

    async def open(self) -> None:
        """Returns when all are in force."""
        order = self._order
        buses = [await self._stack.enter_async_context(shoal.connect(order.url)) for _ in range(order.buses)]
        for number, (first, count) in enumerate(order.subscribers):
            filters = range(first, first + count * order.stride, order.stride)
            items = await self._subscribe(buses[number % len(buses)], filters)
            reading = asyncio.create_task(self._read(items))
            reading.add_done_callback(self._ended)
            self._stack.callback(reading.cancel)

    async def _subscribe(self, bus: shoal.Bus, filters: Sequence[int]) -> Matching | Subscription:
        if self._order.way == "channel":
            return await self._stack.enter_async_context(bus.subscribe(CHANNEL))
        texts = [self._city.filter_text(number) for number in filters]
        if self._order.way == "where":
            (text,) = texts
            return await self._stack.enter_async_context(bus.subscribe(CHANNEL, where=text))
        if len(texts) == 1:
            return await self._stack.enter_async_context(bus.match(texts[0]))
        reader = await self._stack.enter_async_context(bus.match())
        self._first = self._first or reader
        for at in range(0, len(texts), ADD_MANY):
            some = zip(filters[at : at + ADD_MANY], texts[at : at + ADD_MANY], strict=True)
            await reader.add_many({str(number): text for number, text in some})
        return reader

    async def _read(self, items: Matching | Subscription) -> None:
        async for item in items:
            if not isinstance(item, Message):
                raise RuntimeError(f"events are missing: {item}")
            self._latencies_us.append((time.monotonic_ns() - int(item.payload)) / 1000)
            if len(self._latencies_us) == self._wanted:
                self._done.set()

    def _ended(self, reading: asyncio.Task[None]) -> None:
        if not reading.cancelled() and (error := reading.exception()) is not None:
            self._failed = error
            self._done.set()

    async def receive(self, deliveries: int) -> list[float]:
        """Returns the latencies when all deliveries have come."""
        self._wanted = deliveries
        if len(self._latencies_us) < deliveries:
            await self._done.wait()
        if self._failed is not None:
            raise self._failed
        latencies, self._latencies_us, self._wanted = self._latencies_us, [], 0
        self._done.clear()
        return latencies

    async def add_one_by_one(self, first: int, count: int) -> list[float]:
        """Returns how long each filter took to be in force."""
        assert self._first is not None
        taken_us = []
        for number in range(first, first + count):
            began = time.monotonic_ns()
            await self._first.add(str(number), self._city.filter_text(number))
            taken_us.append((time.monotonic_ns() - began) / 1000)
        await self._first.remove(*map(str, range(first, first + count)))
        return taken_us

    async def close(self) -> None:
        """Ends everything."""
        await self._stack.aclose()


async def work(parent: Parent[Order]) -> None:
    """Carries out orders."""
    readers: Readers | None = None
    while (order := await parent.order()) is not None:
        began_at, began_cpu = time.monotonic(), time.process_time()
        latencies_us: list[float] = []
        if isinstance(order, Subscribe):
            readers = Readers(order)
            await readers.open()
            parent.tell(Ready())
            continue
        if isinstance(order, Emit):
            parent.tell(await _emit(order))
            continue
        if readers is None:
            raise RuntimeError("there are no subscribers")
        if isinstance(order, Unsubscribe):
            await readers.close()
            parent.tell(Ready())
            continue
        if isinstance(order, Receive):
            latencies_us = await readers.receive(order.deliveries)
        else:
            latencies_us = await readers.add_one_by_one(order.first, order.count)
        cpu_s = time.process_time() - began_cpu
        parent.tell(Measured(began_at, time.monotonic(), cpu_s, latencies_us))


async def _emit(order: Emit) -> Measured:
    events = [attributes(AirQuality(order.filters).reading(order.first + number)) for number in range(order.events)]
    async with shoal.connect(order.url) as bus:
        if order.way == "engine":
            await bus.emit({}, confirm=True)  # the conversation with the engine has begun; no filter matches this
        else:
            await bus.publish(UNHEARD, b"", confirm=True)
        began_at, began_cpu = time.monotonic(), time.process_time()
        for number, event in enumerate(events):
            early_s = number / order.rate - (time.monotonic() - began_at) if order.rate else 0.0
            if early_s > 0:
                await asyncio.sleep(max(early_s, BEAT_S))
            payload = b"%0*d" % (PAYLOAD_BYTES, time.monotonic_ns())
            if order.way == "engine":
                await bus.emit(event, payload)
            else:
                await bus.publish(CHANNEL, payload, attributes=event)
    return Measured(began_at, time.monotonic(), time.process_time() - began_cpu)


if __name__ == "__main__":
    run_worker(ORDERS, work)
