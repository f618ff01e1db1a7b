"""The faults of a round: kills of agents, servers and the coordinator.

Owns the faults and their log. The cluster's own supervisor restarts killed processes. Some are held down until their
server has left the ring, and are then restarted.
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
from shoal.lab.soak.round_log import Note, RoundLog, ServerBack, ServerKilled

POLL_S: Final = 0.05
FIRST_S: Final = 0.5
"""Time from the start of the load to the first fault."""
HOLD_S_MAX: Final = 12.0
"""A process is released after this time, even if its server has not left the ring."""
AFTER_LEFT_S: Final = (0.0, 2.0)
"""How long a process stays down after its server has left the ring."""
FREEZE_FIRST: Final = 0.5
"""Share of servers that are paused before they are killed, so that what publishers sent meanwhile is lost with them."""
FREEZE_S: Final = (0.05, 0.4)
CALM_S_MAX: Final = 8.0
"""Longest time without faults at the end of the load."""


class FaultPlan(msgspec.Struct, frozen=True):
    """The kinds of processes that may be killed."""

    kill_agents: bool = False
    kill_servers: bool = False
    kill_coordinator: bool = False

    @property
    def any(self) -> bool:
        """Whether anything may be killed."""
        return self.kill_agents or self.kill_servers or self.kill_coordinator


class _Target(msgspec.Struct, frozen=True):
    """How one kind of process is killed: the time between kills, and how many kills there are for one hold."""

    kind: str
    every_s: tuple[float, float]
    hold_one_in: int


_AGENTS: Final = _Target("agent", (1.0, 3.0), 6)
_SERVERS: Final = _Target("server", (5.0, 8.0), 3)
_COORDINATOR: Final = _Target("coordinator", (4.0, 8.0), 0)


class FaultInjector:
    """Injects the faults of one round. `counts` has the kills and the changes of the ring."""

    def __init__(self, cluster: LocalCluster, plan: FaultPlan, seconds: float, rng: Random, log: RoundLog) -> None:
        self.counts: Counter[str] = Counter()
        self.kills = 0
        self._cluster = cluster
        self._plan = plan
        self._random = rng
        self._log = log
        self._until = monotonic() + seconds - min(CALM_S_MAX, seconds / 4)
        self._members = self._ring()

    async def run(self) -> None:
        """Injects faults until the calm at the end of the load; returns when everything runs again."""
        names = [server.id for server in self._cluster.servers]
        tasks: list[Awaitable[None]] = [self._watch()]
        if self._plan.kill_agents:
            tasks.append(self._inject(_AGENTS, [agent_name(name) for name in names]))
        if self._plan.kill_servers:
            tasks.append(self._inject(_SERVERS, names))
        if self._plan.kill_coordinator:
            tasks.append(self._inject(_COORDINATOR, [COORDINATOR]))
        await asyncio.gather(*tasks)

    async def _inject(self, target: _Target, names: list[str]) -> None:
        pause_s, kills = FIRST_S, 0
        while monotonic() + pause_s < self._until:
            await asyncio.sleep(pause_s)
            name = self._random.choice(names)
            kills += 1
            hold = target.hold_one_in > 0 and kills % target.hold_one_in == 2
            if await self._kill(target, name, hold) and hold:
                await self._hold(name)
            pause_s = self._random.uniform(*target.every_s)

    async def _kill(self, target: _Target, name: str, hold: bool) -> bool:
        """Kills a process if it runs; returns whether it did."""
        if hold:
            self._cluster.hold(name)
        try:
            if target.kind == "server":
                if self._random.random() < FREEZE_FIRST:
                    self._cluster.pause(name)
                    await asyncio.sleep(self._random.uniform(*FREEZE_S))
                self._log.write(ServerKilled(name, monotonic()))
            await self._cluster.kill(name)
        except NotRunningError:  # it has not been restarted since the last kill
            self._cluster.release(name)
            return False
        self._log.write(Note(f"killed {name}" + (", held down" if hold else ""), monotonic()))
        self.kills += 1
        self.counts[f"{target.kind} killed"] += 1
        return True

    async def _hold(self, name: str) -> None:
        """Keeps a process down until its server has left the ring, and a moment longer."""
        server = name.removeprefix("agent-")
        deadline = min(monotonic() + HOLD_S_MAX, self._until)
        while monotonic() < deadline and server in self._ring():  # noqa: ASYNC110 - the cluster has no event for this
            await asyncio.sleep(POLL_S)
        if server not in self._ring():
            await asyncio.sleep(self._random.uniform(*AFTER_LEFT_S))
        self._log.write(Note(f"released {name}", monotonic()))
        self._cluster.release(name)

    def _ring(self) -> frozenset[str]:
        return frozenset(server.id for server in self._cluster.status().servers if server.in_ring)

    async def _watch(self) -> None:
        """Logs changes of the ring and restarts of servers, until faults are over and everything runs again."""
        down: set[str] = set()
        servers = {server.id for server in self._cluster.servers}
        recovered = False
        while monotonic() < self._until or not recovered:
            await asyncio.sleep(POLL_S)
            status = self._cluster.status()
            members = frozenset(server.id for server in status.servers if server.in_ring)
            if members != self._members:
                self.counts["server left ring"] += len(self._members - members)
                self.counts["server joined ring"] += len(members - self._members)
                self._log.write(Note(f"ring {status.ring_version}: {','.join(sorted(members))}", monotonic()))
                self._members = members
            running = {process.name for process in status.processes if process.state == "running"}
            for name in down & running:
                self._log.write(ServerBack(name, monotonic()))
            down = servers - running
            recovered = status.ready and not down
