"""The publishers of a load process: bursts, steady streams and quiet channels. Some publishers are replaced now and
then.

Owns the publication patterns. It counts sequence numbers itself: one task publishes on a channel for a client, so the
n-th message that the bus accepts from it has number n.
"""

from __future__ import annotations

import asyncio
from random import Random
from time import monotonic
from typing import Final

from shoal.bus import Bus
from shoal.errors import NotConfirmedError, ShoalError
from shoal.lab.sim.history import payload_of
from shoal.lab.soak.load_context import LoadContext, OrderState
from shoal.lab.soak.load_shape import LoadChannel, PublishPattern, PublishRate
from shoal.lab.soak.round_log import ClientClosed, ClientOpened, CornerMet, MessageConfirmed, MessagePublished, Problem

BURST_MESSAGES_MAX: Final = 60
BURST_MESSAGE_S: Final = 0.04
"""Average pause after a burst, for each of its messages."""
STEADY_S: Final = 0.04
QUIET_S: Final = (1.5, 4.0)
PULSE_S: Final = (0.5, 0.9)
LEAVE_EVERY: Final = 4
"""One publisher of this number is replaced now and then."""
LIFE_S: Final = (4.0, 12.0)
LAG_S_MAX: Final = 0.1
"""If a pause takes this much longer than requested, the machine is overloaded."""
SLOWDOWN_MAX: Final = 8.0
PAYLOAD_BYTES: Final = (16, 64, 64, 300, 2000)
CONFIRM_SHARE: Final = 0.1
"""Share of messages on a paced channel that wait for confirmation."""
CATCH_UP_S: Final = 0.5
"""A publisher that is further behind its rate than this skips messages."""
RISE_LOOK_S: Final = 0.1
"""How soon a publisher notices that the load was raised."""


class Publishers:
    """All publishers of one process."""

    def __init__(self, context: LoadContext) -> None:
        self.context = context
        self.numbers = 0
        self.slowdown = 1.0
        self.settled = False
        self.ready = False
        self.counts: dict[str, int] = {}

    async def run(self, orders: OrderState) -> None:
        """Publishes until `stop`, then stays until `end`, so that subscribers can request missing messages."""
        self.ready = True
        async with asyncio.TaskGroup() as group:
            lives = [group.create_task(_Publisher(self, number).live(orders)) for number in range(self._count)]
            await asyncio.wait(lives)
            self.settled = True
            await orders.end.wait()
        await asyncio.gather(*(self.context.close_bus(bus) for bus in list(self.context.buses)))
        for corner, times in self.counts.items():
            self.context.log.write(CornerMet(corner, times))

    @property
    def _count(self) -> int:
        return self.context.shape.publishers

    def next_number(self) -> int:
        """A number that no other message has."""
        self.numbers += 1
        return self.numbers

    def count(self, corner: str) -> None:
        """Counts a corner case."""
        self.counts[corner] = self.counts.get(corner, 0) + 1

    async def pause(self, seconds: float, orders: OrderState) -> None:
        """Waits, and longer if the machine is overloaded."""
        wanted = seconds * self.slowdown
        began = monotonic()
        await orders.pause(wanted)
        lag = monotonic() - began - wanted
        self.slowdown = min(SLOWDOWN_MAX, self.slowdown * 1.05) if lag > LAG_S_MAX else max(1.0, self.slowdown * 0.99)


