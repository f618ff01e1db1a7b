"""The test tables of "Design and Implementation of a Pub-Sub System" (Hatoum), one test a row, on a real store.

Table and row are in the name. Where a table says dropped or rejected, a message is refused here and the caller is told.
The delays of the paper are simulated by handlers that really wait.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from tests.support.queue_store import StoreClient, client_of, store_server, until
from tests.support.redis_server import RedisServer

from shoal.errors import AlreadyAcceptedError, ConsumerInactiveError, QueueFullError
from shoal.queues.consumer_shell import JobStream
from shoal.queues.job import Job
from shoal.queues.queue import NewMessage, Queue
from shoal.queues.settings import ConsumerSettings

SMALL_DELAY_S = 0.3
"""The paper's short interruption."""


def messages(count: int, partitions: int, ids: bool = False) -> list[NewMessage]:
    """Numbered messages, dealt to partitions in turn."""
    return [NewMessage(b"%d" % n, b"p%d" % (n % partitions), b"id%d" % n if ids else None) for n in range(count)]


class Subscriber:
    """A consumer with its own connection that processes jobs one after the other."""

    def __init__(self, queue: Queue, **options: Any) -> None:
        self.queue = queue
        self.jobs: JobStream = queue.take(**options)
        self.got: list[bytes] = []
        self.keys: dict[bytes, list[int]] = defaultdict(list)
        self.task: asyncio.Task[None] | None = None
        self.on_job: Any = None
        self.confirm = True

    async def join(self) -> None:
        """Returns when the store knows this consumer."""
        await self.jobs.__aenter__()
        await until(lambda: self.jobs.core.counters["resyncs"] > 0)

    def start(self) -> None:
        self.task = asyncio.create_task(self._work())

    async def _work(self) -> None:
        async for job in self.jobs:
            if self.on_job is not None:
                await self.on_job(job)
            await job.done(confirm=self.confirm)
            self.note(job)

    def note(self, job: Job) -> None:
        self.got.append(job.payload)
        self.keys[job.key].append(int(job.payload))

    async def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
        await self.jobs.aclose()


class Scene:
    """Publishers and subscribers of one test, each a client of its own."""

    def __init__(self, server: RedisServer, stack: AsyncExitStack, name: str) -> None:
        self.server, self.name = server, name
        self._stack = stack
        self.subscribers: list[Subscriber] = []

    async def client(self, **limits: Any) -> StoreClient:
        return await self._stack.enter_async_context(client_of(self.server, **limits))

    async def publisher(self, name: str = "", **settings: Any) -> Queue:
        return await (await self.client()).create(name or self.name, **settings)

    async def subscriber(self, name: str = "", **options: Any) -> Subscriber:
        queue = (await self.client()).queue(name or self.name)
        made = Subscriber(queue, **options)
        await made.join()
        self._stack.push_async_callback(made.stop)
        self.subscribers.append(made)
        return made

    async def subscribers_of(self, count: int, name: str = "", **options: Any) -> list[Subscriber]:
        made = [await self.subscriber(name, **options) for _ in range(count)]
        for one in made:
            one.start()
        return made

    def total(self) -> int:
        return sum(len(one.got) for one in self.subscribers)


@pytest.fixture
async def scene(store: RedisServer, request: pytest.FixtureRequest) -> AsyncIterator[Scene]:
    async with AsyncExitStack() as stack:
        yield Scene(store, stack, request.node.name[:100])


@pytest.fixture
async def mortal_scene(request: pytest.FixtureRequest) -> AsyncIterator[Scene]:
    """A scene on a store that the test kills."""
    with store_server() as server:
        async with AsyncExitStack() as stack:
            yield Scene(server, stack, request.node.name[:100])


def in_order(subscribers: list[Subscriber]) -> bool:
    return all(numbers == sorted(numbers) for one in subscribers for numbers in one.keys.values())


# Table 1, R1: publishing and subscribing


async def test_t1_1_messages_wait_for_a_subscriber(scene: Scene) -> None:
    queue = await scene.publisher()
    assert (await queue.put_many(messages(10, 2))).accepted == 10
    assert (await queue.stats()).messages == 10
    (one,) = await scene.subscribers_of(1)
    await until(lambda: len(one.got) == 10)
    assert in_order([one])


async def test_t1_2_two_subscribers_that_come_first_get_equal_shares(scene: Scene) -> None:
    queue = await scene.publisher()
    subscribers = [await scene.subscriber() for _ in range(2)]
    jobs: list[Job] = []
    await queue.put_many(messages(10, 10))
    for one in subscribers:
        jobs += [await anext(one.jobs) for _ in range(5)]  # both get five, before any is done
    assert {job.payload for job in jobs} == {b"%d" % n for n in range(10)}


