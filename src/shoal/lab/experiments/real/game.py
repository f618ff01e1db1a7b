"""RGame on real servers: players who join and leave, a balancer that reacts to them, and an audit of every update.

Owns one game from its start to its audit: the cluster behind limited links, the demo's crowds of players, and the
measurements of each second. The number of players over time, and the claims, belong to the experiments.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import numpy as np

from shoal.balance.balancer_options import BalancerOptions
from shoal.balance.settings import BalanceSettings
from shoal.cluster.local import LocalCluster
from shoal.cluster.server_meter import ServerMeter, ServerSecond
from shoal.config import environment_of
from shoal.flow import Latencies
from shoal.flow.latency import SAMPLES_PER_RESPONSE
from shoal.flow.workloads.curves import Curve
from shoal.lab.demo.crowds import Crowds, start_crowds
from shoal.lab.demo.delivery_audit import Tally
from shoal.lab.experiments.real.limited_cluster import LinkLimit, limited_cluster
from shoal.lab.experiments.real.network import ExperimentNetwork
from shoal.lab.machine import MachineMeter
from shoal.lab.rgame import UPDATES_PER_S
from shoal.leader.audit_log import AuditLog
from shoal.limits import DEFAULT_LIMITS

SECOND_S: Final = 1.0
SETTLE_S_MAX: Final = 20.0
"""How long deliveries may take after the last update; longer than the longest wait for missing messages."""
SETTLE_POLL_S: Final = 0.5
TROUBLES_MAX: Final = 10
"""Unexpected errors that the result lists."""
REPORT_S: Final = 3.0
"""A server's last report counts as long as it is no older than this."""
AVERAGE_S: Final = 5
"""Response times and load ratios are averaged over this many seconds before they are judged: one second has only a few
hundred updates."""


SETTINGS: Final = BalanceSettings(
    high_ratio=0.7, safe_ratio=0.6, grow_ratio=0.5, low_ratio=0.3, wait_s=4.0, settle_s=6.0, horizon_s=12.0
)
"""Settings of the balancer. A game takes two minutes instead of the paper's twenty, but a server takes as long to
start, so waits are shorter than the defaults and load ratios leave more room."""
LINK: Final = LinkLimit(bytes_per_s=0.5e6, wire_share=1.2)
TILES: Final = 4
UPDATE_BYTES: Final = 400
"""Larger than the paper's, so that other traffic is as small beside updates as it is on the paper's larger links."""


@dataclass(frozen=True, slots=True)
class GameSetup:
    """The setup of one game."""

    players: Curve
    servers_max: int
    policy: str
    tiles: int = TILES
    """The side of the map."""
    update_bytes: int = UPDATE_BYTES
    link: LinkLimit = LINK
    settings: BalanceSettings = SETTINGS
    servers_first: int = 1
    seed: int = 1

    def facts(self, latencies: Latencies) -> dict[str, Any]:
        """The parameters of a result."""
        return {
            "mode": "real",
            "latencies": latencies.source,
            "tiles": self.tiles**2,
            "updates_per_s": UPDATES_PER_S,
            "update_bytes": self.update_bytes,
            "players": [list(point) for point in self.players.points],
            "servers_first": self.servers_first,
            "servers_max": self.servers_max,
            "settings": msgspec.to_builtins(self.settings),
            **self.link.facts(self.link.limit is not None),
        }


@dataclass(slots=True)
class GameSecond:
    """One second of a game. Ratios and shares of a core come from the agents' last reports."""

    at_s: float
    players: int
    servers: int
    response_ms: float
    """Average of the updates that came back in this second, latency included; infinite if none did."""
    messages_out_per_s: float
    ratio_mean: float
    ratio_max: float
    server_cpu_share: float
    machine_cpu_share: float


@dataclass(slots=True)
class GameRecord:
    """Everything that was measured of a game."""

    seconds: list[GameSecond] = field(default_factory=list)
    rebalanced_at: list[float] = field(default_factory=list)
    moves: int = 0
    tally: Tally = field(default_factory=Tally)
    troubles: list[str] = field(default_factory=list)

    def column(self, name: str) -> list[float]:
        """One figure of all seconds."""
        return [float(getattr(second, name)) for second in self.seconds]

    def averaged(self, name: str) -> list[float]:
        """One figure of all seconds, each averaged with the seconds just before it."""
        values = self.column(name)
        return [float(np.mean(values[max(0, at - AVERAGE_S + 1) : at + 1])) for at in range(len(values))]

    @property
    def server_hours(self) -> float:
        """Hours of all servers together."""
        return sum(self.column("servers")) * SECOND_S / 3600

    def facts(self) -> dict[str, Any]:
        """The series and counts of a result."""
        return {
            **{name: self.column(name) for name in GameSecond.__slots__},
            "rebalanced_at": self.rebalanced_at,
            "moves": self.moves,
            "tally": msgspec.to_builtins(self.tally),
            "troubles": self.troubles[:TROUBLES_MAX],
        }

    def cpu_share(self) -> dict[str, float]:
        """The share of one core used by the busiest server, and of all cores used by the machine: maximum and mean."""
        server, machine = self.column("server_cpu_share"), self.column("machine_cpu_share")
        return {
            "server_max": max(server, default=0.0),
            "machine_max": max(machine, default=0.0),
            "machine_mean": float(np.mean(machine)) if machine else 0.0,
        }

    @property
    def is_whole(self) -> bool:
        """Whether every update was delivered once and in order, without an unexpected error."""
        tally = self.tally
        return not (tally.lost or tally.duplicated or tally.reordered or tally.gaps_reported or self.troubles)


