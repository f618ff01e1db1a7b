"""Compiled loops of the `shoal` policy: which shares leave a server, and which server takes each.

Owns the loops and their records of arrays. A loop is compiled at its first call, never at import, and then loaded from
the cache on disk. The loops do not depend on settings, reasons or plans.

A *share* is one server's part of one channel: an element of `Placements.servers`. Its size is what it adds to its
server's load ratio, in the scarcer one of bandwidth and CPU.
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
"""A share that relieves its server in one move may be larger than needed by this factor."""
SCANNED_MAX: Final = 256
"""Shares of one server that `improve` examines, largest first."""
COUNT_WEIGHT: Final = 1e-9
"""Weight of earlier arrivals in a tie, so that channels without load spread too."""


class Shares(NamedTuple):
    """The shares, row by row. `host` changes as they move; `free` is whether a share may still leave its server."""

    row: Ints
    """The channel's row."""
    first: Ints
    """By channel: its first share; one extra element at the end."""
    host: Hosts32
    bytes_out: Floats
    cpu: Floats
    free: Bools


class Load(NamedTuple):
    """Load and capacity of each server. All but the capacities change as shares move."""

    bytes_out: Floats
    cpu: Floats
    capacity: Floats
    cpu_capacity: Floats
    arrivals: Ints
    """Shares that each server has received so far."""
    room_bytes: Floats
    """Load that each server may still receive. It falls with every arrival, and departures do not raise it."""
    room_cpu: Floats


class ServerShares(NamedTuple):
    """The shares of each server, largest first: those of server `h` are `order[starts[h]:starts[h + 1]]`."""

    order: Ints
    starts: Ints


def kernel(function: Function) -> Function:
    """Mark a compiled loop: compiled at its first call, then loaded from the cache on disk."""
    return cast(Function, keep(numba.njit(function)))


@kernel
def group_by_server(host: Hosts32, size: Floats, hosts: int) -> tuple[Ints, Ints]:
    """Return `order` and `starts` of `ServerShares`. Shares of equal size keep their order."""
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
        own = order[starts[server] : starts[server + 1]]
        order[starts[server] : starts[server + 1]] = own[np.argsort(-size[own], kind="mergesort")]
    return order, starts


@kernel
def moves_for(levels: Floats, ratio: Floats, size: Floats, free: Bools, by_server: ServerShares) -> Ints:
    """Return the minimum number of shares that must leave to bring every server to each of some levels (ascending)."""
    counts = np.zeros(len(levels), np.int64)
    for server in range(len(ratio)):
        at, gone, moved = by_server.starts[server], 0.0, 0
        for level in range(len(levels) - 1, -1, -1):
            while at < by_server.starts[server + 1] and ratio[server] - gone > levels[level]:
                share = by_server.order[at]
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
    """Return how much a share contributes to its server's ratio, in the currently scarcer dimension."""
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
    """Return whether the share's channel is already on this server."""
    row = shares.row[share]
    for other in range(shares.first[row], shares.first[row + 1]):  # noqa: SIM110 (numba does not support generators in any())
        if shares.host[other] == server:
            return True
    return False


@kernel
def shed(servers: Ints, levels: Floats, budget: int, load: Load, shares: Shares, by_server: ServerShares) -> Ints:
    """Remove shares from servers, one server after the other, until each is at its level; return the shares.

    The largest useful shares of a server leave: one that suffices alone and is not much more than needed, else the
    largest that is not more than needed, and so on. A level below zero empties the server.
    """
    chosen = np.empty(min(budget, len(shares.row)), np.int64)
    count = 0
    for server in servers:
        enough = -1
        for at in range(by_server.starts[server], by_server.starts[server + 1]):
            excess = _ratio(load, server) - levels[server]
            if excess <= 0.0 or count == budget:
                break
            share = by_server.order[at]
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
    """Give each chosen share, which is on no server, to a taker that stays below the level and has room for it.

    Of all such servers it goes to the one with the most room left in the dimension that the share needs. A share
    without a suitable server goes back. In both cases it does not leave again. Returns the number of placed shares.
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
def improve(
    goal: float, margin: float, budget: int, takers: Ints, load: Load, shares: Shares, by_server: ServerShares
) -> int:
    """Lower the busiest server as far as single moves can, then the next, while they are above the goal.

    Each move leaves both servers at least the margin below the previous ratio of the busier one, so the loop
    terminates. Returns the number of moves.
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
        share, target = _best_move(worst, worst_ratio - margin, takers, load, shares, by_server)
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
    source: int, below: float, takers: Ints, load: Load, shares: Shares, by_server: ServerShares
) -> tuple[int, int]:
    """Return the move off a server with the lowest resulting maximum of the two; (-1, -1) if none ends below the
    bound.
    """
    best_share, best_target, best = -1, -1, below
    scanned = 0
    for at in range(by_server.starts[source], by_server.starts[source + 1]):
        share = by_server.order[at]
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
