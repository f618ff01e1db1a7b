"""A process full of measuring clients on one channel: `python -m shoal.experiments.real.client`.

Owns its publishers and subscribers, each with a bus of its own, and what it measures: how long each message took from
`publish` to its subscriber, and the same with samples of wide-area latency added, as the Dynamoth paper does (V.B: two
samples for a message from client to client). Orders and answers are lines of JSON on standard input and output. It ends
when its input does, so it does not outlive whoever started it.
"""

from __future__ import annotations

import asyncio
import struct
import sys
import time
from typing import Final

import msgspec
import numpy as np

from shoal import logs
from shoal.bus import Bus, Subscription, connect
from shoal.experiments.real.talk import LINE_BYTES_MAX, Begin, Collect, Done, Join, Order, Publish
from shoal.message import Gap

JOIN_TOGETHER: Final = 16
"""Clients that join at a time."""
TAKE_ITEMS_MAX: Final = 256
SAMPLES_PER_RESPONSE: Final = 2
POLL_S: Final = 0.05
STAMP: Final = struct.Struct("<Id")
"""Begin of a payload: the number of its window, and when it was published on the clock that all processes share."""


class Clients:
    """All clients of this process."""

    def __init__(self, begin: Begin, door: Bus) -> None:
        self._begin = begin
        self._door = door
        self._random = np.random.default_rng(begin.seed)
        self._latencies_ms = np.array(begin.latencies_ms)
        self._publishers: list[Bus] = []
        self._subscribers = 0
        self._readers: set[asyncio.Task[None]] = set()
        self._window = 0
        self._delays_s: list[float] = []
        """Of the newest window that was begun, here or in another process."""
        self._gaps = 0

    async def do(self, order: Order) -> Done:
        """Carries out one order."""
        match order:
            case Join():
                return await self._join(order)
            case Publish():
                return await self._publish(order)
            case Collect():
                return await self._collect(order)
        return Done()

    async def _join(self, order: Join) -> Done:
        wanted = [self._add_subscriber] * (order.subscribers - self._subscribers)
        wanted += [self._add_publisher] * (order.publishers - len(self._publishers))
        for at in range(0, len(wanted), JOIN_TOGETHER):
            await asyncio.gather(*(add() for add in wanted[at : at + JOIN_TOGETHER]))
        return Done()

    async def _add_publisher(self) -> None:
        self._publishers.append(await self._door.sibling().open())

    async def _add_subscriber(self) -> None:
        bus = await self._door.sibling().open()
        subscription = await bus.subscribe(self._begin.channel).open()
        self._subscribers += 1
        self._readers.add(asyncio.create_task(self._read(subscription)))

    async def _read(self, subscription: Subscription) -> None:
        while items := await subscription.take(TAKE_ITEMS_MAX):
            now = time.monotonic()
            for item in items:
                if isinstance(item, Gap):
                    self._gaps += 1
                    continue
                window, published_at = STAMP.unpack_from(item.payload)
                self._begin_window(window)
                if window == self._window:
                    self._delays_s.append(now - published_at)

    def _begin_window(self, window: int) -> None:
        """If it is a new one: messages of earlier ones do not count any more."""
        if window > self._window:
            self._window, self._delays_s, self._gaps = window, [], 0

    async def _publish(self, order: Publish) -> Done:
        self._begin_window(order.window)
        return Done(messages=sum(await asyncio.gather(*(self._speak(bus, order) for bus in self._publishers))))

    async def _speak(self, bus: Bus, order: Publish) -> int:
        began = time.monotonic()
        pause_s = 1 / order.per_s
        due = began + (self._random.uniform(0.0, pause_s) if order.steady else self._random.exponential(pause_s))
        messages = 0
        while due < began + order.seconds:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            payload = STAMP.pack(order.window, time.monotonic()).ljust(self._begin.payload_bytes, b".")
            await bus.publish(self._begin.channel, payload)
            messages += 1
            due += pause_s if order.steady else self._random.exponential(pause_s)
        return messages

    async def _collect(self, order: Collect) -> Done:
        expected = order.messages * self._subscribers
        give_up = time.monotonic() + order.wait_s_max
        while len(self._delays_s) < expected and time.monotonic() < give_up:  # noqa: ASYNC110 - it counts, too
            await asyncio.sleep(POLL_S)
        delays_ms = np.array(self._delays_s) * 1000
        latency_ms = self._random.choice(self._latencies_ms, (len(delays_ms), SAMPLES_PER_RESPONSE)).sum(axis=1)
        return Done(
            deliveries=len(delays_ms),
            gaps=self._gaps,
            delays_ms=delays_ms.astype(np.float32).tobytes(),
            responses_ms=(delays_ms + latency_ms).astype(np.float32).tobytes(),
        )


async def run() -> None:
    """Does one order after the other. Leaves without goodbye: the cluster ends, too."""
    loop = asyncio.get_running_loop()
    orders = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    clients: Clients | None = None
    while line := await orders.readline():
        order: Order = msgspec.json.decode(line, type=Order)
        if isinstance(order, Begin):
            clients = Clients(order, await connect(order.url, limits=order.limits).open())
            done = Done()
        else:
            assert clients is not None, "the first order is to begin"
            done = await clients.do(order)
        sys.stdout.buffer.write(msgspec.json.encode(done) + b"\n")
        sys.stdout.buffer.flush()


def main() -> None:
    """The process."""
    import uvloop

    logs.configure(level="error", format="text")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


if __name__ == "__main__":
    main()
