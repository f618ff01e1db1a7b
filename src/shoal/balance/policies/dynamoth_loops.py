"""Dynamoth's compiled loops: which servers a channel gets, and which channels leave a server.

Owns the loops over channels and servers. They are compiled at their first call, and are in one file because the cache
of compiled loops only checks changes of the loop's own file. The loops do not depend on settings or plans.
docs/policies.md explains the loops of the paper that may not terminate.
"""

from __future__ import annotations

import numpy as np

from shoal.balance.columns import Bools, Floats, Hosts32, Ints
from shoal.wire.raw_bytes import kernel, part


@part
def _ratio(load: float, capacity: float) -> float:
    if capacity > 0:
        return load / capacity
    return np.inf if load > 0 else 0.0


@part
def _holds(own: Hosts32, server: int) -> bool:
    for other in own:  # noqa: SIM110 (numba does not support generators in any())
        if other == server:
            return True
    return False


@kernel
def choose_servers(
    rows: Ints,
    want: Ints,
    offsets: Ints,
    servers: Hosts32,
    weights: Floats,
    loads: Floats,
    capacity: Floats,
    targets: Bools,
    safe_ratio: float,
    chosen: Hosts32,
) -> None:
    """Write the servers of each row to `chosen`: as many as wanted, or as close to that as the safe ratio allows."""
    ranked = np.empty(chosen.shape[1], np.int32)
    for index in range(len(rows)):
        row = rows[index]
        own, weight = servers[offsets[row] : offsets[row + 1]], weights[row]
        worst = 0.0
        for server in own:
            worst = max(worst, _ratio(loads[server], capacity[server]))
        for server in own:
            loads[server] -= weight / len(own)
        count = _rank(own, weight, max(len(own), want[index]), loads, capacity, targets, ranked)
        goal = min(want[index], count)
        sizes = range(goal, len(own), -1) if goal > len(own) else range(goal, min(len(own), count) + 1, 1)
        taken = 0
        for size in sizes:
            if size > 0 and _fits(own, ranked[:size], weight, loads, capacity, safe_ratio, worst):
                taken = size
                break
        if taken:
            _arrange(own, ranked[:taken], chosen[index])
        else:
            chosen[index, : len(own)] = own
            taken = len(own)
        for place in range(taken):
            loads[chosen[index, place]] += weight / taken


@part
def _rank(
    own: Hosts32, weight: float, places: int, loads: Floats, capacity: Floats, targets: Bools, ranked: Hosts32
) -> int:
    """Rank the servers for a channel: its own first, and the least loaded first."""
    count, share = 0, weight / places
    for is_own in (True, False):
        while count < min(places, len(ranked)):
            best, lowest = -1, np.inf
            for server in range(len(loads)):
                ratio = _ratio(loads[server] + share, capacity[server])
                if not targets[server] or (best >= 0 and ratio >= lowest):
                    continue
                if _holds(own, server) == is_own and not _holds(ranked[:count], server):
                    best, lowest = server, ratio
            if best < 0:
                break
            ranked[count] = best
            count += 1
    return count


@part
def _fits(
    own: Hosts32, new: Hosts32, weight: float, loads: Floats, capacity: Floats, safe_ratio: float, worst: float
) -> bool:
    """Return whether no server that gains load is filled above the safe ratio.

    While servers are added, it may be, if it ends below `worst`: the previous ratio of the channel's busiest server.
    """
    limit = safe_ratio if len(new) < len(own) else max(safe_ratio, worst)
    for server in new:
        gains = weight > 0 and (len(new) < len(own) or not _holds(own, server))
        ratio = _ratio(loads[server] + weight / len(new), capacity[server])
        if gains and ratio > safe_ratio and ratio >= limit:
            return False
    return True


@part
def _arrange(own: Hosts32, new: Hosts32, chosen: Hosts32) -> None:
    """Write the new servers: a server that stays keeps its position, and a new one takes the position of one that goes,
    so that fewer clients move.
    """
    position, fresh = 0, 0
    for turn in range(len(own) + len(new)):
        if turn < len(own) and _holds(new, own[turn]):
            chosen[position] = own[turn]
            position += 1
            continue
        while fresh < len(new) and _holds(own, new[fresh]):
            fresh += 1
        if fresh < len(new):
            chosen[position] = new[fresh]
            position += 1
            fresh += 1