async def test_t1_3_a_thousand_messages_in_two_partitions_arrive_partitioned(scene: Scene) -> None:
    queue = await scene.publisher()
    subscribers = await scene.subscribers_of(2)
    for one in subscribers:
        one.confirm = False  # the row measures messages, not a sync of the disk for each
    began = time.monotonic()
    assert (await queue.put_many(messages(1000, 2))).accepted == 1000
    await until(lambda: scene.total() == 1000)
    assert time.monotonic() - began < 1
    assert in_order(subscribers)
    assert sum(len(one.keys) for one in subscribers) == 2, "each partition went to one subscriber"


async def test_t1_4_the_first_thousand_are_stored_and_each_other_one_is_refused(scene: Scene) -> None:
    queue = await scene.publisher()
    outcome = await queue.put_many(messages(10_000, 10))
    assert outcome.accepted == 1000
    assert [position for position, _ in outcome.refused] == list(range(1000, 10_000))
    assert all(isinstance(error, QueueFullError) for _, error in outcome.refused)
    stats = await queue.stats()
    assert stats.messages == 1000 == stats.settings.messages_max
    with pytest.raises(QueueFullError, match='full="wait"'):
        await queue.put(b"one more", key="p1")


# Table 2, R2: lookup. Row 2.1 is in tests/real/test_queues.py: the plan lists queues.


# Table 3, R3: dynamic queue management


async def test_t3_1_two_partitions_go_to_two_subscribers(scene: Scene) -> None:
    queue = await scene.publisher()
    subscribers = await scene.subscribers_of(2)
    await queue.put_many(messages(10, 2))
    await until(lambda: scene.total() == 10)
    assert [len(one.keys) for one in subscribers] == [1, 1]
    assert in_order(subscribers)
    stats = await queue.stats()
    assert (stats.keys, stats.messages, stats.held) == (0, 0, 0), "empty keys vanish"


async def test_t3_2_five_partitions_go_to_five_subscribers(scene: Scene) -> None:
    queue = await scene.publisher()
    subscribers = await scene.subscribers_of(5)
    await queue.put_many(messages(5, 5))
    await until(lambda: scene.total() == 5)
    assert [len(one.got) for one in subscribers] == [1] * 5


async def test_t3_3_two_queues_at_the_same_time(scene: Scene) -> None:
    names = ["t3-3-a", "t3-3-b"]
    queues = [await scene.publisher(name) for name in names]
    groups = [await scene.subscribers_of(5, name) for name in names]
    await asyncio.gather(*(queue.put_many(messages(5, 5)) for queue in queues))
    await until(lambda: scene.total() == 10)
    assert [[len(one.got) for one in group] for group in groups] == [[1] * 5] * 2


# Table 4, R4: temporary interruptions


async def test_t4_1_short_delays_are_counted_and_not_punished(scene: Scene) -> None:
    queue = await scene.publisher()
    settings = ConsumerSettings(slow_after_s=SMALL_DELAY_S / 2, slow_delays=100)
    subscribers = [await scene.subscriber(settings=settings) for _ in range(2)]

    async def delayed(job: Job) -> None:
        if job.payload in (b"3", b"6"):
            await asyncio.sleep(SMALL_DELAY_S)

    for one in subscribers:
        one.on_job = delayed
        one.start()
    await queue.put_many(messages(10, 2))
    await until(lambda: scene.total() == 10)
    assert [one.jobs.statistics()["delays"] for one in subscribers] == [1, 1]
    assert [len(one.got) for one in subscribers] == [5, 5]


async def test_t4_2_messages_of_a_closed_client_go_to_the_first_that_comes_back(scene: Scene) -> None:
    queue = await scene.publisher()
    first, second = [await scene.subscriber() for _ in range(2)]
    await queue.put_many(messages(10, 2))
    first.start()
    job = await anext(second.jobs)
    await job.done()
    await until(lambda: len(first.got) == 5)
    await first.stop()
    await second.jobs.aclose()
    stats = await queue.stats()
    assert (stats.messages, stats.ready, stats.consumers) == (4, 1, 0), "the four are back in their partition"
    (third,) = await scene.subscribers_of(1)
    await until(lambda: len(third.got) == 4)
    (numbers,) = third.keys.values()
    assert numbers == sorted(numbers)
    assert int(job.payload) < numbers[0]


# Table 5, R5: crashing queues


async def test_t5_1_unprocessed_messages_survive_a_crash_of_the_store(mortal_scene: Scene) -> None:
    scene = mortal_scene
    queue = await scene.publisher()
    await queue.put_many(messages(5, 2))
    scene.server.kill()
    rest = asyncio.create_task(queue.put_many(messages(10, 2)[5:]))
    await asyncio.sleep(0.05)
    assert not rest.done(), "the other five wait for the store"
    await asyncio.to_thread(scene.server.start)
    assert (await rest).accepted == 5
    assert (await queue.stats()).messages == 10
    (one,) = await scene.subscribers_of(1)
    await until(lambda: len(one.got) == 10)
    assert in_order([one])


