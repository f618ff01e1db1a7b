"""`shoal queue move`, `abandon` and `recover` on a real cluster with two stores."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest
from tests.support.cluster_queues import ClusterQueues
from tests.support.cluster_thread import ClusterThread
from tests.support.command import run_command, run_json_command

import shoal
from shoal.cluster.acl import ADMIN
from shoal.cluster.local import LocalCluster
from shoal.cluster.state import ClusterState
from shoal.plan.queue_request import ConfigureQueue, CreateQueue
from shoal.plan.queue_settings import QueueSettings
from shoal.queues.queue import NewMessage

WAIT_S = 60.0
SHARDS = 4
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClusterThread]:
    with ClusterThread(servers=1, stores=2) as started:
        yield started


@pytest.fixture
async def queues(cluster: ClusterThread, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ClusterQueues]:
    """Both stores are alive; commands find the cluster."""
    url = state_of(cluster).url_for(ADMIN)
    monkeypatch.setenv("SHOAL_COORDINATOR", url)
    monkeypatch.setenv("SHOAL_URL", url)
    async with ClusterQueues(url) as opened:
        await until(lambda: both_live(opened))
        yield opened


async def both_live(queues: ClusterQueues) -> bool:
    return {"q1", "q2"} <= {*await queues.coordinator.members("stores")}


def state_of(cluster: ClusterThread) -> ClusterState:
    async def state(running: LocalCluster) -> ClusterState:
        return running.state

    return cluster.call(state)


async def do(cluster: ClusterThread, action: Callable[[LocalCluster], Awaitable[object]]) -> None:
    await asyncio.to_thread(cluster.call, action)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not await condition():  # noqa: ASYNC110  # nothing tells when it holds
            await asyncio.sleep(0.05)


async def make(queues: ClusterQueues, capsys: Capture, name: str, store: str) -> None:
    """A queue whose shards are all on one store."""
    entry = await queues.create(name, shards=SHARDS)
    if entry.stores[0].id != store:
        assert (await run_json_command(capsys, "queue", "move", name, "--to", store))[0] == 0


async def places(queues: ClusterQueues, name: str) -> list[str]:
    entry = await queues.find(name)
    return [entry.store_of(shard).id for shard in range(len(entry.places))]


async def test_all_shards_move_under_a_producer_and_a_consumer(
    cluster: ClusterThread, queues: ClusterQueues, capsys: Capture
) -> None:
    await make(queues, capsys, "busy", "q1")
    put: list[bytes] = []
    taken: Counter[bytes] = Counter()
    moved = asyncio.Event()

    async def produce(queue: shoal.Queue) -> None:
        while not moved.is_set() or len(put) < 200:
            body = b"%d" % len(put)
            await queue.put(body, key=f"k{len(put) % 7}")
            put.append(body)

    async def consume(queue: shoal.Queue) -> None:
        async for job in queue.take():
            taken[job.payload] += 1
            await job.done()

    async with shoal.connect(cluster.url) as producing, shoal.connect(cluster.url) as consuming:
        producer = asyncio.create_task(produce(producing.queue("busy")))
        consumer = asyncio.create_task(consume(consuming.queue("busy")))

        async def runs() -> bool:
            return len(taken) > 20

        await until(runs)
        status, facts = await run_json_command(capsys, "queue", "move", "busy", "--to", "q2")
        moved.set()
        await producer
        assert (status, facts["moved"], facts["shards"]) == (0, True, [*range(SHARDS)])
        assert facts["seconds"] > 0
        assert await places(queues, "busy") == ["q2"] * SHARDS

        async def all_taken() -> bool:
            return len(taken) == len(put)

        await until(all_taken)
        consumer.cancel()
        assert taken == Counter(put)


async def test_some_shards_move_with_progress_and_without_waiting(queues: ClusterQueues, capsys: Capture) -> None:
    await make(queues, capsys, "parts", "q1")
    status, out, err = await run_command(capsys, "queue", "move", "parts", "--to", "q2", "--shards", "0,2-3")
    assert (status, out) == (0, "parts: 3 shards on q2\n")
    assert "3 of 3 shards on q2" in err
    assert await places(queues, "parts") == ["q2", "q1", "q2", "q2"]
    status, facts = await run_json_command(capsys, "queue", "move", "parts", "--to", "q2", "--no-wait")
    assert (status, facts["moved"], facts["outcome"]) == (0, False, "requested")
    await queues.ended("parts")
    assert await places(queues, "parts") == ["q2"] * SHARDS


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("unknown", "--to", "q2"), "there is no queue unknown: see `shoal queue list`"),
        (("known", "--to", "q9"), "there is no store q9: choose one that is alive: q1, q2"),
        (("known", "--to", "q2", "--shards", "4"), "queue known has no shard 4: name shards from 0 to 3"),
        (("known", "--to", "q2", "--shards", "1-x"), "--shards '1-x' cannot be read: give numbers and ranges"),
        (("known", "--to", "q2", "--shards", "3-1"), "--shards '3-1' names no shard"),
        (("known", "--to", "q2", "--timeout", "0"), "--timeout is 0: give a number of seconds above 0"),
    ],
)
async def test_a_move_that_makes_no_sense_is_refused_in_one_line(
    queues: ClusterQueues, capsys: Capture, words: tuple[str, ...], said: str
) -> None:
    await queues.create("known", shards=SHARDS)
    status, out, err = await run_command(capsys, "queue", "move", *words)
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(f"shoal: {said}")


async def test_a_shard_that_is_too_large_stays_and_the_reason_is_told(
    cluster: ClusterThread, queues: ClusterQueues, capsys: Capture
) -> None:
    await queues.request(CreateQueue(b"large", QueueSettings(shards=1, messages_max=200_000), "test"))
    await queues.ended("large")
    (home,) = await places(queues, "large")
    other = {"q1": "q2", "q2": "q1"}[home]
    count = 110_000  # with 20 us each above move_pause_s_max
    async with shoal.connect(cluster.url) as bus:
        result = await bus.queue("large").put_many([NewMessage(b"x", "k")] * count)
        assert result.accepted == count
    status, facts = await run_json_command(capsys, "queue", "move", "large", "--to", other)
    assert (status, facts["moved"], facts["shards"]) == (1, False, [])
    assert facts["outcome"].startswith(
        f"not moved: store {other} refuses shard 0: with {count} messages it would stand"
    )
    assert "move_pause_s_max" in facts["outcome"]
    assert await places(queues, "large") == [home]
    await queues.drop("large")


async def test_the_leaders_reason_reaches_configure(queues: ClusterQueues, capsys: Capture) -> None:
    """The command checks what it can; this request reaches the leader, which refuses it."""
    from shoal.cli.queue_changes import Change

    await queues.create("fixed", shards=SHARDS)
    change = Change(queues.coordinator, "fixed", None)
    other = QueueSettings(shards=SHARDS + 1)
    await change.request("configured", lambda unit, entry: ConfigureQueue(unit, other, "test"), WAIT_S)
    assert (change.done, change.outcome) == (
        False,
        f"not configured: the queue has {SHARDS} shards, which cannot be changed",
    )
