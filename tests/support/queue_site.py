"""A coordinator, a server with its agent, and a store, all real; the test plays the leader.

The leader is a task of the test: it carries out the requests in the coordinator as a leader and a store's agent do,
with signed entries. Processes run on from test to test; each test has queues and connections of its own.

    with queue_site() as site:
        async with site.leader(), shoal.connect(site.url) as bus:
            await bus.queue("orders").put(b"1")
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

from tests.support.agent_site import Site, until
from tests.support.connections import ask, connect_coordinator
from tests.support.queue_store import StoreClient, store_server
from tests.support.redis_server import RedisServer

from shoal.coordination.redis import RedisCoordinator
from shoal.errors import CoordinatorError
from shoal.plan.keys import KEEPER_LEASE, entry_key, moves_prefix
from shoal.plan.kinds import QUEUE
from shoal.plan.queue_entry import QueueEntry
from shoal.plan.queue_request import ConfigureQueue, CreateQueue, DropQueue, QueueRequest, decode_queue_request
from shoal.plan.queue_settings import QueueSettings
from shoal.plan.ring import ServerAddress
from shoal.plan.signature import Signer, Verifier
from shoal.queues.message_format import check_queue_name
from shoal.queues.script_loader import load_scripts
from shoal.rules import ALL_RULES

SECRET = bytes(range(7, 39))
POLL_S = 0.01
LEASE_S = 300.0


class QueueSite:
    """The processes, and the key of the cluster."""

    def __init__(self, redis: RedisServer, server: RedisServer, store: RedisServer) -> None:
        self.redis = redis
        self.server = server
        self.store = store
        self.signer = Signer(Signer.generate())
        self.url = f"shoal://{redis.host}:{redis.port}"
        self.agent: Site | None = None
        self._revision = 0

    async def start(self) -> None:
        """Writes the plan and starts the agent of the server; loads the scripts, as the agent of the store would."""
        for script in load_scripts():
            ask(self.store.host, self.store.port, None, None, b"SCRIPT", b"LOAD", script.text)
        async with await self._connect() as coordinator:
            self.agent = site = Site(coordinator, self.redis, self.server)
            site.signer = self.signer
            await site.write_plan(SECRET)
            site.start_agent()
            await until(site.lease)
            await site.plain.connection_pool.disconnect()

    async def _connect(self) -> RedisCoordinator:
        return await connect_coordinator(f"{self.redis.host}:{self.redis.port}")

    def entry(self, name: bytes, settings: QueueSettings, version: int = 0) -> QueueEntry:
        """A new entry of a queue on the store."""
        self._revision += 1
        address = ServerAddress("q1", self.store.host, self.store.port)
        version = version or self._revision
        return QueueEntry(name, self._revision, version, settings, (address,), (0,) * settings.shards)

    @contextlib.asynccontextmanager
    async def leader(self) -> AsyncIterator[RedisCoordinator]:
        """Carries out requests until the end of the block."""
        async with await self._connect() as coordinator:
            lease = await until(lambda: coordinator.acquire(KEEPER_LEASE, "leader", LEASE_S))
            task = asyncio.create_task(self._lead(coordinator))
            try:
                yield coordinator
            finally:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
                with contextlib.suppress(CoordinatorError):  # a test may have killed the coordinator
                    await coordinator.release(lease)

    async def _lead(self, coordinator: RedisCoordinator) -> None:
        while True:
            for key, stored in (await coordinator.list(moves_prefix(QUEUE))).items():
                await self._carry_out(coordinator, decode_queue_request(stored.value))
                await coordinator.delete(key)
            await asyncio.sleep(POLL_S)

    async def _carry_out(self, coordinator: RedisCoordinator, request: QueueRequest) -> None:
        key = entry_key(request.unit, QUEUE)
        stored = await coordinator.get(key)
        kept = None if stored is None else Verifier(self.signer.public).line(stored.value, QueueEntry)
        client = StoreClient(self.store, (None, None), ALL_RULES)
        queue = client.queue(request.unit.decode())
        if kept is not None:
            client.entries[queue.name] = kept
        if isinstance(request, CreateQueue) and kept is None:
            entry = self.entry(request.unit, request.settings)
            client.entries[queue.name] = entry
            await coordinator.put(key, self.signer.line(entry))
            await queue.create(request.settings)
            self.copy(entry)
        elif isinstance(request, ConfigureQueue) and kept is not None:
            entry = self.entry(request.unit, request.settings, kept.version)
            await coordinator.put(key, self.signer.line(entry))
            await queue.configure(request.settings)
            self.copy(entry)
        elif isinstance(request, DropQueue) and kept is not None:
            await coordinator.delete(key)
            await queue.drop()
        await queue.aclose()

    def copy(self, entry: QueueEntry) -> None:
        """Puts the copy of an entry on the store."""
        key = check_queue_name(entry.unit.decode()) + b"entry"
        ask(self.store.host, self.store.port, None, None, b"SET", key, self.signer.line(entry))


@contextlib.contextmanager
def queue_site() -> Iterator[QueueSite]:
    """The site; nothing of it is left afterwards."""
    with RedisServer(aof=True) as redis, RedisServer() as server, store_server() as store:
        site = QueueSite(redis, server, store)
        try:
            asyncio.run(site.start())
            yield site
        finally:
            if site.agent is not None:
                site.agent.close()
