"""A situation: the only input of a policy besides its settings.

Owns the record. The three arguments of a policy (load window, plan, pool) are passed as one, because their rows belong
together: channel `i` and host `j` are the same in all columns. `shoal.balance.situation_builder` joins a load window, a
plan and a pool into a situation; the flow simulator creates situations directly.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.balance.columns import Channels, Floats, Hosts, Placements, host_loads
from shoal.balance.forecast import Forecast


@dataclass(frozen=True, slots=True)
class Pool:
    """The limits of the provider: how many servers there may be, and the capacity and cost of a new one."""

    servers_min: int
    servers_max: int
    adding: int
    """Servers that were requested and have not joined yet."""
    new_capacity: float
    """Bytes per second that a new server may send."""
    new_cpu_capacity: float
    new_cost: float


@dataclass(frozen=True, slots=True)
class Situation:
    """One moment: the window that ended at `at_s`, the plan in force, the pool.

    `moved_at` is when each channel was last placed (`NEVER` if it was not), `planned_at` when the last plan was made.
    `past_at` and `past_bytes_out` are the ends of the last windows and the total that was sent in them (bytes per
    second), oldest first and including this window; trends are estimated from them. `forecast` is the expected load,
    if there is a forecast.
    """

    at_s: float
    channels: Channels
    placements: Placements
    hosts: Hosts
    pool: Pool
    moved_at: Floats
    planned_at: float
    past_at: Floats
    past_bytes_out: Floats
    forecast: Forecast | None = None

    def residual(self) -> tuple[Floats, Floats]:
        """The load of hosts that belongs to no channel (bytes per second, cores). It stays when channels move."""
        bytes_out, cpu = host_loads(self.channels, self.placements, len(self.hosts))
        return (self.hosts.bytes_out - bytes_out).clip(min=0.0), (self.hosts.cpu - cpu).clip(min=0.0)
