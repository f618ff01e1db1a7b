"""The shared state of the tasks of a load process: the orders so far, the log, and the buses.

Owns the opening and closing of buses, so that the counters of their routers reach the log.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from shoal.bus import Bus, connect
from shoal.errors import ShoalError
from shoal.lab.soak.load_orders import StartLoad
from shoal.lab.soak.round_log import CornerMet, Problem, RoundLog

OPEN_PAUSE_S: Final = 0.2


class LoadTasks(Protocol):
    """The publishers, subscribers or plain clients of a process."""

    async def run(self, orders: OrderState) -> None:
        """Works until `orders.end`."""

    @property
    def ready(self) -> bool:
        """Whether all clients that should be there from the start are there."""

    @property
    def settled(self) -> bool:
        """Whether nothing is outstanding."""


class OrderState:
    """The orders so far."""

    def __init__(self) -> None:
        self.is_raised = False
        """Whether the load was raised."""
        self.stop = asyncio.Event()
        """Set when publishers should be silent, but stay."""
        self.end = asyncio.Event()
        """Set when everything should end."""

    async def pause(self, seconds: float) -> None:
        """Waits, but not beyond `stop`."""
        try:
            async with asyncio.timeout(seconds):
                await self.stop.wait()
        except TimeoutError:
            return


class LoadContext:
    """The shared state of the clients of one process."""

    def __init__(self, start: StartLoad, log: RoundLog) -> None:
        self.shape = start.shape
        self.number = start.number
        self.places = start.places
        self.url = start.url
        self.log = log
        self.buses: set[Bus] = set()

    async def open_bus(self, orders: OrderState) -> Bus | None:
        """A new client. Tries again while the coordinator is down; None if `stop` comes first."""
        while not orders.stop.is_set():
            bus = connect(self.url, limits=self.shape.limits)
            try:
                await bus.open()
            except ShoalError:
                self.log.write(CornerMet("bus opened again", 1))
                await orders.pause(OPEN_PAUSE_S)
            else:
                self.buses.add(bus)
                return bus
        return None

    async def close_bus(self, bus: Bus) -> None:
        """Closes a client and logs the counters of its router."""
        self.buses.discard(bus)
        try:
            await bus.aclose()
        except ShoalError as error:
            self.log.write(Problem(f"client {bus.client_id:x} could not close cleanly: {error}"))
        for name, times in bus.statistics().counters.items():
            if times:
                self.log.write(CornerMet(f"router {name}", times))
