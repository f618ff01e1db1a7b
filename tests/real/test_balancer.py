"""Balancers on a real cluster: servers are added and removed with the load, and nothing is lost when the leader
changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.connections import connect_coordinator

import shoal
from shoal import cli
from shoal.cluster.acl import ADMIN
from shoal.cluster.local import LocalCluster
from shoal.coordination.redis import RedisCoordinator
from shoal.leader.audit_log import AuditLog
from shoal.limits import Limits
from shoal.load.window import LoadWindow
from shoal.load_kinds import KINDS
from shoal.plan.keys import KEEPER_LEASE, POOL_PREFIX, RING_KEY, Mark, entry_key
from shoal.plan.ring import Ring
from shoal.plan.signature import Verifier

CHANNELS = [f"tile.{number}" for number in range(8)]
PAYLOAD = b"x" * 400
WAIT_S = 90.0

LIMITS = Limits(linger_s=0.5, server_lease_s=1.5, heartbeat_interval_s=0.25)
QUICK = {
    "SHOAL_LIMITS_SERVER_LEASE_S": "1.5",
    "SHOAL_LIMITS_HEARTBEAT_INTERVAL_S": "0.25",
    "SHOAL_BALANCE_WINDOW_S": "1",
    "SHOAL_BALANCE_WAIT_S": "1",
    "SHOAL_BALANCE_SETTLE_S": "2",
    "SHOAL_BALANCE_HORIZON_S": "2",
    "SHOAL_BALANCER_EMPTY_S": "1",
}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in QUICK.items():
        monkeypatch.setenv(name, value)


class Watch:
    """Return the keys in the coordinator of a cluster."""

    def __init__(self, cluster: LocalCluster, coordinator: RedisCoordinator) -> None:
        self.cluster = cluster
        self.coordinator = coordinator
        self.verifier = Verifier(bytes.fromhex(cluster.state.public_key))

    async def ring(self) -> Ring:
        stored = await self.coordinator.get(RING_KEY)
        assert stored is not None
        return self.verifier.ring(stored.value)

    async def leader(self) -> str | None:
        """Return the name of the leading process."""
        lease = await self.coordinator.lease_of(KEEPER_LEASE)
        pids = {child.pid: child.name for child in self.cluster.status().processes if child.kind == "balancer"}
        return pids.get(int(lease.holder.split("-")[1])) if lease else None

    async def marks(self) -> dict[str, str]:
        stored = await self.coordinator.list(POOL_PREFIX)
        return {key.removeprefix(POOL_PREFIX): kept.value.decode() for key, kept in stored.items()}

    async def servers_of(self, channel: str) -> tuple[str, ...]:
        stored = await self.coordinator.get(entry_key(channel.encode()))
        return self.verifier.entry(stored.value).placement.servers if stored else ()


@contextlib.asynccontextmanager
async def watching(cluster: LocalCluster) -> AsyncIterator[Watch]:
    async with await connect_coordinator(cluster.url_for(ADMIN)) as coordinator:
        yield Watch(cluster, coordinator)


async def until(condition: Any) -> Any:
    """Return the first true value of an awaitable condition."""
    async with asyncio.timeout(WAIT_S):
        while True:
            if value := await condition():
                return value
            await asyncio.sleep(0.1)


class Crowd:
    """Publishes on all channels, and counts arrivals."""

    def __init__(self, publisher: shoal.Bus, subscriber: shoal.Bus) -> None:
        self._publisher = publisher
        self._subscriber = subscriber
        self.sent: Counter[str] = Counter()
        self.heard: dict[str, list[bytes]] = {channel: [] for channel in CHANNELS}
        self.gaps = 0
        self.tasks: list[asyncio.Task[None]] = []

    def start_talking(self, rate: float) -> asyncio.Task[None]:
        task = asyncio.create_task(self.talk(rate))
        self.tasks.append(task)
        return task

    async def listen(self, channel: str, ready: asyncio.Event) -> None:
        async with self._subscriber.subscribe(channel) as messages:
            ready.set()
            async for message in messages:
                if not isinstance(message, shoal.Message):
                    self.gaps += 1
                else:
                    self.heard[channel].append(message.payload)

    async def talk(self, rate: float) -> None:
        while True:
            for channel in CHANNELS:
                await self._publisher.publish(channel, b"%d " % self.sent[channel] + PAYLOAD)
                self.sent[channel] += 1
            await asyncio.sleep(1 / rate)

    async def complete(self) -> bool:
        return all(len(self.heard[channel]) >= self.sent[channel] for channel in CHANNELS)


@contextlib.asynccontextmanager
async def crowd(cluster: LocalCluster) -> AsyncIterator[Crowd]:
    async with (
        shoal.connect(cluster.url, limits=LIMITS) as publisher,
        shoal.connect(cluster.url, limits=LIMITS) as subscriber,
    ):
        made = Crowd(publisher, subscriber)
        ready = [asyncio.Event() for _ in CHANNELS]
        tasks = [asyncio.create_task(made.listen(*pair)) for pair in zip(CHANNELS, ready, strict=True)]
        await asyncio.gather(*(event.wait() for event in ready))
        made.tasks = tasks
        try:
            yield made
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def test_servers_follow_the_load_and_a_standby_goes_on() -> None:
    """Load rises, servers are added and channels move; the leader dies; load falls, and servers are removed."""
    async with (
        LocalCluster(2, limits=LIMITS, balancers=2, max_out_bytes_per_s=32_000.0, servers_max=3) as cluster,
        watching(cluster) as watch,
        crowd(cluster) as people,
    ):
        talking = people.start_talking(20.0)

        seen: set[str] = set()

        async def grown() -> bool:
            seen.update((await watch.ring()).ids)
            return len(seen) > 2

        async def moved() -> bool:
            placed = [await watch.servers_of(channel) for channel in CHANNELS]
            return any({*servers} - {"s1", "s2"} for servers in placed)

        await until(grown)
        first = await until(watch.leader)
        cluster.hold(first)
        await cluster.kill(first)
        await until(moved)
        second = await until(watch.leader)
        assert {first, second} == {"balancer-1", "balancer-2"}
        talking.cancel()

        async def shrunk() -> bool:
            left = {server.id for server in cluster.servers}
            seen.update(left)
            return len(left) == 2 and left == {*(await watch.ring()).ids}

        await until(shrunk)
        assert cluster.fleet.new_ids(1)[0] not in seen
        await until(people.complete)
        for channel in CHANNELS:
            heard = [int(payload.split()[0]) for payload in people.heard[channel]]
            assert heard == list(range(people.sent[channel]))
        assert people.gaps == 0


async def shell(cluster: LocalCluster, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    """Run a command with --json; return its exit status and output."""
    capsys.readouterr()
    where = ("--state-dir", str(cluster.directory.root))
    status = await asyncio.to_thread(cli.main, (*words, "--json", *where))
    said = capsys.readouterr()
    return status, json.loads(said.out) if said.out else said.err


async def test_propose_apply_explain_and_replay(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    async with (
        LocalCluster(2, limits=LIMITS, balancers=1, auto=False, max_out_bytes_per_s=30_000.0) as cluster,
        watching(cluster) as watch,
        crowd(cluster) as people,
    ):
        people.start_talking(15.0)
        wanted = tmp_path / "next.plan"

        async def proposed() -> Any:
            status, facts = await shell(cluster, capsys, "plan", "propose", "--out", str(wanted))
            assert status == 0
            return facts if facts["moves"] or facts["servers"] else None

        facts = await until(proposed)
        assert len((await watch.ring()).ids) == 2
        status, applied = await shell(cluster, capsys, "plan", "apply", str(wanted))
        assert (status, applied["digest"]) == (0, facts["digest"])
        for move in facts["moves"]:

            async def there(move: Any = move) -> bool:
                return bool([*await watch.servers_of(move["channel"])] == move["after"]["servers"])

            await until(there)
        await cluster.restart("balancer-1")  # explanations outlive the leader that decided
        status, explained = await shell(cluster, capsys, "plan", "explain")
        assert {view["channel"] for view in explained["channels"]} == {move["channel"] for move in facts["moves"]}
        for view in explained["channels"]:
            assert (view["source"], view["digest"]) == ("policy", facts["digest"])
            assert view["figures"]
        status, explained = await shell(cluster, capsys, "plan", "explain", "unheard.of")
        assert explained["channels"][0]["source"] == "ring"

        async def applied_again() -> Any:
            status, again = await shell(cluster, capsys, "plan", "apply", facts["digest"][:12])
            assert status == 1
            return again if "is still under way" not in again else None

        assert "the plan has changed since" in await until(applied_again)
        status, audit = await shell(cluster, capsys, "plan", "audit")
        decision = next(one for one in audit["decisions"] if one["digest"] == facts["digest"])
        assert "applied" in {outcome["state"] for outcome in decision["outcomes"]}
        for record in (facts["digest"], decision["file"]):
            status, replayed = await shell(cluster, capsys, "plan", "replay", record)
            assert (status, replayed["same"], replayed["replayed"]) == (0, True, facts["digest"])
        recorded = AuditLog(cluster.directory.audit).find(facts["digest"])
        assert LoadWindow.from_bytes(recorded.window, KINDS).end_s == facts["window_end_s"]
        for name in CHANNELS:
            status, pinned = await shell(cluster, capsys, "plan", "pin", name)
            assert (status, pinned["pinned"]) == (0, True)
        status, facts = await shell(cluster, capsys, "plan", "propose")
        assert (facts["moves"], sorted(facts["pinned"])) == ([], sorted(CHANNELS))


async def test_a_dead_server_is_noticed_and_comes_back_as_a_home(capsys: pytest.CaptureFixture[str]) -> None:
    """A channel that was pinned there fails over. New channels land on the server again: none of 30 did."""
    async with (
        LocalCluster(2, limits=LIMITS, balancers=1, servers_max=2) as cluster,
        watching(cluster) as watch,
        crowd(cluster) as people,
    ):
        people.start_talking(10.0)
        ring = await watch.ring()
        channel = next(name for name in CHANNELS if ring.home(name.encode()) != "s2")
        where = ("--state-dir", str(cluster.directory.root))
        assert await asyncio.to_thread(cli.main, ("plan", "move", channel, "--to", "s2", *where)) == 0
        for name in ("agent-s2", "s2"):
            cluster.hold(name)
            await cluster.kill(name)

        async def elsewhere() -> bool:
            return "s2" not in await watch.servers_of(channel)

        async def back() -> bool:
            return "s2" in (await watch.ring()).homes

        async def may_return() -> bool:
            return await watch.marks() == {"s2": Mark.RETURNED}

        await until(elsewhere)
        assert "s2" not in (await watch.ring()).ids
        await until(may_return)
        _, report = await shell(cluster, capsys, "status")
        assert {server["id"]: server["state"] for server in report["servers"]} == {"s1": "home", "s2": "away"}
        for name in ("s2", "agent-s2"):
            cluster.release(name)
        await until(back)
        assert await watch.marks() == {}
        ring = await watch.ring()
        assert {ring.home(b"new.%d" % number) for number in range(30)} == {"s1", "s2"}
        _, shown = await shell(cluster, capsys, "plan", "show", channel)
        assert [(pin["servers"], pin["failed_over"]) for pin in shown["pins"]] == [(["s2"], True)]
