"""A draft plan: the server of each share, and the resulting load of the servers.

Owns the working state of the `shoal` policy, and how shares move between servers; `replication` changes the number of
servers of channels. `shoal` decides when to use them.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final

import numpy as np

from shoal.balance.columns import ALL_PUBLISHERS, SINGLE, Bools, Floats, Ints, Placements, sent_part
from shoal.balance.decision import Reason
from shoal.balance.policies import share_loops
from shoal.balance.policies.degrees import busiest_part
from shoal.balance.policies.estimate import Estimate
from shoal.balance.settings import BalanceSettings
from shoal.balance.situation import Situation

ROUNDS_MAX: Final = 6
"""How often shares that found no place are put back and others are tried instead."""
GATHERING: Final = 0.3
"""How much of the possible imbalance among a replicated channel's clients is assumed when it moves; not all of its
servers get the worst case.
"""
ROUNDING: Final = 1e-9
"""Relative differences in load below this do not count as a change."""
MARGIN: Final = 0.01
"""Smallest reduction of the busier server's load ratio by a move that does not bring its server to the level."""


class Draft:
    """One attempt at a plan. `takes`: hosts that may receive; `free`: channels that may be moved; `bounded`: servers
    get no more than they have room for.
    """

    def __init__(
        self,
        situation: Situation,
        load: Estimate,
        settings: BalanceSettings,
        takes: Bools,
        free: Bools,
        *,
        bounded: bool = True,
    ) -> None:
        self.situation = situation
        self.settings = settings
        self.estimate = load
        self.takes = takes
        self.takers = np.flatnonzero(takes)
        self.balanced = False
        self.budget = settings.moves_max
        self.before = situation.placements
        rows = situation.placements.rows
        host = situation.placements.servers
        self.may_leave = (free[rows] | load.dead[host]) & ~load.silent[host]
        """By share: whether it may leave its server."""
        self.shares = share_loops.Shares(
            rows,
            self.before.offsets.copy(),
            self.before.servers.copy(),
            load.bytes_out,
            load.cpu,
            self.may_leave.copy(),
        )
        self.load = share_loops.Load(
            load.host_bytes_out.copy(),
            load.host_cpu.copy(),
            load.capacity,
            load.cpu_capacity,
            np.zeros(len(load.capacity), np.int64),
            load.room_bytes_out.copy() if bounded else np.full(len(load.capacity), np.inf),
            load.room_cpu.copy() if bounded else np.full(len(load.capacity), np.inf),
        )
        self.replaced: dict[int, tuple[int, tuple[int, ...], Reason]] = {}
        """Channels whose number of servers or mode changes: mode, servers, reason."""

    @property
    def ratio(self) -> Floats:
        """The resulting load ratio of each host."""
        return np.maximum(self.load.bytes_out / self.load.capacity, self.load.cpu / self.load.cpu_capacity)

    @property
    def moved(self) -> Ints:
        """The channels that move without a change of mode or degree."""
        return np.unique(self.shares.row[self.shares.host != self.before.servers])

    @property
    def moves(self) -> int:
        """The number of channels with a new placement."""
        return len(self.replaced) + len(self.moved)

    @property
    def arrivals(self) -> int:
        """The number of arrivals of a channel on a server, which cause work for clients."""
        return int(self.load.arrivals.sum())

    @property
    def replicas(self) -> int:
        """The number of additional servers of all channels."""
        return sum(len(servers) - len(self.before.of(row)) for row, (_, servers, _) in self.replaced.items())

    @property
    def is_safe(self) -> bool:
        """Whether servers are filled above the safe ratio only to lower a busier one.

        Shares on servers that take nothing more must go somewhere, so they do not count.
        """
        estimate = self.estimate
        before, after = estimate.ratio, self.ratio
        gives = self.load.bytes_out < estimate.host_bytes_out * (1.0 - ROUNDING)
        highest = np.where(self.takes, before, np.inf)[gives].max(initial=0.0)
        filled = (after > before * (1.0 + ROUNDING)) & (after > self.safe_ratio)
        return bool((after[filled] < highest).all())

    @property
    def safe_ratio(self) -> float:
        """The safe ratio at the load of the horizon."""
        return self.settings.safe_ratio * self.estimate.growth

    def excess(self, goal: float) -> float:
        """Return the sum of the ratios by which servers exceed the goal."""
        return float((self.ratio - goal).clip(min=0.0).sum())

    @cached_property
    def sizes(self) -> Floats:
        """The size of each share, as a ratio of a median server."""
        capacity, cpu = self.middle
        return np.maximum(self.estimate.bytes_out / capacity, self.estimate.cpu / cpu)

    @cached_property
    def channel_sizes(self) -> Floats:
        """The size of each channel, all shares together, as a ratio of a median server."""
        return np.bincount(self.shares.row, self.sizes, len(self.before)).astype(np.float64, copy=False)

    @cached_property
    def middle(self) -> tuple[float, float]:
        """The capacity of a median server: bytes per second, cores."""
        load = self.estimate
        return float(np.median(load.capacity[self.takers])), float(np.median(load.cpu_capacity[self.takers]))

    @property
    def degree_max(self) -> int:
        """The largest number of servers of a channel."""
        return min(self.settings.replicas_max, len(self.takers))

    def cost(self, row: int, mode: int, degree: int) -> tuple[float, float]:
        """Return what each of `degree` servers would carry of a channel: bytes per second, cores."""
        channels, factor = self.situation.channels, self.estimate.growth
        received = sent = 1.0 / degree
        if mode == ALL_PUBLISHERS:
            patterns = 0.0 if channels.pattern_part is None else float(channels.pattern_part[row])
            received, sent = 1.0, sent_part(sent, patterns)
        cpu = channels.cpu_in[row] * received + channels.cpu_out[row] * sent
        return factor * channels.bytes_out[row] * sent, factor * cpu

    def coming(self, row: int, mode: int, degree: int) -> tuple[Floats, Floats]:
        """Return the additional load of each server if the channel were on `degree` servers: bytes per second, cores.

        The existing share of a server is not counted again. The uneven distribution of clients counts in part.
        """
        bytes_out, cpu = self.cost(row, mode, degree)
        channels = self.situation.channels
        clients = channels.subscribers if mode == ALL_PUBLISHERS else channels.publishers
        times = 1.0 + GATHERING * (degree * float(busiest_part(clients[row : row + 1], degree)[0]) - 1.0)
        shares = slice(self.shares.first[row], self.shares.first[row + 1])
        has_bytes, has_cpu = np.zeros(len(self.load.capacity)), np.zeros(len(self.load.capacity))
        has_bytes[self.before.servers[shares]] = self.shares.bytes_out[shares]
        has_cpu[self.before.servers[shares]] = self.shares.cpu[shares]
        return (times * bytes_out - has_bytes).clip(min=0.0), (times * cpu - has_cpu).clip(min=0.0)

    def lift(self, row: int) -> float:
        """Remove a channel from its servers; return the highest ratio among them."""
        shares = np.arange(self.shares.first[row], self.shares.first[row + 1])
        hosts = self.shares.host[shares]
        highest = float(self.ratio[hosts].max())
        self.load.bytes_out[hosts] -= self.shares.bytes_out[shares]
        self.load.cpu[hosts] -= self.shares.cpu[shares]
        return highest

    def put(self, row: int, mode: int, servers: tuple[int, ...], sign: float = 1.0) -> None:
        """Add the load of a channel to servers."""
        bytes_out, cpu = self.cost(row, mode, len(servers))
        self.load.bytes_out[list(servers)] += sign * bytes_out
        self.load.cpu[list(servers)] += sign * cpu

    def put_back(self, row: int) -> None:
        """Put a channel back on its old servers."""
        shares = np.arange(self.shares.first[row], self.shares.first[row + 1])
        hosts = self.before.servers[shares]
        self.load.bytes_out[hosts] += self.shares.bytes_out[shares]
        self.load.cpu[hosts] += self.shares.cpu[shares]

    def settle(self, row: int, mode: int, servers: tuple[int, ...], reason: Reason) -> None:
        """Fix the new servers of a channel; it is not changed again."""
        shares = slice(self.shares.first[row], self.shares.first[row + 1])
        self.load.arrivals[list(set(servers).difference(self.before.servers[shares].tolist()))] += 1
        bytes_out, cpu = self.coming(row, mode, len(servers))
        self.load.room_bytes[list(servers)] -= bytes_out[list(servers)]
        self.load.room_cpu[list(servers)] -= cpu[list(servers)]
        self.shares.free[shares] = False
        self.shares.host[shares] = self.before.servers[shares]
        self.replaced[row] = (mode, servers, reason)
        self.budget = max(0, self.budget - 1)

    def grouped(self) -> tuple[share_loops.ServerShares, Floats]:
        """Return the shares of each server, largest first, and the size of each share."""
        load, host = self.load, self.shares.host
        scarce = load.bytes_out / load.capacity >= load.cpu / load.cpu_capacity
        bytes_ratio, cpu_ratio = self.shares.bytes_out / load.capacity[host], self.shares.cpu / load.cpu_capacity[host]
        size = np.where(scarce[host], bytes_ratio, cpu_ratio)
        return share_loops.ServerShares(*share_loops.group_by_server(host, size, len(scarce))), size

    def relieve(
        self, level: float | None, drained: Bools, by_server: share_loops.ServerShares, *, beyond: bool = True
    ) -> None:
        """Bring servers to the level (if there is one), and empty draining servers.

        No server is filled above the level unless that lowers a busier one; with `beyond` False not even then, because
        new servers are coming. Stops when the budget is used up.
        """
        self.balanced = level is not None
        if not len(self.takers):
            return
        room = max(self.settings.safe_ratio, self.estimate.bound(self.takes)) if level is None else level
        levels = np.where(drained, -1.0, np.inf if level is None else level)
        for _ in range(ROUNDS_MAX):
            ratio = self.ratio
            sources = np.flatnonzero(ratio > levels)
            sources = sources[np.lexsort((-ratio[sources], drained[sources]))]
            chosen = share_loops.shed(sources, levels, self.budget, self.load, self.shares, by_server)
            if not len(chosen):
                break
            capacity, cpu = self.middle
            weight = np.maximum(self.shares.bytes_out[chosen] / capacity, self.shares.cpu[chosen] / cpu)
            chosen = chosen[np.argsort(-weight, kind="stable")]
            self.budget -= share_loops.place(chosen, room, self.takers, self.load, self.shares)
        untouched = np.ones(len(self.before), np.bool_)
        untouched[list(self.replaced)] = False
        may_leave = self.may_leave & untouched[self.shares.row]
        self._move_oversized(drained[self.shares.host] & may_leave, room)
        self.shares.free[:] = (self.shares.host == self.before.servers) & may_leave
        if level is not None and beyond:
            self.budget -= share_loops.improve(
                level, MARGIN, self.budget, self.takers, self.load, self.shares, by_server
            )
        self._drop_drained(drained)

    def _move_oversized(self, leaving: Bools, level: float) -> None:
        """Move the largest share that must leave and fits nowhere: no later plan would have more room for it."""
        too_large = self.shares.bytes_out > self.estimate.room_bytes_out[self.takers].max()
        too_large |= self.shares.cpu > self.estimate.room_cpu[self.takers].max()
        stuck = np.flatnonzero(too_large & leaving)
        if len(stuck) and self.budget > 0:
            self.budget -= self._place_ignoring_room(stuck[np.argsort(-self.sizes[stuck], kind="stable")][:1], level)

    def _place_ignoring_room(self, chosen: Ints, level: float) -> int:
        """Remove shares from their servers and place them below the level, ignoring the limits on arriving load."""
        hosts, load = self.shares.host[chosen], self.load
        np.subtract.at(load.bytes_out, hosts, self.shares.bytes_out[chosen])
        np.subtract.at(load.cpu, hosts, self.shares.cpu[chosen])
        bytes_out, cpu = load.bytes_out.copy(), load.cpu.copy()
        boundless = np.full(len(load.capacity), np.inf)
        placed = share_loops.place(
            chosen, level, self.takers, load._replace(room_bytes=boundless, room_cpu=boundless.copy()), self.shares
        )
        load.room_bytes[:] -= load.bytes_out - bytes_out
        load.room_cpu[:] -= load.cpu - cpu
        return placed

    def _drop_drained(self, drained: Bools) -> None:
        """Remove drained servers from channels that already have every other server; the others carry their share."""
        stuck = drained[self.shares.host] & self.may_leave
        left = np.unique(self.shares.row[stuck])
        for row in left[self.before.degree[left] > 1].tolist():
            now = self.shares.host[self.shares.first[row] : self.shares.first[row + 1]]
            servers = tuple(now[~drained[now]].tolist())
            if row in self.replaced or not servers or not set(self.takers.tolist()) <= set(servers):
                continue
            if not self.budget and not self.estimate.dead[now].any():
                continue
            mode = int(self.before.mode[row]) if len(servers) > 1 else SINGLE
            self.lift(row)
            self.put(row, mode, servers)
            self.settle(row, mode, servers, Reason.LOST if self.estimate.dead[now].any() else Reason.DRAIN)

    def rescue(self) -> None:
        """Place the shares of dead servers where they do the least harm. They are served nowhere now, so the budget
        does not apply.
        """
        dead = self.estimate.dead
        lost = np.flatnonzero(dead[self.before.servers])
        if not len(lost) or not len(self.takers):
            return
        lost = lost[np.argsort(-self.sizes[lost], kind="stable")]
        self._place_ignoring_room(lost, np.inf)
        self._drop_drained(dead)
        self.budget = max(0, self.budget - self.moves)

    def placements(self) -> tuple[Ints, Placements]:
        """Return the channels with a new placement, and the placements."""
        moved = self.moved
        rows = np.concatenate((np.fromiter(self.replaced, np.int64, len(self.replaced)), moved))
        mode = self.before.mode[rows]
        degree = self.before.degree[rows]
        for at, (new_mode, servers, _) in enumerate(self.replaced.values()):
            mode[at], degree[at] = new_mode, len(servers)
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(degree, out=offsets[1:])
        flat = np.empty(offsets[-1], np.int32)
        for at, (_, servers, _) in enumerate(self.replaced.values()):
            flat[offsets[at] : offsets[at + 1]] = servers
        of_moved = np.zeros(len(self.before), np.bool_)
        of_moved[moved] = True
        flat[offsets[len(self.replaced)] :] = self.shares.host[of_moved[self.shares.row]]
        return rows, Placements(mode, offsets, flat)
