"""The publisher of `bench recording`: `python -m shoal.lab.bench.recording_worker`, run by `shoal.lab.harness`.

Owns one bus. It publishes bursts as fast as its servers confirm them, and stays between them, so that the recorder can
ask it for messages.
"""

from __future__ import annotations

import time
from typing import Final

import msgspec

from shoal.bus import connect
from shoal.lab.harness import Parent, run_worker


class Burst(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Publish this many messages on each of some channels, in turn; answered with `Published`."""

    url: str
    channels: list[str]
    messages: int
    payload_bytes: int


class Published(msgspec.Struct, tag=True, frozen=True):
    """The burst is confirmed. Times are those of the clock that all processes of a machine share."""

    began_at: float
    ended_at: float


ORDERS: Final = msgspec.json.Decoder(Burst)
REPORTS: Final = msgspec.json.Decoder(Published)


async def work(parent: Parent[Burst]) -> None:
    """Publishes the ordered bursts, all on the cluster of the first order."""
    order = await parent.order()
    if order is None:
        return
    async with connect(order.url) as bus:
        while order is not None:
            payload = b"x" * order.payload_bytes
            began_at = time.monotonic()
            for _ in range(order.messages):
                for channel in order.channels:
                    await bus.publish(channel, payload)
            await bus.drain()
            parent.tell(Published(began_at, time.monotonic()))
            order = await parent.order()


if __name__ == "__main__":
    run_worker(ORDERS, work)
