"""Reads the load windows that a Spark job hands over, as they come.

Owns one connection to the coordinator's server, and what was read and not taken yet. Which windows are used is decided
in `shoal.balance.window_source`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from random import Random
from typing import Any, Final

import hiredis

from shoal.balance.window import LoadWindow
from shoal.balance.window_feed import ALIVE_KEY, FEED_KEY, read_command, read_window
from shoal.cluster.asking import Asking
from shoal.coordination.link import Address
from shoal.errors import ProtocolError, ShoalError
from shoal.limits import Limits
from shoal.logs import get_log
from shoal.plan.ring import ServerAddress
from shoal.wire.backoff import Backoff

POLL_S: Final = 0.2
"""How often it is asked for news."""

READ_WINDOWS: Final = 4
"""Windows in one answer. What is more comes with the next."""

KEPT_MAX: Final = 64
"""Windows that wait to be taken. Beyond, the oldest is dropped: the balancer has its own."""

_log: Final = get_log(__name__)


class WindowReader:
    """Follows the feed from its end. `news` is set when something was read."""

    def __init__(self, address: Address, limits: Limits, news: asyncio.Event) -> None:
        self._address = address
        self._limits = limits
        self._news = news
        self._windows: deque[LoadWindow] = deque(maxlen=KEPT_MAX)
        self.alive: bool | None = None
        """Whether the job says that it lives; None while nobody can be asked."""

    def take(self) -> list[LoadWindow]:
        """What was read since the last call."""
        windows = list(self._windows)
        self._windows.clear()
        return windows

    async def run(self) -> None:
        """Reads until it is cancelled; trouble is reported and waited out."""
        backoff = Backoff(
            reconnect_delay_s_min=self._limits.reconnect_delay_s_min,
            reconnect_delay_s_max=self._limits.reconnect_delay_s_max,
            random=Random(),
        )
        server = ServerAddress("coordinator", self._address.host, self._address.port)
        position = b""
        trouble = ""
        while True:
            asking = Asking(server, self._address.username, self._address.password, self._limits)
            try:
                await asking.open()
                position = position or await _newest(asking)
                while True:
                    position = await self._read_once(asking, position)
                    trouble = ""
                    backoff.reset()
                    await asyncio.sleep(POLL_S)
            except (ShoalError, hiredis.ReplyError, OSError) as error:
                if str(error) != trouble:
                    trouble = str(error)
                    _log.warning("the load windows of Spark cannot be read", why=trouble)
            finally:
                self.alive = None
                asking.close()
            await asyncio.sleep(backoff.next_delay_s())

    async def _read_once(self, asking: Asking, position: bytes) -> bytes:
        """Reads what is new; returns how far it came."""
        self.alive = await asking.ask((b"GET", ALIVE_KEY)) is not None
        for id, fields in _entries(await asking.ask(read_command(position, READ_WINDOWS))):
            position = id
            try:
                self._windows.append(read_window(fields))
                self._news.set()
            except ProtocolError as error:
                _log.warning("a load window of Spark cannot be read", why=str(error))
        return position


async def _newest(asking: Asking) -> bytes:
    """The end of the feed as it is now; its beginning if there is none yet."""
    found = _entries(await asking.ask((b"XREVRANGE", FEED_KEY, b"+", b"-", b"COUNT", b"1")))
    return found[0][0] if found else b"0-0"


def _entries(reply: Any) -> list[tuple[bytes, dict[bytes, bytes]]]:
    try:
        return [(id, dict(zip(fields[::2], fields[1::2], strict=True))) for id, fields in reply]
    except (TypeError, ValueError) as error:
        raise ProtocolError(f"an answer to XRANGE that is none: {error}") from error
