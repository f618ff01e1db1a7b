"""The heartbeats of all agents: one light connection to each server of the ring.

Owns those connections. `lease` uses the heartbeats of other agents to tell a coordinator that is down from being cut
off from it. The agent hears its own heartbeats here too, because on its main connection they wait behind all traffic of
its server. The subscription is a pattern that matches the heartbeat channel alone, so that NUMSUB of that channel
counts clients only.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from random import Random
from typing import Any, Final, TypeAlias

import hiredis

from shoal.channels.agent.peer_connections import PeerConnections
from shoal.errors import ProtocolError
from shoal.limits import Limits
from shoal.plan.ring import Ring
from shoal.wire import control
from shoal.wire.address_book import AddressBook
from shoal.wire.connection import Connection
from shoal.wire.envelope import HEARTBEAT_CHANNEL

PEER_PATTERN: Final = HEARTBEAT_CHANNEL[:-1] + b"[" + HEARTBEAT_CHANNEL[-1:] + b"]"
SILENT_HEARTBEATS_MAX: Final = 20
"""Heartbeat intervals without a heartbeat after which a connection counts as half open and is replaced."""


HeartbeatHeard: TypeAlias = Callable[[control.Heartbeat, int], None]
"""Takes a heartbeat and its number."""


class _Listener:
    """Receives the heartbeats on one server."""

    def __init__(self, server: str, heard: HeartbeatHeard) -> None:
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
                    _, number, heartbeat = control.decode(frame[3])
                    if isinstance(heartbeat, control.Heartbeat) and heartbeat.server == self._server:
                        self.heard_at = self._clock()
                        self._heard(heartbeat, number)

    def lost(self, error: Exception | None) -> None:
        """The connection is lost."""
        self.ended.set()

    def can_send(self) -> None:
        """Nothing waits to be sent."""


class Peers:
    """Listens to every server of the ring."""

    def __init__(
        self,
        own: str,
        username: str | None,
        password: str | None,
        limits: Limits,
        heard: HeartbeatHeard,
        random: Random,
        *,
        book: AddressBook,
    ) -> None:
        self._limits = limits
        self._links = PeerConnections(
            own,
            "peer",
            username,
            password,
            limits,
            random,
            book,
            lambda server: _Listener(server, heard),
            self._listen,
            with_own=True,
        )

    def follow(self, ring: Ring) -> None:
        """Listens to the servers of this ring, and to no others."""
        self._links.follow(ring)

    async def close(self) -> None:
        """Ends all connections."""
        await self._links.close()

    async def _listen(self, server: str, connection: Connection, listener: _Listener) -> None:
        """Returns when the connection is lost, or silent for so long that it may be half open."""
        connection.send([(b"PSUBSCRIBE", PEER_PATTERN)])
        loop = asyncio.get_running_loop()
        silent_s = SILENT_HEARTBEATS_MAX * self._limits.heartbeat_interval_s
        listener.heard_at = loop.time()
        while not listener.ended.is_set() and loop.time() < (deadline := listener.heard_at + silent_s):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await listener.ended.wait()
