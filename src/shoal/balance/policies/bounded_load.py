"""Policy `bounded-load`: consistent hashing in which no server carries more than `BOUND_FACTOR` times its fair share.

After Mirrokni, Thorup and Zadimoghaddam, "Consistent Hashing with Bounded Loads", with bytes per second instead of
balls: a channel goes to the first server clockwise from its hash that has room. A server's bound is its share of the
total load, by capacity, times `BOUND_FACTOR`. Channels within the bound stay where they are, with priority for those at
home; the others continue along the ring. The policy never replicates and never shrinks.

A channel that is larger than every bound cannot be placed within one: the first such channel on a server stays there. A
channel without load stays too. A channel that finds no room anywhere goes to the server with the lowest resulting
ratio, or stays if it is already there.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from shoal.balance.columns import SINGLE, Bools, Floats, Hosts32, Ints, Placements
from shoal.balance.decision import Decision, Reason
from shoal.balance.policies.decision_builder import NO_CHANGE, Servers, decide_for, hash_reasons
from shoal.balance.policies.name_hashes import ring_hashes
from shoal.balance.policies.ring_homes import ring_of
from shoal.balance.policies.server_state import (
    addable,
    average_ratio,
    estimated_loads,
    highest_ratio,
    is_due,
    known_capacity,
    silent,
    targets,
)
from shoal.balance.settings import BalanceSettings
from shoal.balance.situation import Situation
from shoal.wire.raw_bytes import kernel

BOUND_FACTOR: Final = 1.25
"""How far above its fair share a server may be filled (the paper's 1 + epsilon)."""
_ROUNDING: Final = 1.0 + 1e-9
"""Tolerance of the bound: sums in another order differ by rounding."""


def decide(situation: Situation, settings: BalanceSettings) -> Decision:
    """Place every channel within the bounds, and add a server if the average load is too high."""
    hosts, channels, placements = situation.hosts, situation.channels, situation.placements
    members = targets(hosts)
    if not members.any():
        return Decision.nothing()
    bounds = load_bounds(situation) if is_due(situation, settings) else np.full(len(hosts), np.inf)
    hashes = ring_hashes(channels.names)
    ring = ring_of(hosts, members)
    points = ring.points_of(hashes)
    first = placements.servers[placements.offsets[:-1]]
    may_stay = members | silent(situation)
    current = np.where((placements.mode == SINGLE) & may_stay[first], first, -1).astype(np.int32)
    too_large = channels.bytes_out > bounds[members].max()
    seniority = np.where(too_large, 0, np.where(current == ring.owners[points], 1, 2))
    servers = np.empty(len(channels), np.int32)
    _place_all(
        np.lexsort((hashes, seniority)),
        np.argsort(hashes, kind="stable"),
        channels.bytes_out,
        current,
        too_large,
        points,
        ring.owners,
        situation.residual()[0],
        bounds * _ROUNDING,
        np.where(members, hosts.capacity, 0.0),
        servers,
    )
    reasons = hash_reasons(situation, Reason.SPREAD)
    return decide_for(situation, Placements.single(servers), reasons, growth(situation, settings))


def load_bounds(situation: Situation) -> Floats:
    """Return the bytes per second up to which each server may be filled."""
    hosts = situation.hosts
    members = targets(hosts)
    total = float(estimated_loads(situation, situation.placements).sum())
    weights = np.where(members | silent(situation), hosts.capacity, 0.0)
    if not weights.any():
        weights = members.astype(np.float64)
    bounds: Floats = BOUND_FACTOR * total * (weights / weights.sum())
    return bounds


def growth(situation: Situation, settings: BalanceSettings) -> Servers:
    """Add one server if the average is above `grow_ratio`, a plan is due, and none is being added."""
    capacity = known_capacity(situation)
    average = average_ratio(situation.hosts.bytes_out, capacity)
    if average <= settings.grow_ratio or situation.pool.adding or not addable(situation):
        return NO_CHANGE
    if not is_due(situation, settings):
        return NO_CHANGE
    busiest = highest_ratio(situation.hosts.bytes_out, capacity)
    return Servers(add=1, reason=Reason.GROW, figures={"max_ratio": busiest, "average_ratio": average})


@kernel
def _place_all(
    by_seniority: Ints,
    by_hash: Ints,
    weights: Floats,
    current: Hosts32,
    too_large: Bools,
    points: Ints,
    owners: Hosts32,
    residual: Floats,
    bounds: Floats,
    capacity: Floats,
    servers: Hosts32,
) -> None:
    """Keep channels that are within the bounds in place, and place the others along the ring."""
    loads = residual.copy()
    servers[:] = -1
    for row in by_seniority:
        here = current[row]
        is_first = too_large[row] and loads[here] == residual[here]
        stays = is_first or weights[row] == 0 or loads[here] + weights[row] <= bounds[here]
        if here >= 0 and stays:
            servers[row] = here
            loads[here] += weights[row]
    room = np.inf
    for row in by_hash:
        if servers[row] >= 0:
            continue
        weight = weights[row]
        chosen = -1
        if weight <= room:
            for step in range(len(owners)):
                owner = owners[(points[row] + step) % len(owners)]
                if loads[owner] + weight <= bounds[owner]:
                    chosen = owner
                    break
        if chosen < 0:
            room, lowest = -np.inf, np.inf
            for owner in range(len(loads)):
                if capacity[owner] > 0:
                    room = max(room, bounds[owner] - loads[owner])
                    ratio = (loads[owner] + weight) / capacity[owner]
                    if ratio < lowest or (ratio == lowest and owner == current[row]):
                        chosen, lowest = owner, ratio
        if chosen < 0:
            chosen = owners[points[row]]
        servers[row] = chosen
        loads[chosen] += weight
