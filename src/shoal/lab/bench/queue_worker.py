"""The producers and consumers of `bench queue`: `python -m shoal.lab.bench.queue_worker`, run by `shoal.lab.harness`.

Owns the loops around the contenders, which are the same for all.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Final, cast

import msgspec

from shoal.lab.bench import queue_contender
from shoal.lab.bench.queue_contender import QueueWorkload, TimedSystem
from shoal.lab.harness import Parent, Ready, run_worker

PAUSE_S: Final = (0.010, 0.030)
"""Pause between two timed messages, long enough for a consumer to wait for the next one."""


class Create(msgspec.Struct, tag=True, frozen=True):
    """Make a queue; answered with `Ready`."""

    contender: str
    load: QueueWorkload


class Produce(msgspec.Struct, tag=True, frozen=True):
    """Put all messages; answered with `Ran`."""

    contender: str
    load: QueueWorkload


class Consume(msgspec.Struct, tag=True, frozen=True):
    """Process all messages; answered with `Ran`. If `timed`, payloads begin with the time of their put."""

    contender: str
    load: QueueWorkload
    timed: bool = False


class ProduceTimed(msgspec.Struct, tag=True, frozen=True):
    """Put messages one by one with pauses, each with the time; answered with `Ran`."""

    contender: str
    load: QueueWorkload


class Drain(msgspec.Struct, tag=True, frozen=True):
    """Process all messages with Shoal, if `stalled` beside a key whose handler stalls; answered with `Ran`."""

    load: QueueWorkload
    stalled: bool


class Join(msgspec.Struct, tag=True, frozen=True):
    """Process messages with Shoal, and add a consumer after a while; answered with `Joined`."""

    load: QueueWorkload


class Ran(msgspec.Struct, tag=True, frozen=True):
    """What an order took. Times are those of the clock that all processes of a machine share."""

    began_at: float
    ended_at: float
    cpu_s: float
    latencies_us: list[float] = []


class Joined(msgspec.Struct, tag=True, frozen=True):
    """How long it took until the new consumer processed its share, and what it processed in the end."""

    share_s: float
    share: float


Order = Create | Produce | Consume | ProduceTimed | Drain | Join
ORDERS: Final[msgspec.json.Decoder[Order]] = msgspec.json.Decoder(Order)
REPORTS: Final[msgspec.json.Decoder[Ready | Ran | Joined]] = msgspec.json.Decoder(Ready | Ran | Joined)


async def work(parent: Parent[Order]) -> None:
    """Carries out orders."""
    while (order := await parent.order()) is not None:
        if isinstance(order, Create):
            await queue_contender.find(order.contender).create(order.load)
            parent.tell(Ready())
        elif isinstance(order, Join):
            from shoal.lab.bench import queue_shares

            share_s, share = await queue_shares.join(order.load)
            parent.tell(Joined(share_s, share))
        elif isinstance(order, Drain):
            parent.tell(await _drain(order))
        else:
            parent.tell(await _run(order))


async def _drain(order: Drain) -> Ran:
    from shoal.lab.bench import queue_shares

    if order.stalled:
        await queue_shares.put_stalled(order.load)
    began_at, began_cpu = time.monotonic(), time.process_time()
    ended_at = await queue_shares.drain(order.load)
    return Ran(began_at, ended_at, time.process_time() - began_cpu)


async def _run(order: Produce | Consume | ProduceTimed) -> Ran:
    began_at, began_cpu = time.monotonic(), time.process_time()
    latencies_us: list[float] = []
    if isinstance(order, ProduceTimed):
        await _produce_timed(cast(TimedSystem, queue_contender.find(order.contender)), order.load)
    elif isinstance(order, Produce):
        await queue_contender.find(order.contender).produce(order.load)
    else:
        latencies_us = await _consume(order)
    return Ran(began_at, time.monotonic(), time.process_time() - began_cpu, latencies_us)


async def _consume(order: Consume) -> list[float]:
    latencies_us: list[float] = []
    numbers: set[bytes] = set()

    def seen(payload: bytes) -> None:
        numbers.add(payload[:10])

    def seen_timed(payload: bytes) -> None:
        latencies_us.append((time.monotonic_ns() - int(payload)) / 1000)

    system = queue_contender.find(order.contender)
    await system.consume(order.load, seen_timed if order.timed else seen)
    if not order.timed and len(numbers) != order.load.messages:
        raise RuntimeError(f"{len(numbers)} of {order.load.messages} messages were processed")
    return latencies_us


async def _produce_timed(system: TimedSystem, load: QueueWorkload) -> None:
    put = await system.open_put(load)
    chooser = random.Random(1)
    for _ in range(load.messages):
        await asyncio.sleep(chooser.uniform(*PAUSE_S))
        await put(b"%0*d" % (load.payload_bytes, time.monotonic_ns()))


if __name__ == "__main__":
    run_worker(ORDERS, work)
