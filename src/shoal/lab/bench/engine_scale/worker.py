"""The clients of esilbops-7: `python -m shoal.lab.bench.engine_scale.worker`, run by `shoal.lab.harness`.

Owns their loops. One process is the emitter, one the readers of the engine, one the subscribers of the channels beside
it, and one holds the bare index. The channel `fan.K` has K subscribers: an event that K clients want is published
there, so both ways have the same deliveries.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec
import numpy as np

import shoal
from shoal.bus.event_reader import Matching
from shoal.bus.subscription import Subscription
from shoal.filters.index.index import Index
from shoal.filters.index.wire_table import wire_table
from shoal.lab.bench.engine_scale.load import CLIENTS, EngineWorkload
from shoal.lab.harness import Parent, Ready, run_worker
from shoal.limits import DEFAULT_LIMITS
from shoal.message import Match, Message

PAYLOAD: Final = bytes(64)
ADD_MANY: Final = 2000
LIMITS: Final = msgspec.structs.replace(DEFAULT_LIMITS, subscribe_timeout_s=120.0, drain_timeout_s=120.0)
"""A matcher that gets a million filters at once may take longer than an application would wait for one."""
INDEX_BATCH: Final = 256
"""Events that the bare index is given together: as many as the engine puts into a batch."""

Way: TypeAlias = Literal["engine", "channel"]


class AddFilters(msgspec.Struct, tag=True, frozen=True):
    """Bring these filters of a load into force, besides those that are; answered with `Ready`."""

    url: str
    load: str
    first: int
    last: int


class Listen(msgspec.Struct, tag=True, frozen=True):
    """Subscribe to the channels; answered with `Ready`."""

    url: str


class Receive(msgspec.Struct, tag=True, frozen=True):
    """Take this number of deliveries; answered with `Done`."""

    deliveries: int


class Emit(msgspec.Struct, tag=True, frozen=True):
    """Emit events as fast as possible; answered with `Done` when all are taken."""

    url: str
    way: Way
    load: str
    filters: int
    first: int
    events: int


class FindAll(msgspec.Struct, tag=True, frozen=True):
    """Match events with a bare index; answered with `Done`."""

    load: str
    filters: int
    first: int
    events: int


class Done(msgspec.Struct, tag=True, frozen=True):
    """What an order took. Times are those of the clock that all processes of a machine share."""

    began_at: float
    ended_at: float
    cpu_s: float
    matches: int = 0
    """Filters that were named, or found."""
    gaps: int = 0


Order: TypeAlias = AddFilters | Listen | Receive | Emit | FindAll
ORDERS: Final[msgspec.json.Decoder[Order]] = msgspec.json.Decoder(Order)
REPORTS: Final[msgspec.json.Decoder[Ready | Done]] = msgspec.json.Decoder(Ready | Done)


class Client:
    """What this process has opened."""

    def __init__(self) -> None:
        self.stack = contextlib.AsyncExitStack()
        self._buses: list[shoal.Bus] = []
        self._readers: list[Matching] = []
        self._loads: dict[str, EngineWorkload] = {}
        self._index = Index()
        self._indexed = ("", 0)
        self._taken = self._wanted = self._matches = self._gaps = 0
        self._all = asyncio.Event()

    def load(self, path: str) -> EngineWorkload:
        """A load, mapped once."""
        if path not in self._loads:
            self._loads[path] = EngineWorkload(Path(path))
        return self._loads[path]

    async def bus(self, url: str, number: int = 0) -> shoal.Bus:
        """One of the buses of this process."""
        while len(self._buses) <= number:
            self._buses.append(await self.stack.enter_async_context(shoal.connect(url, limits=LIMITS)))
        return self._buses[number]

    async def match(self, order: AddFilters) -> None:
        """More filters for the readers."""
        load = self.load(order.load)
        while len(self._readers) < CLIENTS:
            bus = await self.bus(order.url, len(self._readers))
            self._readers.append(await self.stack.enter_async_context(bus.match()))
            self._start_reading(self._readers[-1])
        await asyncio.gather(*(self._add(load, reader, client, order) for client, reader in enumerate(self._readers)))

    async def _add(self, load: EngineWorkload, reader: Matching, client: int, order: AddFilters) -> None:
        numbers = [number for number in range(order.first, order.last) if number % CLIENTS == client]
        for at in range(0, len(numbers), ADD_MANY):
            some = numbers[at : at + ADD_MANY]
            await reader.add_many(dict(zip(map(str, some), load.some_filters(some), strict=True)))

    async def listen(self, order: Listen) -> None:
        """Subscribes to all channels."""
        for client in range(CLIENTS):
            bus = await self.bus(order.url, client)
            for fan in range(client + 1, CLIENTS + 1):
                self._start_reading(await self.stack.enter_async_context(bus.subscribe(f"fan.{fan}")))

    def _start_reading(self, items: Matching | Subscription) -> None:
        reading = asyncio.create_task(self._read(items))
        self.stack.callback(reading.cancel)

    async def _read(self, items: Matching | Subscription) -> None:
        async for item in items:
            if isinstance(item, Match):
                self._matches += len(item.matched)
            elif not isinstance(item, Message):
                self._gaps += 1
                self._all.set()
                continue
            self._taken += 1
            if self._taken == self._wanted:
                self._all.set()

    async def receive(self, deliveries: int) -> None:
        """Returns when all deliveries have come."""
        self._wanted = deliveries
        if self._taken < deliveries:
            await self._all.wait()
        self._all.clear()
        self._taken = self._wanted = 0

    def counted(self) -> tuple[int, int]:
        """Filters that were named, and gaps, since the last call."""
        counts = self._matches, self._gaps
        self._matches = self._gaps = 0
        return counts

    async def emit(self, order: Emit) -> Done:
        """Emits events."""
        events = self.load(order.load).events(order.filters).decoded(order.first, order.events)
        bus = await self.bus(order.url)
        began_at, began_cpu = time.monotonic(), time.process_time()
        if order.way == "engine":
            for event, _ in events[:-1]:
                await bus.emit(event, PAYLOAD)
            await bus.emit(events[-1][0], PAYLOAD, confirm=True)
        else:
            for event, clients in events:
                await bus.publish(f"fan.{clients}", PAYLOAD, attributes=event)
        return Done(began_at, time.monotonic(), time.process_time() - began_cpu)

    def find_all(self, order: FindAll) -> Done:
        """Matches events with the bare index."""
        load = self.load(order.load)
        if self._indexed != (order.load, order.filters):
            self._index = Index()
            self._index.insert_many(np.arange(order.filters), load.first_filters(order.filters))
            self._index.settle()
            self._indexed = order.load, order.filters
        events = load.events(order.filters)
        wires = [events.wires[place] for place in events.places(order.first, order.events)]
        began_at, began_cpu = time.monotonic(), time.process_time()
        found = 0
        for at in range(0, len(wires), INDEX_BATCH):
            found += len(self._index.match_many(wire_table(wires[at : at + INDEX_BATCH])).ids)
        return Done(began_at, time.monotonic(), time.process_time() - began_cpu, found)


async def work(parent: Parent[Order]) -> None:
    """Carries out orders."""
    client = Client()
    async with client.stack:
        while (order := await parent.order()) is not None:
            if isinstance(order, Emit):
                parent.tell(await client.emit(order))
            elif isinstance(order, FindAll):
                parent.tell(client.find_all(order))
            elif isinstance(order, Receive):
                began_at, began_cpu = time.monotonic(), time.process_time()
                client.counted()
                await client.receive(order.deliveries)
                parent.tell(Done(began_at, time.monotonic(), time.process_time() - began_cpu, *client.counted()))
            else:
                await (client.match(order) if isinstance(order, AddFilters) else client.listen(order))
                parent.tell(Ready())


if __name__ == "__main__":
    run_worker(ORDERS, work)