class _Publisher:
    """One publisher, and those that replace it."""

    def __init__(self, publishers: Publishers, number: int) -> None:
        self._all = publishers
        self._context = publishers.context
        self._shape = publishers.context.shape
        self._number = number
        self._random = self._shape.rng("publisher", number)
        self._channels = [channel for channel in self._shape.channels if number in channel.publishers]

    async def live(self, orders: OrderState) -> None:
        while not orders.stop.is_set():
            bus = await self._context.open_bus(orders)
            if bus is None:
                return
            self._context.log.write(ClientOpened(bus.client_id, monotonic()))
            until = monotonic() + self._life_s()
            async with asyncio.TaskGroup() as group:
                for channel in self._channels:
                    group.create_task(self._publish(bus, channel, until, orders))
            if orders.stop.is_set():
                await self._drain(bus)
                return
            self._all.count("publisher left")
            self._context.log.write(ClientClosed(bus.client_id, monotonic()))
            await self._context.close_bus(bus)

    def _life_s(self) -> float:
        stays = any(channel.kind in (PublishPattern.PULSE, PublishPattern.PACED) for channel in self._channels)
        if stays or self._number % LEAVE_EVERY != LEAVE_EVERY - 1:
            return float("inf")
        return min(self._random.uniform(*LIFE_S), self._shape.seconds * self._random.uniform(0.3, 0.6))

    async def _drain(self, bus: Bus) -> None:
        try:
            await bus.drain()
        except ShoalError as error:
            self._context.log.write(Problem(f"unsettled: publisher {bus.client_id:x}: {error}"))

    async def _publish(self, bus: Bus, channel: LoadChannel, until: float, orders: OrderState) -> None:
        stream = _Stream(self._all, bus, channel, Random(self._random.random()))
        if channel.pace is not None:
            await stream.keep_pace(channel.pace, orders)
            return
        await self._all.pause(self._random.uniform(0.0, 0.5), orders)
        while monotonic() < until and not orders.stop.is_set():
            pause_s = await stream.next_act()
            await self._all.pause(max(0.0, min(pause_s, until - monotonic())), orders)


class _Stream:
    """The messages of one client on one channel."""

    def __init__(self, publishers: Publishers, bus: Bus, channel: LoadChannel, rng: Random) -> None:
        self._all = publishers
        self._log = publishers.context.log
        self._bus = bus
        self._channel = channel
        self._random = rng
        self._sequence = 0

    async def next_act(self) -> float:
        """Publishes a message or a burst; returns how long to pause."""
        kind = self._channel.kind
        if kind is PublishPattern.STEADY:
            await self._message(confirm=self._random.random() < 0.5)
            return self._random.expovariate(1 / STEADY_S)
        if kind is PublishPattern.QUIET:
            await self._message(confirm=True)
            self._all.count("message on a quiet channel")
            return self._random.uniform(*QUIET_S)
        if kind is PublishPattern.PULSE:
            await self._message(confirm=False)
            self._all.count("pulse")
            return self._random.uniform(*PULSE_S)
        count = self._random.randint(1, BURST_MESSAGES_MAX)
        for _ in range(count - 1):
            await self._message(confirm=False)
        await self._message(confirm=self._random.random() < 0.7)
        self._all.count("burst")
        return self._random.expovariate(1 / (count * BURST_MESSAGE_S))

    async def keep_pace(self, pace: PublishRate, orders: OrderState) -> None:
        """Publishes at the rate of the channel until `stop`, from a random start."""
        is_raised, interval_s = orders.is_raised, 1 / pace.before_per_s
        due = monotonic() + self._random.random() * interval_s
        while not orders.stop.is_set():
            if orders.is_raised is not is_raised:
                is_raised, interval_s = orders.is_raised, 1 / pace.after_per_s
                due = monotonic() + self._random.random() * interval_s
            wait_s = due - monotonic()
            if wait_s > 0:
                await orders.pause(min(wait_s, RISE_LOOK_S))
                continue
            due += max(interval_s, -wait_s - CATCH_UP_S)
            await self._message(self._random.random() < CONFIRM_SHARE, pace.payload_bytes)
            self._all.count("paced message")

    async def _message(self, confirm: bool, payload_bytes: int | None = None) -> None:
        number = self._all.next_number()
        channel = self._channel.name
        payload = payload_of(number, payload_bytes or self._random.choice(PAYLOAD_BYTES))
        attributes = {"number": number} if self._random.random() < 0.05 else None
        called_at = monotonic()
        self._sequence += 1
        published = MessagePublished(number, channel, self._bus.client_id, self._sequence, called_at)
        self._log.write(published)
        try:
            await self._bus.publish(channel, payload, attributes=attributes, confirm=confirm)
        except NotConfirmedError:  # it stays in the buffer and is sent later
            self._all.count("not confirmed")
            return
        if confirm:
            self._log.write(MessageConfirmed(self._bus.client_id, channel, self._sequence, monotonic()))
