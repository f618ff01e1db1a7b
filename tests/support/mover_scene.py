"""A mover at work on a real coordinator, with agents that only report: for tests of the mover and of its callers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from tests.support.agent_site import until
from tests.support.connections import connect_coordinator
from tests.support.redis_server import RedisServer

from shoal.coordination.interface import Lease
from shoal.coordination.redis import RedisCoordinator
from shoal.errors import ForgedEntryError
from shoal.leader.conductor_shell import ConductorShell, Leadership
from shoal.limits import Limits
from shoal.plan.entry import Entry, Phase
from shoal.plan.format import VALUE
from shoal.plan.keys import (
    FORMAT_KEY,
    KEEPER_LEASE,
    PUBLIC_KEY,
    RING_KEY,
    entries_prefix,
    entry_key,
    entry_unit,
    move_key,
    moves_prefix,
    report_key,
)
from shoal.plan.move_request import ChannelReport, MoveReport, MoveRequest, encode_report, encode_request
from shoal.plan.placement import Mode
from shoal.plan.ring import Ring, ServerAddress
from shoal.plan.signature import Signer, Verifier
from shoal.plan.steps import ChannelSteps

SERVERS = ("s1", "s2", "s3")
RING = Ring(1, tuple(ServerAddress(id, "127.0.0.1", 1) for id in SERVERS))
CHANNEL = b"tile"
POLL_S = 0.05
PATIENT = Limits(prepare_timeout_s=1000.0)
"""No move is given up because the machine is busy."""


class MoverScene:
    """A coordinator with a plan, movers by name, and agents that report that all is well."""

    def __init__(self, coordinator: RedisCoordinator, url: str) -> None:
        self.coordinator = coordinator
        self.url = url
        self.signer = Signer(Signer.generate())
        self.verifier = Verifier(self.signer.public)
        self.leading: dict[str, Leadership] = {}
        self.turns = 0
        self.behind = 0
        self.here = 0
        self.spoken = True
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def write_plan(self) -> None:
        await self.coordinator.put(FORMAT_KEY, VALUE)
        await self.coordinator.put(PUBLIC_KEY, self.signer.public)
        await self.coordinator.put(RING_KEY, self.signer.ring(RING))

    def start_mover(self, name: str = "a") -> None:
        def turn() -> Leadership | None:
            self.turns += 1
            return self.leading.get(name)

        moving = ConductorShell(self.coordinator, ChannelSteps(PATIENT), self.signer, turn, "", POLL_S)
        self.tasks[name] = asyncio.create_task(moving.run())

    async def some_turns(self) -> None:
        """Until the mover has had every occasion to do something."""
        enough = self.turns + 5
        await until(lambda: self.turns >= enough)

    async def lead(self, name: str = "a") -> Lease:
        lease = await self.coordinator.acquire(KEEPER_LEASE, name, 60.0, takeover=True)
        assert lease is not None
        self.leading[name] = Leadership(lease, RING, lease)
        return lease

    def start_agents(self) -> None:
        self.tasks["agents"] = asyncio.create_task(self._agents())

    async def _agents(self) -> None:
        """All agents in one: they know every entry as soon as it is written, and everybody follows."""
        known: dict[bytes, ChannelReport] = {}
        async with contextlib.aclosing(self.coordinator.watch(entries_prefix())) as changes:
            async for change in changes:
                channel = entry_unit(change.key)
                if change.now is None or channel is None:
                    continue
                with contextlib.suppress(ForgedEntryError):
                    newness = self.verifier.entry(change.now.value).newness
                    known[channel] = ChannelReport(newness, newness, self.behind, self.here, 0, self.spoken)
                    for server in SERVERS:
                        await self.coordinator.put(report_key(server), encode_report(MoveReport(server, 1, known)))

    async def ask(self, *channels: bytes) -> None:
        for channel in channels:
            request = MoveRequest(channel, (self.target(channel),), Mode.SINGLE, False, "x")
            await self.coordinator.put(move_key(channel), encode_request(request))

    @staticmethod
    def target(channel: bytes) -> str:
        return next(server for server in SERVERS if server != RING.home(channel))

    async def entry(self, channel: bytes = CHANNEL) -> Entry | None:
        stored = await self.coordinator.get(entry_key(channel))
        return self.verifier.entry(stored.value) if stored else None

    async def ended(self, *channels: bytes) -> bool:
        """Whether these channels are where they were asked to be, and nobody asks any more."""
        entries = [await self.entry(channel) for channel in channels]
        there = all(
            entry is not None and entry.phase is Phase.END and entry.placement.servers == (self.target(entry.unit),)
            for entry in entries
        )
        return there and not await self.coordinator.list(moves_prefix())

    async def close(self) -> None:
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)


@contextlib.asynccontextmanager
async def mover_scene() -> AsyncIterator[MoverScene]:
    """A coordinator that holds a plan; nothing of it is left afterwards."""
    with RedisServer(aof=True) as redis:
        async with await connect_coordinator(f"{redis.host}:{redis.port}") as coordinator:
            scene = MoverScene(coordinator, f"shoal://{redis.host}:{redis.port}")
            await scene.write_plan()
            try:
                yield scene
            finally:
                await scene.close()
