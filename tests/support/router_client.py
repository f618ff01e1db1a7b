"""A small client for tests of agents: the router core on connections, without the comforts of a bus.

async with RouterClient(0x123, coordinator) as client:
    sub = await client.subscribe(b"tile")
    await client.publish(b"tile", b"north")
"""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import Any, Self

from tests.support.agent_site import POLL_S, until

from shoal.channels.client.context import Connect, Disconnect, FetchRing
from shoal.channels.client.router import Router
from shoal.channels.client.subscription import SubscriptionCore
from shoal.coordination.interface import Coordinator
from shoal.errors import ShoalError
from shoal.limits import DEFAULT_LIMITS
from shoal.message import Message
from shoal.plan.book import PlanBook
from shoal.plan.keys import PUBLIC_KEY, RING_KEY
from shoal.plan.signature import Verifier
from shoal.wire.connection import Connection
from shoal.wire.dial import tcp


class _Ear:
    """Passes on what one link says."""

    def __init__(self, client: RouterClient, server: str) -> None:
        self.client = client
        self.server = server

    def received(self, frames: list[Any]) -> None:
        self.client.router.received(self.server, frames, self.client.now())
        self.client.pump()

    def lost(self, error: Exception | None) -> None:
        self.client.lost(self.server)

    def can_send(self) -> None:
        pass


class RouterClient:
    """One client with the id `client`."""

    def __init__(self, client: int, coordinator: Coordinator) -> None:
        self.id = client
        self._coordinator = coordinator
        self._links: dict[str, Connection] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    async def __aenter__(self) -> Self:
        key = await self._coordinator.get(PUBLIC_KEY)
        assert key is not None
        self.router = Router(self.id, PlanBook(Verifier(key.value)), DEFAULT_LIMITS)
        await self._fetch_ring()
        self._spawn(self._run_timers())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        for task in self._tasks:
            task.cancel()
        for link in self._links.values():
            link.abort()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def subscribe(self, name: bytes, pattern: bool = False) -> SubscriptionCore:
        sub = self.router.subscribe(name, pattern, self.now())
        self.pump()
        await until(lambda: sub.in_force)
        return sub

    async def publish(self, channel: bytes, *payloads: bytes) -> None:
        """Publishes and returns when all is confirmed."""
        for payload in payloads:
            self.router.publish(channel, payload, b"", time.time_ns() // 1000, self.now())
        self.pump()
        await until(lambda: self.router.settled)

    async def receive(self, sub: SubscriptionCore, count: int) -> list[bytes]:
        """The payloads of the next messages; anything but messages is a failure."""
        await until(lambda: len(sub.inbox.items) >= count)
        items = [sub.inbox.take() for _ in range(count)]
        assert all(isinstance(item, Message) for item in items), items
        return [item.payload for item in items if isinstance(item, Message)]

    def pump(self) -> None:
        """Does what the router wants done."""
        effects, self.router.effects[:] = list(self.router.effects), []
        for effect in effects:
            if isinstance(effect, Connect):
                self._spawn(self._connect(effect))
            elif isinstance(effect, Disconnect) and effect.server in self._links:
                self._links[effect.server].abort()
            elif isinstance(effect, FetchRing):
                self._spawn(self._fetch_ring())
        for server, commands in self.router.take_commands():
            if server in self._links:
                self._links[server].send(commands)
        self.router.take_ready()

    def lost(self, server: str) -> None:
        self._links.pop(server, None)
        if not self._closed:
            self.router.lost(server, self.now())
            self.pump()

    async def _connect(self, wish: Connect) -> None:
        link = Connection(
            wish.address.host,
            wish.address.port,
            username=None,
            password=None,
            name=f"shoal:{self.id:012x}",
            dial=tcp,
            receiver=_Ear(self, wish.server),
        )
        try:
            await link.open()
        except ShoalError:
            await asyncio.sleep(5 * POLL_S)
            self.lost(wish.server)
            return
        self._links[wish.server] = link
        self.router.opened(wish.server, self.now())
        self.pump()

    async def _fetch_ring(self) -> None:
        ring = await self._coordinator.get(RING_KEY)
        if ring is not None:
            self.router.ring(ring.value, self.now())
            self.pump()

    async def _run_timers(self) -> None:
        while True:
            at = self.router.next_timer()
            if at is not None and at <= self.now():
                self.router.timer(self.now())
                self.pump()
            await asyncio.sleep(POLL_S)

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