@kernel
def relieve(
    offsets: Ints,
    rows: Ints,
    host: Hosts32,
    bytes_out: Floats,
    order: Ints,
    starts: Ints,
    moved: Bools,
    loads: Floats,
    capacity: Floats,
    targets: Bools,
    high: float,
    safe: float,
) -> None:
    """Each server is the most loaded one at most once, and a channel moves at most once, so the loop terminates."""
    is_done = np.zeros(len(loads), np.bool_)
    while True:
        busiest = _most_loaded(loads, capacity, is_done)
        if busiest < 0 or loads[busiest] <= high * capacity[busiest]:
            return
        is_done[busiest] = True
        room = _largest_room(loads, capacity, targets, safe)
        for position in range(starts[busiest], starts[busiest + 1]):
            element = order[position]
            if loads[busiest] < safe * capacity[busiest] or bytes_out[element] <= 0:
                break
            if bytes_out[element] > room or moved[rows[element]]:
                continue
            own = host[offsets[rows[element]] : offsets[rows[element] + 1]]
            target = _lowest_with(own, bytes_out[element], loads, capacity, targets)
            if target < 0 or loads[target] + bytes_out[element] > safe * capacity[target]:
                continue
            loads[busiest] -= bytes_out[element]
            loads[target] += bytes_out[element]
            host[element] = target
            moved[rows[element]] = True
            room = _largest_room(loads, capacity, targets, safe)


@kernel
def level(
    offsets: Ints,
    rows: Ints,
    host: Hosts32,
    bytes_out: Floats,
    order: Ints,
    starts: Ints,
    moved: Bools,
    loads: Floats,
    capacity: Floats,
    targets: Bools,
    high: float,
    gain: float,
) -> None:
    """Every iteration moves a channel that has not moved yet, or gives up a server, so the loop terminates."""
    is_done = np.zeros(len(loads), np.bool_)
    no_servers = np.empty(0, np.int32)
    while True:
        busiest = _most_loaded(loads, capacity, is_done)
        if busiest < 0 or loads[busiest] <= high * capacity[busiest]:
            return
        target = _lowest_with(no_servers, 0.0, loads, capacity, targets)
        found = -1
        if target >= 0 and target != busiest:
            for position in range(starts[busiest], starts[busiest + 1]):
                element = order[position]
                if bytes_out[element] <= 0:
                    break
                own = host[offsets[rows[element]] : offsets[rows[element] + 1]]
                if moved[rows[element]] or _holds(own, target):
                    continue
                after = _ratio(loads[target] + bytes_out[element], capacity[target])
                if after > _ratio(loads[busiest], capacity[busiest]) - gain:
                    continue
                # The busiest channel that leaves the target below its old server; if there is none, the smallest.
                found = element
                if after <= _ratio(loads[busiest] - bytes_out[element], capacity[busiest]):
                    break
        if found < 0:
            is_done[busiest] = True
            continue
        loads[busiest] -= bytes_out[found]
        loads[target] += bytes_out[found]
        host[found] = target
        moved[rows[found]] = True


@kernel
def find_room(
    offsets: Ints,
    rows: Ints,
    host: Hosts32,
    bytes_out: Floats,
    mine: Ints,
    weights: Floats,
    loads: Floats,
    capacity: Floats,
    targets: Bools,
    limit: float,
    goes_to: Hosts32,
) -> bool:
    """Return whether each part finds a server that stays below the limit; the servers are in `goes_to`.

    A part of a channel that is already on all targets needs none: the channel will have one server less.
    """
    for index in range(len(mine)):
        element = mine[index]
        own = host[offsets[rows[element]] : offsets[rows[element] + 1]]
        target = _lowest_with(own, weights[index], loads, capacity, targets)
        if target < 0:
            if len(own) == 1:
                return False
            continue
        if bytes_out[element] > 0 and loads[target] + bytes_out[element] > limit * capacity[target]:
            return False
        loads[target] += weights[index]
        goes_to[index] = target
    return True


@part
def _most_loaded(loads: Floats, capacity: Floats, is_done: Bools) -> int:
    """Return the server with the highest load ratio among those with capacity that are not done."""
    best, highest = -1, -1.0
    for server in range(len(loads)):
        if not is_done[server] and capacity[server] > 0 and loads[server] / capacity[server] > highest:
            best, highest = server, loads[server] / capacity[server]
    return best


@part
def _lowest_with(own: Hosts32, weight: float, loads: Floats, capacity: Floats, targets: Bools) -> int:
    """Return the target with the lowest ratio after adding the weight: if it has no room, no target has."""
    best, lowest = -1, np.inf
    for server in range(len(loads)):
        if targets[server]:
            ratio = _ratio(loads[server] + weight, capacity[server])
            if (best < 0 or ratio < lowest) and not _holds(own, server):
                best, lowest = server, ratio
    return best


@part
def _largest_room(loads: Floats, capacity: Floats, targets: Bools, limit: float) -> float:
    """Return the most bytes per second that one server can still take."""
    room = -np.inf
    for server in range(len(loads)):
        if targets[server]:
            room = max(room, limit * capacity[server] - loads[server])
    return room
