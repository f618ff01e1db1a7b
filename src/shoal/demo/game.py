"""The game of the Dynamoth paper (RGame, section V.A): a square world of square tiles, players who walk.

Owns where players are and which channel that is. A player picks a random point, walks there, rests a little
and picks the next one. Knows nothing of buses: time is an argument, chance is a seeded generator.
"""

from __future__ import annotations

import math
import struct
from random import Random
from typing import Final, NamedTuple

UPDATES_PER_S: Final = 3.0
"""How often a player says where it is, as in the paper."""

SPEED_TILES_PER_S: Final = (0.08, 0.25)
"""Slowest and fastest walk. A tile is crossed in some 4 to 12 s, so subscriptions come and go all the time."""

REST_S: Final = (0.5, 2.0)
"""Shortest and longest rest at a waypoint."""


class World(NamedTuple):
    """A square of `tiles` by `tiles` squares whose side is 1."""

    tiles: int

    def channel(self, x: float, y: float) -> str:
        """The channel of the tile that the point lies in."""
        last = self.tiles - 1
        return f"tile.{min(int(x), last)}.{min(int(y), last)}"

    @property
    def channels(self) -> list[str]:
        """The channels of all tiles."""
        return [f"tile.{x}.{y}" for x in range(self.tiles) for y in range(self.tiles)]

    @property
    def busiest(self) -> list[str]:
        """The channels of all tiles, those in the middle first: ways between random points cross there."""
        middle = (self.tiles - 1) / 2
        places = [(x, y) for x in range(self.tiles) for y in range(self.tiles)]
        places.sort(key=lambda place: math.dist(place, (middle, middle)))
        return [f"tile.{x}.{y}" for x, y in places]


class Walker:
    """One player's way through the world, from one waypoint to the next."""

    def __init__(self, world: World, random: Random, now: float) -> None:
        self._world = world
        self._random = random
        self.x, self.y = self._point()
        self._walk_from(now)

    @property
    def channel(self) -> str:
        """The channel of the tile where the player is."""
        return self._world.channel(self.x, self.y)

    def move(self, now: float) -> None:
        """Goes on to where the player is at `now`; waypoints in between are visited."""
        while now >= self._rested_at:
            self.x, self.y = self._target
            self._walk_from(self._rested_at)
        share = 1.0 if self._walk_s == 0 else min(1.0, (now - self._left_at) / self._walk_s)
        (x, y), (to_x, to_y) = self._origin, self._target
        self.x, self.y = x + (to_x - x) * share, y + (to_y - y) * share

    def _walk_from(self, now: float) -> None:
        """Chooses the next waypoint, the pace and the rest there."""
        self._left_at = now
        self._origin = self.x, self.y
        self._target = self._point()
        self._walk_s = math.dist(self._origin, self._target) / self._random.uniform(*SPEED_TILES_PER_S)
        self._rested_at = now + self._walk_s + self._random.uniform(*REST_S)

    def _point(self) -> tuple[float, float]:
        side = float(self._world.tiles)
        return self._random.uniform(0.0, side), self._random.uniform(0.0, side)


class Update(NamedTuple):
    """What a player publishes: who and where it is, and what a reader needs to see that nothing is missing.

    `number` counts the player's updates on this channel from 1. `at` is when this one was published,
    `before_at` when the one before it was (0 if there was none); both on the machine's monotonic clock.
    """

    player: int
    number: int
    at: float
    before_at: float
    x: float
    y: float

    def encode(self) -> bytes:
        """The payload."""
        return _UPDATE.pack(*self)

    @classmethod
    def decode(cls, payload: bytes) -> Update:
        """The update in a payload; struct.error if it is none."""
        return cls(*_UPDATE.unpack(payload))


_UPDATE: Final = struct.Struct("<IIddff")


def crowd_size(players: int, elapsed_s: float, seconds: float) -> int:
    """How many players take part: a tenth at the start, all of them after `GROWN_SHARE` of the time."""
    first = max(1, players // 10)
    grown = min(1.0, elapsed_s / max(seconds * GROWN_SHARE, 1e-9))
    return first + round((players - first) * max(grown, 0.0))


GROWN_SHARE: Final = 0.75
"""The crowd grows for this share of the time and then stays."""


def tiles_for(players: int) -> int:
    """The side of a world where a full tile holds about `PLAYERS_PER_TILE` players."""
    return max(2, round(math.sqrt(players / PLAYERS_PER_TILE)))


PLAYERS_PER_TILE: Final = 6
"""Random waypoints crowd the middle of the world, so tiles there hold twice as many."""