async def test_t5_2_processed_messages_do_not_come_again_after_a_crash(mortal_scene: Scene) -> None:
    scene = mortal_scene
    queue = await scene.publisher()
    (one,) = await scene.subscribers_of(1)
    await queue.put_many(messages(5, 2))
    await until(lambda: len(one.got) == 5)
    scene.server.kill()
    await asyncio.to_thread(scene.server.start)
    assert (await queue.stats()).messages == 0
    assert (await queue.put_many(messages(10, 2)[5:])).accepted == 5
    await until(lambda: len(one.got) == 10)
    assert Counter(one.got) == Counter({b"%d" % n: 1 for n in range(10)})


# Table 6, R6: crashing customers


async def test_t6_1_the_fourth_and_fifth_message_go_to_the_other_subscriber(scene: Scene) -> None:
    queue = await scene.publisher(lease_s=4.0)
    healthy, crashing = [await scene.subscriber() for _ in range(2)]
    await queue.put_many(messages(10, 2))
    for _ in range(3):
        job = await anext(crashing.jobs)
        await job.done()
        crashing.note(job)
    await anext(crashing.jobs)  # the fourth crashes it: without a word to the store
    for lane in crashing.jobs._lanes.values():
        assert lane.task is not None
        lane.task.cancel()
    healthy.start()
    await until(lambda: len(healthy.got) == 7)
    ((key, before),) = crashing.keys.items()
    assert healthy.keys[key] == [before[-1] + 2, before[-1] + 4], "the fourth and the fifth, in order"


# Table 7, R7: long delays


async def test_t7_1_after_three_long_delays_the_rest_goes_to_the_other_subscriber(scene: Scene) -> None:
    queue = await scene.publisher()
    settings = ConsumerSettings(slow_after_s=0.1)
    slow, quick = [await scene.subscriber(settings=settings) for _ in range(2)]
    await queue.put_many(messages(10, 2))
    quick.start()
    await until(lambda: len(quick.got) == 5)

    async def delayed(job: Job) -> None:
        await asyncio.sleep(0.15)

    slow.on_job = delayed
    slow.start()
    await until(lambda: scene.total() == 10)
    assert (len(slow.got), len(quick.got)) == (3, 7), "two unprocessed messages went to the quick one"
    assert in_order([slow, quick])
    assert (await queue.stats()).consumers == 2, "the slow one stays a member"


# Table 8, R8: dropped messages


async def test_t8_1_after_three_attempts_a_silent_subscriber_is_inactive(scene: Scene) -> None:
    queue = await scene.publisher()
    silent = await scene.subscriber(ack_timeout=0.1)
    healthy = await scene.subscriber()
    await queue.put_many(messages(10, 2))
    attempts: list[bytes] = []

    async def never_acknowledge() -> None:
        async for job in silent.jobs:
            attempts.append(job.payload)

    with pytest.raises(ConsumerInactiveError, match="3 times"):
        await never_acknowledge()
    assert len(attempts) == 3
    assert len({*attempts}) == 1
    healthy.start()
    await until(lambda: len(healthy.got) == 10)
    assert in_order([healthy]), "the current message and the rest moved, in order"
    assert (await queue.stats()).consumers == 1


# Table 9, R9: order


async def test_t9_1_each_partition_is_processed_in_order_by_one_subscriber(scene: Scene) -> None:
    queue = await scene.publisher()
    subscribers = await scene.subscribers_of(2)
    await queue.put_many(messages(10, 2))
    await until(lambda: scene.total() == 10)
    assert in_order(subscribers)
    assert [len(one.keys) for one in subscribers] == [1, 1]


# Table 10, R10: duplicates


async def first_round(scene: Scene) -> Queue:
    queue = await scene.publisher()
    await scene.subscribers_of(2)
    assert (await queue.put_many(messages(10, 2, ids=True))).accepted == 10
    await until(lambda: scene.total() == 10)
    return queue


def duplicates(refused: tuple[tuple[int, Exception], ...]) -> int:
    return sum(isinstance(error, AlreadyAcceptedError) for _, error in refused)


async def test_t10_1_the_same_ten_messages_are_all_refused(scene: Scene) -> None:
    queue = await first_round(scene)
    again = await queue.put_many(messages(10, 2, ids=True))
    assert (again.accepted, duplicates(again.refused)) == (0, 10)
    assert scene.total() == 10


async def test_t10_2_only_the_new_message_is_accepted(scene: Scene) -> None:
    queue = await first_round(scene)
    again = await queue.put_many(messages(11, 2, ids=True))
    assert (again.accepted, duplicates(again.refused)) == (1, 10)
    await until(lambda: scene.total() == 11)


async def test_t10_3_duplicates_are_refused_after_all_subscribers_left(scene: Scene) -> None:
    queue = await first_round(scene)
    for one in scene.subscribers:
        await one.stop()
    again = await queue.put_many(messages(10, 2, ids=True))
    assert (again.accepted, duplicates(again.refused)) == (0, 10)
    assert (await queue.stats()).messages == 0
