"""One server with its agent process and a coordinator, all real: for tests of agents and of their readers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import redis.asyncio as redis_py
from tests.support.connections import connect_coordinator
from tests.support.redis_server import RedisServer

from shoal.coordination.interface import LeaseInfo
from shoal.coordination.redis import RedisCoordinator
from shoal.load.record import DATA_FIELD, TelemetryRecord, decode
from shoal.load_kinds import KINDS
from shoal.plan.format import VALUE
from shoal.plan.keys import FORMAT_KEY, PUBLIC_KEY, RING_KEY, agent_secret_key
from shoal.plan.ring import AgentKey, Ring, ServerAddress
from shoal.plan.signature import Signer
from shoal.wire.envelope import TELEMETRY_KEY
from shoal.wire.identity import AgentSecret

TIMEOUT_S = 60.0
POLL_S = 0.02
SOURCE = Path(__file__).parents[2] / "src"


async def until(condition: Callable[[], Any]) -> Any:
    """The first true value of a condition, plain or awaitable."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            value = condition()
            if asyncio.iscoroutine(value):
                value = await value
            if value:
                return value
            await asyncio.sleep(POLL_S)


class Site:
    """One server with its agent, and the coordinator."""

    def __init__(self, coordinator: RedisCoordinator, redis: RedisServer, server: RedisServer, id: str = "s1") -> None:
        self.coordinator = coordinator
        self.redis = redis
        self.server = server
        self.plain = redis_py.Redis(host=server.host, port=server.port)
        self.signer = Signer(Signer.generate())
        self.address = ServerAddress(id, server.host, server.port)
        self.url = f"shoal://{redis.host}:{redis.port}"
        self.agent: subprocess.Popen[bytes] | None = None

    async def write_plan(self, secret: bytes | None = None) -> None:
        """Writes the plan of the server; with a secret of the agents, messages are authenticated."""
        ring = Ring(1, (self.address,))
        if secret is not None:
            agents = AgentSecret(1, secret)
            await self.coordinator.put(agent_secret_key(1), secret)
            ring = Ring(1, (self.address,), scheme=1, agent_keys=(AgentKey(1, agents.signing, agents.exchange),))
        await self.coordinator.put(FORMAT_KEY, VALUE)
        await self.coordinator.put(PUBLIC_KEY, self.signer.public)
        await self.coordinator.put(RING_KEY, self.signer.ring(ring))

    def start_agent(self, *flags: str, **environment: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "shoal.cli", "agent", "--server", self.address.id]
        command += ["--address", f"{self.server.host}:{self.server.port}", *flags]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
        settings = {"SHOAL_URL": self.url, "PYTHONPATH": str(SOURCE), **environment}
        self.agent = subprocess.Popen(command, env={**inherited, **settings})
        return self.agent

    def end_agent(self, signum: signal.Signals = signal.SIGKILL) -> int:
        assert self.agent is not None
        self.agent.send_signal(signum)
        return self.agent.wait(TIMEOUT_S)

    async def lease(self) -> LeaseInfo | None:
        return await self.coordinator.lease_of(f"servers/{self.address.id}")

    async def records(self) -> list[TelemetryRecord]:
        entries: Any = await self.plain.xrange(TELEMETRY_KEY)
        return [decode(fields[DATA_FIELD], KINDS) for _, fields in entries]

    async def seen(self, channel: bytes, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first row of a channel in telemetry for which the condition holds."""

        async def look() -> dict[str, Any] | None:
            for record in await self.records():
                row = record.tables["channel"].rows().get(channel)
                if row is not None and condition(row):
                    return row
            return None

        row: dict[str, Any] = await until(look)
        return row

    async def totals(self, channel: bytes, *columns: str) -> dict[str, int]:
        """What all records together say of a channel."""
        found = [record.tables["channel"].rows().get(channel) for record in await self.records()]
        return {column: sum(row[column] for row in found if row is not None) for column in columns}

    def close(self) -> None:
        if self.agent is not None and self.agent.poll() is None:
            self.agent.send_signal(signal.SIGCONT)
            self.end_agent()


@contextlib.asynccontextmanager
async def agent_site(secret: bytes | None = None) -> AsyncIterator[Site]:
    """A server and a coordinator that holds a plan (see `write_plan`); nothing of it is left afterwards."""
    with RedisServer(aof=True) as redis, RedisServer() as server:
        async with await connect_coordinator(f"{redis.host}:{redis.port}") as coordinator:
            site = Site(coordinator, redis, server)
            await site.write_plan(secret)
            try:
                yield site
            finally:
                site.close()
                await site.plain.connection_pool.disconnect()


class SharedSites:
    """Sites of one coordinator whose processes run on from test to test, while each test has connections of its own.

    A test of which something is left over (a client, a channel, a record) must not meet it again: it uses names of its
    own, and the telemetry of earlier tests is dropped.
    """

    def __init__(self, redis: RedisServer, servers: Sequence[RedisServer]) -> None:
        self._redis = redis
        self._servers = servers
        self._signer = Signer(Signer.generate())
        self._agents: dict[str, subprocess.Popen[bytes] | None] = {}

    @contextlib.asynccontextmanager
    async def opened(self, *flags: str, **environment: str) -> AsyncIterator[list[Site]]:
        """The sites, with agents that hold their leases. Agents that do not run are started with these flags.

        The ring comes after the leases: an agent that finds its server in a ring without a lease is silent for as long
        as a lease lasts.
        """
        async with await connect_coordinator(f"{self._redis.host}:{self._redis.port}") as coordinator:
            sites = [
                Site(coordinator, self._redis, server, f"s{number}") for number, server in enumerate(self._servers, 1)
            ]
            try:
                await self._serve(sites, flags, environment)
                yield sites
            finally:
                for site in sites:
                    self._agents[site.address.id] = site.agent
                    await site.plain.connection_pool.disconnect()

    async def _serve(self, sites: Sequence[Site], flags: Sequence[str], environment: Mapping[str, str]) -> None:
        for site in sites:
            site.signer = self._signer
            site.agent = self._agents.get(site.address.id)
        if not self._agents:
            await sites[0].write_plan()
        for site in sites:
            if site.agent is None or site.agent.poll() is not None:
                site.start_agent(*flags, **environment)
        for site in sites:
            await until(site.lease)
            await site.plain.xtrim(TELEMETRY_KEY, maxlen=0)
        ring = Ring(2, tuple(site.address for site in sites))
        await sites[0].coordinator.put(RING_KEY, self._signer.ring(ring))

    def close(self) -> None:
        """Ends the agents."""
        for agent in self._agents.values():
            if agent is not None and agent.poll() is None:
                agent.kill()
                agent.wait(TIMEOUT_S)


@contextlib.contextmanager
def shared_sites(count: int) -> Iterator[SharedSites]:
    """Servers and a coordinator for several tests; nothing of it is left afterwards."""
    with contextlib.ExitStack() as stack:
        redis = stack.enter_context(RedisServer(aof=True))
        sites = SharedSites(redis, [stack.enter_context(RedisServer()) for _ in range(count)])
        stack.callback(sites.close)
        yield sites


@contextlib.asynccontextmanager
async def plain_subscriber(site: Site, channel: bytes) -> AsyncIterator[Any]:
    async with site.plain.pubsub() as pubsub:
        await pubsub.subscribe(channel)
        await pubsub.get_message(timeout=TIMEOUT_S)
        yield pubsub
