"""Dynamoth's system-level step: channels leave overloaded servers (Algorithm 2), and servers that are not needed.

Owns the parts of channels on servers, and their moves. The paper's open points are in docs/policies.md. A *part* is one
element of `Placements.servers`: all of a single channel, or one replica of a replicated one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shoal.balance.columns import Bools, Channels, Floats, Hosts32, Ints, Placements, shares
from shoal.balance.policies import dynamoth_loops as loops
from shoal.balance.policies.dynamoth_channels import idle_weight


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of all channels, in columns that the loops change: `host` is the server of each part."""

    offsets: Ints
    """By channel: its first part; one extra element at the end."""
    rows: Ints
    host: Hosts32
    bytes_out: Floats
    order: Ints
    """All parts, server by server, the busiest of each server first."""
    starts: Ints
    """By server: its first position in `order`; one extra element at the end."""
    moved: Bools
    """By channel: whether this plan has already moved it."""

    @classmethod
    def of(cls, channels: Channels, placements: Placements, hosts: int) -> Parts:
        """Create the parts of the current placements."""
        bytes_out, _ = shares(channels, placements)
        order = np.lexsort((-bytes_out, placements.servers))
        starts = np.zeros(hosts + 1, np.int64)
        np.cumsum(np.bincount(placements.servers, minlength=hosts), out=starts[1:])
        moved = np.zeros(len(channels), np.bool_)
        return cls(placements.offsets, placements.rows, placements.servers.copy(), bytes_out, order, starts, moved)


def relieve(parts: Parts, loads: Floats, capacity: Floats, targets: Bools, high: float, safe: float) -> None:
    """Algorithm 2: parts leave every server above `high` until it is below `safe`, for servers that stay below
    `safe`.
    """
    columns = parts.offsets, parts.rows, parts.host, parts.bytes_out, parts.order, parts.starts, parts.moved
    loops.relieve(*columns, loads, capacity, targets, high, safe)


def level(parts: Parts, loads: Floats, capacity: Floats, targets: Bools, high: float, gain: float) -> None:
    """The last resort: parts leave servers above `high` for servers that end above the safe ratio, but lower than the
    old server was, by at least `gain`.
    """
    columns = parts.offsets, parts.rows, parts.host, parts.bytes_out, parts.order, parts.starts, parts.moved
    loops.level(*columns, loads, capacity, targets, high, gain)


def empty_out(
    parts: Parts, host: int, loads: Floats, capacity: Floats, targets: Bools, limit: float, bytes_max: float, moves: int
) -> int:
    """Move the busiest parts of a server to others that stay below `limit`; return how many, or -1.

    At most `moves` parts, and none after `bytes_max` bytes per second. -1 means that nothing moved because not all
    parts of the server would eventually find room.
    """
    mine = parts.order[parts.starts[host] : parts.starts[host + 1]]
    goes_to = np.full(len(mine), -1, np.int32)
    weights = np.maximum(parts.bytes_out[mine], idle_weight(capacity, targets))
    if not loops.find_room(
        parts.offsets,
        parts.rows,
        parts.host,
        parts.bytes_out,
        mine,
        weights,
        loads.copy(),
        capacity,
        targets,
        limit,
        goes_to,
    ):
        return -1
    movable, to = mine[goes_to >= 0], goes_to[goes_to >= 0]
    spent = np.cumsum(parts.bytes_out[movable])
    count = min(moves, int(np.searchsorted(spent, bytes_max)) + 1, len(movable))
    movable, to = movable[:count], to[:count]
    parts.host[movable] = to
    parts.moved[parts.rows[movable]] = True
    np.add.at(loads, to, parts.bytes_out[movable])
    loads[host] -= parts.bytes_out[movable].sum()
    return count
