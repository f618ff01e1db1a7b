"""The load meter: turns what happened in each second into the situation that a policy gets.

Owns the sums of the open window, the past windows, and when each channel was last placed, as the balancer does. The
measured traffic of a server never exceeds what it can send; the excess shows only in the figures of its channels.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from shoal.balance.columns import NEVER, Channels, Floats, Ints, Placements
from shoal.balance.forecast import Forecast
from shoal.balance.settings import BalanceSettings
from shoal.balance.situation import Pool, Situation
from shoal.balance.situation_builder import SETTLED_S
from shoal.flow.model import MeasureModel, ServerModel
from shoal.flow.pool import ServerPool
from shoal.flow.server_queues import QueueStep
from shoal.flow.traffic import Traffic


class LoadMeter:
    """The open window, and the kept figures of earlier ones."""

    def __init__(
        self,
        names: pa.Array,
        server: ServerModel,
        model: MeasureModel,
        settings: BalanceSettings,
        seed: int,
        forecast: Forecast | None = None,
    ) -> None:
        self._names = names
        self._server = server
        self._model = model
        self._settings = settings
        self._forecast = forecast
        self._rng = np.random.default_rng([seed, 1])
        self._past: list[tuple[float, float]] = []
        self.moved_at: Floats = np.full(len(names), NEVER)
        self.planned_at: float = NEVER
        self._host_bytes: Floats
        self._host_cpu: Floats
        self._open()

    def add(self, traffic: Traffic, step: QueueStep) -> None:
        """Adds a second to the window. Servers may have joined since the last one."""
        self._seconds += 1
        self._publications += traffic.publications
        messages = traffic.messages_out
        self._messages += messages
        self._bytes += messages * traffic.message_bytes
        np.maximum(self._publishers, traffic.publishers, out=self._publishers)
        np.maximum(self._subscribers, traffic.subscribers, out=self._subscribers)
        more = len(step.bytes_out) - len(self._host_bytes)
        if more:
            self._host_bytes = np.append(self._host_bytes, np.zeros(more))
            self._host_cpu = np.append(self._host_cpu, np.zeros(more))
        self._host_bytes += np.minimum(step.bytes_out, self._server.limit_bytes_per_s)
        self._host_cpu += np.minimum(step.cpu, self._server.cpu_capacity)

    @property
    def is_full(self) -> bool:
        """Whether the window has all its seconds."""
        return self._seconds >= self._settings.window_s

    def close(self, now_s: float, placements: Placements, parts: Floats, pool: ServerPool) -> Situation:
        """The situation at the end of the window. `placements` name servers by their row in the pool; `parts` is the
        share of its channel that each of them had."""
        rate = 1.0 / self._seconds
        publications, messages = self._publications * rate, self._messages * rate
        bytes_out = self._bytes * rate
        host_bytes, host_cpu = self._host_bytes * rate, self._host_cpu * rate
        if self._model.noise:
            for column in (publications, host_bytes, host_cpu):
                column *= self._off(len(column))
            seen = self._off(len(bytes_out))
            messages, bytes_out = messages * seen, bytes_out * seen
        self._past.append((now_s, float(bytes_out.sum())))
        self._past = self._past[-self._settings.past_windows :]
        past = np.array(self._past)
        channels = Channels(
            self._names,
            publications,
            self._publishers,
            self._subscribers,
            messages,
            bytes_out,
            publications * self._server.publication_cpu_s,
            messages * self._server.delivery_cpu_s,
        )
        compact = np.cumsum(pool.present, dtype=np.int32) - 1
        settled = (self.moved_at < now_s - self._settings.window_s - SETTLED_S)[placements.rows]
        seen_placements = Placements(
            placements.mode,
            placements.offsets,
            compact[placements.servers].astype(np.int32),
            np.where(settled, parts, placements.part),
        )
        situation = Situation(
            at_s=now_s,
            channels=channels,
            placements=seen_placements,
            hosts=pool.hosts(host_bytes, host_cpu),
            pool=self._pool(pool),
            moved_at=self.moved_at.copy(),
            planned_at=self.planned_at,
            past_at=past[:, 0].copy(),
            past_bytes_out=past[:, 1].copy(),
            forecast=self._forecast,
        )
        self._open()
        return situation

    def planned(self, rows: Ints, now_s: float) -> None:
        """Notes that a plan has placed these channels."""
        self.planned_at = now_s
        self.moved_at[rows] = now_s

    def _pool(self, pool: ServerPool) -> Pool:
        return Pool(
            servers_min=pool.model.servers_min,
            servers_max=pool.model.servers_max,
            adding=pool.adding,
            new_capacity=self._server.capacity_bytes_per_s,
            new_cpu_capacity=self._server.cpu_capacity,
            new_cost=pool.model.server_hour_cost,
        )

    def _off(self, count: int) -> Floats:
        """The factor by which each measurement is off."""
        return self._rng.normal(1.0, self._model.noise, count).clip(min=0.0)

    def _open(self) -> None:
        count = len(self._names)
        self._seconds = 0
        self._publications, self._messages, self._bytes = np.zeros(count), np.zeros(count), np.zeros(count)
        self._publishers, self._subscribers = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self._host_bytes = np.zeros(0)
        self._host_cpu = np.zeros(0)
