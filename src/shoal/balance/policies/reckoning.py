"""What policies reckon with: which servers are there, what each would carry, and what the pool still allows.

Owns these few sums, so that all policies mean the same by them. Decides nothing.

A server that takes no channels is one of three:

    dead        its capacity is 0. What is placed there is placed nowhere
    silent      it did not report: nobody knows what it carries. It is left as it is
    draining    else: its channels are to go elsewhere
"""

from __future__ import annotations

import numpy as np

from shoal.balance.columns import Bools, Floats, Hosts, Placements, host_loads
from shoal.balance.settings import BalanceSettings
from shoal.balance.situation import Situation


def is_due(situation: Situation, settings: BalanceSettings) -> bool:
    """Whether the last plan is long enough ago for another one (the paper's T_wait)."""
    return situation.at_s - situation.planned_at >= settings.wait_s


def dead(hosts: Hosts) -> Bools:
    """Which servers are dead."""
    return ~hosts.takes & (hosts.capacity <= 0)


def silent(situation: Situation) -> Bools:
    """Which servers did not report."""
    hosts = situation.hosts
    return ~hosts.takes & ~hosts.heard & (hosts.capacity > 0)


def draining(situation: Situation) -> Bools:
    """Which servers are being drained."""
    hosts = situation.hosts
    return ~hosts.takes & (hosts.capacity > 0) & ~silent(situation)


def targets(hosts: Hosts) -> Bools:
    """Which servers may be given channels: those that can carry something, if there are any."""
    able = hosts.takes & (hosts.capacity > 0)
    return able if able.any() else hosts.takes.copy()


def known_capacity(situation: Situation) -> Floats:
    """Bytes a second that each server may send; 0 for those of which nothing is known."""
    return np.where(silent(situation), 0.0, situation.hosts.capacity)


def addable(situation: Situation) -> int:
    """How many servers the provider could still be asked for."""
    present = int((~dead(situation.hosts)).sum())
    return max(0, situation.pool.servers_max - present - situation.pool.adding)


def estimated_loads(situation: Situation, placements: Placements) -> Floats:
    """Bytes a second that each server would send: what it sends beside the channels, and the channels by the model."""
    bytes_out, _ = host_loads(situation.channels, placements, len(situation.hosts))
    return situation.residual()[0] + bytes_out


def ratios(loads: Floats, capacity: Floats) -> Floats:
    """Load by capacity (the paper's eq. 1). Infinite for a load on a server that can carry nothing."""
    nothing = np.where(loads > 0, np.inf, 0.0)
    return np.divide(loads, capacity, out=nothing, where=capacity > 0)


def average_ratio(loads: Floats, capacity: Floats) -> float:
    """All load by all capacity: unlike the mean of the ratios, it does not change when a channel moves."""
    known = capacity > 0
    return float(loads[known].sum() / capacity[known].sum()) if known.any() else 0.0


def highest_ratio(loads: Floats, capacity: Floats) -> float:
    """The load ratio of the busiest server that can carry anything."""
    known = capacity > 0
    return float((loads[known] / capacity[known]).max(initial=0.0))
