"""The spread of a channel: which share of it each of its servers carries.

Owns the elements: one for each server of each channel, with its share. Clients of a replicated channel use one server
each, chosen by their ids, so that shares are even only on average: with `n` clients on `k` servers a share is off by
about `sqrt((k - 1) / n)` of itself, as if clients were drawn one by one. The deviation depends on the seed, the channel
and the position of the server in the placement, since clients choose by position. So a channel keeps its shares while
clients join and leave, and when one of its servers is replaced.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from shoal.balance.columns import ALL_PUBLISHERS, ALL_SUBSCRIBERS, Floats, Hosts32, Ints, Placements
from shoal.flow.traffic import Traffic

_MIX: Final = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
"""The constants of SplitMix64, a hash of numbers."""
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class Elements:
    """One element for each server of each channel, row by row, in one step."""

    rows: Ints
    servers: Hosts32
    part: Floats
    """Share of the channel's deliveries; the shares of a row sum to 1."""
    receives: Floats
    """Share of the channel's publications: all of them for all_publishers, else `part`."""
    fans: Floats
    """Share of the channel's subscribers that one publication reaches here: `part` for all_publishers, else all."""

    def loads(self, column: Floats, hosts: int) -> Floats:
        """A column of elements, summed by server."""
        return np.bincount(self.servers, column, hosts).astype(np.float64, copy=False)


class Spread:
    """The elements of some placements, for any traffic."""

    def __init__(self, placements: Placements, seed: int) -> None:
        rows, degree = placements.rows, placements.degree
        count, mode = degree[rows], placements.mode[rows]
        ones = np.ones(len(rows))
        self._even = Elements(rows, placements.servers, ones, ones, ones)
        self._replicated = np.flatnonzero(count > 1)
        several = self._replicated
        self._count = count[several].astype(np.float64)
        self._rows = rows[several]
        self._everywhere = mode[several] == ALL_PUBLISHERS
        self._publishers_spread = mode[several] == ALL_SUBSCRIBERS
        turn = np.arange(len(rows)) - placements.offsets[rows]
        self._off = normal(seed, self._rows, turn[several])

    def at(self, traffic: Traffic) -> Elements:
        """The elements in one step."""
        several = self._replicated
        if not len(several):
            return self._even
        clients = np.where(
            self._publishers_spread, traffic.publishers[self._rows], traffic.subscribers[self._rows]
        ).clip(min=1)
        part = (1.0 + self._off * np.sqrt((self._count - 1) / clients)).clip(min=0.0)
        sums = np.bincount(self._rows, part)[self._rows]
        part = np.where(sums > 0, part / np.where(sums > 0, sums, 1.0), 1.0 / self._count)
        even = self._even
        parts, receives, fans = even.part.copy(), even.receives.copy(), even.fans.copy()
        parts[several] = part
        receives[several] = np.where(self._everywhere, 1.0, part)
        fans[several] = np.where(self._everywhere, part, 1.0)
        return Elements(even.rows, even.servers, parts, receives, fans)


def normal(seed: int, rows: Ints, turns: Ints) -> Floats:
    """A standard normal number for each pair, the same for the same seed and pair."""
    key = _mixed(rows.astype(np.uint64) * _GOLDEN + np.uint64(seed))
    key = _mixed(key + turns.astype(np.uint64) * _GOLDEN)
    first, second = _uniform(key), _uniform(_mixed(key + _GOLDEN))
    return np.asarray(np.sqrt(-2 * np.log1p(-first)) * np.cos(2 * np.pi * second), np.float64)


def _mixed(value: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    value = (value ^ (value >> np.uint64(30))) * _MIX[0]
    value = (value ^ (value >> np.uint64(27))) * _MIX[1]
    return value ^ (value >> np.uint64(31))


def _uniform(value: npt.NDArray[np.uint64]) -> Floats:
    return (value >> np.uint64(11)).astype(np.float64) * 2.0**-53
