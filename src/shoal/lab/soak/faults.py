"""The faults of a round: kills of agents, servers and the coordinator, and freezes.

Owns the faults and their log. The cluster's own supervisor restarts killed processes. Some are held down until their
server has left the ring, and are then restarted. With freezes, a server, its agent or both are stopped until the server
has left the ring; the coordinator is then killed between freezes only, so that each pause of deliveries has one cause.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random
from time import monotonic
from typing import Final

import msgspec

from shoal.cluster.local import COORDINATOR, LocalCluster
from shoal.cluster.parts import agent_name
from shoal.errors import NotRunningError
from shoal.lab.soak.round_log import (
    CoordinatorBack,
    CoordinatorKilled,
    Note,
    RoundLog,
    ServerBack,
    ServerFrozen,
    ServerKilled,
    ServerThawed,
)

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
    """The kinds of processes that may be killed or frozen."""

    kill_agents: bool = False
    kill_servers: bool = False
    kill_coordinator: bool = False
    freeze: bool = False
    """Servers and agents are frozen until the ring changes."""

    @property
    def any(self) -> bool:
        """Whether there are faults."""
        return self.kill_agents or self.kill_servers or self.kill_coordinator or self.freeze


class _Target(msgspec.Struct, frozen=True):
    """How one kind of process is killed: the time between kills, and how many kills there are for one hold."""

    kind: str
    every_s: tuple[float, float]
    hold_one_in: int


_AGENTS: Final = _Target("agent", (1.0, 3.0), 6)
_SERVERS: Final = _Target("server", (5.0, 8.0), 3)
_COORDINATOR: Final = _Target("coordinator", (4.0, 8.0), 0)


AWAY_S: Final = (0.5, 4.0, 0.2, 2.0, 3.5, 1.0)
"""How long the coordinator is away between freezes, in turn; leases run out within 3 s."""
AFTER_RETURN_S: Final = 1.5
RETURNS_PER_FREEZE: Final = 5
FROZEN_KINDS: Final = ("server", "both", "agent")
RECOVER_S_MAX: Final = 30.0


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
        if self._plan.freeze:
            tasks.append(self._alternate(names))
        elif self._plan.kill_coordinator:
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

    async def _alternate(self, names: list[str]) -> None:
        """Freezes a server, then kills the coordinator some times, and so on."""
        turns = 0
        await asyncio.sleep(FIRST_S)
        while monotonic() + HOLD_S_MAX < self._until or not self.counts["server frozen"]:
            await self._freeze(self._random.choice(names), FROZEN_KINDS[turns % len(FROZEN_KINDS)])
            turns += 1
            for number in range(RETURNS_PER_FREEZE if self._plan.kill_coordinator else 0):
                away_s = AWAY_S[(number + turns) % len(AWAY_S)]
                if monotonic() + away_s > self._until and self.counts["coordinator killed"]:
                    break
                await self._send_away(away_s)

    async def _freeze(self, server: str, kind: str) -> None:
        """Freezes a server, its agent or both until the server has left the ring, and a moment longer."""
        frozen = [server] if kind != "agent" else []
        frozen += [agent_name(server)] if kind != "server" else []
        for name in frozen:
            self._cluster.pause(name)
        self._log.write(ServerFrozen(server, monotonic()))
        self._log.write(Note(f"froze {', '.join(frozen)}", monotonic()))
        try:
            if await self._until_ring(lambda ring: server not in ring, HOLD_S_MAX):
                await asyncio.sleep(self._random.uniform(*AFTER_LEFT_S))
        finally:
            for name in frozen:
                self._cluster.resume(name)
            self._log.write(ServerThawed(server, monotonic()))
        self.kills += 1
        self.counts["server frozen"] += 1
        self.counts[f"{kind} frozen"] += kind != "server"
        await self._until_ring(lambda ring: server in ring, RECOVER_S_MAX)
        await asyncio.sleep(AFTER_RETURN_S)

    async def _send_away(self, away_s: float) -> None:
        """Kills the coordinator and holds it down for a time."""
        self._cluster.hold(COORDINATOR)
        await self._cluster.kill(COORDINATOR)
        self._log.write(CoordinatorKilled(monotonic()))
        await asyncio.sleep(away_s)
        self._cluster.release(COORDINATOR)
        while not self._runs(COORDINATOR):  # noqa: ASYNC110 - the cluster has no event for this
            await asyncio.sleep(POLL_S / 5)
        self._log.write(CoordinatorBack(monotonic()))
        self.kills += 1
        self.counts["coordinator killed"] += 1
        await asyncio.sleep(AFTER_RETURN_S)

    def _runs(self, name: str) -> bool:
        return any(one.name == name and one.state == "running" for one in self._cluster.status().processes)

    async def _until_ring(self, condition: Callable[[frozenset[str]], bool], timeout_s: float) -> bool:
        """Waits until a condition holds for the ring; returns whether it does."""
        deadline = monotonic() + timeout_s
        while not condition(self._ring()):
            if monotonic() > deadline:
                return False
            await asyncio.sleep(POLL_S)
        return True

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
