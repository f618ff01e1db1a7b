"""Queues in `shoal status` and on the metrics page of a store's agent, of a real cluster; also with a frozen store."""

from __future__ import annotations

import asyncio
import os
import signal
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from tests.pipeline.source.test_dead_letters import bury_in
from tests.support.cluster_queues import ClusterQueues
from tests.support.command import run_command, run_json_command

from shoal.cluster.acl import ADMIN, READER
from shoal.cluster.local import LocalCluster
from shoal.cluster.metrics_ports import MetricsPorts
from shoal.cluster.servers import free_port
from shoal.cluster.state import ClusterState, StateDir, find_cluster
from shoal.queues.agent.metrics import QUEUES_MAX
from shoal.queues.queue import Queue

WAIT_S = 60.0
STATUS_S = 2.0
Capture = pytest.CaptureFixture[str]


async def fill(queue: Queue) -> None:
    """Puts five messages of five keys, after one that dies."""
    await bury_in(queue, 1)
    for number in range(5):
        await queue.put(b"%d" % number, key=f"k{number}")


async def level_when(capsys: Capture, wanted: dict[str, Any], *words: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The facts of `status` and the levels of the queue `orders`, when these are as wanted."""
    async with asyncio.timeout(WAIT_S):
        while True:
            _, facts = await run_json_command(capsys, "status", *words)
            (level,) = (one for one in facts["queue_levels"] if one["queue"] == "orders")
            if wanted.items() <= level.items():
                return facts, level


async def test_status_shows_queues_also_when_a_store_is_frozen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("SHOAL_STATE_DIR", str(tmp_path / "state"))
    try:
        status, _ = await run_json_command(capsys, "up", "--servers", "1", "--balancers", "1", "--stores", "1")
        assert status == 0
        await check_status(find_cluster(StateDir(tmp_path / "state").root), capsys)
    finally:
        await run_json_command(capsys, "down", "--purge")


async def check_status(state: ClusterState, capsys: Capture) -> None:
    async with ClusterQueues(state.url_for(ADMIN)) as queues:
        await queues.create("orders", shards=4)
        async with queues.queue("orders") as queue, queues.queue("orders") as other:
            await fill(queue)
            async with other.take(max_in_flight=2) as jobs:
                stream = aiter(jobs)
                held = [await anext(stream) for _ in range(2)]
                wanted = {"messages": 5, "consumers": 1, "dead": 1, "halted": 0, "stores": {"q1": "ok"}}
                facts, level = await level_when(capsys, wanted)
                assert facts["ready"]
                assert level["held"] >= len(held)
                assert 0 < level["oldest_s"] < WAIT_S
                for role in (ADMIN, READER):
                    await level_when(capsys, wanted, "--url", state.url_for(role))
                _, text, _ = await run_command(capsys, "status")
                assert max(len(line) for line in text.splitlines() if "state in" not in line) <= 80
                (row,) = (line.split() for line in text.splitlines() if line.startswith("orders "))
                assert (row[:3], row[-3:]) == (["orders", "q1", "5"], ["1", "1", "0"])
                for job in held:
                    await job.done()
        store = state.stores[0].process
        assert store is not None
        os.kill(store.pid, signal.SIGSTOP)
        try:
            for words in ((), ("--url", state.url_for(ADMIN))):
                seconds = []
                for _ in range(3):  # the machine may be busy
                    began = time.monotonic()
                    status, facts = await run_json_command(capsys, "status", *words)
                    seconds.append(time.monotonic() - began)
                (level,) = facts["queue_levels"]
                assert (status, facts["silent"], level["messages"]) == (1, ["q1"], None)
                assert level["stores"] == {"q1": "does not answer within 1 s"}
                assert min(seconds) < STATUS_S
            _, text, _ = await run_command(capsys, "status")
            assert "\nfigures without store q1: does not answer within 1 s\n" in text
        finally:
            os.kill(store.pid, signal.SIGCONT)


def scrape(ports: MetricsPorts) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{ports.of('agent-q1')}/metrics", timeout=10) as page:
        lines = page.read().decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


async def test_the_metrics_page_of_a_store_has_its_queues_with_a_bounded_number_of_labels() -> None:
    ports = MetricsPorts(free_port(100))
    async with LocalCluster(1, stores=1, metrics=ports) as cluster, ClusterQueues(cluster.url_for(ADMIN)) as queues:
        await queues.create("orders", shards=2)
        more = [f"more.{number}" for number in range(QUEUES_MAX + 5)]
        await asyncio.gather(*(queues.create(name, shards=1) for name in more))
        async with queues.queue("orders") as queue, queues.queue("orders") as other:
            await fill(queue)
            async with other.take(max_in_flight=2) as jobs:
                stream = aiter(jobs)
                await anext(stream)
                wanted = {"messages": 5, "dead_letters": 1, "consumers": 1, "halted_keys": 0, "puts_total": 6}
                async with asyncio.timeout(WAIT_S):
                    while True:
                        found = await asyncio.to_thread(scrape, ports)
                        figures = {name: found.get(f'shoal_queue_{name}{{queue="orders"}}') for name in wanted}
                        if figures == wanted and found["shoal_store_queues"] == len(more) + 1:
                            break
                        await asyncio.sleep(0.2)
        assert found['shoal_queue_held_keys{queue="orders"}'] >= 1
        assert 0 < found['shoal_queue_oldest_seconds{queue="orders"}'] < WAIT_S
        labels = {name.partition("{")[2] for name in found if name.startswith("shoal_queue_")}
        assert len(labels) == QUEUES_MAX + 1
        assert 'queue="other"}' in labels
