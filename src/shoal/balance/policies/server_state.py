"""States and loads of servers, as all policies define them: which servers take channels, what each would carry, and how
many can be added.

Owns these definitions. It makes no decisions.

A server that takes no channels is one of three:

    dead        its capacity is 0. Channels placed there are served nowhere
    silent      it did not report, so its load is unknown. It is left as it is
    draining    otherwise: its channels are to move elsewhere
"""

from __future__ import annotations

import numpy as np

from shoal.balance.columns import Bools, Floats, Hosts, Placements, host_loads
from shoal.balance.settings import BalanceSettings
from shoal.balance.situation import Situation


def is_due(situation: Situation, settings: BalanceSettings) -> bool:
    """Return whether the last plan is old enough for another one (the paper's T_wait)."""
    return situation.at_s - situation.planned_at >= settings.wait_s


def dead(hosts: Hosts) -> Bools:
    """Return which servers are dead."""
    return ~hosts.takes & (hosts.capacity <= 0)


def silent(situation: Situation) -> Bools:
    """Return which servers did not report."""
    hosts = situation.hosts
    return ~hosts.takes & ~hosts.heard & (hosts.capacity > 0)


def draining(situation: Situation) -> Bools:
    """Return which servers are being drained."""
    hosts = situation.hosts
    return ~hosts.takes & (hosts.capacity > 0) & ~silent(situation)


def targets(hosts: Hosts) -> Bools:
    """Return which servers may receive channels: those with capacity, if there are any."""
    able = hosts.takes & (hosts.capacity > 0)
    return able if able.any() else hosts.takes.copy()


def known_capacity(situation: Situation) -> Floats:
    """Return the bytes per second that each server may send; 0 for silent ones."""
    return np.where(silent(situation), 0.0, situation.hosts.capacity)


def addable(situation: Situation) -> int:
    """Return how many more servers the provider could add."""
    present = int((~dead(situation.hosts)).sum())
    return max(0, situation.pool.servers_max - present - situation.pool.adding)


def estimated_loads(situation: Situation, placements: Placements) -> Floats:
    """Return the bytes per second that each server would send: its other output, plus its channels by the model."""
    bytes_out, _ = host_loads(situation.channels, placements, len(situation.hosts))
    return situation.residual()[0] + bytes_out


def ratios(loads: Floats, capacity: Floats) -> Floats:
    """Return load divided by capacity (the paper's eq. 1); infinite for load on a server without capacity."""
    nothing = np.where(loads > 0, np.inf, 0.0)
    return np.divide(loads, capacity, out=nothing, where=capacity > 0)


def average_ratio(loads: Floats, capacity: Floats) -> float:
    """Return total load divided by total capacity. Unlike the mean of the ratios, it does not change when a channel
    moves.
    """
    known = capacity > 0
    return float(loads[known].sum() / capacity[known].sum()) if known.any() else 0.0


def highest_ratio(loads: Floats, capacity: Floats) -> float:
    """Return the load ratio of the busiest server with capacity."""
    known = capacity > 0
    return float((loads[known] / capacity[known]).max(initial=0.0))
