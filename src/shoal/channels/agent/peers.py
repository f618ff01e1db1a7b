"""The heartbeats of the other agents: one light connection to each other server of the ring.

Owns those connections. `lease` uses the heartbeats to tell a coordinator that is down from being cut off from it. The
subscription is a pattern that matches the heartbeat channel alone, so that NUMSUB of that channel counts clients only.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from random import Random
from typing import Any, Final

import hiredis

from shoal.channels.agent.server_tasks import ServerTasks
from shoal.errors import ConnectError, ProtocolError
from shoal.limits import Limits
from shoal.logs import get_log
from shoal.plan.ring import Ring, ServerAddress
from shoal.wire import control
from shoal.wire.address_book import AddressBook
from shoal.wire.backoff import Backoff
from shoal.wire.connection import Connection
from shoal.wire.envelope import HEARTBEAT_CHANNEL

PEER_PATTERN: Final = HEARTBEAT_CHANNEL[:-1] + b"[" + HEARTBEAT_CHANNEL[-1:] + b"]"
HEARTBEAT_BYTES_MAX: Final = 1 << 20
SILENT_HEARTBEATS_MAX: Final = 20
"""Heartbeat intervals without a heartbeat after which a connection counts as half open and is replaced."""

_log: Final = get_log(__name__)


class _Listener:
    """Receives the heartbeats on one server."""

    def __init__(self, server: str, heard: Callable[[control.Heartbeat], None]) -> None:
        self._server = server
        self._heard = heard
        self._clock = asyncio.get_running_loop().time
        self.heard_at = 0.0
        self.ended = asyncio.Event()

    def received(self, frames: list[Any]) -> None:
        """Pushes of the one pattern; anything but heartbeats of this server's agent is dropped."""
        for frame in frames:
            if isinstance(frame, hiredis.PushNotification) and frame[0] == b"pmessage":
                with contextlib.suppress(ProtocolError):
                    heartbeat = control.decode(frame[3]).message
                    if isinstance(heartbeat, control.Heartbeat) and heartbeat.server == self._server:
                        self.heard_at = self._clock()
                        self._heard(heartbeat)

    def lost(self, error: Exception | None) -> None:
        """The connection is gone."""
        self.ended.set()

    def can_send(self) -> None:
        """Nothing waits to be sent."""


class Peers:
    """Listens to every server of the ring but the agent's own."""

    def __init__(
        self,
        own: str,
        username: str | None,
        password: str | None,
        limits: Limits,
        heard: Callable[[control.Heartbeat], None],
        random: Random,
        *,
        book: AddressBook,
    ) -> None:
        self._own = own
        self._username = username
        self._password = password
        self._limits = limits
        self._heard = heard
        self._random = random
        self._book = book
        self._tasks = ServerTasks(self._listen, "heartbeats of")

    def follow(self, ring: Ring) -> None:
        """Listens to the servers of this ring, and to no others."""
        self._tasks.follow(address for address in ring.servers if address.id != self._own)

    async def close(self) -> None:
        """Ends all connections."""
        await self._tasks.close()

    async def _listen(self, address: ServerAddress) -> None:
        limits = self._limits
        backoff = Backoff(
            reconnect_delay_s_min=limits.reconnect_delay_s_min,
            reconnect_delay_s_max=limits.reconnect_delay_s_max,
            random=self._random,
        )
        while True:
            listener = _Listener(address.id, self._heard)
            endpoint = self._book.reach(address)
            connection = Connection(
                endpoint.host,
                endpoint.port,
                username=self._username,
                password=self._password,
                name=f"shoal-peer-{self._own}",
                receiver=listener,
                dial=endpoint.dial,
                connect_timeout_s=limits.connect_timeout_s,
                frame_bytes_max=HEARTBEAT_BYTES_MAX,
            )
            try:
                await connection.open()
                backoff.reset()
                connection.send([(b"PSUBSCRIBE", PEER_PATTERN)])
                await self._until_lost(listener)
            except (ConnectError, ProtocolError) as error:
                _log.debug("peer server not reachable", server=address.id, why=str(error))
            finally:
                connection.abort()
            await asyncio.sleep(backoff.next_delay_s())

    async def _until_lost(self, listener: _Listener) -> None:
        """Returns when the connection is gone, or silent for so long that it may be half open."""
        loop = asyncio.get_running_loop()
        silent_s = SILENT_HEARTBEATS_MAX * self._limits.heartbeat_interval_s
        listener.heard_at = loop.time()
        while not listener.ended.is_set() and loop.time() < (deadline := listener.heard_at + silent_s):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await listener.ended.wait()
