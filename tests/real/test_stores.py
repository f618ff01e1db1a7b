"""Stores of a real cluster: queues are created on request, survive kill -9 of everything, and outlive the cluster."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import hiredis
import pytest
from tests.support.cluster_queues import ClusterQueues
from tests.support.cluster_thread import ClusterThread
from tests.support.command import run_command, run_json_command

from shoal.cluster.acl import ADMIN, CLIENT
from shoal.cluster.cluster_report import ClusterReport, read_report
from shoal.cluster.local import LocalCluster
from shoal.cluster.parts import answers
from shoal.cluster.process import is_running, wait_until
from shoal.cluster.state import ClusterState, StateDir, find_cluster
from shoal.errors import ConnectError, QueueNotFoundError
from shoal.plan.keys import report_key
from shoal.plan.kinds import QUEUE, STORE
from shoal.plan.queue_report import decode_queue_report
from shoal.plan.queue_request import ConfigureQueue, CreateQueue
from shoal.plan.queue_settings import QueueSettings
from shoal.queues.script_loader import load_scripts
from shoal.runtime import PRODUCTION
from shoal.wire.connection import Connection

WAIT_S = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClusterThread]:
    with ClusterThread(servers=1, stores=1) as started:
        yield started


@pytest.fixture
async def queues(cluster: ClusterThread) -> AsyncIterator[ClusterQueues]:
    async with ClusterQueues(state_of(cluster).url_for(ADMIN)) as opened:
        yield opened


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


async def waiting(queues: ClusterQueues, name: str) -> int:
    async with queues.queue(name) as queue:
        return (await queue.stats()).messages


async def put_five(queues: ClusterQueues, name: str) -> None:
    async with queues.queue(name) as queue:
        for number in range(5):
            await queue.put(b"%d" % number, key="k")


async def has_scripts(state: ClusterState) -> bool:
    """Whether the store runs a script that only the agent can have loaded: there is no client."""
    try:
        await reply_of(state, "EVALSHA", load_scripts().look.sha, "1", "__shoal:q:no-such-queue:", "stats")
    except hiredis.ReplyError as error:
        return str(error).startswith("NOQUEUE")
    except ConnectError:
        return False
    return False


async def reply_of(state: ClusterState, *command: str | bytes) -> Any:
    """The reply of the first store."""
    to = PRODUCTION.with_tls(state.tls_for(ADMIN)).address_book.reach(state.store_addresses()[0])
    password = state.passwords[ADMIN]
    async with Connection(to.host, to.port, username=ADMIN, password=password, name="test", dial=to.dial) as connection:
        return (await connection.ask(command))[0]


async def report_of(state: ClusterState) -> ClusterReport:
    return await read_report(
        state.address_for(ADMIN), None, state.server_addresses(), state.store_addresses(), interval_s=0.1, timeout_s=5.0
    )


async def test_a_queue_is_created_on_request_and_reported(cluster: ClusterThread, queues: ClusterQueues) -> None:
    entry = await queues.create("made", shards=4)
    assert [store.id for store in entry.stores] == ["q1"]
    stored = await queues.coordinator.get(report_key("q1", QUEUE))
    assert stored is not None
    assert decode_queue_report(stored.value).queues[b"made"].newness == entry.newness
    await put_five(queues, "made")
    assert await waiting(queues, "made") == 5
    report = await report_of(state_of(cluster))
    assert report.ready
    assert [(store.id, store.lease) for store in report.stores] == [("q1", True)]
    assert report.stores[0].queues == report.queues >= 1


async def test_other_limits_reach_the_store(queues: ClusterQueues) -> None:
    await queues.create("limits", shards=2, messages_max=10)
    await queues.request(ConfigureQueue(b"limits", QueueSettings(shards=2, messages_max=3), "test"))
    await queues.ended("limits")
    async with queues.queue("limits") as queue:
        assert (await queue.stats()).settings.messages_max == 3


async def test_a_dropped_queue_leaves_nothing_and_comes_back_empty_with_a_greater_version(
    cluster: ClusterThread, queues: ClusterQueues
) -> None:
    before = await queues.create("again")
    await put_five(queues, "again")
    await queues.drop("again")
    with pytest.raises(QueueNotFoundError):
        await waiting(queues, "again")
    state = state_of(cluster)
    for name in ("conf", "state", "entry", "0:ready"):
        assert await reply_of(state, "EXISTS", f"__shoal:q:again:{name}") == 0
    after = await queues.create("again")
    assert after.version > before.version
    assert after.newness > before.newness
    assert await waiting(queues, "again") == 0


async def test_a_kill_of_the_store_and_of_its_agent_loses_nothing_and_scripts_are_loaded_again(
    cluster: ClusterThread, queues: ClusterQueues
) -> None:
    await queues.create("killed")
    await put_five(queues, "killed")

    async def kill(running: LocalCluster) -> None:
        for name in ("q1", "agent-q1"):
            await running.kill(name)

    state = state_of(cluster)
    await do(cluster, kill)
    await until(lambda: has_scripts(state))
    assert await waiting(queues, "killed") == 5
    await do(cluster, lambda running: running.kill("q1"))  # the agent lives on
    await until(lambda: has_scripts(state))
    assert await waiting(queues, "killed") == 5
    await queues.create("killed-later")
    await put_five(queues, "killed-later")


async def test_a_store_that_restarts_while_the_coordinator_is_away_gets_its_scripts(
    cluster: ClusterThread, queues: ClusterQueues
) -> None:
    await queues.create("away")
    await put_five(queues, "away")
    state = state_of(cluster)

    async def take_away(running: LocalCluster) -> None:
        running.hold("coordinator")
        await running.kill("coordinator")
        await running.kill("q1")

    async def bring_back(running: LocalCluster) -> None:
        await running.restart("coordinator")
        running.release("coordinator")

    await do(cluster, take_away)
    try:
        await until(lambda: has_scripts(state))
    finally:
        await do(cluster, bring_back)
    assert await waiting(queues, "away") == 5
    await queues.create("away-later")


async def test_queues_of_a_store_that_is_away_are_named_and_stay_there(
    cluster: ClusterThread, queues: ClusterQueues
) -> None:
    entry = await queues.create("stays")
    await put_five(queues, "stays")
    state = state_of(cluster)

    async def stop(running: LocalCluster) -> None:
        running.hold("q1")
        await running.kill("q1")

    async def start(running: LocalCluster) -> None:
        await running.restart("q1")
        running.release("q1")

    await do(cluster, stop)
    try:

        async def is_named() -> bool:
            return "stays" in (await report_of(state)).queues_unavailable

        await until(is_named)
        report = await report_of(state)
        assert "q1 is not alive" in report.queues_unavailable["stays"]
        assert "q1" in report.silent
        assert not report.ready
        await queues.request(CreateQueue(b"waits", QueueSettings(), "test"))
    finally:
        await do(cluster, start)
    await queues.ended("waits")
    assert await queues.create("stays") == entry
    assert await waiting(queues, "stays") == 5


async def test_new_passwords_reach_stores_and_old_ones_end_there(cluster: ClusterThread, queues: ClusterQueues) -> None:
    state = state_of(cluster)
    (store,) = state.stores
    old, tls = state.passwords[CLIENT], state.tls_for(CLIENT)
    await do(cluster, lambda running: running.rotate(CLIENT))
    new = state_of(cluster).passwords[CLIENT]
    assert [await answers(store.host, store.port, CLIENT, one, tls) for one in (old, new)] == [True, True]
    await do(cluster, lambda running: running.revoke(CLIENT))
    for _ in range(2):
        assert [await answers(store.host, store.port, CLIENT, one, tls) for one in (old, new)] == [False, True]
        await do(cluster, lambda running: running.restart("q1"))


async def test_a_store_that_is_added_takes_the_next_queue_and_can_be_removed(
    cluster: ClusterThread, queues: ClusterQueues
) -> None:
    await queues.create("first")
    await do(cluster, lambda running: running.add_hosts(STORE, 1))

    async def is_there() -> bool:
        return "q2" in await queues.coordinator.members("stores")

    await until(is_there)
    entry = await queues.create("second")
    assert [store.id for store in entry.stores] == ["q2"]
    await put_five(queues, "second")
    await queues.drop("second")
    await do(cluster, lambda running: running.remove_host("q2"))
    assert [store.id for store in state_of(cluster).stores] == ["q1"]


async def test_stores_of_a_cluster_with_tls_use_it_and_get_new_certificates() -> None:
    async with LocalCluster(1, stores=1, tls=True) as cluster, ClusterQueues(cluster.url_for(ADMIN)) as queues:
        entry = await queues.create("secret")
        assert entry.stores[0].tls
        await put_five(queues, "secret")
        assert await cluster.renew_certificates() == ()
        assert await waiting(queues, "secret") == 5


async def test_the_first_queue_gets_a_store_and_what_was_put_outlives_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = StateDir(tmp_path / "state")
    monkeypatch.setenv("SHOAL_STATE_DIR", str(directory.root))
    up = ("up", "--servers", "1", "--balancers", "1")

    async def five_are_there() -> bool:
        async with ClusterQueues(find_cluster(directory.root).url_for(ADMIN)) as queues:
            return await waiting(queues, "orders") == 5

    try:
        status, facts = await run_json_command(capsys, *up)
        assert (status, facts["stores"]) == (0, [])
        before = find_cluster(directory.root)
        async with ClusterQueues(before.url_for(ADMIN)) as queues:
            await queues.create("orders")
            await put_five(queues, "orders")
        status, facts = await run_json_command(capsys, "status")
        assert status == 0
        assert [(store["id"], store["queues"], store["lease"]) for store in facts["stores"]] == [("q1", 1, True)]

        status, facts = await run_json_command(capsys, "down")
        assert (status, facts["kept"]) == (0, True)
        assert directory.owner() is None
        assert not any(is_running(process) for process in before.processes())
        assert "is stopped; its stores are kept" in (await run_command(capsys, "status"))[2]
        assert "are kept" in (await run_command(capsys, "down"))[2]

        status, facts = await run_json_command(capsys, *up)
        assert (status, facts["resumed"], [store["id"] for store in facts["stores"]]) == (0, True, ["q1"])
        after = find_cluster(directory.root)
        assert (after.cluster, after.passwords, after.public_key) == (
            before.cluster,
            before.passwords,
            before.public_key,
        )
        assert after.coordinator.port == before.coordinator.port
        assert await five_are_there()

        os.kill(after.supervisor.pid, signal.SIGKILL)
        assert wait_until(lambda: not is_running(after.supervisor), WAIT_S)
        status, facts = await run_json_command(capsys, "down")
        assert facts["kept"]
        assert (await run_json_command(capsys, *up))[0] == 0
        assert await five_are_there()
    finally:
        status, facts = await run_json_command(capsys, "down", "--purge")
    assert (status, facts["kept"]) == (0, False)
    assert not directory.root.exists()
