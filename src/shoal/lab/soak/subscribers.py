"""The subscribers of a load process: some stay from the start, some join late, some unsubscribe and subscribe again.

Owns when subscriptions begin and end, and logs everything that they receive. Whether a subscriber has settled is read
from its router. That only decides when the round is over, never what was lost.
"""

from __future__ import annotations

import asyncio
import contextlib
from time import monotonic
from typing import Final

from shoal.bus import Bus, Subscription
from shoal.errors import ShoalError, UnreachableError
from shoal.lab.sim.scenarios.channel_run_history import number_of
from shoal.lab.soak.attacks import HOSTILE
from shoal.lab.soak.load_context import LoadContext, OrderState
from shoal.lab.soak.load_shape import Lifetime, LoadSubscriber
from shoal.lab.soak.round_log import (
    CornerMet,
    ForeignReceived,
    GapReceived,
    MessageReceived,
    Problem,
    SubscribeCalled,
    SubscribeReturned,
    SubscriptionBroken,
    Unsubscribed,
    foreign_number,
)
from shoal.message import Gap, Item, Retraction

TAKE_MAX: Final = 1024
QUIET_S: Final = 2.0
"""A process has settled when nothing has arrived for this long."""
SLOW_S_MAX: Final = 0.3
OPEN_AT_ONCE_MAX: Final = 20
"""Subscribers that open their bus at the same time."""


class Subscribers:
    """All subscribers of one process."""

    def __init__(self, context: LoadContext) -> None:
        self.context = context
        self.arrived = 0
        self.subscriptions = 0
        self.received_at = monotonic()
        self._opening = asyncio.Semaphore(OPEN_AT_ONCE_MAX)
        self._shared: dict[int, asyncio.Task[Bus | None]] = {}
        shape = context.shape
        self._mine = [one for one in shape.subscribers if shape.process_of(one) == context.number]
        self._expected = sum(one.lifetime is not Lifetime.LATE for one in self._mine)

    async def run(self, orders: OrderState) -> None:
        """Subscribes and reads until `end`."""
        async with asyncio.TaskGroup() as group:
            for subscriber in self._mine:
                group.create_task(_Subscriber(self, subscriber).live(orders))
        if not self.settled:
            self._log_unsettled()
        await asyncio.gather(*(self.context.close_bus(bus) for bus in list(self.context.buses)))

    async def open_bus(self, subscriber: LoadSubscriber, orders: OrderState) -> Bus | None:
        """The bus of a subscriber, its own or a shared one. None if `stop` comes first."""
        if subscriber.bus is None:
            async with self._opening:
                return await self.context.open_bus(orders)
        if subscriber.bus not in self._shared:
            self._shared[subscriber.bus] = asyncio.create_task(self.context.open_bus(orders))
        return await self._shared[subscriber.bus]

    @property
    def ready(self) -> bool:
        """Whether all subscriptions that should exist from the start are in force."""
        return self.arrived >= self._expected

    @property
    def settled(self) -> bool:
        """Whether nothing is outstanding, as far as this process can know."""
        return monotonic() - self.received_at > QUIET_S and all(_unsettled(bus) == [] for bus in self.context.buses)

    def _log_unsettled(self) -> None:
        for bus in self.context.buses:
            for text in _unsettled(bus):
                self.context.log.write(Problem(f"unsettled: subscriber {bus.client_id:x}: {text}"))

    def next_subscription(self) -> int:
        """A number for a subscription in the log."""
        self.subscriptions += 1
        return self.subscriptions


def _unsettled(bus: Bus) -> list[str]:
    """Everything that the router of a bus still waits for."""
    found = []
    for sub in bus.router.subscriptions:
        if not sub.settled:
            found.append(f"{sub.text} is not in force: {sub.statistics().servers}")
        found += [f"{sub.text}: {doubt}" for doubt in sub.doubts()]
    return found


async def _take(subscription: Subscription) -> list[Item]:
    """Waits for items, however long the servers are unreachable."""
    while True:
        with contextlib.suppress(UnreachableError):
            return await subscription.take(TAKE_MAX)


