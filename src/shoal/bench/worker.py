"""One process of a contender: does the orders that it reads, one after the other, and writes what they cost.

Owns what is measured and how: the loops here are the same for all contenders. Orders and answers are lines
of JSON on standard input and output. In between, both sides say when they have come so far:

    subscriber  "listening"         "warm"                          answer
    publisher                "warm"  <- a line of input, then the measured part ->  answer

CPU is the time of this process, user and system, in the measured part; wall time is the clock that all
processes of a machine share.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any, Final

import msgspec
import uvloop

from shoal.bench.contender import Contender, Mouth, Target, find
from shoal.bench.flood import flood


class Order(msgspec.Struct, frozen=True):
    """What a worker is to do.

    `listen` takes messages on `connections` subscriptions, `confirm` publishes with `tasks` tasks that each
    wait for their confirmation, `pipeline` in batches of `tasks` messages, `ping` publishes one message at a time
    and waits until it is back, `flood` is the agent's load. `core` is where the process runs, None anywhere.
    """

    do: str
    target: Target
    channel: str
    messages: int
    warmup: int
    payload_bytes: int
    tasks: int = 1
    connections: int = 1
    core: int | None = None


class Answer(msgspec.Struct, frozen=True):
    """What it took: by the clock from `began_at` to `ended_at`, in CPU, and each round trip, if there were."""

    began_at: float = 0.0
    ended_at: float = 0.0
    cpu_s: float = 0.0
    latencies_us: list[float] = []


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(Order)


class Meter:
    """Runs from `__init__` to `answer`."""

    def __init__(self) -> None:
        self._began_at = time.monotonic()
        self._cpu_s = time.process_time()

    def answer(self, latencies_us: list[float] | None = None) -> Answer:
        """What it took since."""
        cpu_s = time.process_time() - self._cpu_s
        return Answer(self._began_at, time.monotonic(), cpu_s, latencies_us or [])


def main(name: str) -> None:
    """Does orders for the contender `name` until there are no more."""
    contender = find(name)
    cores = os.sched_getaffinity(0)
    for line in sys.stdin.buffer:
        order = _decoder.decode(line)
        os.sched_setaffinity(0, cores if order.core is None else {order.core})
        _write(uvloop.run(_do(contender, order)))


def _write(value: Any) -> None:
    sys.stdout.buffer.write(_encoder.encode(value) + b"\n")
    sys.stdout.buffer.flush()


async def _do(contender: Contender, order: Order) -> Answer:
    match order.do:
        case "listen":
            return await _listen(contender, order)
        case "ping":
            return await _ping(contender, order)
        case "flood":
            meter = Meter()
            flood(order.target, order.messages, order.payload_bytes)
            return meter.answer()
    return await _publish(contender, order)


async def _all_warm() -> None:
    """Says that the warm-up is over here, and waits until it is over everywhere."""
    _write("warm")
    await asyncio.to_thread(sys.stdin.buffer.readline)


async def _publish(contender: Contender, order: Order) -> Answer:
    mouth = await contender.speak(order.target, order.tasks)
    run = _confirm if order.do == "confirm" else _pipeline
    await run(mouth, order, order.warmup)
    await _all_warm()
    meter = Meter()
    await run(mouth, order, order.messages)
    answer = meter.answer()
    await mouth.close()
    return answer


async def _confirm(mouth: Mouth, order: Order, messages: int) -> None:
    """All tasks publish at a time, each the next message when its last one is confirmed."""
    channel, payload, publish = order.channel, b"x" * order.payload_bytes, mouth.publish

    async def one(count: int) -> None:
        for _ in range(count):
            await publish(channel, payload)

    share, rest = divmod(messages, order.tasks)
    await asyncio.gather(*(one(share + (number < rest)) for number in range(order.tasks)))


async def _pipeline(mouth: Mouth, order: Order, messages: int) -> None:
    """Batch after batch, each when all of the last one is confirmed."""
    payload = b"x" * order.payload_bytes
    for done in range(0, messages, order.tasks):
        await mouth.publish_batch(order.channel, payload, min(order.tasks, messages - done))


async def _listen(contender: Contender, order: Order) -> Answer:
    ears = await contender.listen(order.target, order.channel, order.connections)
    _write("listening")
    await asyncio.gather(*(ear.take(order.warmup) for ear in ears))
    _write("warm")
    meter = Meter()
    await asyncio.gather(*(ear.take(order.messages) for ear in ears))
    answer = meter.answer()
    for ear in ears:
        await ear.close()
    return answer


async def _ping(contender: Contender, order: Order) -> Answer:
    ear, mouth = await contender.talk(order.target, order.channel)
    payload = b"x" * order.payload_bytes
    latencies_us: list[float] = []
    for number in range(order.warmup + order.messages):
        if number == order.warmup:
            meter = Meter()
            latencies_us.clear()
        sent_at = time.perf_counter()
        await mouth.publish(order.channel, payload)
        await ear.take(1)
        latencies_us.append(1e6 * (time.perf_counter() - sent_at))
    answer = meter.answer(latencies_us)
    await ear.close()
    await mouth.close()
    return answer


if __name__ == "__main__":
    main(sys.argv[1])
