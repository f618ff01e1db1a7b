"""A load process: takes orders on standard input, tells on standard output how far it is, writes its log.

Owns the life of the process. What it does is in `publishing.py`, `subscribing.py` or `watching.py`.

    python -m shoal.soak.worker publish|subscribe|watch NUMBER DIRECTORY        ($SHOAL_URL names the cluster)

Orders are lines: `rise` (publish as after the rise of the load), `stop` (be quiet, but stay) and `end`; the end of the
input is `end` too, so that the process does not outlive the run. What it tells is one `Status` a line.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from pathlib import Path
from typing import Final, Protocol

import msgspec
import uvloop

from shoal.bus import Bus, connect
from shoal.errors import ShoalError
from shoal.soak.records import Counted, Log, Wrong
from shoal.soak.shape import Shape

SHAPE_FILE: Final = "shape.json"
STATUS_INTERVAL_S: Final = 0.25
OPEN_PAUSE_S: Final = 0.2


class Status(msgspec.Struct, frozen=True):
    """How far a load process is. `ready`: load can begin. `settled`: nothing that was asked for is outstanding."""

    messages: int
    deliveries: int
    ready: bool
    settled: bool


class Load(Protocol):
    """The publishers or the subscribers of a process."""

    async def run(self, orders: Orders) -> None:
        """Does its work until `orders.end`."""

    @property
    def ready(self) -> bool:
        """Whether all that is to be there from the start is there."""

    @property
    def settled(self) -> bool:
        """Whether nothing that was asked for is outstanding."""


class Orders:
    """What the run has ordered so far."""

    def __init__(self) -> None:
        self.risen = False
        self.stop = asyncio.Event()
        self.end = asyncio.Event()

    def take(self, line: str) -> None:
        """Takes an order; the empty line, which is the end of the input, ends everything."""
        order = line.strip()
        if order == "rise":
            self.risen = True
            return
        if order != "stop":
            self.end.set()
        self.stop.set()

    async def pause(self, seconds: float) -> None:
        """Waits, at most until everybody is to be quiet."""
        try:
            async with asyncio.timeout(seconds):
                await self.stop.wait()
        except TimeoutError:
            return


class Site:
    """What publishers and subscribers of one process share: the log, and buses that are counted."""

    def __init__(self, shape: Shape, number: int, log: Log) -> None:
        self.shape = shape
        self.number = number
        self.log = log
        self.buses: set[Bus] = set()

    async def open_bus(self, orders: Orders) -> Bus | None:
        """A new client; while the coordinator is away it tries again. None when there is no time left for it."""
        while not orders.stop.is_set():
            bus = connect(os.environ["SHOAL_URL"], limits=self.shape.limits)
            try:
                await bus.open()
            except ShoalError:
                self.log.write(Counted("bus opened again", 1))
                await orders.pause(OPEN_PAUSE_S)
            else:
                self.buses.add(bus)
                return bus
        return None

    async def close_bus(self, bus: Bus) -> None:
        """Ends a client and writes down what its router met."""
        self.buses.discard(bus)
        try:
            await bus.aclose()
        except ShoalError as error:
            self.log.write(Wrong(f"client {bus.client_id:x} could not close in peace: {error}"))
        for name, times in bus.statistics().counters.items():
            if times:
                self.log.write(Counted(f"router {name}", times))


async def _work(load: Load, log: Log) -> None:
    loop = asyncio.get_running_loop()
    orders = Orders()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    async def listen() -> None:
        while not orders.end.is_set():
            orders.take((await reader.readline()).decode())

    async def tell() -> None:
        while True:
            status = Status(log.messages, log.deliveries, load.ready, load.settled)
            os.write(sys.stdout.fileno(), msgspec.json.encode(status) + b"\n")
            await asyncio.sleep(STATUS_INTERVAL_S)

    others = [asyncio.create_task(listen()), asyncio.create_task(tell())]
    try:
        await load.run(orders)
    finally:
        for task in others:
            task.cancel()
    log.end()


def main() -> None:
    """Runs the process."""
    from shoal.soak.publishing import Publishers
    from shoal.soak.subscribing import Subscribers
    from shoal.soak.watching import Watchers

    role, number, directory = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    shape = msgspec.json.decode((directory / SHAPE_FILE).read_bytes(), type=Shape)
    log = Log(directory / f"{role}-{number}.log")
    site = Site(shape, number, log)
    load: Load
    match role:
        case "publish":
            load = Publishers(site)
        case "subscribe":
            load = Subscribers(site)
        case _:
            load = Watchers(site, directory)
    gc.freeze()  # as every application that cares for its slowest messages
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_work(load, log))


if __name__ == "__main__":
    main()
