"""Compiled loops of the `shoal` policy: which shares leave a server, and which server takes each.

Owns the loops and the records of arrays that they work on. A loop is compiled at its first call, never at import, and
then comes from the cache on disk. Knows nothing of settings, reasons or plans.

A *share* is one server's part of one channel: an element of `Placements.servers`. A share's size is what it adds to
its server's load ratio, in whichever of bandwidth and CPU is the server's scarcer one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar, cast

import numba
import numpy as np

from shoal.balance.columns import Bools, Floats, Hosts32, Ints
from shoal.wire.compiled_cache import keep

Function = TypeVar("Function", bound=Callable[..., Any])

COVER: Final = 2.0
"""A share that relieves its server in one move may be this many times larger than what the server has to lose."""
SCANNED_MAX: Final = 256
"""Shares of one server that `improve` looks at, largest first."""
COUNT_WEIGHT: Final = 1e-9
"""What an earlier arrival counts against a server when all else is equal: channels without load spread too."""


class Shares(NamedTuple):
    """The shares, row by row. `host` changes as they move; `free` says which may still leave their server."""

    row: Ints
    """The channel's row."""
    first: Ints
    """By channel: its first share; one more at the end."""
    host: Hosts32
    bytes_out: Floats
    cpu: Floats
    free: Bools


class Load(NamedTuple):
    """What each server carries and can carry. All but the capacities change as shares move."""

    bytes_out: Floats
    cpu: Floats
    capacity: Floats
    cpu_capacity: Floats
    arrivals: Ints
    """Shares that each server was given so far."""
    room_bytes: Floats
    """What each server may still be given: it falls with every arrival, and no departure makes it more."""
    room_cpu: Floats


class Shelves(NamedTuple):
    """The shares of each server, largest first: those of server `h` are `order[starts[h]:starts[h + 1]]`."""

    order: Ints
    starts: Ints


def kernel(function: Function) -> Function:
    """Marks a compiled loop: compiled at its first call, then loaded from the cache on disk."""
    return cast(Function, keep(numba.njit(function)))


@kernel
def shelve(host: Hosts32, size: Floats, hosts: int) -> tuple[Ints, Ints]:
    """The order and the starts of `Shelves`. Shares of one size stay in their order."""
    starts = np.zeros(hosts + 1, np.int64)
    for server in host:
        starts[server + 1] += 1
    for server in range(hosts):
        starts[server + 1] += starts[server]
    at = starts.copy()
    order = np.empty(len(host), np.int64)
    for share in range(len(host)):
        order[at[host[share]]] = share
        at[host[share]] += 1
    for server in range(hosts):
        shelf = order[starts[server] : starts[server + 1]]
        order[starts[server] : starts[server + 1]] = shelf[np.argsort(-size[shelf], kind="mergesort")]
    return order, starts


@kernel
def moves_for(levels: Floats, ratio: Floats, size: Floats, free: Bools, shelves: Shelves) -> Ints:
    """How many shares must leave, at least, to bring every server to each of some levels (ascending)."""
    counts = np.zeros(len(levels), np.int64)
    for server in range(len(ratio)):
        at, gone, moved = shelves.starts[server], 0.0, 0
        for level in range(len(levels) - 1, -1, -1):
            while at < shelves.starts[server + 1] and ratio[server] - gone > levels[level]:
                share = shelves.order[at]
                if free[share]:
                    gone += size[share]
                    moved += 1
                at += 1
            counts[level] += moved
    return counts


@kernel
def _ratio(load: Load, server: int) -> float:
    bytes_ratio: float = load.bytes_out[server] / load.capacity[server]
    cpu_ratio: float = load.cpu[server] / load.cpu_capacity[server]
    return bytes_ratio if bytes_ratio > cpu_ratio else cpu_ratio


@kernel
def _relief(load: Load, shares: Shares, server: int, share: int) -> float:
    """What a share takes off its server's ratio, in the dimension that is the scarcer one now."""
    if load.bytes_out[server] / load.capacity[server] >= load.cpu[server] / load.cpu_capacity[server]:
        relief: float = shares.bytes_out[share] / load.capacity[server]
    else:
        relief = shares.cpu[share] / load.cpu_capacity[server]
    return relief


@kernel
def _add(load: Load, shares: Shares, server: int, share: int, sign: float) -> None:
    load.bytes_out[server] += sign * shares.bytes_out[share]
    load.cpu[server] += sign * shares.cpu[share]


@kernel
def _arrive(load: Load, shares: Shares, server: int, share: int) -> None:
    shares.host[share] = server
    load.arrivals[server] += 1
    load.room_bytes[server] -= shares.bytes_out[share]
    load.room_cpu[server] -= shares.cpu[share]


@kernel
def _has(shares: Shares, share: int, server: int) -> bool:
    """Whether the share's channel has this server already."""
    row = shares.row[share]
    for other in range(shares.first[row], shares.first[row + 1]):  # noqa: SIM110 (numba knows no generator in any())
        if shares.host[other] == server:
            return True
    return False


