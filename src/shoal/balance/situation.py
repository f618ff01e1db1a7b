"""A situation: all that a policy may look at, and nothing else.

Owns the record. The three arguments of a policy (load window, plan, pool) travel as one, because their rows belong
together: channel `i` and host `j` are the same in all columns. `shoal.balance.joining` makes one from a load window, a
plan and a pool; the flow simulator makes them directly.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.balance.columns import Channels, Floats, Hosts, Placements, host_loads
from shoal.balance.forecast import Forecast


@dataclass(frozen=True, slots=True)
class Pool:
    """What the provider could do: how many servers there may be, and what a new one would be like."""

    servers_min: int
    servers_max: int
    adding: int
    """Servers that were asked for and have not joined yet."""
    new_capacity: float
    """Bytes a second that a new server may send."""
    new_cpu_capacity: float
    new_cost: float


@dataclass(frozen=True, slots=True)
class Situation:
    """One moment: the window that ended at `at_s`, the plan in force, the pool.

    `moved_at` says for each channel when it was last placed (`NEVER` if not), `planned_at` when the last plan was
    made. `past_at` and `past_bytes_out` are the ends of the last windows and all that was sent in them (bytes a
    second), oldest first, this window included: what a trend is seen from. `forecast` is what is expected, if anybody
    expects anything.
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
        """What hosts carry beside the channels (bytes a second, cores): it stays wherever channels go."""
        bytes_out, cpu = host_loads(self.channels, self.placements, len(self.hosts))
        return (self.hosts.bytes_out - bytes_out).clip(min=0.0), (self.hosts.cpu - cpu).clip(min=0.0)
