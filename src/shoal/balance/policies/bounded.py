"""Policy `bounded-load`: consistent hashing in which no server carries more than `BOUND_FACTOR` times its part.

After Mirrokni, Thorup and Zadimoghaddam, "Consistent Hashing with Bounded Loads", with bytes a second in the place of
balls: a channel goes to the first server clockwise from its hash that has room. A server's bound is its part of all
load, by capacity, times `BOUND_FACTOR`. Channels within the bound stay where they are, those at home before the others;
the rest walk on along the ring. It never replicates and never shrinks.

A channel that is larger than every bound cannot be placed within one: the first on a server stays where it is. A
channel without load stays too. One that finds room nowhere goes to the server whose ratio is lowest with it, unless it
is there already.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from shoal.balance.columns import SINGLE, Bools, Floats, Hosts32, Ints, Placements
from shoal.balance.decision import Decision, Reason
from shoal.balance.policies.deciding import AS_THEY_ARE, Servers, decide_for, hash_reasons
from shoal.balance.policies.naming import ring_hashes
from shoal.balance.policies.reckoning import (
    addable,
    average_ratio,
    estimated_loads,
    highest_ratio,
    is_due,
    known_capacity,
    silent,
    targets,
)
from shoal.balance.policies.ring_homes import ring_of
from shoal.balance.settings import BalanceSettings
from shoal.balance.situation import Situation
from shoal.wire.raw_bytes import kernel

BOUND_FACTOR: Final = 1.25
"""How far above its part of the load a server may be filled (the paper's 1 + epsilon)."""
_ROUNDING: Final = 1.0 + 1e-9
"""A bound that is passed by less than this is kept: sums in another order differ by as much."""


def decide(situation: Situation, settings: BalanceSettings) -> Decision:
    """Every channel within the bounds, and a new server if the average is too high."""
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
    stands = np.where((placements.mode == SINGLE) & may_stay[first], first, -1).astype(np.int32)
    too_large = channels.bytes_out > bounds[members].max()
    seniority = np.where(too_large, 0, np.where(stands == ring.owners[points], 1, 2))
    servers = np.empty(len(channels), np.int32)
    _place_all(
        np.lexsort((hashes, seniority)),
        np.argsort(hashes, kind="stable"),
        channels.bytes_out,
        stands,
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
    """Bytes a second that each server may be filled up to."""
    hosts = situation.hosts
    members = targets(hosts)
    total = float(estimated_loads(situation, situation.placements).sum())
    weights = np.where(members | silent(situation), hosts.capacity, 0.0)
    if not weights.any():
        weights = members.astype(np.float64)
    bounds: Floats = BOUND_FACTOR * total * (weights / weights.sum())
    return bounds


def growth(situation: Situation, settings: BalanceSettings) -> Servers:
    """One more server if the average is above the ratio for growth, a plan is due, and none is coming."""
    capacity = known_capacity(situation)
    average = average_ratio(situation.hosts.bytes_out, capacity)
    if average <= settings.grow_ratio or situation.pool.adding or not addable(situation):
        return AS_THEY_ARE
    if not is_due(situation, settings):
        return AS_THEY_ARE
    busiest = highest_ratio(situation.hosts.bytes_out, capacity)
    return Servers(add=1, reason=Reason.GROW, figures={"max_ratio": busiest, "average_ratio": average})


@kernel
def _place_all(
    by_seniority: Ints,
    by_hash: Ints,
    weights: Floats,
    stands: Hosts32,
    too_large: Bools,
    points: Ints,
    owners: Hosts32,
    residual: Floats,
    bounds: Floats,
    capacity: Floats,
    servers: Hosts32,
) -> None:
    """Keep what is within the bounds where it stands, and let the others walk the ring."""
    loads = residual.copy()
    servers[:] = -1
    for row in by_seniority:
        here = stands[row]
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
                    if ratio < lowest or (ratio == lowest and owner == stands[row]):
                        chosen, lowest = owner, ratio
        if chosen < 0:
            chosen = owners[points[row]]
        servers[row] = chosen
        loads[chosen] += weight
