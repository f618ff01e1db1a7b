"""The subscribers of a load process: some are there from the start, some come late, some come and go.

Owns when subscriptions begin and end, and that everything they are handed is written down. That a subscriber
is settled is asked of its router; it only decides when the run is over, never what was lost.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Final

from shoal.bus import Bus, Subscription
from shoal.errors import ShoalError
from shoal.message import Gap, Item
from shoal.sim.history import number_of
from shoal.soak.records import Counted, Got, GotForeign, InForce, Left, Missed, Shut, Subscribing, Wrong, foreign_number
from shoal.soak.shape import Life, Subscriber
from shoal.soak.worker import Orders, Site

TAKE_MAX: Final = 1024
QUIET_S: Final = 2.0
"""How long nothing may have arrived for a process to be settled."""
SLOW_S_MAX: Final = 0.3
OPEN_AT_ONCE_MAX: Final = 20
"""Subscribers that open their bus at the same time, so that the start is no stampede."""


class Subscribers:
    """All subscribers of one process."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.expected = 0
        self.arrived = 0
        self.subscriptions = 0
        self.heard_at = monotonic()
        self._opening = asyncio.Semaphore(OPEN_AT_ONCE_MAX)
        self._shared: dict[int, asyncio.Task[Bus | None]] = {}
        shape = site.shape
        self._mine = [one for one in shape.subscribers if shape.process_of(one) == site.number]
        self.expected = sum(one.life is not Life.LATE for one in self._mine)

    async def run(self, orders: Orders) -> None:
        """Subscribes and reads until `end`."""
        async with asyncio.TaskGroup() as group:
            for subscriber in self._mine:
                group.create_task(_Place(self, subscriber).live(orders))
        if not self.settled:
            self._complain()
        await asyncio.gather(*(self.site.close_bus(bus) for bus in list(self.site.buses)))

    async def open_bus(self, subscriber: Subscriber, orders: Orders) -> Bus | None:
        """The bus of a subscriber: one of its own, or the one that it shares. None when there is no time for it."""
        if subscriber.bus is None:
            async with self._opening:
                return await self.site.open_bus(orders)
        if subscriber.bus not in self._shared:
            self._shared[subscriber.bus] = asyncio.create_task(self.site.open_bus(orders))
        return await self._shared[subscriber.bus]

    @property
    def ready(self) -> bool:
        """Whether everyone who is to be there from the start is in force."""
        return self.arrived >= self.expected

    @property
    def settled(self) -> bool:
        """Whether nothing is on its way, as far as anybody here can know."""
        return monotonic() - self.heard_at > QUIET_S and all(_troubles(bus) == [] for bus in self.site.buses)

    def _complain(self) -> None:
        for bus in self.site.buses:
            for trouble in _troubles(bus):
                self.site.log.write(Wrong(f"unsettled: subscriber {bus.client_id:x}: {trouble}"))

    def next_subscription(self) -> int:
        """A number for a subscription in the log."""
        self.subscriptions += 1
        return self.subscriptions


def _troubles(bus: Bus) -> list[str]:
    """What a router still waits for."""
    found = []
    for sub in bus.adapter.router.subscribing:
        if not sub.settled:
            found.append(f"{sub.text} is not in force: { {name: str(site.state) for name, site in sub.sites.items()} }")
        for channel, stream in sub.all_streams():
            if stream.has_hole():
                found.append(f"{sub.text}: {channel.text} of {stream.stream:x} misses {stream.next} to {stream.last}")
            elif stream.doubted_at is not None:
                found.append(f"{sub.text}: {channel.text} of {stream.stream:x} is in doubt after {stream.next - 1}")
    return found


class _Place:
    """One subscriber, or one after the other in the same place."""

    def __init__(self, all_of_them: Subscribers, subscriber: Subscriber) -> None:
        self._all = all_of_them
        self._site = all_of_them.site
        self._log = all_of_them.site.log
        self._shape = all_of_them.site.shape
        self._subscriber = subscriber
        self._random = self._shape.rng("subscriber", subscriber.number)
        self._leaving = False

    async def live(self, orders: Orders) -> None:
        life, random = self._subscriber.life, self._random
        if life is Life.LATE:
            await orders.pause(random.uniform(0.1, 0.6) * self._shape.seconds)
        bus: Bus | None = None
        first = True
        while bus is None or not orders.stop.is_set():
            if bus is None:
                bus = await self._all.open_bus(self._subscriber, orders)
                if bus is None:
                    return
            await self._subscribe(bus, first, orders)
            first = False
            if orders.end.is_set():
                return
            if random.random() < 0.3 and self._subscriber.bus is None:
                await self._site.close_bus(bus)
                bus = None
            await orders.pause(random.uniform(0.0, 1.0))

    async def _subscribe(self, bus: Bus, first: bool, orders: Orders) -> None:
        """One subscription, from its beginning to its end."""
        subscriber, log = self._subscriber, self._log
        number = self._all.next_subscription()
        name = subscriber.name
        subscription = bus.psubscribe(name) if subscriber.pattern else bus.subscribe(name)
        log.write(Subscribing(number, name, subscriber.pattern, bus.client_id, subscriber.slow, monotonic()))
        try:
            await subscription.open()
        except ShoalError as error:
            log.write(Left(number, monotonic()))
            log.write(Wrong(f"unsettled: subscriber {bus.client_id:x}: {error}"))
            return
        log.write(InForce(number, monotonic()))
        self._arrived(first)
        self._leaving = False
        reading = asyncio.create_task(self._read(subscription, number))
        await self._stay(orders)
        if not orders.end.is_set():
            log.write(Left(number, monotonic()))
            log.write(Counted("subscriber left", 1))
        self._leaving = True
        await subscription.aclose()
        await reading

    def _arrived(self, first: bool) -> None:
        life = self._subscriber.life
        self._all.arrived += first and life is not Life.LATE
        if life is Life.LATE or not first:
            self._log.write(Counted("late joiner", 1))
        self._log.write(Counted("pattern" if self._subscriber.pattern else "channel", 1))

    async def _stay(self, orders: Orders) -> None:
        """Until the run is over, or until a restless subscriber has had enough; nobody leaves after `stop`."""
        if self._subscriber.life is Life.RESTLESS:
            await orders.pause(min(self._random.uniform(0.5, 8.0), self._shape.seconds / 3))
            if not orders.stop.is_set():
                return
        await orders.end.wait()

    async def _read(self, subscription: Subscription, number: int) -> None:
        """Reads until the application ends the subscription; that anybody else does must never be."""
        why = "it ended by itself"
        try:
            while items := await subscription.take(TAKE_MAX):
                self._all.heard_at = now = monotonic()
                for item in items:
                    self._write(item, number, now)
                if self._subscriber.slow:
                    await asyncio.sleep(self._random.uniform(0.0, SLOW_S_MAX))
        except ShoalError as error:
            why = f"{type(error).__name__}: {error}"
        if not self._leaving:
            self._log.write(Shut(number, why, monotonic()))

    def _write(self, item: Item, number: int, now: float) -> None:
        if isinstance(item, Gap):
            self._log.write(Missed(number, now, item.channel, item.publisher, item.first, item.last, item.reason))
        elif item.foreign and (foreign := foreign_number(item.payload)) is not None:
            self._log.write(GotForeign(number, now, foreign))
        else:
            self._log.write(Got(number, now, number_of(item), item.channel, item.publisher, item.sequence))