class _Subscriber:
    """One subscriber with its subscriptions, one after the other."""

    def __init__(self, subscribers: Subscribers, subscriber: LoadSubscriber) -> None:
        self._all = subscribers
        self._context = subscribers.context
        self._log = subscribers.context.log
        self._shape = subscribers.context.shape
        self._subscriber = subscriber
        self._random = self._shape.rng("subscriber", subscriber.number)
        self._leaving = False
        self._hostile: set[tuple[str, int, int]] = set()
        """Messages of hostile clients that were received."""

    async def live(self, orders: OrderState) -> None:
        lifetime, random = self._subscriber.lifetime, self._random
        if lifetime is Lifetime.LATE:
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
                await self._context.close_bus(bus)
                bus = None
            await orders.pause(random.uniform(0.0, 1.0))

    async def _subscribe(self, bus: Bus, first: bool, orders: OrderState) -> None:
        """One subscription, from its beginning to its end."""
        subscriber, log = self._subscriber, self._log
        number = self._all.next_subscription()
        name = subscriber.name
        subscription = bus.psubscribe(name) if subscriber.pattern else bus.subscribe(name)
        log.write(SubscribeCalled(number, name, subscriber.pattern, bus.client_id, subscriber.slow, monotonic()))
        try:
            await subscription.open()
        except ShoalError as error:
            log.write(Unsubscribed(number, monotonic()))
            log.write(Problem(f"unsettled: subscriber {bus.client_id:x}: {error}"))
            return
        log.write(SubscribeReturned(number, monotonic()))
        self._arrived(first)
        self._leaving = False
        reading = asyncio.create_task(self._read(subscription, number))
        await self._stay(orders)
        if not orders.end.is_set():
            log.write(Unsubscribed(number, monotonic()))
            log.write(CornerMet("subscriber left", 1))
        self._leaving = True
        await subscription.aclose()
        await reading

    def _arrived(self, first: bool) -> None:
        lifetime = self._subscriber.lifetime
        self._all.arrived += first and lifetime is not Lifetime.LATE
        if lifetime is Lifetime.LATE or not first:
            self._log.write(CornerMet("late joiner", 1))
        self._log.write(CornerMet("pattern" if self._subscriber.pattern else "channel", 1))

    async def _stay(self, orders: OrderState) -> None:
        """Waits until the round is over, or until a restless subscriber leaves; none leaves after `stop`."""
        if self._subscriber.lifetime is Lifetime.RESTLESS:
            await orders.pause(min(self._random.uniform(0.5, 8.0), self._shape.seconds / 3))
            if not orders.stop.is_set():
                return
        await orders.end.wait()

    async def _read(self, subscription: Subscription, number: int) -> None:
        """Reads until the application ends the subscription. Any other end is logged as an error."""
        why = "it ended by itself"
        try:
            while items := await _take(subscription):
                self._all.received_at = now = monotonic()
                for item in items:
                    self._write(item, number, now)
                if self._subscriber.slow:
                    await asyncio.sleep(self._random.uniform(0.0, SLOW_S_MAX))
        except ShoalError as error:
            why = f"{type(error).__name__}: {error}"
        if not self._leaving:
            self._log.write(SubscriptionBroken(number, why, monotonic()))

    def _write(self, item: Item, number: int, now: float) -> None:
        if isinstance(item, Gap):
            self._log.write(GapReceived(number, now, item.channel, item.publisher, item.first, item.last, item.reason))
        elif isinstance(item, Retraction):
            self._write_retraction(item)
        elif item.payload.startswith(HOSTILE):
            self._hostile.add((item.channel, item.publisher, item.sequence))
            self._log.write(CornerMet("hostile message received", 1))
        elif item.foreign and (foreign := foreign_number(item.payload)) is not None:
            self._log.write(ForeignReceived(number, now, foreign))
        else:
            self._log.write(MessageReceived(number, now, number_of(item), item.channel, item.publisher, item.sequence))

    def _write_retraction(self, item: Retraction) -> None:
        """Only messages of hostile clients may be retracted."""
        named = item.channel, item.publisher, item.sequence
        if named in self._hostile:
            self._hostile.remove(named)
            self._log.write(CornerMet("hostile message retracted", 1))
        else:
            self._log.write(Problem(f"false retraction: no hostile client has published {item}"))
