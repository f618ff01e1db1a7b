"""A shard moves between two real stores while producers and consumers use it."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import msgspec
from tests.support.queue_store import store_server
from tests.support.redis_server import RedisServer

from shoal.limits import DEFAULT_LIMITS
from shoal.plan.queue_entry import QueueEntry, ShardPhase
from shoal.plan.queue_mover import begin, next_step
from shoal.plan.queue_settings import QueueSettings
from shoal.plan.ring import ServerAddress
from shoal.queues.mover_shell import MoverShell
from shoal.queues.queue import NewMessage, Queue, QueueContext
from shoal.queues.script_loader import load_scripts
from shoal.queues.shard_mover import ShardStatus
from shoal.runtime import PRODUCTION

WAITING = 6000
LIMITS = msgspec.structs.replace(DEFAULT_LIMITS, move_pause_s_max=60.0)
"""The pause is printed, not limited: the machine may be busy."""
SETTINGS = QueueSettings(shards=2, messages_max=100_000, lease_s=30.0)


class Plan:
    """The leader of a test: it applies the shipped table of phases to the reports of two agents."""

    def __init__(self, *servers: RedisServer) -> None:
        stores = tuple(ServerAddress(f"q{n}", one.host, one.port) for n, one in enumerate(servers, 1))
        self.stores = stores
        self.entry = QueueEntry(b"orders", 1, 1, SETTINGS, stores[:1], (0, 0))
        self.reports: dict[str, ShardStatus] = {}
        self.movers = [self._mover(store) for store in stores]
        self.tasks = [asyncio.create_task(mover.run()) for mover in self.movers]
        self.sealed_s = 0.0

    def _mover(self, store: ServerAddress) -> MoverShell:
        def report(status: ShardStatus) -> None:
            self.reports[store.id] = status

        return MoverShell("orders", store, load_scripts(), lambda: (None, None), report, LIMITS, PRODUCTION)

    async def find(self, name: str) -> QueueEntry:
        return self.entry

    async def move(self, wanted: dict[int, str]) -> None:
        """Moves shards; measures how long they were sealed, as the leader sees it."""
        known = {store.id: store for store in self.stores}
        entry = begin(self.entry, {shard: known[store] for shard, store in wanted.items()})
        loop = asyncio.get_running_loop()
        copy_at = 0.0
        async with asyncio.timeout(120):
            while entry is not None:
                entry.check()
                self.entry = entry
                for mover in self.movers:
                    mover.observe(entry)
                if entry.move is None:
                    return
                if entry.move.phase is ShardPhase.COPY:
                    copy_at = loop.time()
                entry = None
                while entry is None:
                    await asyncio.sleep(0.002)
                    said = self.reports.get(self.entry.move.destination) if self.entry.move else None
                    entry, why = next_step(self.entry, said, lambda timeout_s: False, LIMITS)
                    assert why is None, why
                if self.entry.move is not None and self.entry.move.phase is ShardPhase.OPEN:
                    self.sealed_s = max(self.sealed_s, loop.time() - copy_at)

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


async def test_a_shard_with_6000_messages_moves_while_producers_and_consumers_run() -> None:
    with store_server() as first, store_server() as second:
        plan = Plan(first, second)
        queues = []

        def queue() -> Queue:
            made = Queue("orders", QueueContext(LIMITS, PRODUCTION, lambda: (None, None), plan.find), lambda _: made)
            queues.append(made)
            return made

        filler = queue()
        await filler.create(SETTINGS)
        keys = [key for key in (f"k{n}" for n in range(200)) if plan.entry.shard_of(key.encode()) == 1][:40]
        other = next(key for key in (f"k{n}" for n in range(200)) if plan.entry.shard_of(key.encode()) == 0)
        put: dict[str, list[bytes]] = defaultdict(list)
        got: dict[str, list[bytes]] = defaultdict(list)
        messages = []
        for number in range(WAITING):
            key = keys[number % len(keys)]
            put[key].append(b"%d" % number)
            messages.append(NewMessage(put[key][-1], key))
        assert (await filler.put_many(messages)).accepted == WAITING
        moving, pauses = True, [0.0]

        async def produce(number: int) -> None:
            mine, count, loop = queue(), 0, asyncio.get_running_loop()
            while moving or count < 20:
                key = f"{keys[count % len(keys)]}" if number else other
                name = f"{key}/{number}"
                payload = b"%d/%d" % (number, count)
                sent_at = loop.time()
                await mine.put(payload, key=key, id=payload)
                pauses.append(loop.time() - sent_at)
                put[name].append(payload)
                count += 1

        async def consume() -> None:
            async with queue().take(max_in_flight=64) as jobs:
                async for job in jobs:
                    number, _, _ = job.payload.partition(b"/")
                    key = job.key.decode()
                    got[f"{key}/{number.decode()}" if b"/" in job.payload else key].append(job.payload)
                    await job.done(confirm=False)

        producers = [asyncio.create_task(produce(number)) for number in (0, 1)]
        while len(put[f"{keys[0]}/1"]) < 1:  # noqa: ASYNC110  # both are under way
            await asyncio.sleep(0.01)
        moved = asyncio.create_task(plan.move({1: "q2"}))
        await asyncio.sleep(0)
        consumers = [asyncio.create_task(consume()) for _ in range(2)]
        await moved
        await plan.move({1: "q1", 0: "q2"})
        moving = False
        await asyncio.gather(*producers)
        async with asyncio.timeout(120):
            while sum(map(len, got.values())) < sum(map(len, put.values())):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        print(f"pause: sealed {1000 * plan.sealed_s:.0f} ms, longest put {1000 * max(pauses):.0f} ms")
        assert {key: found for key, found in got.items() if found} == {key: all for key, all in put.items() if all}
        assert [store.id for store in plan.entry.stores] == ["q2", "q1"]
        async with asyncio.timeout(60):
            while (counted := await filler.stats()).messages or counted.held:  # noqa: ASYNC110  # a `done` is on its way
                await asyncio.sleep(0.02)
        assert counted.ready == 0
        for task in consumers:
            task.cancel()
        await asyncio.gather(*consumers, return_exceptions=True)
        for one in queues:
            await one.aclose()
        await plan.close()
