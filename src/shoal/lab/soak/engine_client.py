"""A process of an engine soak: an emitter, or a reader with many filters.

Owns what they do and when they log it: an emitter before it emits, a reader when filters are in force, before they are
removed, and when events arrive.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections import deque
from pathlib import Path
from time import monotonic
from typing import Final

import shoal
from shoal.bus.event_reader import Matching
from shoal.lab.air_quality import attributes
from shoal.lab.harness import Go, Parent, Ready, Stop, run_worker
from shoal.lab.soak.engine_orders import (
    ASKED,
    DELIVERED,
    EMITTED,
    GAP,
    IN_FORCE,
    ORDERS,
    REMOVED,
    ClientLog,
    EngineClientStatus,
    Order,
    StartEmitter,
    StartReader,
    owner_of,
)
from shoal.message import Gap

TELL_S: Final = 0.2
BEAT_S: Final = 0.005
"""How often an emitter emits what is due."""
CHANGE_S_MIN: Final = 0.02
"""How often filters come and go at most. More of them come together."""
HELD_S: Final = 10.0
"""How long a filter that comes and goes lives."""
ADD_MANY: Final = 5000


class Emitter:
    """Emits events at a rate until it is told to stop."""

    def __init__(self, start: StartEmitter, bus: shoal.Bus) -> None:
        self._start = start
        self._bus = bus
        self._city = start.city
        self._log = ClientLog(Path(start.log), start.name)
        self.count = 0
        self.stopping = False

    async def prepare(self) -> None:
        """Nothing has to be prepared."""

    async def run(self) -> None:
        """Emits what is due, and all of it is taken in the end."""
        began = monotonic()
        while not self.stopping:
            while self.count < (monotonic() - began) * self._start.rate and not self.stopping:
                await self._emit(confirm=False)
            await asyncio.sleep(BEAT_S)
        await self._emit(confirm=True)
        self._log.flush()

    async def _emit(self, confirm: bool) -> None:
        self.count += 1
        name, number = self._start.name, self.count
        reading = self._city.reading(number)
        self._log.write(EMITTED, monotonic(), name, number)
        await self._bus.emit(attributes(reading), f"{name} {number}", confirm=confirm)


class Reader:
    """Reads events that match its filters."""

    def __init__(self, start: StartReader, bus: shoal.Bus) -> None:
        self._start = start
        self._bus = bus
        self._city = start.city
        self._log = ClientLog(Path(start.log), start.name)
        self._events: Matching
        self._reading: asyncio.Task[None]
        self.count = 0
        self.stopping = False

    async def prepare(self) -> None:
        """Brings the filters into force."""
        self._events = await self._bus.match().open()
        self._reading = asyncio.create_task(self._read())
        city, start = self._city, self._start
        mine = (one for one in range(city.filters) if owner_of(one, city.cell_of(one), start.readers) == start.number)
        while some := [*itertools.islice(mine, ADD_MANY)]:
            await self._add(some)

    async def _add(self, numbers: list[int]) -> None:
        self._log.write(ASKED, monotonic(), "-", numbers[0])
        await self._events.add_many({str(number): self._city.filter_text(number) for number in numbers})
        now = monotonic()
        for number in numbers:
            self._log.write(IN_FORCE, now, "-", number)

    async def run(self) -> None:
        """Adds and removes filters, until it is told to stop."""
        start = self._start
        others = itertools.count(self._city.filters + start.number, start.readers)
        held: deque[int] = deque()
        at_once = max(1, round(start.adds_per_s * CHANGE_S_MIN))
        held_max = round(start.adds_per_s * HELD_S)
        due = monotonic()
        while not self.stopping:
            if self._reading.done():
                self._reading.result()
            numbers = [next(others) for _ in range(at_once)]
            await self._add(numbers)
            held += numbers
            gone = [held.popleft() for _ in range(len(held) - held_max)]
            for number in gone:
                self._log.write(REMOVED, monotonic(), "-", number)
            await self._events.remove(*map(str, gone))
            due += at_once / start.adds_per_s
            await asyncio.sleep(max(0.0, due - monotonic()))

    async def _read(self) -> None:
        log = self._log
        async for item in self._events:
            at = monotonic()
            if isinstance(item, Gap):
                log.write(GAP, at, "-", 0)
                print(f"gap at {at:.3f}: {item.reason}", file=sys.stderr, flush=True)
            else:
                emitter, number = item.payload.decode().split(" ")
                log.write(DELIVERED, at, emitter, int(number), ",".join(item.matched))
                self.count += 1
            if not self._events.waiting:
                log.flush()


async def work(parent: Parent[Order]) -> None:
    """Runs one client until its parent ends it."""
    start = await parent.order()
    assert isinstance(start, StartEmitter | StartReader)
    async with shoal.connect(start.url) as bus:
        client = Emitter(start, bus) if isinstance(start, StartEmitter) else Reader(start, bus)
        await client.prepare()
        parent.tell(Ready())
        if not isinstance(await parent.order(), Go):
            return
        running = asyncio.create_task(client.run())
        orders = asyncio.create_task(parent.order())
        while not running.done():
            await asyncio.wait({running}, timeout=TELL_S)
            client.stopping = orders.done() and isinstance(orders.result(), Stop)
            parent.tell(EngineClientStatus(client.count))
        running.result()
        parent.tell(EngineClientStatus(client.count, ended=True))
        orders = asyncio.create_task(parent.order())
        while not orders.done():  # a reader continues reading
            await asyncio.wait({orders}, timeout=TELL_S)
            parent.tell(EngineClientStatus(client.count, ended=True))


if __name__ == "__main__":
    run_worker(ORDERS, work, log_level="warning")
