"""The contender `shoal`: the bus, as applications use it."""

from __future__ import annotations

from collections.abc import Awaitable

from shoal.bench.contender import BenchError, Ear, Mouth, Target
from shoal.bus import Bus, Subscription, connect


class _Ear:
    def __init__(self, bus: Bus, subscription: Subscription) -> None:
        self._bus = bus
        self._subscription = subscription

    async def take(self, count: int) -> None:
        async for _ in self._subscription:
            count -= 1
            if not count:
                break
        if self._subscription.gaps:
            raise BenchError("messages were lost in a measurement", do="try again when less goes on")

    async def close(self) -> None:
        await self._subscription.aclose()
        await self._bus.aclose()


class _Mouth:
    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    def publish(self, channel: str, payload: bytes) -> Awaitable[object]:
        return self._bus.publish(channel, payload, confirm=True)

    async def publish_batch(self, channel: str, payload: bytes, count: int) -> None:
        publish = self._bus.publish
        for _ in range(count):
            await publish(channel, payload)
        await self._bus.drain()

    async def close(self) -> None:
        await self._bus.aclose()


async def listen(target: Target, channel: str, connections: int) -> list[Ear]:
    """See `contender.Contender`. Each bus has connections of its own."""
    first = await connect(target.url).open()
    buses = [first, *[await first.sibling().open() for _ in range(connections - 1)]]
    return [_Ear(bus, await bus.subscribe(channel).open()) for bus in buses]


async def speak(target: Target, tasks: int) -> Mouth:
    """See `contender.Contender`. All tasks share one bus."""
    return _Mouth(await connect(target.url).open())


async def talk(target: Target, channel: str) -> tuple[Ear, Mouth]:
    """See `contender.Contender`. A bus publishes and subscribes on the same connection."""
    bus = await connect(target.url).open()
    return _Ear(bus, await bus.subscribe(channel).open()), _Mouth(bus)
