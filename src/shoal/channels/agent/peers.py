"""The heartbeats of all agents: one light connection to each server of the ring.

Owns those connections, and which heartbeats on them count. `lease` uses the heartbeats of other agents to tell a
coordinator that is down from being cut off from it. The agent hears its own heartbeats here too, because on its main
connection they wait behind all traffic of its server; they count if they are exactly as they were sent. The
subscription is a pattern that matches the heartbeat channel alone, so that NUMSUB of that channel counts clients only.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any, Final

import hiredis

from shoal.channels.agent.peer_connections import PeerConnections
from shoal.channels.heartbeat_order import Age, HeartbeatOrder
from shoal.errors import ConnectError, ProtocolError
from shoal.limits import Limits
from shoal.plan.ring import Ring
from shoal.rules import Rules
from shoal.wire import control
from shoal.wire.address_book import AddressBook
from shoal.wire.connection import Connection
from shoal.wire.envelope import AGENT_CHANNEL, HEARTBEAT_CHANNEL, inbox_channel

if TYPE_CHECKING:
    from shoal.channels.agent.core import AgentCore

PEER_PATTERN: Final = HEARTBEAT_CHANNEL[:-1] + b"[" + HEARTBEAT_CHANNEL[-1:] + b"]"
SILENT_HEARTBEATS_MAX: Final = 20
"""Heartbeat intervals without a heartbeat after which a connection counts as half open and is replaced."""


GREETS_REMEMBERED: Final = 4
"""Greets whose Welcome is taken."""


class _Listener:
    """Receives the heartbeats on one server. With scheme 1 it greets the agent there, as a client does, and takes only
    signed heartbeats that are news."""

    def __init__(
        self,
        server: str,
        heard: Callable[[control.Heartbeat], None],
        own: Callable[[], AgentCore | None],
        retry_s: float,
        numbers: Iterator[int],
        rules: Rules,
    ) -> None:
        self._server = server
        self._heard = heard
        self._own = own
        self._retry_s = retry_s
        self._clock = asyncio.get_running_loop().time
        self._order = HeartbeatOrder(rules)
        self._greets: deque[int] = deque(maxlen=GREETS_REMEMBERED)
        self._numbers = numbers
        self._greet_at = float("-inf")
        self.heard_at = 0.0
        self.ended = asyncio.Event()
        self.connection: Connection | None = None

    def begin(self, connection: Connection) -> None:
        """The connection is open: greets the agent there."""
        self.connection = connection
        core = self._own()
        if core is not None and core.server != self._server:
            self._greet(core)

    def received(self, frames: list[Any]) -> None:
        """Pushes: heartbeats of this server's agent, and its answers to a Greet. Anything else is dropped."""
        core = self._own()
        if core is None:
            return
        for frame in frames:
            if isinstance(frame, hiredis.PushNotification) and frame[0] in (b"pmessage", b"message"):
                data = frame[-1]
                head = control.read_head(data) if len(data) <= control.FROM_AGENT_BYTES_MAX else None
                with contextlib.suppress(ProtocolError):
                    if head is not None and frame[0] == b"pmessage" and core.server == self._server:
                        self._own_heartbeat(core, head, data)
                    elif head is not None and frame[0] == b"pmessage":
                        self._heartbeat(core, head, data)
                    elif head is not None:
                        self._welcome(core, head, data)

    def _own_heartbeat(self, core: AgentCore, head: control.Head, data: bytes) -> None:
        if core.heard_own(head, data):
            self.heard_at = self._clock()

    def _heartbeat(self, core: AgentCore, head: control.Head, data: bytes) -> None:
        if not control.is_kind(head, control.Heartbeat) or not core.authentication.is_from_agent(head, data):
            return
        heartbeat = control.decode(data, head).message
        if not isinstance(heartbeat, control.Heartbeat) or heartbeat.server != self._server:
            return
        self.heard_at = self._clock()
        age = self._order.judge(heartbeat.instance, head.number) if core.authentication.active else Age.NEWS
        if age is Age.STRANGE:
            self._greet(core)
        elif age is Age.NEWS:
            self._heard(heartbeat)

    def _greet(self, core: AgentCore) -> None:
        """Asks which process is the agent there, at most once per `hello_retry_s`."""
        key = core.authentication.own_key()
        if key is None or self.connection is None or self._clock() < self._greet_at + self._retry_s:
            return
        self._greet_at = self._clock()
        number = next(self._numbers)
        self._greets.append(number)
        seal = control.KeySeal(control.CLIENT_SCHEME, key.generation, key.to_agent(self._server))
        greet = control.Greet(number, core.book.version, agent=True)
        data = control.encode(greet, key.client, number, seal)
        with contextlib.suppress(ConnectError):
            self.connection.send_now([(b"SUBSCRIBE", inbox_channel(key.client)), (b"PUBLISH", AGENT_CHANNEL, data)])

    def _welcome(self, core: AgentCore, head: control.Head, data: bytes) -> None:
        key = core.authentication.own_key()
        if key is None or head.number not in self._greets or head.scheme != control.CLIENT_SCHEME:
            return
        if control.is_kind(head, control.Welcome) and control.is_tagged(data, key.from_agent(self._server)):
            welcome = control.decode(data).message
            assert isinstance(welcome, control.Welcome)
            self._greets.remove(head.number)
            self._order.welcomed(welcome.instance, welcome.heartbeat)

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
        heard: Callable[[control.Heartbeat], None],
        core: Callable[[], AgentCore | None],
        random: Random,
        *,
        book: AddressBook,
        rules: Rules,
    ) -> None:
        self._limits = limits
        numbers = count(1)  # agents take only growing numbers of a client, on whatever connection they come
        self._links = PeerConnections(
            own,
            "peer",
            username,
            password,
            limits,
            random,
            book,
            lambda server: _Listener(server, heard, core, limits.hello_retry_s, numbers, rules),
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
        listener.begin(connection)
        loop = asyncio.get_running_loop()
        silent_s = SILENT_HEARTBEATS_MAX * self._limits.heartbeat_interval_s
        listener.heard_at = loop.time()
        while not listener.ended.is_set() and loop.time() < (deadline := listener.heard_at + silent_s):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await listener.ended.wait()
