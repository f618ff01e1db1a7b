"""Clients open, publish and subscribe while the coordinator is away: from a server, or with the cached plan."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

import shoal
from shoal.cluster.cluster_timeouts import Timing
from shoal.cluster.local import COORDINATOR, LocalCluster
from shoal.cluster.parts import agent_name, shoal_agent
from shoal.errors import CoordinatorUnavailableError, ForgedEntryError, NotConfirmedError, UnreachableError
from shoal.limits import Limits
from shoal.message import Message
from shoal.plan.ring import ServerAddress

WAIT_S = 60.0
LEASE_S = 1.5
LIMITS = Limits(server_lease_s=LEASE_S, connect_timeout_s=2.0, unreachable_s=0.5)


def agent(server: ServerAddress) -> Sequence[str]:
    return ["env", f"SHOAL_LIMITS_SERVER_LEASE_S={LEASE_S}", *shoal_agent(server)]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    timing = Timing(restart_pause_s_max=0.2)
    async with LocalCluster(3, tmp_path / "state", limits=LIMITS, timing=timing, agent_command=agent) as started:
        async with shoal.connect(started.url, limits=LIMITS, cache_dir=tmp_path / "first") as bus:
            await (await bus.psubscribe("*").open()).aclose()  # every agent has read the ring
        yield started


async def end_coordinator(cluster: LocalCluster) -> None:
    cluster.hold(COORDINATOR)
    await cluster.kill(COORDINATOR)


def url_of(cluster: LocalCluster, *servers: str, query: str = "") -> str:
    """The address of the cluster, with the coordinator first and these servers behind it."""
    state = cluster.state
    places = [
        f"{one.host}:{one.port}" for one in (state.coordinator, *state.servers) if one.id in (*servers, "coordinator")
    ]
    tls = state.tls_for("client")
    scheme = "shoal" if tls is None else "shoals"
    fields = [field for field in (query.removeprefix("?"), tls.query() if tls else "") if field]
    found = f"?{'&'.join(fields)}" if fields else ""
    return f"{scheme}://client:{state.passwords['client']}@{','.join(places)}{found}"


async def exchange(bus: shoal.Bus) -> None:
    """A message makes its way through the cluster."""
    async with asyncio.timeout(WAIT_S), bus.subscribe("open") as messages:
        await bus.publish("open", b"x", confirm=True)
        while not isinstance(item := await messages.get(), Message):
            pass
        assert item.payload == b"x"


async def test_clients_open_publish_and_subscribe_without_the_coordinator(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    async with shoal.connect(cluster.url, limits=LIMITS, cache_dir=tmp_path / "cache") as bus:
        await exchange(bus)
    await end_coordinator(cluster)
    await open_with_the_name_of_a_server(cluster, tmp_path)
    await open_with_the_cached_plan(cluster, tmp_path / "cache")
    await open_with_a_pinned_key(cluster, tmp_path / "pinned")
    await run_commands_of_the_local_cluster(cluster, tmp_path)


async def open_with_the_name_of_a_server(cluster: LocalCluster, tmp_path: Path) -> None:
    with pytest.raises(CoordinatorUnavailableError):
        await shoal.connect(cluster.url, limits=LIMITS, cache_dir=tmp_path / "none").open()
    async with shoal.connect(url_of(cluster, "s2"), limits=LIMITS, cache_dir=tmp_path / "empty") as bus:
        assert {*bus.ring.ids} == {"s1", "s2", "s3"}  # in the order in which they joined
        await exchange(bus)


async def open_with_the_cached_plan(cluster: LocalCluster, cache: Path) -> None:
    async with shoal.connect(cluster.url, limits=LIMITS, cache_dir=cache) as bus:
        await exchange(bus)


async def open_with_a_pinned_key(cluster: LocalCluster, cache: Path) -> None:
    """No other key is trusted."""
    right, wrong = f"?cluster_key={cluster.state.public_key}", f"?cluster_key={'00' * 32}"
    with pytest.raises(ForgedEntryError, match="another key"):
        await shoal.connect(url_of(cluster, "s1", query=wrong), limits=LIMITS, cache_dir=cache).open()
    async with shoal.connect(url_of(cluster, "s1", query=right), limits=LIMITS, cache_dir=cache) as bus:
        await exchange(bus)


async def run_commands_of_the_local_cluster(cluster: LocalCluster, tmp_path: Path) -> None:
    """`shoal sub` and `shoal pub` find the servers in the state directory."""
    environment = dict(os.environ, SHOAL_STATE_DIR=str(cluster.directory.root), XDG_CACHE_HOME=str(tmp_path / "xdg"))
    environment.pop("SHOAL_URL", None)
    pipe = asyncio.subprocess.PIPE
    run = asyncio.create_subprocess_exec
    words = [sys.executable, "-m", "shoal.cli"]
    sub = await run(*words, "sub", "c", "--count", "1", "--seconds", "50", stdout=pipe, stderr=pipe, env=environment)
    try:
        assert sub.stderr is not None
        async with asyncio.timeout(WAIT_S):
            while b"subscribed to" not in await sub.stderr.readline():
                assert sub.returncode is None
            pub = await run(*words, "pub", "c", "--confirm", stdin=pipe, stdout=pipe, stderr=pipe, env=environment)
            out, err = await pub.communicate(b"north\n")
            assert pub.returncode == 0, err
            out, _ = await sub.communicate()
        assert out == b"north\n"
    finally:
        if sub.returncode is None:
            sub.kill()


async def test_a_server_that_dies_meanwhile_stalls_its_channels_until_the_coordinator_is_back_and_loses_nothing(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """Only the leader can take it out of the ring. Publishers keep their messages, and calls tell."""
    async with shoal.connect(cluster.url, limits=LIMITS, cache_dir=tmp_path / "cache") as bus:
        home = bus.ring.home(b"stalled")
        other = next(name for name in (b"a", b"b", b"c", b"d", b"e", b"f", b"g") if bus.ring.home(name) != home)
        async with bus.subscribe("stalled") as messages:
            await end_coordinator(cluster)
            for name in (agent_name(home), home):
                cluster.hold(name)
                await cluster.kill(name)
            async with asyncio.timeout(WAIT_S):
                with pytest.raises(NotConfirmedError, match=home):
                    await bus.publish("stalled", b"kept", confirm=True)
                with pytest.raises(UnreachableError, match=home):
                    await messages.get()
                await bus.publish(other, b"flows", confirm=True)
                cluster.release(COORDINATOR)
                await bus.drain(timeout=WAIT_S)
                while True:
                    try:
                        if isinstance(item := await messages.get(), Message):
                            break
                    except UnreachableError:
                        continue
            assert item.payload == b"kept"
            assert home not in bus.ring.ids
