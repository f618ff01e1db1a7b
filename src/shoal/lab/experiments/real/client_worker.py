"""A process with many measuring clients on one channel: `python -m shoal.lab.experiments.real.client_worker`, run by
`shoal.lab.harness`.

Owns its publishers and subscribers, each with its own bus, and what they measure: the delay of each message from
`publish` to its subscriber, and the same with two samples of wide-area latency added, as in the Dynamoth paper (V.B).
"""

from __future__ import annotations

import asyncio
import struct
import time
from typing import Final

import msgspec
import numpy as np

from shoal.bus import Bus, Subscription, connect
from shoal.flow.latency import SAMPLES_PER_RESPONSE
from shoal.lab.experiments.real.client_orders import (
    ORDERS,
    ClientOrder,
    CollectWindow,
    OpenClients,
    PublishWindow,
    SetClients,
    WindowCollected,
    WindowPublished,
)
from shoal.lab.harness import Parent, Ready, run_worker
from shoal.message import Message

OPENED_TOGETHER: Final = 16
"""Clients that are opened at the same time."""
TAKE_ITEMS_MAX: Final = 256
POLL_S: Final = 0.05
STAMP: Final = struct.Struct("<Id")
"""Start of a payload: the number of its window, and when it was published on the clock that all processes share."""


class Clients:
    """All clients of this process. `first_bus` has found the cluster; each client opens a bus beside it."""

    def __init__(self, opened: OpenClients, first_bus: Bus) -> None:
        self._opened = opened
        self._first_bus = first_bus
        self._random = np.random.default_rng(opened.seed)
        self._latencies_ms = np.array(opened.latencies_ms)
        self._publishers: list[Bus] = []
        self._subscribers = 0
        self._readers: set[asyncio.Task[None]] = set()
        self._window = 0
        self._delays_s: list[float] = []
        """Of the newest window that was begun, here or in another process."""
        self._gaps = 0

    async def carry_out(self, order: ClientOrder) -> msgspec.Struct:
        """Carries out one order, and returns the report on it."""
        match order:
            case SetClients():
                return await self._set_clients(order)
            case PublishWindow():
                return await self._publish(order)
            case CollectWindow():
                return await self._collect(order)
        return Ready()

    async def _set_clients(self, order: SetClients) -> Ready:
        wanted = [self._add_subscriber] * (order.subscribers - self._subscribers)
        wanted += [self._add_publisher] * (order.publishers - len(self._publishers))
        for first in range(0, len(wanted), OPENED_TOGETHER):
            await asyncio.gather(*(add() for add in wanted[first : first + OPENED_TOGETHER]))
        return Ready()

    async def _add_publisher(self) -> None:
        self._publishers.append(await self._first_bus.sibling().open())

    async def _add_subscriber(self) -> None:
        bus = await self._first_bus.sibling().open()
        subscription = await bus.subscribe(self._opened.channel).open()
        self._subscribers += 1
        self._readers.add(asyncio.create_task(self._read(subscription)))

    async def _read(self, subscription: Subscription) -> None:
        while items := await subscription.take(TAKE_ITEMS_MAX):
            now = time.monotonic()
            for item in items:
                if not isinstance(item, Message):
                    self._gaps += 1
                    continue
                window, published_at = STAMP.unpack_from(item.payload)
                self._begin_window(window)
                if window == self._window:
                    self._delays_s.append(now - published_at)

    def _begin_window(self, window: int) -> None:
        """Forgets older windows if this one is new: their messages do not count any more."""
        if window > self._window:
            self._window, self._delays_s, self._gaps = window, [], 0

    async def _publish(self, order: PublishWindow) -> WindowPublished:
        self._begin_window(order.window)
        counts = await asyncio.gather(*(self._publish_on(bus, order) for bus in self._publishers))
        return WindowPublished(sum(counts))

    async def _publish_on(self, bus: Bus, order: PublishWindow) -> int:
        began = time.monotonic()
        pause_s = 1 / order.per_s
        due = began + (self._random.uniform(0.0, pause_s) if order.steady else self._random.exponential(pause_s))
        messages = 0
        while due < began + order.seconds:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            payload = STAMP.pack(order.window, time.monotonic()).ljust(self._opened.payload_bytes, b".")
            await bus.publish(self._opened.channel, payload)
            messages += 1
            due += pause_s if order.steady else self._random.exponential(pause_s)
        return messages

    async def _collect(self, order: CollectWindow) -> WindowCollected:
        expected = order.messages * self._subscribers
        deadline = time.monotonic() + order.wait_s_max
        while len(self._delays_s) < expected and time.monotonic() < deadline:  # noqa: ASYNC110 - a count, no event
            await asyncio.sleep(POLL_S)
        delays_ms = np.array(self._delays_s) * 1000
        latency_ms = self._random.choice(self._latencies_ms, (len(delays_ms), SAMPLES_PER_RESPONSE)).sum(axis=1)
        return WindowCollected(
            gaps=self._gaps,
            delays_ms=delays_ms.astype(np.float32).tobytes(),
            responses_ms=(delays_ms + latency_ms).astype(np.float32).tobytes(),
        )


async def work(parent: Parent[ClientOrder]) -> None:
    """Carries out one order after the other. Clients stay open at the end: the cluster ends, too."""
    opened = await parent.order()
    if not isinstance(opened, OpenClients):
        return
    clients = Clients(opened, await connect(opened.url, limits=opened.limits).open())
    parent.tell(Ready())
    while (order := await parent.order()) is not None:
        parent.tell(await clients.carry_out(order))


if __name__ == "__main__":
    run_worker(ORDERS, work)
