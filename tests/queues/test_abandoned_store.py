"""A store whose shards were abandoned, or whose queue was dropped, comes back: clients that knew it look at the plan
before they use it again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
from tests.support.queue_store import store_server
from tests.support.redis_server import RedisServer

from shoal.errors import QueueNotFoundError, QueueUnavailableError
from shoal.limits import DEFAULT_LIMITS
from shoal.plan.format import VALUE as FORMAT_VALUE
from shoal.plan.keys import FORMAT_KEY, PUBLIC_KEY, entry_key
from shoal.plan.kinds import QUEUE
from shoal.plan.queue_entry import QueueEntry
from shoal.plan.queue_mover import abandon, begin, give_up, renewed_states, settings_at
from shoal.plan.queue_settings import QueueSettings
from shoal.plan.ring import ServerAddress
from shoal.plan.signature import Signer
from shoal.queues.agent.process import StoreAgent, StoreAgentOptions
from shoal.queues.message_format import check_queue_name
from shoal.queues.queue import Queue, QueueContext
from shoal.queues.script_loader import load_scripts
from shoal.queues.store_link import StoreLink
from shoal.runtime import PRODUCTION

NAME = "orders"
SETTINGS = QueueSettings(shards=2)
LIMITS = msgspec.structs.replace(DEFAULT_LIMITS, connect_timeout_s=20.0, queue_put_timeout_s=30.0)
"""A busy machine may take long to start a server."""


class Plan:
    """The plan entry of one queue, which a test changes."""

    def __init__(self, first: RedisServer, second: RedisServer) -> None:
        self.stores = [ServerAddress(f"q{n}", one.host, one.port) for n, one in enumerate((first, second), 1)]
        self.entry = QueueEntry(NAME.encode(), 1, 1, SETTINGS, (self.stores[0],), (0, 0))
        self.away = self.dropped = False

    async def find(self, name: str) -> QueueEntry:
        if self.away:
            raise QueueUnavailableError("the coordinator does not answer", do="wait")
        if self.dropped:
            raise QueueNotFoundError(f"there is no queue {name}", do="create it")
        return self.entry

    def queue(self) -> Queue:
        context = QueueContext(LIMITS, PRODUCTION, lambda: (None, None), self.find)
        queue = Queue(NAME, context, lambda _: queue)
        return queue

    def queue_of_cluster(self) -> Queue:
        """A queue whose stores have agents: only these load the scripts."""

        async def create(name: str, settings: QueueSettings | None) -> QueueEntry:
            raise AssertionError(f"queue {name} is in the plan")

        limits = msgspec.structs.replace(LIMITS, queue_put_timeout_s=1.0)
        context = QueueContext(limits, PRODUCTION, lambda: (None, None), self.find, create=create)
        queue = Queue(NAME, context, lambda _: queue)
        return queue


@asynccontextmanager
async def one_message_on_the_first_store(plan: Plan) -> AsyncIterator[Queue]:
    """A client that has put a message, and whose store dies and comes back."""
    queue = plan.queue()
    await queue.create(SETTINGS)
    await queue.put(b"before", key="k")
    try:
        yield queue
    finally:
        await queue.aclose()


async def restart(server: RedisServer) -> None:
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.start)


async def test_a_put_of_a_client_with_the_old_entry_is_not_stranded_on_the_abandoned_store() -> None:
    with store_server() as first, store_server() as second:
        plan = Plan(first, second)
        async with one_message_on_the_first_store(plan) as client:
            old, gone = plan.queue(), plan.entry
            plan.entry = abandon(plan.entry, ["q1"], plan.stores[1], 2)
            new = plan.queue()
            await new.create(SETTINGS)
            await restart(first)
            with pytest.raises((QueueUnavailableError, QueueNotFoundError)):
                await client.put(b"after", key="k")
            await client.put(b"again", key="k")
            assert [message.payload for message in await new.peek("k")] == [b"again"]
            plan.entry = gone
            assert [message.payload for message in await old.peek("k")] == [b"before"]
            await old.aclose()
            await new.aclose()


async def test_a_put_is_not_stranded_on_a_store_that_still_has_a_dropped_queue() -> None:
    """The queue was dropped while its store was started without its directory, which is back now."""
    with store_server() as first, store_server() as second:
        plan = Plan(first, second)
        async with one_message_on_the_first_store(plan) as client:
            plan.dropped = True
            await restart(first)
            with pytest.raises(QueueNotFoundError):
                await client.put(b"after", key="k")
            with pytest.raises(QueueNotFoundError):
                await client.put(b"again", key="k")
            plan.dropped = False
            assert [message.payload for message in await client.peek("k")] == [b"before"]


async def test_a_store_that_comes_back_is_used_although_the_plan_cannot_be_read() -> None:
    with store_server() as first, store_server() as second:
        plan = Plan(first, second)
        async with one_message_on_the_first_store(plan) as client:
            plan.away = True
            await restart(first)
            await client.put(b"after", key="k")
            plan.away = False
            assert [message.payload for message in await client.peek("k")] == [b"before", b"after"]


async def test_a_producer_goes_on_at_a_store_that_keeps_its_shards_under_the_new_version() -> None:
    """The store remembers the batches that the producer sent before; new ones are no repetitions."""
    with store_server() as first, store_server() as second:
        plan = Plan(first, second)
        plan.entry = QueueEntry(NAME.encode(), 1, 1, SETTINGS, (plan.stores[0], plan.stores[1]), (0, 1))
        key = next(f"k{n}" for n in range(100) if plan.entry.shard_of(b"k%d" % n) == 1)
        client = plan.queue()
        await client.create(SETTINGS)
        await client.put(b"before", key=key)
        plan.entry = abandon(plan.entry, ["q1"], plan.stores[1], 2)
        await renew(plan.entry, plan.stores[1])
        assert (await client.stats()).messages == 1
        await client.put(b"after", key=key)
        assert [message.payload for message in await client.peek(key)] == [b"before", b"after"]
        await client.aclose()


async def test_a_shard_that_is_sealed_for_a_move_that_was_given_up_keeps_its_messages() -> None:
    """The agent of its store did not see the entry that gave the move up, only the one that abandoned the other."""
    with store_server() as first, store_server() as second:
        plan = Plan(first, second)
        plan.entry = QueueEntry(NAME.encode(), 1, 1, SETTINGS, (plan.stores[0], plan.stores[1]), (0, 1))
        key = next(f"k{n}" for n in range(100) if plan.entry.shard_of(b"k%d" % n) == 1)
        client = plan.queue()
        await client.create(SETTINGS)
        await client.put(b"kept", key=key)
        moving = begin(plan.entry, {1: plan.stores[0]})
        assert moving is not None
        assert moving.move is not None
        await ship(plan.stores[1], moving, b"seal", b"1", b"%d" % moving.move.since)
        plan.entry = abandon(give_up(moving), ["q1"], plan.stores[1], 4)
        await renew(plan.entry, plan.stores[1])
        await client.stats()
        await client.put(b"new", key=key)
        assert [message.payload for message in await client.peek(key)] == [b"kept", b"new"]
        await client.aclose()


@asynccontextmanager
async def agent_of(store: ServerAddress, url: str) -> AsyncIterator[StoreAgent]:
    """The agent of a store, as its process runs it."""
    agent = StoreAgent(StoreAgentOptions(address=store, url=url, limits=LIMITS), PRODUCTION)
    task = asyncio.create_task(agent.work())
    try:
        async with asyncio.timeout(30.0):
            while agent.core is None or not agent.core.open:
                assert not task.done()
                await asyncio.sleep(0.01)
        yield agent
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_store_that_is_back_accepts_nothing_until_its_agent_has_read_the_plan() -> None:
    """A client connects to it before its shards are abandoned, so it has no reason to read the plan again."""
    with store_server() as first, store_server() as second, RedisServer() as coordinating:
        url = f"shoal://{coordinating.host}:{coordinating.port}"
        plan, signer = Plan(first, second), Signer(Signer.generate())
        client, reader, gone = plan.queue_of_cluster(), plan.queue(), plan.entry
        async with await PRODUCTION.coordinator(url, 5.0) as coordinator:
            await coordinator.put(FORMAT_KEY, FORMAT_VALUE)
            await coordinator.put(PUBLIC_KEY, signer.public)
            await coordinator.put(entry_key(NAME.encode(), QUEUE), signer.line(plan.entry))
            async with agent_of(plan.stores[0], url):
                await client.put(b"before", key="k")
            await restart(first)
            with pytest.raises(QueueUnavailableError):
                await client.put(b"too early", key="k")
            async with agent_of(plan.stores[0], url):
                await client.put(b"open again", key="k")
            await restart(first)
            with pytest.raises(QueueUnavailableError):
                await client.put(b"too early again", key="k")
            later = abandon(plan.entry, ["q1"], plan.stores[1], 2)
            await coordinator.put(entry_key(NAME.encode(), QUEUE), signer.line(later))
            async with agent_of(plan.stores[0], url):
                with pytest.raises(QueueUnavailableError):
                    await client.put(b"too late", key="k")
        assert plan.entry is gone, "the client was not told"
        assert [message.payload for message in await reader.peek("k")] == [b"before", b"open again"]
        await client.aclose()
        await reader.aclose()


async def renew(entry: QueueEntry, store: ServerAddress) -> None:
    """What the agent of a store does with its shards when those of another were abandoned."""
    words = [b"%d" % word for word in settings_at(entry, store.id).words(entry.version)]
    await ship(store, entry, b"renew", renewed_states(entry, store.id, 1).encode(), *words)


async def ship(store: ServerAddress, entry: QueueEntry, operation: bytes, *arguments: bytes) -> None:
    link = StoreLink(store, lambda: (None, None), "agent", LIMITS, PRODUCTION, lambda: None, loads=True)
    numbers = [b"%d" % entry.version, b"%d" % entry.revision]
    await link.run(load_scripts().ship, check_queue_name(NAME), [operation, *numbers, *arguments])
    await link.close()
