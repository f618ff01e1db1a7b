"""The number of servers: when to add, drain or keep them.

Owns the part of the `shoal` policy's objective that concerns servers. In the unit of `server_hour_price`, an hour of
the pool costs

    server_hour_price * (cost of its servers)  +  OVERLOAD_HOUR_PRICE * (servers' worth of load above safe_ratio)

at the load of the horizon, or at the forecast beyond it. Servers are added, in one step, as long as the sum falls;
servers that are being drained are kept first, because they are already running. Servers are drained if the others stay
well below `safe_ratio` and the savings pay for moving their channels within `PAYBACK_H`; those with the highest cost
per capacity go first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from shoal.balance.columns import Bools, Floats, Hosts32, Ints
from shoal.balance.decision import Reason
from shoal.balance.policies.estimate import CAPACITY_MIN, Estimate
from shoal.balance.settings import BalanceSettings
from shoal.balance.situation import Situation

OVERLOAD_HOUR_PRICE: Final = 20.0
"""Cost of an hour of overload by one server's worth of load, in the unit of `server_hour_price`."""
PAYBACK_H: Final = 1.0
"""Hours within which draining a server must pay for the moves."""
NO_HOSTS: Final = np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True)
class Sizing:
    """Servers to add, drain and keep, and which servers may then take channels."""

    takes: Bools
    add: int = 0
    drain: Hosts32 = field(default_factory=lambda: NO_HOSTS)
    keep: Hosts32 = field(default_factory=lambda: NO_HOSTS)
    reason: Reason | None = None
    figures: dict[str, float] = field(default_factory=dict)


def grown(situation: Situation, load: Estimate, settings: BalanceSettings, least: int = 0) -> Sizing:
    """Add servers as long as they lower the cost of an hour, but at least `least`; draining ones are kept first."""
    hosts, pool = situation.hosts, situation.pool
    per_capacity = hosts.cost / load.capacity
    spare = np.flatnonzero(~hosts.takes & ~load.dead & ~load.silent)
    spare = spare[np.argsort(per_capacity[spare], kind="stable")]
    new = max(0, pool.servers_max - int((~load.dead).sum()) - pool.adding)

    def ladder(first: float, kept: Floats, each: float) -> Floats:
        return first + np.concatenate(([0.0], np.cumsum(np.concatenate((kept, np.full(new, each))))))

    capacity = ladder(
        load.capacity[load.takes].sum() + pool.adding * pool.new_capacity, load.capacity[spare], pool.new_capacity
    )
    cpu = ladder(
        load.cpu_capacity[load.takes].sum() + pool.adding * pool.new_cpu_capacity,
        load.cpu_capacity[spare],
        pool.new_cpu_capacity,
    )
    price = ladder(0.0, hosts.cost[spare], pool.new_cost) * settings.server_hour_price
    ratio = np.maximum(
        load.host_bytes_out.sum() * load.ahead / np.maximum(capacity, CAPACITY_MIN),
        load.host_cpu.sum() * load.ahead / np.maximum(cpu, CAPACITY_MIN),
    )
    servers = load.takes.sum() + pool.adding + np.arange(len(ratio))
    overload = np.maximum(0.0, ratio - settings.safe_ratio) * np.maximum(servers, 1)
    steps = max(int(np.argmin(price + OVERLOAD_HOUR_PRICE * overload)), min(least, len(ratio) - 1))
    if not steps:
        return Sizing(load.takes)
    keep = spare[:steps].astype(np.int32)
    takes = load.takes.copy()
    takes[keep] = True
    figures = {"growth": load.growth, "average_ratio": float(ratio[0]), "average_ratio_after": float(ratio[steps])}
    if load.ahead > 1.0:
        figures["ahead"] = load.ahead
    return Sizing(takes, steps - len(keep), keep=keep, reason=Reason.GROW, figures=figures)


def shrunk(situation: Situation, load: Estimate, settings: BalanceSettings) -> Sizing:
    """Remove as many servers as the others can spare. Only for calm times: no growth, and no servers being added."""
    hosts, pool = situation.hosts, situation.pool
    takes = load.takes.copy()
    before = load.bound(takes)
    level = (settings.low_ratio + settings.safe_ratio) / 2.0
    held: Ints = np.bincount(situation.placements.servers, minlength=len(hosts))
    saved = hosts.cost * settings.server_hour_price * PAYBACK_H
    old = situation.at_s - hosts.joined_at >= settings.horizon_s
    worth = takes & old & hosts.drainable & (saved > held * settings.move_price)
    order = np.lexsort((np.arange(len(hosts)), load.ratio, -hosts.cost / load.capacity))
    drain: list[int] = []
    for host in order[worth[order]]:
        takes[host] = False
        if takes.sum() < max(1, pool.servers_min) or load.bound(takes) > level:
            takes[host] = True
            continue
        drain.append(int(host))
    if not drain:
        return Sizing(takes)
    figures = {"growth": load.growth, "average_ratio": before, "average_ratio_after": load.bound(takes)}
    return Sizing(takes, drain=np.array(drain, np.int32), reason=Reason.SHRINK, figures=figures)
