"""A process of one contender: `python -m shoal.lab.bench.contender_worker`, run by `shoal.lab.harness`.

Owns the measurement: the loops here are the same for all contenders. A run has a warm-up and a measured part:

    subscriber   Receive ->  Ready (subscribed)      Ready (warm)                    Measured
    publisher                Publish ->  Ready (warm)         Go ->  measured part   Measured

CPU is the time of this process, user and system, in the measured part. Wall time is the clock that all processes of a
machine share.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Final, TypeAlias

import msgspec

from shoal.lab.bench.contender import BenchPublisher, BenchTarget, ClientLibrary, find
from shoal.lab.bench.flood import flood
from shoal.lab.harness import Go, Parent, Ready, run_worker


class UseContender(msgspec.Struct, tag=True, frozen=True):
    """The first order, answered with `Ready`: the name of the contender."""

    contender: str


class Receive(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Take messages on `connections` subscriptions."""

    target: BenchTarget
    channel: str
    messages: int
    warmup: int
    connections: int


class Publish(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Publish with `tasks` tasks that each wait for confirmation, or `pipelined` in batches of `tasks` messages."""

    target: BenchTarget
    channel: str
    messages: int
    warmup: int
    payload_bytes: int
    tasks: int
    pipelined: bool


class RoundTrips(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Publish one message at a time and wait until it is delivered, on a given core or on any (None)."""

    target: BenchTarget
    channel: str
    messages: int
    warmup: int
    payload_bytes: int
    core: int | None


class Flood(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """The load for an agent."""

    target: BenchTarget
    messages: int
    payload_bytes: int


class Measured(msgspec.Struct, tag=True, frozen=True):
    """Report: wall time from `began_at` to `ended_at`, CPU time, and the latency of each round trip, if any."""

    began_at: float = 0.0
    ended_at: float = 0.0
    cpu_s: float = 0.0
    latencies_us: list[float] = []


BenchOrder: TypeAlias = UseContender | Receive | Publish | RoundTrips | Flood | Go
BenchReport: TypeAlias = Ready | Measured

ORDERS: Final[msgspec.json.Decoder[BenchOrder]] = msgspec.json.Decoder(BenchOrder)
REPORTS: Final[msgspec.json.Decoder[BenchReport]] = msgspec.json.Decoder(BenchReport)


class Stopwatch:
    """Measures from its creation to `stop`."""

    def __init__(self) -> None:
        self._began_at = time.monotonic()
        self._cpu_s = time.process_time()

    def stop(self, latencies_us: list[float] | None = None) -> Measured:
        """The measurements since then."""
        cpu_s = time.process_time() - self._cpu_s
        return Measured(self._began_at, time.monotonic(), cpu_s, latencies_us or [])


async def work(parent: Parent[BenchOrder]) -> None:
    """Carries out orders for one contender until there are no more."""
    order = await parent.order()
    assert isinstance(order, UseContender), "the first order names the contender"
    library = find(order.contender)
    parent.tell(Ready())
    while (order := await parent.order()) is not None:
        match order:
            case Receive():
                parent.tell(await _receive(library, order, parent))
            case Publish():
                parent.tell(await _publish(library, order, parent))
            case RoundTrips():
                parent.tell(await _round_trips(library, order))
            case Flood():
                stopwatch = Stopwatch()
                flood(order.target, order.messages, order.payload_bytes)
                parent.tell(stopwatch.stop())


async def _receive(library: ClientLibrary, order: Receive, parent: Parent[BenchOrder]) -> Measured:
    receivers = await library.open_receivers(order.target, order.channel, order.connections)
    parent.tell(Ready())
    await asyncio.gather(*(receiver.take(order.warmup) for receiver in receivers))
    parent.tell(Ready())
    stopwatch = Stopwatch()
    await asyncio.gather(*(receiver.take(order.messages) for receiver in receivers))
    measured = stopwatch.stop()
    for receiver in receivers:
        await receiver.close()
    return measured


async def _publish(library: ClientLibrary, order: Publish, parent: Parent[BenchOrder]) -> Measured:
    publisher = await library.open_publisher(order.target, order.tasks)
    run = _publish_batches if order.pipelined else _publish_confirmed
    await run(publisher, order, order.warmup)
    parent.tell(Ready())
    await parent.order()  # `Go`, when the subscriber is warm too
    stopwatch = Stopwatch()
    await run(publisher, order, order.messages)
    measured = stopwatch.stop()
    await publisher.close()
    return measured


async def _publish_confirmed(publisher: BenchPublisher, order: Publish, messages: int) -> None:
    """All tasks publish concurrently, each the next message when its last one is confirmed."""
    channel, payload, publish = order.channel, b"x" * order.payload_bytes, publisher.publish

    async def one(count: int) -> None:
        for _ in range(count):
            await publish(channel, payload)

    share, rest = divmod(messages, order.tasks)
    await asyncio.gather(*(one(share + (number < rest)) for number in range(order.tasks)))


async def _publish_batches(publisher: BenchPublisher, order: Publish, messages: int) -> None:
    """One batch after the other, each when all of the last one is confirmed."""
    payload = b"x" * order.payload_bytes
    for done in range(0, messages, order.tasks):
        await publisher.publish_batch(order.channel, payload, min(order.tasks, messages - done))


async def _round_trips(library: ClientLibrary, order: RoundTrips) -> Measured:
    cores = os.sched_getaffinity(0)
    if order.core is not None:
        os.sched_setaffinity(0, {order.core})
    receiver, publisher = await library.open_both(order.target, order.channel)
    payload = b"x" * order.payload_bytes
    latencies_us: list[float] = []
    for number in range(order.warmup + order.messages):
        if number == order.warmup:
            stopwatch = Stopwatch()
            latencies_us.clear()
        sent_at = time.perf_counter()
        await publisher.publish(order.channel, payload)
        await receiver.take(1)
        latencies_us.append(1e6 * (time.perf_counter() - sent_at))
    measured = stopwatch.stop(latencies_us)
    await receiver.close()
    await publisher.close()
    os.sched_setaffinity(0, cores)
    return measured


if __name__ == "__main__":
    run_worker(ORDERS, work)
