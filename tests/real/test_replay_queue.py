"""`shoal pipeline replay --queue` on a real cluster: the messages of a recorded channel come into a queue once and in
order, although the replay is killed in the middle."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from tests.support.cluster_queues import ClusterQueues
from tests.support.cluster_thread import ClusterThread
from tests.support.command import PROCESS_S, run_json_process, start_process

import shoal
from shoal.cluster.acl import ADMIN, PIPELINE
from shoal.cluster.local import LocalCluster
from shoal.coordination.link import parse_address
from shoal.history.server_reader import Login
from shoal.pipeline.archive.job import ArchiveJob, run_here
from shoal.pipeline.replay import CHECKPOINT_FILE
from shoal.plan.ring import ServerAddress

MESSAGES = 800
ROOM = 300
"""So many messages fit into the queue at once."""
KEYS = 7


async def test_a_killed_replay_fills_the_queue_once_and_in_order(
    channel: str, bus: shoal.Bus, shared_cluster: ClusterThread, url: str, tmp_path: Path
) -> None:
    async def address(cluster: LocalCluster) -> tuple[str, str, tuple[ServerAddress, ...]]:
        return cluster.url_for(ADMIN), cluster.url_for(PIPELINE), cluster.state.server_addresses()

    admin_url, pipeline_url, servers = await asyncio.to_thread(shared_cluster.call, address)
    for number in range(MESSAGES):
        await bus.publish(channel, b"%d" % number, attributes={"customer": f"c{number % KEYS}"})
    await bus.drain()
    login = parse_address(pipeline_url, None, None)
    with ArchiveJob(tmp_path / "archive", Login(login.username, login.password, login.tls)) as job:
        async with asyncio.timeout(PROCESS_S):
            while sum(file.rows for file in job.table.files if file.channel == channel) < MESSAGES:
                if await asyncio.to_thread(job.batch, servers, run_here) is None:
                    await asyncio.sleep(0.1)  # the recorder is behind

    async with ClusterQueues(admin_url) as queues:
        # Room for a part: the replay waits for it in the middle, where it is killed.
        await queues.create("replayed", shards=4, messages_max=ROOM)
        where = ("--archive", str(tmp_path / "archive"), "--channel", channel, "--url", url)
        target = ("--queue", "replayed", "--key", "customer", "--checkpoint", str(tmp_path / "c"))
        words = ("pipeline", "replay", "--speed", "max", *where, *target)
        async with queues.queue("replayed") as queue:
            found: dict[bytes, list[int]] = {}

            async def take(count: int) -> None:
                async with queue.take(max_in_flight=16) as jobs:
                    async for job in jobs:
                        found.setdefault(job.key, []).append(int(job.payload))
                        await job.done()
                        count -= 1
                        if not count:
                            return

            first = await start_process(*words)
            async with asyncio.timeout(PROCESS_S):
                while (await queue.stats()).messages < ROOM:  # noqa: ASYNC110  # the store sets no event
                    await asyncio.sleep(0.05)
            first.kill()
            assert await first.wait() == -9
            assert (await queue.stats()).messages == ROOM

            second = asyncio.create_task(run_json_process(*words))
            await asyncio.wait_for(take(MESSAGES), PROCESS_S)
            status, facts = await second
            assert (status, facts["queue"], facts["messages"], facts["gaps"]) == (0, "replayed", MESSAGES, 0)
            assert (await queue.stats()).messages == 0, "a message was stored twice"
            status, facts = await run_json_process(*words)
            assert (status, facts["messages_now"]) == (0, 0)
            assert (await queue.stats()).messages == 0
    assert found == {b"c%d" % key: [*range(key, MESSAGES, KEYS)] for key in range(KEYS)}
    assert json.loads((tmp_path / "c" / CHECKPOINT_FILE).read_bytes())["done"]
