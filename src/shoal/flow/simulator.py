"""The flow simulator: a workload, servers and a policy, one second after the other.

Owns the order of things in a second: servers join, migrations complete, traffic flows, the window closes, the policy
decides, drained servers leave. Everything is done in columns. The policy, its situation and its decision are the
product's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa

from shoal.balance.columns import Floats, Placements
from shoal.balance.decision import Decision
from shoal.balance.forecast import Forecast
from shoal.balance.policies import Policy
from shoal.balance.settings import DEFAULT_SETTINGS, BalanceSettings
from shoal.flow.load_meter import LoadMeter
from shoal.flow.migrations import Migrations
from shoal.flow.model import (
    DEFAULT_MEASURES,
    DEFAULT_MOVES,
    DEFAULT_POOL,
    DEFAULT_SERVER,
    MeasureModel,
    MoveModel,
    PoolModel,
    ServerModel,
)
from shoal.flow.pool import ServerPool
from shoal.flow.series import FlowSecond, Series
from shoal.flow.server_queues import MS_PER_S, QueueStep, ServerQueues
from shoal.flow.spread import Elements, Spread
from shoal.flow.traffic import Traffic, Workload
from shoal.plan.ring import Ring, ServerAddress

STEP_S: Final = 1
"""Time passes in seconds, as in telemetry."""


class Models(msgspec.Struct, frozen=True, kw_only=True):
    """All assumptions."""

    server: ServerModel = DEFAULT_SERVER
    moves: MoveModel = DEFAULT_MOVES
    pool: PoolModel = DEFAULT_POOL
    measures: MeasureModel = DEFAULT_MEASURES


DEFAULT_MODELS: Final = Models()


class FlowSimulator:
    """One run. Without a policy all channels stay on their first servers."""

    def __init__(
        self,
        workload: Workload,
        policy: Policy | None,
        settings: BalanceSettings = DEFAULT_SETTINGS,
        models: Models = DEFAULT_MODELS,
        *,
        seed: int = 0,
        placements: Placements | None = None,
        forecast: Forecast | None = None,
    ) -> None:
        models.server.validate()
        self._workload = workload
        self._policy = policy
        self._settings = settings
        self._models = models
        self._seed = seed
        self.pool = ServerPool(models.pool, models.server)
        first = placements if placements is not None else at_homes(workload.names, tuple(self.pool.ids))
        self.migrations = Migrations(models.moves, first)
        self._queues = ServerQueues(models.server, len(self.pool))
        self._meter = LoadMeter(workload.names, models.server, models.measures, settings, seed, forecast)
        self._spread = Spread(first, seed)

    def run(self, stop: Callable[[FlowSecond], bool] | None = None) -> Series:
        """Runs to the end of the workload, or up to a second for which `stop` returns true."""
        series = Series([])
        for now_s in range(0, self._workload.seconds, STEP_S):
            series.seconds.append(self._second(now_s))
            if stop is not None and stop(series.seconds[-1]):
                break
        return series

    def _second(self, now_s: int) -> FlowSecond:
        if self.pool.join(now_s):
            self._queues.grow(len(self.pool))
        if self.migrations.advance(now_s):
            self._spread = Spread(self.migrations.in_force, self._seed)
            self._queues.moved()
        traffic = self._workload.at(now_s)
        elements = self._spread.at(traffic)
        extra = self.migrations.extra(traffic, self._models.server, len(self.pool))
        step = self._queues.step(now_s, STEP_S, traffic, elements, extra)
        second = self._summary(traffic, elements, step)
        self._meter.add(traffic, step)
        if self._policy is not None and self._meter.is_full:
            decision = self._decide(self._policy, now_s + STEP_S, elements.part)
            second.decided, second.rebalanced = len(decision), not decision.is_empty
        self.pool.leave(self.migrations.used(len(self.pool)))
        return second

    def _summary(self, traffic: Traffic, elements: Elements, step: QueueStep) -> FlowSecond:
        server, rows = self._models.server, self.pool.rows
        ratios = step.bytes_out[rows] / server.capacity_bytes_per_s
        cores = step.cpu[rows] / server.cpu_capacity
        weight = traffic.responses[elements.rows] * elements.part
        total = float(weight.sum())
        delay_ms = float((weight * step.delay_s).sum()) / total * MS_PER_S if total else 0.0
        return FlowSecond(
            clients=traffic.clients,
            servers=len(rows),
            response_ms=float("inf") if step.undelivered else float(traffic.latency_ms) + delay_ms,
            messages_out=float(traffic.messages_out.sum()),
            ratio_mean=float(ratios.mean()),
            ratio_max=float(ratios.max()),
            utilisation_max=max(float(ratios.max()) / server.fail_ratio, float(cores.max())),
            undelivered=step.undelivered * STEP_S,
            decided=0,
            rebalanced=False,
        )

    def _decide(self, policy: Policy, now_s: int, parts: Floats) -> Decision:
        under_way = self.migrations.under_way
        decided = self.migrations.decided
        situation = self._meter.close(now_s, decided, decided.part if under_way else parts, self.pool)
        if under_way:  # one plan at a time, as in the balancer
            return Decision.nothing()
        decision = policy(situation, self._settings)
        if decision.is_empty:
            return decision
        rows = self.pool.rows
        self._meter.planned(decision.moves, now_s)
        if len(decision):
            new = decision.placements
            self.migrations.decide(decision.moves, Placements(new.mode, new.offsets, rows[new.servers]), now_s)
        self.pool.drain(rows[decision.drain])
        self.pool.keep(rows[decision.keep])
        self.pool.request(decision.add, now_s)
        return decision


def at_homes(names: pa.Array, servers: tuple[str, ...]) -> Placements:
    """Each channel on its home in the hash ring of these servers, where channels without an entry live."""
    ring = Ring(1, tuple(ServerAddress(server, "", 0) for server in servers))
    row = {server: index for index, server in enumerate(servers)}
    return Placements.single(np.fromiter((row[ring.home(name.as_py())] for name in names), np.int32, len(names)))
