"""Who is killed when: agents, servers and the coordinator of a round's cluster.

Owns the faults of a round and their record. The cluster's own supervisor mends what is killed; some are held
down until the ring has left their server, and then let come back.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable
from random import Random
from time import monotonic
from typing import Final

import msgspec

from shoal.cluster.local import COORDINATOR, LocalCluster
from shoal.cluster.parts import agent_name
from shoal.errors import NotRunningError
from shoal.soak.records import Died, Log, Noted, Returned

POLL_S: Final = 0.05
FIRST_S: Final = 0.5
"""How long after the beginning of the load the first fault strikes."""
HOLD_S_MAX: Final = 12.0
"""How long a process is held down at the most, whether the ring has left its server by then or not."""
AFTER_LEFT_S: Final = (0.0, 2.0)
"""How long it stays down after the ring has left its server."""
FREEZE_FIRST: Final = 0.5
"""How often a server hangs before it dies, so that what publishers sent meanwhile dies with it."""
FREEZE_S: Final = (0.05, 0.4)
CALM_S_MAX: Final = 8.0
"""How long before the end of the load faults are over, at the most."""


class FaultPlan(msgspec.Struct, frozen=True):
    """What may be killed."""

    kill_agents: bool = False
    kill_servers: bool = False
    kill_coordinator: bool = False

    @property
    def any(self) -> bool:
        """Whether anything may."""
        return self.kill_agents or self.kill_servers or self.kill_coordinator


class _Way(msgspec.Struct, frozen=True):
    """How one kind of process is killed: how often, and of how many kills one is a hold."""

    kind: str
    every_s: tuple[float, float]
    hold_one_in: int


_AGENTS: Final = _Way("agent", (1.0, 3.0), 6)
_SERVERS: Final = _Way("server", (5.0, 8.0), 3)
_COORDINATOR: Final = _Way("coordinator", (4.0, 8.0), 0)


class Faults:
    """The faults of one round. `counts` says what has struck, and how the ring has changed."""

    def __init__(self, cluster: LocalCluster, plan: FaultPlan, seconds: float, rng: Random, log: Log) -> None:
        self.counts: Counter[str] = Counter()
        self.kills = 0
        self._cluster = cluster
        self._plan = plan
        self._random = rng
        self._log = log
        self._until = monotonic() + seconds - min(CALM_S_MAX, seconds / 4)
        self._members = self._ring()

    async def run(self) -> None:
        """Strikes until the calm before the end; everything is let go again then."""
        names = [server.id for server in self._cluster.servers]
        ways: list[Awaitable[None]] = [self._watch()]
        if self._plan.kill_agents:
            ways.append(self._strike(_AGENTS, [agent_name(name) for name in names]))
        if self._plan.kill_servers:
            ways.append(self._strike(_SERVERS, names))
        if self._plan.kill_coordinator:
            ways.append(self._strike(_COORDINATOR, [COORDINATOR]))
        await asyncio.gather(*ways)

    async def _strike(self, way: _Way, names: list[str]) -> None:
        pause_s, kills = FIRST_S, 0
        while monotonic() + pause_s < self._until:
            await asyncio.sleep(pause_s)
            name = self._random.choice(names)
            kills += 1
            hold = way.hold_one_in > 0 and kills % way.hold_one_in == 2
            if await self._kill(way, name, hold) and hold:
                await self._hold(name)
            pause_s = self._random.uniform(*way.every_s)

    async def _kill(self, way: _Way, name: str, hold: bool) -> bool:
        """Kills a process if it runs; says whether it did."""
        if hold:
            self._cluster.hold(name)
        try:
            if way.kind == "server":
                if self._random.random() < FREEZE_FIRST:
                    self._cluster.pause(name)
                    await asyncio.sleep(self._random.uniform(*FREEZE_S))
                self._log.write(Died(name, monotonic()))
            await self._cluster.kill(name)
        except NotRunningError:  # it has not come back from the last time
            self._cluster.release(name)
            return False
        self._log.write(Noted(f"killed {name}" + (", held down" if hold else ""), monotonic()))
        self.kills += 1
        self.counts[f"{way.kind} killed"] += 1
        return True

    async def _hold(self, name: str) -> None:
        """Keeps it down until the ring has left its server, and a moment longer."""
        server = name.removeprefix("agent-")
        give_up = min(monotonic() + HOLD_S_MAX, self._until)
        while monotonic() < give_up and server in self._ring():  # noqa: ASYNC110 - the cluster tells nobody
            await asyncio.sleep(POLL_S)
        if server not in self._ring():
            await asyncio.sleep(self._random.uniform(*AFTER_LEFT_S))
        self._log.write(Noted(f"released {name}", monotonic()))
        self._cluster.release(name)

    def _ring(self) -> frozenset[str]:
        return frozenset(server.id for server in self._cluster.status().servers if server.in_ring)

    async def _watch(self) -> None:
        """Notes how the ring changes and which servers are back, until the time is over and all is well again."""
        down: set[str] = set()
        servers = {server.id for server in self._cluster.servers}
        well = False
        while monotonic() < self._until or not well:
            await asyncio.sleep(POLL_S)
            status = self._cluster.status()
            members = frozenset(server.id for server in status.servers if server.in_ring)
            if members != self._members:
                self.counts["server left ring"] += len(self._members - members)
                self.counts["server joined ring"] += len(members - self._members)
                self._log.write(Noted(f"ring {status.ring_version}: {','.join(sorted(members))}", monotonic()))
                self._members = members
            running = {process.name for process in status.processes if process.state == "running"}
            for name in down & running:
                self._log.write(Returned(name, monotonic()))
            down = servers - running
            well = status.ready and not down
