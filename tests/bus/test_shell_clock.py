"""The times that a bus tells its router: messages of a turn share one, and what arrives is no older than it seems."""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

from tests.support.core_driver import RouterDriver

from shoal.bus.connections import BusConnection
from shoal.bus.shell import BusShell
from shoal.limits import DEFAULT_LIMITS
from shoal.runtime import PRODUCTION

LONG_S = 0.05


class Connection:
    server = "s1"


class StaleLoop:
    """The loop in the middle of a turn: it read its clock when the turn began."""

    def __init__(self) -> None:
        self.began = time.monotonic()

    def time(self) -> float:
        return self.began


def work() -> None:
    """The application takes long in one turn of the loop."""
    time.sleep(LONG_S)


def shell() -> BusShell:
    source: Any = None
    return BusShell(RouterDriver().router, source, DEFAULT_LIMITS, PRODUCTION)


async def test_the_router_is_told_how_long_a_turn_of_publishing_took() -> None:
    bus = shell()
    bus.schedule()
    work()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert bus.router._publisher.turn_s_max >= LONG_S


async def test_it_is_told_before_anything_that_arrives_is_handled() -> None:
    bus = shell()
    bus.schedule()
    work()
    bus.connection_received(cast(BusConnection, Connection()), [])
    assert bus.router._publisher.turn_s_max >= LONG_S


async def test_what_arrives_late_in_a_turn_has_the_time_at_which_it_was_read() -> None:
    bus = shell()
    loop: Any = StaleLoop()
    bus.loop = loop
    times: list[float] = []

    def received(server: str, frames: list[Any], now: float) -> None:
        times.append(now)

    bus.router.received = received
    work()
    bus.connection_received(cast(BusConnection, Connection()), [])
    assert times[0] >= loop.began + LONG_S
