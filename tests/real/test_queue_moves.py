"""Shards of a queue move between the stores of a real cluster: a request, the leader, the stores' agents, clients."""

from __future__ import annotations

import asyncio

from tests.support.cluster_queues import ClusterQueues

from shoal.cluster.acl import ADMIN
from shoal.cluster.local import LocalCluster
from shoal.plan.queue_request import MoveShards
from shoal.queues.queue import NewMessage

MESSAGES = 400


async def test_a_queue_moves_to_another_store_while_it_is_used_and_the_agents_are_killed() -> None:
    async with LocalCluster(1, stores=2) as cluster, ClusterQueues(cluster.url_for(ADMIN)) as queues:
        entry = await queues.create("orders", shards=4, messages_max=10_000)
        source = entry.stores[0].id
        target = next(store for store in ("q1", "q2") if store != source)
        got: list[bytes] = []
        async with queues.queue("orders") as queue, queues.queue("orders") as other:
            await queue.put_many([NewMessage(b"%d" % n, key=f"k{n % 8}") for n in range(MESSAGES)])

            async def consume() -> None:
                async with other.take(max_in_flight=8) as jobs:
                    async for job in jobs:
                        got.append(job.payload)
                        await job.done()

            await queues.request(MoveShards(b"orders", dict.fromkeys(range(4), target), "test"))
            consumer = asyncio.create_task(consume())
            for name in ("agent-q1", "agent-q2"):
                await cluster.kill(name)
            for n in range(MESSAGES, MESSAGES + 80):
                await queue.put(b"%d" % n, key=f"k{n % 8}")
            await queues.ended("orders", 120.0)
            moved = await queues.find("orders")
            assert [store.id for store in moved.stores] == [target]
            assert moved.version == entry.version
            async with asyncio.timeout(60):
                while len(got) < MESSAGES + 80:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            consumer.cancel()
            await asyncio.gather(consumer, return_exceptions=True)
        numbers = [int(payload) for payload in got]
        assert sorted(numbers) == [*range(MESSAGES + 80)], "nothing lost, nothing twice"
        for key in range(8):
            mine = [number for number in numbers if number % 8 == key]
            assert mine == sorted(mine)


async def test_a_client_that_was_idle_during_a_move_counts_every_message() -> None:
    async with LocalCluster(1, stores=2) as cluster, ClusterQueues(cluster.url_for(ADMIN)) as queues:
        entry = await queues.create("orders", shards=4, messages_max=10_000)
        target = next(store for store in ("q1", "q2") if store != entry.store_of(0).id)
        async with queues.queue("orders") as queue, queues.queue("orders") as idle:
            assert (await idle.stats()).messages == 0
            await queue.put_many([NewMessage(b"%d" % n, key=f"k{n}") for n in range(40)])
            await queues.request(MoveShards(b"orders", {0: target}, "test"))
            await queues.ended("orders", 60.0)
            assert (await idle.stats()).messages == 40
            assert len(await idle.keys()) == 40
            assert len(await idle.peek(count=40)) == 40
            assert await idle.purge() == 40
            assert (await queue.stats()).messages == 0