@kernel
def shed(servers: Ints, levels: Floats, budget: int, load: Load, shares: Shares, shelves: Shelves) -> Ints:
    """Takes shares off servers, one server after the other, until each is at its level; returns them.

    Of a server's shares the largest useful ones leave: one that is enough by itself and not much more than enough,
    else the largest that is not more than needed, and so on. A level below zero empties the server.
    """
    chosen = np.empty(min(budget, len(shares.row)), np.int64)
    count = 0
    for server in servers:
        enough = -1
        for at in range(shelves.starts[server], shelves.starts[server + 1]):
            excess = _ratio(load, server) - levels[server]
            if excess <= 0.0 or count == budget:
                break
            share = shelves.order[at]
            if not shares.free[share] or shares.host[share] != server:
                continue
            relief = _relief(load, shares, server, share)
            if levels[server] >= 0.0:
                if relief <= 0.0:
                    continue
                if relief >= excess:
                    enough = share
                    continue
                if enough >= 0 and _relief(load, shares, server, enough) <= COVER * excess:
                    share = enough
                    enough = -1
            chosen[count] = share
            count += 1
            _add(load, shares, server, share, -1.0)
        if enough >= 0 and count < budget and _ratio(load, server) > levels[server]:
            chosen[count] = enough
            count += 1
            _add(load, shares, server, enough, -1.0)
    return chosen[:count]


@kernel
def place(chosen: Ints, level: float, takers: Ints, load: Load, shares: Shares) -> int:
    """Gives each chosen share, which is on no server, to a taker that it does not bring above the level and that has
    room for its coming.

    Of all such servers it goes to the one that has most room afterwards in what the share needs. A share for which
    there is none goes back. Either way it does not leave again. Returns how many found a place.
    """
    placed = 0
    any_taker = takers[0]
    for share in chosen:
        bytes_out, cpu = shares.bytes_out[share], shares.cpu[share]
        several = shares.first[shares.row[share] + 1] - shares.first[shares.row[share]] > 1
        origin = shares.host[share]
        bytes_weight, cpu_weight = bytes_out / load.capacity[any_taker], cpu / load.cpu_capacity[any_taker]
        best, best_score = -1, np.inf
        for server in takers:
            bytes_ratio = (load.bytes_out[server] + bytes_out) / load.capacity[server]
            cpu_ratio = (load.cpu[server] + cpu) / load.cpu_capacity[server]
            if bytes_ratio > level or cpu_ratio > level or (several and _has(shares, share, server)):
                continue
            if server == origin or bytes_out > load.room_bytes[server] or cpu > load.room_cpu[server]:
                continue
            score = bytes_weight * bytes_ratio + cpu_weight * cpu_ratio + COUNT_WEIGHT * load.arrivals[server]
            if score < best_score:
                best, best_score = server, score
        shares.free[share] = False
        if best < 0:
            best = origin
        else:
            _arrive(load, shares, best, share)
            placed += 1
        _add(load, shares, best, share, 1.0)
    return placed


@kernel
def improve(goal: float, margin: float, budget: int, takers: Ints, load: Load, shares: Shares, shelves: Shelves) -> int:
    """Lowers the busiest server as far as single moves can, then the next, while they are above the goal.

    Each move leaves both servers below what the busier was by at least the margin: that is what makes it end.
    Returns how many moves it made.
    """
    moved = 0
    stuck = np.zeros(len(load.capacity), np.bool_)
    while moved < budget:
        worst, worst_ratio = -1, goal
        for server in range(len(stuck)):
            if not stuck[server] and _ratio(load, server) > worst_ratio:
                worst, worst_ratio = server, _ratio(load, server)
        if worst < 0:
            break
        share, target = _best_move(worst, worst_ratio - margin, takers, load, shares, shelves)
        if share < 0:
            stuck[worst] = True
            continue
        _add(load, shares, worst, share, -1.0)
        _add(load, shares, target, share, 1.0)
        _arrive(load, shares, target, share)
        shares.free[share] = False
        moved += 1
    return moved


@kernel
def _best_move(
    source: int, below: float, takers: Ints, load: Load, shares: Shares, shelves: Shelves
) -> tuple[int, int]:
    """The move off a server after which the busier of the two is lowest; (-1, -1) if none ends below the bound."""
    best_share, best_target, best = -1, -1, below
    scanned = 0
    for at in range(shelves.starts[source], shelves.starts[source + 1]):
        share = shelves.order[at]
        if not shares.free[share] or shares.host[share] != source:
            continue
        scanned += 1
        if scanned > SCANNED_MAX:
            break
        left = max(
            (load.bytes_out[source] - shares.bytes_out[share]) / load.capacity[source],
            (load.cpu[source] - shares.cpu[share]) / load.cpu_capacity[source],
        )
        if left >= best:
            continue
        for server in takers:
            if shares.bytes_out[share] > load.room_bytes[server] or shares.cpu[share] > load.room_cpu[server]:
                continue
            if server == source or _has(shares, share, server):
                continue
            bytes_ratio = (load.bytes_out[server] + shares.bytes_out[share]) / load.capacity[server]
            cpu_ratio = (load.cpu[server] + shares.cpu[share]) / load.cpu_capacity[server]
            highest = max(left, bytes_ratio, cpu_ratio)
            if highest < best:
                best_share, best_target, best = share, server, highest
    return best_share, best_target
