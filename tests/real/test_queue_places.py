"""`shoal queue move`, `abandon` and `recover` on a real cluster with two stores."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

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
    monkeypatch.setenv("SHOAL_STATE_DIR", str(root_of(cluster)))
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


def root_of(cluster: ClusterThread) -> Path:
    async def root(running: LocalCluster) -> Path:
        return running.directory.root

    return cluster.call(root)


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
    from shoal.cli.queue_changes import QueueChange

    await queues.create("fixed", shards=SHARDS)
    change = QueueChange(queues.coordinator, "fixed", None)
    other = QueueSettings(shards=SHARDS + 1)
    await change.request("configured", lambda unit, entry: ConfigureQueue(unit, other, "test"), WAIT_S)
    assert (change.done, change.outcome) == (
        False,
        f"not configured: the queue has {SHARDS} shards, which cannot be changed",
    )


async def kill_for_good(cluster: ClusterThread, queues: ClusterQueues, store: str) -> None:
    """The store ends, and does not come back."""

    async def stop(running: LocalCluster) -> None:
        running.hold(store)
        await running.kill(store)

    await do(cluster, stop)

    async def is_gone() -> bool:
        return store not in await queues.coordinator.members("stores")

    await until(is_gone)


async def put_five(cluster: ClusterThread, name: str) -> None:
    async with shoal.connect(cluster.url) as bus:
        for number in range(5):
            await bus.queue(name).put(b"%d" % number, key=f"k{number}")


async def waiting(cluster: ClusterThread, name: str) -> set[bytes]:
    async with shoal.connect(cluster.url) as bus:
        return {message.payload for message in await bus.queue(name).peek(count=100)}


async def test_a_store_comes_back_from_a_copy_of_its_directory(
    cluster: ClusterThread, queues: ClusterQueues, capsys: Capture, tmp_path: Path
) -> None:
    await make(queues, capsys, "kept", "q1")
    await put_five(cluster, "kept")
    home = root_of(cluster) / "stores" / "q1"
    status, _, err = await run_command(capsys, "queue", "recover", "--dir", str(home))
    assert (status, err) == (1, "shoal: store q1 is alive: nothing needs to be recovered; see `shoal status`\n")
    status, _, err = await run_command(capsys, "queue", "abandon", "kept", "--yes")
    assert (status, err.partition(":")[2]) == (
        1,
        " the stores of queue kept are alive: q1: nothing needs to be given up\n",
    )
    await kill_for_good(cluster, queues, "q1")
    status, _, err = await run_command(capsys, "queue", "move", "kept", "--to", "q1")
    assert (status, err) == (1, "shoal: store q1 is away: start it again, or choose one that is alive: q2\n")
    copy = tmp_path / "backup"
    shutil.copytree(home, copy)
    shutil.rmtree(home)
    status, _, err = await run_command(capsys, "queue", "recover", "--dir", str(tmp_path))
    assert status == 1
    assert "is not the directory of a store of Shoal" in err
    status, _, err = await run_command(capsys, "queue", "recover", "--dir", str(copy), "--store", "q2")
    assert status == 1
    assert "is the directory of store q1, not q2" in err
    status, facts = await run_json_command(capsys, "queue", "recover", "--dir", str(copy))
    assert (status, facts["recovered"], facts["store"]) == (0, True, "q1")
    assert "kept" in facts["queues"]
    assert await waiting(cluster, "kept") == {b"%d" % number for number in range(5)}
    assert (home / "appendonlydir").exists() or (home / "appendonly.aof").exists()


async def test_shards_of_a_store_that_is_gone_are_abandoned_and_begin_again(
    cluster: ClusterThread, queues: ClusterQueues, capsys: Capture
) -> None:
    """One queue is on the store alone, one on both: the other store keeps what it has."""
    await make(queues, capsys, "alone", "q1")
    await make(queues, capsys, "spread", "q1")
    assert (await run_json_command(capsys, "queue", "move", "spread", "--to", "q2", "--shards", "0,1"))[0] == 0
    entry = await queues.find("spread")
    keys = [f"k{number}" for number in range(40)]
    for name in ("alone", "spread"):
        async with shoal.connect(cluster.url) as bus:
            await bus.queue(name).put_many([NewMessage(key, key) for key in keys])
    kept = {key.encode() for key in keys if entry.shard_of(key.encode()) in (0, 1)}
    status, _, err = await run_command(capsys, "queue", "abandon", "--store", "q1", "--yes")
    assert (status, err.startswith("shoal: store q1 is alive")) == (1, True)
    async with shoal.connect(cluster.url) as old:
        await old.queue("alone").put(b"before", key="old")
        await kill_for_good(cluster, queues, "q1")
        status, _, err = await run_command(capsys, "queue", "abandon", "alone")
        assert (status, err.endswith("repeat the command with --yes\n")) == (1, True)
        assert await places(queues, "alone") == ["q1"] * SHARDS
        status, facts = await run_json_command(capsys, "queue", "abandon", "alone", "--yes")
        assert (status, facts["abandoned"]) == (0, True), facts
        (one,) = facts["queues"]
        assert (one["shards"], one["to"], one["messages_lost"]) == ([*range(SHARDS)], "q2", None)
        status, facts = await run_json_command(capsys, "queue", "abandon", "--store", "q1", "--yes")
        assert status == 0, facts
        assert "spread" in {one["queue"] for one in facts["queues"]}
        assert await places(queues, "spread") == ["q2"] * SHARDS
        assert await waiting(cluster, "spread") == kept
        assert await waiting(cluster, "alone") == set()
        await put_five(cluster, "alone")
        assert (await queues.find("spread")).version > entry.version

        home = root_of(cluster) / "stores" / "q1"
        status, _, err = await run_command(capsys, "queue", "recover", "--dir", str(home))
        assert (status, "cannot be merged" in err) == (1, True)

        async def come_back(running: LocalCluster) -> None:
            await running.restart("q1")
            running.release("q1")

        await do(cluster, come_back)
        await until(lambda: both_live(queues))
        assert await waiting(cluster, "alone") == {b"%d" % number for number in range(5)}
        async with asyncio.timeout(WAIT_S):  # a client that knows only the old entry finds the new one
            while True:
                try:
                    await old.queue("alone").put(b"after", key="old")
                except shoal.ShoalError:
                    continue
                break
        assert b"after" in await waiting(cluster, "alone")
    status, facts = await run_json_command(capsys, "queue", "move", "alone", "--to", "q1")
    assert (status, facts["moved"]) == (0, True), facts
    assert await waiting(cluster, "alone") == {b"after", *(b"%d" % number for number in range(5))}