class RunningGame:
    """A game whose cluster and crowds are running."""

    def __init__(self, setup: GameSetup, cluster: LocalCluster, crowds: Crowds, latencies: Latencies) -> None:
        self._setup = setup
        self._cluster = cluster
        self._crowds = crowds
        self._latencies_ms = latencies.samples_ms
        self._random = np.random.default_rng(setup.seed)
        self._machine = MachineMeter()
        self._reports: dict[str, ServerSecond] = {}
        self._deliveries = 0
        self._record = GameRecord()

    async def play(
        self, meter: ServerMeter, stop: Callable[[GameRecord], bool], note: Callable[[str], None]
    ) -> GameRecord:
        """Plays to the end of the curve, or until `stop` returns true; then audits the deliveries."""
        began = time.monotonic()
        began_wall = time.time()
        curve = self._setup.players
        self._machine.share()
        while (at_s := time.monotonic() - began) < curve.seconds and not stop(self._record):
            self._crowds.check()
            self._crowds.grow(round(float(curve.at(at_s))))
            await asyncio.sleep(SECOND_S - (time.monotonic() - began) % SECOND_S)
            meter.follow()
            self._second(time.monotonic() - began, meter.take())
            if len(self._record.seconds) % AVERAGE_S == 0:
                note(_line(self._record.seconds[-1]))
        await self._settle()
        self._read_audit_log(began_wall)
        return self._record

    def _second(self, at_s: float, reports: list[ServerSecond]) -> None:
        self._reports |= {report.server: report for report in reports}
        members = {server.id for server in self._cluster.status().servers if server.in_ring}
        now = time.time()
        loads = [
            report for server, report in self._reports.items() if server in members and now - report.second < REPORT_S
        ]
        ratios = [report.load_ratio for report in loads] or [0.0]
        back_ms = np.array(self._crowds.take_responses_ms())
        latency_ms = self._random.choice(self._latencies_ms, (len(back_ms), SAMPLES_PER_RESPONSE)).sum(axis=1)
        deliveries, self._deliveries = self._deliveries, self._crowds.tally.deliveries
        self._record.seconds.append(
            GameSecond(
                at_s=at_s,
                players=self._crowds.players,
                servers=len(members),
                response_ms=float((back_ms + latency_ms).mean()) if len(back_ms) else float("inf"),
                messages_out_per_s=(self._deliveries - deliveries) / SECOND_S,
                ratio_mean=float(np.mean(ratios)),
                ratio_max=max(ratios),
                server_cpu_share=max((report.cpu_share for report in loads), default=0.0),
                machine_cpu_share=self._machine.share(),
            )
        )

    async def _settle(self) -> None:
        """Stops the players and waits for their last updates; updates that are missing then are lost."""
        await self._crowds.stop()
        deadline = time.monotonic() + SETTLE_S_MAX
        while (lost := await self._crowds.audit()) and time.monotonic() < deadline:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(SETTLE_POLL_S)
        self._record.tally = self._crowds.tally
        self._record.tally.lost = lost
        self._record.troubles = self._crowds.troubles

    def _read_audit_log(self, began_wall: float) -> None:
        """Reads the balancer's decisions and their outcomes."""
        audit = AuditLog(self._cluster.directory.audit)
        self._record.rebalanced_at = [file.at_s - began_wall for file in audit.files("decision")]
        ended = (outcome for outcome in audit.outcomes() if outcome.state == "ended")
        self._record.moves = sum(int(outcome.facts.get("moved", 0)) for outcome in ended)


async def play(
    network: ExperimentNetwork,
    setup: GameSetup,
    latencies: Latencies,
    note: Callable[[str], None],
    stop: Callable[[GameRecord], bool] = lambda _: False,
) -> GameRecord:
    """Plays one game on a new cluster."""
    options = BalancerOptions(empty_s=setup.settings.wait_s / 2)
    async with (
        limited_cluster(
            network,
            setup.link,
            setup.servers_first,
            balancers=1,
            policy=setup.policy,
            servers_min=1,
            servers_max=setup.servers_max,
            balancer_environment=environment_of(balance=setup.settings, balancer=options),
        ) as cluster,
        start_crowds(cluster.directory.log("players"), network.clients_prefix) as crowds,
        ServerMeter(cluster) as meter,
    ):
        await crowds.open(
            cluster.url,
            DEFAULT_LIMITS,
            tiles=setup.tiles,
            players_max=round(max(players for _, players in setup.players.points)),
            seed=setup.seed,
            update_bytes=setup.update_bytes,
        )
        return await RunningGame(setup, cluster, crowds, latencies).play(meter, stop, note)


def _line(second: GameSecond) -> str:
    return (
        f"  {second.at_s:4.0f} s: {second.players} players, {second.servers} servers, {second.response_ms:.0f} ms, "
        f"load ratio {second.ratio_mean:.2f} (busiest {second.ratio_max:.2f})"
    )
