"""`bus.queue`: queues are created by their first use, found through signed entries, and closed with their bus."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import msgspec
import pytest
from tests.support.queue_site import QueueSite, queue_site

import shoal
from shoal.coordination.redis import RedisCoordinator
from shoal.errors import (
    BusClosedError,
    ConfigError,
    ForgedEntryError,
    QueueNameError,
    QueueNotFoundError,
    QueueUnavailableError,
)
from shoal.limits import DEFAULT_LIMITS
from shoal.plan.keys import entry_key, move_key
from shoal.plan.kinds import QUEUE
from shoal.plan.queue_request import DropQueue, encode_queue_request
from shoal.plan.queue_settings import QueueSettings
from shoal.plan.signature import Signer


@pytest.fixture(scope="module")
def site() -> Iterator[QueueSite]:
    with queue_site() as started:
        yield started


@pytest.fixture
async def leader(site: QueueSite) -> AsyncIterator[RedisCoordinator]:
    async with site.leader() as coordinator:
        yield coordinator


@pytest.fixture
async def bus(site: QueueSite) -> AsyncIterator[shoal.Bus]:
    async with shoal.connect(site.url) as opened:
        yield opened


async def test_the_first_put_creates_a_queue(leader: RedisCoordinator, bus: shoal.Bus) -> None:
    jobs = bus.queue("orders")
    assert bus.queue("orders") is jobs
    await jobs.put(b"one", key="customer-17")
    async for job in jobs.take():
        assert job.payload == b"one"
        await job.done()
        break
    assert (await jobs.stats()).settings == QueueSettings()


async def test_a_take_creates_a_queue_and_waits(leader: RedisCoordinator, bus: shoal.Bus, site: QueueSite) -> None:
    async with bus.queue("taken").take() as jobs, shoal.connect(site.url) as other:
        await other.queue("taken").put(b"one")
        await (await anext(jobs)).done()


async def test_a_queue_is_created_with_settings_once(leader: RedisCoordinator, bus: shoal.Bus) -> None:
    queue = bus.queue("small")
    assert await queue.create(QueueSettings(messages_max=2, on_dead="halt"))
    assert not await queue.create(QueueSettings(messages_max=99))
    settings = (await queue.stats()).settings
    assert (settings.messages_max, settings.on_dead) == (2, "halt")


async def test_many_clients_that_begin_at_once_share_one_queue(leader: RedisCoordinator, site: QueueSite) -> None:
    buses = [shoal.connect(site.url) for _ in range(8)]
    await asyncio.gather(*(one.open() for one in buses))
    try:
        await asyncio.gather(*(one.queue("crowd").put(b"%d" % n) for n, one in enumerate(buses)))
        assert (await buses[0].queue("crowd").stats()).messages == 8
    finally:
        await asyncio.gather(*(one.aclose() for one in buses))


async def test_a_follow_up_creates_its_queue(leader: RedisCoordinator, bus: shoal.Bus) -> None:
    await bus.queue("first").put(b"1")
    async with bus.queue("first").take() as jobs:
        job = await anext(jobs)
        job.put(b"2", queue="second")
        await job.done()
    assert [message.payload for message in await bus.queue("second").peek()] == [b"2"]


async def test_what_only_looks_creates_nothing(leader: RedisCoordinator, bus: shoal.Bus) -> None:
    for look in (bus.queue("nothing").stats, bus.queue("nothing").peek, bus.queue("nothing").dead):
        with pytest.raises(QueueNotFoundError, match=r"no queue nothing.*shoal queue create nothing"):
            await look()
    assert "nothing" not in await bus.queues()


async def test_names_and_settings_are_checked_before_anything_is_sent(bus: shoal.Bus) -> None:
    with pytest.raises(QueueNameError):
        bus.queue("no spaces")
    with pytest.raises(ConfigError, match="lease_s"):
        await bus.queue("wrong").create(QueueSettings(lease_s=float("nan")))


async def test_without_a_leader_the_caller_is_told_what_to_do(site: QueueSite) -> None:
    limits = msgspec.structs.replace(DEFAULT_LIMITS, queue_put_timeout_s=3)
    async with shoal.connect(site.url, limits=limits) as bus:
        await bus.publish("ready", b"1", confirm=True)  # from now on the agent answers at once
        with pytest.raises(QueueUnavailableError, match=r"not created within 3 s: no leader.*shoal status"):
            await bus.queue("orphan").put(b"1")
    async with site.leader(), shoal.connect(site.url) as bus:  # the request has waited for a leader
        await bus.queue("orphan").put(b"1")


async def test_an_entry_that_the_cluster_has_not_signed_is_refused(
    leader: RedisCoordinator, bus: shoal.Bus, site: QueueSite
) -> None:
    forger = Signer(Signer.generate())
    entry = site.entry(b"forged", QueueSettings())
    await leader.put(entry_key(b"forged", QUEUE), forger.line(entry))
    with pytest.raises(ForgedEntryError):
        await bus.queue("forged").put(b"1")
    await leader.put(entry_key(b"forged", QUEUE), site.signer.line(site.entry(b"another", QueueSettings())))
    with pytest.raises(ForgedEntryError, match="another queue"):
        await bus.queue("forged").put(b"1")
    await leader.delete(entry_key(b"forged", QUEUE))


async def test_a_dropped_queue_ends_its_consumers_and_the_next_use_creates_it(
    leader: RedisCoordinator, bus: shoal.Bus
) -> None:
    queue = bus.queue("doomed")
    async with queue.take() as one, queue.take() as other:
        await leader.put(move_key(b"doomed", QUEUE), encode_queue_request(DropQueue(b"doomed", "test")))
        for jobs in (one, other):
            with pytest.raises(QueueNotFoundError):
                async with asyncio.timeout(30.0):
                    await anext(jobs)
    await queue.put(b"again")
    async with queue.take() as jobs:
        assert (await anext(jobs)).payload == b"again"


async def test_closing_the_bus_returns_its_jobs(leader: RedisCoordinator, site: QueueSite, bus: shoal.Bus) -> None:
    await bus.queue("back").put_many([b"1", b"2"])
    async with shoal.connect(site.url) as other:
        jobs = other.queue("back").take()
        assert (await anext(jobs)).payload in (b"1", b"2"), "without a key there is no order"
    with pytest.raises(BusClosedError):
        other.queue("back")
    async with bus.queue("back").take() as mine:
        assert {(await anext(mine)).payload for _ in range(2)} == {b"1", b"2"}


async def test_closing_the_bus_waits_for_puts(leader: RedisCoordinator, site: QueueSite, bus: shoal.Bus) -> None:
    await bus.queue("late").create()
    async with shoal.connect(site.url) as other:
        queue = other.queue("late")
        await queue.stats()
        tasks = [asyncio.create_task(queue.put(b"%d" % n)) for n in range(20)]
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert (await bus.queue("late").stats()).messages == 20


async def test_a_queue_works_while_the_coordinator_is_away(site: QueueSite) -> None:
    limits = msgspec.structs.replace(DEFAULT_LIMITS, connect_timeout_s=1.0)
    async with shoal.connect(site.url, limits=limits) as bus, shoal.connect(site.url, limits=limits) as maker:
        async with site.leader():
            await bus.queue("known").put(b"1")
            await maker.queue("copied").put(b"1")
        site.redis.kill()
        try:
            await bus.queue("known").put(b"2")  # its entry is remembered
            await bus.queue("copied").put(b"2")  # its entry is read from the store
            assert (await bus.queue("copied").stats()).messages == 2
            with pytest.raises(QueueUnavailableError, match=r"does not tell where queue unknown is.*shoal status"):
                await bus.queue("unknown").stats()
            with pytest.raises(QueueUnavailableError, match="shoal status"):
                await bus.queues()
        finally:
            await asyncio.to_thread(site.redis.restart)


async def test_t2_1_a_publisher_that_adds_a_third_queue_sees_it_in_the_list(site: QueueSite) -> None:
    """Table 2, row 1: the list of queues shows two, then three."""
    async with site.leader(), shoal.connect(site.url) as publisher, shoal.connect(site.url) as subscriber:
        before = await subscriber.queues()
        for name in ("paper-1", "paper-2"):
            await publisher.queue(name).put(b"1")
        listed = [name for name in await subscriber.queues() if name not in before]
        assert listed == ["paper-1", "paper-2"]
        await publisher.queue("paper-3").put(b"1")
        listed = [name for name in await subscriber.queues() if name not in before]
        assert listed == ["paper-1", "paper-2", "paper-3"]
