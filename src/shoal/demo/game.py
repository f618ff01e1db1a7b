"""The game of the Dynamoth paper (RGame, section V.A): a square world of square tiles, players who walk.

Owns where players are and which channel that is. A player picks a random point, walks there, rests a little
and picks the next one; one that is called to the town runs there, and stays until it is let go. Knows nothing of
buses: time is an argument, chance is a seeded generator.
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

RUN_TILES_PER_S: Final = (0.8, 1.6)
"""Slowest and fastest way to the town."""

REST_S: Final = (0.5, 2.0)
"""Shortest and longest rest at a waypoint."""


TOWN: Final = (0.2, 0.8)
"""The part of its tile, in both directions, that is the town."""

NEIGHBOURS: Final = 8.5
"""Players, itself included, that a player's update goes to on average while all walk about."""


class World(NamedTuple):
    """A square of `tiles` by `tiles` squares whose side is 1."""

    tiles: int

    def channel(self, x: float, y: float) -> str:
        """The channel of the tile that the point lies in."""
        last = self.tiles - 1
        return f"tile.{min(int(x), last)}.{min(int(y), last)}"

    @property
    def town(self) -> tuple[float, float]:
        """The corner of the tile where players gather. It is at the edge of the world, where few come by chance."""
        return 0.0, float(self.tiles // 2)


class Walker:
    """One player's way through the world, from one waypoint to the next."""

    def __init__(self, world: World, random: Random, now: float) -> None:
        self._world = world
        self._random = random
        self._in_town = False
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

    def call(self, in_town: bool, now: float) -> None:
        """Calls the player to the town, or lets it go; it sets out at once."""
        if in_town != self._in_town:
            self._in_town = in_town
            self.move(now)
            self._walk_from(now)

    def _walk_from(self, now: float) -> None:
        """Chooses the next waypoint, the pace and the rest there."""
        self._left_at = now
        self._origin = self.x, self.y
        self._target = self._point()
        runs = self._in_town and self.channel != self._world.channel(*self._target)
        speed = self._random.uniform(*(RUN_TILES_PER_S if runs else SPEED_TILES_PER_S))
        self._walk_s = math.dist(self._origin, self._target) / speed
        self._rested_at = now + self._walk_s + self._random.uniform(*REST_S)

    def _point(self) -> tuple[float, float]:
        if self._in_town:
            (x, y), (low, high) = self._world.town, TOWN
            return x + self._random.uniform(low, high), y + self._random.uniform(low, high)
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
        """The update that a payload begins with; struct.error if it is none."""
        return cls(*_UPDATE.unpack_from(payload))


_UPDATE: Final = struct.Struct("<IIddff")


def tiles_for(players: int) -> int:
    """The side of a world where a full tile holds about `PLAYERS_PER_TILE` players."""
    return max(2, round(math.sqrt(players / PLAYERS_PER_TILE)))


PLAYERS_PER_TILE: Final = 6
"""Random waypoints crowd the middle of the world, so tiles there hold twice as many."""
