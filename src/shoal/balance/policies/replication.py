"""Replication in a draft of the `shoal` policy: channels that get more servers, or fewer.

Owns the choice of these channels and their servers. `shoal` decides when to use it.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from shoal.balance.columns import ALL_PUBLISHERS, Ints
from shoal.balance.decision import Reason
from shoal.balance.policies import share_loops
from shoal.balance.policies.degrees import Degrees, degrees, spread_evenly
from shoal.balance.policies.draft import MARGIN, Draft

STAY: Final = 0.05
"""How much busier than another a server may be, as a load ratio, and still keep its share when a channel is
replicated.
"""
DIFFUSED: Final = 1.5
"""Factor by which a channel's number of servers must grow for its shares to be made smaller without need."""
NARROWED: Final = 2
"""Servers that a replicated channel keeps when others are removed."""
MERGED: Final = 0.35
"""Largest share after a merge, as a part of the safe ratio: leaves room to grow again."""
MERGE_ROOM: Final = 0.9
"""Part of the safe ratio up to which merging fills servers."""
REFUSED_MAX: Final = 50
"""Channels without room after which `diffuse` stops."""


def replicate(draft: Draft, limit: float, above: float, level: float) -> None:
    """Give more servers to channels with a share above `above`, until no share exceeds `limit`.

    Both are ratios of a median server. Only servers above the level are considered. New servers are the least loaded
    ones afterwards; a server keeps its share unless another is clearly better.
    """
    rows, wanted = _too_large(draft, limit, above, level)
    placements = draft.before
    for row, mode, degree in zip(rows.tolist(), wanted.mode.tolist(), wanted.degree.tolist(), strict=True):
        if not draft.budget:
            return
        old = placements.of(row)
        if degree == 1 or (mode == placements.mode[row] and degree <= len(old)):
            continue
        before = draft.lift(row)
        servers, worst = _servers_for(draft, row, mode, degree, old, level)
        if worst >= before:
            draft.put_back(row)
            continue
        draft.put(row, mode, servers)
        draft.settle(row, mode, servers, Reason.REPLICATE)


