"""Follows the balancer of a round: its decisions, the ring, and the load of servers.

Owns the lines about them in the log of moves. Decisions are read from the audit log, load from the agents' telemetry;
nothing here talks to the balancer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Any, Final

from shoal.balance.decision_record import proposal_of
from shoal.cluster.acl import ADMIN
from shoal.cluster.local import LocalCluster
from shoal.cluster.server_meter import ServerMeter
from shoal.coordination.interface import Coordinator
from shoal.lab.soak.load_shape import LoadShape
from shoal.lab.soak.plan_follower import PlanFollower, followed
from shoal.lab.soak.round_log import DecisionMade, LoadEnded, LoadLine, LoadRaised, RingMembers, RoundLog
from shoal.leader.audit_log import AuditLog
from shoal.plan.signature import Verifier
from shoal.runtime import PRODUCTION

COORDINATOR_S_MAX: Final = 10.0
LOOK_S: Final = 0.2


class BalancerFollower(PlanFollower):
    """Follows one round with a balancer."""

    def __init__(
        self,
        cluster: LocalCluster,
        meter: ServerMeter,
        coordinator: Coordinator,
        channels: Iterable[str],
        log: RoundLog,
    ) -> None:
        super().__init__(coordinator, Verifier(bytes.fromhex(cluster.state.public_key)), channels, log)
        self.members: tuple[str, ...] = ()
        self._is_over = False
        self._cluster = cluster
        self._meter = meter
        self._audit = AuditLog(cluster.directory.audit)
        self._known: set[Path] = set()
        self._clock_s = monotonic() - time.time()
        """Difference between the wall clock of agents and balancers and the clock of the logs."""

    def log_raise(self, channel: str, servers: int) -> None:
        """Logs that the load is raised now, on a channel or on all (""), and how many servers it needs."""
        self.log.write(LoadRaised(channel, servers, monotonic()))

    def log_end(self) -> None:
        """Logs the end of the load. Later decisions of the balancer, such as draining servers, are not followed."""
        self.log.write(LoadEnded(monotonic()))
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
                self.log.write(LoadLine(second.server, second.load_ratio, second.cpu_share, at))
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
            self.log.write(RingMembers(members, monotonic()))

    def _decisions(self) -> list[DecisionMade]:
        """New decisions in the audit log, oldest first."""
        found = []
        for file in self._audit.files("decision"):
            if file.path in self._known:
                continue
            self._known.add(file.path)
            record = self._audit.read(file.path)
            proposal = proposal_of(record)
            moves = ((move.unit.decode(), move.after.mode, move.after.servers, move.reason) for move in proposal.moves)
            found.append(
                DecisionMade(
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
async def start_following(cluster: LocalCluster, shape: LoadShape, directory: Path) -> AsyncIterator[BalancerFollower]:
    """Follows the plan, the ring, the decisions and the load until the block is left."""
    async with (
        await PRODUCTION.coordinator(cluster.url_for(ADMIN), COORDINATOR_S_MAX) as coordinator,
        ServerMeter(cluster) as meter,
    ):
        channels = [channel.name for channel in shape.channels]
        observing = BalancerFollower(cluster, meter, coordinator, channels, RoundLog(directory / "moves.log"))
        async with followed(observing):
            yield observing
