"""The publishers of a load process: bursts, steady streams and quiet channels; some leave and others come.

Owns how channels are published on. Counts sequence numbers itself: one task publishes on a channel for a
client, so the n-th message that the bus accepts from it has number n.
"""

from __future__ import annotations

import asyncio
from random import Random
from time import monotonic
from typing import Final

from shoal.bus import Bus
from shoal.errors import ShoalError
from shoal.sim.history import payload_of
from shoal.soak.records import Closed, Confirmed, Counted, Opened, Published, Wrong
from shoal.soak.shape import Channel, Kind, Pace
from shoal.soak.worker import Orders, Site

BURST_MESSAGES_MAX: Final = 60
BURST_MESSAGE_S: Final = 0.04
"""Pause after a burst, for each of its messages, on the average."""
STEADY_S: Final = 0.04
QUIET_S: Final = (1.5, 4.0)
PULSE_S: Final = (0.5, 0.9)
LEAVE_EVERY: Final = 4
"""One publisher in so many leaves now and then, and another takes its place."""
LIFE_S: Final = (4.0, 12.0)
LAG_S_MAX: Final = 0.1
"""A pause that took so much longer than asked for says that the machine has too much to do."""
SLOWDOWN_MAX: Final = 8.0
PAYLOAD_BYTES: Final = (16, 64, 64, 300, 2000)
CONFIRM_SHARE: Final = 0.1
"""How often the publisher of a paced channel waits until a message is confirmed."""
CATCH_UP_S: Final = 0.5
"""How far behind its pace a publisher may be and still make up for it; the rest is left out."""
RISE_LOOK_S: Final = 0.1
"""How soon a publisher notices that the load rises."""


class Publishers:
    """All publishers of one process."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.numbers = 0
        self.slowdown = 1.0
        self.settled = False
        self.ready = False
        self.counts: dict[str, int] = {}

    async def run(self, orders: Orders) -> None:
        """Publishes until `stop`, then stays, so that others can ask for what they missed, until `end`."""
        self.ready = True
        async with asyncio.TaskGroup() as group:
            lives = [group.create_task(_Publisher(self, number).live(orders)) for number in range(self._count)]
            await asyncio.wait(lives)
            self.settled = True
            await orders.end.wait()
        await asyncio.gather(*(self.site.close_bus(bus) for bus in list(self.site.buses)))
        for corner, times in self.counts.items():
            self.site.log.write(Counted(corner, times))

    @property
    def _count(self) -> int:
        return self.site.shape.publishers

    def next_number(self) -> int:
        """A number that no other message carries."""
        self.numbers += 1
        return self.numbers

    def count(self, corner: str) -> None:
        """A corner was met."""
        self.counts[corner] = self.counts.get(corner, 0) + 1

    async def pause(self, seconds: float, orders: Orders) -> None:
        """Waits; the longer, the more the machine lags behind."""
        wanted = seconds * self.slowdown
        began = monotonic()
        await orders.pause(wanted)
        lag = monotonic() - began - wanted
        self.slowdown = min(SLOWDOWN_MAX, self.slowdown * 1.05) if lag > LAG_S_MAX else max(1.0, self.slowdown * 0.99)


class _Publisher:
    """One publisher after the other in the same place."""

    def __init__(self, all_of_them: Publishers, number: int) -> None:
        self._all = all_of_them
        self._site = all_of_them.site
        self._shape = all_of_them.site.shape
        self._number = number
        self._random = self._shape.rng("publisher", number)
        self._channels = [channel for channel in self._shape.channels if number in channel.publishers]

    async def live(self, orders: Orders) -> None:
        while not orders.stop.is_set():
            bus = await self._site.open_bus(orders)
            if bus is None:
                return
            self._site.log.write(Opened(bus.client_id, monotonic()))
            until = monotonic() + self._life_s()
            async with asyncio.TaskGroup() as group:
                for channel in self._channels:
                    group.create_task(self._publish(bus, channel, until, orders))
            if orders.stop.is_set():
                await self._drain(bus)
                return
            self._all.count("publisher left")
            self._site.log.write(Closed(bus.client_id, monotonic()))
            await self._site.close_bus(bus)

    def _life_s(self) -> float:
        stays = any(channel.kind in (Kind.PULSE, Kind.PACED) for channel in self._channels)
        if stays or self._number % LEAVE_EVERY != LEAVE_EVERY - 1:
            return float("inf")
        return min(self._random.uniform(*LIFE_S), self._shape.seconds * self._random.uniform(0.3, 0.6))

    async def _drain(self, bus: Bus) -> None:
        try:
            await bus.drain()
        except ShoalError as error:
            self._site.log.write(Wrong(f"unsettled: publisher {bus.client_id:x}: {error}"))

    async def _publish(self, bus: Bus, channel: Channel, until: float, orders: Orders) -> None:
        stream = _Stream(self._all, bus, channel, Random(self._random.random()))
        if channel.pace is not None:
            await stream.keep_pace(channel.pace, orders)
            return
        await self._all.pause(self._random.uniform(0.0, 0.5), orders)
        while monotonic() < until and not orders.stop.is_set():
            pause_s = await stream.next_act()
            await self._all.pause(max(0.0, min(pause_s, until - monotonic())), orders)


class _Stream:
    """What one client publishes on one channel."""

    def __init__(self, all_of_them: Publishers, bus: Bus, channel: Channel, rng: Random) -> None:
        self._all = all_of_them
        self._log = all_of_them.site.log
        self._bus = bus
        self._channel = channel
        self._random = rng
        self._sequence = 0

    async def next_act(self) -> float:
        """Publishes once, or a burst; returns how long to pause."""
        kind = self._channel.kind
        if kind is Kind.STEADY:
            await self._message(confirm=self._random.random() < 0.5)
            return self._random.expovariate(1 / STEADY_S)
        if kind is Kind.QUIET:
            await self._message(confirm=True)
            self._all.count("message on a quiet channel")
            return self._random.uniform(*QUIET_S)
        if kind is Kind.PULSE:
            await self._message(confirm=False)
            self._all.count("pulse")
            return self._random.uniform(*PULSE_S)
        count = self._random.randint(1, BURST_MESSAGES_MAX)
        for _ in range(count - 1):
            await self._message(confirm=False)
        await self._message(confirm=self._random.random() < 0.7)
        self._all.count("burst")
        return self._random.expovariate(1 / (count * BURST_MESSAGE_S))

    async def keep_pace(self, pace: Pace, orders: Orders) -> None:
        """Publishes at the rate of the channel until `stop`; who begins when is a matter of chance."""
        risen, interval_s = orders.risen, 1 / pace.before_per_s
        due = monotonic() + self._random.random() * interval_s
        while not orders.stop.is_set():
            if orders.risen is not risen:
                risen, interval_s = orders.risen, 1 / pace.after_per_s
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
        published = Published(number, channel, self._bus.client_id, self._sequence, called_at)
        self._log.write(published)
        await self._bus.publish(channel, payload, attributes=attributes, confirm=confirm)
        if confirm:
            self._log.write(Confirmed(self._bus.client_id, channel, self._sequence, monotonic()))