def _servers_for(
    draft: Draft, row: int, mode: int, degree: int, old: tuple[int, ...], level: float
) -> tuple[tuple[int, ...], float]:
    """Return servers for a channel, more than `degree` if that brings them to the level, and the highest ratio among
    them.

    If there is no room for that, the channel is divided as far as possible; if there is none for that either, it gets
    fewer servers as a first step.
    """
    useful = _degree_useful(draft, row, mode)
    servers, worst = _best_servers(draft, row, mode, degree, old)
    while level < worst < np.inf and len(servers) < useful:
        more, lower = _best_servers(draft, row, mode, len(servers) + 1, old)
        if lower >= worst:
            break
        servers, worst = more, lower
    if worst == np.inf and useful > degree:
        servers, worst = _best_servers(draft, row, mode, useful, old)
    while worst == np.inf and degree > len(old) + 1:
        degree = max(degree // 2, len(old) + 1)
        servers, worst = _best_servers(draft, row, mode, degree, old)
    return servers, worst


def _too_large(draft: Draft, limit: float, above: float, level: float) -> tuple[Ints, Degrees]:
    """Return the channels with too large a share on a server above the level, and the target of each.

    Those of the busiest servers come first, so that the budget goes where it is needed most.
    """
    channels, load, host = draft.situation.channels, draft.estimate, draft.shares.host
    capacity, cpu = draft.middle
    here = np.maximum(load.bytes_out / load.capacity[host], load.cpu / load.cpu_capacity[host])
    alike = np.maximum(load.bytes_out / capacity, load.cpu / cpu)
    ratio = load.ratio[host]
    large = np.flatnonzero((np.minimum(here, alike) > above) & (ratio > level) & draft.shares.free)
    if not len(large) or draft.degree_max < 2:
        return np.zeros(0, np.int64), Degrees(np.zeros(0, np.int8), np.zeros(0, np.int64))
    large = large[np.lexsort((large, -alike[large], -ratio[large]))]
    rows = draft.shares.row[large]
    rows = rows[np.sort(np.unique(rows, return_index=True)[1])]
    return rows, degrees(channels, rows, limit / load.growth, draft.degree_max, capacity, cpu)


def _degree_useful(draft: Draft, row: int, mode: int) -> int:
    """Return the largest useful number of servers for a channel: two clients per server."""
    channels = draft.situation.channels
    clients = channels.subscribers[row] if mode == ALL_PUBLISHERS else channels.publishers[row]
    return min(draft.degree_max, int(clients) // 2)


def diffuse(draft: Draft, part: float, *, careful: bool) -> None:
    """Give channels so many servers that no share exceeds `part`, on any server, so that fluctuations even out.

    Only as far as channels have clients to divide, and only if that is clearly more servers than they have. With
    `careful`, servers that would become as busy as the busiest source are left out; without, shares move on afterwards.
    """
    size = draft.sizes
    large = np.flatnonzero((size > part) & draft.shares.free)
    rows = draft.shares.row[large[np.argsort(-size[large], kind="stable")]]
    rows = rows[np.sort(np.unique(rows, return_index=True)[1])]
    wanted = _diffused(draft, rows, part)
    refused, highest = 0, draft.safe_ratio
    for row, mode, degree in zip(rows.tolist(), wanted.mode.tolist(), wanted.degree.tolist(), strict=True):
        old = draft.before.of(row)
        if not draft.budget or refused > REFUSED_MAX:
            return
        if degree < DIFFUSED * len(old):
            continue
        highest = max(highest, float(draft.estimate.ratio[list(old)].max()))
        limit = highest if careful else np.inf
        draft.lift(row)
        servers, worst = _best_servers(draft, row, mode, degree, old)
        while limit <= worst < np.inf and len(servers) > DIFFUSED * len(old):
            servers, worst = _best_servers(draft, row, mode, len(servers) - 1, old)
        if worst >= limit:
            draft.put_back(row)
            refused += 1
            continue
        draft.put(row, mode, servers)
        draft.settle(row, mode, servers, Reason.REPLICATE)


def narrow(draft: Draft, goal: float, level: float, part: float) -> None:
    """Remove servers above the goal from channels that have others, until the servers are at the level.

    The others take over the share. A channel keeps so many servers that `diffuse` would not add any.
    """
    placements, load = draft.before, draft.load
    if float(draft.ratio.max(initial=0.0)) <= goal:
        return
    rows = np.flatnonzero(placements.degree > NARROWED)
    rows = np.setdiff1d(
        rows[DIFFUSED * (placements.degree[rows] - 1) > _diffused(draft, rows, part).degree], draft.moved
    )
    may = np.zeros(len(placements), np.bool_)
    may[rows] = True
    mine = np.flatnonzero(may[draft.shares.row] & draft.shares.free)
    for server in np.argsort(-draft.ratio, kind="stable").tolist():
        here = mine[placements.servers[mine] == server]
        relief = draft.shares.bytes_out[here] / load.capacity[server]
        if load.cpu[server] / load.cpu_capacity[server] > load.bytes_out[server] / load.capacity[server]:
            relief = draft.shares.cpu[here] / load.cpu_capacity[server]
        order = np.argsort(-relief, kind="stable")
        for share, size in zip(here[order].tolist(), relief[order].tolist(), strict=True):
            ratio = float(draft.ratio[server])
            if ratio <= goal or not draft.budget:
                break
            if size <= share_loops.COVER * (ratio - level):
                _leave(draft, int(draft.shares.row[share]), server)


def _leave(draft: Draft, row: int, server: int) -> None:
    """Remove a server from a channel, unless that makes another one as busy or the channel is already settled."""
    if row in draft.replaced:
        return
    mode, old = int(draft.before.mode[row]), draft.before.of(row)
    rest = tuple(other for other in old if other != server)
    before = float(draft.ratio[server])
    draft.lift(row)
    draft.put(row, mode, rest)
    if float(draft.ratio[list(rest)].max()) > before - MARGIN:
        draft.put(row, mode, rest, -1.0)
        draft.put_back(row)
    else:
        draft.settle(row, mode, rest, Reason.OVERLOAD)


def _diffused(draft: Draft, rows: Ints, part: float) -> Degrees:
    """Return the degrees of channels if no share exceeded this part, as a ratio."""
    return spread_evenly(draft.situation.channels, rows, draft.channel_sizes[rows] / part, draft.degree_max)


def _best_servers(
    draft: Draft, row: int, mode: int, degree: int, old: tuple[int, ...]
) -> tuple[tuple[int, ...], float]:
    """Return the servers that would be least loaded with a share of the channel, and the highest ratio among them:
    infinite if too few have room for it.
    """
    bytes_out, cpu = draft.cost(row, mode, degree)
    load, takers = draft.load, draft.takers
    after = np.maximum(
        (load.bytes_out[takers] + bytes_out) / load.capacity[takers],
        (load.cpu[takers] + cpu) / load.cpu_capacity[takers],
    )
    come_bytes, come_cpu = draft.coming(row, mode, degree)
    bears = (come_bytes <= load.room_bytes) & (come_cpu <= load.room_cpu)
    after = np.where(bears[takers], after, np.inf)
    stays = np.zeros(len(bears))
    stays[list(old)] = STAY
    best = np.argsort(after - stays[takers], kind="stable")[:degree]
    return tuple(draft.takers[best].tolist()), float(after[best].max())


def merge(draft: Draft) -> None:
    """Remove servers from channels that need fewer; the busiest are freed first."""
    placements, load = draft.before, draft.load
    several = placements.degree[draft.shares.row] > 1
    rows = np.unique(draft.shares.row[several & draft.may_leave])
    if not len(rows):
        return
    capacity, cpu = draft.middle
    limit = MERGED * draft.settings.safe_ratio / draft.estimate.growth
    wanted = degrees(draft.situation.channels, rows, limit, draft.degree_max, capacity, cpu)
    level = MERGE_ROOM * draft.settings.safe_ratio
    for row, mode, degree in zip(rows.tolist(), wanted.mode.tolist(), wanted.degree.tolist(), strict=True):
        old = placements.of(row)
        if degree >= len(old) or not draft.budget:
            continue
        staying = [server for server in old if server in draft.takers]
        if len(staying) < degree:
            continue
        draft.lift(row)
        bytes_out, cores = draft.cost(row, mode, degree)
        after = np.maximum(
            (load.bytes_out[staying] + bytes_out) / load.capacity[staying],
            (load.cpu[staying] + cores) / load.cpu_capacity[staying],
        )
        best = np.argsort(after, kind="stable")[:degree]
        if float(after[best].max()) > level:
            draft.put_back(row)
            continue
        servers = tuple(staying[index] for index in sorted(best.tolist()))
        draft.put(row, mode, servers)
        draft.settle(row, mode, servers, Reason.MERGE)
