"""Dynamoth's channel-level step: which channels are replicated, in which mode and on how many servers (Algorithm 1).

Owns the conditions of Algorithm 1 and the choice of servers for a new placement. The paper's open points are in
docs/policies.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from shoal.balance.columns import (
    ALL_PUBLISHERS,
    ALL_SUBSCRIBERS,
    SINGLE,
    Bools,
    Channels,
    Floats,
    Hosts32,
    Ints,
    Modes,
    Placements,
)
from shoal.balance.decision import changed
from shoal.balance.policies.dynamoth_loops import choose_servers
from shoal.balance.settings import BalanceSettings

BAND: Final = 0.2
"""How far a figure must fall below a threshold before the action taken at the threshold is reversed."""
REPLICATION_WAIT_S: Final = 30.0
"""Minimum time between two changes of a replicated channel's servers, as in the code published by the paper's
authors.
"""
IDLE_SHARE: Final = 1e-7
"""Weight of a channel without load when it is placed, as a share of a server's capacity, so that many do not go to one
server.
"""


@dataclass(frozen=True, slots=True)
class Replication:
    """A mode and a number of servers for each channel."""

    mode: Modes
    servers: Ints


def asked_for(channels: Channels, settings: BalanceSettings, factor: float) -> Replication:
    """Return what Algorithm 1 demands for each channel, with all counts and ratios multiplied by `factor`.

    The number of servers brings each server's own figure back to the threshold, so it is rounded up.
    """
    publications, subscribers = channels.publications, channels.subscribers.astype(np.float64)
    p_ratio = factor * publications / np.maximum(subscribers, 1.0) / settings.all_subscribers_ratio
    s_ratio = factor * subscribers / np.maximum(publications, 1.0) / settings.all_publishers_ratio
    publishes = factor * publications / settings.publications_min
    subscribes = factor * subscribers / settings.subscribers_min
    by_publications = (p_ratio > 1) & (publishes > 1)
    by_both = (publishes > 1) & (subscribes > 1)
    by_subscribers = (s_ratio > 1) & (subscribes > 1)
    cases = [by_publications, by_both, by_subscribers]
    mode = np.select(cases, [ALL_SUBSCRIBERS, ALL_SUBSCRIBERS, ALL_PUBLISHERS], SINGLE)
    servers = np.ceil(np.select(cases, [p_ratio, publishes, s_ratio], 1.0))
    return Replication(mode.astype(np.int8), servers.astype(np.int64))


def wanted(channels: Channels, placements: Placements, settings: BalanceSettings, servers_max: int) -> Replication:
    """Return the target of each channel: its demand, but no less than it has while it is within the band."""
    up, down = asked_for(channels, settings, 1.0), asked_for(channels, settings, 1.0 + BAND)
    stays = (placements.mode != SINGLE) & (down.mode == placements.mode)
    mode = np.where(stays, placements.mode, up.mode)
    least = np.where(up.mode == mode, up.servers, 2)
    most = np.where(down.mode == mode, np.maximum(down.servers, least), least)
    most = np.minimum(most, servers_max)
    servers = np.clip(placements.degree, np.minimum(least, most), most)
    replicated = (mode != SINGLE) & (servers > 1)
    return Replication(
        np.where(replicated, mode, SINGLE).astype(np.int8), np.where(replicated, servers, 1).astype(np.int64)
    )


def replicate(
    channels: Channels,
    placements: Placements,
    want: Replication,
    rows: Ints,
    loads: Floats,
    capacity: Floats,
    targets: Bools,
    safe_ratio: float,
) -> Placements:
    """Return the placements after some rows got the servers they want, as far as no server is overloaded.

    The busiest channel comes first. A channel gets the least loaded servers and gives up the busiest; servers that take
    no channels are given up first.
    """
    rows = rows[np.argsort(-channels.bytes_out[rows], kind="stable")]
    width = int(max(want.servers[rows].max(initial=1), placements.degree[rows].max(initial=1)))
    chosen = np.full((len(rows), width), -1, np.int32)
    choose_servers(
        rows,
        want.servers[rows],
        placements.offsets,
        placements.servers,
        channels.bytes_out,
        loads.copy(),
        capacity,
        targets,
        safe_ratio,
        chosen,
    )
    degree = (chosen >= 0).sum(axis=1)
    replicated = np.where(want.mode[rows] != SINGLE, want.mode[rows], placements.mode[rows])
    mode = np.where(degree > 1, replicated, SINGLE).astype(np.int8)
    return changed(placements, rows, _from_matrix(mode, chosen, degree))


def replace_lost(
    channels: Channels,
    placements: Placements,
    rows: Ints,
    loads: Floats,
    capacity: Floats,
    targets: Bools,
) -> Placements:
    """Return the placements after servers that take no channels were replaced in some rows, ignoring room.

    The number of servers stays the same if possible; the least loaded servers come first.
    """
    rows = rows[np.argsort(-channels.bytes_out[rows], kind="stable")]
    degree = np.minimum(placements.degree[rows], int(targets.sum()))
    chosen = np.full((len(rows), int(degree.max(initial=1))), -1, np.int32)
    weights = np.maximum(channels.bytes_out, idle_weight(capacity, targets))
    choose_servers(
        rows, degree, placements.offsets, placements.servers, weights, loads.copy(), capacity, targets, np.inf, chosen
    )
    mode = np.where(degree > 1, placements.mode[rows], SINGLE).astype(np.int8)
    return changed(placements, rows, _from_matrix(mode, chosen, degree))


def idle_weight(capacity: Floats, targets: Bools) -> float:
    """Return the weight of a channel without load when it is placed, in bytes per second."""
    return IDLE_SHARE * float(capacity[targets].mean())


def _from_matrix(mode: Modes, chosen: Hosts32, degree: Ints) -> Placements:
    offsets = np.zeros(len(degree) + 1, np.int64)
    np.cumsum(degree, out=offsets[1:])
    return Placements(mode, offsets, chosen[chosen >= 0])
