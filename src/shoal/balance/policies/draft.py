"""A plan in the making: where each share would be, and what servers would carry.

Owns the working state of the `shoal` policy, and how shares move between servers; `replication` gives channels more
servers or fewer. Knows how, not when.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from shoal.balance.columns import ALL_PUBLISHERS, SINGLE, Bools, Floats, Ints, Placements, sent_part
from shoal.balance.decision import Reason
from shoal.balance.policies import packing
from shoal.balance.policies.degrees import busiest_part
from shoal.balance.policies.estimate import Estimate
from shoal.balance.settings import BalanceSettings
from shoal.balance.situation import Situation

ROUNDS_MAX: Final = 6
"""How often what found no place is put back, and other shares are tried instead."""
GATHERING: Final = 0.3
"""How much of the unevenness that must be feared of a replicated channel's clients is reckoned with as it moves: not
all of its servers have the worst of it."""
ROUNDING: Final = 1e-9
"""The part of a load that is no change."""
MARGIN: Final = 0.01
"""What a move that does not bring its server to the level must lower the busier server by, as a load ratio."""


class Draft:
    """One attempt at a plan. `takes` says who may receive, `free` which channels may be placed anew, `bounded` whether
    servers are given no more than they have room for."""

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
        self.shares = packing.Shares(
            rows,
            self.before.offsets.copy(),
            self.before.servers.copy(),
            load.bytes_out,
            load.cpu,
            self.may_leave.copy(),
        )
        self.load = packing.Load(
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
        """The load ratio of each host as it would be."""
        return np.maximum(self.load.bytes_out / self.load.capacity, self.load.cpu / self.load.cpu_capacity)

    @property
    def moved(self) -> Ints:
        """The channels that are placed anew by their shares alone."""
        return np.unique(self.shares.row[self.shares.host != self.before.servers])

    @property
    def moves(self) -> int:
        """How many channels are placed anew."""
        return len(self.replaced) + len(self.moved)

    @property
    def arrivals(self) -> int:
        """How many times a channel comes to a server: what a plan makes clients do."""
        return int(self.load.arrivals.sum())

    @property
    def replicas(self) -> int:
        """How many servers channels have more than before."""
        return sum(len(servers) - len(self.before.of(row)) for row, (_, servers, _) in self.replaced.items())

    @property
    def lowers(self) -> bool:
        """Whether no server is filled above the safe ratio but to lower a busier one.

        What is on servers that take nothing more has to go somewhere.
        """
        estimate = self.estimate
        before, after = estimate.ratio, self.ratio
        gives = self.load.bytes_out < estimate.host_bytes_out * (1.0 - ROUNDING)
        highest = np.where(self.takes, before, np.inf)[gives].max(initial=0.0)
        filled = (after > before * (1.0 + ROUNDING)) & (after > self.safe_ratio)
        return bool((after[filled] < highest).all())

    @property
    def safe_ratio(self) -> float:
        """What is the safe ratio now, at the load of the horizon."""
        return self.settings.safe_ratio * self.estimate.growth

    def excess(self, goal: float) -> float:
        """By how much servers are above the goal, all together."""
        return float((self.ratio - goal).clip(min=0.0).sum())

    def sizes(self) -> Floats:
        """The size of each share, as a ratio of a server of middle size."""
        capacity, cpu = self.middle
        return np.maximum(self.estimate.bytes_out / capacity, self.estimate.cpu / cpu)

    def wholes(self) -> Floats:
        """The size of each channel, all its shares together, as a ratio of a server of middle size."""
        return np.bincount(self.shares.row, self.sizes(), len(self.before)).astype(np.float64, copy=False)

    @property
    def middle(self) -> tuple[float, float]:
        """The capacity of a server of middle size."""
        load = self.estimate
        return float(np.median(load.capacity[self.takers])), float(np.median(load.cpu_capacity[self.takers]))

    @property
    def degree_max(self) -> int:
        """The most servers that a channel may have."""
        return min(self.settings.replicas_max, len(self.takers))

    def cost(self, row: int, mode: int, degree: int) -> tuple[float, float]:
        """What each of so many servers would carry of a channel: bytes a second, cores."""
        channels, factor = self.situation.channels, self.estimate.growth
        received = sent = 1.0 / degree
        if mode == ALL_PUBLISHERS:
            patterns = 0.0 if channels.pattern_part is None else float(channels.pattern_part[row])
            received, sent = 1.0, sent_part(sent, patterns)
        cpu = channels.cpu_in[row] * received + channels.cpu_out[row] * sent
        return factor * channels.bytes_out[row] * sent, factor * cpu

    def coming(self, row: int, mode: int, degree: int) -> tuple[Floats, Floats]:
        """What comes to each server if a channel has it among so many: bytes a second, cores.

        What a server has of the channel already does not come. That clients do not spread evenly counts in part.
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
        """Takes a channel off its servers; returns the highest ratio that one of them had."""
        shares = np.arange(self.shares.first[row], self.shares.first[row + 1])
        hosts = self.shares.host[shares]
        highest = float(self.ratio[hosts].max())
        self.load.bytes_out[hosts] -= self.shares.bytes_out[shares]
        self.load.cpu[hosts] -= self.shares.cpu[shares]
        return highest

    def put(self, row: int, mode: int, servers: tuple[int, ...], sign: float = 1.0) -> None:
        """Puts a channel on servers."""
        bytes_out, cpu = self.cost(row, mode, len(servers))
        self.load.bytes_out[list(servers)] += sign * bytes_out
        self.load.cpu[list(servers)] += sign * cpu

    def put_back(self, row: int) -> None:
        """Puts a channel back where it was."""
        shares = np.arange(self.shares.first[row], self.shares.first[row + 1])
        hosts = self.before.servers[shares]
        self.load.bytes_out[hosts] += self.shares.bytes_out[shares]
        self.load.cpu[hosts] += self.shares.cpu[shares]

    def settle(self, row: int, mode: int, servers: tuple[int, ...], reason: Reason) -> None:
        """A channel has its new servers: it is not touched again."""
        shares = slice(self.shares.first[row], self.shares.first[row + 1])
        self.load.arrivals[np.setdiff1d(servers, self.before.servers[shares])] += 1
        bytes_out, cpu = self.coming(row, mode, len(servers))
        self.load.room_bytes[list(servers)] -= bytes_out[list(servers)]
        self.load.room_cpu[list(servers)] -= cpu[list(servers)]
        self.shares.free[shares] = False
        self.shares.host[shares] = self.before.servers[shares]
        self.replaced[row] = (mode, servers, reason)
        self.budget = max(0, self.budget - 1)

    def shelved(self) -> tuple[packing.Shelves, Floats]:
        """The shares of each server, largest first, and the size of each share."""
        load, host = self.load, self.shares.host
        scarce = load.bytes_out / load.capacity >= load.cpu / load.cpu_capacity
        bytes_ratio, cpu_ratio = self.shares.bytes_out / load.capacity[host], self.shares.cpu / load.cpu_capacity[host]
        size = np.where(scarce[host], bytes_ratio, cpu_ratio)
        return packing.Shelves(*packing.shelve(host, size, len(scarce))), size

    def relieve(self, level: float | None, drained: Bools, shelves: packing.Shelves, *, beyond: bool = True) -> None:
        """Brings servers to the level, unless there is none, and empties those that are drained.

        No server is filled beyond the level, but where that lowers a busier one; with `beyond` False not even there:
        servers are on their way for that. Ends when the budget does.
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
            chosen = packing.shed(sources, levels, self.budget, self.load, self.shares, shelves)
            if not len(chosen):
                break
            capacity, cpu = self.middle
            weight = np.maximum(self.shares.bytes_out[chosen] / capacity, self.shares.cpu[chosen] / cpu)
            chosen = chosen[np.argsort(-weight, kind="stable")]
            self.budget -= packing.place(chosen, room, self.takers, self.load, self.shares)
        untouched = np.ones(len(self.before), np.bool_)
        untouched[list(self.replaced)] = False
        may_leave = self.may_leave & untouched[self.shares.row]
        self._let_go(drained[self.shares.host] & may_leave, room)
        self.shares.free[:] = (self.shares.host == self.before.servers) & may_leave
        if level is not None and beyond:
            self.budget -= packing.improve(level, MARGIN, self.budget, self.takers, self.load, self.shares, shelves)
        self._shorten(drained)

    def _let_go(self, leaving: Bools, level: float) -> None:
        """Of the shares that have to leave moves one, the largest, that no server has room for: no other plan would
        have more for it than this one."""
        too_large = self.shares.bytes_out > self.estimate.room_bytes_out[self.takers].max()
        too_large |= self.shares.cpu > self.estimate.room_cpu[self.takers].max()
        stuck = np.flatnonzero(too_large & leaving)
        if len(stuck) and self.budget > 0:
            self.budget -= self._place_anyhow(stuck[np.argsort(-self.sizes()[stuck], kind="stable")][:1], level)

    def _place_anyhow(self, chosen: Ints, level: float) -> int:
        """Takes shares off their servers and places them below the level, whatever room there is for their coming."""
        hosts, load = self.shares.host[chosen], self.load
        np.subtract.at(load.bytes_out, hosts, self.shares.bytes_out[chosen])
        np.subtract.at(load.cpu, hosts, self.shares.cpu[chosen])
        bytes_out, cpu = load.bytes_out.copy(), load.cpu.copy()
        boundless = np.full(len(load.capacity), np.inf)
        placed = packing.place(
            chosen, level, self.takers, load._replace(room_bytes=boundless, room_cpu=boundless.copy()), self.shares
        )
        load.room_bytes[:] -= load.bytes_out - bytes_out
        load.room_cpu[:] -= load.cpu - cpu
        return placed

    def _shorten(self, drained: Bools) -> None:
        """Takes drained servers from channels that have every other server already: the others carry their share."""
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
        """Places what is on dead servers, wherever that is least bad: it is nowhere now, so no budget counts."""
        dead = self.estimate.dead
        lost = np.flatnonzero(dead[self.before.servers])
        if not len(lost) or not len(self.takers):
            return
        lost = lost[np.argsort(-self.sizes()[lost], kind="stable")]
        self._place_anyhow(lost, np.inf)
        self._shorten(dead)
        self.budget = max(0, self.budget - self.moves)

    def placements(self) -> tuple[Ints, Placements]:
        """The channels that are placed anew, and where."""
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
