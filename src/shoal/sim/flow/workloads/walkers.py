"""Walkers: players of RGame, who go to a random point, take a short break, and go to the next.

Owns their positions on the unit square, as columns. Some maps have towns: then a share of all points lies in one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from shoal.balance.columns import Bools, Floats


@dataclass(frozen=True, slots=True)
class Walk:
    """How players move. Lengths are shares of the map's side."""

    speed_per_s: float = 0.003
    break_s: tuple[float, float] = (2.0, 8.0)
    towns: int = 0
    town_share: float = 0.0
    """Share of the points that lie in a town."""
    town_radius: float = 0.05
    """Spread of the points around the middle of a town (one standard deviation)."""
    town_skew: float = 1.0
    """How much larger the first towns are: weight of town `i` is `(i + 1) ** -town_skew`."""


DEFAULT_WALK: Final = Walk()


class Walkers:
    """All players that there will ever be; each walks from the start, in or out of the game."""

    def __init__(self, count: int, walk: Walk, rng: np.random.Generator) -> None:
        self.walk = walk
        self._rng = rng
        self._middles = rng.uniform(0.1, 0.9, size=(walk.towns, 2))
        weights = (np.arange(walk.towns) + 1.0) ** -walk.town_skew
        self._weights = weights / weights.sum() if walk.towns else weights
        # In the middle of a way between two points: where players are after a long time.
        start, self.goal = self._points(count), self._points(count)
        self.at: Floats = start + rng.uniform(size=(count, 1)) * (self.goal - start)
        self._rests_s = np.zeros(count)

    def step(self, step_s: float) -> None:
        """Everybody walks, or rests, for `step_s`."""
        way = self.goal - self.at
        left = np.hypot(way[:, 0], way[:, 1])
        reach = self.walk.speed_per_s * step_s
        walks = self._rests_s <= 0
        arrives = walks & (left <= reach)
        goes = walks & ~arrives
        self.at[goes] += way[goes] * (reach / left[goes])[:, None]
        self._rests_s -= step_s
        self._arrive(arrives)

    def tiles(self, count: int, side: int) -> Floats:
        """How many of the first `count` players stand in each of `side * side` square tiles."""
        cells = np.minimum((self.at[:count] * side).astype(np.int64), side - 1)
        return np.bincount(cells[:, 0] * side + cells[:, 1], minlength=side * side).astype(np.float64)

    def _arrive(self, arrives: Bools) -> None:
        count = int(arrives.sum())
        if not count:
            return
        self.at[arrives] = self.goal[arrives]
        self.goal[arrives] = self._points(count)
        self._rests_s[arrives] = self._rng.uniform(*self.walk.break_s, size=count)

    def _points(self, count: int) -> Floats:
        """Random points of the map, some of them in towns."""
        points = self._rng.uniform(size=(count, 2))
        if self.walk.towns:
            in_town = self._rng.uniform(size=count) < self.walk.town_share
            town = self._rng.choice(self.walk.towns, size=count, p=self._weights)
            around = self._rng.normal(scale=self.walk.town_radius, size=(count, 2))
            points = np.where(in_town[:, None], self._middles[town] + around, points)
        return points.clip(0.0, 1.0 - 1e-9)
