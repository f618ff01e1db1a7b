"""Follows the balancer of a round: what it decides, who is in the ring, and what servers carry.

Owns the lines about them in the log of moves. Decisions are read from the audit log, load from the telemetry that the
agents write; the balancer is not asked anything.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Any, Final

from shoal.balance.recording import proposal_of
from shoal.cluster.acl import ADMIN
from shoal.cluster.audit_log import AuditLog
from shoal.cluster.local import LocalCluster
from shoal.cluster.server_meter import ServerMeter
from shoal.coordination.interface import Coordinator
from shoal.coordination.redis import RedisCoordinator
from shoal.plan.signing import Verifier
from shoal.soak.following import Following, watching
from shoal.soak.records import Decided, Eased, Loaded, Log, Members, Rose
from shoal.soak.shape import Shape

COORDINATOR_S_MAX: Final = 10.0
LOOK_S: Final = 0.2


class Observing(Following):
    """Follows one round with a balancer."""

    def __init__(
        self, cluster: LocalCluster, meter: ServerMeter, coordinator: Coordinator, channels: Iterable[str], log: Log
    ) -> None:
        super().__init__(coordinator, Verifier(bytes.fromhex(cluster.state.public_key)), channels, log)
        self.members: tuple[str, ...] = ()
        self._is_over = False
        self._cluster = cluster
        self._meter = meter
        self._audit = AuditLog(cluster.directory.audit)
        self._known: set[Path] = set()
        self._clock_s = monotonic() - time.time()
        """What takes the wall clock, by which agents and balancers write, to the clock of the logs."""

    def begin_rise(self, channel: str, servers: int) -> None:
        """The load rises now: on a channel, or on all of them (""); so many servers are wanted for it."""
        self.log.write(Rose(channel, servers, monotonic()))

    def end_load(self) -> None:
        """The load is over. What the balancer does then, as draining servers, is not followed any more."""
        self.log.write(Eased(monotonic()))
        self._is_over = True

    def _requested(self, data: bytes) -> None:
        if not self._is_over:
            super()._requested(data)

    def _watches(self) -> Iterable[Coroutine[Any, Any, None]]:
        yield from super()._watches()
        yield self._look()

    async def _look(self) -> None:
        while True:
            self._note_members()
            self._meter.follow()
            for second in self._meter.take():
                at = second.second + 1 + self._clock_s
                self.log.write(Loaded(second.server, second.load_ratio, second.cpu_share, at))
            for decided in await asyncio.to_thread(self._decisions):
                self.log.write(decided)
                if self._is_over:
                    continue
                self.counts["servers added"] += decided.added
                self.counts["server drained"] += len(decided.drained)
                for _, mode, _, reason in decided.moves:
                    self.counts[f"decided {reason} to {mode}"] += 1
            await asyncio.sleep(LOOK_S)

    def _note_members(self) -> None:
        members = tuple(server.id for server in self._cluster.status().servers if server.in_ring)
        if members != self.members:
            self.members = members
            self.log.write(Members(members, monotonic()))

    def _decisions(self) -> list[Decided]:
        """Decisions that are new in the audit log, oldest first."""
        found = []
        for file in self._audit.files("decision"):
            if file.path in self._known:
                continue
            self._known.add(file.path)
            record = self._audit.read(file.path)
            proposal = proposal_of(record)
            moves = (
                (move.channel.decode(), move.after.mode, move.after.servers, move.reason) for move in proposal.moves
            )
            found.append(
                Decided(
                    record.digest,
                    tuple(moves),
                    sum(change.count for change in proposal.servers if change.what == "add"),
                    tuple(change.server for change in proposal.servers if change.what == "drain"),
                    proposal.max_ratio_before,
                    proposal.max_ratio_after,
                    record.at_s + self._clock_s,
                )
            )
        return found


@asynccontextmanager
async def begin_observing(cluster: LocalCluster, shape: Shape, directory: Path) -> AsyncIterator[Observing]:
    """Watches the plan, the ring, the decisions and the load until it is left."""
    async with (
        await RedisCoordinator.connect(cluster.url_for(ADMIN), timeout_s=COORDINATOR_S_MAX) as coordinator,
        ServerMeter(cluster) as meter,
    ):
        channels = [channel.name for channel in shape.channels]
        observing = Observing(cluster, meter, coordinator, channels, Log(directory / "moves.log"))
        async with watching(observing):
            yield observing
