"""RGame, the game of the Dynamoth paper (section V.A): how players move, and on which tile each of them is.

Owns the movement, in columns with one row for each player, and the arithmetic of tiles. The map is the unit square,
cut into `side` by `side` tiles; a tile is a channel. Simulated games count the players of each tile; players on real
buses ask for their tile. Uses no buses and no clock; time and the random generator are arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

UPDATES_PER_S: Final = 3.0
"""How often each player publishes its position, as in the paper."""

_Floats: TypeAlias = NDArray[np.float64]
_Bools: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Walk:
    """How players walk. Lengths are shares of the map's side."""

    speed_per_s: float = 0.003
    break_s: tuple[float, float] = (2.0, 8.0)
    """Shortest and longest break at a waypoint."""
    towns: int = 0
    town_share: float = 0.0
    """Share of the waypoints that lie in a town."""
    town_radius: float = 0.05
    """Spread of the waypoints around the middle of a town (one standard deviation)."""
    town_skew: float = 1.0
    """How much larger the first towns are: the weight of town `i` is `(i + 1) ** -town_skew`."""


DEFAULT_WALK: Final = Walk()


class Meeting(NamedTuple):
    """A square where players gather: its lower corner, its side, and how fast players run there."""

    x: float
    y: float
    side: float
    run_per_s: float


class Walkers:
    """Players who walk to a random waypoint, take a break, and walk to the next one.

    There is a row for every player that will ever play: each walks from the start, whether it plays yet or not.
    """

    def __init__(self, count: int, walk: Walk, rng: np.random.Generator) -> None:
        self.walk = walk
        self._rng = rng
        self._middles = rng.uniform(0.1, 0.9, size=(walk.towns, 2))
        weights = (np.arange(walk.towns) + 1.0) ** -walk.town_skew
        self._weights = weights / weights.sum() if walk.towns else weights
        # Between two waypoints: where players are after a long time.
        start, self._goal = self._waypoints(count), self._waypoints(count)
        self.at: _Floats = start + rng.uniform(size=(count, 1)) * (self._goal - start)
        self._break_s = np.zeros(count)
        self._speed_per_s = np.full(count, walk.speed_per_s)
        self._meeting: Meeting | None = None
        self._is_gathered = np.zeros(count, np.bool_)

    def step(self, step_s: float) -> None:
        """Lets `step_s` pass for all players."""
        way = self._goal - self.at
        left = np.hypot(way[:, 0], way[:, 1])
        reach = self._speed_per_s * step_s
        walks = self._break_s <= 0
        arrives = walks & (left <= reach)
        goes = walks & ~arrives
        self.at[goes] += way[goes] * (reach[goes] / left[goes])[:, None]
        self._break_s -= step_s
        self._arrive(arrives)

    def gather(self, count: int, meeting: Meeting) -> None:
        """Sends the first `count` players to a meeting, where they stay until they are not among the first any more."""
        self._meeting = meeting
        wanted = np.arange(len(self.at)) < count
        changes = wanted != self._is_gathered
        self._is_gathered = wanted
        self._goal[changes] = self._goals(changes)
        self._break_s[changes] = 0.0
        self._speed_per_s[changes] = np.where(wanted[changes], meeting.run_per_s, self.walk.speed_per_s)

    def tile(self, row: int, side: int) -> tuple[int, int]:
        """The tile that a player is on."""
        x, y = np.minimum((self.at[row] * side).astype(np.int64), side - 1).tolist()
        return x, y

    def players_per_tile(self, count: int, side: int) -> _Floats:
        """How many of the first `count` players are on each of the `side * side` tiles."""
        cells = np.minimum((self.at[:count] * side).astype(np.int64), side - 1)
        return np.bincount(cells[:, 0] * side + cells[:, 1], minlength=side * side).astype(np.float64)

    def _arrive(self, arrives: _Bools) -> None:
        count = int(arrives.sum())
        if not count:
            return
        self.at[arrives] = self._goal[arrives]
        self._goal[arrives] = self._goals(arrives)
        self._break_s[arrives] = self._rng.uniform(*self.walk.break_s, size=count)
        self._speed_per_s[arrives] = self.walk.speed_per_s

    def _goals(self, rows: _Bools) -> _Floats:
        """The next waypoints of some players: anywhere, or at the meeting."""
        goals = self._waypoints(int(rows.sum()))
        gathered = self._is_gathered[rows]
        if self._meeting is not None and gathered.any():
            x, y, side, _ = self._meeting
            goals[gathered] = (x, y) + side * self._rng.uniform(size=(int(gathered.sum()), 2))
        return goals

    def _waypoints(self, count: int) -> _Floats:
        """Random points of the map, some of them in towns."""
        points = self._rng.uniform(size=(count, 2))
        if self.walk.towns:
            in_town = self._rng.uniform(size=count) < self.walk.town_share
            town = self._rng.choice(self.walk.towns, size=count, p=self._weights)
            around = self._rng.normal(scale=self.walk.town_radius, size=(count, 2))
            points = np.where(in_town[:, None], self._middles[town] + around, points)
        return points.clip(0.0, 1.0 - 1e-9)
