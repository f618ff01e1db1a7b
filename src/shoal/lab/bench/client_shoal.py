"""The contender `shoal`: the bus, as applications use it."""

from __future__ import annotations

from collections.abc import Awaitable

from shoal.bus import Bus, Subscription, connect
from shoal.lab.bench.contender import BenchError, BenchPublisher, BenchReceiver, BenchTarget


class _Receiver:
    def __init__(self, bus: Bus, subscription: Subscription) -> None:
        self._bus = bus
        self._subscription = subscription

    async def take(self, count: int) -> None:
        async for _ in self._subscription:
            count -= 1
            if not count:
                break
        if self._subscription.gaps:
            raise BenchError("messages were lost in a measurement", do="try again when the machine is less busy")

    async def close(self) -> None:
        await self._subscription.aclose()
        await self._bus.aclose()


class _Publisher:
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


async def open_receivers(target: BenchTarget, channel: str, connections: int) -> list[BenchReceiver]:
    """See `contender.ClientLibrary`. Each bus has its own connections."""
    first = await connect(target.url).open()
    buses = [first, *[await first.sibling().open() for _ in range(connections - 1)]]
    return [_Receiver(bus, await bus.subscribe(channel).open()) for bus in buses]


async def open_publisher(target: BenchTarget, tasks: int) -> BenchPublisher:
    """See `contender.ClientLibrary`. All tasks share one bus."""
    return _Publisher(await connect(target.url).open())


async def open_both(target: BenchTarget, channel: str) -> tuple[BenchReceiver, BenchPublisher]:
    """See `contender.ClientLibrary`. A bus publishes and subscribes on the same connection."""
    bus = await connect(target.url).open()
    return _Receiver(bus, await bus.subscribe(channel).open()), _Publisher(bus)
