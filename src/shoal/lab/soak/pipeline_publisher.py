"""The publishers of a pipeline soak: `python -m shoal.lab.soak.pipeline_publisher`, run by `shoal.lab.harness`.

Owns the numbers of messages and the log of those that were confirmed. A payload is the message's number on its channel,
so what the jobs read can be compared with the log without anything of Shoal's.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import replace
from io import TextIOWrapper
from typing import Final

from shoal.bus import Bus, connect
from shoal.errors import NotConfirmedError, PublishError
from shoal.lab.harness import Parent, run_worker
from shoal.lab.soak.pipeline_orders import (
    CHANNELS,
    CLOSING,
    PUBLISHER_ORDERS,
    PublisherOrder,
    PublisherStatus,
    StartPublishing,
)
from shoal.limits import DEFAULT_LIMITS
from shoal.runtime import PRODUCTION

STATUS_S: Final = 0.25
CLOSING_AHEAD_S: Final = 3600.0
"""The closing message is published with a clock that is this far ahead: every window is older than its watermark."""
SETTLE_S: Final = 60.0
"""How long confirmations may take after the end of the load."""


class PipelinePublishers:
    """All publishers, on one bus."""

    def __init__(self, bus: Bus, log: TextIOWrapper) -> None:
        self._bus = bus
        self._log = log
        self._waiting: set[asyncio.Task[None]] = set()
        self.published = 0
        self.confirmed = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Publishes until `stop`, then waits for confirmations."""
        await asyncio.gather(*(self._pace(channel, rate, stop) for channel, rate in CHANNELS.items()))
        if self._waiting:
            await asyncio.wait(self._waiting, timeout=SETTLE_S)

    async def _pace(self, channel: str, per_s: float, stop: asyncio.Event) -> None:
        began, number = time.monotonic(), 0
        while not stop.is_set():
            number += 1
            task = asyncio.create_task(self._publish(channel, number))
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)
            self.published += 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), max(0.0, began + number / per_s - time.monotonic()))

    async def _publish(self, channel: str, number: int) -> None:
        """Publishes a message and logs it once it is confirmed. One that is not confirmed is not owed."""
        published_us = int(time.time() * 1e6)
        try:
            await self._bus.publish(channel, b"%d" % number, confirm=True)
        except (NotConfirmedError, PublishError):
            return
        self.confirmed += 1
        self._log.write(f"{channel} {number} {published_us} {int(time.time() * 1e6)}\n")


async def work(parent: Parent[PublisherOrder]) -> None:
    """Publishes until `Stop`, closes the windows, and stays until there are no more orders."""
    start = await parent.order()
    if not isinstance(start, StartPublishing):
        return
    with open(start.log, "w") as log:  # noqa: ASYNC230 - a line a message, buffered
        async with connect(start.url) as bus:
            publishers, stop = PipelinePublishers(bus, log), asyncio.Event()
            running = asyncio.create_task(publishers.run(stop))
            reporting = asyncio.create_task(_report(parent, publishers))
            await parent.order()
            stop.set()
            await running
            reporting.cancel()
            log.flush()
            ahead = replace(PRODUCTION, wall=lambda: time.time() + CLOSING_AHEAD_S)
            async with Bus(start.url, runtime=ahead, limits=DEFAULT_LIMITS) as closing:
                await closing.publish(CLOSING, b"0", confirm=True)
                parent.tell(PublisherStatus(publishers.published, publishers.confirmed, settled=True))
                await parent.order()


async def _report(parent: Parent[PublisherOrder], publishers: PipelinePublishers) -> None:
    while True:
        parent.tell(PublisherStatus(publishers.published, publishers.confirmed, settled=False))
        await asyncio.sleep(STATUS_S)


if __name__ == "__main__":
    run_worker(PUBLISHER_ORDERS, work)
